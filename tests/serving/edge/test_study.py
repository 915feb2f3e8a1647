"""The study of deadlines: rates, figures and settings without sense."""

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.edge.edge_serving import EdgeServing
from wavetank.serving.edge.rivals import OneQueue
from wavetank.serving.edge.study import EdgeDeadlines

SMALL = EdgeDeadlines(rates=(40.0, 200.0), seconds=4.0, warm_up=20)


def figures(system, seed=0, study=SMALL):
    return {metric: value for metric, value, at in study.measure(system, seed).rows if not at}


def test_whole_models_fail_where_exits_by_deadline_do_not():
    mine, whole = figures(EdgeServing()), figures(OneQueue())
    assert mine["violation_ratio"] < 0.05 < 0.3 < whole["violation_ratio"]
    assert mine["accuracy"] < whole["accuracy"]
    assert mine["in_time_accuracy"] > whole["in_time_accuracy"]


def test_equal_seeds_give_equal_figures_and_rates_have_the_mix():
    assert figures(EdgeServing(), 1) == figures(EdgeServing(), 1) != figures(EdgeServing(), 2)
    sizes = [each.size for each in EdgeDeadlines(seconds=200.0).arrivals(50.0, 0)]
    assert [size / 10_000 for size in sizes] == pytest.approx([3, 2, 1], rel=0.05)


def test_a_hopeless_deadline_is_said_and_a_mix_without_requests_is_refused():
    assert any("every request is late" in note for note in EdgeDeadlines(slo_s=0.0005).notes())
    hopeless = EdgeDeadlines(slo_s=0.0005, rates=(20.0,), seconds=9.0)
    assert figures(EdgeServing(), study=hopeless)["violation_ratio"] == 1.0
    for mix in ((0.0, 0.0, 0.0), (1.0,)):
        with pytest.raises(BadValueError, match="mix"):
            EdgeDeadlines(mix=mix).check()


@pytest.mark.parametrize("rates", [(), (40.0, 60.0, 40.0)])
def test_a_sweep_without_rates_or_with_one_twice_is_refused(rates):
    with pytest.raises(BadValueError, match="rate"):
        EdgeDeadlines(rates=rates).check()


def test_where_everything_is_dropped_there_is_no_percentile_instead_of_one_that_is_no_number():
    from wavetank.serving.edge.rivals import Deferred

    rows = EdgeDeadlines(slo_s=0.0005, rates=(20.0,), seconds=9.0).measure(Deferred(), 0).rows
    assert all(math.isfinite(value) for _, value, _ in rows)
    assert dict(row[:2] for row in rows)["dropped_share"] == 1.0
    assert not {"p95_s", "p95_at_s"} & {row[0] for row in rows}
