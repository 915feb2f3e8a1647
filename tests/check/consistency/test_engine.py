"""One engine for all models: against definitions by enumeration, classic histories and recorded ones."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from brute_force import (
    allowed,
    legal,
    relabelled,
    repeated_history,
    repeated_transactions,
    small_history,
    snapshot_isolation,
    update_serializable,
)

from wavetank.check.consistency.configurations import MODELS, implied
from wavetank.check.consistency.engine import _Asked, _direct, judge, judge_all, strongest
from wavetank.check.consistency.files import read_history
from wavetank.check.consistency.objects import object_of
from wavetank.check.consistency.visibility import Clocks
from wavetank.check.deadline import Allowance
from wavetank.check.report import Budget
from wavetank.errors import DataUnavailableError, UnknownNameError
from wavetank.sim.history import History, Operation
from wavetank.workloads import datasets

BY_DEFINITION = (
    "linearizable", "strict-serializable", "sequential", "serializable", "prefix-sequential", "prefix-linearizable",
    "safe", "regular", "delta-atomic", "cache", "pram", "causal", "weak-causal", "causal-convergence",
)  # fmt: skip


def history(*rows, initial=0, **facts):
    """Build a history in which one operation follows another: (process, "w" or "r", key, value)."""
    operations = tuple(
        Operation(
            process=process, action="write" if what == "w" else "read", key=key, value=value if what == "w" else None,
            result=value if what == "r" else None, invoked=2.0 * at, returned=2.0 * at + 1,
        )
        for at, (process, what, key, value) in enumerate(rows)
    )  # fmt: skip
    return History(operations=operations, initial=initial, **facts)


def transactions(*rows):
    """Build a history of transactions that all overlap: (process, steps, and False if aborted)."""
    return History(
        operations=tuple(
            Operation(
                process=process, action="transaction", value=[[a, k, None if a == "read" else v] for a, k, v in steps],
                result=steps if good else False, invoked=float(at), returned=100.0 + at,
            )
            for at, (process, steps, *rest) in enumerate(rows)
            for good in [not rest]
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", BY_DEFINITION)
def test_verdicts_are_those_of_the_definition(name):
    outcomes = set()
    for seed in range(120):
        one = small_history(seed)
        good = allowed(name, one)
        outcomes.add(good)
        assert judge(one, name, prefix=False).outcome == ("holds" if good else "violated"), seed
    # Without sessions a read of one key has always a place; only transactions can fail there.
    assert outcomes == ({True} if name in ("serializable", "prefix-sequential") else {True, False})


@pytest.mark.parametrize("name", ["serializable", "sequential", "strict-serializable"])
def test_transactions_are_judged_by_definition_too(name):
    outcomes = set()
    for seed in range(150):
        one = small_history(seed, transactions=True, largest=4)
        good = allowed(name, one)
        outcomes.add(good)
        assert judge(one, name, prefix=False).outcome == ("holds" if good else "violated"), seed
    assert outcomes == {True, False}


def test_snapshot_isolation_is_judged_by_definition():
    outcomes = set()
    for seed in range(120):
        one = small_history(seed, transactions=True, largest=3, open_share=0.0)
        good = snapshot_isolation(one)
        outcomes.add(good)
        assert judge(one, "snapshot-isolation", prefix=False).outcome == ("holds" if good else "violated"), seed
    assert outcomes == {True, False}


def test_update_serializability_is_judged_by_definition():
    outcomes = set()
    for seed in range(200):
        one = small_history(seed, transactions=True, largest=5, open_share=0.0)
        good = update_serializable(one)
        outcomes.add((good, judge(one, "serializable", prefix=False).outcome))
        assert judge(one, "update-serializable", prefix=False).outcome == ("holds" if good else "violated"), seed
    assert {(True, "holds"), (False, "violated")} <= outcomes


def agree_with_unlike_values(one):
    """Hold every model's verdict against those of all ways in which what was read may have been written."""
    ways = list(relabelled(one))
    outcomes = set()
    # Noise is of the history, not of who wrote what; a swap is no read of any of the last values.
    for name in sorted(MODELS.keys() - {"safe", "k-linearizable"}):
        expected = "violated"
        for way in ways:
            if judge(way, name, prefix=False).outcome == "holds":
                expected = "holds"
                break
        found = judge(one, name, prefix=False).outcome
        assert found == expected, name
        outcomes.add((name, found))
    return outcomes


@pytest.mark.parametrize("make", [repeated_history, repeated_transactions])
def test_values_that_come_again_are_judged_as_if_it_were_known_who_wrote_them(make):
    # The last two need a lost swap that did not happen, and a step back past one that did.
    for seed in (*range(12), 111, 1067):
        agree_with_unlike_values(make(seed))


@pytest.mark.slow
@pytest.mark.parametrize("make", [repeated_history, repeated_transactions])
def test_values_that_come_again_are_judged_alike_on_many_histories(make):
    outcomes = set()
    for seed in range(400):
        outcomes |= agree_with_unlike_values(make(seed))
    assert len(outcomes) > 1.7 * len(MODELS)


@pytest.mark.parametrize("transactional", [False, True])
def test_the_lattice_holds_on_every_small_history(transactional):
    follows = implied()
    separated = set()
    for seed in range(150):
        one = small_history(seed, transactions=transactional)
        found = {name: judge(one, name, prefix=False).outcome for name in MODELS}
        # Of transactions only linearizability is known of the last k values.
        assert [name for name, outcome in found.items() if outcome == "undecided" and name != "k-linearizable"] == []
        for strong, weak in itertools.product(MODELS, MODELS):
            if weak in follows[strong] and found[strong] == "holds":
                assert found[weak] != "violated", (seed, strong, weak)
            if found[strong] == "violated" and found[weak] == "holds":
                separated.add((strong, weak))
    assert {("linearizable", "sequential"), ("pram", "read-your-writes")} <= separated


def test_judging_all_at_once_gives_the_verdicts_of_judging_each():
    for seed in range(40):
        one = small_history(seed)
        together = judge_all(one)
        assert list(together) == list(MODELS)
        assert {name: each.outcome for name, each in together.items()} == {
            name: judge(one, name, prefix=False).outcome for name in MODELS
        }


STORE_BUFFER = history(("a", "w", "x", 1), ("a", "r", "y", 0), ("b", "w", "y", 2), ("b", "r", "x", 0))
MESSAGE_PASSING = history(("a", "w", "x", 1), ("a", "w", "y", 2), ("b", "r", "y", 2), ("b", "r", "x", 0))
IRIW = history(("a", "w", "x", 1), ("b", "w", "y", 2), ("c", "r", "x", 1), ("c", "r", "y", 0), ("d", "r", "y", 2),
               ("d", "r", "x", 0))  # fmt: skip
STALE_READ = history(("a", "w", "x", 1), ("b", "r", "x", 0))
TWO_ORDERS = history(("a", "w", "x", 1), ("b", "w", "x", 2), ("c", "r", "x", 1), ("c", "r", "x", 2),
                     ("d", "r", "x", 2), ("d", "r", "x", 1))  # fmt: skip
OWN_WRITE_LOST = history(("a", "w", "x", 1), ("a", "r", "x", 0))
READ_BACK = history(("a", "w", "x", 1), ("b", "r", "x", 1), ("b", "r", "x", 0))
WRITES_SWAPPED = history(("a", "w", "x", 1), ("a", "w", "x", 2), ("b", "r", "x", 2), ("b", "r", "x", 1))
THIRD_PARTY = history(
    ("a", "w", "x", 1), ("b", "r", "x", 1), ("b", "w", "y", 2), ("c", "r", "y", 2), ("c", "r", "x", 0)
)


@pytest.mark.parametrize(
    ("one", "holds", "violated"),
    [
        (STORE_BUFFER, ("causal", "causal-convergence", "cache", "processor", "serializable"), ("sequential",)),
        (MESSAGE_PASSING, ("cache", "read-your-writes", "monotonic-reads"), ("pram", "weak-causal", "sequential")),
        (IRIW, ("causal", "real-time-causal", "processor"), ("sequential", "linearizable")),
        (STALE_READ, ("sequential", "prefix-linearizable", "fork-linearizable"), ("linearizable", "regular", "safe")),
        (TWO_ORDERS, ("causal", "pram"), ("cache", "processor", "causal-plus", "sequential")),
        (OWN_WRITE_LOST, ("monotonic-reads", "prefix-sequential"), ("read-your-writes", "pram", "slow")),
        (READ_BACK, ("read-your-writes",), ("monotonic-reads", "pram", "slow")),
        (WRITES_SWAPPED, ("read-your-writes", "monotonic-reads"), ("pram", "cache", "slow")),
        (THIRD_PARTY, ("pram", "processor"), ("causal", "weak-causal", "causal-plus")),
    ],
)
def test_classic_histories_land_in_their_cells(one, holds, violated):
    found = judge_all(one)
    assert [name for name in holds if found[name].outcome != "holds"] == []
    assert [name for name in violated if found[name].outcome != "violated"] == []


def test_anomalies_of_transactions_land_in_their_cells():
    lost_update = transactions(
        ("a", [["read", "x", None], ["write", "x", 1]]), ("b", [["read", "x", None], ["write", "x", 2]])
    )
    write_skew = transactions(
        ("a", [["read", "x", None], ["write", "y", 1]]), ("b", [["read", "y", None], ["write", "x", 2]])
    )
    long_fork = transactions(
        ("a", [["write", "x", 1]]), ("b", [["write", "y", 2]]), ("c", [["read", "x", 1], ["read", "y", None]]),
        ("d", [["read", "x", None], ["read", "y", 2]]),
    )  # fmt: skip
    fractured = transactions(
        ("a", [["write", "x", 1], ["write", "y", 2]]), ("b", [["read", "x", 1], ["read", "y", None]])
    )
    backwards = transactions(
        ("a", [["write", "x", 1], ["write", "y", 2]]), ("b", [["read", "x", None], ["read", "y", 2]])
    )
    for one, holds, violated in (
        (lost_update, "prefix-consistent", "snapshot-isolation"),
        (lost_update, "transactional-causal", "parallel-snapshot-isolation"),
        (write_skew, "snapshot-isolation", "serializable"),
        (long_fork, "parallel-snapshot-isolation", "prefix-consistent"),
        (long_fork, "update-serializable", "serializable"),
        (write_skew, "parallel-snapshot-isolation", "update-serializable"),
        (fractured, "read-committed", "update-serializable"),
        (backwards, "monotonic-atomic-view", "update-serializable"),
        (fractured, "read-committed", "monotonic-atomic-view"),
        (backwards, "monotonic-atomic-view", "read-atomic"),
    ):
        assert judge(one, holds).outcome == "holds", (holds, violated)
        assert judge(one, violated).outcome == "violated", (holds, violated)


def test_lists_show_their_order_of_appends():
    # Two lists grew in opposite orders: writes of transactions interleave.
    interleaved = transactions(
        ("a", [["append", "x", 1], ["append", "y", 1]]), ("b", [["append", "x", 2], ["append", "y", 2]]),
        ("c", [["read", "x", [1, 2]], ["read", "y", [2, 1]]]),
    )  # fmt: skip
    assert judge(interleaved, "read-uncommitted").outcome == "violated"
    circle = transactions(
        ("a", [["append", "x", 1], ["read", "y", [2]]]), ("b", [["append", "y", 2], ["read", "x", [1]]])
    )
    assert judge(circle, "read-committed").outcome == "violated"
    fine = transactions(("a", [["append", "x", 1]]), ("b", [["append", "x", 2], ["read", "x", [1, 2]]]))
    assert judge(fine, "strict-serializable").outcome == "holds"


def test_a_list_that_shows_one_item_twice_does_not_tell_who_appended_it():
    twice = transactions(
        ("a", [["append", "x", 1]]), ("b", [["append", "x", 1]]), ("c", [["read", "x", [1, 1]]])
    )  # fmt: skip
    assert judge(twice, "serializable").outcome == "undecided"
    nowhere = transactions(("a", [["append", "x", 1]]), ("c", [["read", "x", [1, 2]]]))
    assert judge(nowhere, "serializable").outcome == "violated"


def test_readers_of_lists_keep_to_one_order_of_each_list_under_update_serializability():
    apart = transactions(
        ("a", [["append", "x", 1]]), ("b", [["append", "y", 2]]),
        ("c", [["read", "x", [1]], ["read", "y", None]]), ("d", [["read", "x", None], ["read", "y", [2]]]),
    )  # fmt: skip
    assert judge(apart, "update-serializable").outcome == "holds"
    assert judge(apart, "serializable").outcome == "violated"
    # b saw a's append, so who sees b's must see a's.
    after = transactions(
        ("a", [["append", "x", 1]]), ("b", [["read", "x", [1]], ["append", "y", 2]]),
        ("d", [["read", "x", None], ["read", "y", [2]]]),
    )  # fmt: skip
    assert judge(after, "update-serializable").outcome == "violated"


def test_reads_of_what_was_aborted_or_of_a_middle_are_not_committed():
    aborted = transactions(("a", [["write", "x", 1]], False), ("b", [["read", "x", 1]]))
    middle = transactions(("a", [["write", "x", 1], ["write", "x", 2]]), ("b", [["read", "x", 1]]))
    own = transactions(("a", [["write", "x", 1], ["read", "x", 3]]))
    for one in (aborted, middle):
        assert judge(one, "read-uncommitted").outcome == "holds"
        assert judge(one, "read-committed").outcome == "violated"
    assert judge(own, "read-uncommitted").outcome == "violated"


def test_a_value_from_nowhere_is_allowed_by_no_model():
    one = history(("a", "w", "x", 1), ("b", "r", "x", 9))
    assert {judge(one, name).outcome for name in MODELS} == {"violated"}


def test_eventual_models_hold_settled_reads_against_the_writes():
    apart = history(("a", "w", "x", 1), ("b", "w", "x", 2), ("a", "r", "x", 1), ("b", "r", "x", 2), ("a", "r", "x", 1),
                    ("b", "r", "x", 2))  # fmt: skip
    assert judge(apart, "eventual").outcome == "holds"
    assert judge(apart, "eventual", clocks=Clocks(settled_s=4.0)).outcome == "violated"
    agreed = history(("a", "w", "x", 1), ("b", "w", "x", 2), ("a", "r", "x", 1), ("b", "r", "x", 2), ("a", "r", "x", 2))
    assert judge(agreed, "eventual", clocks=Clocks(settled_s=4.0)).outcome == "holds"


def test_delta_is_the_age_at_which_a_write_must_be_seen():
    # The read is invoked 1 after the write returned.
    for name in ("bounded-staleness", "timed-causal", "delta-atomic"):
        assert judge(STALE_READ, name, clocks=Clocks(delta_s=1.5)).outcome == "holds"
        assert judge(STALE_READ, name, clocks=Clocks(delta_s=0.5)).outcome == "violated"


def test_safe_registers_may_answer_anything_beside_a_write():
    rows = (
        Operation(process="a", action="write", value=1, invoked=0.0, returned=1.0),
        Operation(process="a", action="write", value=2, invoked=2.0, returned=9.0),
        Operation(process="b", action="read", result=0, invoked=3.0, returned=4.0),
    )
    one = History(operations=rows, initial=0)
    assert judge(one, "safe").outcome == "holds"
    assert judge(one, "regular").outcome == "violated"


def test_a_write_that_never_returned_is_under_way_for_good():
    rows = (
        Operation(process="a", action="write", value=1, invoked=0.0, returned=1.0),
        Operation(process="a", action="write", value=2, invoked=2.0),
        Operation(process="b", action="read", result=0, invoked=3.0, returned=4.0),
    )
    assert judge(History(operations=rows, initial=0), "safe").outcome == "holds"
    assert judge(History(operations=(rows[0], rows[2]), initial=0), "safe").outcome == "violated"


def test_a_lost_swap_that_nothing_can_have_fed_forbids_nothing():
    # Its value was never there, so it did not happen: b's next read owes it nothing.
    rows = (
        Operation(process="b", action="write", key="x", value=1, invoked=0.0, returned=1.0),
        Operation(process="a", action="write", key="x", value=1, invoked=0.0, returned=1.0),
        Operation(process="b", action="cas", key="x", value=[7, 2], invoked=2.0),
        Operation(process="c", action="cas", key="x", value=[3, 4], result=False, invoked=3.0, returned=4.0),
        Operation(process="c", action="read", key="x", result=2, invoked=5.0, returned=6.0),
    )
    for name in ("read-your-writes", "causal", "timed-causal", "sequential"):
        assert judge(History(operations=rows[:4]), name).outcome == "holds", name
        assert judge(History(operations=rows), name).outcome == "violated", name


def test_a_k_linearizable_register_may_be_k_writes_behind():
    behind = history(("a", "w", "x", 1), ("a", "w", "x", 2), ("a", "w", "x", 3), ("b", "r", "x", 2))
    assert judge(behind, "k-linearizable", k=1).outcome == "violated"
    assert judge(behind, "k-linearizable", k=2).outcome == "holds"
    far = history(("a", "w", "x", 1), ("a", "w", "x", 2), ("a", "w", "x", 3), ("b", "r", "x", 1))
    assert judge(far, "k-linearizable", k=2).outcome == "violated"
    assert judge(far, "k-linearizable", k=3).outcome == "holds"


def test_values_that_come_again_are_tried():
    both = history(("a", "w", "x", 1), ("b", "w", "x", 2), ("a", "w", "x", 1), ("c", "r", "x", 1), ("c", "r", "x", 2),
                   ("c", "r", "x", 1))  # fmt: skip
    assert judge(both, "sequential").outcome == "holds"
    back = history(("a", "w", "x", 1), ("a", "w", "x", 1), ("b", "r", "x", 1), ("b", "r", "x", 0))
    assert judge(back, "pram").outcome == "violated"


def test_swaps_count_by_what_they_found():
    def swap(process, at, old, new, result):
        return Operation(process=process, action="cas", value=[old, new], result=result, invoked=at, returned=at + 1)

    first = Operation(process="a", action="write", value=1, invoked=0.0, returned=1.0)
    # A failed one of the only value ever held: b must still see 0, though it is sequential only if b saw 1 later.
    found = History(operations=(first, swap("b", 2.0, 0, 5, False)), initial=0)
    assert judge(found, "sequential").outcome == "holds"
    stuck = History(operations=(swap("b", 2.0, 0, 5, False),), initial=0)
    assert judge(stuck, "sequential").outcome == "violated"
    # An unclear one may have happened, but only if it found its value.
    unclear = Operation(process="c", action="cas", value=[7, 5], invoked=1.5)
    read = Operation(process="b", action="read", result=5, invoked=3.0, returned=4.0)
    assert judge(History(operations=(first, unclear, read), initial=0), "causal").outcome == "violated"
    could = Operation(process="c", action="cas", value=[1, 5], invoked=1.5)
    assert judge(History(operations=(first, could, read), initial=0), "causal").outcome == "holds"


def test_a_message_beside_the_store_is_a_cause():
    rows = STALE_READ.operations
    told = History(operations=rows, messages=((0, 1),), initial=0)
    for name in ("causal", "weak-causal", "causal-convergence", "sequential", "parallel-snapshot-isolation"):
        assert judge(STALE_READ, name).outcome == "holds"
        assert judge(told, name).outcome == "violated", name
    assert judge(told, "pram").outcome == "holds"
    # Trees do not know of messages, but a tree that kept them would be causal.
    assert judge(told, "fork-sequential").outcome == "violated"


def test_an_order_explains_what_was_read():
    checked = 0
    for seed in range(60):
        one = small_history(seed)
        for name in ("linearizable", "sequential", "serializable"):
            found = judge(one, name)
            if found.outcome == "holds":
                assert legal(found.order, one.operations)
                returned = {at for at, op in enumerate(one.operations) if op.returned is not None}
                assert returned <= set(found.order)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("name", ["linearizable", "sequential", "causal", "pram", "causal-convergence"])
def test_the_longest_good_prefix_is_good_and_the_next_return_is_not(name):
    checked = 0
    for seed in range(80):
        one = small_history(seed, open_share=0.0)
        found = judge(one, name)
        if found.outcome != "violated":
            continue
        checked += 1

        def until(time, one=one):
            kept = [
                op if op.returned <= time else Operation(process=op.process, action=op.action, key=op.key,
                                                         value=op.value, invoked=op.invoked)
                for op in one.operations
                if op.invoked <= time
            ]  # fmt: skip
            return History(operations=tuple(kept), initial=0)

        assert one.operations[found.culprit].returned == found.good_until
        earlier = [op.returned for op in one.operations if op.returned < found.good_until]
        assert len(earlier) == found.good
        assert judge(until(max(earlier, default=-1.0)), name, prefix=False).outcome == "holds"
        assert judge(until(found.good_until), name, prefix=False).outcome == "violated"
    assert checked > 10


def test_a_cycle_names_operations_of_the_history():
    found = judge(TWO_ORDERS, "cache", prefix=False)
    assert found.outcome == "violated"
    assert set(found.cycle) <= set(range(6))


def test_a_spent_budget_is_undecided_and_says_so():
    many = history(*[("a", "w", "x", at % 2) for at in range(8)], ("b", "r", "x", 1), ("b", "r", "x", 0))
    found = judge(many, "sequential", budget=Budget(seconds=0.0))
    assert found.outcome == "undecided"
    assert "budget" in found.says


def test_a_question_too_large_for_the_memory_is_not_asked():
    many = history(*[("a", "w", "x", at + 1) for at in range(40)], *[("b", "r", "x", 1) for _ in range(40)])
    asked = _Asked(many, object_of(many), Clocks(), 2, Allowance(60.0, 100_000))
    found = _direct(asked, MODELS["causal"])
    assert found.outcome == "undecided"
    assert "memory" in found.says
    assert judge(many, "causal").outcome == "holds"


def test_an_object_that_does_not_show_what_was_seen_is_undecided_for_weak_models():
    one = History(operations=(Operation(process="a", action="acquire", invoked=0.0, returned=1.0),))
    assert judge(one, "linearizable").outcome == "holds"
    follows = judge(one, "causal")
    assert (follows.outcome, follows.by) == ("holds", "implication")
    twice = msgspec.structs.replace(one.operations[0], process="b", invoked=2.0, returned=3.0)
    both = History(operations=(*one.operations, twice))
    assert judge(both, "linearizable").outcome == "violated"
    assert judge(both, "sequential").outcome == "undecided"


def test_the_strongest_that_hold_imply_all_others_that_hold():
    found = judge_all(STORE_BUFFER)
    top = strongest(found)
    follows = implied()
    held = {name for name, each in found.items() if each.outcome == "holds"}
    assert held == set(top) | {weak for name in top for weak in follows[name]}
    assert strongest(judge_all(history(("a", "w", "x", 1)), ("linearizable", "causal"))) == ("linearizable",)


def test_unknown_models_and_stores_are_refused():
    with pytest.raises(UnknownNameError):
        judge(STALE_READ, "linear")
    with pytest.raises(UnknownNameError):
        judge(STALE_READ, "causal", store="registers")


def recorded():
    try:
        return datasets.find("consistency-histories")
    except DataUnavailableError as error:
        pytest.skip(error.problem)


def test_all_etcd_logs_get_their_verdicts():
    folder = recorded() / "jepsen-etcd"
    expected = dict(line.split(",")[:2] for line in (folder / "expected.csv").read_text().split()[1:])
    found = {name: judge(read_history(folder / name), "linearizable").outcome for name in expected}
    assert {name: "true" if outcome == "holds" else "false" for name, outcome in found.items()} == expected


@pytest.mark.parametrize("kind", ["kv-append", "knossos"])
def test_all_other_recorded_histories_get_the_verdicts_of_their_names(kind):
    folder = recorded() / kind
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in (".txt", ".edn")]
    assert files
    for file in files:
        good = "ok" in file.name if kind == "kv-append" else "good" in file.parts
        found = judge(read_history(file), "linearizable")
        assert found.outcome == ("holds" if good else "violated"), file
        assert good or found.culprit is not None


def test_a_weaker_model_never_fails_on_a_recorded_history_that_is_linearizable():
    folder = recorded() / "jepsen-etcd"
    names = ("sequential", "causal", "pram", "read-your-writes", "monotonic-reads", "monotonic-writes")
    for number in (2, 5, 7):
        one = read_history(folder / f"etcd_{number:03}.log")
        for name in names:
            assert judge(one, name, budget=Budget(seconds=3), prefix=False).outcome != "violated"
