"""What each rival keeps and when it yields."""

from __future__ import annotations

import pytest
from tests.serving.offload.conftest import small_case

from wavetank.errors import BadValueError
from wavetank.serving.offload.chunkflow import ChunkFlow
from wavetank.serving.offload.rivals import AllResident, FixedYield, InPlace, Layerwise
from wavetank.sim.links import CopyView

PENDING = CopyView(pending=1, left_ps=10, due_ps=100)


def test_all_resident_keeps_all_and_in_place_keeps_nothing() -> None:
    case = small_case()
    assert AllResident().plan(case).resident == (40,) * 4
    assert InPlace().plan(case).resident == (0,) * 4
    assert InPlace().plan(case).in_place
    assert not AllResident().waits(PENDING)
    assert not InPlace().waits(PENDING)


def test_layerwise_copies_a_block_as_one_chunk_some_ahead_and_never_yields() -> None:
    plan = Layerwise(ahead=2).plan(small_case())
    assert (plan.chunk_bytes, plan.slots, plan.resident) == (40, 3, (0,) * 4)
    assert Layerwise(ahead=0).plan(small_case()).slots == 1
    assert not Layerwise().waits(PENDING)


def test_layerwise_keeps_whole_blocks_evenly_and_no_fewer_bytes_than_chunkflow() -> None:
    case = small_case(layers=10, weights=100)
    assert Layerwise(resident=0.3).plan(case).resident == (0, 0, 0, 100, 0, 0, 100, 0, 0, 100)
    kept = sum(Layerwise(resident=-1).plan(case).resident)
    assert kept == 500 == sum(ChunkFlow().plan(case).resident)
    assert sum(Layerwise(resident=0.31).plan(case).resident) == 400


def test_fixed_rules_yield_always_or_never_and_keep_what_chunkflow_keeps() -> None:
    late = CopyView(pending=1, left_ps=10, due_ps=0)
    assert FixedYield().waits(late)
    assert not FixedYield().waits(CopyView(pending=0, left_ps=10, due_ps=0))
    assert not FixedYield(yields=False).waits(PENDING)
    assert FixedYield().plan(small_case(weights=90)) == ChunkFlow().plan(small_case(weights=90))


def test_rivals_refuse_what_chunkflow_refuses() -> None:
    for kind in (FixedYield, Layerwise):
        with pytest.raises(BadValueError):
            kind(resident=-0.5)
    with pytest.raises(BadValueError):
        FixedYield(chunk_bytes=-1)
    with pytest.raises(BadValueError):
        Layerwise(ahead=-1)
