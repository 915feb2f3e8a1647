"""Real steps: they are what was asked for, and near what the simulation says."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.offload.chunkflow import ChunkFlow
from wavetank.serving.offload.rivals import FixedYield, InPlace, Layerwise
from wavetank.serving.offload.study_threads import OffloadThreads

QUICK = OffloadThreads(blocks=2, steps=2, block_bytes=200_000, bytes_per_s=10_000_000, compute_s=0.01,
                       exchange_bytes=10_000, chunk_bytes=20_000)  # fmt: skip


def test_real_steps_take_no_less_than_what_is_in_them() -> None:
    found = {name: value for name, value, _ in QUICK.measure(ChunkFlow(resident=0.0), 0).rows}
    # Two blocks whose copies take 20 ms, and collectives of 2 ms.
    assert found["predicted_step_s"] == pytest.approx(0.044, abs=0.004)
    assert found["real_step_s"] >= 0.03
    assert found["prediction_error"] == pytest.approx(abs(found["predicted_step_s"] / found["real_step_s"] - 1))
    assert found["products_per_s"] > 0
    assert QUICK.notes()


def test_the_simulation_is_given_the_times_and_the_rate_alone() -> None:
    case = QUICK.case()
    assert case.compute_ps == 10**10
    assert case.collective_ps == 2 * 10**9
    assert case.link.work_ps(case.weight_bytes) == 2 * 10**10


def test_chunks_are_those_of_the_study_and_shares_the_same_for_all_blocks() -> None:
    assert QUICK.system_for(FixedYield()).chunk_bytes == 20_000
    assert QUICK.system_for(Layerwise()) == Layerwise()
    for system in (InPlace(), Layerwise(resident=0.5)):
        with pytest.raises(BadValueError, match="same share"):
            QUICK.measure(system, 0)
