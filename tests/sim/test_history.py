from __future__ import annotations

import pytest

from wavetank.check.consistency.engine import judge, judge_all
from wavetank.errors import BadValueError
from wavetank.sim.history import History, Operation


def test_a_time_that_is_no_number_is_refused():
    with pytest.raises(BadValueError, match="finite"):
        History(operations=(Operation(process="1", action="read", invoked=float("nan")),))


def _touching(*rows):
    return History(operations=tuple(
        Operation(process=process, action=action, value=None if action == "read" else told,
                  result=told if action == "read" else None, invoked=float(invoked), returned=float(returned))
        for process, action, told, invoked, returned in rows
    ))  # fmt: skip


@pytest.mark.parametrize("at", [0.0, 1.0, 1.7e9, -3.0])
@pytest.mark.parametrize("length", [0.0, 1.0])
def test_a_process_does_one_thing_after_another_when_times_are_equal(at, length):
    history = _touching(("a", "read", 1, at, at + length), ("a", "write", 1, at + length, at + 2 * length))
    together = judge_all(history, ["linearizable", "sequential", "pram"])
    for name, found in together.items():
        assert found.outcome == judge(history, name).outcome == "violated"


def test_equal_times_of_different_processes_stay_concurrent():
    # b returns when a goes on, c begins then, and d is invoked later by the order of the operations.
    history = _touching(("a", "write", 1, 0, 1), ("b", "write", 2, 0, 1), ("c", "read", None, 1, 2),
                        ("a", "write", 3, 1, 1), ("a", "write", 4, 1, 3), ("d", "read", 4, 1, 3))  # fmt: skip
    first, beside, early, second, third, late = history.operations
    assert first.returned < second.invoked <= second.returned < third.invoked
    assert first.returned >= early.invoked and beside.returned >= max(early.invoked, third.invoked)
    invoked = [op.invoked for op in history.operations]
    assert invoked == sorted(invoked) and late.invoked >= third.invoked
    assert History(operations=history.operations) == history
    assert judge(history, "linearizable").outcome == "holds"


def test_times_one_float_apart_keep_their_order_beside_ties():
    step = 2.0**-22
    base, later, end = 1.7e9, 1.7e9 + step, 1.7e9 + 9
    history = _touching(("a", "write", 1, base, base), ("a", "write", 2, base, base), ("b", "write", 3, base, base),
                        ("a", "write", 4, later, later), ("b", "read", 4, base + 2 * step, end))  # fmt: skip
    times = [(op.invoked, op.returned) for op in history.operations]
    assert times[0][1] < times[1][0] <= times[1][1] < times[3][0] <= times[3][1] < times[4][0]
    assert times[2][1] < times[3][0]
