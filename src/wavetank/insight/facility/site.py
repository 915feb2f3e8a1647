"""Formulas of a site of servers, air and a chiller; SI units but for temperatures in deg C.

Sources: Fan, Weber, Barroso, "Power Provisioning for a Warehouse-sized Computer", ISCA 2007 (the form of a server's
power); Moore, Chase, Ranganathan, Sharma, "Making Scheduling Cool", USENIX ATC 2005 (the chiller's coefficient of
performance by the temperature of its supply); Stull, "Wet-Bulb Temperature from Relative Humidity and Air
Temperature", JAMC 2011.  How the coefficient falls with the outside wet bulb is assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]

AIR_J_PER_KG_K = 1005.0
IDLE_W, SPAN_W = 120.0, 230.0
LIMIT_C = 27.0
# Load of a server that is planned for.
PER_SERVER = 0.8
APPROACH_K = 4.0
FAN_SHARE = 0.06
FLOW_FLOOR = 0.3
PUMP_SHARE = 0.02
COOLEST_C, WARMEST_C = 18.0, 25.78


@dataclass(frozen=True, kw_only=True)
class Site:
    """A room of equal servers, its air and its chiller.

    Parameters
    ----------
    servers : int
    recirculation : float
        Share of the air that a server draws which has been through a server already.
    """

    servers: int = setting(100, unit="servers", says="Servers", low=1, high=10**6)
    recirculation: float = setting(0.1, says="Recirculated share of the air", low=0, high=0.5)
    rise_k: float = setting(11.0, unit="K", says="Rise of the air's temperature in the servers", low=1, high=50)
    fan_share: float = setting(FAN_SHARE, says="Fans' power at full speed / servers' at full load", low=0, high=1)
    capacity_j_per_k: float = setting(2e6, unit="J/K", says="Heat capacity of the room", low=1e3, high=1e12)
    walls_w_per_k: float = setting(150.0, unit="W/K", says="Heat through the walls", low=0, high=1e9)
    losses: float = setting(0.07, says="Losses of supply and distribution / servers' power", low=0, high=1)
    boot_min: int = setting(2, unit="min", says="Time for which a server that is switched on serves nothing", low=0,
                            high=10**4)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def full_w(self) -> float:
        """Power of all servers at full load, W."""
        return self.servers * (IDLE_W + SPAN_W)

    @property
    def nominal_kg_per_s(self) -> float:
        """Air that takes the heat of full load, kg/s."""
        return self.full_w / (AIR_J_PER_KG_K * self.rise_k)

    def constants(self) -> Floats:
        """Return what compiled functions take: servers, recirculation, rise, fan power, capacity, walls, losses, boot.

        The fans' power is that at full speed in W.
        """
        return np.array([
            self.servers, self.recirculation, self.rise_k, self.fan_share * self.full_w, self.capacity_j_per_k,
            self.walls_w_per_k, self.losses, self.boot_min,
        ], dtype=np.float64)  # fmt: skip


@compiled
def server_w(load: float) -> float:
    """Return the power of a server at a load of 0 to 1, W."""
    return IDLE_W + SPAN_W * (2.0 * load - load**1.4)


@compiled
def performance(supply_c: float, wet_c: float) -> float:
    """Return heat removed / power of the chiller at the temperatures of supply and outside wet bulb."""
    outside = min(max(1.0 - 0.012 * (wet_c - 20.0), 0.7), 1.3)
    return min(max((0.0068 * supply_c * supply_c + 0.0008 * supply_c + 0.458) * outside, 1.5), 8.0)


@compiled
def airflow(power_w: float, margin: float, nominal_kg_per_s: float, rise_k: float) -> float:
    """Return the air for a power of servers, kg/s: so much that it gets warmer by the rise / margin, at least 30 %."""
    return max(margin * power_w / (AIR_J_PER_KG_K * rise_k), FLOW_FLOOR * nominal_kg_per_s)


@compiled
def cooling_w(heat_w: float, supply_c: float, wet_c: float, economiser: bool) -> float:
    """Return the power that removes heat: compressor, none where outside air is cold enough, and pumps; W."""
    pumps = PUMP_SHARE * heat_w
    if economiser and wet_c <= supply_c - APPROACH_K:
        return pumps
    return heat_w / performance(supply_c, wet_c) + pumps


def wet_bulb_c(air_c: ArrayLike, humidity_pct: ArrayLike) -> Floats:
    """Return Stull's wet bulb temperature, deg C, for 5 to 99 % relative humidity; others count as the nearest.

    Parameters
    ----------
    air_c : array-like of float
        Dry bulb, deg C.
    humidity_pct : array-like of float
        Relative humidity, %.
    """
    t = np.asarray(air_c, np.float64)
    h = np.clip(np.asarray(humidity_pct, np.float64), 5.0, 99.0)
    return np.asarray(
        t * np.arctan(0.151977 * np.sqrt(h + 8.313659)) + np.arctan(t + h) - np.arctan(h - 1.676331)
        + 0.00391838 * h**1.5 * np.arctan(0.023101 * h) - 4.686035
    )  # fmt: skip


def warmest_supply_c(recirculation: float, rise_k: float) -> float:
    """Return the supply temperature at which inlets are at their limit, deg C.

    Parameters
    ----------
    recirculation : float
        From 0 to below 1.
    rise_k : float
        Rise of the air's temperature in the servers, K.

    Raises
    ------
    BadValueError
    """
    if not 0 <= recirculation < 1 or not 0 <= rise_k < math.inf:
        raise BadValueError("There is no such air.", given=(recirculation, rise_k),
                            allowed="a share below 1, a rise of 0 or more")  # fmt: skip
    return LIMIT_C - recirculation / (1.0 - recirculation) * rise_k
