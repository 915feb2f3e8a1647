"""Rules of placement to compare with: as experts are numbered, by load, by traffic, one half alone, and the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csr_array

from wavetank.errors import WavetankError
from wavetank.serving.experts.counting import count, homes_of
from wavetank.serving.experts.interface import Numbers, Plan, RoutingTrace, Shares, check_devices
from wavetank.serving.experts.plans import VOTES, ByTruth, Composed, InTurns, tables
from wavetank.serving.experts.sem_moe import Items, SemMoE, items_of, remote
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream


def contiguous(seen: RoutingTrace, devices: int) -> Numbers:
    """Return experts in equal pieces of their numbers.

    Parameters
    ----------
    seen : RoutingTrace
    devices : int
    """
    check_devices(seen, devices)
    return np.tile(np.arange(seen.experts) // (seen.experts // devices), (seen.layers, 1))


def loads_of(seen: RoutingTrace) -> Numbers:
    """Return the routes of each expert: (layers, experts).

    Parameters
    ----------
    seen : RoutingTrace
    """
    return np.stack([np.bincount(each.ravel(), minlength=seen.experts) for each in seen.routes])


@dataclass(frozen=True, kw_only=True)
class ContiguousExperts:
    """Experts in equal pieces of their numbers; requests in turns."""

    clairvoyant: ClassVar[bool] = False

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        """Return a plan.

        Parameters
        ----------
        seen, devices, whole_requests
            As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
        """
        return Composed(contiguous(seen, devices), InTurns(devices))


@dataclass(frozen=True, kw_only=True)
class BalancedExperts:
    """The most used expert to the device with least routes that has room; requests in turns."""

    clairvoyant: ClassVar[bool] = False

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        """Return a plan.

        Parameters
        ----------
        seen, devices, whole_requests
            As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
        """
        check_devices(seen, devices)
        return Composed(np.stack([balanced(each, devices) for each in loads_of(seen)]), InTurns(devices))


def balanced(loads: Numbers, devices: int) -> Numbers:
    """Return devices of the experts of a layer: the most used one to the device with least that has room.

    Parameters
    ----------
    loads : int64 array (experts,)
    devices : int
    """
    found = np.empty(len(loads), np.int64)
    sums, free = np.zeros(devices), np.full(devices, len(loads) // devices)
    for each in np.argsort(-loads, kind="stable"):
        device = int(np.where(free > 0, sums, np.inf).argmin())
        found[each] = device
        sums[device] += loads[each]
        free[device] -= 1
    return found


@dataclass(frozen=True, kw_only=True)
class TrafficExperts:
    """Experts that follow each other in a token's layers are kept on one device, exactly, one layer after another."""

    clairvoyant: ClassVar[bool] = False

    uneven: float = setting(0.1, says="How far a device's routes of a layer may exceed their mean", low=0.0, high=100.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        """Return a plan.

        Parameters
        ----------
        seen, devices, whole_requests
            As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
        """
        check_devices(seen, devices)
        loads = loads_of(seen)
        placed = [balanced(loads[0], devices)]
        for layer in range(1, seen.layers):
            follows = np.zeros((seen.experts, seen.experts))
            for one in seen.routes[layer - 1].T:
                for other in seen.routes[layer].T:
                    np.add.at(follows, (one, other), 1)
            gains = follows.T @ np.eye(devices)[placed[-1]]
            placed.append(self._placed(gains, loads[layer].astype(float), devices))
        return Composed(np.stack(placed), InTurns(devices))

    def _placed(self, gains: Shares, loads: Shares, devices: int) -> Numbers:
        """Return the places of the largest gain with equal numbers of experts and bounded routes of each device."""
        many = len(loads)
        least = np.bincount(balanced(loads.astype(np.int64), devices), weights=loads, minlength=devices).max()
        most = max(least, loads.mean() * many / devices * (1 + self.uneven))
        cells = np.arange(many * devices)
        once = csr_array((np.ones(many * devices), (cells // devices, cells)))
        full = csr_array((np.ones(many * devices), (cells % devices, cells)))
        heavy = csr_array((np.repeat(loads, devices), (cells % devices, cells)))
        found = milp(
            -gains.ravel(), integrality=np.ones(many * devices), bounds=Bounds(0, 1),
            constraints=[LinearConstraint(once, 1, 1), LinearConstraint(full, many // devices, many // devices),
                         LinearConstraint(heavy, -np.inf, most)],
            # Without it the last per mille of a proof may take minutes.
            options={"mip_rel_gap": 1e-3},
        )  # fmt: skip
        if found.x is None:
            raise WavetankError(f"The solver found no places of experts: {found.message}")
        return np.asarray(found.x.reshape(many, devices).argmax(axis=1))


@dataclass(frozen=True, kw_only=True)
class ScheduledRequests:
    """Experts in equal pieces of their numbers; requests and tokens go where their tokens' experts were."""

    clairvoyant: ClassVar[bool] = False

    votes: str = setting("shares", says="What a token of a prompt says, as for sem-moe",
                         choices=VOTES)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        """Return a plan.

        Parameters
        ----------
        seen, devices, whole_requests
            As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
        """
        experts = contiguous(seen, devices)
        return Composed(experts, tables(seen, experts, devices, votes=self.votes))


@dataclass(frozen=True, kw_only=True)
class AlternatingAssignment:
    """Experts for given requests, then requests for given experts, each exactly; the best of several beginnings."""

    clairvoyant: ClassVar[bool] = False

    beginnings: int = setting(8, says="Random places to begin with", low=1, high=10_000)
    steps: int = setting(20, says="Most steps of each", low=1, high=10_000)
    seed: int = setting(0, says="Draws the beginnings", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        """Return a plan.

        Parameters
        ----------
        seen, devices, whole_requests
            As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
        """
        check_devices(seen, devices)
        items = items_of(seen, whole_requests=whole_requests)
        experts = np.concatenate([self.places(each, devices, equal=whole_requests) for each in items])
        return Composed(experts, tables(seen, experts, devices, votes="shares"))

    def places(self, items: Items, devices: int, *, equal: bool) -> Numbers:
        """Return where experts are: (layers, experts).

        Parameters
        ----------
        items : Items
        devices : int
        equal : bool
            Whether devices have equally many items, up to one.
        """
        draws = stream(self.seed, "alternating-assignment")
        best: tuple[float, Numbers] | None = None
        _, layers, many = items.uses.shape
        slots = np.repeat(np.arange(devices), many // devices)
        for _ in range(self.beginnings):
            experts = np.stack([draws.permutation(slots) for _ in range(layers)])
            last = np.inf
            for _ in range(self.steps):
                kept = np.einsum("ile,led->id", items.uses, np.eye(devices)[experts])
                placed = _equally(kept) if equal else kept.argmax(axis=1)
                asked = np.einsum("ile,id->led", items.uses, np.eye(devices)[placed])
                experts = np.stack([slots[linear_sum_assignment(each[:, slots], maximize=True)[1]] for each in asked])
                here = remote(experts, placed, items.uses)
                if here >= last:
                    break
                last = here
            if best is None or last < best[0]:
                best = (last, experts)
        if best is None:
            raise WavetankError("No places of experts were tried.")
        return best[1]


def _equally(kept: Shares) -> Numbers:
    slots = np.tile(np.arange(kept.shape[1]), -(-len(kept) // kept.shape[1]))
    return np.asarray(slots[linear_sum_assignment(kept[:, slots], maximize=True)[1]])


@dataclass(frozen=True, kw_only=True)
class TrueRouting:
    """Places and sends by the routes that come: what no rule that learns from others can have."""

    clairvoyant: ClassVar[bool] = True

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        """Return a plan: the better one of two clusterings of what will come.

        Parameters
        ----------
        seen, devices, whole_requests
            As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
        """
        found = []
        for each in _CLUSTERINGS:
            experts = each.fit(seen, devices, whole_requests=whole_requests).experts
            plan = Composed(experts, ByTruth(experts, devices))
            homes = homes_of(plan, seen, devices, whole_requests=whole_requests, clairvoyant=True)
            found.append((count(experts, homes, seen, devices).local, plan))
        return max(found, key=lambda each: each[0])[1]


_CLUSTERINGS = (SemMoE(), AlternatingAssignment())
