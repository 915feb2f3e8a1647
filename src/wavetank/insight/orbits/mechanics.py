"""Orbits from mean elements: axis, altitude, what drag and the Earth's flattening change, states, and propagation.

Source: J2 rates, the exponential atmosphere's table and the ballistic coefficient of B* from D. Vallado, Fundamentals
of Astrodynamics and Applications (4th edition, 2013); constants of WGS-72 and WGS-84.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.sim.compiled import compiled
from wavetank.workloads.tle import Elements

Floats = NDArray[np.float64]

MU_KM = 398600.4418
"""Of the Earth, km^3/s^2."""
EARTH_KM = 6378.137
"""Radius at the equator."""
MEAN_EARTH_KM = 6371.0
J2 = 1.08263e-3
J3, J4 = -2.53265e-6, -1.61962e-6
DAY_S = 86_400.0
AREA_TO_MASS = 12.741621
"""Cd A / m in m^2/kg of a B* of 1 per radius of the Earth."""

# Base altitude in km, density there in kg/m^3, scale height in km.
_ATMOSPHERE = np.array(
    [
        (100, 5.297e-7, 5.877), (110, 9.661e-8, 7.263), (120, 2.438e-8, 9.473), (130, 8.484e-9, 12.636),
        (140, 3.845e-9, 16.149), (150, 2.070e-9, 22.523), (180, 5.464e-10, 29.740), (200, 2.789e-10, 37.105),
        (250, 7.248e-11, 45.546), (300, 2.418e-11, 53.628), (350, 9.518e-12, 53.298), (400, 3.725e-12, 58.515),
        (450, 1.585e-12, 60.828), (500, 6.967e-13, 63.822), (600, 1.454e-13, 71.835), (700, 3.614e-14, 88.667),
        (800, 1.170e-14, 124.64), (900, 5.245e-15, 181.05), (1000, 3.019e-15, 268.00),
    ]
)  # fmt: skip
_BASE_KM, _DENSITY, _SCALE_KM = (np.ascontiguousarray(each) for each in _ATMOSPHERE.T)
_OMEGA = 7.292115e-5
LANES = 16
"""States that :func:`_propagate_all` moves together: a number known at compile time, so that they share registers."""
_MU, _RADIUS = MU_KM * 1e9, EARTH_KM * 1e3


def axis_km(mean_motion: ArrayLike) -> Floats:
    """Return the semi-major axis in km of a mean motion in revolutions per day.

    Parameters
    ----------
    mean_motion : array of float
    """
    rate = np.asarray(mean_motion, np.float64) * (2 * math.pi / DAY_S)
    found: Floats = np.cbrt(MU_KM / rate**2)
    return found


def motion_of(semi_axis_km: ArrayLike) -> Floats:
    """Return the mean motion in revolutions per day of a semi-major axis in km.

    Parameters
    ----------
    semi_axis_km : array of float
    """
    found: Floats = np.sqrt(MU_KM / np.asarray(semi_axis_km, np.float64) ** 3) * (DAY_S / (2 * math.pi))
    return found


def altitude_km(elements: Elements) -> Floats:
    """Return the semi-major axis above the mean radius of the Earth.

    Parameters
    ----------
    elements : Elements
    """
    return axis_km(elements.mean_motion) - MEAN_EARTH_KM


def node_rate(semi_axis_km: ArrayLike, eccentricity: ArrayLike, inclination_deg: ArrayLike) -> Floats:
    """Return how fast J2 turns the node, in degrees per day.

    Parameters
    ----------
    semi_axis_km, eccentricity, inclination_deg : array of float
    """
    motion, flattening = _turning(semi_axis_km, eccentricity)
    return -1.5 * flattening * motion * np.cos(np.radians(inclination_deg))


def perigee_rate(semi_axis_km: ArrayLike, eccentricity: ArrayLike, inclination_deg: ArrayLike) -> Floats:
    """Return how fast J2 turns the perigee, in degrees per day.

    Parameters
    ----------
    semi_axis_km, eccentricity, inclination_deg : array of float
    """
    motion, flattening = _turning(semi_axis_km, eccentricity)
    return 0.75 * flattening * motion * (5 * np.cos(np.radians(inclination_deg)) ** 2 - 1)


def _turning(semi_axis_km: ArrayLike, eccentricity: ArrayLike) -> tuple[Floats, Floats]:
    axis, shape = np.asarray(semi_axis_km, np.float64), np.asarray(eccentricity, np.float64)
    parameter = axis * (1 - shape**2)
    return 360 * motion_of(axis), J2 * (EARTH_KM / parameter) ** 2


def density(height_km: ArrayLike) -> Floats:
    """Return the density of the atmosphere in kg/m^3; below 100 km that of 100 km and above 1,500 km none.

    Parameters
    ----------
    height_km : array of float
    """
    heights = np.asarray(height_km, np.float64)
    flat = np.array([_density(each) for each in heights.ravel().tolist()])
    return flat.reshape(heights.shape)


def states(elements: Elements) -> Floats:
    """Return positions and velocities by SGP4 at the epochs themselves.

    Parameters
    ----------
    elements : Elements
        With its lines.

    Returns
    -------
    numpy.ndarray of float64, shape (n, 6)
        m and m/s in the frame of the true equator and mean equinox; NaN where SGP4 refuses a record.
    """
    from sgp4.api import Satrec

    found = np.full((len(elements), 6), np.nan)
    for at, (one, two) in enumerate(elements.lines):
        error, position, velocity = Satrec.twoline2rv(one, two).sgp4_tsince(0.0)
        if error == 0:
            found[at] = 1000.0 * np.array([*position, *velocity])
    return found


def propagated(state: ArrayLike, seconds: float, drag: float, *, step_s: float = 400.0) -> Floats:
    """Return a state after some time: central body, J2 to J4, and drag of an atmosphere that turns with the Earth.

    Parameters
    ----------
    state : array of float, shape (6,)
        m and m/s.
    seconds : float
    drag : float
        B*, per radius of the Earth.
    step_s : float
        The longest step, of the eighth order.  At 400 s, in low orbit, the error of a day is below 60 m.
    """
    found: Floats = _propagate(np.array(state, np.float64), float(seconds), drag * AREA_TO_MASS, step_s)
    return found


@compiled
def _density(height_km):  # type: ignore[no-untyped-def]
    if height_km > 1500.0:
        return 0.0
    height = max(height_km, _BASE_KM[0])
    at = _BASE_KM.size - 1
    while height < _BASE_KM[at]:
        at -= 1
    return _DENSITY[at] * math.exp((_BASE_KM[at] - height) / _SCALE_KM[at])


@compiled
def _rates(state, drag, out):  # type: ignore[no-untyped-def]
    x, y, z = state[0], state[1], state[2]
    squared = x * x + y * y + z * z
    radius = math.sqrt(squared)
    central = _MU / (squared * radius)
    flat = 1.5 * J2 * _RADIUS * _RADIUS / squared
    up = 5.0 * z * z / squared
    out[0], out[1], out[2] = state[3], state[4], state[5]
    # J3 and J4 matter: J4 alone moves a low satellite by a kilometre per day.
    sine, ratio = z / radius, _RADIUS / radius
    level = sine * sine
    pear = 2.5 * J3 * ratio * ratio * ratio
    fourth = -1.875 * J4 * ratio * ratio * ratio * ratio
    around = 1.0 + flat * (1.0 - up) + pear * sine * (3.0 - 7.0 * level)
    around += fourth * (1.0 + level * (21.0 * level - 14.0))
    along = 1.0 + flat * (3.0 - up) + fourth * (5.0 + level * (21.0 * level - 70.0 / 3.0))
    out[3] = -central * x * around
    out[4] = -central * y * around
    out[5] = -central * (z * along + pear * radius * (level * (6.0 - 7.0 * level) - 0.6))
    if drag != 0.0:
        thick = _density(radius / 1000.0 - EARTH_KM)
        if thick > 0.0:
            u, v, w = state[3] + _OMEGA * y, state[4] - _OMEGA * x, state[5]
            slow = 0.5 * thick * drag * math.sqrt(u * u + v * v + w * w)
            out[3] -= slow * u
            out[4] -= slow * v
            out[5] -= slow * w


@compiled
def _propagate(state, seconds, drag, step_s):  # type: ignore[no-untyped-def]
    """Move a state on by some time in equal steps of at most ``step_s``; the state given changes.

    A step is four modified midpoint rules of 2, 4, 6 and 8 parts, extrapolated to parts of no length: order 8.
    """
    steps = max(1, math.ceil(abs(seconds) / step_s))
    step = seconds / steps
    first, rate, before, at, after = np.empty(6), np.empty(6), np.empty(6), np.empty(6), np.empty(6)
    ladder = np.empty((4, 6))
    for _ in range(steps):
        _rates(state, drag, first)
        for rung in range(4):
            parts = 2 * (rung + 1)
            part = step / parts
            for i in range(6):
                before[i] = state[i]
                at[i] = state[i] + part * first[i]
            for _ in range(parts - 1):
                _rates(at, drag, rate)
                for i in range(6):
                    after[i] = before[i] + 2.0 * part * rate[i]
                    before[i] = at[i]
                    at[i] = after[i]
            _rates(at, drag, rate)
            for i in range(6):
                ladder[rung, i] = 0.5 * (at[i] + before[i] + part * rate[i])
            for lower in range(rung - 1, -1, -1):
                ratio = (rung + 1.0) / (lower + 1.0)
                for i in range(6):
                    ladder[lower, i] = ladder[lower + 1, i] + (ladder[lower + 1, i] - ladder[lower, i]) / (
                        ratio * ratio - 1.0
                    )
        for i in range(6):
            state[i] = ladder[0, i]
    return state


@compiled(error_model="numpy")
def _rates_all(state, drag, many, out, radius):  # type: ignore[no-untyped-def]
    """As :func:`_rates`, operation by operation, of states that lie component by component; ``many`` have drag."""
    for k in range(LANES):
        x, y, z = state[k], state[LANES + k], state[2 * LANES + k]
        squared = x * x + y * y + z * z
        away = math.sqrt(squared)
        central = _MU / (squared * away)
        flat = 1.5 * J2 * _RADIUS * _RADIUS / squared
        up = 5.0 * z * z / squared
        sine, ratio = z / away, _RADIUS / away
        level = sine * sine
        pear = 2.5 * J3 * ratio * ratio * ratio
        fourth = -1.875 * J4 * ratio * ratio * ratio * ratio
        around = 1.0 + flat * (1.0 - up) + pear * sine * (3.0 - 7.0 * level)
        around += fourth * (1.0 + level * (21.0 * level - 14.0))
        along = 1.0 + flat * (3.0 - up) + fourth * (5.0 + level * (21.0 * level - 70.0 / 3.0))
        out[k], out[LANES + k] = state[3 * LANES + k], state[4 * LANES + k]
        out[2 * LANES + k] = state[5 * LANES + k]
        out[3 * LANES + k] = -central * x * around
        out[4 * LANES + k] = -central * y * around
        out[5 * LANES + k] = -central * (z * along + pear * away * (level * (6.0 - 7.0 * level) - 0.6))
        radius[k] = away
    if drag != 0.0:
        for k in range(many):
            thick = _density(radius[k] / 1000.0 - EARTH_KM)
            if thick > 0.0:
                u = state[3 * LANES + k] + _OMEGA * state[LANES + k]
                v = state[4 * LANES + k] - _OMEGA * state[k]
                w = state[5 * LANES + k]
                slow = 0.5 * thick * drag * math.sqrt(u * u + v * v + w * w)
                out[3 * LANES + k] -= slow * u
                out[4 * LANES + k] -= slow * v
                out[5 * LANES + k] -= slow * w


@compiled(error_model="numpy")
def _propagate_all(states, seconds, drag, step_s, out):  # type: ignore[no-untyped-def]
    """As :func:`_propagate`, of up to :data:`LANES` states at once, digit by digit; the states stay as they are."""
    many = states.shape[0]
    steps = max(1, math.ceil(abs(seconds) / step_s))
    step = seconds / steps
    size = 6 * LANES
    state, first, rate, before = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    at, radius, ladder = np.empty(size), np.empty(LANES), np.empty((4, size))
    for k in range(LANES):
        for i in range(6):
            # Lanes that are not needed move as the first state does.
            state[i * LANES + k] = states[k if k < many else 0, i]
    for _ in range(steps):
        _rates_all(state, drag, many, first, radius)
        for rung in range(4):
            parts = 2 * (rung + 1)
            part = step / parts
            for i in range(size):
                before[i] = state[i]
                at[i] = state[i] + part * first[i]
            for _ in range(parts - 1):
                _rates_all(at, drag, many, rate, radius)
                for i in range(size):
                    after = before[i] + 2.0 * part * rate[i]
                    before[i] = at[i]
                    at[i] = after
            _rates_all(at, drag, many, rate, radius)
            own = ladder[rung]
            for i in range(size):
                own[i] = 0.5 * (at[i] + before[i] + part * rate[i])
            for lower in range(rung - 1, -1, -1):
                ratio = (rung + 1.0) / (lower + 1.0)
                below, above = ladder[lower], ladder[lower + 1]
                for i in range(size):
                    below[i] = above[i] + (above[i] - below[i]) / (ratio * ratio - 1.0)
        for i in range(size):
            state[i] = ladder[0, i]
    for k in range(many):
        for i in range(6):
            out[k, i] = state[i * LANES + k]
