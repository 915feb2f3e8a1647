"""Prices from measured messages and calls, and graphs of steps that were not run: against truths that were planted."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric, Level
from wavetank.training.steps.calibrate import (
    Cost,
    RankSteps,
    at_rows,
    costs,
    gaps,
    line,
    own_seconds,
    predicted_graph,
    waits,
)


def cost(alpha_s, bytes_per_s, work_s=0.0, work_s_per_byte=0.0):
    level = Level(name="wire", size=2, alpha_s=alpha_s, bytes_per_s=bytes_per_s)
    return Cost(fabric=Fabric(levels=(level,)), work_s=work_s, work_s_per_byte=work_s_per_byte)


def call(name, kind="", n_bytes=0, touches=(), writes=()):
    return {"name": name, "kind": kind, "n_bytes": n_bytes, "touches": list(touches), "writes": list(writes)}


def test_a_line_is_found_and_never_below_nothing():
    assert line([1.0, 2.0, 5.0], [5.0, 7.0, 13.0]) == (pytest.approx(3.0), pytest.approx(2.0))
    assert line([1.0, 2.0], [1.0, 4.0])[0] == 0.0
    assert line([1.0, 2.0], [4.0, 1.0])[1] == 0.0
    for x, y in (([1.0], [1.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0], [1.0, np.nan])):
        with pytest.raises(BadValueError, match="two points"):
            line(x, y)


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "send"])
def test_the_price_of_a_message_is_what_was_measured_of_messages(kind):
    sizes = (1000, 10_000, 100_000)
    took = {size: 2e-4 + 3e-9 * size for size in sizes}
    # One rank comes 5 ms before the other and waits, which is none of the message's time.  Of all repetitions the lower
    # quartile counts: the last two were disturbed.
    ranks = [
        {kind: {str(n): np.array([[begin, 1.0 + s, s / 4]] * 6 + [[begin, 1.0 + s * 9, s * 9]] * 2)
                for n, s in took.items()}}
        for begin in (0.995, 1.0)
    ]  # fmt: skip
    found = costs(ranks)[kind]
    for n in (1000, 50_000, 400_000):
        assert found.seconds(call("x", kind, n)) == pytest.approx(2e-4 + 3e-9 * n, rel=1e-6)
        assert found.work_ps(n) / 1e12 == pytest.approx((2e-4 + 3e-9 * n) / 4, rel=1e-6)


STEP = [
    call("aten::mm", touches=[1]),
    call("c10d::allreduce_", "all-reduce", 4_000_000, touches=[2], writes=[2]),
    call("aten::mm", touches=[1]),
    call("aten::add_", touches=[2, 3]),
    call("aten::add_", touches=[2]),
]
PRICES = {"all-reduce": cost(0.0, 1e9, work_s=1e-3)}


def times(after_reduce):
    begin = np.array([[0.0, 0.001, 0.003, 0.003 + after_reduce, 0.010, 0.012]])
    end = np.array([[0.015, 0.003, 0.003, 0.004 + after_reduce, 0.011, 0.013]])
    return begin, end


def test_the_first_to_touch_what_a_collective_writes_waits_for_it():
    begin, end = times(0.0)
    assert waits(STEP, begin, end, PRICES) == [(), (), (), (1,), ()]
    # A pause of more than half of the 4 ms that it takes: its caller waited at once, and nobody has to again.
    begin, end = times(0.003)
    assert waits(STEP, begin, end, PRICES) == [(), (), (1,), (), ()]


def test_a_call_keeps_its_process_busy_for_itself_and_the_pause_before_it_but_not_for_what_it_waits_for():
    begin, end = times(0.0)
    assert gaps(begin, end)[0].tolist() == pytest.approx([0.001, 0.0, 0.0, 0.006, 0.001, 0.002])
    own = own_seconds(STEP, waits(STEP, begin, end, PRICES), begin, end, np.array([0.015]))
    # The pauses of calls 2 and 3 are not theirs: the median of the other four takes their place.
    assert own.tolist() == pytest.approx([0.003, 0.0, 0.002, 0.002, 0.002, 0.002])


def test_what_watching_adds_to_a_step_is_taken_off_its_calls():
    begin, end = times(0.0)
    waiting = waits(STEP, begin, end, PRICES)
    plain = own_seconds(STEP, waiting, begin, end, np.array([0.015]))
    # Steps that nobody watched were 2.5 ms shorter: half a millisecond for each of five calls, and none is below 0.
    own = own_seconds(STEP, waiting, begin, end, np.array([0.0125, 0.0125, 0.5]))
    assert own.tolist() == pytest.approx([*np.maximum(plain[:-1] - 0.0005, 0.0), plain[-1]])
    # Longer ones say something of the machine, and nothing of watching.
    assert own_seconds(STEP, waiting, begin, end, np.array([0.02])).tolist() == plain.tolist()


def test_of_steps_the_quicker_half_counts():
    begin, end = (np.repeat(each, 4, 0) for each in times(0.0))
    begin[2:, 1:] += 1.0
    end[2:] += 1.0
    waiting = waits(STEP, begin[:1], end[:1], PRICES)
    alone = np.array([0.015])
    assert own_seconds(STEP, waiting, begin, end, alone).tolist() == (
        own_seconds(STEP, waiting, begin[:1], end[:1], alone).tolist()
    )


def test_a_step_overlaps_what_it_does_not_wait_for():
    seconds = np.array([0.002, 0.0, 0.003, 0.001, 0.001, 0.0])
    step = RankSteps(STEP, [(), (), (), (1,), ()], seconds)
    # Both ranks: 2 ms, then 4 ms under way beside 1 ms of work for it and 3 ms of computing, then 2 ms.
    assert predicted_graph([step, step], PRICES).times().makespan_ps == 8_000_000_000
    late = RankSteps(STEP, [(), (), (), (1,), ()], seconds + np.array([0.005, 0, 0, 0, 0, 0]))
    # The collective begins when the later rank has come.
    assert predicted_graph([step, late], PRICES).times().makespan_ps == 13_000_000_000
    longer = RankSteps(STEP, [(), (), (), (1,), ()], seconds + np.array([0, 0, 0, 0, 0, 0.004]))
    assert predicted_graph([step, longer], PRICES).times().makespan_ps == 12_000_000_000


def test_messages_go_from_one_rank_to_the_other():
    prices = {"send": cost(0.001, 1e9)}
    sender = RankSteps([call("c10d::send", "send", 2_000_000, [1])], [()], np.array([0.004, 0.0]))
    receiver = RankSteps(
        [call("c10d::recv_", "receive", 2_000_000, [5], [5]), call("aten::mm", touches=[5])], [(), (0,)],
        np.array([0.0, 0.010, 0.0]),
    )  # fmt: skip
    assert predicted_graph([sender, receiver], prices).times().makespan_ps == 17_000_000_000


def test_calls_and_bytes_at_other_rows_lie_on_lines():
    calls = {8: [call("a", "send", 800)], 16: [call("a", "send", 1600)]}
    seconds = {8: np.array([0.9]), 16: np.array([1.7])}
    found, took = at_rows(calls, seconds, 40)
    assert found[0]["n_bytes"] == 4000
    assert took.tolist() == pytest.approx([4.1])
    # What a line puts below nothing takes nothing.
    assert at_rows(calls, {8: np.array([0.1]), 16: np.array([1.0])}, 1)[1].tolist() == [0.0]
    with pytest.raises(BadValueError, match="other operations"):
        at_rows({8: calls[8], 16: [call("b")]}, seconds, 40)
    with pytest.raises(BadValueError, match="whole number"):
        at_rows({8: [call("a", "send", 800)], 16: [call("a", "send", 801)]}, seconds, 9)
