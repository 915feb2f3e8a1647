"""The offline profile: what units keep up, found by serving one tier alone on them at one rate after another.

Formulas of mean lengths are off by up to a factor of two where lengths vary, and not by the same one for every degree.
A planner that compares degrees needs what groups really keep up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.serving.tiers.fleet import serve
from wavetank.serving.tiers.interface import Plan, Problem, Rules, Tier, Unit, plan_of
from wavetank.serving.tiers.planning import best_by_gpus
from wavetank.serving.tiers.profile import Hardware, units_of
from wavetank.serving.tiers.rivals import FixedPlan
from wavetank.serving.tiers.traffic import Drift, drifting
from wavetank.workloads.generate import Lengths

# A unit keeps a rate up where this share of the requests is within both objectives.
_WITHIN = 0.9
# A backlog may last as long as the objective: runs are several times that long.
_REQUESTS, _LEAST_S, _TTFTS, _BISECTIONS, _MOST = 300, 30.0, 6, 6, 2.5
# The requests of profiles are none that a study serves.
_SEED = 1 << 40


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was found, and how it was asked.

    Parameters
    ----------
    hardware : Hardware
    tiers : tuple of Tier
    lengths : tuple of Lengths
    """

    hardware: Hardware
    tiers: tuple[Tier, ...]
    lengths: tuple[Lengths, ...]

    def units(self, full_copy: bool) -> tuple[Unit, ...]:
        """Return all units with what they keep up.

        Parameters
        ----------
        full_copy : bool
            Whether each GPU holds all weights.
        """
        formulas = units_of(self.hardware.rates(self.tiers, full_copy), self.hardware.gpus)
        return tuple(unit._replace(per_s=self._largest(unit, Rules(full_copy=full_copy))) for unit in formulas)

    def _largest(self, unit: Unit, rules: Rules) -> float:
        low, high = 0.0, _MOST * unit.per_s
        for _ in range(_BISECTIONS if high else 0):
            rate = (low + high) / 2
            low, high = (rate, high) if self.within(unit, rate, rules) >= _WITHIN else (low, rate)
        return low

    def within(self, unit: Unit, per_s: float, rules: Rules) -> float:
        """Return the share of a unit's requests within both objectives.

        Parameters
        ----------
        unit : Unit
        per_s : float
            Arrivals of its tier.
        rules : Rules
        """
        own = self.tiers[unit.tier]
        duration_s = max(_LEAST_S, _REQUESTS / per_s, _TTFTS * own.ttft_s)
        requests = drifting((per_s,), Drift(amplitude=0.0), duration_s, (self.lengths[unit.tier],), _SEED)
        plan: Plan = plan_of([unit._replace(tier=0)])
        problem = Problem((own,), (), (), self.hardware.gpus, duration_s, 0.0, (per_s,))
        served = serve(requests, FixedPlan(plan=plan, rules=rules), problem, self.hardware)
        return float(served.good().mean())


def best_alone(units: Sequence[Unit], tier: int, gpus: int) -> float:
    """Return the most requests per second that all GPUs keep up of one tier alone.

    Parameters
    ----------
    units : sequence of Unit
    tier, gpus : int
    """
    return best_by_gpus([unit for unit in units if unit.tier == tier], gpus)[gpus][0]
