"""Step graphs: the operations of one training step on all ranks, what each depends on, and how long each takes.

A :class:`StepGraph` is checked when it is made and never changes.  :meth:`StepGraph.times` runs it by the rules of
:mod:`wavetank.sim.steps`; builders of pipeline schedules are in :mod:`wavetank.workloads.pipelines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.sim.steps import (
    COLLECTIVE,
    HOST,
    KINDS,
    RECEIVE,
    SEND,
    PreparedSteps,
    Steps,
    StepTimes,
)

UNPRICED = -1
COLLECTIVES = (
    "all-reduce", "reduce", "all-gather", "gather", "scatter", "broadcast", "all-to-all", "reduce-scatter",
    "reduce-scatter-block", "barrier",
)  # fmt: skip
# Times are added up in 64 bits.
MOST_PS = 2**62


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation, for :meth:`StepGraph.of`.

    Parameters
    ----------
    rank, stream : int
        Where it runs; the operations of a stream run in the order in which they are given.
    kind : str
        ``compute``, ``collective``, ``send``, ``receive`` or ``host``.
    duration_ps : int
        :data:`UNPRICED` where it follows from ``flops`` or ``n_bytes`` on a platform.
    flops : float
        What is to be computed.
    n_bytes : int
        Size of a message, or of a collective: what every member holds before an all-reduce or all-to-all.
    after : tuple of int
        Numbers of the operations that must have ended.
    group : int
        Of a collective: the number of its group.
    collective : str
        One of :data:`COLLECTIVES`.
    peer : int
        The rank that a message goes to or comes from; -1 of a send whose arrival others depend on by ``after``.
    tag : int
        Messages between the same ranks that belong together have one tag.
    link : int
        The shared link that it takes; -1 for none.
    name : str
        For messages.
    """

    rank: int
    stream: int = 0
    kind: str = "compute"
    duration_ps: int = 0
    flops: float = 0.0
    n_bytes: int = 0
    after: tuple[int, ...] = ()
    group: int = -1
    collective: str = ""
    peer: int = -1
    tag: int = 0
    link: int = -1
    name: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepGraph:
    """The operations of a training step.

    Arrays are made read-only; those left out hold the value that means none.

    Parameters
    ----------
    rank, stream : ndarray of int32, shape (n,)
        Where each operation runs.  Operations of one stream run in the order of their numbers.
    kind : ndarray of int8, shape (n,)
        ``COMPUTE``, ``COLLECTIVE``, ``SEND``, ``RECEIVE`` or ``HOST`` of :mod:`wavetank.sim.steps`.
    duration_ps : ndarray of int64, shape (n,)
        :data:`UNPRICED` where it is not known.
    dep_start, dep : ndarray of int64, shape (n + 1,) and (m,)
        The operations before operation i are ``dep[dep_start[i] : dep_start[i + 1]]``.
    n_bytes : ndarray of int64, shape (n,)
        Of messages and collectives.
    flops : ndarray of float64, shape (n,)
    group : ndarray of int32, shape (n,)
        Number of a collective's group among ``groups``; -1 of all others.
    collective : ndarray of int8, shape (n,)
        Index of :data:`COLLECTIVES`; -1 of all others.
    peer : ndarray of int32, shape (n,)
        Receiver of a send (-1: others depend on the send itself), sender of a receive; -1 of all others.
    tag : ndarray of int64, shape (n,)
    link : ndarray of int32, shape (n,)
        The shared link of a send or collective; -1 for none.
    groups : tuple of tuple of int
        The ranks of every group.
    names : tuple of str
        Of all operations, or of none.

    Raises
    ------
    BadValueError
        For arrays of other shapes, values that mean nothing, dependencies that do not exist or form a cycle, and
        collectives whose group has not their rank; it names the operation.

    Examples
    --------
    >>> graph = StepGraph.of([
    ...     Operation(rank=0, duration_ps=5),
    ...     Operation(rank=1, duration_ps=3),
    ...     Operation(rank=0, kind="collective", collective="all-reduce", group=0, duration_ps=2),
    ...     Operation(rank=1, kind="collective", collective="all-reduce", group=0, duration_ps=2),
    ... ], groups=((0, 1),))
    >>> graph.times().end_ps.tolist()
    [5, 3, 7, 7]
    """

    rank: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    duration_ps: npt.NDArray[np.int64]
    dep_start: npt.NDArray[np.int64]
    dep: npt.NDArray[np.int64]
    n_bytes: npt.NDArray[np.int64] = None  # type: ignore[assignment]
    flops: npt.NDArray[np.float64] = None  # type: ignore[assignment]
    group: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    collective: npt.NDArray[np.int8] = None  # type: ignore[assignment]
    peer: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    tag: npt.NDArray[np.int64] = None  # type: ignore[assignment]
    link: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    groups: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = np.asarray(self.rank).size
        for key, (dtype, default, low) in _ARRAYS.items():
            given = getattr(self, key)
            given = np.full(n, default) if given is None else np.asarray(given)
            size = {"dep_start": n + 1, "dep": given.size}.get(key, n)
            if given.shape != (size,):
                raise BadValueError(
                    f"The array {key} of a step graph has another size.", given=given.shape, allowed=(f"({size},)",)
                )
            _check_numbers(self, key, given, dtype, low)
            array = given.astype(dtype)
            array.flags.writeable = False
            object.__setattr__(self, key, array)
        if self.names and len(self.names) != n:
            raise BadValueError("Names are those of all operations, or none.", given=len(self.names), allowed=str(n))
        self._check_dependencies()
        self._check_kinds()
        self._check_groups()
        self._check_cycles()

    @classmethod
    def of(cls, operations: Sequence[Operation], *, groups: Sequence[Sequence[int]] = ()) -> StepGraph:
        """Return the graph of operations that were written down one by one.

        Parameters
        ----------
        operations : sequence of Operation
        groups : sequence of sequence of int
            The ranks of every group.

        Raises
        ------
        BadValueError
            For a kind or collective that does not exist, and whatever the graph itself refuses.
        """
        kinds, collectives = list(KINDS), ["", *COLLECTIVES]
        for i, each in enumerate(operations):
            for given, allowed in ((each.kind, kinds), (each.collective, collectives)):
                if given not in allowed:
                    raise BadValueError(
                        f"Operation {i} is of no kind that there is.", given=given, allowed=[*filter(None, allowed)]
                    )
        names = tuple(each.name for each in operations)

        def column(of: str) -> npt.NDArray[Any]:
            values = [getattr(each, of) for each in operations]
            whole = _ARRAYS[of][0] is not np.float64
            for i, value in enumerate(values):
                _check_number(f"The {of} of operation {i}", value, whole=whole)
            return np.array(values, np.int64 if whole else np.float64)

        for i, each in enumerate(operations):
            for before in each.after:
                _check_number(f"What operation {i} comes after", before)

        return cls(
            kind=np.array([kinds.index(each.kind) for each in operations], np.int8),
            collective=np.array([collectives.index(each.collective) - 1 for each in operations], np.int8),
            dep_start=np.cumsum([0, *(len(each.after) for each in operations)]),
            dep=np.array([before for each in operations for before in each.after], np.int64),
            groups=tuple(tuple(ranks) for ranks in groups),
            names=names if any(names) else (),
            **{
                of: column(of)
                for of in ("rank", "stream", "duration_ps", "n_bytes", "flops", "group", "peer", "tag", "link")
            },
        )

    def __len__(self) -> int:
        return int(self.rank.size)

    def describe(self, i: int) -> str:
        """Return how messages call an operation.

        Parameters
        ----------
        i : int
            Its number.
        """
        kind, peer = int(self.kind[i]), int(self.peer[i])
        what = COLLECTIVES[self.collective[i]] if kind == COLLECTIVE and self.collective[i] >= 0 else KINDS[kind]
        if kind == SEND and peer >= 0:
            what += f" to rank {peer}, tag {self.tag[i]}"
        elif kind == RECEIVE:
            what += f" from rank {peer}, tag {self.tag[i]}"
        elif kind == COLLECTIVE:
            what += f" of {self.n_bytes[i]} bytes in group {self.group[i]}"
        named = f" {self.names[i]!r}" if self.names and self.names[i] else ""
        return f"operation {i}{named} ({what}; rank {self.rank[i]}, stream {self.stream[i]})"

    def after(self, i: int) -> tuple[int, ...]:
        """Return the numbers of the operations that must have ended before operation ``i`` starts.

        Parameters
        ----------
        i : int
        """
        return tuple(self.dep[self.dep_start[i] : self.dep_start[i + 1]].tolist())

    @cached_property
    def steps(self) -> Steps:
        """The arrays that the executor takes."""
        return Steps(
            self.rank, self.stream, self.kind, self.duration_ps, self.n_bytes, self.collective, self.group, self.peer,
            self.tag, self.link, self.dep_start, self.dep,
            np.cumsum([0, *map(len, self.groups)]).astype(np.int64),
            np.array([rank for ranks in self.groups for rank in ranks], np.int64),
        )  # fmt: skip

    def prepared(self) -> PreparedSteps:
        """Return the graph laid out for the executor, which can run it any number of times.

        Raises
        ------
        BadValueError
            For an operation without a duration, or durations whose sum has no place in 62 bits.
        """
        unpriced = np.flatnonzero(self.duration_ps == UNPRICED)
        if unpriced.size:
            raise BadValueError(
                f"{self.describe(int(unpriced[0]))} has no duration, so the graph cannot run.",
                given=f"{unpriced.size} of {len(self)} operations", allowed="a duration in ps for each",
                hint="give each a duration_ps, or price the graph on a platform",
            )  # fmt: skip
        if sum(self.duration_ps.tolist()) > MOST_PS:
            raise BadValueError("The durations of a step graph are too long to be added up.", allowed="2^62 ps in all")
        return PreparedSteps(self.steps, self.describe)

    def times(self) -> StepTimes:
        """Return when every operation starts and ends.

        Raises
        ------
        BadValueError
            As :meth:`prepared`.
        DeadlockError
            If operations wait for each other, or for what never comes.
        """
        return self.prepared().times()

    def _check_dependencies(self) -> None:
        n, start = len(self), self.dep_start
        if start[0] != 0 or start[-1] != self.dep.size or (np.diff(start) < 0).any():
            raise BadValueError(
                "The array dep_start of a step graph does not divide dep.", given=start,
                allowed=f"rising from 0 to {self.dep.size}",
            )  # fmt: skip
        bad = np.flatnonzero((self.dep < 0) | (self.dep >= n))
        if bad.size:
            i = int(np.searchsorted(start, bad[0], side="right")) - 1
            raise BadValueError(
                f"{self.describe(i)} depends on an operation that is not in the graph.", given=int(self.dep[bad[0]]),
                allowed=f"0 to {n - 1}",
            )  # fmt: skip

    def _check_kinds(self) -> None:
        """Refuse what has a partner, a group or a link and may not, or the other way round."""
        kind = self.kind
        for bad, why, allowed in (
            ((kind == COLLECTIVE) & (self.collective < 0), "does not say which collective it is",
             ", ".join(COLLECTIVES)),
            ((kind == COLLECTIVE) != (self.group >= 0), "has a group and is no collective, or the other way round",
             "a group for collectives, -1 for others"),
            ((kind == RECEIVE) & (self.peer < 0), "comes from no rank", "the sender's rank as peer"),
            ((kind != COLLECTIVE) & (self.collective >= 0), "is no collective and says which it is", "-1 for others"),
            ((kind != SEND) & (kind != RECEIVE) & (self.peer >= 0), "is no message and has a peer", "-1 as peer"),
            ((self.link >= 0) & (kind != SEND) & (kind != COLLECTIVE), "takes a link and moves nothing",
             "links for sends and collectives"),
        ):  # fmt: skip
            if bad.any():
                raise BadValueError(f"{self.describe(int(np.argmax(bad)))} {why}.", allowed=allowed)

    def _check_groups(self) -> None:
        for number, ranks in enumerate(self.groups):
            for rank in ranks:
                _check_number(f"A rank of group {number}", rank)
            if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0:
                raise BadValueError(
                    f"Group {number} is no set of ranks.", given=ranks, allowed="one rank or more, each once"
                )
        wrong = self.group >= len(self.groups)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise BadValueError(
                f"{self.describe(i)} is of a group that there is not.", given=int(self.group[i]),
                allowed=f"a number below {len(self.groups)}",
            )  # fmt: skip
        members = {(number, rank) for number, ranks in enumerate(self.groups) for rank in ranks}
        at = np.flatnonzero(self.group >= 0)
        for i, key in zip(at.tolist(), zip(self.group[at].tolist(), self.rank[at].tolist(), strict=True), strict=True):
            if key not in members:
                raise BadValueError(
                    f"{self.describe(i)} is of a group that its rank is not in.", given=f"rank {key[1]}",
                    allowed="rank " + ", ".join(map(str, self.groups[key[0]])),
                )  # fmt: skip

    def _check_cycles(self) -> None:
        n = len(self)
        # Without a dependency on a later number, numbers are an order in which all can run.
        if not (self.dep >= np.repeat(np.arange(n), np.diff(self.dep_start))).any():
            return
        none, alone = np.full(n, -1, np.int32), np.zeros(n, np.int8)
        plain = self.steps._replace(
            kind=alone, duration_ps=np.zeros(n, np.int64), group=none, peer=none, link=none, collective=alone
        )
        cycle = PreparedSteps(plain, self.describe).cycle()
        if cycle:
            raise BadValueError(
                f"The operations of a step graph wait for each other in a cycle, "
                f"{self.describe(cycle[0])} among them.",
                given=" -> ".join(map(str, [*cycle, cycle[0]])), allowed="dependencies and streams without one",
            )  # fmt: skip


_HIGHEST = {"kind": HOST, "collective": len(COLLECTIVES) - 1}
# Array to (type, what it holds where it is left out, least value).
_ARRAYS: dict[str, tuple[type[Any], float, float]] = {
    "rank": (np.int32, 0, 0), "stream": (np.int32, 0, 0), "kind": (np.int8, 0, 0),
    "duration_ps": (np.int64, 0, UNPRICED), "dep_start": (np.int64, 0, 0), "dep": (np.int64, 0, -(2**63)),
    "n_bytes": (np.int64, 0, 0), "flops": (np.float64, 0.0, 0.0), "group": (np.int32, -1, -1),
    "collective": (np.int8, -1, -1), "peer": (np.int32, -1, -1), "tag": (np.int64, 0, -(2**63)),
    "link": (np.int32, -1, -1),
}  # fmt: skip


def _check_number(what: str, value: object, *, whole: bool = True) -> None:
    right = isinstance(value, int | np.integer) or (not whole and isinstance(value, float | np.floating))
    if isinstance(value, bool) or not right or (whole and not -(2**63) <= value < 2**63):  # type: ignore[operator]
        raise BadValueError(
            f"{what} is no {'whole ' if whole else ''}number of 64 bits.", given=value,
            allowed="a whole number" if whole else "a number",
        )  # fmt: skip


def _check_numbers(graph: StepGraph, key: str, given: npt.NDArray[Any], dtype: type[Any], low: float) -> None:
    """Refuse numbers that are too small, too large for their type, or no numbers."""
    whole = dtype is not np.float64
    if given.size and (given.dtype.kind not in ("iu" if whole else "iuf")):
        raise BadValueError(
            f"The array {key} of a step graph holds {'whole ' if whole else ''}numbers.", given=str(given.dtype),
            allowed=np.dtype(dtype).name,
        )  # fmt: skip
    # Sizes and seconds beyond 2^62 have no place in sums.
    most = np.iinfo(dtype).max if whole else np.inf
    high = _HIGHEST.get(key, most if low < -1 or not whole else min(most, MOST_PS))
    bad = ~((given >= low) & (given <= high) & np.isfinite(given))
    if bad.any():
        i = int(np.argmax(bad))
        raise BadValueError(
            f"The array {key} of a step graph holds what means nothing, at operation {i}.", given=given[i].item(),
            allowed=f"{low:g} or more" + ("" if np.isinf(high) else f", at most {high}"), where=f"{key}[{i}]",
        )  # fmt: skip
