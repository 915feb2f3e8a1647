"""Quantities of a table of kernels that a diagnosis states: what binds a kernel, and what it resembles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.findings import Value
from wavetank.errors import BadValueError, UnknownNameError, nearest_of
from wavetank.insight.kernels.compositions import LEAVES, leaves, margins, mean_leaves
from wavetank.insight.kernels.interface import Comparison, Profiles, profiles_of
from wavetank.insight.kernels.matches import LEAST_RUNS, Matches, coverage, matches
from wavetank.sim.rng import stream
from wavetank.workloads.topdown import SETTINGS, KernelTable, read_kernels

Floats = NDArray[np.float64]

RESOURCES = ("retiring", "frontend", "bad speculation", "core", "memory")
_SHOWN = 5
_HOW = {
    "kernels": "number of different values of the column kernel, in the rows of the setting",
    "rows": "rows of the table",
    "gaps": "values missing in columns of shares, times, bytes, operations and repetitions",
    "settings": "number of different compilers, optimisations, variants, tunings and problem sizes",
    "setting": "the setting with most rows, the last by name of equal ones, or the one asked for",
    "memory_kernels": "kernels whose memory leaves take more of the slots than core and retiring",
    "covered_share": "time of kernels whose nearest kernel is as similar as the threshold, over the time of all",
    "time_share": "mean time of the kernel over the sum of those of all kernels",
    "slots_share": "mean share over runs, clipped at zero, each level of the tree scaled to its parent",
    "binding": "the largest of retiring, frontend, bad speculation, core and memory",
    "bound_share": "share of the slots of the binding resource",
    "level": "the largest memory leaf",
    "level_share": "share of the slots of the largest memory leaf",
    "margin": "memory minus core and retiring",
    "holds_share": "draws of the runs, with replacement, in which the same resource is the largest",
    "nearest": "the kernel of the largest similarity to the mean of all runs",
    "similarity": "kernel-similarity of the means over all runs",
    "similarity_low": "lower end of its 95 % interval, by bootstrap over runs",
    "similarity_high": "upper end of its 95 % interval, by bootstrap over runs",
    "set_size": "kernels whose interval reaches that of the nearest, itself included",
    "set": "names of these kernels, the most similar first",
    "runs": "rows of the kernel in the setting with all five shares",
}


class KernelSource:
    """A table of kernels, with the suite that they are compared with.

    Parameters
    ----------
    path : Path
    compare : callable
        A score of similarity of means.
    suite : Path, optional
        Table of the suite; by default the other kernels of the same table.
    wanted : tuple of str
        Compiler, optimisation, variant, tuning and problem size that the rows must have; empty text takes any.
    threshold : float
        Similarity from which a kernel counts as covered.
    rounds : int
        Of each bootstrap.
    """

    def __init__(
        self,
        path: Path,
        compare: Comparison,
        *,
        suite: Path | None = None,
        wanted: tuple[str, ...] = ("",) * len(SETTINGS),
        threshold: float = 0.9,
        rounds: int = 200,
    ) -> None:
        self.table = read_kernels(path)
        self.setting = _chosen(self.table, wanted)
        self.profiles = profiles_of(self.table, self.setting)
        self.alone = suite is None
        self._compare, self._threshold, self._rounds = compare, threshold, rounds
        self._suite_path = suite
        self._reads: dict[str, Callable[[], Value]] = {
            "kernels": lambda: len(self.profiles.names),
            "rows": lambda: len(self.table.kernels),
            "gaps": lambda: self.table.gaps,
            "settings": lambda: len(set(self.table.settings)),
            "setting": lambda: ", ".join(filter(None, self.setting)) or "none is named",
            "memory_kernels": lambda: int((margins(self.leaves[self.known]) > 0).sum()),
            "covered_share": lambda: coverage(self.matches, self._judged.time_s, self._threshold),
        }
        self._reads_of: dict[str, Callable[[int], Value]] = {
            "time_share": lambda at: float(self.profiles.time_s[at] / np.nansum(self.profiles.time_s)),
            "binding": lambda at: RESOURCES[int(_five(self.leaves[at]).argmax())],
            "bound_share": lambda at: float(_five(self.leaves[at]).max()),
            "level": lambda at: LEAVES[4 + int(self.leaves[at, 4:].argmax())],
            "level_share": lambda at: float(self.leaves[at, 4:].max()),
            "margin": lambda at: float(margins(self.leaves[at])),
            "holds_share": lambda at: float(self._holds[at]),
            "runs": lambda at: int(self.runs[at]),
        }

    @cached_property
    def suite(self) -> Profiles:
        """The kernels to compare with."""
        if self._suite_path is None:
            return self._judged
        table = read_kernels(self._suite_path)
        read = profiles_of(table, _chosen(table, ("",) * len(SETTINGS)))
        return read.of_kernels(np.flatnonzero(~np.isnan(mean_leaves(read)).any(1)))

    @cached_property
    def leaves(self) -> Floats:
        """Compositions of the means, shape (kernels, 8)."""
        return mean_leaves(self.profiles)

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """Runs of each kernel with all five shares."""
        return np.asarray((~np.isnan(self.profiles.shares[:, :, :5]).any(2)).sum(1), np.int64)

    @cached_property
    def known(self) -> NDArray[np.int64]:
        """Kernels with enough runs and a composition; of the others nothing is said."""
        return np.flatnonzero((self.runs >= LEAST_RUNS) & ~np.isnan(self.leaves).any(1))

    @cached_property
    def _judged(self) -> Profiles:
        return self.profiles.of_kernels(self.known)

    @cached_property
    def matches(self) -> Matches:
        """Matches of the known kernels."""
        return matches(self._compare, self._judged, self.suite, rounds=self._rounds, seed=0, others=self.alone)

    @cached_property
    def _holds(self) -> Floats:
        draw = stream(0, "what-binds")
        largest = _five(self.leaves).argmax(-1)
        held = np.zeros(len(self.profiles.names))
        for _ in range(self._rounds):
            held += _five(leaves(self.profiles.drawn(draw).shares[:, 0])).argmax(-1) == largest
        return held / self._rounds

    def quantity(self, name: str, **of: object) -> Value:
        """Return a quantity.

        Parameters
        ----------
        name : str
            A name that :meth:`how` explains.
        **of : value
            ``kernel``, and ``leaf`` of ``slots_share``.

        Raises
        ------
        UnknownNameError
            If there is no such quantity, kernel or leaf.
        """
        if name in self._reads and not of:
            return self._reads[name]()
        if name not in _HOW or "kernel" not in of:
            raise UnknownNameError("There is no such quantity.", given=f"{name} {of}", nearest=nearest_of(name, _HOW))
        at = _place(str(of["kernel"]), self.profiles.names, "kernel")
        if name == "slots_share":
            return float(self.leaves[at, _place(str(of.get("leaf")), LEAVES, "leaf")])
        if name in self._reads_of:
            return self._reads_of[name](at)
        return self._of_match(name, at)

    def _of_match(self, name: str, at: int) -> Value:
        places = np.flatnonzero(self.known == at)
        if not places.size:
            raise BadValueError("The kernel has too few runs to be matched.", given=self.profiles.names[at])
        query = int(places[0])
        answer = self.matches.answer(query)
        if not answer.size:
            raise BadValueError("There is no other kernel to compare with.", given=self.profiles.names[at])
        if name == "nearest":
            return self.matches.candidates[answer[0]]
        if name == "set_size":
            return int(answer.size)
        if name == "set":
            shown = ", ".join(self.matches.candidates[each] for each in answer[:_SHOWN])
            return shown + (" and others" if answer.size > _SHOWN else "")
        ends = {"similarity": self.matches.similarity, "similarity_low": self.matches.low,
                "similarity_high": self.matches.high}  # fmt: skip
        if name not in ends:
            raise UnknownNameError("The quantity is none of a kernel.", given=name, nearest=nearest_of(name, ends))
        return float(ends[name][query, answer[0]])

    def how(self, name: str) -> str:
        """Return how the quantity is read from the table, as a phrase.

        Parameters
        ----------
        name : str
        """
        return _HOW[name]


def _five(compositions: Floats) -> Floats:
    return np.concatenate((compositions[..., :4], compositions[..., 4:].sum(-1, keepdims=True)), axis=-1)


def _place(name: str, names: tuple[str, ...], what: str) -> int:
    if name not in names:
        raise UnknownNameError(f"There is no {what} named {name!r}.", nearest=nearest_of(name, names))
    return names.index(name)


def _chosen(table: KernelTable, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the setting with most rows, of those that are wanted; the last by name of equal ones."""
    counts: dict[tuple[str, ...], int] = {}
    for each in table.settings:
        if all(word in ("", has) for word, has in zip(wanted, each, strict=True)):
            counts[each] = counts.get(each, 0) + 1
    if not counts:
        raise BadValueError(
            "No row has this setting.", given=dict(zip(SETTINGS, wanted, strict=True)),
            allowed=sorted({", ".join(each) for each in table.settings}),
        )  # fmt: skip
    return max(counts, key=lambda each: (counts[each], each))
