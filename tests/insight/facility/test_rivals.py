"""Sites without a model."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility.interface import Scene, View
from wavetank.insight.facility.rivals import FixedSetPoint, WeatherReset
from wavetank.insight.facility.site import Site

SCENE = Scene(site=Site(servers=40), load=np.ones(10), first=5, interval_min=5, seed=0)


def view(wet_c: float) -> View:
    return View(5, 0.3, 0.0, wet_c + 5, wet_c, 0.1, 0.0)


def test_a_fixed_set_point_does_not_follow_the_weather() -> None:
    operator = FixedSetPoint(supply_c=25.78, full_fans=True, economiser=False).begin(SCENE)
    assert operator.decide(view(-10.0)) == operator.decide(view(30.0)) == (25.78, 40, 1.0, True, False)


def test_the_reset_follows_the_wet_bulb_between_its_bounds() -> None:
    operator = WeatherReset().begin(SCENE)
    assert [operator.decide(view(wet)).supply_c for wet in (0.0, 16.0, 28.0)] == [18.0, 20.5, 25.78]
    assert operator.decide(view(16.0)).servers == 40


def test_strange_set_points_are_refused() -> None:
    with pytest.raises(BadValueError):
        FixedSetPoint(supply_c=80.0)
    with pytest.raises(BadValueError):
        WeatherReset(approach_k=-1.0)
