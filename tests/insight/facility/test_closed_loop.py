"""Controllers on the site: one accounting, equal work, inlets within their limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility import plant
from wavetank.insight.facility.closed_loop import Outside, run
from wavetank.insight.facility.control import ModelControl
from wavetank.insight.facility.interface import Scene
from wavetank.insight.facility.plant import Action
from wavetank.insight.facility.rivals import FixedSetPoint
from wavetank.insight.facility.scenes import DAY, generated_load, made_weather
from wavetank.insight.facility.site import Site

FIRST = 10 * DAY


def scene(load: np.ndarray | None = None) -> Scene:
    load = generated_load(12 * DAY, 0.1, 4) if load is None else load
    return Scene(site=Site(), load=load, first=FIRST, interval_min=15, seed=4)


def outside(recirculation: float = 0.1) -> Outside:
    air_c, wet_c = made_weather("phoenix").minutes(150 * DAY, 2 * DAY)
    return Outside(site=Site(recirculation=recirculation), air_c=air_c, wet_c=wet_c)


def test_energy_is_the_sum_of_the_minutes_and_balances_close() -> None:
    found = run(ModelControl(forecast="ridge"), scene(), outside())
    assert found.facility_kwh == pytest.approx(found.minutes[:, plant.FACILITY].sum() / 60 / 1000)
    assert len(found.minutes) == 2 * DAY and len(found.actions) == 2 * 96
    assert (np.abs(found.minutes[:, plant.OFF]) < 1e-6 * 60 * found.minutes[:, plant.SERVERS]).all()
    assert found.facility_kwh > found.servers_kwh and found.inlet_broken == 0.0 and found.alarms == 0


def test_all_serve_the_same_work_and_the_one_that_knows_most_uses_least() -> None:
    names = {"none": 0.25, "ridge": -1.0, "oracle": -1.0}
    found = {name: run(ModelControl(forecast=name, headroom=room), scene(), outside()) for name, room in names.items()}
    work = scene().load[FIRST:].sum() * 100
    for each in found.values():
        waiting = np.concatenate([[0.0], each.minutes[:, plant.LATE]])
        assert (scene().load[FIRST:] * 100 - np.diff(waiting)).sum() == pytest.approx(work, rel=1e-3)
    assert found["oracle"].facility_kwh < found["ridge"].facility_kwh < found["none"].facility_kwh
    assert found["oracle"].late == found["oracle"].above_target == 0.0
    assert found["none"].above_target < found["ridge"].above_target < 0.1
    bare = run(ModelControl(forecast="none", headroom=0.0), scene(), outside())
    assert bare.facility_kwh < found["oracle"].facility_kwh and bare.above_target > 0.3


def test_the_filter_keeps_inlets_cool_where_more_air_recirculates_than_believed() -> None:
    plain, ours = FixedSetPoint(supply_c=25.78), ModelControl(forecast="none", headroom=0.25)
    assert run(plain, scene(), outside(0.15)).inlet_broken > 0.9
    assert run(ours, scene(), outside(0.15)).inlet_broken < 0.001
    assert run(plain, scene(), outside(0.1)).inlet_broken == 0.0


def test_at_a_constant_load_a_search_gains_nothing_in_air_over_the_right_set_point() -> None:
    class AllOn:
        def begin(self, scene):
            return ModelControl(forecast="none", headroom=10.0).begin(scene)

    flat = scene(np.full(12 * DAY, 0.5))
    steady = replace(outside(), air_c=np.full(2 * DAY, 30.0), wet_c=np.full(2 * DAY, 23.0), noise=0.0)
    right, ours = (run(each, flat, steady) for each in (FixedSetPoint(supply_c=25.78), AllOn()))
    assert {each.servers for each in ours.actions} == {100}
    # The filter's first doubt costs a little at the start.
    assert ours.facility_kwh == pytest.approx(right.facility_kwh, rel=2e-3)
    assert ours.actions[-1].supply_c == pytest.approx(25.78, abs=0.11)


def test_walls_and_capacity_that_nobody_knows_are_found_after_a_week_and_used() -> None:
    seen = []

    class Watching:
        def begin(self, scene):
            self._operator = ModelControl(forecast="none", headroom=0.25).begin(scene)
            return self

        def decide(self, view):
            seen.append(view.site)
            return self._operator.decide(view)

    air_c, wet_c = made_weather("phoenix").minutes(20 * DAY, 8 * DAY)
    true = Site(walls_w_per_k=300.0, capacity_j_per_k=6e6, recirculation=0.12)
    found = run(Watching(), scene(generated_load(18 * DAY, 0.1, 4)), Outside(site=true, air_c=air_c, wet_c=wet_c))
    assert found.believed.walls_w_per_k == pytest.approx(300.0, rel=0.05)
    assert found.believed.capacity_j_per_k == pytest.approx(6e6, rel=0.1)
    assert found.believed.recirculation == pytest.approx(0.12, abs=0.002)
    assert {each.walls_w_per_k for each in seen[: 7 * 96]} == {150.0} and seen[-1] == found.believed


def test_late_work_is_what_found_no_server_in_its_minute() -> None:
    class TooFew:
        def begin(self, scene):
            return self

        def decide(self, view):
            return Action(22.0, 40)

    load = np.full(12 * DAY, 0.3)
    load[FIRST + 100 : FIRST + 110] = 0.6
    found = run(TooFew(), scene(load), outside())
    # 20 a minute too many for ten minutes, 10 a minute worked off for twenty.
    late = sum(min(60.0, 20.0 * each) for each in range(1, 11)) + sum(
        min(30.0, 200.0 - 10.0 * each) for each in range(1, 20)
    )
    assert found.late == pytest.approx(late / (load[FIRST:].sum() * 100))


def test_too_little_weather_is_refused() -> None:
    short = replace(outside(), air_c=np.ones(5), wet_c=np.ones(5))
    with pytest.raises(BadValueError, match="Weather"):
        run(FixedSetPoint(), scene(), short)
