"""The twin beside a running site: means of minutes in, what is believed and what is advised out.

The controller is the one of the study, given the history so far in place of a scene: 25 % headroom until three days are
known, ten for ridge, forecasts and margins from past errors after that.  Ridge learns from what is older than the days
that its margins come from: errors on hours that it has learned from are too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.facility.control import ModelControl, judged_min
from wavetank.insight.facility.estimator import Estimator, Readings
from wavetank.insight.facility.ingest import Mean
from wavetank.insight.facility.interface import Scene, View
from wavetank.insight.facility.scenes import DAY, WEEK
from wavetank.insight.facility.site import Site, wet_bulb_c

_KNOWN_ENOUGH = 3 * DAY + 120
# What learns has a week to learn from, beside the days that judge it.
_LEARNS = {"ridge": WEEK}
_MOST_KEPT = 8 * WEEK
_LONGEST_GAP = 30
FORECASTS = ("none", "persistence", "yesterday", "week", "ridge")


class State(NamedTuple):
    """What is believed of a minute; NaN where nothing is known.

    Attributes
    ----------
    minute : int
        Minutes since the epoch.
    servers : int
        That sent their load.
    load : float
        Share of all servers.
    power_w, inlet_c, room_c, supply_c, air_c, wet_c : float
        As sensors say.
    recirculation, recirculation_sd : float
        As the filter believes.
    surprise : float
        Largest innovation in standard deviations.
    alarms : int
    """

    minute: int
    servers: int
    load: float
    power_w: float
    inlet_c: float
    room_c: float
    supply_c: float
    air_c: float
    wet_c: float
    recirculation: float
    recirculation_sd: float
    surprise: float
    alarms: int


class Advice(NamedTuple):
    """What is advised, and on which ground.

    Attributes
    ----------
    minute : int
    supply_c : float
    servers : int
    fan_margin : float
    ground : str
        Forecast that it rests on, "headroom" before enough is known.
    """

    minute: int
    supply_c: float
    servers: int
    fan_margin: float
    ground: str


class LiveTwin:
    """What is known of one site.

    Parameters
    ----------
    site : Site
    forecast : str
        One of FORECASTS.
    interval_min : int
        Minutes between advices.
    """

    def __init__(self, site: Site, *, forecast: str = "ridge", interval_min: int = 15) -> None:
        if forecast not in FORECASTS or not 1 <= interval_min <= 720:
            raise BadValueError("A live twin cannot be run so.", given=(forecast, interval_min),
                                allowed=f"{', '.join(FORECASTS)}; 1 to 720 minutes")  # fmt: skip
        self.site, self._forecast, self._interval_min = site, forecast, interval_min
        self._estimator = Estimator(site)
        self._load: list[float] = []
        self._first = 0
        self.state: State | None = None
        self.advice: Advice | None = None

    def take(self, means: Iterable[Mean]) -> None:
        """Take the means of closed minutes, in order of minutes; older ones than those taken before are passed over.

        Parameters
        ----------
        means : iterable of Mean
        """
        minutes: dict[int, dict[str, list[float]]] = {}
        for each in means:
            of = minutes.setdefault(each.minute, {})
            of.setdefault(each.topic.rpartition("/")[2], []).append(each.value)
        for minute in sorted(minutes):
            if self.state is None or minute > self.state.minute:
                self._minute(minute, minutes[minute])

    def _minute(self, minute: int, seen: dict[str, list[float]]) -> None:
        def mean(metric: str) -> float:
            values = seen.get(metric)
            return math.fsum(values) / len(values) if values else math.nan

        loads = seen.get("load", [])
        active = min(len(loads), self.site.servers)
        # A server that is silent is off: its load is 0.
        load = min(1.0, math.fsum(loads) / self.site.servers) if loads else math.nan
        supply_c, air_c, humidity = mean("supply"), mean("outside"), mean("humidity")
        wet_c = float(wet_bulb_c(air_c, humidity)) if math.isfinite(air_c + humidity) else math.nan
        surprise = math.nan
        if active and math.isfinite(supply_c + air_c):
            powers = seen.get("power", [])
            whole = math.fsum(powers) if len(powers) == len(loads) else math.nan
            one = [np.array([each], np.float64) for each in (mean("room"), whole, mean("inlet"))]
            served, on, none = np.array([load * self.site.servers]), np.array([float(active)]), np.zeros(1)
            surprise = float(
                self._estimator.take(Readings(*one), served, on, none, np.array([air_c]), supply_c, 1.0)[0]
            )
        if math.isfinite(load):
            self._remember(minute, load)
        self.state = State(
            minute, len(loads), load, math.fsum(seen.get("power", [])) if "power" in seen else math.nan, mean("inlet"),
            mean("room"), supply_c, air_c, wet_c, self._estimator.recirculation, self._estimator.recirculation_sd,
            surprise, self._estimator.alarms,
        )  # fmt: skip
        due = self.advice is None or minute - self.advice.minute >= self._interval_min
        if due and self._load and math.isfinite(load) and math.isfinite(wet_c):
            self.advice = self._advised(minute, air_c, wet_c)

    def _remember(self, minute: int, load: float) -> None:
        gap = minute - (self._first + len(self._load))
        if not self._load or gap > _LONGEST_GAP:
            # After a longer silence a new history begins.
            self._load, self._first = [], minute
            gap = 0
        self._load += [self._load[-1]] * gap if gap else []
        self._load.append(load)
        if len(self._load) > _MOST_KEPT + WEEK:
            self._load, self._first = self._load[WEEK:], self._first + WEEK

    def _advised(self, minute: int, air_c: float, wet_c: float) -> Advice:
        load = np.array(self._load)
        judged = judged_min(self._interval_min, self.site.boot_min)
        learns = _LEARNS.get(self._forecast, 0)
        known = load.size >= (learns + judged if learns else _KNOWN_ENOUGH)
        system = ModelControl(forecast=self._forecast if known else "none", headroom=-1.0 if known else 0.25)
        first = load.size - judged if known and learns else load.size
        scene = Scene(site=self.site, load=load, first=first, interval_min=self._interval_min, seed=0)
        recent = float(np.mean(self._load[-5:]))
        view = View(load.size, recent, 0.0, air_c, wet_c, self._estimator.recirculation,
                    self._estimator.recirculation_sd)  # fmt: skip
        action = system.begin(scene).decide(view)
        ground = self._forecast if known and self._forecast != "none" else "headroom"
        return Advice(minute, round(action.supply_c, 2), action.servers, action.fan_margin, ground)
