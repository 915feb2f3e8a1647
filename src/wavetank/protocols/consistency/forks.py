"""Fork consistency: processes share one order until they part, and never meet again.

A server that lies may show different clients different continuations of what they had in common, and if it keeps that
up for good the clients cannot tell.  The histories it can give are those whose operations fit on a tree, each process
on one path from the root.  Decided by search: apply an operation, or let a group of processes part in two.

Source: D. Mazieres, D. Shasha, "Building Secure File Systems out of Byzantine Storage", PODC 2002; C. Cachin,
A. Shelat, A. Shraer, "Efficient Fork-Linearizable Access to Untrusted Shared Memory", PODC 2007.

Differs from the source:
1. Only what histories show is judged; how clients would find out by talking to each other is not.
2. An operation that never returned belongs to its process like any other, or did not happen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

from wavetank.protocols.consistency.objects import Sequential
from wavetank.protocols.history import Operation

Tree = tuple[tuple[int, ...], tuple["Tree", ...]]
"""Operations in order, and what follows them: nothing, or two branches."""


class _OutOfBudgetError(Exception):
    pass


def fits_a_tree(
    kind: Sequential,
    operations: Sequence[Operation],
    initial: Any,
    *,
    real_time: bool,
    in_budget: Callable[[], bool],
) -> tuple[Literal["holds", "violated", "undecided"], Tree | None]:
    """Decide fork-linearizability, or fork-sequential consistency.

    Parameters
    ----------
    kind : Sequential
    operations : sequence of Operation
        In the order of their invocation.
    initial : object
    real_time : bool
        Whether the order on a path respects real time, or only sessions.
    in_budget : callable
        False ends the search undecided.

    Returns
    -------
    outcome, tree
    """
    sessions: dict[str, list[int]] = {}
    for at, operation in enumerate(operations):
        sessions.setdefault(operation.process, []).append(at)
    # What never returned is a line of its own: it may come late, but never before what its process had done.
    lines = [[at for at in session if operations[at].returned is not None] for session in sessions.values()]
    after = _predecessors(operations, sessions, lines)
    lines += [[at] for at, operation in enumerate(operations) if operation.returned is None]
    states = _Stores(kind, initial)
    failed: set[tuple[frozenset[int], tuple[int, ...], Hashable]] = set()
    # The search is as deep as the history is long: an explicit stack would hide the idea, so depth is bounded.
    deepest = 800

    def finish(group: tuple[int, ...], done: tuple[int, ...], state: Hashable, depth: int) -> Tree | None:
        if not in_budget() or depth > deepest:
            raise _OutOfBudgetError
        pending = [p for p in group if done[p] < len(lines[p])]
        if all(operations[at].returned is None for p in pending for at in lines[p][done[p] :]):
            return ((), ())
        name = (frozenset(group), done, state)
        if name in failed:
            return None
        horizon = math.inf
        if real_time:
            horizon = min(_return(operations[at]) for p in pending for at in lines[p][done[p] :])
        for p in sorted(pending, key=lambda p: operations[lines[p][done[p]]].invoked):
            at = lines[p][done[p]]
            # Whatever returned before it was invoked is there already, or on another path.
            if operations[at].invoked > horizon or any(done[q] < count for q, count in after.get(at, ())):
                continue
            following = states.after(state, operations[at])
            further = (*done[:p], done[p] + 1, *done[p + 1 :])
            if following is not None:
                rest = finish(group, further, following, depth + 1)
                if rest is not None:
                    return ((at, *rest[0]), rest[1])
        first, *others = group
        for size in range(len(others)):
            for along in itertools.combinations(others, size):
                one = (first, *along)
                other = tuple(p for p in others if p not in along)
                left = finish(one, done, state, depth + 1)
                right = finish(other, done, state, depth + 1) if left is not None else None
                if left is not None and right is not None:
                    return ((), (left, right))
        failed.add(name)
        return None

    try:
        found = finish(tuple(range(len(lines))), (0,) * len(lines), states.first(), 0)
    except _OutOfBudgetError:
        return "undecided", None
    return ("violated", None) if found is None else ("holds", found)


def _predecessors(
    operations: Sequence[Operation], sessions: dict[str, list[int]], lines: list[list[int]]
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return for each operation that never returned how far its process's line must have come."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for line, session in enumerate(sessions.values()):
        for at in session:
            if operations[at].returned is None:
                found[at] = ((line, sum(1 for one in lines[line] if one < at)),)
    return found


def _return(operation: Operation) -> float:
    return math.inf if operation.returned is None else operation.returned


class _Stores:
    """One object a key, as one state."""

    def __init__(self, kind: Sequential, initial: Any) -> None:
        self._kind, self._initial = kind, kind.initial(initial)

    def first(self) -> Hashable:
        return ()

    def after(self, state: Any, operation: Operation) -> Hashable | None:
        held = dict(state)
        found = self._kind.step(held.get(operation.key, self._initial), operation)
        if found is None:
            return None
        held[operation.key] = found
        return tuple(sorted(held.items(), key=lambda item: item[0]))
