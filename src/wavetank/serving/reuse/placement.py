"""Which worker keeps which item: a balanced partition of the graph of items that are asked for together.

The hottest items are on every worker.  The others are put one after another where most of what they are asked for
with already is, times the room that is left there (linear deterministic greedy), and then moved and exchanged while
that keeps more weight within workers.  No worker gets more bytes than it has room for, and no more heat than a share
above the mean while any other has room; what fits nowhere is kept nowhere.

References
----------
I. Stanton, G. Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012, for the greedy; G.
Karypis, V. Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM J. Sci. Comput.
20(1), 1998, for coarsening by heavy edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from wavetank.errors import BadValueError, unknown_name
from wavetank.sim.rng import stream

Ints = NDArray[np.int64]

RULES = ("balanced", "multilevel", "random")
NOWHERE = -1
_PASSES = 4
# Coarse items for each worker at which coarsening ends.
_COARSE = 20


class Placement(NamedTuple):
    """Where items are kept.

    Attributes
    ----------
    home : int64 array (items,)
        The one worker, or -1: nowhere, or everywhere.
    everywhere : bool array (items,)
    """

    home: Ints
    everywhere: NDArray[np.bool_]


class Room(NamedTuple):
    """What workers can take.

    Attributes
    ----------
    workers : int
    size : int
        Room of each, in the unit of the items' sizes.
    heat : int
        Most heat of each, while there is another with room.
    """

    workers: int
    size: int
    heat: int


def together(items: int, asked: Sequence[Ints]) -> Any:
    """Return how often items were asked for together.

    Parameters
    ----------
    items : int
    asked : sequence of int64 array (candidates,)
        Of each request; an item that is named twice counts once.

    Returns
    -------
    scipy.sparse.csr_array, int64 (items, items)
        Symmetric, nothing on the diagonal.
    """
    once = [np.unique(each) for each in asked]
    ends = np.concatenate([[0], np.cumsum([len(each) for each in once])])
    columns = np.concatenate([np.zeros(0, np.int64), *once])
    found = sparse.csr_array((np.ones(len(columns), np.int64), columns, ends), shape=(len(once), items))
    graph = (found.T @ found).tocsr()
    graph.setdiag(0)
    graph.eliminate_zeros()
    return graph


def place(
    graph: Any, sizes: Ints, heat: Ints, *, workers: int, room: int, slack: float = 0.05, replicas: float = 0.01,
    rule: str = "balanced", seed: int = 0,
) -> Placement:  # fmt: skip
    """Place items.

    Parameters
    ----------
    graph : scipy.sparse.csr_array (items, items)
        Symmetric weights of items that are asked for together.
    sizes : int64 array (items,)
        In tokens or bytes, as ``room``.
    heat : int64 array (items,)
        How often each is asked for.
    workers : int
    room : int
        Of a worker.
    slack : float
        Heat that a worker may have above the mean, as a share of it.
    replicas : float
        Share of the items, the hottest, that every worker has; fewer where they do not fit.
    rule : str
        ``balanced``: greedy and refined; ``multilevel``: coarsened first, as METIS does; ``random``.
    seed : int
        Of ``random``.

    Raises
    ------
    BadValueError
        For no worker, a room below 0, or sizes below 1.
    """
    if rule not in RULES:
        raise unknown_name("placement", rule, RULES)
    if workers < 1 or room < 0 or not 0.0 <= replicas <= 1.0 or not slack >= 0.0 or (len(sizes) and sizes.min() < 1):
        raise BadValueError(
            "Items cannot be placed so.", given=f"{workers} workers, room {room}, slack {slack}, replicas {replicas}",
            allowed="workers >= 1, room and slack >= 0, replicas from 0 to 1, sizes >= 1",
        )  # fmt: skip
    items = len(sizes)
    hottest = np.lexsort((np.arange(items), -heat))[: int(replicas * items)]
    hottest = hottest[np.cumsum(sizes[hottest]) <= room]
    everywhere = np.zeros(items, bool)
    everywhere[hottest] = True
    home, rest = np.full(items, NOWHERE, np.int64), np.flatnonzero(~everywhere)
    left = Room(workers, room - int(sizes[hottest].sum()), int((1.0 + slack) * heat[rest].sum() / workers))
    if rule == "random":
        home[rest] = _random(sizes[rest], left, seed)
    else:
        part = graph[rest][:, rest].tocsr()
        levels = list(_coarser(part, sizes[rest], heat[rest], left)) if rule == "multilevel" else []
        home[rest] = _partition(part, sizes[rest], heat[rest], left, levels)
    return Placement(home, everywhere)


def cut(graph: Any, home: Ints) -> int:
    """Return the weight between items that are not at one worker; what is nowhere is apart from everything.

    Parameters
    ----------
    graph : scipy.sparse.csr_array (items, items)
    home : int64 array (items,)
    """
    pairs = graph.tocoo()
    one, other = home[pairs.row], home[pairs.col]
    return int(pairs.data[(one != other) | (one < 0)].sum()) // 2


def _random(sizes: Ints, room: Room, seed: int) -> Ints:
    draws, left = stream(seed, "random placement"), np.full(room.workers, room.size, np.int64)
    home = np.full(len(sizes), NOWHERE, np.int64)
    for item in draws.permutation(len(sizes)).tolist():
        able = np.flatnonzero(left >= sizes[item])
        if len(able):
            home[item] = able[draws.integers(len(able))]
            left[home[item]] -= sizes[item]
    return home


def _partition(graph: Any, sizes: Ints, heat: Ints, room: Room, levels: Sequence[tuple[Any, Ints, Ints, Ints]]) -> Ints:
    """Partition the coarsest graph and refine level by level; what is nowhere is tried again at each level."""
    graphs = [(graph, sizes, heat), *((each[0], each[1], each[2]) for each in levels)]
    home = np.full(len(graphs[-1][1]), NOWHERE, np.int64)
    for number in range(len(graphs) - 1, -1, -1):
        state = _State(*graphs[number], room, home)
        state.greedy()
        state.refine()
        # Exchanges leave room where there was none.
        state.greedy()
        home = state.home if number == 0 else state.home[levels[number - 1][3]]
    return home


def _coarser(graph: Any, sizes: Ints, heat: Ints, room: Room) -> Iterator[tuple[Any, Ints, Ints, Ints]]:
    """Yield smaller graphs, each with sizes, heat, and the coarse item of each item of the graph before it."""
    while len(sizes) > _COARSE * room.workers:
        count, of = len(sizes), np.full(len(sizes), NOWHERE, np.int64)
        made = 0
        for item in np.lexsort((np.arange(count), np.diff(graph.indptr))).tolist():
            if of[item] >= 0:
                continue
            near = graph.indices[graph.indptr[item] : graph.indptr[item + 1]]
            weights = graph.data[graph.indptr[item] : graph.indptr[item + 1]]
            fits = (of[near] < 0) & (sizes[near] + sizes[item] <= room.size // 4)
            fits &= heat[near] + heat[item] <= max(room.heat // 4, 1)
            of[item] = made
            if fits.any():
                near, weights = near[fits], weights[fits]
                # By weight for its size, so that small and loosely tied items do not grow into one.
                of[near[np.argmax(weights / (sizes[near] + sizes[item]))]] = made
            made += 1
        if made > 0.95 * count:
            return
        onto = sparse.csr_array((np.ones(count, np.int64), (np.arange(count), of)), shape=(count, made))
        graph = (onto.T @ graph @ onto).tocsr()
        graph.setdiag(0)
        graph.eliminate_zeros()
        sizes, heat = np.bincount(of, sizes, made).astype(np.int64), np.bincount(of, heat, made).astype(np.int64)
        yield graph, sizes, heat, of


class _State:
    """A partition that is being made: what each worker has, and what each item is tied to at each worker."""

    def __init__(self, graph: Any, sizes: Ints, heat: Ints, room: Room, home: Ints) -> None:
        self.graph, self.sizes, self.heat, self.room, self.home = graph, sizes, heat, room, home.copy()
        there = np.flatnonzero(home >= 0)
        self.used = np.bincount(home[there], sizes[there], room.workers).astype(np.int64)
        self.warm = np.bincount(home[there], heat[there], room.workers).astype(np.int64)
        shape = (len(home), room.workers)
        onto = sparse.csr_array((np.ones(len(there), np.int64), (there, home[there])), shape=shape)
        self.tied = np.ascontiguousarray((graph @ onto).toarray())

    def put(self, item: int, worker: int) -> None:
        """Move an item, or put it somewhere for the first time."""
        before = int(self.home[item])
        span = slice(self.graph.indptr[item], self.graph.indptr[item + 1])
        near, weights = self.graph.indices[span], self.graph.data[span]
        if before >= 0:
            self.used[before] -= self.sizes[item]
            self.warm[before] -= self.heat[item]
            self.tied[near, before] -= weights
        self.used[worker] += self.sizes[item]
        self.warm[worker] += self.heat[item]
        self.tied[near, worker] += weights
        self.home[item] = worker

    def greedy(self) -> None:
        """Put the items that are nowhere, the hottest first."""
        order = np.flatnonzero(self.home < 0)
        for item in order[np.lexsort((order, -self.heat[order]))].tolist():
            fits = self.used + self.sizes[item] <= self.room.size
            cool = fits & (self.warm + self.heat[item] <= self.room.heat)
            able = np.flatnonzero(cool if cool.any() else fits)
            if not len(able):
                continue
            # Whole numbers, so that equal scores are equal on every machine.
            score = self.tied[item, able] * (self.room.size - self.used[able])
            if not cool.any():
                score = -self.warm[able]
            self.put(item, int(able[np.lexsort((self.used[able], self.warm[able], -score))[0]]))

    def refine(self) -> None:
        """Move items to where they are tied more, or exchange two, while there is anything to win."""
        for _ in range(_PASSES):
            if not sum(self._improve(item) for item in np.flatnonzero(self.home >= 0).tolist()):
                return

    def _improve(self, item: int) -> bool:
        own, ties = int(self.home[item]), self.tied[item]
        better = np.flatnonzero(ties > ties[own])
        for worker in better[np.argsort(-ties[better], kind="stable")][:4].tolist():
            if (self.used[worker] + self.sizes[item] <= self.room.size
                    and self.warm[worker] + self.heat[item] <= self.room.heat):  # fmt: skip
                self.put(item, worker)
                return True
            if self._exchange(item, own, worker):
                return True
        return False

    def _exchange(self, item: int, own: int, worker: int) -> bool:
        others = np.flatnonzero(self.home == worker)
        bytes_, heat = self.sizes[others] - self.sizes[item], self.heat[others] - self.heat[item]
        fits = (self.used[own] + bytes_ <= self.room.size) & (self.used[worker] - bytes_ <= self.room.size)
        for one, change in ((own, heat), (worker, -heat)):
            fits &= self.warm[one] + change <= max(self.room.heat, int(self.warm[one]))
        span = slice(self.graph.indptr[item], self.graph.indptr[item + 1])
        ties = np.zeros(len(self.home), np.int64)
        ties[self.graph.indices[span]] = self.graph.data[span]
        won = self.tied[item, worker] - self.tied[item, own] + self.tied[others, own] - self.tied[others, worker]
        won = np.where(fits, won - 2 * ties[others], 0)
        if not len(won) or won.max() <= 0:
            return False
        other = int(others[np.argmax(won)])
        self.put(item, worker)
        self.put(other, own)
        return True
