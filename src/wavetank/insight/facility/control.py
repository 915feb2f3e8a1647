"""A search over a model of the site, with and without forecasts of load.

Servers and air separate.  The model's power rises with each server that is on, so that as many are on as the load asks
for: 1.25 times the 95 % quantile of what is expected to come until the next decision has its effect.  What is
expected is the load of the last minutes and the share of the next hour's growth that falls into that time; the quantile
comes from how far this was off in the last three days.  Air is the best of all pairs of supply temperature and fan
margin over six hours, of those that keep inlets below their limit at the recirculation that the estimator believes.
When the last day's forecasts were off by more than 15 %, the set point is fixed and servers follow the last minutes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.facility.forecasters import FORECASTERS, Fitted, Ints, hours_after, named
from wavetank.insight.facility.interface import Operator, Scene, View
from wavetank.insight.facility.plant import Action
from wavetank.insight.facility.scenes import DAY, HOUR
from wavetank.insight.facility.site import (
    AIR_J_PER_KG_K,
    COOLEST_C,
    IDLE_W,
    LIMIT_C,
    PER_SERVER,
    SPAN_W,
    WARMEST_C,
    Floats,
    Site,
    airflow,
    cooling_w,
    server_w,
)  # fmt: skip
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled

RECENT_MIN = 5
_HOURS = 6
_REMEMBERED = 3 * DAY
_SUPPLIES = np.array([*np.arange(COOLEST_C, WARMEST_C, 0.1), WARMEST_C])
_MARGINS = np.array([1.0, 1.1, 1.2, 1.35, 1.5])
NONE, ORACLE = "none", "oracle"


@dataclass(frozen=True, kw_only=True)
class ModelControl:
    """Chooses air and servers that cost least in a model of the site."""

    forecast: str = setting("lstm", says="Who says what load comes; none: nobody, oracle: what does come",
                            choices=(*FORECASTERS, NONE, ORACLE))  # fmt: skip
    headroom: float = setting(-1.0, says="Servers beyond those for the expected load, as a share; below 0: as past "
                              "errors ask", low=-1, high=10)  # fmt: skip
    quantile: float = setting(0.95, says="Of past errors that are covered", low=0.5, high=1)
    distrust: float = setting(0.15, says="Mean error of the last day, a share, beyond which forecasts are not used",
                              low=0, high=1e9)  # fmt: skip
    fallback_c: float = setting(22.0, unit="C", says="Set point then", low=COOLEST_C, high=WARMEST_C)
    fallback_headroom: float = setting(0.25, says="Servers beyond those for the last minutes' load then, as a share",
                                       low=0, high=10)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def begin(self, scene: Scene) -> Operator:
        """Return an operator that has learned from the training part.

        Parameters
        ----------
        scene : Scene
        """
        return _begun(self, scene)

    def begun(self, scene: Scene) -> Operator:
        """Return an operator; all that it may ever ask of the load's past is computed at once.

        Parameters
        ----------
        scene : Scene
        """
        before = judged_min(scene.interval_min, scene.site.boot_min)
        times = np.arange(scene.first - before, scene.load.size + 1, scene.interval_min)
        times = times[times >= (DAY + HOUR if self.forecast in FORECASTERS else 1)]
        now = expected(self.forecast, scene, times)
        trusted = np.ones(times.size, np.bool_)
        if self.forecast == ORACLE:
            wanted = now
        elif self.headroom >= 0:
            wanted = now * (1.0 + self.headroom)
        else:
            wanted = now * _margins(scene, times, now, self.quantile)
        if self.forecast in FORECASTERS:
            trusted = day_error(self.forecast, scene, times) <= self.distrust
            plain = recent_load(scene.load, times) * (1.0 + self.fallback_headroom)
            wanted = np.where(trusted, wanted, plain)
        hours = _next_hours(self.forecast, scene, times)
        return _Searching(scene.site, self.fallback_c, times, wanted, trusted, hours)


@functools.lru_cache(maxsize=2)
def _begun(system: ModelControl, scene: Scene) -> Operator:
    # The same scene comes once for each climate; what is expected of its load does not depend on the weather.
    return system.begun(scene)


class _Searching:
    def __init__(
        self, site: Site, fallback_c: float, times: Ints, wanted: Floats, trusted: NDArray[np.bool_],
        hours: Floats | None,
    ) -> None:  # fmt: skip
        self._site, self._fallback_c, self._wanted, self._trusted, self._hours = (
            site,
            fallback_c,
            wanted,
            trusted,
            hours,
        )
        self._row = {int(each): row for row, each in enumerate(times)}

    def decide(self, view: View) -> Action:
        row, site = self._row[view.minute], view.site or self._site
        # What waits is worked off beside what comes.
        asked = (site.servers * float(self._wanted[row]) + view.waiting) / PER_SERVER
        least = min(site.servers, max(1, math.ceil(asked - 1e-9)))
        if not self._trusted[row]:
            return Action(self._fallback_c, least)
        coming = np.full(_HOURS, view.load) if self._hours is None else self._hours[row]
        share = min(0.5, view.recirculation + 2.0 * view.recirculation_sd)
        servers, supply_c, margin = best(site, least, coming, view.air_c, view.wet_c, share)
        return Action(supply_c, servers, margin)


def best(site: Site, least: int, coming: Floats, air_c: float, wet_c: float, recirculation: float
         ) -> tuple[int, float, float]:  # fmt: skip
    """Return servers, supply temperature and fan margin of the least energy over the next hours.

    Parameters
    ----------
    site : Site
    least : int
        Servers that must be on.
    coming : numpy.ndarray of float64, shape (hours,)
        Loads, as shares of all servers.
    air_c, wet_c : float
        Outside air and wet bulb, deg C, taken to stay.
    recirculation : float
        At which inlets must be below their limit; where no pair keeps them there, the coolest pair is taken.
    """
    servers, supply, margin = _best(
        site.constants(), least, np.clip(coming, 0.0, 1.0), air_c, wet_c, recirculation, _SUPPLIES, _MARGINS
    )
    return int(servers), float(_SUPPLIES[int(supply)]), float(_MARGINS[int(margin)])


@compiled
def _best(site, least, coming, air_c, wet_c, recirculation, supplies, margins):  # type: ignore[no-untyped-def]
    count, _, rise_k, full_fans_w, _, walls, _, _ = site
    nominal = count * (IDLE_W + SPAN_W) / (AIR_J_PER_KG_K * rise_k)
    work = coming[0] * count
    servers, lowest = float(least), math.inf
    for each in range(least, int(count) + 1):
        power = each * server_w(min(1.0, work / each))
        if power < lowest - 1e-9:
            servers, lowest = float(each), power
    # Later hours have as many servers as their load asks for.
    powers = np.empty(coming.size)
    for hour in range(coming.size):
        on = servers if hour == 0 else min(count, max(1.0, math.ceil(count * coming[hour] / PER_SERVER)))
        powers[hour] = on * server_w(min(1.0, coming[hour] * count / on))
    found_supply, found_margin, lowest = 0.0, float(margins.size - 1), math.inf
    for each in range(margins.size):
        airs = np.empty(powers.size)
        for hour in range(powers.size):
            airs[hour] = airflow(powers[hour], margins[each], nominal, rise_k)
        # The inlet must keep its limit until the next decision, at any load that the servers can take.
        most = servers * (IDLE_W + SPAN_W)
        warmest = most / (airflow(most, margins[each], nominal, rise_k) * AIR_J_PER_KG_K)
        for at in range(supplies.size):
            supply_c = supplies[at]
            if supply_c + recirculation / (1.0 - recirculation) * warmest > LIMIT_C + 0.005:
                break
            energy = 0.0
            for hour in range(powers.size):
                fans = full_fans_w * (airs[hour] / nominal) ** 3
                room = supply_c + powers[hour] / (airs[hour] * AIR_J_PER_KG_K)
                heat = max(0.0, powers[hour] + fans + walls * (air_c - room))
                energy += fans + cooling_w(heat, supply_c, wet_c, True)
            if energy < lowest - 1e-9:
                found_supply, found_margin, lowest = float(at), float(each), energy
    return np.array([servers, found_supply, found_margin])


def lead_h(interval_min: int, boot_min: int) -> float:
    """Return the hours from the middle of the last minutes to the middle of what a decision has effect on.

    Parameters
    ----------
    interval_min, boot_min : int
    """
    return (boot_min + interval_min / 2 + RECENT_MIN / 2) / HOUR


def expected(forecast: str, scene: Scene, times: Ints) -> Floats:
    """Return the load that is expected at the middle of what each decision has effect on, shape (times,).

    Parameters
    ----------
    forecast : str
    scene : Scene
    times : numpy.ndarray of int64
    """
    if forecast == ORACLE:
        return came(scene, times)
    recent = recent_load(scene.load, times)
    if forecast == NONE:
        return np.maximum(recent, 0.01)
    growth = fitted(forecast, scene).growth(scene.load, times)
    return np.maximum(recent + growth * lead_h(scene.interval_min, scene.site.boot_min), 0.01)


def recent_load(load: Floats, times: Ints) -> Floats:
    """Return the mean of the last five minutes before each time, shape (times,).

    Parameters
    ----------
    load : numpy.ndarray of float64
    times : numpy.ndarray of int64
    """
    sums = np.concatenate([[0.0], np.cumsum(load)])
    begin = np.maximum(times - RECENT_MIN, 0)
    return np.asarray((sums[times] - sums[begin]) / np.maximum(times - begin, 1))


def came(scene: Scene, times: Ints) -> Floats:
    """Return the highest load that came while each decision had effect, shape (times,).

    Parameters
    ----------
    scene : Scene
    times : numpy.ndarray of int64
    """
    span = scene.interval_min + scene.site.boot_min
    padded = np.concatenate([scene.load, np.full(span, scene.load[-1])])
    return np.lib.stride_tricks.sliding_window_view(padded, span)[times].max(axis=1)


def _margins(scene: Scene, times: Ints, now: Floats, quantile: float) -> Floats:
    """Return the quantile of (what came / what was expected) over the three days of errors that are known by then."""
    ratio = came(scene, times) / now
    known, rows = _known(scene.interval_min, scene.site.boot_min), _REMEMBERED // scene.interval_min
    found = np.ones(times.size)
    full = rows + known - 1
    for row in range(known, min(full, times.size)):
        found[row] = np.quantile(ratio[: row - known + 1], quantile)
    if times.size > full:
        windows = np.lib.stride_tricks.sliding_window_view(ratio[: times.size - known], rows)
        found[full:] = np.quantile(windows, quantile, axis=1)
    return found


def _known(interval_min: int, boot_min: int) -> int:
    """Return before how many decisions the last one was whose effect is over."""
    return -(-(interval_min + boot_min) // interval_min)


def judged_min(interval_min: int, boot_min: int) -> int:
    """Return the minutes before a decision whose forecasts it is judged by, in whole times between decisions.

    Parameters
    ----------
    interval_min, boot_min : int
    """
    return -(-(_REMEMBERED + _known(interval_min, boot_min) * interval_min) // interval_min) * interval_min


def day_error(forecast: str, scene: Scene, times: Ints) -> Floats:
    """Return the mean error of the last day's forecasts of the next hour, a share of the load, shape (times,).

    Parameters
    ----------
    forecast : str
    scene : Scene
    times : numpy.ndarray of int64
        A day and an hour after the first forecast that can be made.
    """
    back = times[:, None] - HOUR * np.arange(1, 25)
    made, where = np.unique(np.maximum(back, DAY + HOUR), return_inverse=True)
    made = np.minimum(made, scene.load.size - HOUR)
    off = np.abs(fitted(forecast, scene).ahead(scene.load, made)[:, 0] - hours_after(scene.load, made, 1)[:, 0])
    level = hours_after(scene.load, made, 1)[:, 0]
    could = back >= DAY + HOUR
    sums = [np.where(could, each[where].reshape(back.shape), 0.0).sum(axis=1) for each in (off, level)]
    return np.asarray(sums[0] / np.maximum(sums[1], 1e-9))


def _next_hours(forecast: str, scene: Scene, times: Ints) -> Floats | None:
    if forecast not in FORECASTERS:
        return None
    return np.clip(fitted(forecast, scene).ahead(scene.load, times)[:, :_HOURS], 0.01, 1.0)


def fitted(forecast: str, scene: Scene) -> Fitted:
    """Return a forecaster that has learned from the scene's training part, the same one for equal training parts.

    Parameters
    ----------
    forecast : str
    scene : Scene
    """
    return _fitted(forecast, scene.load[: scene.first].tobytes(), scene.seed)


@functools.lru_cache(maxsize=16)
def _fitted(forecast: str, past: bytes, seed: int) -> Fitted:
    return named(forecast).fitted(np.frombuffer(past), seed)
