"""What a churn says: which changes happen when, and which descriptions are refused."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.simulator.changes import ACTIONS, DRAIN, FAIL, JOIN, RECOVER, STOP, Change, Churn, changes_of
from wavetank.serving.simulator.cluster import Cluster

PS = 10**12
STEP = FittedStepTime(overhead_s=1e-3)


def cluster(workers=4, group_size=1, churn=None):
    return Cluster(workers=workers, group_size=group_size, step_time=STEP, churn=churn)


def rows(churn, last_ps=1000 * PS, first_ps=0, **given):
    found = changes_of(churn, cluster(**given), first_ps, last_ps)
    return list(zip(found.time_ps.tolist(), found.group.tolist(), found.action.tolist(), strict=True))


def test_a_list_is_sorted_by_time_and_keeps_its_order_within_a_moment():
    given = ((2.0, 1, "fail"), (1.0, 0, "drain"), (2.0, 0, "stop"), (1.0, 3, "join"))
    changes = tuple(Change(time_s=time_s, worker=worker, action=action) for time_s, worker, action in given)
    assert rows(Churn(changes=changes)) == [(PS, 0, DRAIN), (PS, 3, JOIN), (2 * PS, 1, FAIL), (2 * PS, 0, STOP)]


def test_times_count_from_the_first_arrival_and_workers_by_their_group():
    churn = Churn(changes=(Change(time_s=1.5, worker=3, action="fail"),))
    assert rows(churn, first_ps=7 * PS, group_size=2) == [(7 * PS + 3 * PS // 2, 1, FAIL)]


def test_a_rolling_restart_takes_one_batch_of_workers_after_the_other():
    churn = Churn(restarts_s=(10.0,), restart_at_once=2, drain_s=3.0, start_s=5.0)
    found = [(time_ps // PS, group, action) for time_ps, group, action in rows(churn)]
    first = [(10, 0, DRAIN), (10, 1, DRAIN), (13, 0, STOP), (13, 1, STOP), (18, 0, JOIN), (18, 1, JOIN)]
    assert sorted(found) == sorted([*first, *((time_s + 8, group + 2, action) for time_s, group, action in first)])


def test_a_failing_worker_is_down_for_its_share_of_the_time():
    # Known answer of an alternating renewal process: repair / (time to failure + repair) = 1 / 5.
    churn = Churn(time_to_failure_s=40.0, repair_s=10.0, seed=3)
    span_s, down_s = 100_000.0, np.zeros(4)
    since: dict[int, float] = {}
    for time_ps, group, action in rows(churn, last_ps=int(span_s) * PS):
        if action == FAIL:
            since[group] = time_ps / PS
        else:
            assert action == RECOVER
            down_s[group] += min(time_ps / PS, span_s) - since.pop(group)
    assert not since
    # About 2,000 cycles a worker: a standard deviation of 1 % of the mean.
    assert down_s / span_s == pytest.approx([0.2] * 4, rel=0.12)
    assert len(set(down_s.tolist())) == 4


def test_failures_depend_on_the_seed_alone():
    churn = Churn(time_to_failure_s=40.0, seed=3)
    assert rows(churn) == rows(churn)
    assert rows(churn) != rows(Churn(time_to_failure_s=40.0, seed=4))
    # More workers do not move the failures of those that were there.
    assert [row for row in rows(churn, workers=8) if row[1] < 4] == rows(churn)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"action": "explode"}, "fail"),
        ({"time_s": -1.0}, "0"),
        ({"time_s": float("nan")}, "0"),
        ({"worker": -1}, "0"),
    ],
)
def test_a_bad_change_is_refused(given, says):
    with pytest.raises(WavetankError, match=says):
        Change(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"streams": "kept"}, "recomputed"),
        ({"scale_high": 10.0, "scale_low": 6.0}, "scale_high / 2"),
        ({"scale_low": 6.0}, "both bounds"),
        ({"restarts_s": (-5.0,)}, "rolling restart"),
        ({"tries": 0}, "1"),
        ({"repair_s": 0.0}, "0.001"),
    ],
)
def test_a_bad_churn_is_refused(given, says):
    with pytest.raises(WavetankError, match=says):
        Churn(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Churn(changes=(Change(worker=4),)), "0 to 3"),
        (Churn(scale_high=5.0, first_workers=9), "up to 4"),
        (Churn(scale_high=5.0, least_workers=5), "up to 4"),
    ],
)
def test_a_cluster_refuses_changes_of_workers_that_it_has_not(given, says):
    with pytest.raises(BadValueError, match=says):
        cluster(churn=given)


def test_an_autoscaler_does_not_begin_with_half_a_group():
    with pytest.raises(BadValueError, match="whole groups of 2"):
        cluster(group_size=2, churn=Churn(scale_high=5.0, first_workers=3))


def test_failures_without_end_are_refused_before_any_is_drawn():
    with pytest.raises(BadValueError, match="too often"):
        rows(Churn(time_to_failure_s=1e-6))


def test_every_action_has_a_number():
    assert [ACTIONS.index(name) for name in ("fail", "recover", "drain", "stop", "join")] == [
        FAIL, RECOVER, DRAIN, STOP, JOIN,
    ]  # fmt: skip
