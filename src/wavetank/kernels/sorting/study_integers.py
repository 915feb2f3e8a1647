"""Study ``sort-integers``: sorting a long column of integers in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.machine.clocks import WallClock
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Metric
from wavetank.study.timing import SHARE_OF_COPY, Case, Gain, Limits, Seconds, TimingStudy

DISTRIBUTIONS = ("uniform", "zipf", "sorted", "reversed", "constant", "two-valued")
BITS = (8, 16, 32, 64)
_ZIPF_EXPONENT = 1.3
ONE_THREAD = ("numpy-sort", "numpy-stable-sort", "pyarrow-sort")
LIBRARIES = (*ONE_THREAD, "polars-sort", "duckdb-sort")
ONE_OF_OURS = "fractal-sort-one"


class Column(NamedTuple):
    """The keys of a case, and what sorting them must give."""

    keys: NDArray[Any]
    expected: NDArray[Any]


def keys_of(distribution: str, n: int, bits: int, seed: int) -> NDArray[Any]:
    """Return ``n`` unsigned keys.

    Parameters
    ----------
    distribution : str
        One of :data:`DISTRIBUTIONS`; zipf has exponent 1.3, its ranks scattered over the key space.
    n, bits, seed : int
    """
    dtype = np.dtype(f"uint{bits}")
    rng = stream(seed, "sort-integers", distribution)
    if distribution == "constant":
        return np.full(n, rng.integers(0, 1 << min(bits, 63)), dtype)
    if distribution == "two-valued":
        values = np.sort(rng.integers(0, np.iinfo(dtype).max, 2, dtype=dtype, endpoint=True))
        return values[rng.integers(0, 2, n, dtype=np.uint8)]
    if distribution == "zipf":
        ranks = np.minimum(rng.zipf(_ZIPF_EXPONENT, n), 1 << 30).astype(np.uint64)
        # An odd multiplier permutes the key space, so that frequent keys are not neighbours.
        return (ranks * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - bits)).astype(dtype)
    keys = rng.integers(0, np.iinfo(dtype).max, n, dtype=dtype, endpoint=True)
    if distribution == "uniform":
        return keys
    keys.sort()
    return keys if distribution == "sorted" else np.ascontiguousarray(keys[::-1])


@dataclass(frozen=True, kw_only=True)
class SortIntegers(TimingStudy):
    """Every system sorts the same keys in memory into a new array.  Peers get the keys in their own container,
    prepared outside the timed call; what they return is compared with numpy's result before anything is timed.
    """

    name = "sort-integers"
    baseline = "numpy-sort"
    cases_by = "keys"
    metrics = (
        SHARE_OF_COPY,
        Metric("copies", "", "lower", "measured", "time / time of a plain copy of the keys in the same round"),
        Metric(
            "share_of_limit", "", "higher", "measured",
            "(bytes of keys read once and written once / time) / copy bandwidth of all cores, as measured before by "
            "wavetank.machine.limits",
            table=False,
        ),
        Gain(
            "ahead_of_best_peer", over=LIBRARIES, but=(*LIBRARIES, ONE_OF_OURS), table=False,
            of="least time among the libraries / time, same round; for fractal-sort-one among those that use one "
            "thread",
        ),
        Metric(
            "worst_over_best", "", "lower", "measured",
            "slowest over fastest key distribution, same round",
            table=False,
        ),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against numpy's", y="time_ratio", by="keys", log="x", says="Below 1 is faster than numpy."),
        Chart("bars", "Time in plain copies", y="copies", by="keys", log="x",
              says="1 is the memory's limit: reading and writing every key once."),
    )  # fmt: skip

    size_mb: int = setting(
        32, unit="MB", says="Size of the keys (10^6 bytes); the source sorts 512 to 32,000", low=1, high=64_000
    )
    bits: int = setting(16, says="Bits per key", choices=BITS)
    rounds: int = setting(3, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)
    distributions: tuple[str, ...] = setting(DISTRIBUTIONS, says="Distributions of the keys", choices=DISTRIBUTIONS)

    def check(self) -> None:
        """Refuse columns that do not fit."""
        from wavetank.machine.limits import require_memory

        # What is sorted, numpy's result, a system's result and scratch, and the copy's two arrays.
        require_memory(6 * self.array_bytes(), self.name)

    def array_bytes(self) -> int:
        """Return the bytes of what is sorted."""
        return self.size_mb * 1_000_000

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        from wavetank.machine.limits import cached

        return (
            "share_of_copy and copies hold a system against a copy that reads and writes every key once, timed in "
            "the same round with one thread, which saturates the memory of most small machines.",
            "share_of_limit holds it against a copy by all threads, measured once for this machine.",
            "Systems use as many threads as they do by default: fractal-sort, polars and DuckDB all of them; "
            "fractal-sort-one, numpy, Arrow and the textbook sorts one.",
            "A column of a few MB stays in cache: compare sizes well beyond it.",
            cached().note(),
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the distributions."""
        return self.distributions

    def case(self, name: str, seed: int) -> Case:
        """Return a column of that distribution."""
        keys = keys_of(name, self.size_mb * 1_000_000 * 8 // self.bits, self.bits, seed)
        keys.flags.writeable = False
        # The stable sort is numpy's fastest for narrow keys, and any right one will do.
        return Case(name, Column(keys, np.sort(keys, kind="stable")), bytes_moved=2.0 * keys.nbytes)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the sorter's prepared call."""
        call: Callable[[], object] = system.prepare(case.data.keys)
        return call

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare with numpy's sort."""
        if not np.array_equal(np.asarray(result), case.data.expected):
            raise WavetankError(f"{system} did not sort {case.name} keys.")

    def limits(self, case: Case, clock: WallClock) -> Limits:
        """Return one thread's copy and what all threads copied when this machine was measured."""
        from wavetank.machine.limits import cached

        least_s = cached().copy_s(2.0 * self.array_bytes())
        return {**super().limits(case, clock), "share_of_limit": lambda: least_s}

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return the time in copies, and one thread's lead over the libraries that use one."""
        found = {"copies": times[name] / limits["share_of_copy"]}
        rivals = [times[peer] for peer in ONE_THREAD if peer in times]
        if name == ONE_OF_OURS and rivals:
            found["ahead_of_best_peer"] = min(rivals) / times[name]
        return found

    def round_figures(self, name: str, times: Mapping[str, Seconds]) -> dict[str, float]:
        """Return how much the distribution matters."""
        return {"worst_over_best": max(times[name].values()) / min(times[name].values())}
