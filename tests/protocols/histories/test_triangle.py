"""The impossibility triangle: availability, one order and timeliness are never had together under a long partition."""

from __future__ import annotations

import pytest

from wavetank.protocols.histories.replicas import World, record
from wavetank.protocols.histories.stores import (
    CausalStore,
    FifoStore,
    LastWriterWinsStore,
    PrimaryStore,
    QuorumStore,
    SequencerStore,
)
from wavetank.protocols.histories.triangle import corner_of, was_tested

LONG = World(partition_s=3.0, partition_at_s=0.2, operations=16, think_s=0.15)


def walk(store, world, delta_s, seeds):
    """Run a store under a partition, once per seed, and return the corners of the runs that put the question."""
    runs = [record(store, world, seed) for seed in seeds]
    return [corner_of(run, delta_s) for run in runs if run.availability < 1.0 or was_tested(run, world, delta_s)]


@pytest.mark.parametrize(
    "store", [LastWriterWinsStore(), FifoStore(), CausalStore(), SequencerStore(), QuorumStore(), PrimaryStore()]
)
def test_no_run_under_a_partition_longer_than_delta_has_all_three(store):
    corners = walk(store, LONG, 0.5, range(6))
    assert corners
    assert not any(corner.impossible for corner in corners)


def test_each_pair_of_two_is_reached_by_some_store():
    available = walk(LastWriterWinsStore(skew_rounds=0.0), LONG, 0.5, range(6))
    assert any(corner.available and corner.ordered and not corner.timely for corner in available)
    timely = walk(QuorumStore(), LONG, 0.5, range(6))
    assert any(corner.timely and corner.ordered and not corner.available for corner in timely)


def test_without_a_partition_all_three_are_had():
    run = record(PrimaryStore(), World(), 0)
    assert corner_of(run, 0.5).impossible
    assert not was_tested(run, World(), 0.5)


def test_a_delta_longer_than_the_partition_can_be_kept():
    run = record(CausalStore(), LONG, 1)
    corner = corner_of(run, 60.0)
    assert corner.available
    assert corner.timely
