"""Sem-MoE: experts and requests, or tokens, are clustered together, and each is then sent where its cluster is.

Experts take devices one by one, hottest first, beside the experts and the requests they are used with; pairs of them
change places where that keeps more routes; requests then take devices in the same way; and so on, the best clustering
ever seen being kept.  What a device's clusters have in common are tokens, so that a table from tokens to devices sends
new requests, one per device and round, or divides the tokens of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from wavetank.serving.experts.interface import Numbers, Plan, RoutingTrace, Shares, check_devices
from wavetank.serving.experts.plans import VOTES, Composed, InTurns, profile, tables
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream


class Items(NamedTuple):
    """What is clustered together with experts.

    Attributes
    ----------
    tokens : float64 array (items,)
        How many tokens each has.
    uses : float64 array (items, layers, experts)
        Its routes.
    """

    tokens: Shares
    uses: Shares


class Clustering(NamedTuple):
    """Where experts and items are.

    Attributes
    ----------
    experts : int64 array (layers, experts)
    items : int64 array (items,)
    objective : float
        The smaller, the better.
    """

    experts: Numbers
    items: Numbers
    objective: float


def requests_of(seen: RoutingTrace) -> Items:
    """Return the requests of a trace and their routes.

    Parameters
    ----------
    seen : RoutingTrace
    """
    owners = seen.owners()
    uses = np.zeros((seen.requests, seen.layers, seen.experts))
    for layer, routes in enumerate(seen.routes):
        np.add.at(uses[:, layer], (owners[:, None], routes), 1)
    return Items(np.diff(seen.starts).astype(float), uses)


def tokens_of(seen: RoutingTrace, layer: int) -> Items:
    """Return the different tokens of a trace and their routes in one layer.

    Parameters
    ----------
    seen : RoutingTrace
    layer : int
    """
    times, uses = profile(seen)
    known = times > 0
    return Items(times[known].astype(float), uses[layer][known][:, None, :].astype(float))


def items_of(seen: RoutingTrace, *, whole_requests: bool) -> list[Items]:
    """Return what is clustered at one time: the requests with all layers together, or the tokens of each layer.

    Parameters
    ----------
    seen : RoutingTrace
    whole_requests : bool
        As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
    """
    return [requests_of(seen)] if whole_requests else [tokens_of(seen, layer) for layer in range(seen.layers)]


def remote(experts: Numbers, items: Numbers, uses: Shares) -> float:
    """Return the routes that leave their device.

    Parameters
    ----------
    experts, items, uses
        As in :class:`Clustering` and :class:`Items`.
    """
    return float((uses * (experts[None] != items[:, None, None])).sum())


@dataclass(frozen=True, kw_only=True)
class SemMoE:
    """Co-clusters experts with requests or tokens by alternating greedy choices."""

    clairvoyant: ClassVar[bool] = False

    beginnings: int = setting(4, says="The first without items, the others with items anywhere", low=1, high=10_000)
    epochs: int = setting(6, says="Rounds of placing experts and then items, of each beginning", low=1, high=1_000)
    swaps: int = setting(10_000, says="Pairs of experts that may change places, per round", low=0, high=10_000_000)
    balance: float = setting(0.1, says="Weight of unequal tokens of devices; routes that leave have the rest", low=0.0,
                             high=1.0)  # fmt: skip
    room: float = setting(0.05, says="How far a device's items may exceed its equal share", low=0.0, high=10.0)
    beside_experts: float = setting(0.2, says="Weight of being with experts used together", low=0.0, high=100.0)
    beside_items: float = setting(1.0, says="Weight of an expert's routes from a device's items", low=0.0, high=100.0)
    load: float = setting(0.1, says="Weight of a device's routes when an expert takes its place", low=0.0, high=100.0)
    alike: float = setting(0.1, says="Weight of being with items that use the same experts", low=0.0, high=100.0)
    votes: str = setting("confidence", says="What a token of a prompt says: its device, that times its share there, "
                         "or its share of each device", choices=VOTES)  # fmt: skip
    schedules: bool = setting(True, says="Whether requests and tokens are sent by tables, or in turns")
    seed: int = setting(0, says="Draws beginnings and pairs that may change places", low=0, high=2**31 - 1)

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
        experts = np.concatenate([self.cluster(each, devices)[-1].experts for each in items])
        if not self.schedules:
            return Composed(experts, InTurns(devices))
        return Composed(experts, tables(seen, experts, devices, votes=self.votes))

    def cluster(self, items: Items, devices: int) -> list[Clustering]:
        """Return the best clustering after each round.

        Parameters
        ----------
        items : Items
        devices : int
        """
        draws = stream(self.seed, "sem-moe")
        found: list[Clustering] = []
        for beginning in range(self.beginnings):
            placed = draws.integers(0, devices, len(items.tokens)) if beginning else None
            for _ in range(self.epochs):
                experts = self._experts(items, placed, devices)
                if placed is not None:
                    self._exchange(experts, items, placed, devices, draws)
                placed = self._items(items, experts, devices)
                here = Clustering(experts, placed, self.objective(experts, placed, items, devices))
                found.append(min([*found[-1:], here], key=lambda each: each.objective))
        return found

    def objective(self, experts: Numbers, placed: Numbers, items: Items, devices: int) -> float:
        """Return what is minimised: unequal tokens of devices and routes that leave, in their proportion.

        Parameters
        ----------
        experts : int64 array (layers, experts)
        placed : int64 array (items,)
        items : Items
        devices : int
        """
        tokens = np.bincount(placed, weights=items.tokens, minlength=devices)
        unequal = float(np.abs(tokens - tokens.mean()).sum())
        return self.balance * unequal + (1 - self.balance) * remote(experts, placed, items.uses)

    def _experts(self, items: Items, placed: Numbers | None, devices: int) -> Numbers:
        """Place experts, hottest first, on devices that are not full."""
        count, layers, experts = items.uses.shape
        flat = items.uses.reshape(count, -1)
        heat = flat.sum(axis=0)
        together = flat.T @ (flat / items.tokens[:, None])
        np.fill_diagonal(together, 0.0)
        together /= np.maximum(together.sum(axis=1), 1e-300)[:, None]
        asked = np.zeros((layers * experts, devices))
        if placed is not None:
            asked = flat.T @ np.eye(devices)[placed] / np.maximum(heat, 1.0)[:, None]
        mean = heat.sum() / devices
        beside = np.zeros((devices, layers * experts))
        loads, free = np.zeros(devices), np.full((layers, devices), experts // devices)
        found = np.empty(layers * experts, np.int64)
        for each in np.argsort(-heat, kind="stable"):
            scores = self.beside_experts * beside[:, each] + self.beside_items * asked[each] - self.load * loads / mean
            scores[free[each // experts] == 0] = -np.inf
            device = int(scores.argmax())
            found[each] = device
            free[each // experts, device] -= 1
            loads[device] += heat[each]
            beside[device] += together[:, each]
        return found.reshape(layers, experts)

    def _exchange(
        self, experts: Numbers, items: Items, placed: Numbers, devices: int, draws: np.random.Generator
    ) -> None:
        """Let pairs of experts of a layer change places where that keeps more routes on their devices."""
        layers, many = experts.shape
        # Lists: single numbers of arrays take most of the time otherwise.
        asked = np.einsum("ile,id->led", items.uses, np.eye(devices)[placed]).tolist()
        at = experts.tolist()
        for layer, one, other in zip(
            draws.integers(0, layers, self.swaps).tolist(), draws.integers(0, many, self.swaps).tolist(),
            draws.integers(0, many, self.swaps).tolist(), strict=True,
        ):  # fmt: skip
            routes, places = asked[layer], at[layer]
            here, there = places[one], places[other]
            if routes[one][there] + routes[other][here] > routes[one][here] + routes[other][there]:
                places[one], places[other] = there, here
        experts[:] = at

    def _items(self, items: Items, experts: Numbers, devices: int) -> Numbers:
        """Place items, longest first, on devices that are not full."""
        count = len(items.tokens)
        flat = items.uses.reshape(count, -1)
        kept = flat @ np.eye(devices)[experts.ravel()] / np.maximum(flat.sum(axis=1), 1.0)[:, None]
        unit = flat / np.maximum(np.linalg.norm(flat, axis=1), 1e-300)[:, None]
        there = np.zeros((devices, flat.shape[1]))
        tokens, most = np.zeros(devices), items.tokens.sum() / devices * (1 + self.room)
        found = np.empty(count, np.int64)
        for each in np.argsort(-items.tokens, kind="stable"):
            scores = self.beside_items * kept[each]
            if self.alike:
                lengths = np.maximum(np.linalg.norm(there, axis=1), 1e-300)
                scores = scores + self.alike * (there @ unit[each]) / lengths
            full = tokens + items.tokens[each] > most
            # Where an item fits nowhere it goes where least is.
            device = int(tokens.argmin()) if full.all() else int(np.where(full, -np.inf, scores).argmax())
            found[each] = device
            tokens[device] += items.tokens[each]
            there[device] += unit[each]
        return found
