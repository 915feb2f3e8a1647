"""Files of decisions: the periods and level shifts that an analyst fixed, so that a decomposition repeats exactly.

A file is TOML with a version and a table for each series; what a table leaves out is found automatically.  Times are
whole nanoseconds since 1970, for a date would not say which step begins a level of a series by the minute.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError
from wavetank.files import read_text, write_atomic
from wavetank.insight.series.interface import Decisions, Decomposition

VERSION = 1
_LARGEST_BYTES = 4 << 20
_KEYS = frozenset(("periods", "changes_ns", "why"))


def write_decisions(path: Path, decisions: Mapping[str, Decisions]) -> None:
    """Write a file of decisions, as a whole or not at all.

    Parameters
    ----------
    path : Path
        Replaced.
    decisions : mapping of str to Decisions
        By the series' names.

    Raises
    ------
    BadFileError
        If it cannot be written.
    """
    lines = [f"version = {VERSION}"]
    for name, each in decisions.items():
        lines += ["", f"[series.{_quoted(name)}]"]
        if each.periods is not None:
            lines.append(f"periods = [{', '.join(repr(float(one)) for one in each.periods)}]  # steps")
        if each.changes is not None:
            lines.append(f"changes_ns = [{', '.join(str(int(one)) for one in each.changes)}]")
        if each.why:
            lines.append(f"why = {_quoted(each.why)}")
    try:
        write_atomic(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise BadFileError("The decisions cannot be written.", given=str(error), where=str(path)) from error


def read_decisions(path: Path) -> dict[str, Decisions]:
    """Return the decisions of a file, by the series' names.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadFileError
        If the file is missing, no TOML, of another version, or says something else than decisions.
    """
    try:
        found = tomllib.loads(read_text(path, largest_bytes=_LARGEST_BYTES))
    except tomllib.TOMLDecodeError as error:
        raise BadFileError("The file of decisions is no TOML.", given=str(error), where=str(path)) from error
    if found.get("version") != VERSION:
        raise BadFileError("The file of decisions is of another version.", given=found.get("version"),
                           allowed=f"version = {VERSION}", where=str(path))  # fmt: skip
    tables = found.get("series", {})
    if set(found) - {"version", "series"} or not isinstance(tables, dict):
        raise BadFileError("A file of decisions has a version and tables of series.", given=", ".join(found),
                           where=str(path))  # fmt: skip
    return {name: _decisions(table, name, path) for name, table in tables.items()}


def decided(parts: Decomposition, why: str = "") -> Decisions:
    """Return the decisions that fix what a decomposition found.

    Parameters
    ----------
    parts : Decomposition
    why : str
    """
    return Decisions(
        periods=tuple(each.period for each in parts.periods),
        changes=tuple(parts.series.time_ns(each) for each in parts.changes), why=why,
    )  # fmt: skip


def _decisions(table: Any, name: str, path: Path) -> Decisions:
    where = f"{path}, series {name}"
    if not isinstance(table, dict) or set(table) - _KEYS:
        raise BadFileError(
            "The table of a series has other keys.", given=str(table), allowed=sorted(_KEYS), where=where
        )
    periods, changes, why = table.get("periods"), table.get("changes_ns"), table.get("why", "")
    if periods is not None and not _all(periods, float):
        raise BadFileError("Periods are finite numbers of steps.", given=str(periods), where=where)
    if changes is not None and not _all(changes, int):
        raise BadFileError("Level shifts are whole nanoseconds since 1970.", given=str(changes), where=where)
    if not isinstance(why, str):
        raise BadFileError("The reason is text.", given=str(why), where=where)
    return Decisions(
        periods=None if periods is None else tuple(float(each) for each in periods),
        changes=None if changes is None else tuple(changes), why=why,
    )  # fmt: skip


def _all(values: Any, kind: type) -> bool:
    allowed = (int, float) if kind is float else (int,)
    return isinstance(values, list) and all(
        isinstance(each, allowed) and not isinstance(each, bool) and math.isfinite(each) for each in values
    )


def _quoted(text: str) -> str:
    """Return text as a basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each >= " " and each != "\x7f" else f"\\u{ord(each):04x}" for each in escaped) + '"'
