"""The compiled search for linearizations."""

from __future__ import annotations

import itertools

import pytest
from brute_force import allowed, small_history

from wavetank.check.consistency.generate import kv_history
from wavetank.check.consistency.linearize import linearize
from wavetank.check.consistency.objects import OBJECTS
from wavetank.sim.history import Operation


def op(process, action, invoked, returned, value=None, result=None):
    return Operation(process=process, action=action, value=value, result=result, invoked=invoked, returned=returned)


def split(history):
    by_key = {}
    for operation in history.operations:
        by_key.setdefault(operation.key, []).append(operation)
    return by_key.values()


@pytest.mark.parametrize("block", range(4))
def test_it_agrees_with_all_orders_tried(block):
    outcomes = set()
    for seed in range(100 * block, 100 * block + 100):
        history = small_history(seed)
        found = {linearize(OBJECTS["register"], part, 0).outcome for part in split(history)}
        good = found <= {"holds"}
        outcomes.add(good)
        assert good == allowed("linearizable", history), seed
    assert outcomes == {True, False}


def test_the_order_it_gives_respects_real_time():
    history = kv_history(clients=8, operations=200, keys=1, seed=3)
    found = linearize(OBJECTS["kv"], history.operations, "")
    assert found.outcome == "holds"
    assert sorted(found.order) == list(range(200))
    latest = 0.0
    for at in found.order:
        assert history.operations[at].returned > latest
        latest = max(latest, history.operations[at].invoked)


def test_the_longest_good_prefix_ends_at_the_first_return_without_which_it_is_good():
    for seed in range(200):
        history = small_history(seed, open_share=0.2)
        for part in split(history):
            found = linearize(OBJECTS["register"], part, 0)
            if found.outcome == "holds":
                continue
            culprit = part[found.culprit]

            def cut(until, part=part):
                return [
                    each if each.returned is not None and each.returned <= until
                    else op(each.process, each.action, each.invoked, None, each.value)
                    for each in part
                    if each.invoked <= until
                ]  # fmt: skip

            before = max((each.returned for each in part if (each.returned or 9e9) < culprit.returned), default=-1.0)
            assert linearize(OBJECTS["register"], cut(before), 0).outcome == "holds"
            assert linearize(OBJECTS["register"], cut(culprit.returned), 0).outcome == "violated"


def test_an_open_write_may_take_effect_after_all_others_returned():
    late = [op("a", "write", 0, None, 1), op("b", "read", 5, 6, result=0), op("b", "read", 7, 8, result=1)]
    assert linearize(OBJECTS["register"], late, 0).outcome == "holds"
    back = [*late, op("b", "read", 9, 10, result=0)]
    assert linearize(OBJECTS["register"], back, 0).outcome == "violated"


def test_a_write_of_the_value_held_is_not_taken_too_early():
    # The write of 0 changes nothing at first, but is what brings 0 back later.
    operations = [op("a", "write", 0, 9, 0), op("b", "write", 1, 2, 1), op("c", "read", 3, 4, result=0)]
    assert linearize(OBJECTS["register"], operations, 0).outcome == "holds"


def test_touching_times_count_as_concurrent():
    operations = [op("a", "write", 0, 1, 1), op("b", "read", 1, 2, result=0)]
    assert linearize(OBJECTS["register"], operations, 0).outcome == "holds"


@pytest.mark.parametrize("name", ["mutex", "queue", "stack", "set", "counter"])
def test_objects_by_table_agree_with_all_orders_tried(name):
    kind = OBJECTS[name]
    calls = {
        "mutex": [("acquire", None, None), ("release", None, None)],
        "queue": [("enqueue", 1, None), ("enqueue", 2, None), ("dequeue", None, 1), ("dequeue", None, 2)],
        "stack": [("push", 1, None), ("push", 2, None), ("pop", None, 1), ("pop", None, None)],
        "set": [("add", 1, None), ("remove", 1, None), ("read", None, [1]), ("read", None, [])],
        "counter": [("increment", 1, None), ("increment", -1, None), ("read", None, 1), ("read", None, 0)],
    }[name]
    outcomes = set()
    for chosen in itertools.product(calls, repeat=4):
        operations = [
            op(str(at), action, at, at + 1.5 + (at % 2), value, result)
            for at, (action, value, result) in enumerate(chosen)
        ]
        possible = False
        for order in itertools.permutations(range(4)):
            if any(operations[b].returned < operations[a].invoked for a, b in itertools.combinations(order, 2)):
                continue
            state = kind.initial(None)
            for at in order:
                state = state if state is None else kind.step(state, operations[at])
            possible |= state is not None
        outcomes.add(possible)
        assert (linearize(kind, operations, None).outcome == "holds") == possible
    assert outcomes == {True, False}


def hard(n):
    """Concurrent writes of unlike values and reads that no order allows."""
    writes = [op(f"w{at}", "write", 0, 100 + at, at + 1) for at in range(n)]
    reads = [op("r", "read", 200 + 2 * at, 201 + 2 * at, result=1 + at % 2) for at in range(3)]
    return [*writes, *reads]


def test_time_and_memory_run_out_in_undecided():
    slow = linearize(OBJECTS["register"], hard(22), 0, in_budget=lambda: False)
    assert slow.outcome == "undecided"
    assert "time" in slow.says
    small = linearize(OBJECTS["register"], hard(22), 0, memory_bytes=1 << 16)
    assert small.outcome == "undecided"
    assert "memory" in small.says


def test_fifty_clients_whose_values_come_again_need_few_steps():
    history = kv_history(clients=50, operations=1712, keys=10, seed=1, rounds=5)
    found = [linearize(OBJECTS["kv"], part, "") for part in split(history)]
    assert {each.outcome for each in found} == {"holds"}
    assert sum(each.steps for each in found) < 100_000


def test_no_operations_are_linearizable():
    assert linearize(OBJECTS["register"], [], None).outcome == "holds"
