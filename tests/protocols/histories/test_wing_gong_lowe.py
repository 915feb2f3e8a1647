"""The textbook's search."""

from __future__ import annotations

import msgspec
from brute_force import allowed, small_history

from wavetank.check.consistency.check import HistoryCheck
from wavetank.check.consistency.generate import kv_history
from wavetank.protocols.histories.wing_gong_lowe import WingGongLowe
from wavetank.sim.history import History
from wavetank.sim.rng import stream


def outcome(system, history):
    return system.judge(history)["linearizable"].outcome


def test_it_agrees_with_all_orders_tried():
    outcomes = set()
    for seed in range(150):
        one = small_history(seed, open_share=0.2)
        good = allowed("linearizable", one)
        outcomes.add(good)
        assert outcome(WingGongLowe(), one) == ("holds" if good else "violated"), seed
    assert outcomes == {True, False}


def test_it_agrees_with_the_engine_on_larger_histories():
    for seed in range(12):
        one = kv_history(clients=6, operations=160, keys=3, seed=seed, rounds=2, lost=seed % 2 == 1)
        assert outcome(WingGongLowe(), one) == outcome(HistoryCheck(), one)


def test_it_agrees_with_the_engine_where_values_come_again_and_reads_are_wrong():
    outcomes = set()
    for seed in range(150):
        rng = stream(seed, "mixed-up")
        made = kv_history(clients=4, operations=16, keys=1, seed=seed, puts=0.15, rounds=4).operations
        reads = [op.result for op in made if op.action == "read"]
        mixed = tuple(
            msgspec.structs.replace(op, result=str(rng.choice(reads)))
            if op.action == "read" and rng.random() < 0.2
            else msgspec.structs.replace(op, returned=None)
            if rng.random() < 0.1
            else op
            for op in made
        )
        one = History(operations=mixed, store="kv", initial="")
        found = outcome(HistoryCheck(), one)
        outcomes.add(found)
        assert found == outcome(WingGongLowe(), one), seed
    assert outcomes == {"holds", "violated"}


def test_it_gives_up_after_its_steps():
    one = kv_history(clients=6, operations=80, keys=3, seed=0)
    assert outcome(WingGongLowe(steps_at_most=5), one) == "undecided"


def test_nothing_is_linearizable():
    assert outcome(WingGongLowe(), History(operations=())) == "holds"
