"""Rules for servers in hours at rest."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility.scenes import made_weather
from wavetank.insight.facility.site import Site
from wavetank.insight.facility.table import HourlyPolicy


def test_the_last_hour_is_short_when_load_jumps_and_the_true_load_never_is() -> None:
    load = np.where(np.arange(8760) % 2 == 0, 0.2, 0.6)
    weather = made_weather("phoenix")
    last, true, every = (HourlyPolicy(servers=rule).year(Site(), load, weather)
                         for rule in ("last-hour", "this-hour", "all"))  # fmt: skip
    assert (last.short, true.short, every.short) == (4380, 0, 0)
    assert true.facility_kwh < every.facility_kwh


def test_each_mechanism_saves_in_a_hot_year() -> None:
    load, weather = np.full(8760, 0.4), made_weather("phoenix")
    steps = [
        HourlyPolicy(supply_c=22.0, full_fans=True, economiser=False), HourlyPolicy(supply_c=22.0, economiser=False),
        HourlyPolicy(supply_c=22.0), HourlyPolicy(), HourlyPolicy(servers="this-hour"),
    ]  # fmt: skip
    energies = [each.year(Site(), load, weather).facility_kwh for each in steps]
    assert energies == sorted(energies, reverse=True) and len(set(energies)) == 5


def test_a_supply_that_there_cannot_be_is_refused() -> None:
    with pytest.raises(BadValueError):
        HourlyPolicy(supply_c=90.0)
