"""The study: where offloading is free, where it is not, and that seeds are paired."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.offload.chunkflow import ChunkFlow
from wavetank.serving.offload.rivals import AllResident, FixedYield, Layerwise
from wavetank.serving.offload.study import WeightOffload
from wavetank.study.study import Measurements

SMALL = WeightOffload(steps=2, sweep=(32_760,))


def value(found: Measurements, metric: str, **at: float) -> float:
    """Return the one figure of a metric at a place."""
    (only,) = (number for name, number, where in found.rows if (name, where) == (metric, at))
    return only


def test_yielding_is_worth_a_tenth_where_copies_are_as_long_as_blocks() -> None:
    study = WeightOffload(steps=2, sweep=(), tokens=15_600)
    case = study.case(15_600)
    assert case.link.work_ps(case.weight_bytes) == pytest.approx(case.compute_ps, rel=0.01)
    ours, layerwise = study.measure(ChunkFlow(resident=0), 0), study.measure(Layerwise(), 0)
    assert value(layerwise, "step_s") / value(ours, "step_s") > 1.1
    assert value(ours, "peak_bytes") == value(layerwise, "peak_bytes")
    assert value(ours, "copied_bytes") == value(layerwise, "copied_bytes") == 40 * 702_545_920


def test_offloading_is_free_where_blocks_compute_long() -> None:
    ours, free = SMALL.measure(ChunkFlow(), 0), SMALL.measure(AllResident(), 0)
    at = {"tokens": 32_760.0}
    assert value(ours, "step_s", **at) < 1.02 * value(free, "step_s", **at)
    assert value(ours, "peak_bytes", **at) < 0.51 * value(free, "peak_bytes", **at)
    assert value(free, "exposed_s", **at) == 0


def test_a_device_with_a_link_to_its_peers_gains_nothing_from_yielding() -> None:
    study = WeightOffload(steps=2, sweep=(), device="H100-SXM", tokens=32_760)
    ours, never = (study.measure(each, 1) for each in (ChunkFlow(), FixedYield(yields=False)))
    assert value(ours, "step_s") == value(never, "step_s")
    assert value(ours, "exposed_s") == pytest.approx(0, abs=1e-12)


def test_lateness_is_that_of_the_seed_for_all_systems() -> None:
    case = SMALL.case(14_040)
    assert SMALL.late_ps(case, 1) == SMALL.late_ps(case, 1) != SMALL.late_ps(case, 2)
    assert len(SMALL.late_ps(case, 1)) == 2 * 40 * 2
    assert WeightOffload(lateness=0).late_ps(case, 1) == (0,)


def test_what_is_above_the_model_is_what_chunks_under_way_cost() -> None:
    study = WeightOffload(steps=2, sweep=(), lateness=0.0)
    found = study.measure(ChunkFlow(), 0)
    chunk_s = study.case(14_040).link.work_ps(16_000_000) / 1e12
    assert 0 <= value(found, "above_model_s") <= 40 * 2 * chunk_s
    assert value(found, "longest_wait_s") <= chunk_s


def test_settings_that_nothing_has_are_refused() -> None:
    WeightOffload().check()
    with pytest.raises(BadValueError, match="No blocks"):
        WeightOffload(model="Wan").check()
    with pytest.raises(BadValueError, match="evenly"):
        WeightOffload(sweep=(7,)).check()
    with pytest.raises(UnknownNameError, match="device"):
        WeightOffload(device="H1000").check()
    assert WeightOffload().notes()
