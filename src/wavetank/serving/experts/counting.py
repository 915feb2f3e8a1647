"""What a plan costs on routes: which stay on the token's device, which bytes travel, and who has most to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.errors import WavetankError
from wavetank.serving.experts.interface import Batch, Numbers, Plan, RoutingTrace, Seen


class Counted(NamedTuple):
    """Sums over all layers and tokens.

    Attributes
    ----------
    pairs : int
        Routes: tokens times experts per token times layers.
    local : int
        Routes that stay on the token's device.
    visits : int
        Other devices that tokens are sent to, each counted once per token and layer.
    busiest_sent, busiest_routed : float
        Routes that leave or reach the device with most of them, and routes that its experts serve; the larger of each
        round and layer, summed.
    homes : int64 array (devices,)
        Tokens, times layers, that each device had.
    """

    pairs: int
    local: int
    visits: int
    busiest_sent: float
    busiest_routed: float
    homes: Numbers


def homes_of(
    plan: Plan, trace: RoutingTrace, devices: int, *, whole_requests: bool, clairvoyant: bool, waiting: int = 1
) -> Numbers:
    """Return the device of each token in each layer: (layers, tokens).

    Parameters
    ----------
    plan : Plan
    trace : RoutingTrace
    devices : int
    whole_requests : bool
        As for :class:`~wavetank.serving.experts.interface.ExpertPlacement`.
    clairvoyant : bool
        Whether the plan is shown what requests will do.
    waiting : int
        Requests per device that are sent together.

    Raises
    ------
    WavetankError
        If the plan sends more requests of a round, or tokens of a layer, to one device than its share.
    """
    homes = np.empty(trace.routes.shape[:2], np.int64)
    for first in range(0, trace.requests, devices * waiting):
        last = min(first + devices * waiting, trace.requests)
        start, end = trace.starts[first], trace.starts[last]
        if whole_requests:
            round_ = []
            for each in range(first, last):
                begin, until = trace.starts[each], trace.starts[each + 1]
                routes = trace.routes[:, begin:until] if clairvoyant else None
                round_.append(Seen(trace.tokens[begin : begin + trace.prompts[each]], routes))
            sent = np.asarray(plan.send(round_))
            if not _shared(sent, last - first, devices):
                raise WavetankError(f"A plan sent requests of one round to the devices {sent.tolist()}.")
            homes[:, start:end] = np.repeat(sent, np.diff(trace.starts[first : last + 1]))
            continue
        before = np.full((2, end - start), -1, np.int64)
        for layer in range(trace.layers):
            routes = trace.routes[layer, start:end]
            batch = Batch(trace.tokens[start:end], before, routes if clairvoyant else None)
            split = np.asarray(plan.split(layer, batch))
            if not _shared(split, int(end - start), devices):
                raise WavetankError(f"A plan divided {end - start} tokens among {devices} devices wrongly.")
            homes[layer, start:end] = split
            before = np.stack([main_device(plan.experts[layer][routes], devices), before[0]])
    return homes


def _shared(found: Numbers, many: int, devices: int) -> bool:
    """Return whether all have a device, and no device more than its equal share, rounded up."""
    known = found.shape == (many,) and found.min() >= 0 and found.max() < devices
    return known and bool(np.bincount(found).max() <= -(-many // devices))


def main_device(at: Numbers, devices: int) -> Numbers:
    """Return the device that has most of a token's experts, the first of several.

    Parameters
    ----------
    at : int64 array (tokens, experts per token)
        Devices of the experts.
    devices : int
    """
    return np.asarray((at[:, :, None] == np.arange(devices)).sum(axis=1).argmax(axis=1))


def count(experts: Numbers, homes: Numbers, trace: RoutingTrace, devices: int, *, waiting: int = 1) -> Counted:
    """Return what tokens at their homes ask of experts at theirs.

    Parameters
    ----------
    experts : int64 array (layers, experts)
        Device of each.
    homes : int64 array (layers, tokens)
    trace : RoutingTrace
    devices, waiting : int
        Their product is the number of requests of a round, which run together.
    """
    local = visits = 0
    sent = routed = 0.0
    rounds = trace.owners() // (devices * waiting)
    many = int(rounds[-1]) + 1
    for layer in range(trace.layers):
        at = experts[layer][trace.routes[layer]]
        home = homes[layer]
        stays = at == home[:, None]
        local += int(stays.sum())
        reached = (at[:, :, None] == np.arange(devices)).any(axis=1)
        reached[np.arange(len(home)), home] = False
        visits += int(reached.sum())
        served = np.zeros((many, devices), np.int64)
        np.add.at(served, (rounds[:, None], at), 1)
        here = np.zeros((2, many, devices), np.int64)
        np.add.at(here[0], (rounds, home), (~stays).sum(axis=1))
        np.add.at(here[1], (rounds[:, None], at), ~stays)
        sent += float(here.max(axis=(0, 2)).sum())
        routed += float(served.max(axis=1).sum())
    per_device = np.bincount(homes.ravel(), minlength=devices)
    return Counted(trace.routes.size, local, visits, sent, routed, per_device)
