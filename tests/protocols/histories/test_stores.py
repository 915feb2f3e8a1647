"""Each store lands where it belongs: what it is built to keep to holds, what it gives up breaks."""

from __future__ import annotations

import pytest

from wavetank.check.consistency.engine import judge
from wavetank.check.consistency.visibility import Clocks
from wavetank.protocols.histories.replicas import World, record
from wavetank.protocols.histories.stores import (
    CausalStore,
    FifoStore,
    LastWriterWinsStore,
    PrimaryStore,
    QuorumStore,
    SequencerStore,
)

WORLDS = (World(think_s=0.1), World(partition_s=2.0, think_s=0.1), World(think_s=0.01, replicas=5))
CLOCKS = Clocks(settled_s=5.0)


def outcomes(store, name, seeds=8):
    return {
        judge(record(store, world, seed).history, name, clocks=CLOCKS, prefix=False).outcome
        for world in WORLDS
        for seed in range(seeds)
    }


@pytest.mark.parametrize(
    ("store", "keeps", "breaks"),
    [
        (LastWriterWinsStore(), ("eventual",), ("causal", "pram")),
        (FifoStore(), ("pram", "read-your-writes"), ("causal", "eventual", "cache")),
        (CausalStore(), ("causal", "causal-convergence", "eventual"), ("sequential",)),
        (SequencerStore(), ("sequential", "eventual"), ("linearizable", "regular")),
        (QuorumStore(write_back=False), ("regular",), ("linearizable",)),
        (QuorumStore(), ("linearizable",), ()),
        (PrimaryStore(), ("linearizable",), ()),
    ],
)
def test_a_store_keeps_to_its_model_and_to_no_more(store, keeps, breaks):
    for name in keeps:
        assert outcomes(store, name) == {"holds"}, name
    for name in breaks:
        assert "violated" in outcomes(store, name, seeds=24), name


def test_last_writer_wins_by_skewed_clocks_is_eventual_and_not_causal():
    found = [record(LastWriterWinsStore(skew_rounds=10.0), World(think_s=0.1), seed).history for seed in range(12)]
    assert {judge(each, "eventual", clocks=CLOCKS).outcome for each in found} == {"holds"}
    assert "violated" in {judge(each, "causal").outcome for each in found}


def test_a_majority_answers_where_a_primary_does_not():
    # The primary sits on the larger side: clients of the cut-off replica get no answer from either.
    world = World(partition_s=3.0, partition_at_s=0.0, patience_s=0.5, think_s=0.1)
    for store in (PrimaryStore(), QuorumStore(), SequencerStore()):
        assert record(store, world, 0).availability < 1.0
    assert record(CausalStore(), world, 0).availability == 1.0
