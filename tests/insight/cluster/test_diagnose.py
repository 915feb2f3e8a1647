"""The diagnosis of a saved range: what was planted is named, every figure recomputes, and little data says little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.insight.cluster.saved_range import STEP, TIMES, saved

from wavetank.diagnosis.findings import unsupported
from wavetank.insight.cluster.diagnose import LABELS, PrometheusDiagnosis
from wavetank.insight.cluster.node_history import NodeHistory


def diagnosed(path: Path, **given):
    analyser = PrometheusDiagnosis(**given)
    found = analyser.diagnose(path)
    assert unsupported(found, analyser.source(path)) == []
    return found


def test_a_calm_cluster_gives_facts_and_no_finding(tmp_path: Path) -> None:
    found = diagnosed(saved(tmp_path))
    assert found.findings == () and found.too_little == ()
    assert {each.name: each.value for each in found.facts} == {
        "nodes": 6, "metrics": 3, "times": TIMES, "span_s": STEP * (TIMES - 1.0), "step_s": float(STEP),
        "missing_share": pytest.approx(6 / (18 * TIMES)),
    }  # fmt: skip
    assert "Nothing was found" in found.page and "<svg" in found.page


def test_a_node_that_departs_on_two_metrics_is_named_with_value_and_time(tmp_path: Path) -> None:
    def change(values) -> None:
        values["temp"][2, 100:160] += 25.0
        values["load"][2, 100:160] -= 15.0

    path = saved(tmp_path, change=change)
    (finding,) = diagnosed(path).findings
    assert (finding.label, finding.where, finding.severity) == ("odd-node", "n2", "critical")
    evidence = {each.name: each.value for each in finding.evidence}
    assert evidence["odd_metrics"] == 2 and evidence["oddest_metric"] in ("temp", "load")
    assert 100 * STEP < evidence["odd_after_s"] < 115 * STEP and 45 * STEP < evidence["odd_s"] < 75 * STEP
    history = NodeHistory(path)
    _, values = history.grid
    then = int(np.argmax(history.distances[history.metrics.index(evidence["oddest_metric"]), 2]))
    row = values[history.metrics.index(evidence["oddest_metric"]), :, then]
    assert evidence["value_then"] == row[2] and evidence["peers_then"] == np.median(row)


def test_one_odd_metric_is_a_warning_and_all_nodes_together_are_nothing(tmp_path: Path) -> None:
    def one(values) -> None:
        values["temp"][4, 50:100] += 25.0

    def all_nodes(values) -> None:
        values["temp"][:, 50:100] += 25.0
        values["load"][:, 120:] = 1.0

    (finding,) = diagnosed(saved(tmp_path, change=one)).findings
    assert (finding.label, finding.where, finding.severity) == ("odd-metric", "n4", "warning")
    assert diagnosed(saved(tmp_path, change=all_nodes)).findings == ()


def test_a_silent_node_is_found_by_its_gap_and_a_common_gap_is_none(tmp_path: Path) -> None:
    def change(values) -> None:
        for rows in values.values():
            rows[1, 60:70] = np.nan
            rows[:, 200:210] = np.nan

    found = [each for each in diagnosed(saved(tmp_path, change=change)).findings if each.label == "silent-node"]
    assert [each.where for each in found] == ["n1"]
    evidence = {each.name: each.value for each in found[0].evidence}
    assert evidence == {"longest_silence_s": 10.0 * STEP, "silent_share": pytest.approx(10 / TIMES)}


def test_counters_of_one_node_that_fall_are_a_restart_and_of_all_nodes_none(tmp_path: Path) -> None:
    def one(values) -> None:
        values["intr_total"][3, 120:] -= values["intr_total"][3, 120]

    def all_nodes(values) -> None:
        values["intr_total"][:, 120:] -= values["intr_total"][:, 120:121]

    (finding,) = diagnosed(saved(tmp_path, change=one)).findings
    assert (finding.label, finding.where, finding.evidence[0].value) == ("counters-reset", "n3", 1)
    assert diagnosed(saved(tmp_path, change=all_nodes)).findings == ()


def test_too_few_nodes_and_times_are_said_and_not_guessed(tmp_path: Path) -> None:
    few = diagnosed(saved(tmp_path, nodes=3))
    assert few.findings == () and "too few nodes" in few.too_little[0] and few.page == ""
    short = diagnosed(saved(tmp_path, times=10))
    assert short.findings == () and "too few times" in short.too_little[0]
    one = diagnosed(saved(tmp_path, times=1))
    assert "two samples" in one.too_little[0]


def test_labels_are_those_that_are_given() -> None:
    assert set(LABELS) == {"odd-node", "odd-metric", "silent-node", "counters-reset"}
    assert PrometheusDiagnosis.takes(Path("x.json"), b'{"status":"success","data":{"resultType":"matrix"')
    assert not PrometheusDiagnosis.takes(Path("x.json"), b'{"schema": "1.0", "traceEvents": []}')
