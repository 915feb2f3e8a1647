"""Names that a package offers without importing what they stand for until somebody asks.

Importing an area must not start a compiler; its public names are therefore looked up in their modules on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Parameters
    ----------
    package : str
        Its name.
    homes : mapping of str to str
        Name to the module that defines it: below the package, or whole where it begins with ``wavetank.``.

    Examples
    --------
    >>> look_up, names = lazy_names("wavetank", {"WavetankError": "errors"})
    >>> look_up("WavetankError").__name__
    'WavetankError'
    """

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        return getattr(import_module(home if home.startswith("wavetank.") else f"{package}.{home}"), name)

    def names() -> list[str]:
        # What the package offers, without what it imports for its own use.
        return sorted({*vars(sys.modules[package]).get("__all__", ()), *homes})

    return look_up, names
