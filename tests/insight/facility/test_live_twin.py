"""The live twin: means of a simulated site in, beliefs and advice out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility import control, live_twin, plant
from wavetank.insight.facility.control import judged_min
from wavetank.insight.facility.forecasters import NAMES
from wavetank.insight.facility.ingest import Mean
from wavetank.insight.facility.live_twin import LiveTwin
from wavetank.insight.facility.plant import Action, advance, at_start
from wavetank.insight.facility.scenes import DAY, WEEK, generated_load
from wavetank.insight.facility.site import Site

MONDAY = 2_900 * WEEK + 4 * DAY
SITE = Site(servers=10)


def minute_of(at: int, load: float, *, servers: int = 10, site: Site = SITE, state=None, **other: float) -> list[Mean]:
    """What sensors say in a minute of a site at 24 C of supply, 30 C outside and half humidity."""
    state = at_start(site) if state is None else state
    one = np.ones(1)
    row = advance(site, state, Action(24.0, servers), load * one, 30 * one, 22 * one)[0]
    said = {f"dc/r/s{each}/{metric}": value for each in range(servers) for metric, value in
            (("load", load * site.servers / servers), ("power", row[plant.SERVERS] / servers),
             ("inlet", row[plant.INLET]))}  # fmt: skip
    said |= {"dc/room/air/room": row[plant.ROOM], "dc/room/air/supply": 24.0, "dc/out/air/outside": 30.0,
             "dc/out/air/humidity": 50.0} | {f"dc/x/y/{name}": value for name, value in other.items()}  # fmt: skip
    return [Mean(topic, at, float(value), 6) for topic, value in said.items()]


def test_a_minute_is_believed_as_sensors_say_it() -> None:
    twin = LiveTwin(SITE)
    twin.take(minute_of(MONDAY, 0.4))
    state = twin.state
    assert state is not None and twin.advice is not None
    assert (state.minute, state.servers, state.supply_c) == (MONDAY, 10, 24.0)
    assert state.load == pytest.approx(0.4) and state.inlet_c == pytest.approx(24.0 + 11 / 9)
    assert state.wet_c == pytest.approx(22.0, abs=0.5) and state.alarms == 0
    assert twin.advice.ground == "headroom"
    assert twin.advice.servers == math.ceil(10 * 0.4 * 1.25 / 0.8)


def test_air_that_recirculates_more_is_found_and_cools_the_advice() -> None:
    site, twin = Site(servers=10, recirculation=0.15), LiveTwin(SITE)
    state = at_start(site)
    for at in range(120):
        twin.take(minute_of(MONDAY + at, 0.6 if at % 40 < 20 else 0.3, site=site, state=state))
    assert twin.state is not None and twin.advice is not None
    assert twin.state.recirculation == pytest.approx(0.15, abs=0.01)
    assert twin.advice.supply_c <= 27.0 - 0.15 / 0.85 * 11.0 / twin.advice.fan_margin + 0.1


def test_servers_that_are_silent_are_off() -> None:
    twin = LiveTwin(SITE)
    twin.take(minute_of(MONDAY, 0.4, servers=8))
    assert twin.state is not None and twin.state.servers == 8 and twin.state.load == pytest.approx(0.4)


def test_without_sensors_of_the_weather_there_is_no_advice_and_no_guess() -> None:
    twin = LiveTwin(SITE)
    twin.take([each for each in minute_of(MONDAY, 0.4) if "/out/" not in each.topic])
    assert twin.advice is None and twin.state is not None and math.isnan(twin.state.wet_c)
    assert twin.state.recirculation == 0.1


def test_after_ten_days_forecasts_of_ridge_are_the_ground_and_a_long_gap_begins_again() -> None:
    twin = LiveTwin(SITE)
    load = generated_load(11 * DAY, 0.05, 1)
    held = WEEK + judged_min(15, 2)
    twin._load, twin._first = load[: held - 2].tolist(), MONDAY
    now = MONDAY + held - 2
    twin.take(minute_of(now, float(load[held - 2])))
    assert twin.advice is not None and twin.advice.ground == "headroom" and twin.advice.minute == now
    twin.take(minute_of(now + 1, 0.3))
    assert twin.advice.minute == now
    twin.take(minute_of(now + 20, 0.3))
    assert twin.advice.ground == "ridge" and twin.advice.minute == now + 20 and len(twin._load) == held + 19
    twin.take(minute_of(now + 90, 0.3))
    assert twin.advice.ground == "headroom" and len(twin._load) == 1


def test_what_is_learned_from_is_what_was_seen_and_is_older_than_what_judges_it(monkeypatch) -> None:
    learned: list[np.ndarray] = []

    def remembered(word: str, past: bytes, seed: int):
        learned.append(np.frombuffer(past))
        return NAMES[word].fitted(learned[-1], seed)

    monkeypatch.setattr(control, "_fitted", remembered)
    load = generated_load(11 * DAY, 0.05, 1)
    # A history that begins on a Sunday.
    twin = LiveTwin(SITE)
    twin._load, twin._first = load[: 11 * DAY - 1].tolist(), MONDAY - DAY
    twin.take(minute_of(MONDAY - DAY + 11 * DAY - 1, 0.3))
    assert twin.advice is not None and twin.advice.ground == "ridge" and learned
    assert all(np.array_equal(each, load[: 11 * DAY - judged_min(15, 2)]) for each in learned)


@pytest.mark.parametrize("forecast", ["persistence", "yesterday", "week", "none"])
def test_what_learns_nothing_is_the_ground_after_three_days(forecast: str) -> None:
    twin = LiveTwin(SITE, forecast=forecast)
    load = generated_load(4 * DAY, 0.05, 1)
    twin._load, twin._first = load[: 3 * DAY + 200].tolist(), MONDAY + 5 * DAY
    twin.take(minute_of(MONDAY + 8 * DAY + 200, 0.3))
    assert twin.advice is not None
    assert twin.advice.ground == ("headroom" if forecast == "none" else forecast)


@pytest.mark.parametrize("forecast", live_twin.FORECASTS)
@pytest.mark.parametrize("idle_min", [0, 10, 4 * DAY])
def test_a_site_that_is_idle_or_full_is_advised_as_well(forecast: str, idle_min: int) -> None:
    twin = LiveTwin(SITE, forecast=forecast)
    twin._load, twin._first = [1.0] * (11 * DAY - idle_min) + [0.0] * idle_min, MONDAY
    twin.take(minute_of(MONDAY + 11 * DAY, 0.0 if idle_min else 1.0))
    assert twin.advice is not None and math.isfinite(twin.advice.supply_c)
    assert 1 <= twin.advice.servers <= (10 if idle_min < DAY else 5)


def test_minutes_that_were_taken_are_not_taken_again() -> None:
    twin = LiveTwin(SITE)
    twin.take(minute_of(MONDAY + 1, 0.4))
    before = twin.state
    twin.take(minute_of(MONDAY, 0.9) + minute_of(MONDAY + 1, 0.9))
    assert twin.state is before


def test_histories_do_not_grow_for_ever() -> None:
    twin = LiveTwin(SITE)
    twin._load, twin._first = [0.3] * (live_twin._MOST_KEPT + WEEK), MONDAY
    twin._remember(MONDAY + live_twin._MOST_KEPT + WEEK, 0.4)
    assert len(twin._load) == live_twin._MOST_KEPT + 1 and twin._first == MONDAY + WEEK


@pytest.mark.parametrize("wrong", [{"forecast": "tarot"}, {"interval_min": 0}])
def test_twins_that_cannot_be_run_are_refused(wrong: dict) -> None:
    with pytest.raises(BadValueError, match="cannot be run"):
        LiveTwin(SITE, **wrong)
