"""Ranks of one process that go on in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.serving.exchange.cases import PACKED, rank_steps, small

from wavetank.serving.exchange.interface import Point
from wavetank.serving.exchange.table import contiguous
from wavetank.serving.exchange.together import Together
from wavetank.serving.exchange.workload import slopes


def test_the_order_is_asked_for_every_step_of_a_program_and_may_be_any() -> None:
    task = small(2, 4)
    asked: list[tuple[int, ...]] = []
    stages: set[str] = set()

    def last(ready: Sequence[int], points: Sequence[Point | None]) -> int:
        asked.append(tuple(ready))
        stages.update(point.name for point in points if point is not None)
        return ready[-1]

    steps = rank_steps("uniform", task, 4, 2)
    first, again = Together(PACKED, task, contiguous(4, 2), slopes), Together(PACKED, task, contiguous(4, 2), slopes)
    mine, its = first.run(steps), again.run(steps, order=last)
    assert all(np.array_equal(a, b) for x, y in zip(mine, its, strict=True) for a, b in zip(x, y, strict=True))
    assert {(0, 1), (0,), (1,)} >= set(asked) > {(0, 1)}
    assert stages >= {"counted", "placed", "experts", "computed", "done"}


def test_a_step_ahead_leaves_before_the_outputs_of_the_one_before_it_are_read() -> None:
    task, seen = small(1, 2, choices=1), []

    def watch(ready: Sequence[int], points: Sequence[Point | None]) -> int:
        if points[0] is not None:
            seen.append((points[0].name, points[0].step))
        return ready[0]

    for ahead in (0, 1):
        seen.clear()
        together = Together(PACKED, task, contiguous(2, 1), slopes)
        together.run(rank_steps("uniform", task, 2, 3), order=watch, ahead=ahead)
        order = list(dict.fromkeys(seen))
        assert (order.index(("placed", 2)) < order.index(("computed", 1))) == ahead
        assert order.index(("done", 1)) < order.index(("counted", 3))
