"""The linearizability checker of the textbooks, in plain Python: Wing and Gong's search with Lowe's memory, key by key.

It is the reference beside the compiled engine: the same question, the same answer, none of the rules that keep the
engine from branching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.check.consistency.engine import Judgement
from wavetank.check.consistency.objects import Sequential, by_key, end_of, object_of
from wavetank.check.report import Budget, Outcome
from wavetank.settings import setting
from wavetank.sim.history import History, Operation


@dataclass(frozen=True, kw_only=True)
class WingGongLowe:
    """Decides linearizability by search with memory.

    References
    ----------
    Wing and Gong 1993, Lowe 2017; the algorithm of Porcupine and of Knossos's ``wgl``.
    """

    steps_at_most: int = setting(
        2_000_000, says="Operations that are tried before the checker gives up undecided", low=1
    )

    def judge(self, history: History, budget: Budget | None = None) -> dict[str, Judgement]:
        """Judge a history; the budget in seconds is not looked at, the one in steps is.

        Returns
        -------
        dict
            One judgement, under ``linearizable``.
        """
        kind = object_of(history)
        outcomes = [
            _search(kind, [history.operations[number] for number in numbers], history.initial, self.steps_at_most)
            for numbers in by_key(history.operations).values()
        ]
        outcome: Outcome = "violated" if False in outcomes else "undecided" if None in outcomes else "holds"
        return {"linearizable": Judgement(model="linearizable", outcome=outcome, by="search")}


def _search(kind: Sequential, operations: Sequence[Operation], initial: Any, steps_at_most: int) -> bool | None:
    """Return whether there is an order; None when the steps ran out."""
    returns = [end_of(operation) for operation in operations]
    events = sorted(
        [(operation.invoked, 0, at) for at, operation in enumerate(operations)]
        + [(returned, 1, at) for at, returned in enumerate(returns)]
    )
    n = len(events)
    # A doubly linked list of events; the head is n, and events keep their numbers.
    following = [*range(1, n), n, 0] if n else [0]
    previous = [n, *range(n - 1), n - 1] if n else [0]
    call = {at: number for number, (_, ended, at) in enumerate(events) if not ended}
    back = {at: number for number, (_, ended, at) in enumerate(events) if ended}
    state = kind.initial(initial)
    applied, left = 0, sum(1 for returned in returns if returned < math.inf)
    known: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = []
    event = following[n]
    steps = 0
    while left:
        steps += 1
        if steps > steps_at_most:
            return None
        _, ended, at = events[event]
        if not ended:
            after = kind.step(state, operations[at])
            name = (applied | 1 << at, after)
            if after is not None and name not in known:
                known.add(name)
                stack.append((at, state))
                state, applied = after, name[0]
                left -= returns[at] < math.inf
                for number in (call[at], back[at]):
                    following[previous[number]] = following[number]
                    previous[following[number]] = previous[number]
                event = following[n]
            else:
                event = following[event]
            continue
        if not stack:
            return False
        at, state = stack.pop()
        applied &= ~(1 << at)
        left += returns[at] < math.inf
        for number in (back[at], call[at]):
            following[previous[number]] = number
            previous[following[number]] = number
        event = following[call[at]]
    return True
