"""What sensors say about the site: a Kalman filter each minute, an alarm when they surprise it, and a weekly refit.

The state is the room's temperature, the offset of the power meter and the recirculated share of the air.  Three
readings come each minute: the room (0.3 K), the power of the servers (2 %) and the mean of the inlets of the racks
(0.3 K each).  A reading's innovation is divided by its own standard deviation; above 3 ten minutes in a row is an
alarm, after which the filter forgets what it believed of the recirculation.  Heat capacity and walls of the room are
fitted to each whole week of what was read and commanded.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.facility.plant import MINUTE_S
from wavetank.insight.facility.site import AIR_J_PER_KG_K, IDLE_W, SPAN_W, Floats, Site, airflow, server_w
from wavetank.sim.compiled import compiled

ROOM_K, POWER_SHARE, INLET_K = 0.3, 0.02, 0.3
RACKS = 10
SURPRISE, IN_A_ROW = 3.0, 10
_DOUBT = (1.0, 500.0, 0.03)
REFIT_MIN = 10_080
# A minute's change of a room is far below the noise of its sensor; that of a quarter of an hour is not.
_SMOOTHED_MIN = 15
_LEAST_ABOVE_K = 2.0
# What each state may wander in a minute: K, W, share.
_WANDERS = (0.05, 2.0, 2e-5)


class Readings(NamedTuple):
    """What sensors say of minutes; NaN where one does not speak.

    Attributes
    ----------
    room_c, power_w, inlet_c : numpy.ndarray of float64, shape (minutes,)
    """

    room_c: Floats
    power_w: Floats
    inlet_c: Floats


class Estimator:
    """The filter of one site.

    Parameters
    ----------
    site : Site
        What is believed of it; its recirculation is the first guess.
    noise : float
        Scale of the sensors' noise; 1 as stated above.
    doubt : float
        Standard deviation of the first guess of the recirculation.
    """

    def __init__(self, site: Site, *, noise: float = 1.0, doubt: float = _DOUBT[2]) -> None:
        if not 0 <= noise < math.inf or not 0 < doubt < 1:
            raise BadValueError("A filter needs a noise of 0 or more and a doubt above 0.", given=(noise, doubt))
        self._site, self._noise = site, max(noise, 1e-6)
        self.state = np.array([np.nan, 0.0, site.recirculation])
        self.covariance = np.diag([_DOUBT[0] ** 2, _DOUBT[1] ** 2, doubt**2])
        self.alarms = 0
        self._surprises = 0

    @property
    def recirculation(self) -> float:
        """Recirculated share as it is believed."""
        return float(self.state[2])

    @property
    def recirculation_sd(self) -> float:
        """Its standard deviation."""
        return math.sqrt(max(0.0, float(self.covariance[2, 2])))

    def adopt(self, site: Site) -> None:
        """Go on with another belief of the site; what is believed of temperature, meter and air stays.

        Parameters
        ----------
        site : Site
        """
        self._site = site

    def take(
        self, readings: Readings, served: Floats, active: Floats, booting: Floats, air_c: Floats, supply_c: float,
        margin: float,
    ) -> Floats:  # fmt: skip
        """Follow minutes; return the largest innovation of each, in its standard deviations.

        Parameters
        ----------
        readings : Readings
        served, active, booting : numpy.ndarray of float64, shape (minutes,)
            Work that was served, servers that served it and servers that boot, as schedulers know them.
        air_c : numpy.ndarray of float64, shape (minutes,)
            Outside air.
        supply_c, margin : float
            What was commanded.
        """
        out = np.empty(served.size)
        counts = np.array([self._surprises, self.alarms], np.int64)
        _follow(
            self._site.constants(), self.state, self.covariance, self._noise, np.array(_WANDERS),
            np.column_stack(readings), served, active, booting, air_c, supply_c, margin, counts, out,
        )  # fmt: skip
        self._surprises, self.alarms = int(counts[0]), int(counts[1])
        return out


@compiled
def _follow(  # type: ignore[no-untyped-def]
    site, state, covariance, noise, wanders, seen, served, active, booting, air_c, supply_c, margin, counts, out
):
    count, _, rise_k, full_fans_w, capacity, walls, _, _ = site
    nominal = count * (IDLE_W + SPAN_W) / (AIR_J_PER_KG_K * rise_k)
    for now in range(served.size):
        power = IDLE_W * booting[now]
        if active[now] > 0:
            power += active[now] * server_w(served[now] / active[now])
        air = airflow(power, margin, nominal, rise_k)
        taking = air * AIR_J_PER_KG_K
        gains = power + full_fans_w * (air / nominal) ** 3
        rate = walls + taking
        rest = (gains + walls * air_c[now] + taking * supply_c) / rate
        fade = math.exp(-rate * MINUTE_S / capacity)
        if np.isnan(state[0]):
            state[0] = seen[now, 0] if not np.isnan(seen[now, 0]) else rest
        else:
            state[0] = rest + (state[0] - rest) * fade
        for row in range(3):
            covariance[0, row] *= fade
            covariance[row, 0] *= fade
            covariance[row, row] += wanders[row] ** 2
        warms = power / taking
        surprise = 0.0
        for sensor in range(3):
            reading = seen[now, sensor]
            if np.isnan(reading):
                continue
            h = np.zeros(3)
            if sensor == 0:
                said, sd = state[0], ROOM_K
                h[0] = 1.0
            elif sensor == 1:
                said, sd = power + state[1], POWER_SHARE * max(power, 1.0)
                h[1] = 1.0
            else:
                share = state[2]
                said, sd = supply_c + share / (1.0 - share) * warms, INLET_K / math.sqrt(RACKS)
                h[2] = warms / (1.0 - share) ** 2
            sd = max(sd * noise, 1e-9)
            along = covariance @ h
            total = h @ along + sd * sd
            off = reading - said
            surprise = max(surprise, abs(off) / math.sqrt(total))
            gain = along / total
            for row in range(3):
                state[row] += gain[row] * off
            for row in range(3):
                for column in range(3):
                    covariance[row, column] -= gain[row] * along[column]
            state[2] = min(max(state[2], 0.0), 0.5)
        out[now] = surprise
        counts[0] = counts[0] + 1 if surprise > SURPRISE else 0
        if counts[0] == IN_A_ROW:
            counts[0] = 0
            counts[1] += 1
            covariance[2, :] = 0.0
            covariance[:, 2] = 0.0
            covariance[2, 2] = 0.03**2


class Refit(NamedTuple):
    """What least squares say of the room.

    Attributes
    ----------
    capacity_j_per_k, walls_w_per_k, recirculation : float
    """

    capacity_j_per_k: float
    walls_w_per_k: float
    recirculation: float


def refitted(
    room_c: Floats, gains_w: Floats, heat_w: Floats, air_c: Floats, above_k: Floats, warms_k: Floats, *,
    instruments: Floats | None = None, smoothed_min: int = 1,
) -> Refit:  # fmt: skip
    """Fit heat capacity, walls and recirculation to a week of minutes.

    Parameters
    ----------
    room_c : numpy.ndarray of float64, shape (minutes,)
        Room at the ends of minutes.
    gains_w, heat_w : numpy.ndarray of float64, shape (minutes,)
        What servers and fans gave, and what the air took in each minute.
    air_c : numpy.ndarray of float64, shape (minutes,)
        Outside air.
    above_k, warms_k : numpy.ndarray of float64, shape (minutes,)
        Inlet above supply, and rise in the servers.
    instruments : numpy.ndarray of float64, shape (minutes - 1, 2), optional
        Net gains and outside air above the room as a model without sensors has them.  What sensors say of the room is
        on both sides of its balance, so that plain least squares take noise for a slower room; these have none of it.
    smoothed_min : int
        Minutes over which both sides of the room's balance are averaged twice, which is the change of its mean over
        that time; 1: as they are.

    Raises
    ------
    BadValueError
        If fewer than an hour of minutes is complete, or nothing changes in them.
    """
    mean = 0.5 * (room_c[1:] + room_c[:-1])
    columns = np.column_stack([gains_w[1:] - heat_w[1:], air_c[1:] - mean])
    stored = np.diff(room_c) / MINUTE_S
    other = columns if instruments is None else instruments
    if smoothed_min > 1 and stored.size >= 2 * smoothed_min:
        columns, other = (np.column_stack([_twice_averaged(each, smoothed_min) for each in table.T])
                          for table in (columns, other))  # fmt: skip
        stored = _twice_averaged(stored, smoothed_min)
    whole = np.isfinite(columns).all(axis=1) & np.isfinite(stored)
    paired = np.isfinite(above_k) & np.isfinite(warms_k)
    if whole.sum() < 60 or not float(np.sum(warms_k[paired] ** 2)) > 0:
        raise BadValueError("A fit needs an hour of minutes.", given=int(whole.sum()), allowed="60 or more")
    if instruments is None:
        (slope, leak), _, rank, _ = np.linalg.lstsq(columns[whole], stored[whole], rcond=None)
    else:
        along = other[whole].T
        (slope, leak), _, rank, _ = np.linalg.lstsq(along @ columns[whole], along @ stored[whole], rcond=None)
    if rank < 2 or not slope > 0:
        raise BadValueError("The room did not change: nothing can be fitted.", given=f"rank {rank}")
    ratio = float(np.sum(above_k[paired] * warms_k[paired]) / np.sum(warms_k[paired] ** 2))
    return Refit(1.0 / slope, leak / slope, ratio / (1.0 + ratio))


def _twice_averaged(values: Floats, count: int) -> Floats:
    one = np.full(count, 1.0 / count)
    return np.convolve(np.convolve(values, one, "valid"), one, "valid")


class WeeklyRefit:
    """Keeps what sensors said and what was commanded, and fits the site to it when a week is over.

    Parameters
    ----------
    site : Site
        As it is believed to be until then.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self._parts: list[Floats] = []
        self._minutes = 0

    def take(
        self, readings: Readings, served: Floats, active: Floats, booting: Floats, air_c: Floats, supply_c: float,
        margin: float,
    ) -> Site:  # fmt: skip
        """Keep minutes; return the site as it is believed to be now, a new one after a week.

        Parameters
        ----------
        readings, served, active, booting, air_c, supply_c, margin
            As :meth:`Estimator.take` has them.
        """
        site = self.site
        power = IDLE_W * booting + [
            on * server_w(work / on) if on > 0 else 0.0 for work, on in zip(served.tolist(), active.tolist(),
                                                                            strict=True)
        ]  # fmt: skip
        nominal = site.nominal_kg_per_s
        air = np.array([airflow(each, margin, nominal, site.rise_k) for each in power.tolist()])
        fans = site.fan_share * site.full_w * (air / nominal) ** 3
        taking = air * AIR_J_PER_KG_K
        self._parts.append(np.column_stack([
            readings.room_c, power + fans, taking, np.full(served.size, supply_c), air_c, readings.inlet_c - supply_c,
            power / taking,
        ]))  # fmt: skip
        self._minutes += served.size
        if self._minutes >= REFIT_MIN:
            self.site = _fitted_to(site, np.concatenate(self._parts))
            self._parts, self._minutes = [], 0
        return self.site


def _fitted_to(site: Site, week: Floats) -> Site:
    """Return the site with what a week says of it; unchanged where that is nothing that a site can be."""
    room, gains, taking, supply, air, above, warms = week.T
    modelled = np.empty(len(week))
    _modelled(site.constants(), gains, taking, supply, air, modelled)
    heat, heat_there = (
        taking * (0.5 * (each + np.concatenate([each[:1], each[:-1]])) - supply) for each in (room, modelled)
    )
    # Where the room is hardly warmer than the supply, nobody knows whether air was supplied at all.
    heat = np.where(heat > _LEAST_ABOVE_K * taking, heat, np.nan)
    instruments = np.column_stack([gains - heat_there, air - 0.5 * (modelled + np.roll(modelled, 1))])[1:]
    try:
        found = refitted(room, gains, heat, air, above, warms, instruments=instruments, smoothed_min=_SMOOTHED_MIN)
        return replace(
            site, capacity_j_per_k=float(found.capacity_j_per_k), walls_w_per_k=float(found.walls_w_per_k),
            recirculation=float(found.recirculation),
        )  # fmt: skip
    except BadValueError:
        return site


@compiled
def _modelled(site, gains, taking, supply, air, out):  # type: ignore[no-untyped-def]
    """Fill in the room that the believed site would have, from rest on."""
    capacity, walls = site[4], site[5]
    for now in range(out.size):
        rate = walls + taking[now]
        rest = (gains[now] + walls * air[now] + taking[now] * supply[now]) / rate
        out[now] = rest if now == 0 else rest + (out[now - 1] - rest) * math.exp(-rate * MINUTE_S / capacity)
