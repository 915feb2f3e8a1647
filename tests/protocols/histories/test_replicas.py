"""The small world in which stores run."""

from __future__ import annotations

import pytest

from wavetank.protocols.histories.replicas import World, mean_staleness_s, record, staleness_s
from wavetank.protocols.histories.stores import (
    CausalStore,
    FifoStore,
    LastWriterWinsStore,
    PrimaryStore,
    QuorumStore,
    SequencerStore,
)
from wavetank.sim.history import History, Operation

STORES = (LastWriterWinsStore(), PrimaryStore(), QuorumStore())


@pytest.mark.parametrize("store", STORES)
def test_equal_seeds_give_equal_histories(store):
    world = World(partition_s=0.5)
    assert record(store, world, 3) == record(store, world, 3)
    assert record(store, world, 3) != record(store, world, 4)


@pytest.mark.parametrize("store", STORES)
def test_without_a_partition_every_operation_is_answered(store):
    run = record(store, World(), 1)
    assert run.availability == 1.0
    # Each client's operations, and a last read of each key.
    assert len(run.history) == 6 * (8 + 2)
    assert all(op.returned is not None for op in run.history.operations)


def test_a_message_over_a_cut_waits_until_it_heals():
    # The writes on one side of the cut are seen on the other once it has healed, and not before.
    world = World(replicas=2, clients=2, writes=1.0, partition_at_s=0.0, partition_s=5.0, delay_s=0.01, quiet_s=0.0)
    run = record(LastWriterWinsStore(skew_rounds=0.0), world, 0)
    reads = [op for op in run.history.operations if op.action == "read"]
    for process in "01":
        own = {op.value for op in run.history.operations if op.process == process}
        assert {op.result for op in reads if op.process == process} <= own
    assert all(4.999 < op.invoked < 5.1 for op in reads)


def test_no_run_breaks_a_store_s_own_invariant():
    worlds = (World(), World(partition_s=1.0), World(replicas=5, think_s=0.01))
    stores = (*STORES, FifoStore(), CausalStore(), SequencerStore(), QuorumStore(write_back=False))
    assert {record(store, world, seed).violation for store in stores for world in worlds for seed in range(4)} == {""}


def test_who_gives_up_goes_on_under_another_name():
    run = record(PrimaryStore(), World(partition_s=4.0, patience_s=0.5), 0)
    assert run.availability < 1.0
    names = {op.process for op in run.history.operations}
    assert any("." in name for name in names)
    assert all(op.action == "write" for op in run.history.operations if op.returned is None)


def test_staleness_is_the_time_since_what_was_read_was_overwritten():
    def op(process, action, at, value=None, result=None):
        return Operation(
            process=process, action=action, key="x", value=value, result=result, invoked=at, returned=at + 1
        )

    rows = (
        op("a", "write", 0.0, 1),
        op("b", "read", 2.0, result=0),
        op("a", "write", 4.0, 2),
        op("b", "read", 10.0, result=1),
        op("c", "read", 10.0, result=2),
        op("d", "read", 10.0, result=0),
    )
    assert staleness_s(History(operations=rows, initial=0)) == [1.0, 5.0, 0.0, 9.0]
    assert mean_staleness_s(History(operations=rows, initial=0)) == 3.75
    assert mean_staleness_s(History(operations=())) == 0.0
