"""The search against brute force, margins against their definition, and what a controller may know."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.insight.facility import control
from wavetank.insight.facility.control import ModelControl, best, came, day_error, expected, lead_h, recent_load
from wavetank.insight.facility.forecasters import FORECASTERS
from wavetank.insight.facility.interface import Scene, View
from wavetank.insight.facility.plant import Action, at_rest
from wavetank.insight.facility.scenes import DAY, generated_load
from wavetank.insight.facility.site import Site

SITE = Site()


def scene(noise: float = 0.1, seed: int = 1, interval_min: int = 15) -> Scene:
    return Scene(site=SITE, load=generated_load(16 * DAY, noise, seed), first=14 * DAY, interval_min=interval_min,
                 seed=seed)  # fmt: skip


def view(minute: int, load: float = 0.4, **other: float) -> View:
    return View(minute, load, other.get("waiting", 0.0), 30.0, other.get("wet_c", 20.0),
                other.get("recirculation", 0.1), other.get("sd", 0.0))  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(load=st.floats(0.05, 0.9), wet_c=st.floats(-10, 30), share=st.floats(0.0, 0.2), least=st.integers(20, 100))
def test_the_search_finds_what_trying_all_finds(load: float, wet_c: float, share: float, least: int) -> None:
    servers, supply_c, margin = best(SITE, least, np.full(1, load), 25.0, wet_c, share)
    one = np.ones(1)
    tried = {}
    for on in range(least, 101):
        for each in control._MARGINS:
            for supply in control._SUPPLIES:
                rise = min(SITE.rise_k / each, on * 350.0 / (0.3 * SITE.nominal_kg_per_s * 1005.0))
                if supply + share / (1 - share) * rise <= 27.005:
                    tried[on, supply, each] = 0.0
        if on > least + 1:
            break
    for key in list(tried):
        on, supply, each = key
        tried[key] = at_rest(SITE, load * one, 25.0 * one, wet_c * one, on * one, Action(supply, on, each)).facility_kwh
    assert tried[servers, supply_c, margin] <= min(tried.values()) + 1e-9
    assert servers == least


def test_supply_is_cooler_where_more_air_recirculates_or_less_is_known() -> None:
    operator = ModelControl(forecast="none", headroom=0.25).begin(scene())
    now = 14 * DAY
    warm, cool, unsure = (operator.decide(view(now, recirculation=share, sd=sd)) for share, sd in
                          ((0.1, 0.0), (0.15, 0.0), (0.1, 0.025)))  # fmt: skip
    assert warm.supply_c == 25.78 > cool.supply_c == unsure.supply_c
    assert cool.supply_c + 0.15 / 0.85 * 11.0 / cool.fan_margin <= 27.005


def test_servers_are_those_that_the_load_and_what_waits_ask_for() -> None:
    of = scene()
    now = np.array([of.first])
    plain = ModelControl(forecast="none", headroom=0.25).begin(of)
    asked = 100 * float(recent_load(of.load, now)[0]) * 1.25 / 0.8
    assert plain.decide(view(of.first)).servers == math.ceil(asked)
    assert plain.decide(view(of.first, waiting=8.0)).servers == math.ceil(asked + 10.0)
    oracle = ModelControl(forecast="oracle").begin(of).decide(view(of.first)).servers
    assert oracle == math.ceil(100 * of.load[of.first : of.first + 17].max() / 0.8)


def test_what_came_is_the_highest_load_until_the_next_decision_has_its_effect() -> None:
    of = scene()
    times = np.array([of.first, of.load.size - 3])
    assert came(of, times).tolist() == [of.load[of.first : of.first + 17].max(), of.load[-3:].max()]
    assert lead_h(15, 2) == pytest.approx(12 / 60)
    assert recent_load(of.load, times)[0] == pytest.approx(of.load[of.first - 5 : of.first].mean())


@pytest.mark.parametrize("forecast", [each for each in FORECASTERS if each not in ("lstm", "boosting")] + ["none"])
@pytest.mark.parametrize("interval_min", [15, 45])
def test_what_comes_changes_no_decision(forecast: str, interval_min: int) -> None:
    of = scene(interval_min=interval_min)
    later = of.load.copy()
    until = of.first + 30 * interval_min
    np.random.default_rng(0).shuffle(later[until:])
    other = replace(of, load=later)
    system = ModelControl(forecast=forecast)
    one, two = system.begin(of), system.begin(other)
    for minute in range(of.first, until + 1, interval_min):
        assert one.decide(view(minute)) == two.decide(view(minute))


def test_the_oracle_alone_knows_what_comes() -> None:
    of = scene()
    later = of.load.copy()
    later[of.first + 10] = 0.98
    other = replace(of, load=later)
    assert expected("oracle", other, np.array([of.first]))[0] == 0.98
    assert expected("oracle", of, np.array([of.first]))[0] < 0.98


def test_margins_cover_the_asked_quantile_of_the_last_three_days() -> None:
    of = scene(noise=0.2)
    times = np.arange(11 * DAY, of.load.size + 1, 15)
    now = expected("persistence", of, times)
    found = control._margins(of, times, now, 0.95)
    row = 400
    known = [came(of, times[each : each + 1])[0] / now[each] for each in range(row - 1 - 288, row - 1)]
    assert found[row] == pytest.approx(np.quantile(known, 0.95), rel=0.01)
    assert (came(of, times[300:900]) <= (now * found)[300:900]).mean() == pytest.approx(0.95, abs=0.04)


def test_a_day_of_bad_forecasts_means_a_fixed_set_point() -> None:
    of = scene(noise=0.4)
    trusting, careful = ModelControl(forecast="yesterday", distrust=1e9), ModelControl(forecast="yesterday")
    off = day_error("yesterday", of, np.array([of.first]))[0]
    said = [abs(of.load[t - DAY : t - DAY + 60].mean() - of.load[t : t + 60].mean())
            for t in range(of.first - DAY, of.first, 60)]  # fmt: skip
    assert off == pytest.approx(
        sum(said) / sum(of.load[t : t + 60].mean() for t in range(of.first - DAY, of.first, 60))
    )
    assert off > 0.15
    fixed = careful.begin(of).decide(view(of.first))
    assert (fixed.supply_c, fixed.fan_margin) == (22.0, 1.0)
    assert fixed.servers == math.ceil(100 * float(recent_load(of.load, np.array([of.first]))[0]) * 1.25 / 0.8)
    assert trusting.begin(of).decide(view(of.first)).supply_c > 22.0


@pytest.mark.parametrize(
    "wrong", [{"headroom": -2.0}, {"quantile": 0.1}, {"distrust": float("nan")}, {"fallback_c": 40}]
)
def test_strange_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValueError):
        ModelControl(forecast="none", **wrong)
