"""A compound job as a graph of sections, each with GPUs and data-parallel ranks of its own.

One section is critical, such as the language model or the student: its GPUs are chosen first.  All others feed it, and
are made as small as they can be without delaying it.  What feeds an auxiliary section belongs into it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadValueError, unknown_name
from wavetank.training.sections.interface import Ints
from wavetank.training.sections.simulate import UNBOUNDED, Flow


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a job.

    Parameters
    ----------
    name : str
    gpus : int
        Of one data-parallel rank.
    ranks : int
        Data-parallel ranks.
    frozen : bool
        Whether it has no backward pass, as a teacher.
    """

    name: str
    gpus: int = 1
    ranks: int = 1
    frozen: bool = False


@dataclass(frozen=True, kw_only=True)
class SectionGraph:
    """Sections, and which feeds which.

    Parameters
    ----------
    sections : tuple of Section
    feeds : tuple of (str, str)
        The name of a section and that of the one it feeds.
    critical : str
        The section that is never to wait.

    Raises
    ------
    BadValueError
        If names are not unique, a section does not feed the critical one, feeds twice, or ranks do not divide.
    UnknownNameError
        If there is no section of a name.

    Examples
    --------
    >>> graph = SectionGraph(
    ...     sections=(Section(name="teacher", frozen=True), Section(name="student", ranks=4)),
    ...     feeds=(("teacher", "student"),), critical="student",
    ... )
    >>> graph.fan_out("teacher"), graph.gpus
    (4, 5)
    """

    sections: tuple[Section, ...]
    feeds: tuple[tuple[str, str], ...]
    critical: str

    def __post_init__(self) -> None:
        names = [each.name for each in self.sections]
        if len(set(names)) != len(names):
            raise BadValueError("Sections have names of their own.", given=", ".join(names))
        for name in (self.critical, *(each for pair in self.feeds for each in pair)):
            if name not in names:
                raise unknown_name("section", name, names)
        for each in self.sections:
            if each.gpus < 1 or each.ranks < 1:
                raise BadValueError("A section has GPUs and ranks.", given=(each.gpus, each.ranks), where=each.name)
        if self.section(self.critical).frozen:
            raise BadValueError("The critical section learns.", given=f"{self.critical} is frozen")
        for name in names:
            targets = [target for source, target in self.feeds if source == name]
            if targets != ([] if name == self.critical else [self.critical]):
                raise BadValueError(
                    "Every other section feeds the critical one, once, and nothing else.", given=f"{name} -> {targets}",
                    allowed=f"{name} -> {self.critical}", hint="make what feeds an auxiliary section a part of it",
                )  # fmt: skip
            self.fan_out(name)

    def section(self, name: str) -> Section:
        """Return a section by name.

        Parameters
        ----------
        name : str

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        found = {each.name: each for each in self.sections}
        if name not in found:
            raise unknown_name("section", name, found)
        return found[name]

    @property
    def auxiliary(self) -> tuple[Section, ...]:
        """All sections but the critical one."""
        return tuple(each for each in self.sections if each.name != self.critical)

    @property
    def gpus(self) -> int:
        """GPUs of all ranks of all sections."""
        return sum(each.gpus * each.ranks for each in self.sections)

    def fan_out(self, name: str) -> int:
        """Return how many ranks of the critical section one rank of a section feeds.

        Parameters
        ----------
        name : str

        Raises
        ------
        BadValueError
            If they cannot be shared evenly.
        """
        ranks, others = self.section(self.critical).ranks, self.section(name).ranks
        if ranks % others:
            raise BadValueError("Ranks of a section feed as many ranks each.", given=f"{others} feed {ranks}",
                                allowed=f"divisors of {ranks}", where=name)  # fmt: skip
        return ranks // others

    def flow(self, forward_ps: Mapping[str, Ints], backward_ps: Mapping[str, Ints], queue: int = UNBOUNDED) -> Flow:
        """Return the times of one critical rank's samples in each section.

        A section that feeds several critical ranks serves them in turn, and is as slow for each as it feeds ranks.

        Parameters
        ----------
        forward_ps, backward_ps : mapping of str to int64 array (samples,)
            By the name of the section, on one of its ranks; frozen sections have no backward times.
        queue : int
            As for :class:`~wavetank.training.sections.simulate.Flow`.

        Raises
        ------
        BadValueError
            If times of a section are absent, or a frozen one has a backward pass.
        """
        names = {each.name for each in self.sections}
        learning = {each.name for each in self.sections if not each.frozen}
        if set(forward_ps) != names or set(backward_ps) != learning:
            raise BadValueError(
                "Each section has forward times, each that learns has backward times.",
                given=f"{sorted(forward_ps)}, {sorted(backward_ps)}",
                allowed=f"{sorted(names)}, {sorted(learning)}",
            )
        count = np.asarray(forward_ps[self.critical]).size
        others = self.auxiliary
        shape = (len(others), count)
        forward, backward = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for k, each in enumerate(others):
            forward[k] = np.asarray(forward_ps[each.name]) * self.fan_out(each.name)
            if not each.frozen:
                backward[k] = np.asarray(backward_ps[each.name]) * self.fan_out(each.name)
        critical = np.asarray(forward_ps[self.critical]) + np.asarray(backward_ps[self.critical])
        return Flow(forward_ps=forward, critical_ps=critical.astype(np.int64), backward_ps=backward, queue=queue)


def fewest_gpus(work_ps: int, critical_ps: int, allowed: Sequence[int]) -> int:
    """Return the fewest GPUs on which a section is done no later than the critical one.

    Parameters
    ----------
    work_ps : int
        What it would take on one GPU; it is spread evenly.
    critical_ps : int
    allowed : sequence of int
        Numbers of GPUs that hold the section and that it can be divided over.

    Raises
    ------
    BadValueError
        If none of them is enough.

    Examples
    --------
    >>> fewest_gpus(70, 10, [1, 2, 4, 8, 16])
    8
    """
    for gpus in sorted(allowed):
        if gpus >= 1 and work_ps <= gpus * critical_ps:
            return gpus
    raise BadValueError(
        "No allowed number of GPUs keeps this section from delaying the critical one.",
        given=f"{work_ps} ps of work beside {critical_ps} ps",
        allowed=f"{list(allowed)}"[:80],
        hint=f"allow {math.ceil(work_ps / critical_ps)} GPUs" if critical_ps > 0 else None,
    )


def logits_over_hidden(vocabulary: int, hidden: int) -> float:
    """Return how many times as many bytes a teacher sends as logits than as hidden states.

    Parameters
    ----------
    vocabulary, hidden : int

    Raises
    ------
    BadValueError
        If one of them is below 1.

    Examples
    --------
    >>> logits_over_hidden(250_000, 4_000)
    62.5
    """
    if vocabulary < 1 or hidden < 1:
        raise BadValueError("A model has a vocabulary and a width.", given=(vocabulary, hidden))
    return vocabulary / hidden
