"""Study cluster-alarms, small: figures against the scores they come from, one stream for all, refusals."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster import study_alarms
from wavetank.insight.cluster.layered_peers import LayeredPeers
from wavetank.insight.cluster.rivals import OneMetric, XidOnly
from wavetank.insight.cluster.scoring import judged, threshold
from wavetank.insight.cluster.simulated_cluster import BY_NAME, CHUNK
from wavetank.insight.cluster.study_alarms import ClusterAlarms, watch
from wavetank.study.study import Trial

STUDY = ClusterAlarms(nodes=7, days=1, faults=4, strengths=(0.0,), rates=(2.0,), events=1.0)


@pytest.fixture(scope="module", autouse=True)
def a_short_week():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_alarms, "_WEEK", 4)
        patch.setattr(study_alarms, "_BEFORE", 8)
        yield


@pytest.fixture(scope="module")
def found(a_short_week):
    systems = {"layers": LayeredPeers(), "xid": XidOnly(), "one": OneMetric()}
    records = STUDY.run(Trial(systems=tuple(systems), seed=3), systems)
    table = {}
    for record in records:
        table[record.system, record.metric, tuple(sorted(record.at.items()))] = record.value
    return table


def test_xids_find_the_classes_that_log_one_and_no_other(found) -> None:
    # One each of nvlink, ecc, device-error and gpu-lost: all have an XID, at the crash and never before.
    assert list(BY_NAME)[:4] == ["nvlink", "ecc", "device-error", "gpu-lost"]
    assert found["xid", "recall", ()] == 1.0 and found["xid", "false_alarms_per_day", ()] == 0.0
    assert found["xid", "before_crash_share", ()] == 0.0
    assert found["xid", "recall", (("strength", 0.0),)] == 0.0


def test_layers_find_more_than_nothing_and_nothing_where_nothing_was_planted(found) -> None:
    assert found["layers", "recall", ()] >= 0.75
    assert found["layers", "recall", (("strength", 1.0),)] == found["layers", "recall", ()]
    assert found["layers", "recall", (("strength", 0.0),)] == 0.0
    assert found["layers", "classes_missed", ()] == 4 * (1 - found["layers", "recall", ()])


def test_at_equal_recall_false_alarms_are_those_of_a_threshold_that_finds_so_many(found) -> None:
    shares = {key[2][0][1]: value for key, value in found.items()
              if key[:2] == ("layers", "false_alarms_per_day") and key[2] and key[2][0][0] == "equal_recall"}
    assert set(shares) >= {0.7, 0.8} and shares[0.7] <= shares[0.8]
    # XIDs are either there or not: whatever they find costs nothing.
    assert found["xid", "false_alarms_per_day", (("equal_recall", 1.0),)] == 0.0


def test_the_best_metric_is_the_one_that_finds_most(found) -> None:
    cluster = STUDY.cluster(3)
    scored = watch(cluster, {"one": OneMetric()}, study_alarms._BEFORE)["one"]
    recalls = [
        judged(each.watched, threshold(each.week, 0.6), cluster.faults, first=8 * CHUNK).recall for each in scored
    ]
    assert len(recalls) == 102 and found["one", "recall", ()] == max(recalls)
    assert found["one", "least_classes_missed", ()] == 4 * (1 - max(recalls))


def test_all_detectors_of_a_seed_are_one_trial_and_alone_they_find_the_same(found) -> None:
    assert [each.key for each in STUDY.trials(["a", "b"], [1, 2])] == ["a+b#1", "a+b#2"]
    alone = STUDY.measure(LayeredPeers(), 3)
    assert {("layers", metric, tuple(sorted(at.items()))): value for metric, value, at in alone.rows} == {
        key: value for key, value in found.items() if key[0] == "layers"
    }


def test_faults_come_after_the_week_and_differ_by_seed() -> None:
    one, two = STUDY.cluster(1), STUDY.cluster(2)
    assert min(each.begin for each in one.faults) >= 8 * CHUNK and one.faults != two.faults
    assert one.chunks == 12


def test_too_many_faults_are_refused() -> None:
    with pytest.raises(BadValueError, match="quarter of a day"):
        ClusterAlarms(days=1, faults=5).check()
