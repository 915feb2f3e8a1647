"""Docstrings for people who read them in a terminal or a report: the words without the markup."""

from __future__ import annotations

import re

_ROLE = re.compile(r":[\w:]+:`(?P<last>~?)(?:[^`<]*<)?(?P<name>[^`>]+)>?`")


def plain(text: str) -> str:
    """Return text of a docstring without the marks of reStructuredText for code and references.

    Examples
    --------
    >>> plain("``x`` goes through :mod:`wavetank.sim`, see :func:`~wavetank.kernels.sort`.")
    'x goes through wavetank.sim, see sort.'
    """

    def words(match: re.Match[str]) -> str:
        name = match["name"]
        return name.rpartition(".")[2] if match["last"] else name

    return _ROLE.sub(words, text).replace("``", "")
