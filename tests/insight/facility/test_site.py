"""Formulas of the site against known answers."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility.site import Site, airflow, cooling_w, performance, server_w, warmest_supply_c, wet_bulb_c


@pytest.mark.parametrize(("load", "watts"), [(0.0, 120.0), (0.2, 187.84), (0.5, 262.85), (1.0, 350.0)])
def test_a_servers_power_is_that_of_its_form(load: float, watts: float) -> None:
    assert server_w(load) == pytest.approx(watts, abs=0.005)


@pytest.mark.parametrize(("supply_c", "cop"), [(18.0, 2.676), (22.0, 3.767), (25.8, 5.005), (27.0, 5.437)])
def test_the_chillers_performance_at_a_wet_bulb_of_20_is_moores(supply_c: float, cop: float) -> None:
    assert performance(supply_c, 20.0) == pytest.approx(cop, abs=0.0005)


def test_performance_falls_with_the_wet_bulb_within_its_bounds() -> None:
    found = [performance(22.0, wet) for wet in (-30.0, 0.0, 20.0, 30.0, 60.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(1.3 * 3.7668) and found[-1] == pytest.approx(0.7 * 3.7668)
    assert performance(5.0, 60.0) == 1.5 and performance(45.0, -30.0) == 8.0


def test_stulls_wet_bulb_at_20_c_and_half_humidity() -> None:
    assert wet_bulb_c(20.0, 50.0) == pytest.approx(13.70, abs=0.005)
    assert np.array_equal(wet_bulb_c(30.0, [1.0, 100.0]), wet_bulb_c(30.0, [5.0, 99.0]))


def test_air_warms_by_the_rise_or_less_at_the_floor() -> None:
    assert airflow(35_000.0, 1.0, 3.2, 11.0) * 1005.0 * 11.0 == pytest.approx(35_000.0)
    assert airflow(100.0, 1.0, 3.2, 11.0) == pytest.approx(0.3 * 3.2)


def test_the_economiser_leaves_the_pumps_alone_from_4_k_on() -> None:
    assert cooling_w(1000.0, 22.0, 18.0, True) == pytest.approx(20.0)
    assert cooling_w(1000.0, 22.0, 18.01, True) == cooling_w(1000.0, 22.0, 18.01, False) > 200.0


def test_the_warmest_supply_is_the_papers_rounded_one() -> None:
    assert warmest_supply_c(0.1, 11.0) == pytest.approx(25.78, abs=0.005)
    assert warmest_supply_c(0.0, 11.0) == 27.0
    with pytest.raises(BadValueError, match="no such air"):
        warmest_supply_c(1.0, 11.0)


@pytest.mark.parametrize("wrong", [{"servers": 0}, {"recirculation": 0.9}, {"losses": float("nan")}])
def test_sites_that_there_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValueError):
        Site(**wrong)
