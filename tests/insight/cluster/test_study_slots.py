"""Study write-slots: figures against single bursts, with real writes and without."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.study_slots import WriteSlots
from wavetank.insight.cluster.write_slots import SlotLimit, burst

STUDY = WriteSlots(processes=0, others=(4,))


def figures(slots: int, **at: float) -> dict[str, float]:
    return {metric: value for metric, value, where in STUDY.measure(SlotLimit(slots=slots), 0).rows if where == at}


def test_figures_are_those_of_single_bursts() -> None:
    one, found = burst(STUDY.load(), 128, 60), figures(128)
    assert found["queue_share"] == one.queue_share > 0.9
    assert found["utilisation"] == pytest.approx(60 * 16e9 / one.lasts_s / 250e9)
    assert figures(128, nodes=4)["queue_share"] < 0.01 and found["share_error"] < 0.02
    assert "real_error" not in found


def test_more_slots_use_more_of_the_server_and_move_the_knee() -> None:
    few, many = figures(128), figures(512)
    assert many["utilisation"] > few["utilisation"] and many["queue_share"] < 0.01
    assert 40 < few["knee_nodes"] < 60 < many["knee_nodes"]


def test_real_writes_are_measured_beside() -> None:
    study = WriteSlots(processes=2, others=(), requests=32, request_kb=64.0, burst_gb=0.01)
    found = {metric: value for metric, value, _ in study.measure(SlotLimit(slots=128), 0).rows}
    assert 0 <= found["real_error"] < 0.25


def test_too_many_requests_are_refused() -> None:
    with pytest.raises(BadValueError):
        WriteSlots(burst_gb=1e5, request_kb=1.0).check()
