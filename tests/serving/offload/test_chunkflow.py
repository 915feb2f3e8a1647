"""When copies step aside, and how much stays."""

from __future__ import annotations

import math

import pytest
from tests.serving.offload.conftest import small_case

from wavetank.errors import BadValueError
from wavetank.serving.offload.chunkflow import ChunkFlow, check_resident, chunk_of, uniform_plan
from wavetank.sim.links import CopyView


def test_a_copy_steps_aside_for_a_collective_while_it_has_slack() -> None:
    system = ChunkFlow()
    assert system.waits(CopyView(pending=1, left_ps=10, due_ps=11))
    assert not system.waits(CopyView(pending=1, left_ps=10, due_ps=10))
    assert not system.waits(CopyView(pending=1, left_ps=10, due_ps=0))
    assert not system.waits(CopyView(pending=0, left_ps=10, due_ps=1000))


def test_what_stays_is_what_does_not_come_while_a_block_computes() -> None:
    case = small_case(weights=130)
    assert ChunkFlow(chunk_bytes=7).plan(case).resident == (80,) * 4
    assert ChunkFlow(chunk_bytes=7).plan(small_case(weights=50)).resident == (0,) * 4
    assert ChunkFlow(chunk_bytes=7).plan(small_case(weights=51)).resident == (1,) * 4
    assert ChunkFlow(resident=0.25).plan(case).resident == (33,) * 4
    assert uniform_plan(case, 1.0, 7).resident == (130,) * 4


@pytest.mark.parametrize("resident", [-0.5, 1.5, math.nan, math.inf, -2.0])
def test_a_share_is_a_share_or_left_to_the_model(resident: float) -> None:
    with pytest.raises(BadValueError):
        ChunkFlow(resident=resident)
    with pytest.raises(BadValueError, match="share of the weights"):
        check_resident(resident)


def test_chunks_are_a_hundredth_of_a_block_and_neither_tiny_nor_huge() -> None:
    sizes = [chunk_of(small_case(compute=(ps,)), 0) for ps in (1, 500_000_000, 10**12)]
    assert sizes == [1_000_000, 5_000_000, 16_000_000]
    assert chunk_of(small_case(), 7) == 7
    assert ChunkFlow().plan(small_case()).chunk_bytes == 1_000_000
    # Copies that are late whatever their chunks have the largest.
    assert ChunkFlow(resident=0).plan(small_case(weights=51)).chunk_bytes == 16_000_000
    assert ChunkFlow(resident=0.1).plan(small_case(weights=51)).chunk_bytes == 1_000_000


@pytest.mark.parametrize("chunk_bytes", [-1, 2**31])
def test_chunks_have_bytes(chunk_bytes: int) -> None:
    with pytest.raises(BadValueError):
        ChunkFlow(chunk_bytes=chunk_bytes)
