"""From the rows of a source to the columns of a trace: which column is which, what cannot be used, in which order.

What cannot be used stops the reading with its row, or is left out and counted by reason, as the caller asks; nothing
else is changed.

Sources: the column names of the Azure LLM inference traces 2023, Mooncake (FAST 2025), Vidur (MLSys 2024), BurstGPT
and LLMServingSim 2.0, and those of logs in OpenAI's format.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadTraceError, nearest_of, unknown_name
from wavetank.workloads.arrival_times import (
    DAY_ORDERS,
    MISSING_WORDS,
    in_seconds,
    name_without_unit,
    read_dates,
    unit_of_numbers,
    zeros_among_dates,
)
from wavetank.workloads.requests import IntArray, tiers_in_order
from wavetank.workloads.trace_facts import hint_to_say, rows_in_words, words_for
from wavetank.workloads.trace_sources import Source

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")

MOST_ROWS = 50_000_000
"""The most requests that one trace may hold; their columns then take two gigabytes of memory."""

# field -> spellings in order of preference, compared without case and without signs between the words.  Those of public
# traces come first, then the plain families, last the words that may as well name a column of text.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    # What says that a request begins comes before what may as well be the time of its log line; request_time is last,
    # because to nginx it is a duration.
    "arrival_s": (
        "arrival_s", "arrived_at", "arrival_time", "arrival", "arrival_timestamp", "arrival_ts", "request_start_time",
        "request_start", "request_timestamp", "requested_at", "request_ts", "submitted_at", "submit_time",
        "received_at", "start_time", "started_at", "start_timestamp", "start_ts", "timestamp", "created_at", "created",
        "created_time", "datetime", "date_time", "event_time", "time_local", "time_iso8601", "start", "time", "ts", "t",
        "request_time", "when",
    ),
    "prompt_tokens": (
        "prompt_tokens", "context_tokens", "input_length", "num_prefill_tokens", "request_tokens", "input_toks",
        "usage.prompt_tokens", "usage.input_tokens", "input_tokens", "num_prompt_tokens", "num_input_tokens",
        "n_prompt_tokens", "n_input_tokens", "prompt_token_count", "input_token_count", "prompt_length", "prompt_len",
        "input_len", "context_length", "context_len", "prefill_tokens", "prefill_len", "tokens_in", "in_tokens",
        "tokens_prompt", "tokens_input", "num_prompt", "num_input", "n_prompt", "n_input", "n_context", "n_in", "isl",
        "in", "input", "prompt",
    ),
    "output_tokens": (
        "output_tokens", "generated_tokens", "output_length", "num_decode_tokens", "response_tokens", "output_toks",
        "usage.completion_tokens", "usage.output_tokens", "completion_tokens", "num_output_tokens",
        "num_completion_tokens", "num_generated_tokens", "n_output_tokens", "n_completion_tokens", "n_generated_tokens",
        "output_token_count", "completion_token_count", "candidates_token_count", "output_len", "completion_length",
        "completion_len", "response_length", "response_len", "generation_length", "generated_len", "gen_len",
        "generation_tokens", "gen_tokens", "decode_tokens", "tokens_out", "out_tokens", "tokens_generated",
        "tokens_completion", "tokens_output", "num_output", "num_generated", "n_output", "n_generated", "n_out", "osl",
        "out", "generated", "output", "completion", "response",
    ),
    "block_ids": ("block_ids", "hash_ids"),
    "block_tokens": ("block_tokens",),
    "model": ("model",),
    "tier": ("tier", "priority"),
    "tier_rank": ("tier_rank",),
    "adapter": ("adapter", "adapter_name", "lora", "lora_name"),
    "session": (
        "session", "session_id", "conversation", "conversation_id", "conv_id", "chat_id", "thread_id", "dialog_id",
        "dialogue_id", "user", "user_id",
    ),
    "max_tokens": (
        "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_gen_tokens",
        "max_generated_tokens", "max_gen_toks",
    ),
    "deadline_s": ("deadline_s", "deadline_seconds", "deadline_ms", "deadline"),
}  # fmt: skip

_NAMES = ("model", "tier", "adapter", "session")
_OPTIONAL_NUMBERS = ("max_tokens", "deadline_s", "tier_rank")
_INTEGERS = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint"}
_OTHER_NUMBERS = {"decimal", "hugeint", "uhugeint"}
_TIMES = {"date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone"}
_INT64_MAX = np.iinfo(np.int64).max

# Columns of a time of day, and of the date that belongs to it.
_TIMES_OF_DAY = {"time", "timeofday", "timeutc", "localtime"}
_DATES = {"date", "day", "dateutc", "localdate"}
# A date and a time in digits alone, to the second or the millisecond.
_COMPACT = "(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])([01][0-9]|2[0-3])[0-5][0-9][0-5][0-9]([0-9]{3})?"
# What stands between thousands, as a regular expression, and in words.
_BETWEEN_THOUSANDS = {",": "commas", "[.]": "points", "['\u2019]": "apostrophes", "[ \u00a0\u2009\u202f]": "spaces"}
# From this share on, what is left out is no longer a few failed requests.
_MANY = 0.1

# Of two names: from this ratio of equal letters on, one is likely to be a misspelling of the other.
_ALIKE = 0.8

_SENTENCES = {
    "missing": "A value is missing.",
    "non-numeric": "This is not a number.",
    "unreadable": "This is neither a number nor an ISO date-time nor a date such as 11/16/2023 6:15:46 PM.",
    "zero": "A request has at least one token.",
    "negative": "A negative number makes no sense here.",
    "fractional": "A whole number is needed.",
    "infinite": "A finite number is needed.",
}


@dataclass(frozen=True, kw_only=True)
class Intake:
    """What was taken from a source.

    Parameters
    ----------
    values : mapping of str to object
        Arguments of :class:`wavetank.workloads.requests.RequestTrace`, in the source's order.
    rows : ndarray of int, shape (requests,)
        0-based row in the source of each request.
    rows_read : int
        Rows of the source, damaged lines included.
    dropped : mapping of str to int
        Rows left out, by reason.
    columns : mapping of str to str
        Field to the column that gave it.
    times : str
        How arrivals were understood.
    notes : tuple of str
    """

    values: Mapping[str, Any]
    rows: IntArray
    rows_read: int
    dropped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    times: str = "s"
    notes: tuple[str, ...] = ()


def check_fields(wanted: Mapping[str, str]) -> None:
    """Refuse a column map that names what no trace has.

    Parameters
    ----------
    wanted : mapping of str to str
        Field to column.

    Raises
    ------
    UnknownNameError
        If a key is no field.
    """
    for name in wanted:
        if name not in _SPELLINGS:
            raise unknown_name("trace field", name, _SPELLINGS, where="columns")


def choose_columns(found: Sequence[str], wanted: Mapping[str, str], *, where: str, asked_in: str) -> dict[str, str]:
    """Decide which column gives which field.

    Parameters
    ----------
    found : sequence of str
        The source's columns; nested ones as names joined with dots.
    wanted : mapping of str to str
        What the caller says: field to column.
    where : str
        The source, for messages.
    asked_in : str
        One of :data:`wavetank.workloads.trace_facts.ASKED_IN`.

    Raises
    ------
    BadFileError
        If columns are missing: all of them at once.
    """
    chosen: dict[str, str] = {}
    absent = {name: column for name, column in wanted.items() if column not in found}
    free = [name for name in found if name not in wanted.values()]
    missing = []
    for name, spellings in _SPELLINGS.items():
        if name in wanted:
            chosen[name] = wanted[name]
            continue
        match = _spelled(spellings, free, with_unit=name == "arrival_s")
        if match is not None:
            chosen[name] = match
            free.remove(match)
        elif name in REQUIRED:
            missing.append(name)
    if absent or missing:
        _refuse_columns(found, free, absent, missing, where, asked_in)
    return chosen


def _spelled(spellings: Sequence[str], free: Sequence[str], *, with_unit: bool) -> str | None:
    """Return the column of the most preferred spelling: by its whole name, else by the last parts of a nested name."""
    whole: dict[str, str] = {}
    tails: dict[str, str] = {}
    for name in reversed(free):
        whole[_folded(name)] = name
    for name in sorted(free, key=lambda name: -name.count(".")):
        parts = name.split(".")
        for first in range(len(parts) - 1, 0, -1):
            tails[_folded(".".join(parts[first:]))] = name
    tables = [whole, tails]
    if with_unit:
        for table in (whole, tails):
            tables.append({})
            for name in table.values():
                for part in (name, name.rpartition(".")[2]):
                    plain, unit = name_without_unit(part)
                    if unit:
                        tables[-1].setdefault(_folded(plain), name)
    for table in tables:
        for spelling in spellings:
            if _folded(spelling) in table:
                return table[_folded(spelling)]
    return None


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _alike(missing: Sequence[str], free: Sequence[str]) -> dict[str, str]:
    """Return the columns that are likely to be misspelled fields: each for the one field that it is most like."""
    scores = sorted(
        (
            (
                max(SequenceMatcher(None, _folded(column), _folded(known)).ratio() for known in _SPELLINGS[name]),
                name,
                column,
            )
            for name in missing
            for column in free
        ),
        reverse=True,
    )
    found: dict[str, str] = {}
    for score, name, column in scores:
        if score >= _ALIKE and name not in found and column not in found.values():
            found[name] = column
    return found


def _refuse_columns(
    found: Sequence[str],
    free: Sequence[str],
    absent: Mapping[str, str],
    missing: Sequence[str],
    where: str,
    asked_in: str,
) -> NoReturn:
    problems: list[str] = []
    map_to: dict[str, str | None] = {}
    for name, column in absent.items():
        problems.append(f"There is no column {column!r} for {name}.")
        map_to[name] = nearest_of(column, found)
    if missing:
        names = ", ".join(missing[:-1]) + (" and " if len(missing) > 1 else "") + missing[-1]
        problems.append(f"None of the columns is known to give {names}.")
        map_to |= dict.fromkeys(missing) | _alike(missing, free)
    nearest = list(dict.fromkeys(column for column in map_to.values() if column))
    many = [*map(repr, found[:40]), *([f"... ({len(found)} in all)"] if len(found) > 40 else [])]
    given = {name: column or "COLUMN" for name, column in map_to.items()}
    raise BadFileError(
        " ".join(problems),
        allowed=f"the columns found: {', '.join(many)}",
        nearest=", ".join(nearest) or None,
        where=where,
        hint=f"say which {'one does' if len(given) == 1 else 'ones do'}: {hint_to_say(asked_in, 'columns', given)}",
    )


def take_in(
    source: Source,
    *,
    columns: Mapping[str, str],
    time_unit: str | None,
    drop_bad_rows: bool,
    asked_in: str,
) -> Intake:
    """Fetch a source's columns and turn them into those of a trace.

    Parameters
    ----------
    source : Source
    columns : mapping of str to str
        What the caller says of columns: field to column.
    time_unit : str or None
        Unit of numeric arrivals, or order of day and month; None to decide it from all rows.
    drop_bad_rows : bool
        Leave out rows that cannot be used; otherwise the first of them stops the reading.
    asked_in : str
        One of :data:`wavetank.workloads.trace_facts.ASKED_IN`.

    Raises
    ------
    BadFileError
        If columns are missing.
    BadTraceError
        If rows cannot be used, or none is left.
    """
    chosen = choose_columns(list(source.columns), columns, where=source.where, asked_in=asked_in)
    expressions = {name: source.columns[column] for name, column in chosen.items()}
    beside: tuple[str, ...] = ()
    if "arrival_s" not in columns:
        beside = _other_arrivals(source.columns, chosen, asked_in)
        date = _date_of(chosen["arrival_s"], source)
        if date is not None:
            expressions["arrival_s"] = _joined(source.columns[date], expressions["arrival_s"])
            beside = (f"Arrivals are {date!r} and {chosen['arrival_s']!r} together.", *beside)
    relation = source.relation.select(*(expression.alias(name) for name, expression in expressions.items()))
    reading = _Reading(relation, chosen, source, time_unit, asked_in)
    fetched = reading.fetch()
    n = len(fetched["prompt_tokens"])
    # The reason of each row is the first of its fields, in the order of the columns of a trace.
    reason = np.zeros(n, dtype=np.int16)
    reasons = [""]

    def bad(name: str, word: str, rows: npt.NDArray[np.bool_]) -> None:
        if (rows := rows & (reason == 0)).any():
            reasons.append(f"{word}:{name}")
            reason[rows] = len(reasons) - 1

    arrivals, times, notes = reading.arrivals(fetched, bad)
    notes = (*beside, *notes, *reading.notes)
    values: dict[str, Any] = {}
    for name in ("prompt_tokens", "output_tokens"):
        values[name] = _tokens(name, fetched, bad)
    if (reason > 0).any() and not drop_bad_rows:
        reading.refuse_rows(reason, reasons)
    rows = np.flatnonzero(reason == 0)
    dropped = _counts(reason, reasons)
    damaged = source.damaged() if source.damaged is not None else 0
    if damaged:
        dropped["a form that cannot be read"] = damaged
    if not rows.size:
        _refuse_empty(n + damaged, dropped, reading, reason, reasons)
    unit = time_unit if time_unit not in (None, *DAY_ORDERS) else None
    kept = arrivals[rows]
    if unit is None and kept.dtype.kind not in "mM":
        unit, times, more = unit_of_numbers(
            kept, rows, column=chosen["arrival_s"], where=source.where, asked_in=asked_in
        )
        notes += more
    elif unit is not None and kept.dtype.kind not in "mM":
        times = unit
    values = {name: column[rows] for name, column in values.items()}
    values["arrival_s"] = in_seconds(kept, unit or "s")
    values |= reading.codes(fetched, rows)
    before = len(reading.notes)
    values |= reading.options(fetched, rows)
    notes += reading.notes[before:]
    notes += reading.doubts(values, reason, reasons)
    if "block_ids" in chosen:
        values["block_ids"], values["block_offsets"] = reading.blocks(rows)
    if "block_tokens" in chosen and (block_tokens := reading.block_tokens(fetched["block_tokens"])):
        values["block_tokens"] = block_tokens
    return Intake(
        values=values, rows=rows, rows_read=n + damaged, dropped=dict(dropped.most_common()), columns=chosen,
        times=times, notes=notes,
    )  # fmt: skip


def _counts(reason: npt.NDArray[np.int16], reasons: Sequence[str]) -> Counter[str]:
    """Return how many rows cannot be used for each reason, in words."""
    found: Counter[str] = Counter()
    for number, each in enumerate(reasons[1:], start=1):
        word, _, name = each.partition(":")
        found[f"{word} {words_for(name)}"] = int((reason == number).sum())
    return found


def _other_arrivals(found: Iterable[str], chosen: Mapping[str, str], asked_in: str) -> tuple[str, ...]:
    """Return a sentence on further columns that may hold arrivals, where there are any."""
    known = {_folded(spelling) for spelling in _SPELLINGS["arrival_s"]} - {"t", "when", "requesttime"}
    others = [
        name
        for name in found
        if name not in chosen.values() and not {_folded(name), _folded(name_without_unit(name)[0])}.isdisjoint(known)
    ]
    if not others:
        return ()
    names = ", ".join(map(repr, others[:3]))
    return (
        f"Arrivals were read from {chosen['arrival_s']!r}; {names} may hold them too: "
        f"{hint_to_say(asked_in, 'columns', {'arrival_s': others[0]})}.",
    )


def _date_of(column: str, source: Source) -> str | None:
    """Return the column of dates that belongs to a column of times of day, None where that holds something else."""
    date = next((name for name in source.columns if _folded(name) in _DATES), None)
    if date is None or _folded(column) not in _TIMES_OF_DAY:
        return None
    times = source.relation.select(source.columns[column].cast("VARCHAR").alias("t"))
    ((clocks, others),) = times.aggregate(
        "count(*) FILTER (WHERE regexp_matches(t, '^ *[0-9]{1,2}:[0-9]{2}')) AS clocks, "
        f"count(*) FILTER (WHERE NOT regexp_matches(t, '^ *[0-9]{{1,2}}:[0-9]{{2}}') AND NOT {_absent('t')}) AS others"
    ).fetchall()
    return date if clocks and not others else None


def _joined(date: Any, time: Any) -> Any:
    """Return the expression of a date and a time in one text, null where one of them is missing."""
    from duckdb import CaseExpression, ConstantExpression, FunctionExpression

    texts = [date.cast("VARCHAR"), time.cast("VARCHAR")]
    written, said = (FunctionExpression("regexp_matches", text, ConstantExpression("[0-9]")) for text in texts)
    return CaseExpression(written & said, FunctionExpression("concat", texts[0], ConstantExpression(" "), texts[1]))


def _refuse_empty(
    rows_read: int,
    dropped: Mapping[str, int],
    reading: _Reading,
    reason: npt.NDArray[np.int16],
    reasons: Sequence[str],
) -> NoReturn:
    if rows_read:
        hint = "check which columns are read: " + hint_to_say(
            reading.asked_in, "columns", {name: reading.chosen[name] for name in REQUIRED}
        )
        raw, place, problem = "", reading.source.where, ""
        if reason.size:
            row, word, name, raw = reading.example(reason, reasons)
            place, problem = f"{place}, row {row + 1}, column {reading.chosen[name]!r}", f" {_SENTENCES[word]}"
        raise BadTraceError(
            f"None of the {rows_read:,} rows can be used: {rows_in_words(dropped)}.{problem}",
            given=raw or None, where=place, hint=hint,
        )  # fmt: skip
    raise BadTraceError(
        "A trace needs at least one request.", where=reading.source.where,
        hint="check the file or the filter that made this trace",
    )  # fmt: skip


def _tokens(name: str, fetched: Mapping[str, Any], bad: Any) -> npt.NDArray[Any]:
    """Return a column of token counts, and mark the rows that have none."""
    column = fetched[name]
    mask = np.ma.getmaskarray(column)
    data = np.ma.getdata(column)
    wrong = np.ma.getdata(fetched[f"{name}_wrong"]).astype(np.bool_)
    bad(name, "non-numeric", wrong)
    if data.dtype.kind == "f":
        bad(name, "missing", mask | np.isnan(data))
        data = np.where(mask | np.isnan(data), 0.0, data)
        bad(name, "infinite", np.isinf(data))
        with np.errstate(invalid="ignore"):
            bad(name, "fractional", (data != np.floor(data)) | (np.abs(data) >= _INT64_MAX))
    else:
        bad(name, "missing", mask)
        bad(name, "fractional", data > _INT64_MAX)
    bad(name, "zero", ~mask & (data == 0))
    bad(name, "negative", data < 0)
    return data


class _Reading:
    """The chosen columns of a source, named by the fields that they give."""

    def __init__(
        self, relation: Any, chosen: Mapping[str, str], source: Source, time_unit: str | None, asked_in: str
    ) -> None:
        self.relation, self.chosen, self.source = relation, chosen, source
        self.time_unit, self.asked_in = time_unit, asked_in
        self.kinds = {name: kind.id for name, kind in zip(relation.columns, relation.types, strict=True)}
        self.notes: tuple[str, ...] = ()

    def fetch(self) -> dict[str, Any]:
        """Return the chosen columns but for block ids as arrays, masked where a value is missing."""
        wanted = [self._arrival()]
        for name in ("prompt_tokens", "output_tokens"):
            value, wrong = self._number(name)
            wanted += [f"{value} AS {name}", f"coalesce({wrong}, false) AS {name}_wrong"]
        wanted += [f"CAST({name} AS VARCHAR) AS {name}" for name in _NAMES if name in self.chosen]
        wanted += [
            f"TRY_CAST(CAST({name} AS VARCHAR) AS DOUBLE) AS {name}, "
            f"coalesce(NOT {_absent(f'CAST({name} AS VARCHAR)')}, false) AS {name}_given"
            for name in _OPTIONAL_NUMBERS
            if name in self.chosen
        ]
        if "block_tokens" in self.chosen:
            wanted.append("TRY_CAST(CAST(block_tokens AS VARCHAR) AS BIGINT) AS block_tokens")
        fetched: dict[str, Any] = self.relation.project(", ".join(wanted)).limit(MOST_ROWS + 1).fetchnumpy()
        if len(fetched["prompt_tokens"]) > MOST_ROWS:
            raise BadFileError(
                "There are too many rows for one trace.",
                given=f"{self.relation.aggregate('count(*) AS n').fetchall()[0][0]:,}",
                allowed=f"up to {MOST_ROWS:,}",
                where=self.source.where,
                hint=f"cut the trace, as in head -n {MOST_ROWS // 10 + 1} FILE > part.csv",
            )
        return fetched

    def _number(self, name: str) -> tuple[str, str]:
        """Return what fetches a number, and what says that there is something else."""
        kind = self.kinds[name]
        if kind in _INTEGERS or kind in ("float", "double"):
            return name, "false"
        if kind in _OTHER_NUMBERS:
            return f"CAST({name} AS DOUBLE)", "false"
        if kind != "varchar":
            return "CAST(NULL AS DOUBLE)", f"{name} IS NOT NULL"
        number = f"TRY_CAST({self._without_thousands(name)} AS DOUBLE)"
        return number, f"{number} IS NULL AND NOT {_absent(name)}"

    def _without_thousands(self, name: str) -> str:
        """Return what fetches the texts of whole numbers without what stands between thousands, and with a point in
        place of a decimal comma; all rows decide.
        """
        ((others,),) = self.relation.aggregate(
            f"count(*) FILTER (WHERE TRY_CAST({name} AS BIGINT) IS NULL AND NOT {_absent(name)} "
            f"OR contains({name}, '.')) AS others"
        ).fetchall()
        if not others:
            return name
        asked = ["count(*) FILTER (WHERE regexp_full_match(x, '[-+]?[0-9]{1,3}')) AS short",
                 "count(*) FILTER (WHERE regexp_full_match(x, '[-+]?[0-9]{4,}')) AS long",
                 "count(*) FILTER (WHERE regexp_full_match(x, '[-+]?[0-9]+,[0-9]*')) AS commas"]  # fmt: skip
        signs = [sign.replace("'", "''") for sign in _BETWEEN_THOUSANDS]
        for position, sign in enumerate(signs):
            grouped = f"[-+]?[1-9][0-9]{{0,2}}({sign}[0-9]{{3}})+"
            asked += [
                f"count(*) FILTER (WHERE regexp_matches(x, '{sign}')) AS with{position}",
                f"count(*) FILTER (WHERE regexp_full_match(x, '{grouped}')) AS grouped{position}",
                f"count(*) FILTER (WHERE regexp_full_match(x, '[-+]?[1-9][0-9]{{0,2}}{sign}000')) AS even{position}",
            ]
        texts = self.relation.filter(f"NOT {_absent(name)}").project(f"trim({name}) AS x")
        ((short, long, commas, *counts),) = texts.aggregate(", ".join(asked)).fetchall()
        for position, (sign, words) in enumerate(_BETWEEN_THOUSANDS.items()):
            with_sign, grouped, even = counts[3 * position : 3 * position + 3]
            if not grouped or grouped < with_sign:
                continue
            # 1.000 may be a one with decimals, and 1,000 too where commas separate no columns.
            decimal = sign == "[.]" or (sign == "," and self.source.decimal_comma)
            zeros = even == grouped
            if decimal and (long or (zeros and not short and not self._comma_in_arrivals(sign))):
                if zeros:
                    self.notes += (
                        f"Numbers in {self.chosen[name]!r} have {words} and then three zeros: they were read as "
                        "decimals, not as thousands.",
                    )
                continue
            self.notes += (f"Thousands in {self.chosen[name]!r} are separated by {words}.",)
            return f"regexp_replace({name}, '{signs[position]}', '', 'g')"
        return f"replace({name}, ',', '.')" if self.source.decimal_comma and commas else name

    def _comma_in_arrivals(self, sign: str) -> bool:
        """Return whether arrivals have a decimal comma, so that a point stands between thousands."""
        if sign != "[.]" or self.kinds["arrival_s"] != "varchar" or not self.source.decimal_comma:
            return False
        commas = self.relation.filter("regexp_full_match(trim(arrival_s), '[0-9]+,[0-9]+')").limit(1).fetchall()
        return bool(commas)

    def _arrival(self) -> str:
        kind = self.kinds["arrival_s"]
        if kind.startswith("time") and kind not in _TIMES:
            # A time of day is read as its text.
            self.kinds["arrival_s"] = "varchar"
            return "CAST(arrival_s AS VARCHAR) AS arrival_s"
        if kind in _OTHER_NUMBERS:
            return "CAST(arrival_s AS DOUBLE) AS arrival_s"
        if kind not in ("varchar", *_INTEGERS):
            return "arrival_s"
        text = "trim(CAST(arrival_s AS VARCHAR))"
        number = "TRY_CAST(arrival_s AS DOUBLE)"
        if self.source.decimal_comma:
            number = f"coalesce({number}, TRY_CAST(replace(arrival_s, ',', '.') AS DOUBLE))"
        ((numbers, absent, whole, rows),) = self.relation.aggregate(
            f"count({number}) AS numbers, "
            f"count(*) FILTER (WHERE {_absent(text)} AND {number} IS NULL) AS absent, "
            f"count(*) FILTER (WHERE regexp_full_match({text}, '-?[0-9]{{1,18}}')) AS whole, count(*) AS every"
        ).fetchall()
        if numbers and numbers == whole and self.time_unit is None and self._compact(text, numbers):
            return (
                f"try_strptime(substr({text}, 1, 14), '%Y%m%d%H%M%S') + "
                f"to_milliseconds(CAST('0' || substr({text}, 15) AS BIGINT)) AS arrival_s"
            )
        if kind != "varchar":
            return "arrival_s"
        if numbers + absent < rows:
            return f"{self._arrivals_of_thousands(text, rows - absent) or 'arrival_s'} AS arrival_s"
        if not numbers:
            return "arrival_s"
        if self.source.exact_integers and whole == numbers:
            return "TRY_CAST(arrival_s AS BIGINT) AS arrival_s"
        return f"{number} AS arrival_s"

    def _compact(self, text: str, numbers: int) -> bool:
        """Return whether all numbers are a date and a time in digits alone."""
        found = self.relation.aggregate(
            f"count(*) FILTER (WHERE regexp_full_match({text}, '{_COMPACT}')) AS compact"
        ).fetchall()
        return bool(found[0][0] == numbers)

    def _arrivals_of_thousands(self, text: str, present: int) -> str:
        """Return what fetches numbers such as 1,234.5 or 1.234,5; empty where not all are of one of these forms.

        One such sign alone could be a decimal one, so that a number with both must be there.
        """
        forms = {
            ("(0|[1-9][0-9]{0,2}(,[0-9]{3})*)([.][0-9]+)?", ",[0-9]{3}[.]"): f"replace({text}, ',', '')",
            ("(0|[1-9][0-9]{0,2}([.][0-9]{3})*)(,[0-9]+)?", "[.][0-9]{3},"): (
                f"replace(replace({text}, '.', ''), ',', '.')"
            ),
        }
        for (form, both), plain in forms.items():
            ((fitting, with_both),) = self.relation.aggregate(
                f"count(*) FILTER (WHERE regexp_full_match({text}, '{form}')) AS fitting, "
                f"count(*) FILTER (WHERE regexp_matches({text}, '{both}')) AS with_both"
            ).fetchall()
            if with_both and fitting == present:
                return f"TRY_CAST({plain} AS DOUBLE)"
        return ""

    def example(self, reason: npt.NDArray[np.int16], reasons: Sequence[str]) -> tuple[int, str, str, str]:
        """Return row, reason, field and text of the first row that is left out for the most frequent reason."""
        number = int(np.argmax(np.bincount(reason[reason > 0])))
        row = int(np.argmax(reason == number))
        word, _, name = reasons[number].partition(":")
        return row, word, name, self.raw(name, row)

    def raw(self, name: str, row: int) -> str:
        """Return what stands in a row, as text."""
        ((raw,),) = self.relation.project(f"CAST({name} AS VARCHAR) AS raw").limit(1, row).fetchall()
        return raw or ""

    def doubts(
        self, values: Mapping[str, Any], reason: npt.NDArray[np.int16], reasons: Sequence[str]
    ) -> tuple[str, ...]:
        """Return what a reader should doubt: many rows left out, several models, prompts that were cached."""
        said = []
        left_out = int((reason > 0).sum())
        if left_out >= _MANY * reason.size:
            row, word, name, raw = self.example(reason, reasons)
            shown = f" is {raw!r}" if raw and word != "missing" else ""
            said.append(
                f"{left_out / reason.size:.0%} of the rows were left out, most often with {word} {words_for(name)}, "
                f"first in row {row + 1}, where {self.chosen[name]!r}{shown or ' is empty'}."
            )
        models = [name for name in values.get("model_names", ()) if name]
        if self.asked_in == "study" and len(models) > 1:
            names = ", ".join(map(repr, models[:3])) + (", ..." if len(models) > 3 else "")
            said.append(f"The rows name {len(models)} models ({names}); all of them are read as one traffic.")
        if "block_ids" not in self.chosen:
            said += self._cached(int(values["prompt_tokens"].sum()))
        return tuple(said)

    def _cached(self, prompts: int) -> list[str]:
        """Return a sentence on a column of cached tokens, which no trace has; none where it holds nothing."""
        for column, expression in self.source.columns.items():
            name = _folded(column.rpartition(".")[2])
            if "cached" in name and "token" in name and column not in self.chosen.values():
                relation = self.source.relation.select(expression.cast("VARCHAR").alias("x"))
                ((found,),) = relation.aggregate("sum(TRY_CAST(x AS DOUBLE)) AS found").fetchall()
                if found and found > 0:
                    return [
                        f"Of the prompts' tokens, {found / prompts:.0%} are in {column!r}, which is not read: without "
                        "a column of prefix blocks (hash_ids), every prompt is computed whole."
                    ]
        return []

    def arrivals(self, fetched: Mapping[str, Any], bad: Any) -> tuple[npt.NDArray[Any], str, tuple[str, ...]]:
        """Return arrivals as numbers, date-times or spans, how they were understood, and what must be said."""
        column = fetched["arrival_s"]
        mask, data = np.ma.getmaskarray(column), np.ma.getdata(column)
        name = self.chosen["arrival_s"]
        if data.dtype.kind in "mM":
            bad("arrival_s", "missing", mask | np.isnat(data))
            return data, "date-times" if data.dtype.kind == "M" else "spans of time", ()
        if data.dtype.kind == "O" and self.kinds["arrival_s"] == "varchar":
            read = read_dates(
                column.tolist(), column=name, where=self.source.where, time_unit=self.time_unit,
                asked_in=self.asked_in,
            )  # fmt: skip
            bad("arrival_s", "missing", read.missing)
            bad("arrival_s", "unreadable", read.unreadable)
            return read.values, read.described, read.notes
        if data.dtype.kind not in "iuf":
            bad("arrival_s", "missing", mask)
            bad("arrival_s", "unreadable", ~mask)
            return np.zeros(data.shape), "s", ()
        if data.dtype.kind == "f":
            mask = mask | np.isnan(data)
            data = np.where(mask, 0.0, data)
            bad("arrival_s", "infinite", np.isinf(data))
        bad("arrival_s", "missing", mask)
        bad("arrival_s", "missing", zeros_among_dates(np.where(mask, 0, data)))
        bad("arrival_s", "negative", data < 0)
        return data, "s", ()

    def codes(self, fetched: Mapping[str, Any], rows: IntArray) -> dict[str, Any]:
        """Return the columns of names as codes."""
        values: dict[str, Any] = {}
        for name in _NAMES:
            if name not in self.chosen:
                continue
            # A request that names none has the empty name.
            column = np.ma.filled(fetched[name], "")[rows].astype(str)
            names, codes = np.unique(column, return_inverse=True)
            if name == "session":
                absent = [name.strip().lower() in {*MISSING_WORDS, "-1"} for name in names.tolist()]
                values[name] = np.where(np.array(absent, bool)[codes], -1, codes)
                continue
            if name == "tier":
                ranks = fetched["tier_rank"][rows] if "tier_rank" in self.chosen else None
                order = _order_of_tiers(names.tolist(), codes, ranks)
                names, codes = names[order], np.argsort(order)[codes]
            values |= {name: codes, f"{name}_names": tuple(names.tolist())}
        return values

    def options(self, fetched: Mapping[str, Any], rows: IntArray) -> dict[str, Any]:
        """Return limits and deadlines; what makes no sense is taken for none, and said."""
        values: dict[str, Any] = {}
        for name, none in (("max_tokens", 0), ("deadline_s", math.nan)):
            if name not in self.chosen:
                continue
            column = np.ma.filled(fetched[name], np.nan)[rows]
            if name == "deadline_s" and _folded(self.chosen[name]).endswith("ms"):
                column = column / 1e3
            fine = (column > 0) & (column < _INT64_MAX)
            if name == "max_tokens":
                fine &= column == np.floor(column)
            # Many logs have 0 or -1 where a request has no limit.
            wrong = np.ma.filled(fetched[f"{name}_given"], False)[rows] & ~fine & ~np.isin(column, (0, -1))
            values[name] = np.where(fine, column, none)
            if wrong.any():
                row = int(np.argmax(wrong))
                self.notes += (
                    f"Rows whose {self.chosen[name]!r} is no number above 0, taken to have none: {int(wrong.sum()):,}, "
                    f"first row {rows[row] + 1} with {self.raw(name, int(rows[row]))!r}.",
                )
        return values

    def blocks(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the ids of all rows' prefix blocks one after the other, and where each row's begin."""
        column, kind = self.chosen["block_ids"], self.kinds["block_ids"]
        place = f"{self.source.where}, column {column!r}"
        if kind not in ("list", "array", "varchar"):
            raise BadFileError("Block ids are one list per row.", given=kind, where=place, hint="e.g. [0, 1, 2]")
        # Ids are only compared; as text they keep all their digits, whatever their type.
        texts = "TRY_CAST(block_ids AS VARCHAR[])"
        if kind == "varchar":
            wrong = self.relation.filter(f"{texts} IS NULL AND NOT {_absent('block_ids')}").project("block_ids")
            if first := wrong.limit(1).fetchall():
                raise BadFileError(
                    "Block ids are one list per row.", given=first[0][0], where=place, hint="e.g. [0, 1, 2]"
                )
        counts = self.relation.project(f"len({texts}) AS n").fetchnumpy()["n"]
        ids = self.relation.project(f"unnest({texts}) AS id").fetchnumpy()["id"]
        offsets = np.concatenate(([0], np.cumsum(np.ma.filled(counts, 0)))).astype(np.int64)
        absent = np.flatnonzero(np.ma.getmaskarray(ids))
        if absent.size:
            row = int(np.searchsorted(offsets, absent[0], side="right"))
            raise BadTraceError(
                "A block id is missing.", where=f"{self.source.where}, row {row}, column {column!r}",
                hint="a row without prefix blocks has the empty list []",
            )  # fmt: skip
        _, codes = np.unique(np.ma.getdata(ids), return_inverse=True)
        held = np.diff(offsets)[rows]
        kept = np.concatenate(([0], np.cumsum(held))).astype(np.int64)
        within = np.arange(kept[-1]) - np.repeat(kept[:-1], held)
        return codes.astype(np.int64)[np.repeat(offsets[rows], held) + within], kept

    def block_tokens(self, column: Any) -> int | None:
        """Return the one size of a full prefix block that the rows name."""
        sizes = np.unique(np.ma.compressed(column))
        if sizes.size > 1:
            raise BadTraceError(
                "Rows name several sizes of a prefix block.", given=", ".join(map(str, sizes[:5])),
                where=f"{self.source.where}, column {self.chosen['block_tokens']!r}",
                hint="one trace has blocks of one size",
            )  # fmt: skip
        return int(sizes[0]) if sizes.size else None

    def refuse_rows(self, reason: npt.NDArray[np.int16], reasons: Sequence[str]) -> NoReturn:
        """Stop at the first row that cannot be used, with the count of all."""
        row = int(np.argmax(reason > 0))
        word, _, name = reasons[reason[row]].partition(":")
        raw = self.raw(name, row)
        bad, problem = int((reason > 0).sum()), _SENTENCES[word]
        if bad > 1:
            counts = rows_in_words(_counts(reason, reasons))
            problem += f" In all, {bad:,} of {reason.size:,} rows cannot be used: {counts}."
        examples = "correct it, e.g. 12.5 or 2023-11-16 18:15:46.680; " if word == "unreadable" else ""
        raise BadTraceError(
            problem,
            given=raw or None,
            where=f"{self.source.where}, row {row + 1}, column {self.chosen[name]!r}",
            hint=f"{examples}{hint_to_say(self.asked_in, 'bad_rows', 'drop')} leaves out and counts "
            f"{'this row' if bad == 1 else 'these rows'}",
        )


def _order_of_tiers(names: list[str], codes: IntArray, ranks: Any) -> list[int]:
    """Return the tiers in order of urgency: as the rows rank them, else by number, else by name."""
    if ranks is not None:
        highest = np.full(len(names), np.inf)
        np.minimum.at(highest, codes, np.ma.filled(ranks, np.inf).astype(np.float64))
        return [int(code) for code in np.argsort(highest, kind="stable")]
    natural = tiers_in_order(names)
    return [names.index(name) for name in natural]


def _absent(name: str) -> str:
    # The words and the name are this module's own.  No list of words: DuckDB answers a long one with a join, which does
    # not keep the order of the rows.
    words = "|".join(sorted(map(re.escape, MISSING_WORDS)))
    return f"({name} IS NULL OR regexp_full_match(lower(trim({name})), '{words}'))"
