"""The requests that routers are compared on: generated, or a trace; the past to learn from, the rest to serve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.routing import field_cases
from wavetank.settings import setting
from wavetank.units import show
from wavetank.workloads import agent_sessions

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace
    from wavetank.workloads.trace_facts import TraceFacts


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Settings of the studies that send requests to language models, and the requests that they stand for."""

    trace: str = setting(
        "generated",
        says="Workload: generated, a trace's name (azure-conv-2023, agent-transcripts, ...) or a CSV, JSONL or Parquet "
        "file",
    )
    columns: tuple[str, ...] = setting((), says="Column map of a file: arrival_s=TS,prompt_tokens=IN,output_tokens=OUT")
    time_unit: str = setting(
        "",
        says="Unit of a file's arrival column, or mdy or dmy for the order of month and day in dates; empty: decided "
        "from all rows and the column's name",
        choices=("", "s", "ms", "us", "ns", "mdy", "dmy"),
    )
    bad_rows: str = setting(
        "drop",
        says="Rows of a file with missing, zero, negative or non-numeric values: drop and count them, or stop",
        choices=("drop", "stop"),
    )
    requests: int = setting(
        20_000, unit="requests", says="Least number of generated requests; of a trace: at most", low=20, high=10_000_000
    )
    window: str = setting(
        "first",
        says="Which requests of a longer trace: the first, or as many that come fastest",
        choices=("first", "busiest"),
    )
    arrivals: str = setting(
        "bursty", says="Arrival process of generated requests", choices=("poisson", "bursty", "diurnal")
    )
    lengths: str = setting(
        "conv", says="Lengths of generated requests: Azure 2023 chat or code", choices=("conv", "code")
    )
    case: str = setting(
        "none",
        says="Generated traffic that people met in the field, each of which defeats some router",
        choices=("none", *field_cases.NAMES),
    )
    shared_prefix: float = setting(
        0.0, says="Share of generated requests that begin with a shared prefix", low=0, high=1
    )
    history: float = setting(
        0.2, says="First share of a trace, from which length predictors learn; the rest is served", low=0.0, high=0.9
    )

    @property
    def made(self) -> bool:
        """Whether requests are made from a seed, as many as are needed, rather than read."""
        return self.case != "none" or self.trace in ("generated", agent_sessions.NAME)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the trace."""
        return {} if self.trace == "generated" else {self.trace: self.read().checksum}

    def notes_on_reading(self) -> tuple[str, ...]:
        """Return what a reader must know about how the trace's file was understood."""
        return () if self.trace == "generated" else ("; ".join(self.facts().lines()) + ".", *self.facts().notes)

    def read(self) -> RequestTrace:
        """Return the trace as its file has it."""
        return _read(self.trace, self.columns, self.time_unit, self.bad_rows, self.version())[0]

    def facts(self) -> TraceFacts:
        """Return what was read of the trace's file, what was repaired and what was assumed."""
        return _read(self.trace, self.columns, self.time_unit, self.bad_rows, self.version())[1]

    def version(self) -> tuple[str, int, int]:
        """Return what changes when the trace's file does: its path, time of change and size; empty without a file.

        Everything that is kept of a trace within a process is kept under it.
        """
        try:
            path = Path(self.trace).resolve()
            about = path.stat()
        except (OSError, ValueError, RuntimeError):
            return ("", 0, 0)
        return (str(path), about.st_mtime_ns, about.st_size)

    def assumed(self) -> str:
        """Return one sentence on the workload and what it is served by; empty where the study says nothing of it."""
        return ""

    def learnt(self) -> str:
        """Return a clause on which part of a trace is served, and which part length predictors learn from."""
        whole = len(self.read())
        if whole <= self.requests:
            part = ""
        elif self.window == "busiest":
            since = self.read().arrival_s[self.first_used()] - self.read().arrival_s[0]
            part = f"; only the busiest {self.requests:,} of {whole:,} requests are used, from {show(since, 's')} on"
        else:
            part = f"; only the first {self.requests:,} of {whole:,} requests are used (window=busiest: the fastest)"
        return f"; predictors of lengths learn from the first {self.history:.0%}, which is not served{part}"

    def first_used(self) -> int:
        """Return the 0-based number of the first request of a trace that is used."""
        arrival_s = self.read().arrival_s
        if self.window == "first" or len(arrival_s) <= self.requests:
            return 0
        # Of the requests that are used, those that are served shall come within the least time.
        learnt = self._learnt(self.requests)
        spans_s = arrival_s[self.requests - 1 :] - arrival_s[learnt : len(arrival_s) - self.requests + 1 + learnt]
        return int(np.argmin(spans_s))

    def _learnt(self, count: int) -> int:
        """Return how many of ``count`` requests are learnt from, not served."""
        return min(max(int(count * self.history), 1), count - 1)

    def opening(self) -> tuple[str, ...]:
        """Return what a user must know before any figure: what was read of the trace, and what is assumed."""
        read = () if self.trace == "generated" else (*self.facts().lines(), *self.facts().notes)
        return tuple(line for line in (*read, self.assumed()) if line)

    @classmethod
    def kept(cls, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Return settings as they can be written into a study file.

        Parameters
        ----------
        settings : mapping
            As a caller in Python gives them: ``trace`` may be a path, a DataFrame, an Arrow table, a list of dicts or a
            RequestTrace, ``columns`` a mapping.
        folder : Path
            Where a trace from memory is written to, as a Parquet file named by its content.
        """
        found = dict(settings)
        columns = found.get("columns")
        if isinstance(columns, Mapping):
            found["columns"] = tuple(f"{field}={column}" for field, column in columns.items())
        trace = found.get("trace", "generated")
        if isinstance(trace, Path):
            found["trace"] = str(trace)
        elif not isinstance(trace, str):
            found |= _written(trace, found, folder)
        return found

    def split(self, seed: int, n: int = 0) -> tuple[RequestTrace, RequestTrace]:
        """Return past requests, for predictors, and the requests to serve, at the trace's own times.

        Parameters
        ----------
        seed : int
        n : int
            Generated requests, where more than the setting are wanted.
        """
        if self.made:
            return self.generated(seed + 1_000_000, self.requests), self.generated(seed, max(n, self.requests))
        whole = self.read().part(self.first_used(), self.requests)
        cut = self._learnt(len(whole))
        start_s = float(whole.arrival_s[cut])
        # Requests of one instant stay together: none is both learned from and served.
        cut = int(np.searchsorted(whole.arrival_s, start_s))
        return whole.head(max(cut, 1)), whole.slice(start_s).resampled(seed)

    def generated(self, seed: int, n: int, rate_per_s: float = 10.0) -> RequestTrace:
        """Return ``n`` generated requests.

        Parameters
        ----------
        seed, n : int
        rate_per_s : float
            Mean rate of requests.
        """
        from wavetank.workloads.generate import SharedPrefix, generate_requests

        if self.case != "none":
            if self.trace != "generated":
                raise BadValueError(
                    "A case brings its own requests.", given=f"case={self.case}, trace={self.trace}",
                    allowed="trace=generated", where="case",
                )  # fmt: skip
            return field_cases.requests_of(self.case, n=n, rate_per_s=rate_per_s, seed=seed)
        if self.trace == agent_sessions.NAME:
            conversations = agent_sessions.of_data_set()
            return agent_sessions.agent_sessions(conversations, n_requests=n, rate_per_s=rate_per_s, seed=seed)
        return generate_requests(
            rate_per_s=rate_per_s,
            n_requests=n,
            arrivals=self.arrivals,
            lengths=self.lengths,
            seed=seed,
            shared_prefix=SharedPrefix(share=self.shared_prefix) if self.shared_prefix > 0 else None,
        )

    def sent_at(self, requests: RequestTrace, seed: int, rate_per_s: float) -> RequestTrace:
        """Return as many requests as these at another mean rate.

        Parameters
        ----------
        requests : RequestTrace
            As :meth:`split` gives them to serve.
        seed : int
            That they are of.
        rate_per_s : float
        """
        if self.trace == agent_sessions.NAME:
            # More sessions at a time: an agent does not think quicker because others came.
            return self.generated(seed, len(requests), rate_per_s)
        return requests.at_rate(rate_per_s)


@lru_cache(maxsize=8)
def _read(
    trace: str, columns: tuple[str, ...], time_unit: str, bad_rows: str, version: tuple[str, int, int]
) -> tuple[RequestTrace, TraceFacts]:
    """Return a trace and what was read, repaired and assumed."""
    from wavetank.workloads.load import read_column_map, read_trace_and_facts

    return read_trace_and_facts(
        trace,
        columns=read_column_map(columns, where="columns"),
        time_unit=time_unit or None,
        bad_rows=bad_rows,
        asked_in="study",
    )


def _written(source: Any, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write a trace from memory to a file named by its content, and return the settings that read it."""
    from wavetank.workloads.load import read_column_map, read_trace

    trace = read_trace(
        source,
        columns=read_column_map(settings.get("columns", ()), where="columns"),
        time_unit=settings.get("time_unit") or None,
        bad_rows=settings.get("bad_rows", "drop"),
    )
    name = re.sub(r"[^A-Za-z0-9]+", "-", trace.name.partition(".")[0]).strip("-").lower()[:40] or "requests"
    path = folder.resolve() / f"{name}-{trace.checksum[:12]}.parquet"
    if not path.exists():
        trace.write(path)
    return {"trace": str(path), "columns": (), "time_unit": ""}
