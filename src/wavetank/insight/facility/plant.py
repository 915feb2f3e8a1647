"""The site in minutes (its room warms and cools, servers boot, work waits) and in hours that are at rest.

Within a minute power and air are constant, so that the room's temperature follows an exponential exactly: what comes
in, what goes out and what is stored agree to rounding.  Work that finds no server waits for the next minute, so that
all policies serve the same work.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.facility.site import (
    AIR_J_PER_KG_K,
    IDLE_W,
    SPAN_W,
    Floats,
    Site,
    airflow,
    cooling_w,
    server_w,
)  # fmt: skip
from wavetank.sim.compiled import compiled

MINUTE_S = 60.0
COLUMNS = (
    "servers_w", "fans_w", "cooling_w", "losses_w", "facility_w", "room_c", "inlet_c", "late", "active", "heat_w",
    "off_j", "rise_k", "booting",
)  # fmt: skip
SERVERS, FANS, COOLING, LOSSES, FACILITY, ROOM, INLET, LATE, ACTIVE, HEAT, OFF, RISE, BOOTING = range(len(COLUMNS))


class Action(NamedTuple):
    """What a policy sets.

    Attributes
    ----------
    supply_c : float
        Temperature of the supplied air, deg C.
    servers : int
        Servers that are to be on.
    fan_margin : float
        Air / air that warms by the site's rise.
    full_fans : bool
        Whether fans run at full speed instead.
    economiser : bool
        Whether the compressor stops where outside air is cold enough.
    """

    supply_c: float
    servers: int
    fan_margin: float = 1.0
    full_fans: bool = False
    economiser: bool = True


def at_start(site: Site, supply_c: float = 22.0) -> Floats:
    """Return the state in which all servers are on: room, active, booting, minutes of boot left, work that waits.

    Parameters
    ----------
    site : Site
    supply_c : float
    """
    return np.array([supply_c + site.rise_k, site.servers, 0.0, 0.0, 0.0])


def advance(site: Site, state: Floats, action: Action, load: Floats, air_c: Floats, wet_c: Floats) -> Floats:
    """Let minutes pass under an action; the state is changed.

    Parameters
    ----------
    site : Site
    state : numpy.ndarray of float64, shape (5,)
        As :func:`at_start` gives it.
    action : Action
    load, air_c, wet_c : numpy.ndarray of float64, shape (minutes,)
        Load as a share of all servers, outside air and wet bulb, deg C.

    Returns
    -------
    numpy.ndarray of float64, shape (minutes, 13)
        The columns are COLUMNS: powers in W, temperatures in deg C, late work in servers, off_j the energy that is
        missing in the balance of the room.

    Raises
    ------
    BadValueError
        For an action that there cannot be.
    """
    servers = int(action.servers)
    if not 0 <= servers <= site.servers or not 5 <= action.supply_c <= 45 or not 0.1 <= action.fan_margin <= 10:
        raise BadValueError("A site cannot do this.", given=tuple(action),
                            allowed=f"0 to {site.servers} servers, 5 to 45 deg C, a margin of 0.1 to 10")  # fmt: skip
    wish = np.array([action.supply_c, servers, action.fan_margin, action.full_fans, action.economiser], np.float64)
    out = np.empty((len(load), len(COLUMNS)))
    _advance(site.constants(), state, wish, load, air_c, wet_c, out)
    return out


@compiled
def _advance(site, state, wish, load, air_c, wet_c, out):  # type: ignore[no-untyped-def]
    count, recirculation, rise_k, full_fans_w, capacity, walls, losses, boot_min = site
    supply_c, wanted, margin = wish[0], wish[1], wish[2]
    nominal = count * (IDLE_W + SPAN_W) / (AIR_J_PER_KG_K * rise_k)
    if wanted <= state[1]:
        state[1], state[2], state[3] = wanted, 0.0, 0.0
    else:
        if state[2] == 0.0:
            state[3] = boot_min
        state[2] = wanted - state[1]
    for now in range(load.size):
        if state[2] > 0.0 and state[3] <= 0.0:
            state[1] += state[2]
            state[2] = 0.0
        active, booting = state[1], state[2]
        state[3] = max(0.0, state[3] - 1.0)
        demand = load[now] * count + state[4]
        served = min(demand, active)
        state[4] = demand - served
        servers = IDLE_W * booting
        if active > 0.0:
            servers += active * server_w(served / active)
        air = nominal if wish[3] > 0.0 else airflow(servers, margin, nominal, rise_k)
        fans = full_fans_w * (air / nominal) ** 3
        heat, stored = _room(state, air, servers + fans, supply_c, air_c[now], capacity, walls)
        cooling = cooling_w(heat / MINUTE_S, supply_c, wet_c[now], wish[4] > 0.0)
        warms = servers / (air * AIR_J_PER_KG_K)
        out[now, SERVERS] = servers
        out[now, FANS] = fans
        out[now, COOLING] = cooling
        out[now, LOSSES] = losses * servers
        out[now, FACILITY] = servers + fans + cooling + losses * servers
        out[now, ROOM] = state[0]
        out[now, INLET] = supply_c + recirculation / (1.0 - recirculation) * warms
        out[now, LATE] = state[4]
        out[now, ACTIVE] = active
        out[now, HEAT] = heat / MINUTE_S
        out[now, OFF] = stored
        out[now, RISE] = warms
        out[now, BOOTING] = booting


@compiled
def _room(state, air, gains_w, supply_c, air_c, capacity, walls):  # type: ignore[no-untyped-def]
    """Let a minute pass in the room; return the heat that the air took, J, and what is missing in the balance, J."""
    before = state[0]
    for taking in (air * AIR_J_PER_KG_K, 0.0):
        rate = walls + taking
        if rate > 0.0:
            rest = (gains_w + walls * air_c + taking * supply_c) / rate
            fade = math.exp(-rate * MINUTE_S / capacity)
            after = rest + (before - rest) * fade
            mean = rest + (before - rest) * (1.0 - fade) * capacity / (rate * MINUTE_S)
        else:
            after = before + gains_w * MINUTE_S / capacity
            mean = 0.5 * (before + after)
        heat = taking * (mean - supply_c) * MINUTE_S
        if heat >= 0.0:
            break
        # Supplied air is warmer than the room: none is supplied.
    state[0] = after
    stored = capacity * (after - before)
    return heat, stored - (gains_w + walls * (air_c - mean)) * MINUTE_S + heat


class Hours(NamedTuple):
    """Energy of hours at rest.

    Attributes
    ----------
    servers_kwh, facility_kwh : float
    short : int
        Hours in which servers that are on cannot serve the load.
    """

    servers_kwh: float
    facility_kwh: float
    short: int

    @property
    def pue(self) -> float:
        """Energy of the facility / energy of the servers over all hours."""
        return self.facility_kwh / self.servers_kwh


def at_rest(site: Site, load: Floats, air_c: Floats, wet_c: Floats, servers_on: Floats, action: Action) -> Hours:
    """Return the energy of hours in each of which the room is at rest.

    Parameters
    ----------
    site : Site
    load, air_c, wet_c : numpy.ndarray of float64, shape (hours,)
    servers_on : numpy.ndarray of float64, shape (hours,)
        Servers that are on; the action's own number is not used.
    action : Action
    """
    sums = _at_rest(
        site.constants(), np.array([action.supply_c, action.fan_margin, action.full_fans, action.economiser]),
        load, air_c, wet_c, servers_on,
    )  # fmt: skip
    return Hours(sums[0] / 1e3, sums[1] / 1e3, int(sums[2]))


@compiled
def _at_rest(site, wish, load, air_c, wet_c, servers_on):  # type: ignore[no-untyped-def]
    count, _, rise_k, full_fans_w, _, walls, losses, _ = site
    nominal = count * (IDLE_W + SPAN_W) / (AIR_J_PER_KG_K * rise_k)
    it, facility, short = 0.0, 0.0, 0.0
    for hour in range(load.size):
        on = servers_on[hour]
        if load[hour] * count > on + 1e-9:
            short += 1.0
        servers = on * server_w(min(1.0, load[hour] * count / on))
        air = nominal if wish[2] > 0.0 else airflow(servers, wish[1], nominal, rise_k)
        fans = full_fans_w * (air / nominal) ** 3
        room = wish[0] + servers / (air * AIR_J_PER_KG_K)
        heat = max(0.0, servers + fans + walls * (air_c[hour] - room))
        it += servers
        facility += servers * (1.0 + losses) + fans + cooling_w(heat, wish[0], wet_c[hour], wish[3] > 0.0)
    return np.array([it, facility, short])
