"""Simulated satellites that hold their height until, some day, nothing holds it any more.

No satellite of the data set decays, so that decay is planted: an orbit that was steered falls from its onset on as drag
has it.  Noise and its memory are copied from quiet records of real satellites; times between records reach from hours
to days, or are all one day.  The drag term of the elements is that of the atmosphere, before the onset and after it, so
that the axis alone says whether the orbit is held.

Source: D. G. King-Hele, Satellite Orbits in an Atmosphere (1987), for the rate at which a round orbit sinks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.insight.orbits.interface import History
from wavetank.insight.orbits.mechanics import (
    AREA_TO_MASS,
    DAY_S,
    EARTH_KM,
    MEAN_EARTH_KM,
    MU_KM,
    Floats,
    axis_km,
    density,
    motion_of,
)
from wavetank.insight.orbits.rules import running_median
from wavetank.sim.rng import stream
from wavetank.workloads.tle import DAY_NS, Elements

SEEN_NS = 20 * DAY_NS
"""For how long a decay is watched, and may be found."""
_FIRST_NS = 1_600_000_000 * 10**9
_QUIET, _LEVEL = 10, 9
_RECORDS, _ONSET = 130, (60, 100)
_HEIGHT_KM = (400.0, 600.0)
# Of B*, per radius of the Earth: median, and spread of its logarithm; of what the elements say of it.
_DRAG, _DRAG_SPREAD, _SAID_SPREAD = 2e-4, 0.5, 0.2
_GAP_SPREAD, _GAPS_D = 0.9, (0.1, 8.0)
_SHARE = 2 / 3


def sinking_m_per_day(height_km: float, drag: float) -> float:
    """Return how fast a round orbit sinks.

    Parameters
    ----------
    height_km : float
        Axis less the mean radius of the Earth.
    drag : float
        B*, per radius of the Earth.
    """
    axis_m = (height_km + MEAN_EARTH_KM) * 1e3
    thick = float(density(height_km + MEAN_EARTH_KM - EARTH_KM)[()])
    return thick * drag * AREA_TO_MASS * math.sqrt(MU_KM * 1e9 * axis_m) * DAY_S


def noise_of(of: History) -> Floats:
    """Return what quiet records of a real satellite depart by from their level.

    Parameters
    ----------
    of : History

    Returns
    -------
    numpy.ndarray of float64, shape (n, 4)
        Axis in m, eccentricity, inclination in degrees, B*; record by record, without those near an event.
    """
    elements = of.elements
    columns = (
        axis_km(elements.mean_motion) * 1000, elements.eccentricity, elements.inclination_deg, elements.drag,
    )  # fmt: skip
    off = np.column_stack([column - running_median(column, _LEVEL) for column in columns])
    near = np.convolve(of.near_events(), np.ones(2 * _QUIET + 1), mode="same") > 0
    return np.asarray(off[~near], np.float64)


def decaying(
    seed: int, donors: Sequence[History], many: int, *, noise: float = 1.0, regular: bool = False
) -> list[History]:
    """Return simulated satellites, two of three of which decay from some day on.

    Parameters
    ----------
    seed : int
    donors : sequence of History
        Real satellites whose noise is copied.
    many : int
    noise : float
        By which the noise of the donors, who fly higher, is multiplied.
    regular : bool
        One record a day, in place of hours to days.

    Raises
    ------
    BadValueError
        If no donor has enough quiet records.
    """
    noises = [noise * own for own in map(noise_of, donors) if len(own) >= _RECORDS]
    if not noises:
        raise BadValueError("Noise is copied from satellites with quiet records.", given=f"{len(donors)} satellites",
                            allowed=f"one with {_RECORDS} quiet records at least")  # fmt: skip
    return [_one(stream(seed, "decays", number), noises, number, regular=regular) for number in range(many)]


def _one(draws: np.random.Generator, noises: list[Floats], number: int, *, regular: bool) -> History:
    noise = noises[int(draws.integers(len(noises)))]
    first = int(draws.integers(len(noise) - _RECORDS + 1))
    noise = noise[first : first + _RECORDS]
    gaps = np.exp(_GAP_SPREAD * draws.standard_normal(_RECORDS - 1))
    gaps = np.ones(_RECORDS - 1) if regular else np.clip(gaps, *_GAPS_D)
    days = np.concatenate(([0.0], np.cumsum(gaps)))
    height = float(draws.uniform(*_HEIGHT_KM))
    drag = _DRAG * math.exp(_DRAG_SPREAD * draws.standard_normal())
    onset = float(days[int(draws.integers(*_ONSET))] - gaps.min() * draws.random())
    said = drag * math.exp(_SAID_SPREAD * draws.standard_normal())
    if decays := bool(draws.random() < _SHARE):
        keep = days <= onset + SEEN_NS / DAY_NS
        days, noise = days[keep], noise[keep]
    axis = (height + MEAN_EARTH_KM) * 1e3 - (_sunk(days - onset, height, drag) if decays else 0.0)
    elements = _elements(number, days, (axis + noise[:, 0]) / 1e3, said, noise)
    events = np.array([_FIRST_NS + round(onset * DAY_NS)] if decays else [], np.int64)
    return History(name=f"simulated-{number}", elements=elements, events_ns=events, found_ns=SEEN_NS, taught_ns=SEEN_NS)


def _sunk(days: Floats, height: float, drag: float) -> Floats:
    """Return by how many metres the axis has sunk, days after the onset."""
    found, sunk, now = np.zeros(days.size), 0.0, 0.0
    for at, day in enumerate(days.tolist()):
        while now < day:
            # Tenths of a day: the density hardly changes over what an orbit sinks in one.
            step = min(0.1, day - now)
            sunk += sinking_m_per_day(height - sunk / 1e3, drag) * step
            now += step
        found[at] = sunk
    return found


def _elements(number: int, days: Floats, axis: Floats, drag: float, noise: Floats) -> Elements:
    zero: NDArray[np.float64] = np.zeros(days.size)
    return Elements(
        number=number, epoch_ns=_FIRST_NS + np.round(days * DAY_NS).astype(np.int64), mean_motion=motion_of(axis),
        eccentricity=np.clip(1e-3 + noise[:, 1], 0.0, 0.9), inclination_deg=98.0 + noise[:, 2], node_deg=zero,
        perigee_deg=zero, anomaly_deg=zero, drag=drag + noise[:, 3], motion_rate=zero,
    )  # fmt: skip
