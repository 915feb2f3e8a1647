"""Models judged by replay, where nobody can say who wrote what was read."""

from __future__ import annotations

import pytest
from brute_force import repeated_history, repeated_transactions

from wavetank.check.consistency.configurations import MODELS, model
from wavetank.check.consistency.engine import judge
from wavetank.check.consistency.events import events_of
from wavetank.check.consistency.objects import object_of
from wavetank.check.consistency.registers import replayed, steps_of
from wavetank.check.consistency.replay import NEED, NEED_OTHER, PUT, Step
from wavetank.check.consistency.visibility import Clocks
from wavetank.check.deadline import Allowance
from wavetank.sim.history import History, Operation


def operation(action, value=None, result=None, process="a", invoked=0.0, returned=1.0, key=""):
    return Operation(
        process=process, action=action, key=key, value=value, result=result, invoked=invoked, returned=returned
    )


def verdict(history, name):
    found = events_of(history, object_of(history))
    return replayed(history, found, model(name), Clocks(), Allowance(60.0, 2**30))


def test_operations_need_and_put_values():
    assert steps_of(operation("read", result=1)) == (Step(NEED, "", 1),)
    assert steps_of(operation("write", 1)) == (Step(PUT, "", 1),)
    assert steps_of(operation("cas", [1, 2], True)) == (Step(NEED, "", 1), Step(PUT, "", 2))
    assert steps_of(operation("cas", [1, 2], False)) == (Step(NEED_OTHER, "", 1),)
    lost = operation("transaction", [["read", "x", None], ["write", "y", 2]], returned=None)
    assert steps_of(lost) == (Step(PUT, "y", 2),)


def test_models_whose_sets_depend_on_who_wrote_are_left_to_others():
    one = repeated_history(0)
    for name in ("weak-causal", "causal", "monotonic-reads", "k-linearizable", "timed-causal"):
        assert verdict(one, name) is None
    for name in ("sequential", "regular", "safe", "serializable", "pram", "slow"):
        assert verdict(one, name) is not None


def test_two_snapshots_of_two_registers_are_not_one_place():
    both = repeated_transactions(0)
    assert {len({step[1] for step in op.value}) for op in both.operations} & {2}
    assert verdict(both, "snapshot-isolation") is None
    assert verdict(both, "serializable") is not None


def test_an_order_of_each_process_names_who_wrote_what_it_read():
    rows = (
        operation("write", 1, process="a", invoked=0.0, returned=1.0),
        operation("write", 1, process="b", invoked=2.0, returned=3.0),
        operation("write", 2, process="b", invoked=4.0, returned=5.0),
        operation("read", result=1, process="c", invoked=6.0, returned=7.0),
    )
    found = verdict(History(operations=rows), "pram")
    assert found.outcome == "holds"
    assert found.sources[(3, "")] in (0, 1)


def test_a_lost_swap_was_seen_only_if_its_own_process_can_place_it():
    # b saw 5, which only a's lost swap of a 7 can have put, and nobody ever put a 7.
    rows = (
        operation("write", 1, process="a", invoked=0.0, returned=1.0),
        operation("write", 1, process="b", invoked=0.5, returned=1.5),
        operation("cas", [1, 5], process="a", invoked=2.0, returned=None),
        operation("read", result=5, process="b", invoked=3.0, returned=4.0),
    )
    assert judge(History(operations=rows), "pram").outcome == "holds"
    never = (*rows[:2], operation("cas", [7, 5], process="a", invoked=2.0, returned=None), rows[3])
    assert judge(History(operations=never), "pram").outcome == "violated"


@pytest.mark.parametrize("result", [None, True, False])
def test_a_swap_that_came_back_without_an_answer_did_or_did_not_find_its_value(result):
    rows = (
        operation("write", 1, process="a", invoked=0.0, returned=1.0),
        operation("cas", [7, 5], result, process="b", invoked=2.0, returned=3.0),
        operation("read", result=1, process="a", invoked=4.0, returned=5.0),
    )
    one = History(operations=rows)
    for name in ("regular", "sequential", "causal", "snapshot-isolation"):
        assert judge(one, name, prefix=False).outcome == ("violated" if result else "holds"), name


def test_nobody_sees_the_future_where_time_counts():
    rows = (
        operation("read", result=1, process="a", invoked=0.0, returned=1.0),
        operation("write", 1, process="b", invoked=2.0, returned=3.0),
        operation("write", 1, process="b", invoked=4.0, returned=5.0),
    )
    unlike = History(operations=rows[:2])
    alike = History(operations=rows)
    for one in (unlike, alike):
        for name in MODELS:
            if name != "k-linearizable" and model(name).ordering != "fork":
                timed = model(name).timed
                assert judge(one, name, prefix=False).outcome == ("violated" if timed else "holds"), name


@pytest.mark.parametrize("name", ["strict-serializable", "serializable", "sequential", "snapshot-isolation", "pram"])
def test_lists_beside_registers_whose_values_come_again_are_not_replayed_as_registers(name):
    def transaction(at, *steps):
        return Operation(
            process="a", action="transaction", value=[[a, k, None if a == "read" else v] for a, k, v in steps],
            result=[list(step) for step in steps], invoked=float(2 * at), returned=2.0 * at + 1.0,
        )  # fmt: skip

    def told(items):
        return History(operations=(
            transaction(0, ("append", "x", 1)), transaction(1, ("write", "y", 2)), transaction(2, ("write", "y", 2)),
            transaction(3, ("read", "x", items), ("read", "y", 2)),
        ))  # fmt: skip

    assert judge(told([1]), name).outcome == "holds"
    without_sessions = name in ("serializable", "snapshot-isolation")
    assert judge(told([]), name).outcome == ("holds" if without_sessions else "violated")
    assert judge(told([2]), name).outcome == "violated"
