"""Each model's verdict is the same alone and with all others, and no verdict contradicts the lattice."""

from __future__ import annotations

import random

import pytest

from wavetank.check.consistency.configurations import MODELS, implied
from wavetank.check.consistency.engine import judge, judge_all
from wavetank.check.report import Budget
from wavetank.sim.history import History, Operation

BUDGET = Budget(memory_bytes=2**30, seconds=60.0)
STORES = ("register", "keyed", "list-append", "rw-register", "set", "queue", "list")


def simulated(store, seed, *, operations=7, wrong=False):
    """Run clients of one copy of a store, each operation taking effect between call and return; then spoil a result."""
    rng = random.Random(f"{store} {seed} {wrong}")
    drawn = []
    free = dict.fromkeys("abc", 0.0)
    for _ in range(operations):
        process = rng.choice("abc")
        invoked = free[process] + rng.random()
        returned = invoked + 2 * rng.random() + 0.01
        free[process] = returned
        drawn.append((rng.uniform(invoked, returned), invoked, returned, process))
    held, made = {}, []
    for count, (_, invoked, returned, process) in enumerate(sorted(drawn), start=1):
        action, key, value, result = _does(store, rng, held, count)
        made.append(
            Operation(process=process, action=action, key=key, value=value, result=result, invoked=invoked,
                      returned=None if rng.random() < 0.05 and action in ("write", "append", "add") else returned)
        )  # fmt: skip
    made.sort(key=lambda op: op.invoked)
    if wrong:
        _spoil(store, rng, made)
    last = {}
    # A process that gave up goes on under another name.
    for at, op in enumerate(made):
        if last.get(op.process, 0) is None:
            made[at] = Operation(process=f"{op.process}'", action=op.action, key=op.key, value=op.value,
                                 result=op.result, invoked=op.invoked, returned=op.returned)  # fmt: skip
        else:
            last[op.process] = op.returned
    return History(operations=tuple(made), store="list" if store == "list" else "")


def _does(store, rng, held, count):
    key = rng.choice("xy") if store == "keyed" else ""
    reads = rng.random() < 0.5
    if store in ("register", "keyed"):
        if reads:
            return "read", key, None, held.get(key)
        if rng.random() < 0.2:
            old, seen = rng.choice([1, count - 1]), held.get(key)
            if seen == old:
                held[key] = count
            return "cas", key, [old, count], seen == old
        held[key] = count
        return "write", key, count, None
    if store in ("set", "list"):
        if reads:
            return "read", key, None, list(held.get(key, ()))
        held[key] = (*held.get(key, ()), count)
        return "add" if store == "set" else "append", key, count, None
    if store == "queue":
        items = held.setdefault("", [])
        if reads:
            return "dequeue", "", None, items.pop(0) if items else None
        items.append(count)
        return "enqueue", "", count, None
    asked, told = [], []
    for part in range(rng.randint(1, 3)):
        key = rng.choice("xy")
        if rng.random() < 0.5:
            seen = held.get(key)
            asked.append(["read", key, None])
            told.append(["read", key, list(seen or ()) if store == "list-append" else seen])
            continue
        value = 10 * count + part
        step = ["append" if store == "list-append" else "write", key, value]
        held[key] = (*(held.get(key) or ()), value) if store == "list-append" else value
        asked.append(step)
        told.append(step)
    return "transaction", "", asked, told


def _spoil(store, rng, made):
    """Let some answer be one that was given at another time."""
    answers = [at for at, op in enumerate(made) if op.action in ("read", "dequeue", "transaction")]
    if not answers:
        return
    at = rng.choice(answers)
    op = made[at]
    if op.action == "transaction":
        steps = [list(step) for step in op.result]
        reads = [step for step in steps if step[0] == "read"]
        for step in reads[:1]:
            if store == "list-append":
                step[2] = step[2][: rng.randint(0, len(step[2]))] if rng.random() < 0.8 else [*step[2], 999]
            else:
                step[2] = rng.choice([None, 10, 20, 21, 30])
        result = steps
    elif store in ("set", "list"):
        result = op.result[:-1]
    else:
        result = rng.choice([None, 1, 2, 3])
    made[at] = Operation(process=op.process, action=op.action, key=op.key, value=op.value, result=result,
                         invoked=op.invoked, returned=op.returned)  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_alone_and_together_are_one_verdict_and_the_lattice_is_respected(store):
    follows = implied()
    outcomes = set()
    for seed in range(12):
        wrong = seed % 2 == 1
        one = simulated(store, seed, wrong=wrong)
        together = judge_all(one, budget=BUDGET)
        some = judge_all(one, ("linearizable", "strict-serializable", "serializable", "causal"), budget=BUDGET)
        for name in MODELS:
            alone = judge(one, name, budget=BUDGET, prefix=False).outcome
            assert alone == together[name].outcome, (seed, name)
            assert name not in some or some[name].outcome == alone, (seed, name)
            for weak in follows[name]:
                if alone == "holds":
                    assert together[weak].outcome == "holds", (seed, name, weak)
            outcomes.add((name, alone))
        if not wrong:
            assert together["linearizable"].outcome == "holds", seed
    assert ("linearizable", "violated") in outcomes


def test_a_list_nobody_wrote_reads_as_nil_or_as_empty():
    for value in (None, []):
        op = Operation(
            process="0", action="transaction", value=[["read", "3", None]], result=[["read", "3", value]],
            invoked=0.0, returned=1.0,
        )  # fmt: skip
        later = Operation(
            process="0", action="transaction", value=[["append", "3", 1]], result=[["append", "3", 1]],
            invoked=2.0, returned=3.0,
        )  # fmt: skip
        for history in (History(operations=(op,)), History(operations=(op, later))):
            assert {each.outcome for each in judge_all(history).values()} == {"holds"}
