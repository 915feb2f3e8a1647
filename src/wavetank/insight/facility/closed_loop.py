"""A controller on the simulated site: the one accounting of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.facility import plant
from wavetank.insight.facility.control import RECENT_MIN
from wavetank.insight.facility.estimator import (
    INLET_K,
    POWER_SHARE,
    RACKS,
    ROOM_K,
    Estimator,
    Readings,
    WeeklyRefit,
)  # fmt: skip
from wavetank.insight.facility.interface import Controller, Scene, View
from wavetank.insight.facility.plant import Action
from wavetank.insight.facility.site import LIMIT_C, PER_SERVER, Floats, Site
from wavetank.sim.rng import stream

# A hundredth of a degree: 25.78 deg C, the rounded set point, is 27.002 at the inlets.
_TOLERANCE_K = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class Outside:
    """What a controller meets, the same for all of them.

    Parameters
    ----------
    site : Site
        As it is.
    air_c, wet_c : numpy.ndarray of float64, shape (minutes,)
        From the scene's first minute on.
    noise : float
        Of the sensors; 1 as :mod:`~wavetank.insight.facility.estimator` states them.
    """

    site: Site
    air_c: Floats
    wet_c: Floats
    noise: float = 1.0


class Outcome(NamedTuple):
    """What became of it.

    Attributes
    ----------
    facility_kwh, servers_kwh : float
    inlet_broken : float
        Share of minutes in which inlets were above 27 deg C.
    late : float
        Work that found no server within its minute / all work.
    above_target : float
        Share of minutes in which servers have more than 0.8 of what they can take.
    alarms : int
        Of the estimator.
    believed : Site
        As the last weekly fit has it.
    minutes : numpy.ndarray, shape (minutes, 13)
        Columns of :mod:`~wavetank.insight.facility.plant`.
    actions : tuple of Action
    """

    facility_kwh: float
    servers_kwh: float
    inlet_broken: float
    late: float
    above_target: float
    alarms: int
    believed: Site
    minutes: Floats
    actions: tuple[Action, ...]


def run(controller: Controller, scene: Scene, outside: Outside) -> Outcome:
    """Let a controller run the site from the scene's first minute to its last.

    Parameters
    ----------
    controller : Controller
    scene : Scene
    outside : Outside

    Raises
    ------
    BadValueError
        If there is less weather than load, or no load.
    """
    count = scene.load.size - scene.first
    if not 0 < count <= outside.air_c.size or outside.air_c.size != outside.wet_c.size:
        raise BadValueError("Weather must be there for all minutes of load.",
                            given=f"{count} of load, {outside.air_c.size} of weather")  # fmt: skip
    operator, site = controller.begin(scene), outside.site
    state, estimator = plant.at_start(site), Estimator(scene.site, noise=outside.noise)
    refit, believed = WeeklyRefit(scene.site), scene.site
    draws = stream(scene.seed, "facility", "sensors").normal(size=(count, 3))
    draws *= outside.noise * np.array([ROOM_K, POWER_SHARE, INLET_K / np.sqrt(RACKS)])
    tables, actions, alarms = [], [], 0
    for begin in range(0, count, scene.interval_min):
        minute = scene.first + begin
        recent = scene.load[max(0, minute - RECENT_MIN) : minute]
        action = operator.decide(View(
            minute, float(recent.mean()) if recent.size else 0.0, float(state[4]), float(outside.air_c[begin]),
            float(outside.wet_c[begin]), estimator.recirculation, estimator.recirculation_sd, believed,
        ))  # fmt: skip
        part = slice(begin, min(count, begin + scene.interval_min))
        load = scene.load[scene.first :][part]
        waited = float(state[4])
        table = plant.advance(site, state, action, load, outside.air_c[part], outside.wet_c[part])
        if not action.full_fans:
            before = np.concatenate([[waited], table[:-1, plant.LATE]])
            served = load * site.servers + before - table[:, plant.LATE]
            readings = Readings(
                table[:, plant.ROOM] + draws[part, 0], table[:, plant.SERVERS] * (1 + draws[part, 1]),
                table[:, plant.INLET] + draws[part, 2],
            )  # fmt: skip
            said = (readings, served, table[:, plant.ACTIVE], table[:, plant.BOOTING], outside.air_c[part],
                    action.supply_c, action.fan_margin)  # fmt: skip
            estimator.take(*said)
            believed = refit.take(*said)
            estimator.adopt(believed)
        tables.append(table)
        actions.append(action)
    minutes = np.concatenate(tables)
    alarms = estimator.alarms
    work = scene.load[scene.first :] * site.servers
    late = np.minimum(minutes[:, plant.LATE], work)
    served = work + np.concatenate([[0.0], minutes[:-1, plant.LATE]]) - minutes[:, plant.LATE]
    above = served > PER_SERVER * minutes[:, plant.ACTIVE] + 1e-9
    return Outcome(
        float(minutes[:, plant.FACILITY].sum()) / 60e3, float(minutes[:, plant.SERVERS].sum()) / 60e3,
        float(np.mean(minutes[:, plant.INLET] > LIMIT_C + _TOLERANCE_K)),
        float(late.sum() / max(1e-12, work.sum())), float(np.mean(above)), alarms, believed, minutes, tuple(actions),
    )  # fmt: skip
