"""Plans for a demand: one group at a time, and the best of all.

The greedy planner values a unit by the requests that it serves per GPU, times how starved its tier is.  The served part
counts arrivals that no earlier pick serves, starvation all arrivals of the tier over what is served.  The exact planner
serves most requests of all plans: a tier's best use of k GPUs does not depend on other tiers, so that two small dynamic
programs find it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wavetank.serving.tiers.interface import Unit

# Served requests per second below which a tier counts as served that much: nothing is divided by zero.
FLOOR_PER_S = 1.0
_EQUAL = 1e-9


def served_per_s(units: Sequence[Unit], arrivals_per_s: Sequence[float]) -> float:
    """Return the requests per second that units serve of what arrives.

    Parameters
    ----------
    units : sequence of Unit
    arrivals_per_s : sequence of float
        Of each tier.
    """
    capacity = capacities(units, len(arrivals_per_s))
    return sum(map(min, capacity, arrivals_per_s))


def capacities(units: Sequence[Unit], tiers: int) -> list[float]:
    """Return the requests per second that units keep up, of each tier."""
    found = [0.0] * tiers
    for unit in units:
        found[unit.tier] += unit.per_s
    return found


def greedy(units: Sequence[Unit], arrivals_per_s: Sequence[float], gpus: int) -> list[Unit]:
    """Return units in the order in which they are picked.

    Parameters
    ----------
    units : sequence of Unit
        What can be added, any number of times.
    arrivals_per_s : sequence of float
        Of each tier.
    gpus : int
        Once all that arrives is served, further GPUs go where capacity is scarcest for what arrives.
    """
    picked: list[Unit] = []
    served = [0.0] * len(arrivals_per_s)
    useful = [unit for unit in units if unit.per_s > 0]
    left = gpus
    while True:
        fitting = [unit for unit in useful if unit.gpus <= left]
        if not fitting:
            return picked
        best = max(fitting, key=lambda unit: _worth(unit, arrivals_per_s, served))
        if _worth(best, arrivals_per_s, served) <= _EQUAL:
            break
        picked.append(best)
        left -= best.gpus
        served[best.tier] = min(served[best.tier] + best.per_s, arrivals_per_s[best.tier])
    capacity = capacities(picked, len(arrivals_per_s))
    while fitting := [unit for unit in useful if unit.gpus <= left]:
        needs = {unit.tier: arrivals_per_s[unit.tier] / max(capacity[unit.tier], _EQUAL) for unit in fitting}
        scarce = max(needs, key=lambda tier: (needs[tier], -tier))
        best = max((unit for unit in fitting if unit.tier == scarce), key=lambda unit: unit.per_s / unit.gpus)
        picked.append(best)
        left -= best.gpus
        capacity[best.tier] += best.per_s
    return picked


def _worth(unit: Unit, arrivals_per_s: Sequence[float], served: Sequence[float]) -> float:
    arrives, has = arrivals_per_s[unit.tier], served[unit.tier]
    efficiency = min(max(arrives - has, 0.0), unit.per_s) / unit.gpus
    return efficiency * arrives / max(has, FLOOR_PER_S)


def exact(units: Sequence[Unit], arrivals_per_s: Sequence[float], gpus: int) -> list[Unit]:
    """Return units that serve most; among plans that serve as much, one with most headroom in its scarcest tier.

    Parameters
    ----------
    units, arrivals_per_s, gpus
        As of :func:`greedy`.
    """
    tiers = len(arrivals_per_s)
    tables = [best_by_gpus([unit for unit in units if unit.tier == tier], gpus) for tier in range(tiers)]
    chosen: list[tuple[float, float, tuple[int, ...]]] = [(0.0, float("inf"), ())] * (gpus + 1)
    for tier, arrives in enumerate(arrivals_per_s):
        following = []
        for most in range(gpus + 1):
            options = []
            for own in range(most + 1):
                capacity, _ = tables[tier][own]
                served, room, split = chosen[most - own]
                headroom = min(room, capacity / arrives) if arrives > 0 else room
                options.append((round(served + min(capacity, arrives), 9), headroom, (*split, own)))
            following.append(max(options))
        chosen = following
    return [unit for tier, own in enumerate(chosen[gpus][2]) for unit in tables[tier][own][1]]


def best_by_gpus(units: Sequence[Unit], gpus: int) -> list[tuple[float, tuple[Unit, ...]]]:
    """Return, for 0 to ``gpus`` GPUs, the most requests per second that units of one tier keep up, and these units."""
    found: list[tuple[float, tuple[Unit, ...]]] = [(0.0, ())]
    for most in range(1, gpus + 1):
        options = [found[most - 1]]
        for unit in units:
            if unit.gpus <= most:
                capacity, chosen = found[most - unit.gpus]
                options.append((capacity + unit.per_s, (*chosen, unit)))
        found.append(max(options, key=lambda option: option[0]))
    return found


def every_plan(units: Sequence[Unit], gpus: int) -> Iterator[tuple[Unit, ...]]:
    """Yield every choice of units that fits, to hold planners against; hopeless beyond a few kinds of units."""

    def further(first: int, left: int) -> Iterator[tuple[Unit, ...]]:
        yield ()
        for i in range(first, len(units)):
            if units[i].gpus <= left:
                for rest in further(i, left - units[i].gpus):
                    yield (units[i], *rest)

    yield from further(0, gpus)
