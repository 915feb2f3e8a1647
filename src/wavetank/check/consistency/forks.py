"""Fork consistency: processes share one order until they part, and never meet again.

A server that lies may show different clients different continuations of what they had in common, and if it keeps that
up for good the clients cannot find out.  The histories it can give are those whose operations fit on a tree, each
process on one path from the root.  Decided by search: apply an operation, or let a group of processes part in two.

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
from typing import Any

from wavetank.check.consistency.objects import Sequential, end_of
from wavetank.check.report import Outcome
from wavetank.sim.history import Operation

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
) -> tuple[Outcome, Tree | None]:
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
    """
    sessions: dict[str, list[int]] = {}
    for at, operation in enumerate(operations):
        sessions.setdefault(operation.process, []).append(at)
    # What never returned is a line of its own: it may come late, but never before what its process had done.
    lines = [[at for at in session if operations[at].returned is not None] for session in sessions.values()]
    after = {
        at: (line, sum(1 for one in lines[line] if one < at))
        for line, session in enumerate(sessions.values())
        for at in session
        if operations[at].returned is None
    }
    lines += [[at] for at, operation in enumerate(operations) if operation.returned is None]
    first_of_key = kind.initial(initial)
    failed: set[tuple[frozenset[int], tuple[int, ...], Hashable]] = set()
    # The search is as deep as the history is long: an explicit stack would hide the idea, so depth is bounded.
    deepest = 800

    def after_step(state: Any, operation: Operation) -> Hashable | None:
        """Return the objects of all keys after an operation, as one state."""
        held = dict(state)
        held[operation.key] = kind.step(held.get(operation.key, first_of_key), operation)
        return None if held[operation.key] is None else tuple(sorted(held.items(), key=lambda item: item[0]))

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
            horizon = min(end_of(operations[at]) for p in pending for at in lines[p][done[p] :])
        for p in sorted(pending, key=lambda p: operations[lines[p][done[p]]].invoked):
            at = lines[p][done[p]]
            line, count = after.get(at, (0, 0))
            # Whatever returned before it was invoked is there already, or on another path.
            if operations[at].invoked > horizon or done[line] < count:
                continue
            following = after_step(state, operations[at])
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
        found = finish(tuple(range(len(lines))), (0,) * len(lines), (), 0)
    except _OutOfBudgetError:
        return "undecided", None
    return ("violated", None) if found is None else ("holds", found)
