"""LLM requests as arrays: when each arrives, how long its prompt is, how many tokens it will produce.

A trace is one immutable struct of numpy arrays, one row per request, checked once when it is made; everything that
reads it afterwards (a compiled simulator above all) may rely on the checks.  Operations return new traces.

Sources: the fields are those of the public traces of Patel et al., "Splitwise", ISCA 2024 (arrivals and lengths) and
Qin et al., "Mooncake", FAST 2025 (prefix blocks).  Resampling is the circular block bootstrap of D. N. Politis and
J. P. Romano, "A circular block-resampling procedure for stationary data", 1992.

Differs from the sources:

1. Bootstrap blocks are spans of time, not counts of observations, so that bursts and lulls keep their shape.
2. Block ids are renumbered densely in order of first appearance; only their equality carries meaning.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadTraceError, BadValueError
from wavetank.sim.rng import stream

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_INT64_MAX = np.iinfo(np.int64).max
_PER_REQUEST = (
    "prompt_tokens", "output_tokens", "model", "tier", "adapter", "session", "max_tokens", "deadline_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RequestTrace:
    """A sequence of LLM requests in order of arrival.

    Arrays are converted to the dtypes below, copied unless they are read-only already, and made read-only.  Two traces
    are equal when their contents are; the name does not count.

    Parameters
    ----------
    arrival_s : ndarray of float64, shape (n,)
        Arrival times in seconds, ascending, from any start >= 0.
    prompt_tokens : ndarray of int64, shape (n,)
        Prompt lengths in tokens, >= 1.
    output_tokens : ndarray of int64, shape (n,)
        Numbers of generated tokens, >= 1.
    block_ids : ndarray of int64, shape (total blocks,), optional
        Identities of the prompts' prefix blocks, all requests one after the other.  Equal ids mean equal content up
        to and including that block.  Stored densely (0 .. m-1 in order of first appearance).
    block_offsets : ndarray of int64, shape (n + 1,), optional
        Request ``i`` owns ``block_ids[block_offsets[i]:block_offsets[i + 1]]``.  Given with ``block_ids`` or not at
        all.
    block_tokens : int
        Tokens of a full prefix block; the last block of a prompt may be partial.
    model, tier, adapter : ndarray of int64, shape (n,), optional
        Codes into ``model_names``, ``tier_names`` and ``adapter_names``: which model, which service level, which LoRA
        adapter a request asks for.  An adapter without a name (``""``) is none: the model as it is; so is a model
        without a name: the request takes any.
    model_names, tier_names, adapter_names : tuple of str
        What the codes stand for.  Tiers are in order of urgency, the most urgent one first.
    session : ndarray of int64, shape (n,), optional
        Which conversation a request belongs to; -1 for none.  Equal numbers mean the same one.  Stored densely (0 ..
        m-1 in order of first appearance).
    max_tokens : ndarray of int64, shape (n,), optional
        The longest answer that a request allows, >= 1; 0 where it names none.  Logs hold longer answers, as where the
        limit did not count the tokens of a model's reasoning.
    deadline_s : ndarray of float64, shape (n,), optional
        How long after its arrival a request is to be done, in seconds, above 0; NaN where it has no deadline.
    name : str
        Where the trace comes from, for people.

    Raises
    ------
    BadTraceError
        If the content makes no sense; the error names the row (the first request is row 1) and the column.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    block_ids: IntArray | None = None
    block_offsets: IntArray | None = None
    block_tokens: int = 512
    model: IntArray | None = None
    model_names: tuple[str, ...] = ()
    tier: IntArray | None = None
    tier_names: tuple[str, ...] = ()
    adapter: IntArray | None = None
    adapter_names: tuple[str, ...] = ()
    session: IntArray | None = None
    max_tokens: IntArray | None = None
    deadline_s: FloatArray | None = None
    name: str = "requests"
    _checksum: str = field(default="", init=False)

    def __post_init__(self) -> None:
        arrival_s = _times(self.arrival_s)
        n = arrival_s.size
        if n == 0:
            raise BadTraceError(
                "A trace needs at least one request.", hint="check the file or the filter that made this trace"
            )
        falls = np.flatnonzero(np.diff(arrival_s) < 0)
        if falls.size:
            row = int(falls[0]) + 1
            _refuse(
                "Arrivals are not in order.", "arrival_s", row, f"{arrival_s[row]:.9g} after {arrival_s[row - 1]:.9g}",
                hint="RequestTrace.sorted(...) and read_trace(..., sort=True) put the requests in order of arrival",
            )  # fmt: skip
        prompt_tokens = _token_counts(self.prompt_tokens, "prompt_tokens", n)
        self._store("arrival_s", arrival_s)
        self._store("prompt_tokens", prompt_tokens)
        self._store("output_tokens", _token_counts(self.output_tokens, "output_tokens", n))
        self._store_codes("model", self.model, self.model_names)
        self._store_codes("tier", self.tier, self.tier_names)
        self._store_codes("adapter", self.adapter, self.adapter_names)
        if self.session is not None:
            self._store("session", _sessions(self.session, n))
        if self.max_tokens is not None:
            self._store("max_tokens", _limits(self.max_tokens, n))
        if self.deadline_s is not None:
            self._store("deadline_s", _deadlines(self.deadline_s, n))
        if self.block_ids is not None or self.block_offsets is not None:
            self._store_blocks(self.block_ids, self.block_offsets)

    def _store(self, column: str, values: npt.NDArray[Any]) -> None:
        values.flags.writeable = False
        object.__setattr__(self, column, values)

    def _store_codes(self, column: str, given: npt.ArrayLike | None, names: tuple[str, ...]) -> None:
        names = tuple(names)
        object.__setattr__(self, f"{column}_names", names)
        if given is None:
            return
        codes = _whole_numbers(given, column, len(self))
        outside = np.flatnonzero((codes < 0) | (codes >= len(names)))
        if outside.size:
            _refuse(
                f"A code stands for no entry of {column}_names ({len(names)} names).",
                column, int(outside[0]), int(codes[outside[0]]),
            )  # fmt: skip
        self._store(column, codes)

    def _store_blocks(self, given_ids: npt.ArrayLike | None, given_offsets: npt.ArrayLike | None) -> None:
        if given_ids is None or given_offsets is None:
            missing = "block_ids" if given_ids is None else "block_offsets"
            raise BadTraceError(
                "Prefix blocks need both their ids and their offsets.", where=f"column {missing!r}",
                hint="give block_ids and block_offsets together, or neither",
            )  # fmt: skip
        if self.block_tokens < 1:
            raise BadTraceError("A prefix block holds at least one token.", given=f"block_tokens={self.block_tokens}")
        ids = _whole_numbers(given_ids, "block_ids")
        offsets = _whole_numbers(given_offsets, "block_offsets", len(self) + 1)
        if offsets[0] != 0 or offsets[-1] != ids.size or (np.diff(offsets) < 0).any():
            raise BadTraceError(
                f"Offsets must rise from 0 to the number of block ids ({ids.size}).", where="column 'block_offsets'"
            )
        negative = np.flatnonzero(ids < 0)
        if negative.size:
            row = int(np.searchsorted(offsets, negative[0], side="right")) - 1
            _refuse("Block ids are not negative.", "block_ids", row, int(ids[negative[0]]))
        held = np.diff(offsets)
        room = -(-self.prompt_tokens // self.block_tokens)
        crowded = np.flatnonzero(held > room)
        if crowded.size:
            row = int(crowded[0])
            _refuse(
                f"A prompt has more prefix blocks than its {self.prompt_tokens[row]} tokens fill.",
                "block_ids", row, f"{held[row]} blocks of {self.block_tokens} tokens",
                hint="block_tokens is the size of a full block; check that it is the trace's own",
            )  # fmt: skip
        self._store("block_ids", _renumbered(ids))
        self._store("block_offsets", offsets)

    @classmethod
    def sorted(cls, *, arrival_s: npt.ArrayLike, **columns: Any) -> RequestTrace:
        """Make a trace from requests in any order; requests of equal arrival keep their order.

        Parameters
        ----------
        arrival_s : array_like, shape (n,)
            Arrival times in seconds, in any order.
        **columns
            The other parameters of :class:`RequestTrace`, in the same order as ``arrival_s``.
        """
        times = _times(arrival_s)
        as_given = cls(arrival_s=np.zeros_like(times), **columns)
        order = np.argsort(times, kind="stable")
        return as_given._take(order, times[order])

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def __repr__(self) -> str:
        return f"RequestTrace({self.name!r}, n={len(self)}, span_s={self.span_s:g}, rate_per_s={self.rate_per_s:.4g})"

    def __eq__(self, other: object) -> bool:
        return self.checksum == other.checksum if isinstance(other, RequestTrace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.checksum)

    def __reduce__(self) -> tuple[object, ...]:
        # Unpickled arrays are writeable; going through the constructor freezes them again.
        return _rebuild, (self._columns(),)

    def _columns(self) -> dict[str, Any]:
        return {column.name: getattr(self, column.name) for column in fields(self) if column.init}

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last arrival."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate in requests per second: one over the mean gap; nan when all arrive at once."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else math.nan

    @property
    def n_blocks(self) -> int:
        """Number of distinct prefix blocks; 0 without prefix blocks."""
        return int(self.block_ids.max()) + 1 if self.block_ids is not None and self.block_ids.size else 0

    @property
    def checksum(self) -> str:
        """SHA-256 (hexadecimal) over everything but the name, computed on first use."""
        if not self._checksum:
            digest = hashlib.sha256()
            for column, value in self._with_used_names().items():
                # Columns that came later count only where a trace has them: checksums of others stay as they were.
                if column == "name" or (column.startswith("adapter") and self.adapter is None):
                    continue
                if column in ("session", "max_tokens", "deadline_s") and value is None:
                    continue
                if isinstance(value, np.ndarray):
                    digest.update(f"{column}:{value.dtype.str}:{value.size}\n".encode())
                    digest.update(value.data)
                else:
                    digest.update(f"{column}:{value!r}\n".encode())
            object.__setattr__(self, "_checksum", digest.hexdigest())
        return self._checksum

    def _with_used_names(self) -> dict[str, Any]:
        """Return the columns as a file holds them: each name used and once, in alphabetical order, tiers in theirs."""
        columns = self._columns()
        for column in ("model", "tier", "adapter"):
            codes, names = columns[column], columns[f"{column}_names"]
            if codes is None:
                continue
            used = list(dict.fromkeys(names[code] for code in np.unique(codes)))
            if column != "tier":
                used.sort()
            if tuple(used) != names:
                place = {name: code for code, name in enumerate(used)}
                columns[column] = np.array([place.get(name, -1) for name in names], dtype=np.int64)[codes]
                columns[f"{column}_names"] = tuple(used)
        return columns

    @property
    def used_tiers(self) -> list[str]:
        """The tiers that requests have, the most urgent one first."""
        return [] if self.tier is None else list(dict.fromkeys(self.tier_names[code] for code in np.unique(self.tier)))

    def write(self, path: str | Path) -> Path:
        """Write the trace to a file that :func:`wavetank.workloads.read_trace` reads back equal.

        Arrivals of Unix times (beyond 1e8 s) are counted from the first one when they are read back.

        Parameters
        ----------
        path : str or Path
            Ends in ``.csv``, ``.csv.gz``, ``.jsonl``, ``.jsonl.gz`` or ``.parquet``; its folder is made where it is not
            there.  A file of that name is replaced as a whole or not at all.

        Returns
        -------
        Path
            Where it was written.

        Raises
        ------
        BadValueError
            If the ending is another one.
        BadFileError
            If the file cannot be written.
        """
        from wavetank.workloads.trace_writing import write_trace

        return write_trace(self, path)

    def scaled(self, factor: float) -> RequestTrace:
        """Return the same requests under ``factor`` times the load: arrival times divided by ``factor``.

        Parameters
        ----------
        factor : float
            Above 0; 2.0 doubles the arrival rate.
        """
        return self._take(None, self.arrival_s / _positive(factor, "factor"))

    def at_rate(self, requests_per_s: float) -> RequestTrace:
        """Return the same requests with a mean arrival rate of ``requests_per_s``.

        Parameters
        ----------
        requests_per_s : float
            The wanted :attr:`rate_per_s`, above 0.
        """
        self._need_a_span("a rate")
        return self.scaled(_positive(requests_per_s, "requests_per_s") / self.rate_per_s)

    def slice(self, start_s: float = 0.0, stop_s: float = math.inf) -> RequestTrace:
        """Return the requests that arrive in ``[start_s, stop_s)``; ``start_s`` becomes time 0.

        Parameters
        ----------
        start_s, stop_s : float
            Seconds on the trace's own clock.

        Raises
        ------
        BadTraceError
            If no request arrives in that time.
        """
        first, last = np.searchsorted(self.arrival_s, (start_s, stop_s))
        if first >= last:
            raise BadTraceError(
                "No request arrives in this time.",
                given=f"[{start_s:g}, {stop_s:g}) s",
                allowed=f"times between {self.arrival_s[0]:g} and {self.arrival_s[-1]:g} s",
                where=f"trace {self.name!r}",
            )
        rows = np.arange(first, last)
        return self._take(rows, self.arrival_s[rows] - start_s)

    def head(self, n: int) -> RequestTrace:
        """Return the first ``n`` requests, or all when there are fewer.

        Parameters
        ----------
        n : int
            At least 1.
        """
        rows = np.arange(min(_whole_positive(n, "n"), len(self)))
        return self._take(rows, self.arrival_s[rows])

    def part(self, first: int, n: int) -> RequestTrace:
        """Return ``n`` requests from request number ``first`` on, or all from there when there are fewer.

        Parameters
        ----------
        first : int
            0-based.  The first request of the trace keeps its time; another comes at time 0.
        n : int
            At least 1.
        """
        rows = np.arange(first, min(first + _whole_positive(n, "n"), len(self)))
        return self._take(rows, self.arrival_s[rows] - (self.arrival_s[first] if first else 0.0))

    def chosen(self, rows: npt.ArrayLike, arrival_s: npt.ArrayLike) -> RequestTrace:
        """Return requests by number, in that order, with new arrival times.

        Parameters
        ----------
        rows : array_like of int, shape (m,)
            0-based numbers of requests; one may be chosen several times.
        arrival_s : array_like, shape (m,)
            Seconds, ascending.
        """
        numbers = _whole_numbers(rows, "rows")
        outside = np.flatnonzero((numbers < 0) | (numbers >= len(self)))
        if outside.size:
            raise BadValueError(
                "There is no such request.", given=int(numbers[outside[0]]), allowed=f"0 to {len(self) - 1}"
            )
        return self._take(numbers, _times(arrival_s))

    def replayed(self, times: int) -> RequestTrace:
        """Return the trace ``times`` times over, back to back, at the same mean rate.

        Between the last request of one pass and the first of the next lies one mean gap.  Prefix blocks keep their
        ids: a second pass asks for the same prompts again, in sessions of its own.

        Parameters
        ----------
        times : int
            Number of passes, at least 1.
        """
        passes = _whole_positive(times, "times")
        if passes == 1:
            return self
        self._need_a_span("a repetition")
        starts_s = np.arange(passes) * self._cycle_s
        rows = np.tile(np.arange(len(self)), passes)
        whole = self._take(rows, (starts_s[:, None] + self.arrival_s[None, :]).ravel())
        return whole.with_sessions_apart(np.repeat(np.arange(passes), len(self)))

    def resampled(self, seed: int, *, block_s: float = 60.0) -> RequestTrace:
        """Return another realisation of the same traffic: a circular block bootstrap over spans of time.

        The trace is bent to a circle and blocks of ``block_s`` seconds are drawn from it with replacement until its
        time is filled.  Inside a block arrivals keep their gaps, so bursts survive; the number of requests varies
        from seed to seed as it would from day to day.  A request that is drawn again is another one of the same
        lengths: its session and its prefix blocks get fresh ids, shared with the other requests drawn as often, so that
        no prompt is found whole because the bootstrap repeats it.

        Parameters
        ----------
        seed : int
            Seed 0 is the trace itself.
        block_s : float
            Length of a block in seconds: longer than the bursts, much shorter than the trace.

        Returns
        -------
        RequestTrace
            Over the same time as this trace; this trace where all requests arrive at once.
        """
        _positive(block_s, "block_s")
        if seed == 0 or self.span_s == 0:
            return self
        cycle_s = self._cycle_s
        width_s = min(block_s, cycle_s)
        n_blocks = math.ceil(cycle_s / width_s)
        origins_s = np.arange(n_blocks) * width_s
        widths_s = np.minimum(width_s, cycle_s - origins_s)
        relative_s = self.arrival_s - self.arrival_s[0]
        twice_s = np.concatenate((relative_s, relative_s + cycle_s))
        for attempt in itertools.count():
            starts_s = stream(seed, "resampled", attempt).uniform(0.0, cycle_s, n_blocks)
            first = np.searchsorted(twice_s, starts_s)
            counts = np.searchsorted(twice_s, starts_s + widths_s) - first
            # A sparse trace can yield blocks that are all empty.
            if counts.any():
                break
        rows = _ranges(first, counts)
        times_s = twice_s[rows] + np.repeat(origins_s - starts_s, counts)
        # Rounding may put the end of a block a hair past the start of the next.
        times_s = np.maximum.accumulate(np.maximum(times_s, 0.0))
        rows %= len(self)
        earlier = _earlier(rows)
        drawn = self._take(rows, self.arrival_s[0] + times_s).with_sessions_apart(earlier)
        if drawn.block_ids is None or drawn.block_offsets is None:
            return drawn
        copies = np.repeat(earlier, np.diff(drawn.block_offsets))
        return RequestTrace(**{**drawn._columns(), "block_ids": drawn.block_ids + copies * drawn.n_blocks})

    @property
    def weights(self) -> npt.NDArray[np.int64]:
        """A number for the model and adapter of each request, equal for equal ones; zeros where all are alike."""
        found = np.zeros(len(self), np.int64)
        for codes, names in ((self.model, self.model_names), (self.adapter, self.adapter_names)):
            found = found if codes is None else found * max(len(names), 1) + codes
        return found if (found != found[:1]).any() else np.zeros(len(self), np.int64)

    def with_blocks_apart(self) -> RequestTrace:
        """Return the same requests with prefix blocks of their own for each model and adapter.

        The rows that an engine keeps of a text are those of the weights that computed them: with another adapter, the
        same text has other rows.
        """
        weights = self.weights
        if self.block_ids is None or self.block_offsets is None or not weights.any():
            return self
        each = np.repeat(weights, np.diff(self.block_offsets))
        _, apart = np.unique(np.stack((each, self.block_ids)), axis=1, return_inverse=True)
        return RequestTrace(**{**self._columns(), "block_ids": apart.reshape(-1).astype(np.int64)})

    def with_sessions_apart(self, copies: npt.ArrayLike) -> RequestTrace:
        """Return the same requests in sessions of their own for each copy: what is repeated is said by somebody else.

        Parameters
        ----------
        copies : array_like of int, shape (n,)
            Which copy each request belongs to, from 0.
        """
        if self.session is None or not self.session.size or self.session.max() < 0:
            return self
        numbers = _whole_numbers(copies, "copies", len(self)) * (int(self.session.max()) + 1)
        session = np.where(self.session < 0, -1, self.session + numbers)
        return RequestTrace(**{**self._columns(), "session": session})

    def summary(self) -> dict[str, float]:
        """Return the statistics that trace papers print.

        Returns
        -------
        dict of str to float
            ``requests``, ``span_s``, ``rate_per_s``; mean, median and 99th percentile of ``prompt_tokens`` and
            ``output_tokens``; ``interarrival_cv`` (standard deviation over mean of the gaps; nan when undefined);
            with prefix blocks also ``block_reuse``, the share of block references that an earlier one made known.
        """
        gaps_s = np.diff(self.arrival_s)
        statistics = {
            "requests": float(len(self)),
            "span_s": self.span_s,
            "rate_per_s": self.rate_per_s,
        }
        for column, tokens in (("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)):
            statistics[f"{column}_mean"] = float(tokens.mean())
            statistics[f"{column}_median"] = float(np.median(tokens))
            statistics[f"{column}_p99"] = float(np.percentile(tokens, 99))
        statistics["interarrival_cv"] = float(gaps_s.std() / gaps_s.mean()) if self.span_s > 0 else math.nan
        if self.block_ids is not None and self.block_ids.size:
            statistics["block_reuse"] = 1.0 - self.n_blocks / self.block_ids.size
        return statistics

    @property
    def _cycle_s(self) -> float:
        # The span plus one mean gap: the period at which the trace follows itself without a change of rate.
        return self.span_s * len(self) / (len(self) - 1)

    def _need_a_span(self, what: str) -> None:
        if self.span_s == 0:
            raise BadValueError(
                f"All requests arrive at the same instant, so {what} has no meaning.",
                where=f"trace {self.name!r}",
                hint="keep the trace's own times, or take a trace whose requests arrive at several times",
            )

    def _take(self, rows: IntArray | None, arrival_s: FloatArray) -> RequestTrace:
        """Return the requests ``rows`` (None: all of them) with new arrival times."""
        columns = {**self._columns(), "arrival_s": arrival_s}
        if rows is not None:
            for column in _PER_REQUEST:
                if columns[column] is not None:
                    columns[column] = columns[column][rows]
            if self.block_ids is not None and self.block_offsets is not None:
                counts = np.diff(self.block_offsets)[rows]
                columns["block_ids"] = self.block_ids[_ranges(self.block_offsets[rows], counts)]
                columns["block_offsets"] = np.concatenate(([0], np.cumsum(counts)))
        return RequestTrace(**columns)


def tiers_in_order(names: Iterable[str]) -> list[str]:
    """Return names of tiers in the order of urgency that is taken where nobody says: by number, else by name.

    The lowest number is the most urgent one, as with a request's priority in vLLM.

    Examples
    --------
    >>> tiers_in_order(["10", "-1", "2"])
    ['-1', '2', '10']
    """
    listed = sorted(names)
    try:
        return sorted(listed, key=int)
    except ValueError:
        return listed


def _rebuild(columns: dict[str, Any]) -> RequestTrace:
    return RequestTrace(**columns)


def _ranges(first: npt.NDArray[np.integer[Any]], counts: npt.NDArray[np.integer[Any]]) -> IntArray:
    """Return ``first[0], first[0] + 1, ...`` (``counts[0]`` of them), then those of ``first[1]``, and so on."""
    ends = np.cumsum(counts)
    return np.repeat(first - (ends - counts), counts) + np.arange(ends[-1], dtype=np.int64)


def _earlier(rows: npt.NDArray[np.integer[Any]]) -> IntArray:
    """Return for every place how many earlier places hold the same number."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    found = np.empty(rows.size, dtype=np.int64)
    found[order] = np.arange(rows.size) - np.repeat(begins, np.diff(np.append(begins, rows.size)))
    return found


def _renumbered(ids: IntArray) -> IntArray:
    """Renumber ids densely in order of first appearance."""
    if ids.size == 0:
        return ids
    if ids.max() >= 4 * ids.size:
        _, ids = np.unique(ids, return_inverse=True)
    first_use = np.full(int(ids.max()) + 1, ids.size, dtype=np.int64)
    # Of assignments to one place the last stays: written backwards, that is the first use.
    first_use[ids[::-1]] = np.arange(ids.size - 1, -1, -1)
    number = np.empty_like(first_use)
    number[np.argsort(first_use)] = np.arange(first_use.size)
    return number[ids]


def _refuse(problem: str, column: str, row: int, given: object, *, hint: str | None = None) -> NoReturn:
    raise BadTraceError(problem, given=given, where=f"row {row + 1}, column {column!r}", hint=hint)


def _column(values: npt.ArrayLike, column: str, length: int | None) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise BadTraceError(
            "A column is one array of numbers.", given=f"shape {array.shape}", where=f"column {column!r}"
        )
    if array.dtype.kind not in "iuf" and array.size:
        raise BadTraceError(
            "A column holds numbers.", given=f"{array.dtype} ({array[0]!r}, ...)", where=f"row 1, column {column!r}"
        )
    if length is not None and array.size != length:
        raise BadTraceError(
            "Columns have unequal lengths.", given=f"{array.size} values, {length} expected",
            where=f"row {min(array.size, length) + 1}, column {column!r}",
        )  # fmt: skip
    return array


def _own(array: npt.NDArray[Any], dtype: type) -> npt.NDArray[Any]:
    """Return the array as contiguous ``dtype`` that nobody else can write to."""
    own: npt.NDArray[Any] = np.ascontiguousarray(array, dtype=dtype)
    return own.copy() if own.flags.writeable and np.may_share_memory(own, array) else own


def _times(values: npt.ArrayLike) -> FloatArray:
    array = _column(values, "arrival_s", None)
    times = _own(array, np.float64)
    wrong = np.flatnonzero(~((times >= 0) & (times < np.inf)))
    if wrong.size:
        _refuse("An arrival is a finite time, 0 s or later.", "arrival_s", int(wrong[0]), float(times[wrong[0]]))
    return times


def _whole_numbers(values: npt.ArrayLike, column: str, length: int | None = None) -> IntArray:
    array = _column(values, column, length)
    if array.dtype.kind == "f":
        wrong = np.flatnonzero(~((np.abs(array) < _INT64_MAX) & (array == np.floor(array))))
    else:
        wrong = np.flatnonzero(array > _INT64_MAX)
    if wrong.size:
        _refuse("A whole number is needed.", column, int(wrong[0]), array[wrong[0]].item())
    return _own(array, np.int64)


def _token_counts(values: npt.ArrayLike, column: str, length: int) -> IntArray:
    tokens = _whole_numbers(values, column, length)
    wrong = np.flatnonzero(tokens < 1)
    if wrong.size:
        _refuse(
            "A request has at least one token.", column, int(wrong[0]), int(tokens[wrong[0]]),
            hint="leave failed or empty requests out; read_trace(..., bad_rows='drop') leaves out those of a file",
        )  # fmt: skip
    return tokens


def _sessions(values: npt.ArrayLike, length: int) -> IntArray:
    session = _whole_numbers(values, "session", length)
    wrong = np.flatnonzero(session < -1)
    if wrong.size:
        _refuse("A session is a number from 0, or -1 for none.", "session", int(wrong[0]), int(session[wrong[0]]))
    return np.concatenate(([-1], _renumbered(session[session >= 0])))[np.cumsum(session >= 0) * (session >= 0)]


def _limits(values: npt.ArrayLike, length: int) -> IntArray:
    most = _whole_numbers(values, "max_tokens", length)
    wrong = np.flatnonzero(most < 0)
    if wrong.size:
        _refuse(
            "The longest answer has at least one token.", "max_tokens", int(wrong[0]), int(most[wrong[0]]),
            hint="0 stands for requests that name none",
        )  # fmt: skip
    return most


def _deadlines(values: npt.ArrayLike, length: int) -> FloatArray:
    deadline_s = _own(_column(values, "deadline_s", length), np.float64)
    wrong = np.flatnonzero(~((deadline_s > 0) & (deadline_s < np.inf)) & ~np.isnan(deadline_s))
    if wrong.size:
        _refuse(
            "A deadline is a time above 0 s after the arrival.", "deadline_s", int(wrong[0]),
            float(deadline_s[wrong[0]]), hint="nan stands for requests without one",
        )  # fmt: skip
    return deadline_s


def _positive(value: float, name: str) -> float:
    if not 0 < value < math.inf:
        raise BadValueError("A number above 0 is needed.", given=value, where=name)
    return float(value)


def _whole_positive(value: int, name: str) -> int:
    if value != int(value) or value < 1:
        raise BadValueError("A whole number of at least 1 is needed.", given=value, where=name)
    return int(value)
