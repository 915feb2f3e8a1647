from __future__ import annotations

import pytest

from wavetank.check.explore.clock import Clock, ClockWasRead
from wavetank.check.explore.parts import Action, Local, NodeContext
from wavetank.errors import BadValueError
from wavetank.sim.node import Node


def test_a_state_with_other_values_keeps_the_rest() -> None:
    local = Local(2, Node(), ("a",), {"x": 1}, waits=((1, 2),), pending=(3,), now=4)
    other = local.but(up=False, timers=(), waits=())
    assert (other.index, other.saved, other.pending, other.now, other.up) == (2, {"x": 1}, (3,), 4, False)
    assert local.up and local.timers == ("a",)


def test_actions_say_what_happens_and_how_old_it_is() -> None:
    assert str(Action("tick", -1)) == "a round passes"
    assert str(Action("deliver", 1, 0, "hello", 2)) == "deliver 0 -> 1: 'hello', sent 2 rounds ago"
    assert str(Action("timer", 1, -1, "late")) == "timer at 1: late"


def test_who_reads_the_time_is_noted_given_it_or_refused() -> None:
    stopped = NodeContext(0, 2, (1,), 1)
    assert stopped.now == 0.0
    assert (stopped.read, stopped.read_outside) == (False, True)
    stopped.at_work = True
    assert stopped.now == 0.0
    assert stopped.read
    timed = NodeContext(1, 2, (0,), 1, Clock(offsets=(0, 3)))
    with pytest.raises(BadValueError, match="predicate"):
        _ = timed.now
    timed.at_work = True
    with pytest.raises(ClockWasRead):
        _ = timed.now
    timed.absolute = True
    timed.begin(Local(1, Node(), now=4))
    assert timed.now == 7.0


def test_a_timer_without_an_end_is_none_with_a_clock() -> None:
    context = NodeContext(0, 1, (), 1, Clock(drift=0.5))
    context.set_timer("late", 4)
    assert context.timers == {"late": (2, 6)}
    context.set_timer("late", float("inf"))
    assert context.timers == {}
    with pytest.raises(BadValueError):
        context.set_timer("late", 0)
