"""Linearizability where values are unlike each other."""

from __future__ import annotations

import pytest
from brute_force import small_history

from wavetank.check.consistency.generate import kv_history
from wavetank.check.consistency.linearize import linearize
from wavetank.check.consistency.objects import OBJECTS
from wavetank.check.consistency.zones import linearize_unlike
from wavetank.sim.history import Operation
from wavetank.sim.rng import stream


def op(action, invoked, returned, value=None, result=None, process="p"):
    return Operation(process=process, action=action, value=value, result=result, invoked=invoked, returned=returned)


def worn(history, seed):
    """Return the operations with some reads changed and some returns lost."""
    rng = stream(seed, "worn")
    operations = list(history.operations)
    reads = [at for at, each in enumerate(operations) if each.action == "read"]
    for at in reads:
        if rng.random() < 0.15:
            other = operations[int(rng.choice(reads))]
            operations[at] = op(
                "read", operations[at].invoked, operations[at].returned, None, other.result, operations[at].process
            )
    return [
        op(each.action, each.invoked, None, each.value, None, each.process) if rng.random() < 0.15 else each
        for each in operations
    ]


def test_zones_and_search_agree_on_verdict_and_culprit():
    outcomes = set()
    for seed in range(600):
        operations = worn(kv_history(clients=4, operations=14, keys=1, seed=seed, puts=0.2), seed)
        fast = linearize_unlike(OBJECTS["kv"], operations, "")
        slow = linearize(OBJECTS["kv"], operations, "")
        assert fast is not None
        assert (fast.outcome, fast.culprit) == (slow.outcome, slow.culprit), seed
        outcomes.add(fast.outcome)
    assert outcomes == {"holds", "violated"}


def test_they_agree_on_registers_and_their_swaps():
    outcomes = set()
    for seed in range(600):
        operations = [each for each in small_history(seed).operations if each.key == "x"]
        rng = stream(seed, "swaps")
        # Some writes become swaps of the value before them.
        for at, each in enumerate(operations):
            if each.action == "write" and rng.random() < 0.4:
                old = int(rng.choice([0, *(other.value for other in operations[:at] if other.action == "write")]))
                operations[at] = op("cas", each.invoked, each.returned, [old, each.value], True, each.process)
        fast = linearize_unlike(OBJECTS["register"], operations, 0)
        slow = linearize(OBJECTS["register"], operations, 0)
        assert fast is not None
        assert (fast.outcome, fast.culprit) == (slow.outcome, slow.culprit), seed
        outcomes.add(fast.outcome)
    assert outcomes == {"holds", "violated"}


def test_an_order_is_one_that_the_object_accepts():
    history = kv_history(clients=50, operations=1712, keys=1, seed=0)
    found = linearize_unlike(OBJECTS["kv"], history.operations, "")
    assert found.outcome == "holds"
    state = OBJECTS["kv"].initial("")
    latest = 0.0
    for at in found.order:
        state = OBJECTS["kv"].step(state, history.operations[at])
        assert state is not None
        assert history.operations[at].returned > latest
        latest = max(latest, history.operations[at].invoked)


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        ("register", [op("write", 0, 1, 3), op("write", 2, 3, 3)]),
        ("register", [op("write", 0, 1, 0)]),
        ("register", [op("cas", 0, 1, [0, 1], False)]),
        ("kv", [op("append", 0, 1, "a"), op("append", 2, 3, "ab")]),
        ("kv", [op("append", 0, 1, "")]),
        ("list", [op("write", 0, 1, [1])]),
        ("mutex", [op("acquire", 0, 1)]),
    ],
)
def test_where_values_are_alike_it_leaves_the_answer_to_a_search(kind, operations):
    assert linearize_unlike(OBJECTS[kind], operations, 0 if kind == "register" else None) is None


def test_a_value_from_nowhere_is_a_violation():
    found = linearize_unlike(OBJECTS["register"], [op("write", 0, 1, 1), op("read", 2, 3, result=9, process="q")], 0)
    assert (found.outcome, found.culprit) == ("violated", 1)


def test_lists_are_decided_like_strings():
    one, two = op("append", 0, 1, 1), op("append", 2, 3, 2)
    good = [one, two, op("read", 4, 5, result=[1, 2], process="q")]
    bad = [one, two, op("read", 4, 5, result=[2, 1], process="q")]
    assert linearize_unlike(OBJECTS["list"], good, None).outcome == "holds"
    assert linearize_unlike(OBJECTS["list"], bad, None).outcome == "violated"
