"""Command lines of Python processes that this program starts.

``python -m`` and ``python -c`` put the current directory before everything else that can be imported, so that a
``queue.py`` in a downloaded folder would run in every child.  ``-P`` leaves it out; what the caller could import
is passed on by ``PYTHONPATH`` alone.  Nothing else in the package writes such a command line.
"""

from __future__ import annotations

import sys


def python_module(name: str, *words: str) -> list[str]:
    """Return the command line that runs a module of the installed package in a process of its own.

    Parameters
    ----------
    name : str
        Dotted name of the module.
    *words : str
        Its arguments.

    Examples
    --------
    >>> python_module("wavetank", "list")[1:]
    ['-P', '-m', 'wavetank', 'list']
    """
    return [sys.executable, "-P", "-m", name, *words]


def python_code(code: str, *words: str) -> list[str]:
    """Return the command line that runs a text of Python in a process of its own."""
    return [sys.executable, "-P", "-c", code, *words]
