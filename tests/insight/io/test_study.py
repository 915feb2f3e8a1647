"""The study: scores by hand, what a hopeless system gets, harder issues are found less."""

import pytest

from wavetank.diagnosis.scoreboard import label_counts, micro
from wavetank.insight.io.diagnose import IoAgent
from wavetank.insight.io.drishti import Drishti
from wavetank.insight.io.planted import Servers, make_traces
from wavetank.insight.io.rivals import FlatAgent, ReportEverything
from wavetank.insight.io.study import IoDiagnosisStudy, _chosen, _traces

SMALL = IoDiagnosisStudy(tuning=40, held_out=30, slower=(4.0,), summaries=(2, 4), rounds=50, repeats=20)


def figures(system: object, study: IoDiagnosisStudy = SMALL, seed: int = 100) -> dict[str, float]:
    rows = study.measure(system, seed).rows
    return {metric + "".join(f"@{key}={value:g}" for key, value in at.items()): value for metric, value, at in rows}


def test_micro_f1_by_hand() -> None:
    truth, said = [frozenset({"SML", "RMA"}), frozenset({"HMD"})], [frozenset({"SML"}), frozenset({"SLIM"})]
    for found in (micro(label_counts(truth, said)), _chosen(truth, said, [0, 1])):
        assert (found.precision, found.recall, found.f1) == (0.5, pytest.approx(1 / 3), pytest.approx(0.4))
    assert _chosen(truth, said, [0, 0]).recall == 0.5


def test_the_diagnosis_beats_the_rules_and_its_reports_recompute() -> None:
    ours, theirs = figures(IoAgent()), figures(Drishti())
    assert ours["f1"] > theirs["f1"] and ours["precision"] > theirs["precision"]
    assert ours["unsupported"] == 0 and ours["cited_share"] == 1.0
    assert ours["f1_low"] <= ours["f1"] <= ours["f1_high"]
    assert ours["over_tuned"] == pytest.approx(ours["f1"] / figures(Drishti(fits=True))["f1"])
    assert ours["f1@slower=1"] == ours["f1"] and "f1@slower=4" in ours
    assert "unsupported" not in theirs


def test_reporting_everything_has_recall_one_and_the_share_of_true_kinds_as_precision() -> None:
    found = figures(ReportEverything())
    _, traces = make_traces(100, tuning=40, held_out=30)
    assert found["recall"] == 1.0
    assert found["precision"] == pytest.approx(sum(len(each.kinds) for each in traces) / (11 * 30))
    assert found["healthy_alarms"] == 11


def test_a_tree_keeps_more_with_short_summaries_and_less_with_long_ones() -> None:
    tree, flat = figures(IoAgent()), figures(FlatAgent())
    assert tree["f1"] == flat["f1"]
    assert tree["kept_share@summary=2"] > flat["kept_share@summary=2"]
    assert tree["kept_share@summary=4"] < flat["kept_share@summary=4"]


def test_strong_issues_count_more_often_and_are_found_better_than_weak_ones() -> None:
    """A curve that is flat would mean that the labels leak; pooled over seeds, of held-out families alone."""
    counts = {False: [0, 0, 0], True: [0, 0, 0]}
    for seed in range(100, 103):
        _, traces = _traces(seed, 20, 50, Servers())
        for each in traces:
            said = IoAgent().said(each.log)
            for name, strength in each.planted.items():
                true, heard, at = name in each.kinds, name in said, counts[strength > 0.1]
                at[0], at[1], at[2] = (
                    at[0] + (true and heard),
                    at[1] + (heard and not true),
                    at[2] + (true and not heard),
                )
    weak, strong = (2 * right / (2 * right + wrong + missed) for right, wrong, missed in counts.values())
    assert weak < strong < 1.0
