"""The serialization graph: against all orders by enumeration, and each anomaly by its name and edges."""

from __future__ import annotations

import itertools
import random

import pytest

from wavetank.check.consistency.check import HistoryCheck
from wavetank.check.consistency.configurations import MODELS
from wavetank.check.consistency.dependencies import cycles, dependencies, forbids
from wavetank.check.consistency.engine import judge, judge_all
from wavetank.check.consistency.files import write_history
from wavetank.check.report import Budget
from wavetank.sim.history import History, Operation


def transactions(*rows):
    """Build transactions of (process, steps, and perhaps invoked and returned, or False if aborted)."""
    made = []
    for at, (process, steps, *rest) in enumerate(rows):
        aborted = rest == [False]
        invoked, returned = rest if len(rest) == 2 else (float(at), 100.0 + at)
        told = [{"r": "read", "a": "append", "w": "write"}[step[0]] for step in steps]
        full = [[name, *step[1:]] for name, step in zip(told, steps, strict=True)]
        made.append(
            Operation(process=process, action="transaction", result=False if aborted else full,
                      value=[[a, k, None if a == "read" else v] for a, k, v in full],
                      invoked=invoked, returned=returned)
        )  # fmt: skip
    return History(operations=tuple(made))


def found_in(history):
    graph = dependencies(history)
    return {each.name: each for each in (*graph.findings, *cycles(graph))}


NAMED = {
    "G0": [("a", [("a", "x", 1), ("a", "y", 1)]), ("b", [("a", "x", 2), ("a", "y", 2)]),
           ("c", [("r", "x", [1, 2]), ("r", "y", [2, 1])])],
    "G1a": [("a", [("a", "x", 1)], False), ("b", [("r", "x", [1])])],
    "G1b": [("a", [("a", "x", 1), ("a", "x", 2)]), ("b", [("r", "x", [1])])],
    "G1c": [("a", [("a", "x", 1), ("r", "y", [1])]), ("b", [("a", "y", 1), ("r", "x", [1])])],
    "G-single": [("a", [("a", "x", 1), ("a", "y", 1)]), ("b", [("r", "x", [1]), ("r", "y", [])]),
                 ("c", [("r", "y", [1])])],
    "G2-item": [("a", [("r", "x", []), ("a", "y", 1)]), ("b", [("r", "y", []), ("a", "x", 1)]),
                ("c", [("r", "x", [1]), ("r", "y", [1])])],
    "G-nonadjacent": [("a", [("a", "x", 1)]), ("b", [("a", "y", 1)]), ("c", [("r", "x", [1]), ("r", "y", [])]),
                      ("d", [("r", "x", []), ("r", "y", [1])])],
    "lost-update": [("a", [("r", "x", []), ("a", "x", 1)]), ("b", [("r", "x", []), ("a", "x", 2)])],
    "dirty-update": [("a", [("a", "x", 1)], False), ("b", [("a", "x", 2)]), ("c", [("r", "x", [1, 2])])],
    "internal": [("a", [("a", "x", 1), ("r", "x", [])])],
    "incompatible-order": [("a", [("a", "x", 1)]), ("b", [("a", "x", 2)]), ("c", [("r", "x", [1])]),
                           ("d", [("r", "x", [2])])],
    "duplicate-elements": [("a", [("a", "x", 1)]), ("b", [("r", "x", [1, 1])])],
    "thin-air": [("a", [("r", "x", [9])])],
    "G0-process": [("a", [("a", "x", 1)], 0.0, 10.0), ("a", [("a", "x", 2)], 10.0, 20.0), ("b", [("r", "x", [2, 1])])],
    "G-single-process": [("a", [("a", "x", 1)], 0.0, 10.0), ("a", [("r", "x", [])], 10.0, 20.0)],
    "G-single-realtime": [("a", [("a", "x", 1)], 0.0, 10.0), ("b", [("r", "x", [])], 11.0, 20.0)],
    "G1c-realtime": [("b", [("r", "x", [1])], 0.0, 10.0), ("a", [("a", "x", 1)], 11.0, 20.0)],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_each_anomaly_has_its_name_and_a_cycle_has_its_edges(name):
    history = transactions(*sorted(NAMED[name], key=lambda row: row[2] if len(row) == 4 else 0.0))
    found = found_in(history)
    assert name in found
    links = found[name].links
    assert bool(links) == name.startswith(("G0", "G1c", "G-", "G2"))
    for one, two in zip(links, [*links[1:], *links[:1]], strict=True):
        assert one.head == two.tail
    kinds = [link.kind for link in links]
    assert kinds.count("rw") == (1 if name.startswith("G-single") else 2 if name in ("G2-item", "G-nonadjacent") else 0)
    assert ("rt" in kinds) == name.endswith("realtime")
    strict = judge(history, "strict-serializable")
    assert strict.outcome == "violated"
    assert name in {each.name for each in strict.anomalies}
    # What models forbid and what they decide agree.
    for model, configuration in MODELS.items():
        if any(forbids(configuration, each) for each in found):
            assert judge(history, model, prefix=False).outcome != "holds", model


def test_registers_have_names_too():
    skew = [("a", [("r", "x", None), ("w", "y", 1)]), ("b", [("r", "y", None), ("w", "x", 1)])]
    assert set(found_in(transactions(*skew))) == {"G2-item"}
    lost = [("a", [("w", "x", 1)]), ("b", [("r", "x", 1), ("w", "x", 2)]), ("c", [("r", "x", 1), ("w", "x", 3)])]
    assert "lost-update" in found_in(transactions(*lost))
    early = [("a", [("w", "x", 1), ("w", "x", 2)]), ("b", [("r", "x", 1)])]
    assert set(found_in(transactions(*early))) == {"G1b"}


def random_lists(seed):
    """Run transactions one by one at random moments, and give some of them answers of another moment."""
    rng = random.Random(seed)
    held = {"x": [], "y": []}
    rows, free = [], dict.fromkeys("abc", 0.0)
    wrong = rng.random() < 0.7
    drawn = []
    for _ in range(rng.randint(2, 5)):
        process = rng.choice("abc")
        invoked = free[process] + rng.random() + 0.001
        returned = invoked + 2 * rng.random() + 0.001
        free[process] = returned
        drawn.append((rng.uniform(invoked, returned), process, invoked, returned))
    count, past = 0, []
    for _, process, invoked, returned in sorted(drawn):
        steps = []
        view = rng.choice(past) if wrong and past and rng.random() < 0.4 else held
        view = {key: list(items) for key, items in view.items()}
        for _ in range(rng.randint(1, 3)):
            key = rng.choice("xy")
            if rng.random() < 0.5:
                steps.append(("r", key, list(view[key])))
            else:
                count += 1
                view[key].append(count)
                held[key].append(count)
                steps.append(("a", key, count))
        past.append({key: list(items) for key, items in held.items()})
        rows.append((process, steps, invoked, returned))
    return transactions(*sorted(rows, key=lambda row: row[2]))


def explained(history, *, sessions, real_time):
    """Return by enumeration whether one copy could have run the transactions in some order."""
    operations = history.operations
    for order in itertools.permutations(range(len(operations))):
        place = {at: number for number, at in enumerate(order)}
        if any(
            place[two] < place[one]
            for one, two in itertools.permutations(range(len(operations)), 2)
            if (sessions and operations[one].process == operations[two].process and one < two)
            or (real_time and operations[one].returned < operations[two].invoked)
        ):
            continue
        held, good = {}, True
        for at in order:
            for action, key, value in operations[at].result:
                if action == "append":
                    held[key] = [*held.get(key, []), value]
                elif held.get(key, []) != (value or []):
                    good = False
        if good:
            return True
    return False


def test_the_graph_decides_as_all_orders_do():
    outcomes = set()
    for seed in range(400):
        history = random_lists(seed)
        for name, sessions, real_time in (
            ("serializable", False, False), ("strong-session-serializable", True, False),
            ("strict-serializable", True, True), ("linearizable", True, True),
        ):  # fmt: skip
            good = explained(history, sessions=sessions, real_time=real_time)
            found = judge(history, name, prefix=False)
            assert found.outcome == ("holds" if good else "violated"), (seed, name)
            assert good or found.anomalies, (seed, name)
            outcomes.add((name, good))
        names = found_in(history)
        for model in ("read-committed", "snapshot-isolation", "parallel-snapshot-isolation", "update-serializable"):
            if any(forbids(MODELS[model], each) for each in names):
                assert judge(history, model, prefix=False).outcome == "violated", (seed, model, names)
    assert len(outcomes) == 8


def test_a_verdict_shows_the_edges_in_words_and_as_data(tmp_path):
    path = tmp_path / "skew.jsonl"
    write_history(path, transactions(*NAMED["G2-item"]))
    report = HistoryCheck(models=("serializable",)).check(path, Budget(seconds=120.0))
    (verdict,) = report.verdicts
    assert verdict.says.startswith("G2-item: ")
    assert "-rw->" in verdict.evidence
    (anomaly,) = verdict.anomalies
    assert {edge["kind"] for edge in anomaly["edges"]} == {"rw"}
    assert "G2-item" in report.page


@pytest.mark.parametrize(
    ("steps", "told"),
    [([("r", "x", [1]), ("a", "x", 1)], [1]), ([("a", "x", 1), ("r", "x", [1, 1])], [1]),
     ([("r", "x", [1, 2]), ("a", "x", 2)], [1, 2]), ([("r", "x", [2]), ("a", "x", 2)], [2, 3])],
)  # fmt: skip
def test_nobody_reads_its_own_later_append_whatever_the_order_of_the_lines(steps, told):
    rows = [("a", steps, 0.0, 10.0), ("b", [("r", "x", told)], 0.0, 10.0), ("c", [("r", "x", told)], 0.0, 10.0),
            ("d", [("a", "x", item) for item in told if ("a", "x", item) not in steps], 0.0, 10.0)]  # fmt: skip
    for order in itertools.permutations(rows):
        history = transactions(*order)
        assert "internal" in found_in(history)
        together = judge_all(history)
        for name in ("strict-serializable", "serializable", "snapshot-isolation", "read-committed"):
            assert judge(history, name).outcome == together[name].outcome == "violated"


def test_names_are_given_to_models_that_others_condemn():
    history = transactions(*NAMED["G1c"])
    together = judge_all(history)
    for name, found in together.items():
        names = {each.name for each in found.anomalies}
        assert names == {each.name for each in judge(history, name).anomalies}
        assert ("G1c" in names) == (found.outcome == "violated" and forbids(MODELS[name], "G1c"))
    assert together["serializable"].anomalies


@pytest.mark.parametrize("name", ["snapshot-isolation", "update-serializable"])
@pytest.mark.parametrize("kind", ["lost-update", "G1a", "internal", "G0", "G1c"])
def test_an_anomaly_among_thousands_of_transactions_needs_no_search(name, kind):
    rows = [(f"p{at % 7}", [("a", f"k{at}", 1)], float(at), at + 0.5) for at in range(4000)]
    history = transactions(*rows, *((f"q{row[0]}", *row[1:]) if False in row else
                                    (f"q{row[0]}", row[1], 5000.0, 6000.0) for row in NAMED[kind]))  # fmt: skip
    found = judge(history, name, budget=Budget(seconds=60.0, memory_bytes=2**27), prefix=False)
    assert (found.outcome, found.by) == ("violated", "graph")
    assert kind in {each.name for each in found.anomalies}
