"""The study: equal faults for all, schedules of each kind, and settings that cannot be run."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.training.reshaping.fault_events import Event
from wavetank.training.reshaping.reshape import Reshape
from wavetank.training.reshaping.study import Reshaping

SMALL = {"schedule": "dead", "stages": 4, "replicas": 2, "layers": 16, "share": 4, "hours": 2.0}
STUDY = Reshaping(**SMALL)


def figures(system, study=STUDY, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


def test_equal_seeds_give_equal_figures():
    assert figures(Reshape()) == figures(Reshape()) != figures(Reshape(), seed=1)


def test_the_three_remedies_train_more_than_one_and_less_than_a_healthy_job():
    together, alone = figures(Reshape()), figures(Reshape(pipeline=False, data=False))
    assert 1 > together["throughput_share",] > alone["throughput_share",] > 0
    assert together["throughput_share", 30.0] == together["throughput_share",]
    assert together["throughput_share", 120.0] > together["throughput_share", 15.0]
    assert together["plans",] == 3


def test_one_slow_gpu_costs_the_more_the_slower_it_is():
    found = figures(Reshape())
    shares = [found["one_fault_share", loss] for loss in (0.1, 0.25, 0.5)]
    assert 1 > shares[0] >= shares[1] >= shares[2] >= found["one_fault_share", 1.0] > 0.6


def test_schedules_kill_or_slow():
    assert {each.speed for each in STUDY.events(0)[0]} == {0.0}
    slow = Reshaping(**{**SMALL, "schedule": "slow"})
    assert {each.speed for each in slow.events(0)[0]} <= {0.9, 0.75, 0.5}
    assert STUDY.events(0) == STUDY.events(0) != STUDY.events(1)


def test_the_trace_names_its_data(monkeypatch):
    monkeypatch.setattr("wavetank.training.reshaping.study.slow_share_of_trace", lambda: 0.5)
    monkeypatch.setattr(
        "wavetank.training.reshaping.study.recorded_events",
        lambda devices, *, slow_share, **more: ((Event(devices, 0, slow_share),), 1e4),
    )
    recorded = Reshaping(**{**SMALL, "schedule": "trace"})
    assert recorded.events(0) == ((Event(32, 0, 0.5),), 1e4)
    (checksum,) = recorded.data().values()
    assert len(checksum) == 64
    assert STUDY.data() == {}
    rows = recorded.measure(Reshape(), 0).rows
    asked = []

    class Asking:
        def reshape(self, view):
            asked.append(view.quiet_s)
            return view.plan

    recorded.trained(Asking(), 0)
    # Not what is set for drawn faults: one change in 10,000 s.
    assert asked == [5000.0]
    assert not any("every_min" in at for _, _, at in rows)


def test_a_step_of_the_job_is_that_of_its_operations():
    job = STUDY.job()
    flops = 6 * 70e9 / 16 * 4096 + 6 * 64 * 128 * 4096**2
    assert job.layer_ps == pytest.approx(flops / (3.12e14 * 0.45) * 1e12, rel=1e-9)
    assert job.activation_bytes == 2 * 8192 * 4096 and job.layer_bytes == 2 * 70e9 / 16
    assert "32 A100" in STUDY.notes()[0]


def test_jobs_that_cannot_be_run_are_refused(monkeypatch):
    with pytest.raises(BadValueError, match="Every stage has a layer"):
        Reshaping(**{**SMALL, "layers": 3}).check()
    monkeypatch.setattr("wavetank.training.reshaping.study.datasets.find", lambda name: None)
    with pytest.raises(BadValueError, match="too few servers"):
        Reshaping(schedule="trace", replicas=64).check()
