"""The study of simulated faults: figures of systems whose answers are known."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.insight.collectives.ccl_d import CclD
from wavetank.insight.collectives.interface import FAULTS, Verdict
from wavetank.insight.collectives.rivals import RandomRank, Timestamps
from wavetank.insight.collectives.study import CollectiveFaults

STUDY = CollectiveFaults(
    replicas=4, anomalies=2, healthy=6, swept=1, strengths=(1.1, 8.0), clocks=(0.0, 1.0), timed=False
)


def figures(system, study=STUDY, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


class Silent:
    def find(self, window):
        return Verdict()


def test_the_paper_s_analyser_names_all_above_its_threshold_and_none_below():
    found = figures(CclD())
    assert found["rank_accuracy",] == found["class_accuracy",] == found["macro_f1",] == 1
    assert found["classes_located",] == 6 and found["false_alarm_share",] == 0
    assert found["victims_named_share",] == found["changed_by_clocks",] == 0
    assert found["slow_found_at", 1.1] == 0 and found["slow_found_at", 8.0] == 1
    assert found["said_share", "H1", "H1"] == found["said_share", "healthy", "healthy"] == 1


def test_who_says_nothing_has_no_false_alarm_and_nothing_else():
    found = figures(Silent())
    assert found["false_alarm_share",] == found["rank_accuracy",] == found["classes_located",] == 0
    assert found["said_share", "S3", "healthy"] == 1 and found["victims_named_share",] == 0


def test_timestamps_depend_on_clocks():
    found = figures(Timestamps())
    assert found["late_found_at", 0.0] == 1 and found["late_found_at", 1.0] == 0
    assert found["changed_by_clocks",] > 0


def test_chance_names_nobody_at_fault():
    found = figures(RandomRank())
    assert found["false_alarm_share",] == 1 and found["rank_accuracy",] < 0.3
    assert found["victims_named_share",] > 0.5


def test_equal_seeds_give_equal_windows_and_figures():
    one, two, other = (next(iter(STUDY.planted(seed, "S1", 1))) for seed in (0, 0, 1))
    assert one[0] == two[0] != other[0] and (one[1].frames.entered_ns == two[1].frames.entered_ns).all()
    assert figures(CclD()) == figures(CclD())


def test_times_are_of_windows_of_up_to_4000_ranks():
    study = CollectiveFaults(replicas=2, anomalies=1, healthy=1, swept=1, strengths=(5.0,), clocks=(0.0,))
    found = figures(CclD(), study)
    assert {key[1] for key in found if key[0] == "analysis_at_ms"} == {512, 1024, 1984, 4000}
    assert found["analysis_ms",] >= found["analysis_at_ms", 4000] > 0 and found["analysis_growth",] > 0


def test_every_class_is_asked_as_often_as_the_study_says():
    assert [sum(1 for _ in STUDY.planted(0, fault, 2)) for fault in FAULTS] == [2] * 6
    assert CollectiveFaults().job().ranks == 512 and STUDY.job(125).ranks == 4000
    assert "512" in CollectiveFaults().notes()[0]


def test_a_range_of_strengths_that_is_none_is_refused():
    with pytest.raises(BadValueError):
        CollectiveFaults(weakest=5.0, strongest=4.0).check()
