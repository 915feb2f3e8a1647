"""The study: scores by hand, what a hopeless system gets, harder issues are found less."""

import pytest

from wavetank.diagnosis.scoreboard import label_counts, micro
from wavetank.insight.io.diagnose import IoAgent
from wavetank.insight.io.drishti import Drishti
from wavetank.insight.io.labels import KINDS, kind
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
    _, traces = make_traces(100, tuning=40, held_out=30)
    done = [frozenset(name for name, strength in each.planted.items() if strength >= 0.1) for each in traces]
    said = [IoAgent().said(each.log) for each in traces]
    assert ours["done_f1"] == pytest.approx(micro(label_counts(done, said, list(KINDS))).f1)
    assert 0 < theirs["done_f1"] < ours["done_f1"] < ours["f1"]
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


def test_what_costs_more_is_reported_more_often_and_no_strength_is_free_of_errors() -> None:
    """A curve that is flat at one would mean that the labels leak; held-out families alone."""
    costs = {0.01: [0, 0], 0.05: [0, 0], 0.3: [0, 0], 10.0: [0, 0]}
    weak_and_strong = {False: [0, 0, 0], True: [0, 0, 0]}
    for seed in range(100, 103):
        _, traces = _traces(seed, 20, 50, Servers())
        for each in traces:
            said = IoAgent().said(each.log)
            for name in KINDS:
                gain = max(value for code, value in each.gains.items() if kind(code) == name)
                at = costs[min(bound for bound in costs if gain < bound)]
                at[0], at[1] = at[0] + 1, at[1] + (name in said)
            for name, strength in each.planted.items():
                at = weak_and_strong[strength > 0.1]
                at[0] += 2 * (name in said and name in each.kinds)
                at[1] += name in said
                at[2] += name in each.kinds
    shares = [heard / count for count, heard in costs.values()]
    assert shares == sorted(shares) and shares[0] < 0.05 and shares[-1] > 0.9
    assert all(0.7 < both / (heard + true) < 0.97 for both, heard, true in weak_and_strong.values())
