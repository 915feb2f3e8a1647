"""Read a request trace: by the name of a real trace, from a file, or from a table in memory.

Files and tables are read with DuckDB.  Columns are found by the spellings that public traces and logs use, or as the
caller says; the form of a file, the unit of its times and the order of its rows are decided from all of it.  What was
read, repaired and assumed comes back as :class:`wavetank.workloads.trace_facts.TraceFacts`.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from wavetank.errors import BadTraceError, BadValueError, unknown_name
from wavetank.units import convert
from wavetank.workloads import agent_sessions, datasets
from wavetank.workloads.arrival_times import DAY_ORDERS
from wavetank.workloads.intake import Intake, check_fields, take_in
from wavetank.workloads.requests import RequestTrace
from wavetank.workloads.trace_facts import TraceFacts, check_asked_in, doubts, hint_to_say
from wavetank.workloads.trace_sources import (
    Source,
    existing_file,
    open_file,
    open_table,
    recording_head,
    table_name,
    whole_lines,
)


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
        agent_sessions.NAME: NamedTrace(agent_sessions.NAME, agent_sessions.FILE, "s"),
    }
)
"""The real traces that :func:`read_trace` knows by name."""

BAD_ROWS = ("stop", "drop")
# How arrivals are described that were numbers and no dates.
_UNITS_OF_NUMBERS = ("s", "ms", "us", "ns")


def read_trace(
    source: Any,
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    sort: bool = True,
    block_tokens: int | None = None,
    bad_rows: str = "stop",
) -> RequestTrace:
    """Read a trace of LLM requests.

    Parameters
    ----------
    source : str, Path, DataFrame, Arrow table, list of dict or RequestTrace
        The name of a real trace (a key of :data:`TRACES`), a file or a table.  Files: columns separated by commas,
        semicolons, tabs, bars or spaces (``.csv``, ``.tsv``, ``.tab``, ``.txt``), JSON objects, one a line
        (``.jsonl``, ``.ndjson``, ``.json``), each also with ``.gz``, or ``.parquet``; in UTF-8, UTF-16 or Latin-1.
        Tables: of pandas, polars or Arrow.
    columns : mapping of str to str, optional
        Which column gives which field, e.g. ``{"arrival_s": "t", "prompt_tokens": "in"}``.  Fields: ``arrival_s``,
        ``prompt_tokens``, ``output_tokens`` and, where the source has them, ``block_ids`` (a list a row),
        ``block_tokens`` (one number for all rows), ``model``, ``tier``, ``adapter`` (each may be empty).  Fields not
        mentioned are found by the spellings of public traces and logs.  A nested column is named with dots, as in
        ``usage.prompt_tokens``.
    time_unit : str, optional
        Unit of a numeric arrival column; or, of dates such as 11/12/2023, ``mdy`` or ``dmy``.  Real traces bring their
        own.  When left out it is decided from all rows and the column's name.
    sort : bool
        Put requests that are out of order in order of arrival; False refuses them.
    block_tokens : int, optional
        Tokens of a full prefix block, where the source has block ids: 512 by default, or what its rows say.
    bad_rows : str
        ``stop`` at the first row with a missing, zero, negative or non-numeric value, or ``drop`` such rows.

    Returns
    -------
    RequestTrace
        Date-times (UTC where no offset is given) and Unix times are counted from the first arrival; other arrival
        times are kept as they are.  A recording of ``wavetank launch router`` is put in order of arrival, and a last
        line that a crash tore is left out.

    Raises
    ------
    UnknownNameError
        If ``source`` is neither a trace name nor looks like a file, or ``columns`` names an unknown field.
    BadFileError
        If the file is missing, damaged, too large, of another format, or lacks columns: all of them at once.
    BadTraceError
        If the content makes no sense; the error names the row (after the header, from 1) and the column.
    DataUnavailableError
        If a real trace is not on this machine.

    Warns
    -----
    UserWarning
        Where rows were dropped or put in order, and where what was read may not be what is meant.
    """
    trace, facts = read_trace_and_facts(
        source, columns=columns, time_unit=time_unit, sort=sort, block_tokens=block_tokens, bad_rows=bad_rows
    )
    for sentence in (*(f"{facts.name}: {repair}" for repair in facts.repairs), *facts.notes):
        warnings.warn(sentence, stacklevel=2)
    return trace


def read_trace_and_facts(
    source: Any,
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    sort: bool = True,
    block_tokens: int | None = None,
    bad_rows: str = "stop",
    asked_in: str = "python",
) -> tuple[RequestTrace, TraceFacts]:
    """Read a trace as :func:`read_trace` does, and return with it what was read, repaired and assumed.

    Parameters
    ----------
    source, columns, time_unit, sort, block_tokens, bad_rows
        As of :func:`read_trace`: a name, a file or a table; column names; unit of numeric arrivals; order; tokens per
        prefix block; what is done about rows that cannot be used.
    asked_in : str
        One of :data:`wavetank.workloads.trace_facts.ASKED_IN`: in whose syntax errors give the next step.

    Returns
    -------
    RequestTrace
        Arrivals in seconds.
    TraceFacts
        For people, in three lines.
    """
    if bad_rows not in BAD_ROWS:
        raise BadValueError("This cannot be done with bad rows.", given=bad_rows, allowed=BAD_ROWS, where="bad_rows")
    check_asked_in(asked_in)
    check_fields(columns or {})
    if time_unit is not None and time_unit not in DAY_ORDERS:
        convert(1.0, "s", time_unit, where="time_unit")
    if isinstance(source, RequestTrace):
        if columns or time_unit:
            raise BadValueError(
                "A RequestTrace has its columns and its unit already.", given=columns or time_unit,
                where="columns" if columns else "time_unit", hint="leave columns and time_unit out",
            )  # fmt: skip
        return source, TraceFacts(name=source.name, trace=source, rows_read=len(source))
    given = _Given(columns or {}, time_unit, sort, block_tokens, bad_rows == "drop", asked_in)
    if not isinstance(source, str | Path):
        with open_table(source) as table:
            taken = given.take_in(table)
        return given.finish(taken, table, table_name(source))
    return _from_file(source, given)


def _from_file(source: str | Path, given: _Given) -> tuple[RequestTrace, TraceFacts]:
    named = TRACES.get(str(source))
    if named is not None:
        path = datasets.find(named.dataset, named.file)
        name, given.time_unit, given.known = str(source), named.time_unit, True
        if named.dataset == agent_sessions.NAME:
            trace = agent_sessions.one_pass(agent_sessions.of_data_set())
            return trace, TraceFacts(name=name, trace=trace, rows_read=len(trace), notes=(agent_sessions.ASSUMED,))
    else:
        path = Path(source).expanduser()
        if isinstance(source, str) and not path.exists() and not path.suffix and len(path.parts) == 1:
            raise unknown_name(
                "trace", source, TRACES, hint="a file of your own is given by its path, e.g. requests.csv"
            )
        path = existing_file(source, path)
        name = path.name
    recorded = recording_head(path)
    if recorded is not None:
        given.recording = given.known = True
        given.block_tokens = given.block_tokens or recorded.get("block_tokens")
    skip = hint_to_say(given.asked_in, "bad_rows", "drop")
    with (
        whole_lines(path) if recorded is not None else contextlib.nullcontext(path) as whole,
        open_file(whole, skip_damaged=given.drop, shown=path, to_skip=skip) as opened,
    ):
        taken = given.take_in(opened)
    return given.finish(taken, opened, name)


@dataclass
class _Given:
    """What the caller says about a source."""

    columns: Mapping[str, str]
    time_unit: str | None
    sort: bool
    block_tokens: int | None
    drop: bool
    asked_in: str
    recording: bool = False
    # A real trace or a recording, of which the clock is known.
    known: bool = False

    def take_in(self, source: Source) -> Intake:
        return take_in(
            source, columns=self.columns, time_unit=self.time_unit, drop_bad_rows=self.drop, asked_in=self.asked_in
        )

    def finish(self, taken: Intake, source: Source, name: str) -> tuple[RequestTrace, TraceFacts]:
        """Make the trace, with errors that name the source's rows and columns."""
        values = dict(taken.values)
        arrival_s = values["arrival_s"]
        out_of_place = int((arrival_s < np.maximum.accumulate(arrival_s)).sum())
        block_tokens = self.block_tokens or values.pop("block_tokens", None) or 512
        values.pop("block_tokens", None)
        make = RequestTrace.sorted if self.sort or self.recording else RequestTrace
        try:
            trace = make(**values, block_tokens=block_tokens, name=name)
        except BadTraceError as error:
            raise BadTraceError(
                error.problem,
                given=error.given,
                where=", ".join(part for part in (source.where, _place(error.where, taken)) if part),
                hint=error.hint,
            ) from None
        notes, column = taken.notes, taken.columns["arrival_s"]
        if not self.known:
            plain = taken.times in _UNITS_OF_NUMBERS
            notes += doubts(trace, arrival_s, column=column, plain=plain, asked_in=self.asked_in)
        return trace, TraceFacts(
            name=name, trace=trace, rows_read=taken.rows_read, dropped=taken.dropped,
            # Requests are recorded as they end: their order is no defect.
            out_of_place=0 if self.recording else out_of_place,
            columns=taken.columns, times=taken.times, read_as=source.read_as, notes=notes,
        )  # fmt: skip


def _place(where: str | None, taken: Intake) -> str:
    """Return the place of an error of a trace, in the source's rows and columns."""
    place = re.sub(r"column '(\w+)'", lambda match: f"column {taken.columns.get(match[1], match[1])!r}", where or "")
    return re.sub(r"row (\d+)", lambda match: f"row {int(taken.rows[int(match[1]) - 1]) + 1}", place)


def read_column_map(pairs: str | tuple[str, ...], *, where: str) -> dict[str, str]:
    """Return a column map given as text.

    Parameters
    ----------
    pairs : str or tuple of str
        ``arrival_s=ts,prompt_tokens=in``, or its parts.
    where : str
        The setting or option, for messages.

    Raises
    ------
    BadValueError
        If a part is no pair.
    """
    parts = [part for part in pairs.split(",") if part.strip()] if isinstance(pairs, str) else pairs
    found = {}
    for part in parts:
        field, _, column = part.partition("=")
        if not field.strip() or not column.strip():
            raise BadValueError(
                "A column map is made of pairs.", given=",".join(parts), allowed="arrival_s=TS,...", where=where
            )
        found[field.strip()] = column.strip()
    return found
