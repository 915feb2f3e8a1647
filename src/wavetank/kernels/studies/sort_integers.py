"""Study ``sort-integers``: sorting a long column of integers in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.rng import stream
from wavetank.settings import setting
from wavetank.study import Case, Chart, Measurements, Metric, TimingStudy

DISTRIBUTIONS = ("uniform", "zipf", "sorted", "reversed", "constant", "two-valued")
_ZIPF_EXPONENT = 1.3


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
    """Which sort is fastest on a long column of small integers, and how close does it come to a plain copy?

    Every contender sorts the same keys in memory into a new array.  Peers get the keys in their own container,
    prepared outside the timed call; what they return is compared with numpy's result before anything is timed.
    """

    name = "sort-integers"
    baseline = "numpy-sort"
    systems: ClassVar[tuple[str, ...]] = (
        "fractal-sort", "fractal-sort-one", "fractal-sort-full", "numpy-sort", "numpy-stable-sort", "polars-sort",
        "pyarrow-sort", "duckdb-sort", "counting-sort", "radix-sort",
    )  # fmt: skip
    cases_by = "keys"
    metrics = (
        *TimingStudy.timing_metrics[:3],
        Metric("copies", "", "lower", "measured", "time / time of a plain copy of the keys in the same round"),
        Metric(
            "share_of_limit", "", "higher", "measured",
            "(bytes of keys read once and written once / time) / copy bandwidth of all cores, as measured before by "
            "wavetank.kernels.machine",
            table=False,
        ),
        Metric(
            "ahead_of_best_peer", "", "higher", "measured",
            "least time among the libraries / time, same round; for fractal-sort-one among those that use one thread",
            table=False,
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
        32, unit="MB", says="of keys (10^6 bytes); the source sorts 512 to 32,000", low=1, high=64_000
    )
    bits: int = setting(16, says="of a key: 8, 16, 32 or 64", low=8, high=64)
    rounds: int = setting(3, says="interleaved rounds after the warm-up", low=1, high=1000)
    distributions: tuple[str, ...] = setting(DISTRIBUTIONS, says="of the keys", choices=DISTRIBUTIONS)

    def check(self) -> None:
        """Refuse key widths that do not exist and columns that do not fit."""
        from wavetank.kernels.machine import require_memory

        if self.bits not in (8, 16, 32, 64):
            raise BadValueError("There are no such keys.", given=self.bits, allowed="8, 16, 32 or 64", where="bits")
        # What is sorted, numpy's result, a contender's result and scratch, and the copy's two arrays.
        require_memory(6 * self.array_bytes(), self.name)

    def array_bytes(self) -> int:
        """Return the bytes of what is sorted."""
        return self.size_mb * 1_000_000

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        from wavetank.kernels.machine import cached

        return (
            "share_of_copy and copies hold a contender against a copy that reads and writes every key once, timed in "
            "the same round with one thread, which saturates the memory of most small machines.",
            "share_of_limit holds it against a copy by all threads, measured once for this machine.",
            "Contenders use as many threads as they do by default: fractal-sort, polars and DuckDB all of them; "
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

    def contender(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the sorter's prepared call."""
        call: Callable[[], object] = system.prepare(case.data.keys)
        return call

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare with numpy's sort."""
        if not np.array_equal(np.asarray(result), case.data.expected):
            raise WavetankError(f"{system} did not sort {case.name} keys.")

    def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
        """Return the figures that need the machine's limit, all contenders or all cases of a round."""
        from wavetank.kernels.machine import cached

        found = {name: Measurements() for name in times}
        libraries = [name for name in times if name in LIBRARIES]
        least_s = cached().copy_s(2.0 * self.array_bytes())
        for name, by_case in times.items():
            for case, seconds in by_case.items():
                found[name].put("copies", seconds / copies[case], keys=case)
                found[name].put("share_of_limit", least_s / seconds, keys=case)
                if name not in LIBRARIES and libraries:
                    rivals = [peer for peer in libraries if peer in ONE_THREAD or name != ONE_OF_OURS]
                    if rivals:
                        best = min(times[peer][case] for peer in rivals)
                        found[name].put("ahead_of_best_peer", best / seconds, keys=case)
            found[name].put("worst_over_best", max(by_case.values()) / min(by_case.values()))
        return found


ONE_THREAD = ("numpy-sort", "numpy-stable-sort", "pyarrow-sort")
LIBRARIES = (*ONE_THREAD, "polars-sort", "duckdb-sort")
ONE_OF_OURS = "fractal-sort-one"
