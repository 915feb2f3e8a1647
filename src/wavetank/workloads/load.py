"""Read a request trace from a file or by the name of a real trace.

CSV, JSON Lines (both also gzipped) and Parquet are read with DuckDB.  Columns are found by the spellings that public
traces use, or as the caller says.  What the file says is never guessed around: a row that does not fit stops the
reading with its place.

Sources: the column names of the Azure LLM inference traces 2023, Mooncake (FAST 2025), Vidur (MLSys 2024), BurstGPT
and LLMServingSim 2.0.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import gzip
import io
import json
import os
import re
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadTraceError, nearest_of, unknown_name
from wavetank.units import convert
from wavetank.workloads import datasets
from wavetank.workloads.requests import IntArray, RequestTrace


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """Where a real trace lies: data set, file in it, unit of its arrival column."""

    dataset: str
    file: str
    time_unit: str


_MOONCAKE = NamedTrace("mooncake-kv-trace", "conversation_trace.jsonl.gz", "ms")

TRACES: Mapping[str, NamedTrace] = MappingProxyType(
    {
        "azure-conv-2023": NamedTrace("azure-llm-2023", "conv_first40min.csv.gz", "s"),
        "azure-code-2023": NamedTrace("azure-llm-2023", "code_first40min.csv.gz", "s"),
        "mooncake-conversation": _MOONCAKE,
        "mooncake-fast25": _MOONCAKE,
    }
)
"""The real traces that :func:`read_trace` knows by name."""

# field -> spellings in order of preference, compared without case, underscores and spaces
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "arrival_s": ("arrival_s", "timestamp", "arrived_at", "arrival_time"),
    "prompt_tokens": (
        "prompt_tokens", "context_tokens", "input_length", "num_prefill_tokens", "request_tokens", "input_toks",
    ),
    "output_tokens": (
        "output_tokens", "generated_tokens", "output_length", "num_decode_tokens", "response_tokens", "output_toks",
    ),
    "block_ids": ("block_ids", "hash_ids"),
    "model": ("model",),
    "tier": ("tier",),
    "adapter": ("adapter", "adapter_name", "lora", "lora_name"),
}  # fmt: skip
_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")

_FORMATS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".parquet")
_DELIMITERS = ",;\t|"
# Enough to hold a header and a first row; a text file without line ends is not read whole.
_HEAD_BYTES = 1 << 20

RECORDING_KEY = "wavetank_recording"
"""The first key of every line that ``wavetank launch router --record`` writes; its value is the format's version."""
RECORDING_VERSION = 1

# No trace starts years after its own beginning: such a start is a date in Unix seconds.
_UNIX_TIME_S = 1e8
# A first arrival from here on is no date in Unix seconds (the year 5,138) but one in the next smaller unit, and so on.
_UNIX_UNITS = ((1e11, "ms"), (1e14, "us"), (1e17, "ns"))
# Whole numbers that lie this far apart are likely to be of a smaller unit than seconds.
_LONG_GAP_S = 100.0


def read_trace(
    source: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    sort: bool = False,
    block_tokens: int | None = None,
) -> RequestTrace:
    """Read a trace of LLM requests.

    Parameters
    ----------
    source : str or Path
        The name of a real trace (a key of :data:`TRACES`) or a file: ``.csv``, ``.jsonl`` or ``.ndjson`` (one object
        a line), each also with ``.gz``, or ``.parquet``.
    columns : mapping of str to str, optional
        Which file column gives which field, e.g. ``{"arrival_s": "t", "prompt_tokens": "in"}``.  Fields:
        ``arrival_s``, ``prompt_tokens``, ``output_tokens`` and, where the file has them, ``block_ids`` (a list a
        row), ``model``, ``tier``, ``adapter`` (empty for none).  Fields not mentioned are found by the spellings of
        the public traces.
    time_unit : str, optional
        Unit of a numeric arrival column.  Real traces bring their own.  When left out it is seconds, or, for Unix
        times, milli-, micro- or nanoseconds where seconds would be a date thousands of years ahead; a warning says so.
    sort : bool
        Put requests that are out of order in order of arrival, instead of refusing them.
    block_tokens : int, optional
        Tokens of a full prefix block, where the file has block ids: 512 by default, or what a recording says.

    Returns
    -------
    RequestTrace
        Date-times (ISO 8601; UTC where no offset is given) and Unix times are counted from the first arrival; other
        arrival times are kept as they are.  A recording of ``wavetank launch router`` is put in order of arrival, and a
        last line that a crash tore is left out.

    Raises
    ------
    UnknownNameError
        If ``source`` is neither a trace name nor looks like a file, or ``columns`` names an unknown field.
    BadFileError
        If the file is missing, damaged, of another format, or lacks a column.
    BadTraceError
        If the content makes no sense; the error names the row (after the header, from 1) and the column.
    DataUnavailableError
        If a real trace is not on this machine.

    Warns
    -----
    UserWarning
        Where the unit of the arrival times was not given and is not plainly seconds.
    """
    trace, notes = read_trace_and_notes(
        source, columns=columns, time_unit=time_unit, sort=sort, block_tokens=block_tokens
    )
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return trace


def read_trace_and_notes(
    source: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    sort: bool = False,
    block_tokens: int | None = None,
) -> tuple[RequestTrace, tuple[str, ...]]:
    """Read a trace as :func:`read_trace` does, and return with it, for people, what had to be assumed."""
    named = TRACES.get(str(source))
    if named is not None:
        path = datasets.find(named.dataset, named.file)
        name, time_unit = str(source), named.time_unit
    else:
        path = _existing_file(source)
        name = path.name
    per_second = None if time_unit is None else convert(1.0, "s", time_unit, where="time_unit")
    recorded = _recording_head(path)
    if recorded is not None:
        sort = True
        block_tokens = block_tokens or recorded.get("block_tokens")
    with _whole_lines(path) if recorded is not None else contextlib.nullcontext(path) as whole:
        values, chosen = _read_file(whole, _known_fields(columns or {}))
    notes: tuple[str, ...] = ()
    if per_second is None:
        unit, notes = _likely_unit(values["arrival_s"], chosen["arrival_s"])
        per_second = convert(1.0, "s", unit)
    values["arrival_s"] = _in_seconds(values["arrival_s"], per_second)
    make = RequestTrace.sorted if sort else RequestTrace
    try:
        return make(**values, block_tokens=block_tokens or 512, name=name), notes
    except BadTraceError as error:
        place = re.sub(r"column '(\w+)'", lambda match: f"column {chosen.get(match[1], match[1])!r}", error.where or "")
        raise BadTraceError(
            error.problem,
            given=error.given,
            where=", ".join(part for part in (str(path), place) if part),
            hint=error.hint,
        ) from None


def _existing_file(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.lower().endswith(_FORMATS):
            raise BadFileError("This is not a format that traces are read from.", allowed=_FORMATS, where=str(path))
        return path
    if path.is_dir():
        raise BadFileError("This is a folder; a trace is one file.", where=str(path))
    if isinstance(source, str) and not path.suffix and len(path.parts) == 1:
        raise unknown_name("trace", source, TRACES, hint="a file of your own is given by its path, e.g. requests.csv")
    if not path.parent.is_dir():
        raise BadFileError("There is no such folder.", given=str(path.parent), where=str(path))
    raise BadFileError(
        "There is no such file.",
        given=path.name,
        nearest=nearest_of(path.name, (entry.name for entry in path.parent.iterdir())),
        where=str(path.parent),
    )


def _recording_head(path: Path) -> dict[str, Any] | None:
    """Return the first line of a recording; None for any other file."""
    if not _is(path, ".jsonl") and not _is(path, ".ndjson"):
        return None
    try:
        with _open(path) as stream:
            first = json.loads(stream.readline(_HEAD_BYTES))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error):
        return None
    if not isinstance(first, dict) or RECORDING_KEY not in first:
        return None
    if first[RECORDING_KEY] != RECORDING_VERSION:
        raise BadFileError(
            "This recording has another version of the format.",
            given=first[RECORDING_KEY], allowed=str(RECORDING_VERSION), where=f"{path}, line 1",
            hint="read it with the version of wavetank that wrote it, or a later one",
        )  # fmt: skip
    return first


@contextlib.contextmanager
def _whole_lines(path: Path) -> Iterator[Path]:
    """Give the file, or a copy without the last line where a crash left that torn."""
    if path.name.lower().endswith(".gz"):
        yield path
        return
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) == b"\n":
            yield path
            return
        stream.seek(0)
        with tempfile.TemporaryDirectory(prefix="wavetank-") as folder:
            copy = Path(folder) / path.name
            with copy.open("wb") as whole:
                for line in stream:
                    if line.endswith(b"\n"):
                        whole.write(line)
            yield copy


def _known_fields(columns: Mapping[str, str]) -> Mapping[str, str]:
    for field in columns:
        if field not in _SPELLINGS:
            raise unknown_name("trace field", field, _SPELLINGS, where="columns")
    return columns


def _read_file(path: Path, wanted: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the columns of a file as arguments of :class:`RequestTrace`, and which file column gave which field."""
    import duckdb

    try:
        # Extensions stay as they are installed: reading a local file never goes to the network.
        config = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        with duckdb.connect(":memory:", config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            if _is(path, ".csv"):
                relation, chosen = _csv(connection, path, wanted)
            else:
                relation = _parquet(connection, path) if _is(path, ".parquet") else _json_lines(connection, path)
                chosen = _choose(relation.columns, wanted, path)
            return _fields(relation, chosen, path), chosen
    except (duckdb.Error, OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise _unreadable(path, error) from error


def _is(path: Path, suffix: str) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(suffix)


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")


def _csv(connection: Any, path: Path, wanted: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    # Every type is stated: DuckDB's own detection skips leading rows that do not fit the rest.
    names, first_row, delimiter = _csv_head(path)
    chosen = _choose(names, wanted, path)
    types = dict.fromkeys(names, "VARCHAR")
    for field in _REQUIRED:
        types[chosen[field]] = "DOUBLE"
    if not _is_number(first_row.get(chosen["arrival_s"], "")):
        types[chosen["arrival_s"]] = "VARCHAR"
    if "block_ids" in chosen:
        types[chosen["block_ids"]] = "BIGINT[]"
    relation = connection.read_csv(
        glob.escape(str(path)), auto_detect=False, header=True, sep=delimiter, quotechar='"', escapechar='"',
        columns=types,
    )  # fmt: skip
    return relation, chosen


def _csv_head(path: Path) -> tuple[list[str], dict[str, str], str]:
    """Return the column names, the first row and the delimiter."""
    with _open(path) as stream:
        text = stream.read(_HEAD_BYTES)
    if len(text) == _HEAD_BYTES:
        text = text[: text.rfind(b"\n") + 1]
    lines = text.decode("utf-8-sig")
    header = lines.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)
    rows = csv.reader(io.StringIO(lines), delimiter=delimiter)
    names = [name.strip() for name in next(rows, [])]
    if not any(names):
        raise BadFileError(
            "This file has no header line.", where=f"{path}, line 1", hint="the first line names the columns"
        )
    folded = [name.casefold() for name in names]
    for position, name in enumerate(folded):
        if name in folded[:position]:
            raise BadFileError("Two columns have one name.", given=names[position], where=f"{path}, line 1")
    return names, dict(zip(names, next(rows, []), strict=False)), delimiter


def _json_lines(connection: Any, path: Path) -> Any:
    relation = connection.read_json(glob.escape(str(path)), format="newline_delimited", sample_size=-1)
    # DuckDB's name for the one column of lines that are not objects, and of no lines.
    if relation.columns == ["json"]:
        raise BadFileError("This file does not hold one JSON object a line.", where=str(path))
    return relation


def _parquet(connection: Any, path: Path) -> Any:
    return connection.read_parquet(glob.escape(str(path)))


def _choose(found: Sequence[str], wanted: Mapping[str, str], path: Path) -> dict[str, str]:
    """Decide which file column gives which field."""
    by_spelling = {_folded(name): name for name in reversed(found)}
    chosen = {}
    for field, spellings in _SPELLINGS.items():
        if field in wanted:
            if wanted[field] not in found:
                raise _no_column(f"The file has no column {wanted[field]!r} for {field}.", [wanted[field]], found, path)
            chosen[field] = wanted[field]
            continue
        match = next((by_spelling[_folded(name)] for name in spellings if _folded(name) in by_spelling), None)
        if match is not None:
            chosen[field] = match
        elif field in _REQUIRED:
            raise _no_column(
                f"None of the file's columns is known to give {field}.", spellings, found, path,
                hint=f'say which one does: columns={{"{field}": "<column>"}}',
            )  # fmt: skip
    return chosen


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _no_column(
    problem: str, tried: Sequence[str], found: Sequence[str], path: Path, *, hint: str | None = None
) -> BadFileError:
    near = (nearest_of(name, found) for name in tried)
    return BadFileError(
        problem,
        allowed=f"the columns found: {', '.join(map(repr, found))}",
        nearest=next((name for name in near if name), None),
        where=str(path),
        hint=hint,
    )


def _fields(relation: Any, chosen: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Fetch the chosen columns and turn them into arguments of :class:`RequestTrace`."""
    from duckdb import ColumnExpression

    # From here on columns go by number: no name from a file or a caller becomes part of a query.
    numbers = {name: f"c{position}" for position, name in enumerate(relation.columns)}
    relation = relation.query("file", f"SELECT * FROM file AS numbered({', '.join(numbers.values())})")
    expressions = {field: ColumnExpression(numbers[name]) for field, name in chosen.items() if field != "block_ids"}
    for field in expressions.keys() - set(_REQUIRED):
        expressions[field] = expressions[field].cast("VARCHAR")
    fetched = relation.select(*(expression.alias(field) for field, expression in expressions.items())).fetchnumpy()
    values: dict[str, Any] = {}
    for field in expressions:
        place = f"column {chosen[field]!r}"
        # A request may ask for no adapter; nothing else may be missing.
        column = np.ma.filled(fetched[field], "") if field == "adapter" else _complete(fetched[field], path, place)
        if field == "arrival_s":
            values[field] = _clock(column, path, place)
        elif field in _REQUIRED:
            values[field] = _numbers(column, path, place)
        else:
            names, codes = np.unique(column.astype(str), return_inverse=True)
            values |= {field: codes, f"{field}_names": tuple(names.tolist())}
    if "block_ids" in chosen:
        values["block_ids"], values["block_offsets"] = _blocks(
            relation, numbers[chosen["block_ids"]], path, f"column {chosen['block_ids']!r}"
        )
    return values


def _blocks(relation: Any, column: str, path: Path, place: str) -> tuple[IntArray, IntArray]:
    from duckdb import ColumnExpression, FunctionExpression

    kind = str(dict(zip(relation.columns, relation.types, strict=True))[column])
    if not kind.endswith("[]"):
        raise BadFileError("Block ids are a list a row.", given=kind, where=f"{path}, {place}", hint="e.g. [0, 1, 2]")
    # Ids are only compared; as text they keep all their digits, whatever their type.
    lists = ColumnExpression(column) if kind == "BIGINT[]" else ColumnExpression(column).cast("VARCHAR[]")
    counts = relation.select(FunctionExpression("len", lists).alias("n")).fetchnumpy()["n"]
    ids = relation.select(FunctionExpression("unnest", lists).alias("id")).fetchnumpy()["id"]
    offsets = np.concatenate(([0], np.cumsum(np.ma.filled(counts, 0)))).astype(np.int64)
    missing = np.flatnonzero(np.ma.getmaskarray(ids))
    if missing.size:
        row = int(np.searchsorted(offsets, missing[0], side="right"))
        raise BadTraceError("A block id is missing.", where=f"{path}, row {row}, {place}")
    _, codes = np.unique(np.ma.getdata(ids), return_inverse=True)
    return codes.astype(np.int64), offsets


def _complete(values: npt.NDArray[Any], path: Path, place: str) -> npt.NDArray[Any]:
    missing = np.flatnonzero(np.ma.getmaskarray(values))
    if missing.size:
        raise BadTraceError("A value is missing.", where=f"{path}, row {missing[0] + 1}, {place}")
    return np.ma.getdata(values)


def _is_number(value: object) -> bool:
    if not isinstance(value, str):
        return isinstance(value, int | float) and not isinstance(value, bool)
    try:
        float(value)
    except ValueError:
        return False
    return True


def _numbers(values: npt.NDArray[Any], path: Path, place: str) -> npt.NDArray[Any]:
    if values.dtype.kind in "iuf":
        return values
    for row, value in enumerate(values):
        if values.dtype.kind != "O" or not _is_number(value):
            raise BadFileError("This is not a number.", given=str(value), where=f"{path}, row {row + 1}, {place}")
    return values.astype(np.float64)


def _clock(values: npt.NDArray[Any], path: Path, place: str) -> npt.NDArray[Any]:
    """Return arrivals as numbers or as numpy date-times."""
    if values.dtype.kind == "M" or values.size == 0:
        return values
    if values.dtype.kind != "O" or _is_number(values[0]):
        return _numbers(values, path, place)
    times = np.empty(values.size, dtype="datetime64[us]")
    for row, value in enumerate(values):
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise BadFileError(
                "This is neither a number nor an ISO date-time.", given=str(value),
                where=f"{path}, row {row + 1}, {place}", hint="e.g. 12.5 or 2023-11-16 18:15:46.680",
            ) from None  # fmt: skip
        times[row] = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    return times


def _likely_unit(arrivals: npt.NDArray[Any], column: str) -> tuple[str, tuple[str, ...]]:
    """Return the unit that arrivals are most likely in, and what must be said about it."""
    if arrivals.size == 0 or arrivals.dtype.kind == "M" or not np.isfinite(arrivals).all():
        return "s", ()
    first = float(arrivals.min())
    unit = next((unit for least, unit in reversed(_UNIX_UNITS) if first >= least), "s")
    if unit != "s":
        return unit, (
            f"The column {column!r} begins at {first:.4g}, a date thousands of years ahead in seconds: it was read as "
            f"Unix time in {unit} (--set time_unit= or time_unit= says otherwise).",
        )
    gaps = np.diff(np.sort(arrivals))
    whole = bool((arrivals == np.floor(arrivals)).all())
    if gaps.size and whole and float(np.median(gaps)) >= _LONG_GAP_S:
        return unit, (
            f"The column {column!r} was read as seconds, whose median gap is {float(np.median(gaps)):,.0f} s; if it is "
            "in milliseconds, give --set time_unit=ms (in Python time_unit='ms').",
        )
    return unit, ()


def _in_seconds(arrivals: npt.NDArray[Any], per_second: float) -> npt.NDArray[Any]:
    if arrivals.size == 0:
        return arrivals
    if arrivals.dtype.kind == "M":
        return (arrivals - arrivals.min()) / np.timedelta64(1, "s")
    if arrivals.min() > _UNIX_TIME_S * per_second:
        arrivals = arrivals - arrivals.min()
    # A whole number of ticks a second divides exactly: 100 ms is 0.1 s to the last digit.
    return arrivals / (round(per_second) if per_second >= 1 else per_second)


def _unreadable(path: Path, error: Exception) -> BadFileError:
    """Say what is wrong with a file, without the advice that DuckDB gives to those who call it."""
    lines = str(error).partition("\n\n")[0].splitlines()
    kept = [line for line in lines if not line.startswith(("*", "Possible", "Try setting"))]
    detail = re.sub(r"^(\w+ )+Error: ", "", "; ".join(kept))
    if _is(path, ".jsonl") or _is(path, ".ndjson"):
        # DuckDB counts lines within the part of the file that a thread reads.
        detail = re.sub(r",( at byte \d+)? in line \d+", "", detail)
        line = _bad_json_line(path)
    else:
        line = _line_in(detail)
    return BadFileError(
        f"This file cannot be read: {detail.strip()}",
        where=str(path) if line is None else f"{path}, line {line}",
        hint="correct that line" if line is not None else "the file is damaged or not what its name says; get it again",
    )


def _line_in(detail: str) -> int | None:
    match = re.search(r"Line: (\d+)", detail)
    return int(match[1]) if match else None


def _bad_json_line(path: Path) -> int | None:
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    json.loads(line.strip() or b"null")
                except (ValueError, RecursionError):
                    return number
    except (OSError, EOFError, zlib.error):
        pass
    return None
