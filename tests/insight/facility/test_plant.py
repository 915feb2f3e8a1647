"""The plant: balances that close, bounds, and an integration in small steps beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.insight.facility import plant
from wavetank.insight.facility.plant import Action, advance, at_rest, at_start
from wavetank.insight.facility.site import AIR_J_PER_KG_K, Site

SITE = Site()


def minutes(load: float, air_c: float, wet_c: float, count: int, site: Site = SITE, action: Action | None = None):
    state = at_start(site)
    shape = np.ones(count)
    return advance(site, state, action or Action(22.0, site.servers), load * shape, air_c * shape, wet_c * shape), state


@settings(max_examples=60, deadline=None)
@given(
    load=st.floats(0, 1), air_c=st.floats(-40, 50), below=st.floats(0, 20), supply_c=st.floats(15, 30),
    servers=st.integers(0, 100), margin=st.floats(0.5, 2), walls=st.floats(0, 5000),
)  # fmt: skip
def test_energy_is_neither_lost_nor_made(
    load: float, air_c: float, below: float, supply_c: float, servers: int, margin: float, walls: float
) -> None:
    site = Site(walls_w_per_k=walls)
    found, _ = minutes(load, air_c, air_c - below, 40, site, Action(supply_c, servers, margin))
    scale = found[:, plant.SERVERS] * 60 + walls * 100 * 60 + 1.0
    assert (np.abs(found[:, plant.OFF]) <= 1e-6 * scale).all()
    parts = found[:, [plant.SERVERS, plant.FANS, plant.COOLING, plant.LOSSES]].sum(axis=1)
    assert np.allclose(parts, found[:, plant.FACILITY])
    assert (found[:, plant.HEAT] >= 0).all() and (found[:, plant.FACILITY] >= found[:, plant.SERVERS]).all()


def test_the_room_follows_an_integration_in_small_steps() -> None:
    action = Action(20.0, 60, 1.1)
    found, _ = minutes(0.4, 35.0, 20.0, 30, action=action)
    room, heat = 22.0 + SITE.rise_k, 0.0
    for row in found:
        servers, fans = row[plant.SERVERS], row[plant.FANS]
        air = 1.1 * servers / (AIR_J_PER_KG_K * SITE.rise_k)
        taken = 0.0
        for _ in range(2000):
            out = air * AIR_J_PER_KG_K * (room - 20.0)
            room += 0.03 * (servers + fans + 150.0 * (35.0 - room) - out) / 2e6
            taken += 0.03 * out
        heat = taken / 60
        assert row[plant.ROOM] == pytest.approx(room, abs=1e-3)
    assert found[-1, plant.HEAT] == pytest.approx(heat, rel=1e-4)


def test_without_losses_fans_and_cooling_pue_is_1() -> None:
    found, _ = minutes(0.5, -20.0, -25.0, 200, Site(losses=0.0, fan_share=0.0, walls_w_per_k=1e5))
    assert (found[100:, plant.FACILITY] == found[100:, plant.SERVERS]).all()
    usual, _ = minutes(0.5, 30.0, 20.0, 5)
    assert (usual[:, plant.FACILITY] > 1.07 * usual[:, plant.SERVERS]).all()


def test_servers_boot_for_two_minutes_at_idle_power_and_stop_at_once() -> None:
    state = at_start(SITE)
    ones = np.ones(5)
    fewer = advance(SITE, state, Action(22.0, 40), 0.2 * ones, 20 * ones, 10 * ones)
    more = advance(SITE, state, Action(22.0, 50), 0.2 * ones, 20 * ones, 10 * ones)
    assert (fewer[:, plant.ACTIVE] == 40).all()
    assert more[:, plant.ACTIVE].tolist() == [40, 40, 50, 50, 50]
    assert more[0, plant.SERVERS] - fewer[0, plant.SERVERS] == pytest.approx(10 * 120.0)
    assert more[:, plant.BOOTING].tolist() == [10, 10, 0, 0, 0]


def test_a_boot_that_has_begun_goes_on_when_more_are_asked_for() -> None:
    state = at_start(SITE)
    one = np.ones(1)
    advance(SITE, state, Action(22.0, 40), 0.2 * one, 20 * one, 10 * one)
    for servers, active in ((50, 40), (60, 40), (60, 60)):
        found = advance(SITE, state, Action(22.0, servers), 0.2 * one, 20 * one, 10 * one)
        assert found[0, plant.ACTIVE] == active


def test_work_that_finds_no_server_waits_and_is_served_later() -> None:
    state = at_start(SITE)
    load = np.array([0.5, 0.5, 0.1, 0.1])
    found = advance(SITE, state, Action(22.0, 30), load, 20 * np.ones(4), 10 * np.ones(4))
    assert found[:, plant.LATE] == pytest.approx([20.0, 40.0, 20.0, 0.0])


def test_hours_at_rest_are_what_minutes_come_to() -> None:
    found, _ = minutes(0.45, 33.0, 21.0, 600, action=Action(24.0, 70))
    one = np.ones(1)
    hour = at_rest(SITE, 0.45 * one, 33.0 * one, 21.0 * one, 70 * one, Action(24.0, 70))
    assert found[-1, plant.FACILITY] / 1e3 == pytest.approx(hour.facility_kwh, rel=1e-4)
    assert hour.pue == pytest.approx(found[-1, plant.FACILITY] / found[-1, plant.SERVERS], rel=1e-4)
    short = at_rest(SITE, 0.45 * one, 33.0 * one, 21.0 * one, 44 * one, Action(24.0, 44))
    assert hour.short == 0 and short.short == 1


def test_a_warmer_supply_saves_most_where_it_alone_can_use_outside_air() -> None:
    saved = {}
    for wet in (5.0, 21.0, 21.7, 21.9, 30.0):
        old, new = (minutes(0.5, 35.0, wet, 200, action=Action(each, 100))[0] for each in (22.0, 25.78))
        saved[wet] = 1 - new[-1, plant.FACILITY] / old[-1, plant.FACILITY]
    assert min(saved[21.0], saved[21.7]) > 3 * max(saved[21.9], saved[30.0], saved[5.0]) > 0
    assert abs(saved[5.0]) < 0.005


@pytest.mark.parametrize("wrong", [Action(22.0, 101), Action(22.0, -1), Action(90.0, 3), Action(22.0, 3, 0.0)])
def test_what_a_site_cannot_do_is_refused(wrong: Action) -> None:
    with pytest.raises(BadValueError, match="cannot do"):
        minutes(0.1, 20.0, 10.0, 1, action=wrong)
