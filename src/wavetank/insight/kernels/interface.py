"""What a score of similarity is given, and what it answers: kernels with the shares of their slots and their rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.workloads.topdown import SHARES, KernelTable

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Profiles:
    """Kernels of one machine and one build, each in several runs.

    Parameters
    ----------
    names : tuple of str
        Of the kernels.
    shares : array, shape (kernels, runs, 10)
        Columns :data:`~wavetank.workloads.topdown.SHARES`, as they were counted: they may be below zero, NaN is a gap.
    flops_per_byte : array, shape (kernels,)
        NaN where it is not known.
    bytes_per_s : array, shape (kernels, runs)
        NaN where it is not known.
    seconds : array, shape (kernels, runs)
        Of one repetition; NaN where it is not known.
    time_s : array, shape (kernels,)
        Mean time of the whole kernel in a run: its weight in the code; NaN where it is not known.
    """

    names: tuple[str, ...]
    shares: Floats
    flops_per_byte: Floats
    bytes_per_s: Floats
    seconds: Floats
    time_s: Floats

    @property
    def runs(self) -> int:
        """Runs of each kernel; kernels with fewer have gaps."""
        return int(self.shares.shape[1])

    def mean(self) -> Profiles:
        """Return the profiles with one run: the mean of all, gaps left out."""
        return replace(
            self,
            shares=_mean(self.shares)[:, None, :],
            bytes_per_s=_mean(self.bytes_per_s)[:, None],
            seconds=_mean(self.seconds)[:, None],
        )

    def of_runs(self, runs: NDArray[np.int64]) -> Profiles:
        """Return the profiles with some of the runs, in their order.

        Parameters
        ----------
        runs : array of int, shape (some,) or (kernels, some)
            The same for all kernels, or each kernel's own.
        """
        chosen = np.broadcast_to(runs, (len(self.names), runs.shape[-1]))
        rows = np.arange(len(self.names))[:, None]
        return replace(
            self,
            shares=self.shares[rows, chosen],
            bytes_per_s=self.bytes_per_s[rows, chosen],
            seconds=self.seconds[rows, chosen],
        )

    def of_kernels(self, kernels: Sequence[int] | NDArray[np.int64]) -> Profiles:
        """Return some of the kernels, in the given order.

        Parameters
        ----------
        kernels : sequence of int
        """
        chosen = np.asarray(kernels, np.int64)
        return Profiles(
            names=tuple(self.names[at] for at in chosen),
            shares=self.shares[chosen],
            flops_per_byte=self.flops_per_byte[chosen],
            bytes_per_s=self.bytes_per_s[chosen],
            seconds=self.seconds[chosen],
            time_s=self.time_s[chosen],
        )

    def drawn(self, stream: np.random.Generator) -> Profiles:
        """Return the mean of as many runs as a kernel has, drawn with replacement for each kernel on its own.

        Runs without all five shares are never drawn, where a kernel has others.

        Parameters
        ----------
        stream : numpy.random.Generator
        """
        there = np.asarray((~np.isnan(self.shares[:, :, :5])).all(axis=2), np.bool_)
        there[there.sum(1) == 0] = True
        if not there.all():
            counts = there.sum(1, keepdims=True)
            places = np.argsort(~there, axis=1, kind="stable")
            drawn = (stream.random((len(self.names), self.runs)) * counts).astype(np.int64)
            chosen = self.of_runs(np.take_along_axis(places, drawn, axis=1))
            beyond = np.arange(self.runs)[None] >= counts
            return replace(
                chosen,
                shares=np.where(beyond[:, :, None], np.nan, chosen.shares),
                bytes_per_s=np.where(beyond, np.nan, chosen.bytes_per_s),
                seconds=np.where(beyond, np.nan, chosen.seconds),
            ).mean()
        return self.of_runs(stream.integers(0, self.runs, (len(self.names), self.runs))).mean()


Comparison = Callable[[Profiles, Profiles], Floats]
"""Takes means of queries and of candidates; returns similarities, shape (queries, candidates), larger is more alike."""


class Matcher(Protocol):
    """A score of similarity."""

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return the comparison, with whatever it takes from the suite's own runs."""


def profiles_of(table: KernelTable, setting: tuple[str, ...] | None = None) -> Profiles:
    """Return the kernels of a table, sorted by name, with their runs in the order of the rows.

    Parameters
    ----------
    table : KernelTable
    setting : tuple of str, optional
        Rows of this compiler, optimisation, variant, tuning and problem size alone; by default all rows.

    Raises
    ------
    BadValueError
        If no row has the setting.
    """
    rows_of: dict[str, list[int]] = {}
    for row, kernel in enumerate(table.kernels):
        if setting is None or table.settings[row] == setting:
            rows_of.setdefault(kernel, []).append(row)
    if not rows_of:
        raise BadValueError(
            "No row has this setting.", given=setting, allowed=[str(each) for each in set(table.settings)]
        )
    names = tuple(sorted(rows_of))
    most = max(map(len, rows_of.values()))
    nothing = np.full(len(table.kernels), np.nan)
    shares = np.full((len(names), most, len(SHARES)), np.nan)
    rates, seconds, whole = (np.full((len(names), most), np.nan) for _ in range(3))
    per_rep = table.seconds_per_rep()
    moved = table.values.get("Bytes/Rep", nothing)
    flops = table.values.get("Flops/Rep", nothing)
    reps = table.values.get("Reps", nothing)
    intensity = np.full(len(names), np.nan)
    for at, name in enumerate(names):
        rows = np.array(rows_of[name])
        for column, share in enumerate(SHARES):
            if share in table.values:
                shares[at, : rows.size, column] = table.values[share][rows]
        rates[at, : rows.size] = moved[rows] / per_rep[rows]
        seconds[at, : rows.size] = per_rep[rows]
        whole[at, : rows.size] = per_rep[rows] * np.where(np.isnan(reps[rows]), 1.0, reps[rows])
        ratio = flops[rows] / np.where(moved[rows] > 0, moved[rows], np.nan)
        intensity[at] = _mean(ratio[None])[0]
    return Profiles(
        names=names, shares=shares, flops_per_byte=intensity, bytes_per_s=rates, seconds=seconds, time_s=_mean(whole)
    )


def _mean(values: Floats) -> Floats:
    """Return the mean over the second axis, gaps left out; NaN where all are gaps."""
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(there, values, 0.0).sum(1) / there.sum(1), np.float64)
