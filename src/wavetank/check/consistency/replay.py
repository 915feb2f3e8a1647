"""Is there an order of steps, obeying known precedences, that one copy of some registers could have answered?

Where values come again, asking who wrote what was read multiplies the work; here nobody asks.  The search applies
steps to the registers themselves, one after another, and never searches again below a set of applied steps and a
content that were met before.  What changes nothing is applied as soon as it may be, and of steps that do the same and
that nothing waits for, only the first is tried: neither loses an order that matters.

Source: P. Gibbons, E. Korach, "Testing Shared Memories", SIAM Journal on Computing 26(4), 1997 (the question); G. Lowe,
"Testing for Linearizability", Concurrency and Computation 29(4), 2017 (the memory).

Differs from the source:
1. Precedences are any partial order, not real time or sessions alone.
2. The memory holds 128-bit fingerprints; an order found is replayed before it is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wavetank.check.consistency.memory import larger, remember, twins, zobrist
from wavetank.check.consistency.orders import Solution, by_tail
from wavetank.errors import WavetankError
from wavetank.sim.compiled import compiled
from wavetank.sim.streams import mix

# What a step does to its register: it needs a value, needs any other value, or puts a value.
NEED, NEED_OTHER, PUT = range(3)
_HOLDS, _FAILS, _PAUSE, _FULL = range(4)
_TRIED_BETWEEN_LOOKS = 1 << 17
_DEPTH, _ENTRIES, _LEFT = range(3)


@dataclass(frozen=True)
class Step:
    """One effect of a node on one register.

    Parameters
    ----------
    kind : int
        ``NEED`` a value, ``NEED_OTHER`` than a value, or ``PUT`` a value.
    key : str
    value : hashable
        Needed, not to be found, or put.
    """

    kind: int
    key: str
    value: Hashable


@dataclass
class Replay:
    """A question about one order.

    Parameters
    ----------
    steps : list of tuple of Step
        Of each node; none for a node that only carries precedences.
    edges : list of (int, int)
        The first node comes before the second.
    optional : list of bool
        Nodes that may be left out, and that nothing waits for.
    rank : sequence of float
        Which nodes to try first.
    initial : hashable
        What all registers hold at first.
    """

    steps: list[tuple[Step, ...]]
    edges: list[tuple[int, int]] = field(default_factory=list)
    optional: list[bool] = field(default_factory=list)
    rank: Sequence[float] = ()
    initial: Hashable = None


@compiled
def _fits(node: int, starts: NDArray[np.int64], rows: NDArray[np.int64], held: NDArray[np.int64]) -> bool:
    """Return whether the registers give the answers that the node got."""
    begin, end = starts[node], starts[node + 1]
    for at in range(begin, end):
        kind, key = rows[at, 0], rows[at, 1]
        if kind == PUT:
            continue
        value = held[key]
        for before in range(at - 1, begin - 1, -1):
            # Its own write is nearer than what the register held.
            if rows[before, 0] == PUT and rows[before, 1] == key:
                value = rows[before, 2]
                break
        if (value == rows[at, 2]) != (kind == NEED):
            return False
    return True


@compiled
def _count(node: int, by: int, starts: NDArray[np.int64], rows: NDArray[np.int64], optional: NDArray[np.bool_],
           counts: NDArray[np.int64]) -> None:  # fmt: skip
    """Add a node to, or take it from, how often each value is still needed, used up and put."""
    begin, end = starts[node], starts[node + 1]
    for at in range(begin, end):
        kind = rows[at, 0]
        if kind == PUT:
            counts[rows[at, 2], 2] += by
        elif kind == NEED and not optional[node] and rows[at, 4] == 1:
            counts[rows[at, 2], 0] += by
            if rows[at, 3] == 1:
                counts[rows[at, 2], 1] += by


@compiled
def _fingerprint(held: NDArray[np.int64], salt: int) -> int:
    found = np.uint64(salt)
    for key in range(held.shape[0]):
        found = mix(found + np.uint64(held[key]))
    return found  # type: ignore[return-value]


@compiled
def _search(
    starts: NDArray[np.int64],
    rows: NDArray[np.int64],
    pure: NDArray[np.bool_],
    same: NDArray[np.int64],
    optional: NDArray[np.bool_],
    head_starts: NDArray[np.int64],
    heads: NDArray[np.int64],
    waiting: NDArray[np.int64],
    applied: NDArray[np.bool_],
    held: NDArray[np.int64],
    past: NDArray[np.int64],
    counts: NDArray[np.int64],
    sets: NDArray[np.uint64],
    names: NDArray[np.uint64],
    memory: NDArray[np.uint64],
    stack: NDArray[np.int64],
    forced: NDArray[np.bool_],
    cells: NDArray[np.int64],
    most: int,
) -> int:
    """Search until a verdict, a full memory or ``most`` nodes tried; nodes are numbered by rank.

    ``stack`` holds the nodes applied and, on top, where to go on; ``past`` what the registers held before each.
    """
    nodes, keys = pure.shape[0], held.shape[0]
    half = memory.shape[0] // 2
    tried = 0
    cursor = stack[cells[_DEPTH]]
    while True:
        depth = cells[_DEPTH]
        if cells[_LEFT] == 0:
            return _HOLDS
        if tried >= most or cells[_ENTRIES] >= half:
            stack[depth] = cursor
            return _PAUSE if tried >= most else _FULL
        chosen = -1
        is_forced: bool = False
        if cursor == 0:
            for node in range(nodes):
                if pure[node] and not applied[node] and waiting[node] == 0:
                    tried += 1
                    if _fits(node, starts, rows, held):
                        chosen = node
                        is_forced = True
                        break
        if chosen < 0:
            for node in range(cursor, nodes):
                if pure[node] or applied[node] or waiting[node] > 0:
                    continue
                tried += 1
                twin = same[node]
                while twin >= 0 and (applied[twin] or waiting[twin] > 0):
                    twin = same[twin]
                if twin < 0 and _fits(node, starts, rows, held):
                    chosen = node
                    break
        if chosen >= 0:
            past[depth] = held
            _count(chosen, -1, starts, rows, optional, counts)
            hopeless: bool = False
            for at in range(starts[chosen], starts[chosen + 1]):
                if rows[at, 0] == PUT:
                    held[rows[at, 1]] = rows[at, 2]
            for key in range(keys):
                gone = past[depth, key]
                if gone != held[key] and (
                    counts[gone, 1] > counts[gone, 2] or (counts[gone, 0] > 0 and counts[gone, 2] == 0)
                ):
                    # What is still needed of that value will never be put again.
                    hopeless = True
            if not hopeless:
                one = sets[depth, 0] ^ names[chosen, 0]
                two = sets[depth, 1] ^ names[chosen, 1]
                key0 = one ^ _fingerprint(held, np.uint64(0x9E3779B97F4A7C15))
                key1 = two ^ _fingerprint(held, np.uint64(0xC2B2AE3D27D4EB4F))
                if remember(memory, key0, key1):
                    cells[_ENTRIES] += 1
                    sets[depth + 1, 0], sets[depth + 1, 1] = one, two
                    applied[chosen] = True
                    forced[depth] = is_forced
                    stack[depth] = chosen
                    cells[_LEFT] -= not optional[chosen]
                    for edge in range(head_starts[chosen], head_starts[chosen + 1]):
                        waiting[heads[edge]] -= 1
                    cells[_DEPTH] = depth + 1
                    cursor = 0
                    continue
            held[:] = past[depth]
            _count(chosen, 1, starts, rows, optional, counts)
            if not is_forced:
                cursor = chosen + 1
                continue
        # Nothing more to try here: back to the last choice, past what was forced since.
        while True:
            if depth == 0:
                return _FAILS
            depth -= 1
            node = stack[depth]
            applied[node] = False
            cells[_LEFT] += not optional[node]
            for edge in range(head_starts[node], head_starts[node + 1]):
                waiting[heads[edge]] += 1
            _count(node, 1, starts, rows, optional, counts)
            held[:] = past[depth]
            if not forced[depth]:
                break
        cells[_DEPTH] = depth
        cursor = node + 1


def replay(question: Replay, in_budget: Callable[[], bool] = lambda: True, memory_bytes: int = 2**30) -> Solution:
    """Find an order in which registers give every node the answers that it got.

    Parameters
    ----------
    question : Replay
    in_budget : callable
        Asked now and then; False ends the search undecided.
    memory_bytes : int
        Size beyond which what the search remembers is not grown.
    """
    if not in_budget():
        return Solution("undecided", says="time: the budget ran out before events were replayed")
    count = len(question.steps)
    optional_of = question.optional or [False] * count
    rank = np.asarray(question.rank if len(question.rank) else np.arange(count), np.float64)
    # A node that may be left out and changes nothing is left out.
    chosen = [
        int(node) for node in np.argsort(rank, kind="stable")
        if not (optional_of[node] and _changes_nothing(question.steps[node]))
    ]  # fmt: skip
    place = {node: at for at, node in enumerate(chosen)}
    n = len(chosen)
    keys: dict[str, int] = {}
    values: dict[tuple[str, Hashable], int] = {}

    def value_of(key: str, value: Hashable) -> int:
        keys.setdefault(key, len(keys))
        return values.setdefault((key, value), len(values))

    rows: list[tuple[int, int, int, int, int]] = []
    starts = np.zeros(n + 1, np.int64)
    for at, node in enumerate(chosen):
        steps = question.steps[node]
        for number, step in enumerate(steps):
            named = value_of(step.key, step.value)
            other, outer = 0, 1
            if step.kind == NEED:
                outer = int(all(one.kind != PUT or one.key != step.key for one in steps[:number]))
                # The value is used up if the node's last write of the register leaves another one.
                puts = [one for one in steps[number + 1 :] if one.kind == PUT and one.key == step.key]
                firsts = [one for one in steps[:number] if one.kind == NEED and one.key == step.key]
                other = int(bool(puts) and not firsts and puts[-1].value != step.value)
            rows.append((step.kind, keys[step.key], named, other, outer))
        starts[at + 1] = len(rows)
    held = np.array([value_of(key, question.initial) for key in keys], np.int64)
    if 32 * n * (len(keys) + 8) > memory_bytes:
        return Solution("undecided", says=f"memory: {memory_bytes} bytes were not enough to replay {n} steps")
    edges = sorted({(place[one], place[two]) for one, two in question.edges if one in place and two in place})
    head_starts, heads = by_tail(np.array(edges, np.int64).reshape(len(edges), 2), n)
    waiting = np.bincount(heads, minlength=n).astype(np.int64)
    optional = np.array([optional_of[node] for node in chosen], np.bool_)
    pure = np.array([_changes_nothing(question.steps[node]) for node in chosen], np.bool_)
    table = np.array(rows, np.int64).reshape(len(rows), 5)
    counts = np.zeros((max(1, len(values)), 3), np.int64)
    for at in range(n):
        _count(at, 1, starts, table, optional, counts)
    cells = np.zeros(3, np.int64)
    cells[_LEFT] = int(np.count_nonzero(~optional))
    memory = np.zeros((1 << 12, 2), np.uint64)
    stack, forced, applied = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.bool_), np.zeros(n, np.bool_)
    past, sets = np.zeros((n + 1, len(keys)), np.int64), np.zeros((n + 2, 2), np.uint64)
    # Of nodes that nothing waits for and that do the same, the oldest goes first.
    same = twins([(question.steps[node], optional_of[node]) if head_starts[at] == head_starts[at + 1] else None
                  for at, node in enumerate(chosen)])  # fmt: skip
    while True:
        status = _search(
            starts, table, pure, same, optional, head_starts, heads, waiting, applied, held, past, counts, sets,
            zobrist(n.bit_length()), memory, stack, forced, cells, _TRIED_BETWEEN_LOOKS,
        )  # fmt: skip
        if status == _HOLDS:
            order = tuple(chosen[at] for at in stack[: cells[_DEPTH]].tolist())
            _believe(question, order)
            return Solution("holds", order)
        if status == _FAILS:
            return Solution("violated", says="no order is left")
        if not in_budget():
            return Solution("undecided", says="time: the budget ran out while replaying events")
        if status == _FULL:
            if 3 * memory.nbytes > memory_bytes:
                return Solution("undecided", says=f"memory: {memory_bytes} bytes were not enough to replay events")
            memory = larger(memory)


def _changes_nothing(steps: Sequence[Step]) -> bool:
    """Return whether a node leaves every register as it found it, wherever it fits."""
    held: dict[str, Hashable] = {}
    for step in steps:
        if step.kind == NEED:
            held.setdefault(step.key, (step.value,))
        elif step.kind == PUT and held.get(step.key) != (step.value,):
            return False
    return True


def _believe(question: Replay, order: Sequence[int]) -> None:
    """Apply an order to registers; an impossible one would be two equal fingerprints of unlike sets."""
    held: dict[str, Hashable] = {}
    for node in order:
        for step in question.steps[node]:
            there = held.get(step.key, question.initial)
            if step.kind == PUT:
                held[step.key] = step.value
            elif (there == step.value) != (step.kind == NEED):
                raise WavetankError("The search gave an order that the registers refuse: a collision of fingerprints.")
