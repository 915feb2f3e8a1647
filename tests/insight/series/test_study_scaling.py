"""The replay: perfect forecasts have no regret, and figures are those of the choices."""

from dataclasses import dataclass

import numpy as np
import pytest

from wavetank.insight.series import histories
from wavetank.insight.series.rivals import LastValue
from wavetank.insight.series.study_scaling import SeriesScaling

pytestmark = pytest.mark.skipif(not histories.is_here(), reason="data set lambda-cold-starts is not here")


@dataclass(frozen=True)
class Perfect:
    """Knows what comes; days without a value get any."""

    study: SeriesScaling
    seed: int

    def forecast(self, history, steps):
        _, series = self.study.latencies(self.seed)
        mine = next(each for each in series if each.name == history.name)
        came = mine.value[history.value.size : history.value.size + steps]
        return np.where(np.isnan(came), 1.0, came)


def figures(system, seed=0, **settings):
    return {name: value for name, value, _ in SeriesScaling(**settings).measure(system, seed).rows}


def test_perfect_forecasts_have_no_regret():
    found = figures(Perfect(SeriesScaling(), 1), 1)
    assert found["regret"] == 0
    assert found["cost"] == pytest.approx(1)
    assert found["late"] == found["late_at_best"]


def test_a_target_that_everything_meets_takes_the_cheapest_and_is_never_late():
    found = figures(LastValue(), 0, slack=100.0)
    assert found["late"] == found["late_at_best"] == 0
    assert found["cost"] >= 1


def test_latencies_are_cold_start_and_handler_of_each_size():
    study = SeriesScaling()
    memory, series = study.latencies(0)
    assert memory.tolist() == [128, 256, 512, 1024]
    cold = histories.of_runtime(histories.scored()[0])
    warm = histories.of_runtime(histories.scored()[0], "avg_duration_ms")
    name = series[2].name
    both = sum(next(each.value for each in of if each.name == name) for of in (cold, warm))
    assert np.array_equal(series[2].value, both, equal_nan=True)
    assert " x86_64 " in name
    assert study.notes()
    assert "lambda-cold-starts" in study.data()
