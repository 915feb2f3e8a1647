"""Histories as events: who saw whose writes."""

from __future__ import annotations

from wavetank.check.consistency.events import events_of
from wavetank.check.consistency.objects import OBJECTS
from wavetank.sim.history import History, Operation


def op(process, action, at, value=None, result=None, key="x", lost=False):
    return Operation(
        process=process, action=action, key=key, value=value, result=result, invoked=float(at),
        returned=None if lost else at + 0.5,
    )  # fmt: skip


def events(kind, *operations, initial=0):
    return events_of(History(operations=operations, initial=initial), OBJECTS[kind])


def test_a_read_names_its_writer():
    found = events("register", op("a", "write", 0, 1), op("b", "read", 1, result=1), op("c", "read", 2, result=0))
    assert [[read.chain for read in event.reads] for event in found.events] == [[], [(0,)], [()]]
    assert found.anomalies == []


def test_what_never_returned_counts_if_somebody_saw_it():
    lost = op("a", "write", 0, 1, lost=True)
    assert len(events("register", lost, op("b", "read", 1, result=0)).events) == 1
    assert len(events("register", lost, op("b", "read", 1, result=1)).events) == 2


def test_a_text_names_all_its_appends_in_order():
    found = events(
        "kv", op("a", "append", 0, "p"), op("b", "append", 1, "q"), op("c", "read", 2, result="qp"),
        op("c", "read", 3, result=""), initial="",
    )  # fmt: skip
    first, second = found.events[2].reads[0], found.events[3].reads[0]
    assert (first.chain, first.anchor) == ((1, 0), -1)
    assert (second.chain, second.anchor) == ((), -1)


def test_a_put_is_what_others_must_come_before():
    found = events(
        "kv", op("a", "write", 0, "p"), op("b", "append", 1, "q"), op("c", "read", 2, result="pq"), initial=""
    )
    assert (found.events[2].reads[0].chain, found.events[2].reads[0].anchor) == ((0, 1), 0)


def test_values_that_come_again_are_candidates_the_latest_first():
    found = events("register", op("a", "write", 0, 1), op("b", "write", 1, 1), op("c", "read", 2, result=1))
    assert found.ambiguous == [(2, 0)]
    assert found.events[2].reads[0].choices == (1, 0)


def test_a_failed_swap_found_any_other_value():
    found = events("register", op("a", "write", 0, 1), op("a", "write", 1, 2), op("b", "cas", 2, [2, 3], False))
    assert found.events[2].reads[0].choices == (0, -1)
    assert found.events[2].writes == {}


def test_objects_that_show_nothing_give_no_events():
    assert events("mutex", op("a", "acquire", 0)) is None
    # The same item appended twice: a text no longer names its appends.
    assert events("kv", op("a", "append", 0, "p"), op("b", "append", 1, "p"), initial="") is None


def transaction(process, at, steps, result=...):
    value = [[a, k, None if a == "read" else v] for a, k, v in steps]
    return op(process, "transaction", at, value, steps if result is ... else result, key="")


def kinds(*operations, initial=None):
    return [kind for kind, _, _ in events("multi-register", *operations, initial=initial).anomalies]


def test_anomalies_within_transactions_are_named():
    write = transaction("a", 0, [["append", "x", 1], ["append", "x", 2]])
    assert kinds(write, transaction("b", 1, [["read", "x", [1, 2]]])) == []
    assert kinds(write, transaction("b", 1, [["read", "x", [1]]])) == ["G1b"]
    assert kinds(write, transaction("b", 1, [["read", "x", [3]]])) == ["thin-air"]
    assert kinds(write, transaction("b", 1, [["read", "x", [1, 2, 2]]])) == ["duplicate-elements"]
    assert kinds(write, transaction("b", 1, [["read", "x", [2]]]))[0] == "G0"
    assert kinds(write, transaction("b", 1, [["read", "x", [2, 1]]]))[0] == "G0"
    assert kinds(transaction("a", 0, [["append", "x", 1]], False), transaction("b", 1, [["read", "x", [1]]])) == ["G1a"]
    assert kinds(transaction("a", 0, [["append", "x", 1], ["read", "x", []]])) == ["internal"]
    assert kinds(transaction("a", 0, [["append", "x", 1], ["read", "x", [1]]])) == []


def test_a_transaction_reads_before_it_writes_unless_it_wrote_before():
    found = events(
        "multi-register", transaction("a", 0, [["write", "x", 1]]),
        transaction("b", 1, [["read", "x", 1], ["write", "x", 2], ["read", "x", 2]]), initial=None,
    )  # fmt: skip
    assert [read.chain for read in found.events[1].reads] == [(0,)]
    assert found.events[1].writes == {"x": 1}


def test_elements_of_lists_may_be_truth_values():
    steps = [["append", "x", True], ["append", "x", False]]
    found = events(
        "multi-register", op("a", "transaction", 0, steps, steps, key=""),
        op("b", "transaction", 1, [["read", "x", None]], [["read", "x", [True, False]]], key=""),
    )  # fmt: skip
    assert found.anomalies == []
    assert found.events[1].reads[0].chain == (0,)
