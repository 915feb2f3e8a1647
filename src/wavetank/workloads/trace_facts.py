"""What was read of a trace: counts, lengths, repairs and assumptions in three lines; hints in the user's syntax."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.units import show

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

ASKED_IN = ("python", "study", "options")
"""Where a trace is asked for: a call in Python, settings of a study, options of a command."""

# Fewer requests show nothing of their clock.
_ENOUGH = 20
# Ranks of arrivals and rows that are correlated less than this.
_IN_NO_ORDER = 0.3
_MOST_AT_ONCE = 2

_WORDS = {"arrival_s": "arrival", "prompt_tokens": "prompt length", "output_tokens": "output length"}
_SHORT = {"arrival_s": "arrival", "prompt_tokens": "prompt", "output_tokens": "output"}


def hint_to_say(asked_in: str, key: str, value: str | Mapping[str, str]) -> str:
    """Return how a user gives an argument of ``read_trace`` at the place where the trace was asked for.

    Parameters
    ----------
    asked_in : str
        One of :data:`ASKED_IN`.
    key : str
        The argument, such as ``time_unit``.
    value : str or mapping of str to str
        Its value; a mapping for ``columns``.

    Examples
    --------
    >>> hint_to_say("python", "columns", {"arrival_s": "ts"})
    'columns={"arrival_s": "ts"}'
    >>> hint_to_say("study", "time_unit", "ms")
    "--set time_unit=ms (in Python time_unit='ms')"
    >>> hint_to_say("options", "columns", {"arrival_s": "the time"})
    "--columns 'arrival_s=the time'"
    """
    if isinstance(value, str):
        words, python = value, f"{key}={value!r}"
    else:
        words = ",".join(f"{name}={column}" for name, column in value.items())
        pairs = ", ".join(f'"{name}": "{column}"' for name, column in value.items())
        python = f"{key}={{{pairs}}}"
    if asked_in == "python":
        return python
    if asked_in == "study":
        setting = shlex.quote(f"{key}={words}")
        return f"--set {setting} (in Python {python})"
    option = key.replace("_", "-")
    return f"--{option} {shlex.quote(words)}"


def words_for(field_name: str) -> str:
    """Return what a field of a trace is called in a sentence.

    Parameters
    ----------
    field_name : str
        Such as ``prompt_tokens``.
    """
    return _WORDS.get(field_name, field_name)


def rows_in_words(counts: Mapping[str, int]) -> str:
    """Return counts of rows by reason as a list in words.

    Parameters
    ----------
    counts : mapping of str to int

    Examples
    --------
    >>> rows_in_words({"zero output length": 1200, "missing arrival": 1})
    '1,200 with zero output length, 1 with missing arrival'
    """
    return ", ".join(f"{count:,} with {reason}" for reason, count in counts.items())


def span_in_words(seconds: float) -> str:
    """Return a span of time in the unit that people would use.

    Examples
    --------
    >>> span_in_words(0.25), span_in_words(2400.0), span_in_words(86_400.0), span_in_words(1e6)
    ('250 ms', '40 min', '24 h', '11.6 days')
    """
    for least, factor, unit in ((2 * 86_400.0, 86_400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min")):
        if seconds >= least:
            return f"{show(seconds / factor)} {unit}"
    return show(seconds, "s")


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """What was read of a trace, what was repaired, and what was assumed.

    Parameters
    ----------
    name : str
        Of the file, the data set or the kind of table.
    trace : RequestTrace
        What was made of it.
    rows_read : int
        Rows of the source, the damaged ones included.
    dropped : mapping of str to int
        Rows that were left out, by reason.
    out_of_place : int
        Rows that stood after a later one and were put in order of arrival.
    columns : mapping of str to str
        Field to the column that gave it; empty for a trace that was one already.
    times : str
        How arrivals were understood, such as ``Unix ms``.
    read_as : tuple of str
        What was detected of a file's form: encoding, delimiter, compression.
    notes : tuple of str
        Sentences on what a reader should check.
    """

    name: str
    trace: RequestTrace
    rows_read: int
    dropped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    out_of_place: int = 0
    columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    times: str = "s"
    read_as: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def repairs(self) -> tuple[str, ...]:
        """What was changed, one clause each; empty where the source was used as it is."""
        said = []
        count = sum(self.dropped.values())
        if count:
            said.append(f"dropped {count:,} {'row' if count == 1 else 'rows'} ({rows_in_words(self.dropped)})")
        if self.out_of_place:
            rows = "1 row that was" if self.out_of_place == 1 else f"{self.out_of_place:,} rows that were"
            said.append(f"put in order {rows} out of place")
        return tuple(said)

    def lines(self) -> tuple[str, str, str]:
        """Return three lines: rows, span and rate; lengths; repairs and what was assumed of the source's form."""
        trace, n = self.trace, len(self.trace)
        kept = f"{n:,} request{'s' * (n != 1)}" if n == self.rows_read else f"{n:,} of {self.rows_read:,} rows kept,"
        when = (
            f"over {span_in_words(trace.span_s)}, {show(trace.rate_per_s, 'requests/s')}"
            if trace.span_s > 0
            else "all at one instant"
        )
        lengths = "; ".join(
            f"{words} {tokens.mean():,.0f} tokens on average, p99 {np.percentile(tokens, 99):,.0f}"
            for words, tokens in (("prompts", trace.prompt_tokens), ("outputs", trace.output_tokens))
        )
        clauses = [*self.repairs]
        if self.columns:
            pairs = [
                f"{_SHORT.get(name, name)} {column}{f' ({self.times})' if name == 'arrival_s' else ''}"
                for name, column in self.columns.items()
            ]
            clauses.append(f"columns: {', '.join(pairs)}")
        clauses += self.read_as
        return (
            f"Read {self.name}: {kept} {when}",
            lengths,
            "; ".join(clauses) or "taken as it is",
        )

    def __str__(self) -> str:
        return "\n".join((*self.lines(), *self.notes))


def doubts(
    trace: RequestTrace, given_s: npt.NDArray[Any], *, column: str, plain: bool, asked_in: str
) -> tuple[str, ...]:
    """Return sentences on arrivals that may be other than they seem: durations, rounded times, copies of rows.

    Parameters
    ----------
    trace : RequestTrace
    given_s : ndarray, shape (n,)
        Its arrivals in the source's order.
    column : str
        Which gave them.
    plain : bool
        Whether they were numbers other than dates.
    asked_in : str
        One of :data:`ASKED_IN`.
    """
    n = len(trace)
    if n < _ENOUGH:
        return ()
    said = []
    gaps = np.diff(trace.arrival_s)
    distinct = 1 + int((gaps > 0).sum())
    if plain and distinct > 1:
        order = np.argsort(given_s, kind="stable")
        if abs(float(np.corrcoef(order, np.arange(n))[0, 1])) < _IN_NO_ORDER:
            said.append(
                f"The numbers in {column!r} are in no order, as durations would be; if arrivals are in another column: "
                f"{hint_to_say(asked_in, 'columns', {'arrival_s': 'COLUMN'})}."
            )
    if distinct == 1:
        said.append(f"All {n:,} requests have one arrival; if times were rounded, write them with more digits.")
    elif n > _MOST_AT_ONCE * distinct:
        step = span_in_words(float(gaps[gaps > 0].min()))
        said.append(
            f"Arrivals are in steps of {step}, {n / distinct:,.1f} requests in each on average: such bursts may be of "
            "the clock and not of the traffic."
        )
    else:
        copies = int(((gaps == 0) & (np.diff(trace.prompt_tokens) == 0) & (np.diff(trace.output_tokens) == 0)).sum())
        if copies:
            rows = "1 row has" if copies == 1 else f"{copies:,} rows have"
            said.append(f"{rows} arrival and lengths of another row and may be copies; they were kept.")
    return tuple(said)


def check_asked_in(asked_in: str) -> None:
    """Refuse a place that has no syntax.

    Raises
    ------
    BadValueError
        If it is not one of :data:`ASKED_IN`.
    """
    if asked_in not in ASKED_IN:
        raise BadValueError("There is no such place.", given=asked_in, allowed=ASKED_IN, where="asked_in")
