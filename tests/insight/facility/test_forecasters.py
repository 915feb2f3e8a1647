"""Forecasters: known answers, nothing from the future, and no thread left changed."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility import forecasters, scenes
from wavetank.insight.facility.forecasters import (
    NAMES,
    Boosting,
    Lstm,
    Persistence,
    Ridge,
    Seasonal,
    hours_after,
    hours_before,
    relative_error,
)  # fmt: skip
from wavetank.insight.facility.scenes import DAY, HOUR, WEEK, generated_load

FIRST = 10 * DAY
LOAD = generated_load(14 * DAY, 0.2, 3)
SMALL = {**NAMES, "lstm": Lstm(units=8, epochs=3), "boosting": Boosting(hours=(1,))}
counted = pytest.mark.skipif(not scenes.serverless_is_here(), reason="data set carbon-serverless is not here")


@pytest.mark.parametrize("word", sorted(SMALL))
def test_what_comes_changes_no_forecast_and_no_scale(word: str) -> None:
    pytest.importorskip("torch" if word == "lstm" else "sklearn" if word == "boosting" else "numpy")
    fitted, times = SMALL[word].fitted(LOAD[:FIRST], 0), np.arange(FIRST, 11 * DAY, 45)
    said, growth = fitted.ahead(LOAD, times), fitted.growth(LOAD, times)
    shuffled = LOAD.copy()
    np.random.default_rng(1).shuffle(shuffled[times[-1] :])
    assert np.array_equal(said, fitted.ahead(shuffled, times))
    assert np.array_equal(growth, fitted.growth(shuffled, times))
    assert said.shape == (times.size, 24) and np.isfinite(said).all()
    if hasattr(fitted, "scale"):
        assert (fitted.scale.mean, fitted.scale.spread) == (LOAD[:FIRST].mean(), LOAD[:FIRST].std())


def test_hours_are_means_of_their_minutes() -> None:
    times = np.array([1440, 2000])
    before, after = hours_before(LOAD, times), hours_after(LOAD, times, 3)
    for row, now in enumerate(times):
        assert before[row, -1] == pytest.approx(LOAD[now - 60 : now].mean())
        assert before[row, 0] == pytest.approx(LOAD[now - 1440 : now - 1380].mean())
        assert after[row, 2] == pytest.approx(LOAD[now + 120 : now + 180].mean())
    with pytest.raises(BadValueError, match="24 hours"):
        hours_before(LOAD, np.array([1439]))


def test_naive_forecasts_say_what_they_repeat() -> None:
    times = np.array([8 * DAY, 8 * DAY + 75])
    last = Persistence().fitted(LOAD, 0)
    assert np.array_equal(last.ahead(LOAD, times), np.repeat(hours_before(LOAD, times, 1), 24, axis=1))
    assert (last.growth(LOAD, times) == 0).all()
    yesterday, week = Seasonal().fitted(LOAD, 0), Seasonal(period_min=WEEK).fitted(LOAD, 0)
    assert np.allclose(yesterday.ahead(LOAD, times), hours_after(LOAD, times - DAY))
    assert np.allclose(week.ahead(LOAD, times), hours_after(LOAD, times - WEEK))
    assert np.allclose(week.growth(LOAD, times), hours_after(LOAD, times - WEEK, 1)[:, 0]
                       - hours_before(LOAD, times - WEEK, 1)[:, 0])  # fmt: skip
    early = np.array([2 * DAY])
    assert np.array_equal(week.ahead(LOAD, early), yesterday.ahead(LOAD, early))


def test_last_week_is_right_on_a_week_that_repeats_and_no_other_is_better() -> None:
    load = generated_load(4 * WEEK, 0.0, 0)
    times = np.arange(3 * WEEK, 4 * WEEK - DAY, HOUR)
    came = hours_after(load, times)
    off = {word: relative_error(NAMES[word].fitted(load[: 3 * WEEK], 0).ahead(load, times), came).max()
           for word in ("week", "yesterday", "persistence", "ridge")}  # fmt: skip
    assert off["week"] < 1e-12 <= min(off.values()) + 1e-12 and off["ridge"] < off["persistence"]


def test_ridge_is_the_solution_of_its_normal_equations() -> None:
    fitted = Ridge(penalty=2.0).fitted(LOAD[:FIRST], 0)
    mean, spread = LOAD[:FIRST].mean(), LOAD[:FIRST].std()
    times = np.arange(DAY, FIRST - DAY + 1, 60)
    x = np.array([[LOAD[t - 60 * k : t - 60 * k + 60].mean() for k in range(24, 0, -1)] for t in times])
    y = np.array([LOAD[t + 300 : t + 360].mean() for t in times])
    x, y = (x - mean) / spread, (y - mean) / spread
    # The intercept has no penalty: centred columns have none to find.
    centred = x - x.mean(0)
    weights = np.linalg.solve(centred.T @ centred + 2.0 * np.eye(24), centred.T @ (y - y.mean()))
    now = np.array([12 * DAY])
    lags = (hours_before(LOAD, now)[0] - mean) / spread
    said = ((lags - x.mean(0)) @ weights + y.mean()) * spread + mean
    assert fitted.ahead(LOAD, now)[0, 5] == pytest.approx(said, rel=1e-8)


@counted
def test_errors_on_counted_requests_are_those_known() -> None:
    counts, first = scenes.requests()
    times = np.arange(first, counts.size - HOUR + 1, HOUR)
    came = hours_after(counts, times, 1)
    off = {word: relative_error(NAMES[word].fitted(counts[:first], 0).ahead(counts, times)[:, :1], came)[0]
           for word in ("persistence", "yesterday", "ridge")}  # fmt: skip
    assert off["persistence"] == pytest.approx(0.0158, abs=0.0001)
    assert off["yesterday"] == pytest.approx(0.0181, abs=0.0001)
    assert off["ridge"] < 0.0121


def test_an_lstm_learns_a_wave_and_gives_threads_and_draws_back() -> None:
    torch = pytest.importorskip("torch")
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    wave = 0.5 + 0.2 * np.sin(2 * np.pi * np.arange(14 * DAY) / DAY)
    times = np.arange(12 * DAY, 13 * DAY, HOUR)
    came = hours_after(wave, times)
    network = Lstm(units=16, epochs=60)
    said = network.fitted(wave[: 12 * DAY], 0).ahead(wave, times)
    last = np.repeat(hours_before(wave, times, 1), 24, axis=1)
    assert relative_error(said, came)[5] < 0.5 * relative_error(last, came)[5]
    assert np.array_equal(said, network.fitted(wave[: 12 * DAY], 0).ahead(wave, times))
    assert torch.get_num_threads() == threads and torch.equal(torch.random.get_rng_state(), state)


def test_hours_without_trees_of_their_own_take_the_next_ones() -> None:
    pytest.importorskip("sklearn")
    said = Boosting(hours=(2, 4)).fitted(LOAD[:FIRST], 0).ahead(LOAD, np.array([12 * DAY]))[0]
    assert said[0] == said[1] != said[2] == said[3] == said[23]


def test_too_little_to_learn_from_and_strange_words_are_refused() -> None:
    with pytest.raises(BadValueError, match="three days"):
        Ridge().fitted(LOAD[: 2 * DAY], 0)
    with pytest.raises(BadValueError, match="no such forecaster"):
        forecasters.named("tarot")
    with pytest.raises(BadValueError):
        Lstm(dropout=1.0)


def test_the_calendar_is_that_of_a_week_from_monday() -> None:
    found = forecasters.calendar(np.array([0, 6 * 60, 5 * DAY, WEEK]))
    assert found[0] == pytest.approx([0, 1, 0, 1, 0]) and found[1, :2] == pytest.approx([1, 0], abs=1e-12)
    assert found[2, 4] == 1 and found[3] == pytest.approx(found[0])
