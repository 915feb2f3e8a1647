"""The study of forecasts: errors are those of the definition, and no forecaster sees what comes."""

from dataclasses import dataclass

import numpy as np
import pytest

from wavetank.insight.series import histories
from wavetank.insight.series.rivals import LastValue, SeasonalNaive
from wavetank.insight.series.study import SeriesForecast

GENERATED = SeriesForecast(history="generated", stride=120)
real = pytest.mark.skipif(not histories.is_here(), reason="data set lambda-cold-starts is not here")


def figures(study, system, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


@dataclass(frozen=True)
class Watched:
    seen: list

    def forecast(self, history, steps):
        self.seen.append(history)
        return np.full(steps, 1.0)


def test_errors_are_those_of_the_definition():
    found = figures(GENERATED, LastValue(), 1)
    errors, nexts = [], []
    for each in GENERATED.series(1):
        y = each.value
        for origin in (365, 485, 605, 725):
            last = y[:origin][~np.isnan(y[:origin])][-1]
            share = [100 * abs(last - now) / now for now in y[origin : origin + 90] if now == now]
            errors.append(sum(share) / len(share))
            if y[origin] == y[origin]:
                nexts.append(100 * abs(last - y[origin]) / y[origin])
    assert found["mape_90",] == pytest.approx(np.mean(errors))
    assert found["mape_1",] == pytest.approx(np.mean(nexts)) == found["mape", 1]
    assert found["mape", 90] == found["mape_90",]
    assert found["forecast_ms",] > 0


def test_a_forecaster_sees_what_was_before_the_origin_alone():
    watched = Watched([])
    GENERATED.measure(watched, 0)
    assert [each.value.size for each in watched.seen] == [365, 485, 605, 725] * 4
    assert np.array_equal(watched.seen[1].value, GENERATED.series(0)[0].value[:485], equal_nan=True)


@real
def test_a_seed_is_a_runtime_that_gave_no_setting():
    study = SeriesForecast()
    names = [{histories.runtime_of(each) for each in study.series(seed)} for seed in range(6)]
    assert [len(each) for each in names] == [1] * 6
    assert set.union(*names) == set(histories.scored())
    tuning = SeriesForecast(runtimes="tuning").series(0)
    assert histories.runtime_of(tuning[0]) not in histories.scored()
    assert study.data()["lambda-cold-starts"].startswith("b328c017")
    assert not GENERATED.data()
    assert len(study.notes()) == 2


@real
def test_errors_of_simple_forecasts_on_the_last_quarter_are_as_computed_beside():
    last, naive = [], []
    for each in histories.observed():
        y = each.value[~each.missing]
        past, came = y[:-90], y[-90:]
        last.append(np.mean(np.abs(past[-1] / came - 1)))
        naive.append(np.mean(np.abs(np.resize(past[-7:], 90) / came - 1)))
    assert 100 * np.mean(last) == pytest.approx(8.93, abs=0.01)
    assert 100 * np.mean(naive) == pytest.approx(9.03, abs=0.01)


def test_the_weekly_cycle_of_generated_series_helps_who_repeats_it():
    assert figures(GENERATED, SeasonalNaive())["mape_90",] > 0
