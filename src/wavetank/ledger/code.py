"""The code behind a figure: a checksum of what a problem's folder does, so that evidence of older code is marked.

Words do not count: comments, docstrings and layout are left out of the checksum.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@cache
def checksum(room: str) -> str:
    """Return the checksum of a folder of the package, such as ``kernels/sparse``; empty where there is none."""
    folder = _PACKAGE / room
    if not room:
        return ""
    files = sorted(folder.rglob("*.py"))
    if not files:
        return ""
    found = hashlib.sha256()
    for file in files:
        found.update(file.relative_to(folder).as_posix().encode())
        found.update(meaning(file.read_text(encoding="utf-8")).encode())
    return found.hexdigest()[:16]


def meaning(text: str) -> str:
    """Return a module's syntax without docstrings, places and comments.

    Examples
    --------
    >>> meaning("x = 1  # one") == meaning("x  =  1") != meaning("x = 2")
    True
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
            del node.body[0]  # type: ignore[attr-defined]
    return ast.dump(tree)
