"""The rivals: each by its own definition, on departures that are known."""

from __future__ import annotations

import numpy as np
import pytest
from tests.insight.cluster.small_cluster import LAYERS, METRICS, NODES, noise, peers

from wavetank.errors import BadValueError
from wavetank.insight.cluster.interface import View
from wavetank.insight.cluster.rivals import (
    RULES,
    XID_METRIC,
    ControlChart,
    FixedThresholds,
    OneMetric,
    Outliers,
    Rule,
    XidOnly,
    exceeded,
)
from wavetank.insight.cluster.simulated_cluster import NAMES

RULE = {each.metric: each for each in RULES}


def watched(detector: object, values: np.ndarray) -> np.ndarray:
    watcher, view = detector.watcher(METRICS, LAYERS), peers()  # type: ignore[attr-defined]
    watcher.learn(view.view(noise("calm", 1200)))
    return watcher.score(view.view(values))


def raw(values: np.ndarray) -> View:
    return View(values.astype(np.float32), np.zeros_like(values, dtype=np.float32))


def test_one_metric_sees_its_own_departures_alone() -> None:
    values = noise("next")
    values[0, 1, 100:] += 30.0
    assert watched(OneMetric(metric="a"), values)[1, -1] > 5.0
    assert watched(OneMetric(metric="b"), values)[1, -1] < 2.0
    with pytest.raises(BadValueError, match="not watched"):
        OneMetric(metric="z").watcher(METRICS, LAYERS)


def test_an_xid_is_an_alarm_while_it_is_logged() -> None:
    values = noise("next", 12)
    values[3, 2, 5:7] = 79.0
    values[3, 4, 3] = np.nan
    scores = watched(XidOnly(), values)
    assert scores[2].tolist() == [0] * 5 + [1, 1] + [0] * 5 and not np.delete(scores, 2, axis=0).any()
    with pytest.raises(BadValueError, match="XID"):
        XidOnly().watcher(("a",), ("gpu",))


def test_a_chart_takes_the_oddest_metric_in_its_own_deviations() -> None:
    values = noise("next")
    values[1, 6, 100:] -= 20.0
    scores = watched(ControlChart(), values)
    assert scores[6, -1] > 3 * np.delete(scores[:, -1], 6).max()
    assert scores[:, :90].max() < 6


@pytest.mark.parametrize("method", ["iforest", "ecod"])
def test_outliers_of_many_metrics_stand_out(method: str) -> None:
    pytest.importorskip("pyod")
    values = noise("next")
    values[:3, 7, 60:] += 25.0
    scores = watched(Outliers(method=method, rows=200), values)
    assert scores.shape == (NODES, 240) and scores[7, -1] > np.delete(scores[:, -1], 7).max()
    # A judgement holds until the next one.
    assert (scores[:, 0:6] == scores[:, :1]).all()


def test_an_outlier_detector_that_learned_nothing_says_so() -> None:
    pytest.importorskip("pyod")
    with pytest.raises(BadValueError, match="learns before"):
        Outliers().watcher(METRICS, LAYERS).score(peers().view(noise("next", 12)))


def test_rules_are_met_where_operators_put_them() -> None:
    def ratio(rule: Rule, own: float, others: float) -> float:
        return float(exceeded(rule, np.array([[own]] + [[others]] * 6, dtype=np.float32))[0, 0])

    assert ratio(RULE["node_intr"], 5_000, 10_000) == pytest.approx(1.0)
    assert ratio(RULE["node_procs_running"], 2.0, 26.0) == pytest.approx(1.0)
    assert ratio(RULE["node_procs_running"], 0.5, 9.0) == 0.0
    assert ratio(RULE["node_vmstat_pgpgout"], 41.0, 10.0) == pytest.approx(1.0)
    assert ratio(RULE["nfs_getattr_latency"], 0.25, 0.01) == pytest.approx(2.5)
    assert ratio(RULE["DCGM_FI_DEV_GPU_TEMP"], 85.0, 60.0) == pytest.approx(1.0)
    assert ratio(RULE[XID_METRIC], 79.0, 0.0) == pytest.approx(79.0)
    assert ratio(RULE["node_intr"], float("nan"), 10_000) == 0.0


def test_a_rule_against_the_median_needs_live_peers() -> None:
    values = np.full((4, 1), np.nan, dtype=np.float32)
    values[:2] = 1.0
    assert not exceeded(RULE["node_intr"], values).any()


def test_a_rule_holds_for_its_time_also_over_chunks() -> None:
    watcher = FixedThresholds().watcher(("DCGM_FI_DEV_GPU_TEMP{gpu=0}",), ("gpu",))
    values = np.full((1, 5, 24), 60.0)
    values[0, 2, 6:] = 90.0
    scores = watcher.score(raw(values[:, :, :12])), watcher.score(raw(values[:, :, 12:]))
    above = np.concatenate(scores, axis=1)[2] > 1.0
    assert np.flatnonzero(above).tolist() == list(range(15, 24))


def test_a_silent_node_meets_a_rule_after_two_minutes() -> None:
    watcher = FixedThresholds().watcher(("DCGM_FI_DEV_GPU_TEMP{gpu=0}",), ("gpu",))
    values = np.full((1, 5, 12), 60.0)
    values[0, 3, 4:] = np.nan
    assert np.flatnonzero(watcher.score(raw(values))[3] >= 1.0).tolist() == list(range(7, 12))


def test_every_rule_names_a_metric_of_the_simulated_cluster() -> None:
    assert [each.metric for each in RULES if not any(name.startswith(each.metric) for name in NAMES)] == []
    with pytest.raises(BadValueError, match="No rule"):
        FixedThresholds().watcher(("a",), ("gpu",))
