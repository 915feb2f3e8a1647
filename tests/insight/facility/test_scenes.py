"""Weather and loads: what is generated is as frozen, what is read is checked."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from wavetank.errors import BadFileError, UnknownNameError
from wavetank.insight.facility import scenes
from wavetank.insight.facility.scenes import DAY, WEEK, generated_load, made_weather, profile

real = pytest.mark.skipif(not scenes.weather_is_here(), reason="data set datacentre-load-weather is not here")
counted = pytest.mark.skipif(not scenes.serverless_is_here(), reason="data set carbon-serverless is not here")


def test_without_noise_each_week_is_the_last_one_again() -> None:
    load = generated_load(3 * WEEK, 0.0, 5)
    assert np.array_equal(load[:WEEK], load[WEEK : 2 * WEEK]) and np.array_equal(load[:WEEK], profile(WEEK))
    assert 0.15 < load.min() < 0.3 < 0.6 < load.max() < 0.7
    assert load[5 * DAY : 7 * DAY].mean() < 0.85 * load[: 5 * DAY].mean()


def test_the_disturbance_is_as_strong_as_asked_and_forgets_at_095_an_hour() -> None:
    minutes = 60 * WEEK
    load = generated_load(minutes, 0.1, 2) / profile(minutes)
    hours = load.reshape(-1, 60).mean(axis=1)
    quiet = np.median(np.abs(hours / np.median(hours) - 1)) * 1.4826
    # Level steps widen what the disturbance alone would be.
    assert 0.09 < quiet < 0.2
    change = np.diff(np.log(hours))
    assert np.median(np.abs(change)) * 1.4826 == pytest.approx(0.1 * np.sqrt(2 * (1 - 0.95)), rel=0.15)


def test_levels_step_by_a_fifth_about_every_ten_days() -> None:
    minutes = 100 * WEEK
    levels = scenes._levels(minutes, np.random.default_rng(1))
    assert set(np.unique(levels)) == {0.8, 1.0, 1.2}
    steps = np.flatnonzero(np.diff(levels))
    assert 45 < steps.size < 95
    assert np.abs(np.diff(levels)[steps]) == pytest.approx(0.2)


def test_equal_seeds_give_equal_loads_within_what_a_site_can_have() -> None:
    one, again, other = generated_load(WEEK, 0.4, 1), generated_load(WEEK, 0.4, 1), generated_load(WEEK, 0.4, 2)
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    assert one.min() >= 0.02 and one.max() <= 0.98


def test_made_weather_is_warmer_in_phoenix_and_in_summer() -> None:
    hot, cold = made_weather("phoenix"), made_weather("chicago")
    assert hot.air_c.mean() > cold.air_c.mean() + 10
    assert (hot.wet_c < hot.air_c).all()
    assert hot.air_c[4000:5000].mean() > hot.air_c[:1000].mean() + 10
    with pytest.raises(UnknownNameError):
        made_weather("atlantis")


def test_minutes_are_straight_between_hours_and_the_year_begins_again() -> None:
    weather = made_weather("chicago")
    air, _ = weather.minutes(8759 * 60, 121)
    assert air[0] == weather.air_c[-1] and air[60] == weather.air_c[0] and air[120] == weather.air_c[1]
    assert air[30] == pytest.approx((air[0] + air[60]) / 2)


@real
def test_real_years_have_8760_hours_and_the_alibaba_week_repeats() -> None:
    load = scenes.repeated_week()
    assert load.size == 8760 and np.array_equal(load[:168], load[168:336])
    assert scenes.weather("phoenix").air_c.max() > 40 > 35 > scenes.weather("chicago").air_c.max() - 3
    with pytest.raises(UnknownNameError):
        scenes.weather("oslo")


@counted
def test_counted_requests_are_those_of_the_set() -> None:
    counts, first = scenes.requests()
    assert counts.size == 12 * DAY and counts.sum() == pytest.approx(7.86e6, rel=0.001) and first == 201 * 60
    load, _ = scenes.serverless_load()
    assert load[:first].min() == pytest.approx(0.2) and load[:first].max() == pytest.approx(0.7)


def test_damaged_files_are_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / scenes.WEATHER_DATA
    folder.mkdir()
    (tmp_path / scenes.LOAD_DATA).mkdir()
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    for content in (b"no gzip", gzip.compress(b"index,cpu_load\n1,0.3\n"), gzip.compress(b"index,other\n1,2\n")):
        (folder / scenes.WEEK_FILE).write_bytes(content)
        scenes.repeated_week.cache_clear()
        with pytest.raises(BadFileError):
            scenes.repeated_week()
    (tmp_path / scenes.LOAD_DATA / scenes.COUNTS_FILE).write_bytes(b"PK no zip")
    scenes.requests.cache_clear()
    with pytest.raises(BadFileError, match="no counts"):
        scenes.requests()
    scenes.requests.cache_clear()
    scenes.repeated_week.cache_clear()
