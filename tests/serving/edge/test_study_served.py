"""Study ``edge-served``."""

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.edge.edge_serving import EdgeServing
from wavetank.serving.edge.rivals import OneQueue
from wavetank.serving.edge.study_served import EdgeServed

pytest.importorskip("torch")
pytest.importorskip("sklearn")

SMALL = EdgeServed(seconds=0.6)


def figures(system, seed=0, study=SMALL):
    return {metric: value for metric, value, at in study.measure(system, seed).rows if not at}


def test_figures_are_there_and_make_sense():
    found = figures(EdgeServing())
    assert 0 <= found["violation_ratio"] <= 1 and 0 <= found["violation_error"] <= 1
    assert found["in_time_accuracy"] <= found["accuracy"] <= 1
    assert found["p95_s"] > 0 and found["predicted_p95_s"] > 0
    assert found["p95_error"] == pytest.approx(abs(found["predicted_p95_s"] / found["p95_s"] - 1))


def test_with_endless_time_all_is_whole_and_right_as_often_as_the_network_is():
    easy = EdgeServed(seconds=0.6, load=0.2, slo_times=1000.0)
    found = figures(OneQueue(exit="deepest"), study=easy)
    assert found["exit_depth"] == 4.0 and found["violation_ratio"] == 0
    assert found["in_time_accuracy"] == found["accuracy"] > 0.85


def test_arrivals_have_the_mix_and_the_load():
    from wavetank.serving.edge.study_served import _profiles

    mean, _ = _profiles(8)
    times = EdgeServed(seconds=50.0).arrivals(mean, 0)
    sizes = [each.size for each in times]
    assert sizes[0] / sum(sizes) == pytest.approx(1 / 2, rel=0.1)
    work_s = sum(size * mean.seconds(m, 3, 1) for m, size in enumerate(sizes))
    assert work_s / 50.0 == pytest.approx(1.3, rel=0.1)


def test_networks_that_nobody_asks_for_get_nothing_and_a_single_request_is_enough():
    one = EdgeServed(seconds=0.5, load=0.01, mix=(0.0, 1.0, 0.0))
    from wavetank.serving.edge.study_served import _profiles

    mean, _ = _profiles(8)
    sizes = [each.size for each in one.arrivals(mean, 0)]
    assert sizes[0] == sizes[2] == 0 and sizes[1] >= 1
    assert figures(EdgeServing(), study=one)["violation_ratio"] <= 1


def test_every_scheduler_runs_before_the_next_seed():
    trials = SMALL.trials(("a", "b", "c"), (0, 1))
    assert [(each.systems[0], each.seed) for each in trials] == [
        ("a", 0), ("b", 0), ("c", 0), ("b", 1), ("c", 1), ("a", 1),
    ]  # fmt: skip


def test_a_mix_without_requests_is_refused():
    with pytest.raises(BadValueError, match="mix"):
        EdgeServed(mix=(0.0, 0.0, 0.0)).check()
