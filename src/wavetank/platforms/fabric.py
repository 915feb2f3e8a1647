"""Fabrics: levels that connect ranks to nodes, nodes to racks, racks to a system, and what collectives take on them.

A level connects ``size`` units of the level below: the first one ranks, the next one what the first connects, and so
on.  A message of n bytes takes alpha + n / bytes_per_s of the level at which sender and receiver meet.  A collective is
a sequence of rounds, in each of which every rank sends one message at most; a round takes as long as its slowest
message.  Where the links into a level are shared, the messages that leave one unit in one round divide the bandwidth.

Algorithms, for n bytes on p ranks:

ring                rounds between neighbours: p - 1 of n / p bytes, an all-reduce twice as many
tree                a binomial tree: log2(p) rounds of n bytes, up and down
doubling            recursive doubling: partners at distances 1, 2, 4, ...; of an all-reduce with n bytes in each round
halving-doubling    a reduce-scatter by recursive halving, then an all-gather by recursive doubling
hierarchical        a ring on every level: reduce-scatter upward, all-gather downward, ever fewer bytes at higher levels

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.

Differs from the source:

1. Rounds are synchronous: nothing of a round begins before the one before it has ended everywhere.
2. Sums cost nothing.
3. Doubling and halving need a power of two of ranks.
4. Of the links on a message's way only the one into the level where both sides meet can be shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import PS_PER_S
from wavetank.sim.steps import COLLECTIVE, COMPUTE, RECEIVE, SEND
from wavetank.workloads.operations import COLLECTIVES, MOST_PS, UNPRICED, Operation, StepGraph

_Longs = npt.NDArray[np.int64]
_MOST_RANKS = 2**31 - 1

# What each algorithm can do.
ALGORITHMS = {
    "ring": ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    "tree": ("all-reduce", "reduce", "broadcast", "barrier"),
    "doubling": ("all-reduce", "all-gather", "barrier"),
    "halving-doubling": ("all-reduce", "reduce-scatter"),
    "hierarchical": ("all-reduce", "all-gather", "reduce-scatter"),
}


@dataclass(frozen=True, kw_only=True)
class Level:
    """One level of a fabric.

    Parameters
    ----------
    name : str
        ``node``, ``switch``, ``rack``, ``system``, ...
    size : int
        Units of the level below that it connects.
    alpha_s : float
        What a message takes before its first byte, s.
    bytes_per_s : float
        Of the link by which a unit sends into this level.
    shared : bool, default False
        Whether all ranks of a unit share that link; otherwise each has one of its own.
    links : int, default 1
        Of a shared link, the equal parts that it consists of, as the network cards of a node: neighbours in number have
        one in common, and a message takes one.
    """

    name: str
    size: int
    alpha_s: float
    bytes_per_s: float
    shared: bool = False
    links: int = 1

    def __post_init__(self) -> None:
        for name, whole in (("size", self.size), ("links", self.links)):
            if isinstance(whole, bool) or not isinstance(whole, int) or not 1 <= whole <= 10**7:
                raise BadValueError(f"The level {self.name!r} connects some units.", given=whole,
                                    allowed="1 to 10^7, a whole number", where=name)  # fmt: skip
        if self.links > 1 and not self.shared:
            raise BadValueError(f"Links of the level {self.name!r} that nobody shares have no parts.", given=self.links,
                                allowed="1, or shared = true", where="links")  # fmt: skip
        # Written so that nan fails too.
        for name, low, high in (("alpha_s", 0.0, 1e3), ("bytes_per_s", 1.0, 1e18)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise BadValueError(f"This is no figure of the level {self.name!r}.", given=value,
                                    allowed=f"{low:g} to {high:g}", where=name)  # fmt: skip


class Round(NamedTuple):
    """Messages that are under way at once.

    Parameters
    ----------
    senders, receivers : ndarray of int64, shape (m,)
        Ranks.
    n_bytes : int
        Of each message.
    times : int
        How often the round is repeated.
    """

    senders: _Longs
    receivers: _Longs
    n_bytes: int
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What connects ranks 0, 1, ...; neighbours in number share the lowest level.

    Parameters
    ----------
    levels : tuple of Level
        From the lowest to the highest.

    Examples
    --------
    >>> node = Level(name="node", size=8, alpha_s=1e-6, bytes_per_s=400e9)
    >>> rack = Level(name="rack", size=4, alpha_s=5e-6, bytes_per_s=50e9, shared=True)
    >>> fabric = Fabric(levels=(node, rack))
    >>> fabric.ranks, fabric.level_between(0, 7).name, fabric.level_between(7, 8).name
    (32, 'node', 'rack')
    >>> fabric.collective_ps("all-reduce", range(8), 8_000_000) / 1e6
    49.0
    """

    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not self.levels or not all(isinstance(level, Level) for level in self.levels):
            raise BadValueError("A fabric has levels.", given=self.levels, allowed="a tuple of Level, lowest first")
        ranks = math.prod(level.size for level in self.levels)
        if ranks > _MOST_RANKS:
            raise BadValueError("A fabric connects no more ranks than have a number.", given=ranks,
                                allowed=f"{_MOST_RANKS} or less")  # fmt: skip

    @property
    def ranks(self) -> int:
        """How many ranks it connects."""
        return int(self._strides[-1])

    @cached_property
    def _strides(self) -> _Longs:
        """Ranks of a unit below each level, and of the whole fabric."""
        return np.cumprod([1, *(level.size for level in self.levels)])

    def _meet(self, senders: npt.ArrayLike, receivers: npt.ArrayLike) -> npt.NDArray[np.intp]:
        one, other = np.atleast_1d(senders), np.atleast_1d(receivers)
        for ranks in (one, other):
            if ranks.size and not (ranks.min() >= 0 and ranks.max() < self.ranks):
                raise BadValueError("There is no such rank on the fabric.", given=f"{ranks.min()} to {ranks.max()}",
                                    allowed=f"0 to {self.ranks - 1}")  # fmt: skip
        units = self._strides[1:, None]
        return np.argmax(one // units == other // units, axis=0)

    def level_between(self, sender: int, receiver: int) -> Level:
        """Return the level at which two ranks meet.

        Parameters
        ----------
        sender, receiver : int
        """
        return self.levels[int(self._meet(sender, receiver)[0])]

    def message_ps(self, sender: int, receiver: int, n_bytes: int) -> int:
        """Return what a message takes alone, ps.

        Parameters
        ----------
        sender, receiver : int
        n_bytes : int
        """
        return self.round_ps(Round(np.array([sender]), np.array([receiver]), n_bytes))

    def link_of(self, sender: int, receiver: int) -> int:
        """Return the number of the shared link that a message takes, -1 for none.

        Parameters
        ----------
        sender, receiver : int
        """
        level = int(self._meet(sender, receiver)[0])
        return self._links(np.array([sender]), np.array([level])).item()

    def _links(self, senders: _Longs, levels: npt.NDArray[np.intp]) -> _Longs:
        shared = np.array([level.shared for level in self.levels])
        parts = np.array([level.links for level in self.levels])
        # Links of a level are numbered by unit, after those of the levels below.
        first = np.cumsum([0, *(self.ranks // self._strides[:-1] * parts)])[:-1]
        unit, place = np.divmod(senders, self._strides[levels])
        own = unit * parts[levels] + place * parts[levels] // self._strides[levels]
        return np.where(shared[levels], first[levels] + own, -1)

    def round_ps(self, one: Round) -> int:
        """Return how long the messages of one round take, which leave at the same time, ps.

        Parameters
        ----------
        one : Round
            Its ``times`` does not count.

        Raises
        ------
        BadValueError
            For a size below 0 or that is no whole number, and for ranks that are not on the fabric.
        """
        _check_size(one.n_bytes)
        levels = self._meet(one.senders, one.receivers)
        links = self._links(one.senders, levels)
        _, link_at, used = np.unique(links, return_inverse=True, return_counts=True)
        at_once = np.where(links < 0, 1, used[link_at])
        longest = 0
        for level in np.unique(levels):
            figures = self.levels[level]
            most = int(at_once[levels == level].max())
            took_ps = figures.alpha_s * PS_PER_S + most * figures.links * one.n_bytes / figures.bytes_per_s * PS_PER_S
            longest = max(longest, int(took_ps + 0.5))
        return longest

    def collective_ps(self, collective: str, ranks: Sequence[int], n_bytes: int, algorithm: str = "ring") -> int:
        """Return what a collective takes, ps.

        Parameters
        ----------
        collective : str
            One that the algorithm has in :data:`ALGORITHMS`.
        ranks : sequence of int
            Members, in the order of a ring or tree.
        n_bytes : int
            Of the whole: what each member holds before an all-reduce, reduce-scatter, reduce or all-to-all, and after
            an all-gather or broadcast.
        algorithm : str

        Raises
        ------
        BadValueError
            For an algorithm without this collective, ranks that it cannot serve, or a size below 0.
        """
        return sum(
            one.times * self.round_ps(one) for one in self.rounds(collective, ranks, n_bytes, algorithm=algorithm)
        )

    def rounds(
        self, collective: str, ranks: Sequence[int], n_bytes: int, *, algorithm: str = "ring"
    ) -> Iterator[Round]:
        """Yield the rounds of a collective, of which each member sends one message at most in each.

        Parameters
        ----------
        collective, ranks, n_bytes, algorithm
            As for :meth:`collective_ps`.
        """
        if algorithm not in ALGORITHMS or collective not in ALGORITHMS[algorithm]:
            raise BadValueError(
                "There is no such collective by this algorithm.", given=f"{collective} by {algorithm}",
                allowed=[f"{name}: {', '.join(able)}" for name, able in ALGORITHMS.items()],
            )  # fmt: skip
        _check_size(n_bytes)
        members = np.asarray(ranks)
        if members.size < 1 or members.dtype.kind not in "iu" or np.unique(members).size != members.size:
            raise BadValueError("A collective has members, each once.", given=ranks,
                                allowed="one rank or more, whole numbers")  # fmt: skip
        members = members.astype(np.int64)
        self._meet(members, members)
        if members.size == 1:
            return iter(())
        makers = {"ring": _ring, "tree": _tree, "doubling": _doubling, "halving-doubling": _halving_doubling}
        if algorithm == "hierarchical":
            return self._hierarchical(collective, members, n_bytes)
        return iter(makers[algorithm](collective, members, n_bytes))

    def _hierarchical(self, collective: str, members: _Longs, n_bytes: int) -> Iterator[Round]:
        p, first = members.size, int(members[0])
        whole = np.flatnonzero(self._strides == p)
        if not whole.size or first % p or not np.array_equal(members, np.arange(first, first + p)):
            raise BadValueError(
                "A hierarchical collective is one of whole units of a level.", given=members.tolist(),
                allowed=f"{', '.join(map(str, self._strides[1:]))} neighbours in number",
            )  # fmt: skip
        up = []
        for level in range(int(whole[0])):
            stride, size = int(self._strides[level]), self.levels[level].size
            if size > 1:
                at = members // stride % size
                receivers = members + ((at + 1) % size - at) * stride
                up.append(Round(members, receivers, -(-n_bytes // (stride * size)), size - 1))
        if collective != "all-gather":
            yield from up
        if collective != "reduce-scatter":
            yield from reversed(up)

    def priced(self, graph: StepGraph, *, flops_per_s: float, algorithm: str = "ring") -> StepGraph:
        """Return a graph in which the operations without a duration have that of this fabric.

        Sends take the shared link of their way; a collective takes none, for its formula counts what shares a link.

        Parameters
        ----------
        graph : StepGraph
        flops_per_s : float
            What a rank computes.
        algorithm : str
            Of all collectives.

        Raises
        ------
        BadValueError
            For a rate of nothing, what has neither duration nor size, more than 2^62 ps, and as :meth:`collective_ps`.
        """
        if not 0 < flops_per_s < np.inf:
            raise BadValueError("A rank computes at some rate.", given=flops_per_s, allowed="above 0",
                                where="flops_per_s")  # fmt: skip
        duration_ps, link = graph.duration_ps.copy(), graph.link.copy()
        known: dict[tuple[int, int, int], int] = {}
        for i in np.flatnonzero(graph.duration_ps == UNPRICED).tolist():
            kind, n_bytes = int(graph.kind[i]), int(graph.n_bytes[i])
            if kind == COMPUTE:
                took_ps: float = float(graph.flops[i]) / flops_per_s * PS_PER_S + 0.5
            elif kind == SEND and graph.peer[i] >= 0:
                took_ps = self.message_ps(int(graph.rank[i]), int(graph.peer[i]), n_bytes)
                link[i] = self.link_of(int(graph.rank[i]), int(graph.peer[i]))
            elif kind == RECEIVE:
                took_ps = 0
            elif kind == COLLECTIVE:
                key = int(graph.collective[i]), int(graph.group[i]), n_bytes
                if key not in known:
                    known[key] = self.collective_ps(COLLECTIVES[key[0]], graph.groups[key[1]], n_bytes, algorithm)
                took_ps = known[key]
            else:
                raise BadValueError(f"{graph.describe(i)} has no price on a fabric.",
                                    allowed="a duration for host operations, and for sends to no rank")  # fmt: skip
            if took_ps > MOST_PS:
                raise BadValueError(f"{graph.describe(i)} takes longer than a step graph can.", given=took_ps,
                                    allowed="2^62 ps at most")  # fmt: skip
            duration_ps[i] = int(took_ps)
        return replace(graph, duration_ps=duration_ps, link=link)

    def spelled_out(self, rounds: Iterator[Round]) -> StepGraph:
        """Return the rounds of a collective as sends and receives: each rank sends when its last message has come.

        Parameters
        ----------
        rounds : iterator of Round
            From :meth:`rounds`.
        """
        operations: list[Operation] = []
        came: dict[int, int] = {}
        for one in rounds:
            for _ in range(one.times):
                pairs = list(zip(one.senders.tolist(), one.receivers.tolist(), strict=True))
                for sender, receiver in pairs:
                    operations.append(
                        Operation(
                            rank=sender, stream=0, kind="send", peer=receiver, n_bytes=one.n_bytes,
                            duration_ps=self.message_ps(sender, receiver, one.n_bytes),
                            link=self.link_of(sender, receiver), after=(came[sender],) if sender in came else (),
                        )
                    )  # fmt: skip
                for sender, receiver in pairs:
                    came[receiver] = len(operations)
                    operations.append(
                        Operation(rank=receiver, stream=1, kind="receive", peer=sender, n_bytes=one.n_bytes)
                    )
        return StepGraph.of(operations)


def _check_size(n_bytes: int) -> None:
    if isinstance(n_bytes, bool) or not isinstance(n_bytes, int | np.integer) or not 0 <= n_bytes <= MOST_PS:
        raise BadValueError("What is sent has a size.", given=n_bytes, allowed="0 to 2^62 bytes, a whole number",
                            where="n_bytes")  # fmt: skip


def _ring(collective: str, members: _Longs, n_bytes: int) -> list[Round]:
    p = members.size
    if collective == "all-to-all":
        # In round k each sends to the one k places ahead.
        return [Round(members, np.roll(members, -k), -(-n_bytes // p)) for k in range(1, p)]
    return [Round(members, np.roll(members, -1), -(-n_bytes // p), (p - 1) * (2 if collective == "all-reduce" else 1))]


def _tree(collective: str, members: _Longs, n_bytes: int) -> list[Round]:
    down, distance = [], 1
    while distance < members.size:
        have = np.arange(min(distance, members.size - distance))
        down.append(Round(members[have], members[have + distance], n_bytes))
        distance *= 2
    up = [Round(one.receivers, one.senders, n_bytes) for one in reversed(down)]
    return {"broadcast": down, "reduce": up}.get(collective, up + down)


def _doubling(collective: str, members: _Longs, n_bytes: int) -> list[Round]:
    p = _power_of_two(members)
    at, found = np.arange(p), []
    for k in range(p.bit_length() - 1):
        size = -(-n_bytes // p) << k if collective == "all-gather" else n_bytes
        found.append(Round(members, members[at ^ 1 << k], size))
    return found


def _halving_doubling(collective: str, members: _Longs, n_bytes: int) -> list[Round]:
    p = _power_of_two(members)
    at = np.arange(p)
    # The longest way with the fewest bytes.
    halving = [Round(members, members[at ^ 1 << k], -(-n_bytes // (2 << k))) for k in range(p.bit_length() - 1)]
    return halving + halving[::-1] if collective == "all-reduce" else halving


def _power_of_two(members: _Longs) -> int:
    p = int(members.size)
    if p & (p - 1):
        raise BadValueError("Recursive doubling and halving need a power of two of ranks.", given=p,
                            allowed="2, 4, 8, ...", hint="the ring serves any number")  # fmt: skip
    return p
