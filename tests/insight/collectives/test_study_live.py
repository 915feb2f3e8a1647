"""The study of real processes: one run for all systems, and figures of each class."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.insight.collectives import study_live
from wavetank.insight.collectives.ccl_d import CclD
from wavetank.insight.collectives.interface import FAULTS, Verdict
from wavetank.insight.collectives.job_model import Job, Planted, drawn_fault, simulated
from wavetank.insight.collectives.live import Found
from wavetank.insight.collectives.rivals import RandomRank
from wavetank.insight.collectives.study_live import CollectiveFaultsLive, probe_ratios, rounds_of

JOB = Job(group=4, replicas=6, stages=2)


@pytest.fixture
def scripted(monkeypatch):
    """Windows of simulated jobs in place of real processes."""

    def seen_of(study, fault, seed):
        draws = np.random.default_rng([seed, len(fault)])
        planted = drawn_fault(JOB, fault, draws) if fault in ("H2", "S1") else Planted()
        window = simulated(JOB, planted, draws, iterations=8)
        strikes[fault] = planted
        return Found(verdict=Verdict(), delay_s=1.5 if fault == "H2" else 1.0, window=window)

    strikes = {}
    monkeypatch.setattr(study_live, "seen_of", seen_of)
    monkeypatch.setattr(study_live, "probe_ratios", lambda study, seed: [1.0, 1.02])
    strike = study_live._strike
    monkeypatch.setattr(
        study_live, "_strike",
        lambda study, fault, seed: type(strike(study, fault, seed))(
            fault=fault, rank=strikes[fault].ranks[0] if strikes[fault].ranks else 0
        ),
    )  # fmt: skip


def test_located_classes_are_counted_and_probes_are_timed_for_the_paper_s_system_alone(scripted):
    study = CollectiveFaultsLive(sizes_mb=(1, 4), hang_s=300.0)
    found = {(name, *at.values()): value for name, value, at in study.measure(CclD(), 0).rows}
    assert found["classes_located",] == 2 and found["located", "H2"] == found["located", "S1"] == 1
    assert found["located", "H1"] == 0 and found["healthy_alarms",] == 0 and found["delay_s",] == 1.5
    assert found["probe_time_ratio", 4] == 1.02 and 1.0 < found["probe_time_mean",] < 1.02
    other = {name for name, _, _ in study.measure(RandomRank(), 0).rows}
    assert "probe_time_mean" not in other and "classes_located" in other


def test_seeds_draw_who_and_how():
    study = CollectiveFaultsLive()
    drawn = [study_live._strike(study, fault, seed) for fault in FAULTS for seed in range(6)]
    assert {each.rank for each in drawn} == {0, 1, 2, 3}
    assert {each.how for each in drawn if each.fault == "H2"} == {"size", "op"}
    assert {each.how for each in drawn if each.fault == "S2"} == {"sleep", "throttle"}
    assert study_live._strike(study, "S2", 1) == study_live._strike(study, "S2", 1)
    assert "60 MB/s" in study.notes()[0]


@pytest.mark.slow
def test_probes_are_timed_on_real_processes():
    study = CollectiveFaultsLive(sizes_mb=(1, 2), rounds=3)
    ratios = probe_ratios(study, 0)
    assert len(ratios) == 2 and all(0.2 < each < 5 for each in ratios)
    assert probe_ratios(study, 0) is ratios


def test_small_sizes_are_timed_more_often():
    assert rounds_of(CollectiveFaultsLive(sizes_mb=(1, 4, 16, 64), rounds=8)) == [128, 128, 32, 8]
