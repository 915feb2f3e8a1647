"""Mechanics of orbits: known rates, the gradient of the potential, SGP4's verification set, conserved energy."""

import numpy as np
import pytest
from tests.insight.orbits.made import elements, line, written
from tests.workloads.test_tle import VANGUARD

from wavetank.insight.orbits import mechanics
from wavetank.insight.orbits.mechanics import (
    AREA_TO_MASS,
    EARTH_KM,
    J2,
    J3,
    J4,
    MU_KM,
    altitude_km,
    axis_km,
    density,
    motion_of,
    node_rate,
    perigee_rate,
    propagated,
    states,
)
from wavetank.workloads.tle import read_tle


def test_the_node_of_a_sun_synchronous_orbit_turns_as_the_sun():
    assert node_rate(6928.0, 0.0, 97.6) == pytest.approx(0.987, abs=5e-4)
    # At the critical inclination the perigee stands still.
    assert perigee_rate(7000.0, 0.1, 63.4349) == pytest.approx(0.0, abs=1e-4)
    assert perigee_rate(7000.0, 0.1, 0.0) == pytest.approx(-2 * node_rate(7000.0, 0.1, 0.0))


def test_axis_and_motion_are_inverse_and_a_geostationary_orbit_is_known():
    assert axis_km(1.00273790935) == pytest.approx(42164.2, abs=0.2)
    assert motion_of(axis_km(14.2)) == pytest.approx(14.2, rel=1e-14)
    assert altitude_km(elements(height_km=800, noise_m=0)) == pytest.approx(800.0)


def potential(x):
    r = np.linalg.norm(x)
    sine, ratio = x[2] / r, EARTH_KM * 1e3 / r
    legendre = ((3 * sine**2 - 1) / 2, (5 * sine**3 - 3 * sine) / 2, (35 * sine**4 - 30 * sine**2 + 3) / 8)
    terms = sum(j * ratio ** (at + 2) * p for at, (j, p) in enumerate(zip((J2, J3, J4), legendre, strict=True)))
    return MU_KM * 1e9 / r * (1 - terms)


@pytest.mark.parametrize("place", [(4e6, 3e6, 5.2e6), (7e6, 0, 1e3), (1e5, -2e5, -7.2e6), (2e7, 3e7, -1e7)])
def test_acceleration_is_the_gradient_of_the_potential(place):
    x, out = np.array([*place, 0, 0, 0], float), np.empty(6)
    mechanics._rates(x, 0.0, out)
    slope = [(potential(x[:3] + step) - potential(x[:3] - step)) / 20 for step in 10 * np.eye(3)]
    np.testing.assert_allclose(out[3:], slope, atol=2e-9)


def test_states_are_those_of_the_verification_set(tmp_path):
    (of,) = read_tle(written(tmp_path, "a.tle", [VANGUARD])).values()
    known = [7022465.29266, -1400082.96755, 39.95155, 1893.841015, 6405.893759, 4534.807250]
    np.testing.assert_allclose(states(of)[0], known, rtol=0, atol=1e-3)


def test_a_record_that_sgp4_refuses_has_no_state(tmp_path):
    one, two = VANGUARD
    # Its perigee is below the ground.
    (of,) = read_tle(written(tmp_path, "a.tle", [(one, line(two[:26] + "9999999" + two[33:68]))])).values()
    assert np.isnan(states(of)).all()


def test_the_error_of_a_step_falls_with_its_eighth_power():
    begin = np.array([7.2e6, 0, 0, 0, 1000.0, 7400.0])
    exact = propagated(begin, 86400.0, 1e-4, step_s=50)
    wrong = [np.linalg.norm((propagated(begin, 86400.0, 1e-4, step_s=step) - exact)[:3]) for step in (600, 400, 300)]
    assert wrong[0] < 3000 and wrong[1] < 60 and wrong[2] < 6
    assert wrong[0] / wrong[2] > 2**8


def test_without_drag_energy_and_turning_about_the_axis_are_kept():
    begin = np.array([7.2e6, 0, 0, 0, 1000.0, 7400.0])

    def energy(state):
        return state[3:] @ state[3:] / 2 - potential(state[:3])

    end = propagated(begin, 86400.0, 0.0, step_s=200.0)
    assert energy(end) == pytest.approx(energy(begin), rel=2e-8)
    assert np.cross(end[:3], end[3:])[2] == pytest.approx(np.cross(begin[:3], begin[3:])[2], rel=1e-8)
    back = propagated(end, -86400.0, 0.0, step_s=200.0) - begin
    assert np.abs(back[:3]).max() < 20 and np.abs(back[3:]).max() < 0.02


def test_drag_lowers_an_orbit_as_the_formula_of_circular_orbits_says():
    radius = (EARTH_KM + 400) * 1e3
    speed = np.sqrt(MU_KM * 1e9 / radius)
    # Against the Earth's turning, over the poles: the air moves across.
    begin, drag = np.array([radius, 0, 0, 0, 0, speed]), 1e-3

    def axis(state):
        return 1 / (2 / np.linalg.norm(state[:3]) - state[3:] @ state[3:] / (MU_KM * 1e9))

    turn = 2 * np.pi * radius / speed
    lost = axis(propagated(begin, turn, 0.0, step_s=100)) - axis(propagated(begin, turn, drag, step_s=100))
    wanted = 2 * np.pi * AREA_TO_MASS * drag * float(density(400.0)) * radius**2
    assert lost == pytest.approx(wanted, rel=0.15)


def test_the_atmosphere_thins_with_height_without_jumps():
    heights = np.linspace(100, 1500, 2001)
    found = density(heights)
    assert (np.diff(found) < 0).all()
    # The table's own layers meet within a few per cent.
    assert (np.abs(np.diff(np.log(found))) < 0.2).all()
    assert density(200.0) == pytest.approx(2.789e-10) and density(2000.0) == 0.0 and density(50.0) == density(100.0)


@pytest.mark.parametrize(("many", "drag"), [(1, 0.0), (13, 2e-3), (16, 0.05)])
def test_states_moved_together_are_those_moved_alone_to_the_last_digit(many, drag):
    draws = np.random.default_rng(2)
    begin = np.array([6.9e6, 0, 1e5, 10, 3e3, 6.9e3]) + draws.normal(size=(many, 6)) * [1e3, 1e3, 1e3, 1, 1, 1]
    out, kept = np.empty_like(begin), begin.copy()
    mechanics._propagate_all(begin, 50_000.0, drag, 700.0, out)
    alone = [mechanics._propagate(each.copy(), 50_000.0, drag, 700.0) for each in begin]
    assert np.array_equal(out, alone) and np.array_equal(begin, kept)
