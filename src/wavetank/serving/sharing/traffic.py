"""Made traffic: radio cells that follow a day's curve, AI services of which some are hot for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.sharing.interface import Node, Service
from wavetank.sim.rng import stream

_GB_PER_S = 10 / 8
"""Of the link over which a model moves: 10 Gbit/s."""
RESTART_S = 2.0
_RADIO_DOWN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Requests:
    """All requests of all AI services, in order of their arrivals.

    Attributes
    ----------
    arrival_s, gpu_s, cpu_s, deadline_s : float64, shape (m,)
        Deadlines are points in time.
    service : int64, shape (m,)
    """

    arrival_s: NDArray[np.float64]
    gpu_s: NDArray[np.float64]
    cpu_s: NDArray[np.float64]
    deadline_s: NDArray[np.float64]
    service: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A network's edge for some time.

    Attributes
    ----------
    nodes, services
    placement : tuple of int
        Where services are at first.
    needs : float64, shape (bins, services, 2)
        GPU and CPU shares of radio functions in bins of :data:`BIN_S`; 0 of others.
    rates : float64, shape (bins, services)
        Requests/s of AI services.
    means : float64, shape (services, 2)
        GPU and CPU work of a request.
    requests : Requests
    seconds : float
    """

    nodes: tuple[Node, ...]
    services: tuple[Service, ...]
    placement: tuple[int, ...]
    needs: NDArray[np.float64]
    rates: NDArray[np.float64]
    means: NDArray[np.float64]
    requests: Requests
    seconds: float


BIN_S = 1.0


def make_scene(
    seed: int,
    *,
    nodes: int = 6,
    ai_services: int = 12,
    seconds: float = 600.0,
    load: float = 0.8,
    hot_s: float = 180.0,
    hot_times: float = 4.0,
    downtime_times: float = 1.0,
    spread: float = 0.6,
) -> Scene:
    """Return nodes, services and their requests.

    Every second node is twice as large.  Two or three radio cells per node use 30 to 70 % of it along a day's curve,
    which is squeezed into the scene.  AI services have log-normal work, deadlines of 4 to 12 times their work on a
    whole GPU, from 50 ms to 5 s, and models of 2 to 30 GB.

    Parameters
    ----------
    seed : int
    nodes, ai_services : int
    seconds : float
    load : float
        GPU work of AI requests, on average, over what radio functions leave.
    hot_s : float
        How long the same two services are hot.
    hot_times : float
        By how much a hot service's rate is higher.
    downtime_times : float
        Multiple of the time that a move takes: the model over the link, and a restart.
    spread : float
        Standard deviation of the logarithm of the work.

    Raises
    ------
    BadValueError
        If the nodes have no memory for all services.
    """
    draws = stream(seed, "ai-ran")
    machines = tuple(
        Node(name=f"node-{i}", gpu=1.0 + i % 2, cpu=1.0 + i % 2, memory_gb=48.0 * (1 + i % 2)) for i in range(nodes)
    )
    services: list[Service] = []
    placement: list[int] = []
    bins = math.ceil(seconds / BIN_S)
    time = (np.arange(bins) + 0.5) / bins
    curves: list[NDArray[np.float64]] = []
    for at, machine in enumerate(machines):
        cells = int(draws.integers(2, 4))
        phase, low, high = draws.uniform(0, 1), draws.uniform(0.3, 0.4), draws.uniform(0.55, 0.7)
        day = low + (high - low) * 0.5 * (1 - np.cos(2 * np.pi * (time + phase)))
        parts = draws.dirichlet(np.full(cells, 8.0))
        for cell, part in enumerate(parts):
            services.append(Service(
                name=f"cell-{at}{'abc'[cell]}", radio=True, memory_gb=3.0,
                downtime_s=_RADIO_DOWN_S * downtime_times, deadline_s=1e-3,
            ))  # fmt: skip
            placement.append(at)
            noise = np.exp(0.08 * draws.standard_normal(bins))
            gpu = np.minimum(machine.gpu * day * part * noise, 0.85 * machine.gpu * part)
            curves.append(np.stack([gpu, 0.8 * gpu], axis=1))
    radios = len(services)
    work = np.exp(draws.uniform(np.log(0.01), np.log(0.4), ai_services))
    for i in range(ai_services):
        size = float(draws.uniform(2.0, 30.0))
        services.append(Service(
            name=f"ai-{i}", radio=False, memory_gb=size,
            downtime_s=(size / _GB_PER_S + RESTART_S) * downtime_times,
            deadline_s=float(np.clip(work[i] * draws.uniform(4.0, 12.0), 0.05, 5.0)),
        ))  # fmt: skip
    placement += _first_fit(machines, services, placement)
    needs = np.zeros((bins, len(services), 2))
    needs[:, :radios] = np.stack(curves, axis=1)
    means = np.zeros((len(services), 2))
    means[radios:, 0] = work
    means[radios:, 1] = work * draws.uniform(0.2, 0.8, ai_services)
    rates = _rates(draws, bins, ai_services, hot_s, hot_times)
    # Every service has the same GPU work before it is hot; the sum is the load that was asked for.
    rates = rates / work
    left = sum(machine.gpu for machine in machines) - needs[:, :, 0].sum(axis=1).mean()
    rates *= load * left / (rates @ work).mean()
    all_rates = np.concatenate([np.zeros((bins, radios)), rates], axis=1)
    return Scene(
        nodes=machines, services=tuple(services), placement=tuple(placement), needs=needs, rates=all_rates, means=means,
        requests=_requests(draws, tuple(services), all_rates, means, spread, seconds), seconds=seconds,
    )  # fmt: skip


def _rates(draws: np.random.Generator, bins: int, count: int, hot_s: float, times: float) -> NDArray[np.float64]:
    rates = np.tile(draws.uniform(0.5, 1.5, count), (bins, 1))
    begin_s = -draws.uniform(0.0, hot_s) if math.isfinite(hot_s) else 0.0
    while begin_s < bins * BIN_S:
        hot = draws.choice(count, min(2, count), replace=False)
        first, last = (int(max(each, 0) / BIN_S) for each in (begin_s, min(begin_s + hot_s, bins * BIN_S)))
        rates[first:last, hot] *= times
        begin_s += hot_s
    return rates


def _first_fit(machines: tuple[Node, ...], services: list[Service], placed: list[int]) -> list[int]:
    """Place AI services one after the other on the node with most memory left."""
    free = [machine.memory_gb for machine in machines]
    for service, at in zip(services, placed, strict=False):
        free[at] -= service.memory_gb
    found = []
    for service in services[len(placed) :]:
        at = int(np.argmax(free))
        free[at] -= service.memory_gb
        if free[at] < 0:
            raise BadValueError(
                "The nodes have no memory for all services.", given=f"{len(services)} services",
                allowed=f"services of {sum(machine.memory_gb for machine in machines):g} GB together",
                hint="take more nodes, or fewer AI services",
            )  # fmt: skip
        found.append(at)
    return found


def _requests(draws: np.random.Generator, services: tuple[Service, ...], rates: NDArray[np.float64],
              means: NDArray[np.float64], spread: float, seconds: float) -> Requests:  # fmt: skip
    arrivals, owners = [], []
    for i in range(len(services)):
        count = draws.poisson(rates[:, i] * BIN_S)
        first = np.repeat(np.arange(rates.shape[0]) * BIN_S, count)
        arrivals.append(np.minimum(first + draws.uniform(0.0, BIN_S, first.size), seconds - 1e-6))
        owners.append(np.full(first.size, i))
    arrival_s, service = np.concatenate(arrivals), np.concatenate(owners)
    order = np.argsort(arrival_s, kind="stable")
    arrival_s, service = arrival_s[order], service[order]
    drawn = np.exp(spread * draws.standard_normal(arrival_s.size) - spread**2 / 2)
    deadlines = np.array([each.deadline_s for each in services])
    return Requests(
        arrival_s=arrival_s, gpu_s=means[service, 0] * drawn, cpu_s=means[service, 1] * drawn,
        deadline_s=arrival_s + deadlines[service], service=service,
    )  # fmt: skip
