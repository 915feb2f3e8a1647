"""Tables of kernels: top-down shares, times, bytes and operations, one row a kernel and run, gaps kept.

A table is comma-separated text with a header, plain or gzipped, as Caliper and Thicket give it.  The columns of the
top-down tree are named ``topdown.NAME``, or ``NAME`` alone.  What a row does not have stays NaN, for a share that was
not counted is no zero.  Shares are derived from several counters and may be a little below zero: they are kept too.

Source: A. Yasin, "A Top-Down method for performance analysis and counters architecture", ISPASS 2014.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadTraceError, nearest_of
from wavetank.files import read_text

Floats = NDArray[np.float64]

MEMORY_LEVELS = ("l1_bound", "l2_bound", "l3_bound", "ext_mem_bound")
FIVE = ("retiring", "frontend_bound", "bad_speculation", "core_bound", "memory_bound")
SHARES = (*FIVE, *MEMORY_LEVELS, "backend_bound")
SETTINGS = ("compiler", "opt", "variant", "tuning", "problem_size")
AMOUNTS = ("time_ns", "time.duration", "Bytes/Rep", "Flops/Rep", "Reps")
_PREFIX = "topdown."
_GAPS = frozenset({"", "nan", "na", "null", "none"})
_LARGEST_BYTES = 256 * 2**20
# A share that was derived from several counters may leave the interval from 0 to 1 by this much.
_SLACK = 0.5
_MOST_ROWS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """Rows of kernels, each in one run.

    Parameters
    ----------
    kernels, runs : tuple of str
        Of each row.
    settings : tuple of tuple of str
        Compiler, optimisation, variant, tuning and problem size of each row; empty text where there is no column.
    values : mapping of str to array, shape (rows,)
        Shares and amounts by column, without the prefix; NaN is a gap.  Times are in ns (``time_ns``) or in s
        (``time.duration``).
    """

    kernels: tuple[str, ...]
    runs: tuple[str, ...]
    settings: tuple[tuple[str, ...], ...]
    values: Mapping[str, Floats]

    @property
    def gaps(self) -> int:
        """How many values of columns that exist are missing."""
        return int(sum(np.isnan(each).sum() for each in self.values.values()))

    def seconds_per_rep(self) -> Floats:
        """Return the time of one repetition, in s; NaN where the row has no time.

        Returns
        -------
        array, shape (rows,)
        """
        missing = np.full(len(self.kernels), np.nan)
        taken = self.values.get("time_ns", missing) / 1e9
        taken = np.where(np.isnan(taken), self.values.get("time.duration", missing), taken)
        return taken / self.values.get("Reps", np.ones(len(self.kernels)))


def looks_like_kernels(head: bytes) -> bool:
    """Return whether the first bytes begin a table of kernels with top-down shares.

    Parameters
    ----------
    head : bytes
    """
    words = _header(head.partition(b"\n")[0].decode("utf-8", "replace").removeprefix("\ufeff"))
    return "kernel" in words and sum(each in words for each in FIVE) >= 2


def read_kernels(path: Path, required: Sequence[str] = FIVE) -> KernelTable:
    """Read a table of kernels.

    Parameters
    ----------
    path : Path
        Comma-separated text, plain or gzipped.
    required : sequence of str
        Columns that must be there, without the prefix; the column ``kernel`` always must.

    Raises
    ------
    BadFileError
        If the file cannot be read, or a required column is missing: with its name.
    BadTraceError
        If a value is no number, no share or no amount, or a kernel stands twice in one run: with line and column.
    """
    text = read_text(path, largest_bytes=_LARGEST_BYTES)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        names = _header_of(next(rows, []), str(path))
        for name in ("kernel", *required):
            if name not in names:
                raise BadFileError(
                    f"The table has no column {name!r}.", given=", ".join(names) or "an empty file",
                    allowed=f"kernel and {', '.join(required)}, also with the prefix {_PREFIX}",
                    nearest=nearest_of(name, names), where=str(path),
                )  # fmt: skip
        return _table(rows, names, str(path))
    except csv.Error as error:
        raise BadFileError(
            "The file is no table of comma-separated text.", given=str(error), where=str(path)
        ) from error


def _header(line: str) -> list[str]:
    try:
        return _plain(next(csv.reader([line]), []))
    except csv.Error:
        return []


def _plain(words: Sequence[str]) -> list[str]:
    return [word.strip().removeprefix(_PREFIX) for word in words]


def _header_of(words: Sequence[str], where: str) -> list[str]:
    names = _plain(words)
    twice = sorted({name for name in names if names.count(name) > 1 and name in ("kernel", "run", *SHARES, *AMOUNTS)})
    if twice:
        raise BadFileError(f"The table has two columns {twice[0]!r}.", where=where)
    return names


def _table(rows: object, names: list[str], where: str) -> KernelTable:
    place = {name: at for at, name in enumerate(names)}
    wanted = [name for name in (*SHARES, *AMOUNTS) if name in place]
    columns: dict[str, list[float]] = {name: [] for name in wanted}
    kernels, runs, settings = list[str](), list[str](), list[tuple[str, ...]]()
    seen: set[tuple[str, ...]] = set()
    for row in rows:  # type: ignore[attr-defined]
        if not row:
            continue
        line = f"{where}, line {rows.line_num}"  # type: ignore[attr-defined]
        if len(row) != len(names):
            raise BadTraceError("A row has another number of values than the header.", given=len(row),
                                allowed=str(len(names)), where=line)  # fmt: skip
        kernel = row[place["kernel"]].strip()
        if not kernel:
            raise BadTraceError("A row names no kernel.", where=line)
        run = row[place["run"]].strip() if "run" in place else ""
        setting = tuple(row[place[name]].strip() if name in place else "" for name in SETTINGS)
        key = (kernel, run, *setting)
        if run and key in seen:
            raise BadTraceError("A kernel stands twice in one run.", given=f"{kernel} in {run}", where=line)
        seen.add(key)
        kernels.append(kernel)
        runs.append(run)
        settings.append(setting)
        for name in wanted:
            columns[name].append(_number(row[place[name]], name, line))
        if len(kernels) > _MOST_ROWS:
            raise BadFileError("The table is too long.", allowed=f"up to {_MOST_ROWS} rows", where=where)
    if not kernels:
        raise BadTraceError("The table has no rows.", where=where)
    values = {name: np.array(each, np.float64) for name, each in columns.items()}
    return KernelTable(kernels=tuple(kernels), runs=tuple(runs), settings=tuple(settings), values=values)


def _number(text: str, name: str, where: str) -> float:
    """Return a value, NaN for a gap."""
    word = text.strip()
    if word.lower() in _GAPS:
        return math.nan
    try:
        value = float(word)
    except ValueError:
        value = math.inf
    if name in SHARES:
        right, allowed = -_SLACK <= value <= 1 + _SLACK, f"a share, from 0 to 1, give or take {_SLACK}"
    else:
        least = 0.0 if name in ("Bytes/Rep", "Flops/Rep") else 1e-300
        right, allowed = least <= value < math.inf, "a finite number, not below zero; times and repetitions above it"
    if not right:
        raise BadTraceError(f"A value of {name} makes no sense.", given=word, allowed=allowed, where=where)
    return value
