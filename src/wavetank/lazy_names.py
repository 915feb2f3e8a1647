"""Names that a package offers without importing the modules behind them until they are used.

Importing an area must not start a compiler.  A package therefore names its public objects once, as imports under
``if TYPE_CHECKING:``, where type checkers read them; this module reads the same lines when the program runs and imports
each module on the first use of one of its names.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562).

    Parameters
    ----------
    package : str
        Its name; its ``__init__.py`` has the imports of its public names under ``if TYPE_CHECKING:``.

    Examples
    --------
    >>> look_up, names, public = lazy_names("wavetank")
    >>> look_up("WavetankError").__name__, "compare" in public
    ('WavetankError', True)
    """
    homes = _homes(str(sys.modules[package].__file__))

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        return getattr(import_module(module), attribute)

    def names() -> list[str]:
        # What the package offers, without what it imports for its own use.
        return sorted({*vars(sys.modules[package]).get("__all__", ()), *homes})

    return look_up, names, sorted(homes)


def _homes(file: str) -> dict[str, tuple[str, str]]:
    """Return, for each name that a package imports for type checkers, the module and the name in it."""
    found: dict[str, tuple[str, str]] = {}
    # Not pathlib: it would be a third of what importing this package costs.
    with io.open_code(file) as source:
        blocks = ast.parse(source.read()).body
    for block in blocks:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for each in block.body:
                if isinstance(each, ast.ImportFrom) and each.module and not each.level:
                    found |= {alias.asname or alias.name: (each.module, alias.name) for alias in each.names}
    return found
