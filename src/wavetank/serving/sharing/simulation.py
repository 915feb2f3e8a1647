"""Nodes, jobs and a controller through a scene."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.sharing.interface import Controller, Load, Move, View
from wavetank.serving.sharing.nodes import RULES, Jobs, advance
from wavetank.serving.sharing.traffic import BIN_S, Scene

# Weight of the newest period in what a controller sees of rates and work.
_NEWEST = 0.5


@dataclass(frozen=True, kw_only=True)
class SharingRun:
    """What became of a scene.

    Attributes
    ----------
    in_time : bool, shape (requests,)
    met_share : float64, shape (services,)
        Share of the time in which a radio function had its shares; NaN of AI services.
    moves, refused : int
        Moves that were made, and those that could not be.
    down_s : float64, shape (services,)
        How long each service was stopped.
    decide_s : float64, shape (decisions,)
        Time of each decision on this machine.
    placements : tuple of tuple of int
        After every decision.
    """

    in_time: NDArray[np.bool_]
    met_share: NDArray[np.float64]
    moves: int
    refused: int
    down_s: NDArray[np.float64]
    decide_s: NDArray[np.float64]
    placements: tuple[tuple[int, ...], ...]

    def by_service(self, scene: Scene, from_s: float = 0.0) -> NDArray[np.float64]:
        """Return the fulfilment of every service; NaN of one without requests.

        Parameters
        ----------
        scene : Scene
        from_s : float
            Requests that arrived before do not count.

        Returns
        -------
        float64, shape (services,)
        """
        found = self.met_share.copy()
        counted = scene.requests.arrival_s >= from_s
        for i, service in enumerate(scene.services):
            if not service.radio:
                own = counted & (scene.requests.service == i)
                found[i] = self.in_time[own].mean() if own.any() else np.nan
        return found


def simulate_sharing(
    scene: Scene, controller: Controller | None, rule: str = "closed-form", *, epoch_s: float = 20.0
) -> SharingRun:
    """Run a scene.

    A service that moves takes no requests until it is there: those that come meanwhile wait, with their deadlines.
    What it has begun ends on the old node.  A radio function that moves misses its slots meanwhile.

    Parameters
    ----------
    scene : Scene
    controller : Controller or None
        None moves nothing.
    rule : str
        How nodes divide what they have, one of :data:`~wavetank.serving.sharing.nodes.RULES`.
    epoch_s : float
        Time between two decisions.

    Raises
    ------
    BadValueError
        If the rule is none, or the time between decisions is not above 0.
    """
    if rule not in RULES or not epoch_s > 0:
        raise BadValueError("No such rule, or no time between decisions.", given=(rule, epoch_s), allowed=RULES)
    requests = scene.requests
    placement = list(scene.placement)
    ready_s = np.zeros(len(scene.services))
    finish_s = np.full(requests.arrival_s.size, np.nan)
    met_s = np.zeros(len(scene.services))
    down_s = np.zeros(len(scene.services))
    jobs = [Jobs() for _ in scene.nodes]
    counts = {"moves": 0, "refused": 0}
    decide_s: list[float] = []
    placements = [tuple(placement)]
    loads = _first_loads(scene)
    begin_s = 0.0
    while begin_s < scene.seconds:
        end_s = min(begin_s + epoch_s, scene.seconds)
        if controller is not None and begin_s > 0:
            view = View(
                time_s=begin_s, nodes=scene.nodes, services=scene.services, placement=tuple(placement),
                moving=tuple((ready_s > begin_s).tolist()), loads=tuple(loads),
            )  # fmt: skip
            began = time.perf_counter()
            moves = controller.decide(view)
            decide_s.append(time.perf_counter() - began)
            for move in _allowed(view, moves, counts):
                at = view.service(move.service)
                placement[at] = view.node(move.to)
                ready_s[at] = begin_s + scene.services[at].downtime_s
                down_s[at] += min(scene.services[at].downtime_s, scene.seconds - begin_s)
            placements.append(tuple(placement))
        before_s = met_s.copy()
        _run_epoch(scene, begin_s, end_s, placement, ready_s, jobs, rule, finish_s, met_s)
        loads = _seen(scene, loads, begin_s, end_s, finish_s, met_s - before_s)
        begin_s = end_s
    radio = np.array([each.radio for each in scene.services])
    return SharingRun(
        in_time=~np.isnan(finish_s), met_share=np.where(radio, met_s / scene.seconds, np.nan), moves=counts["moves"],
        refused=counts["refused"], down_s=down_s, decide_s=np.array(decide_s), placements=tuple(placements),
    )  # fmt: skip


def _allowed(view: View, moves: Sequence[Move], counts: dict[str, int]) -> list[Move]:
    """Return the moves that can be made one after the other."""
    found = []
    for move in moves:
        try:
            view = view.after(move)
        except (BadValueError, UnknownNameError):
            counts["refused"] += 1
            continue
        counts["moves"] += 1
        found.append(move)
    return found


def _run_epoch(scene: Scene, begin_s: float, end_s: float, placement: Sequence[int], ready_s: NDArray[np.float64],
               jobs: list[Jobs], rule: str, finish_s: NDArray[np.float64],
               met_s: NDArray[np.float64]) -> None:  # fmt: skip
    requests = scene.requests
    # Those that a service could not take before it was ready come when it is.
    starts_s = np.maximum(requests.arrival_s, ready_s[requests.service])
    waited = (requests.arrival_s < begin_s) & (starts_s >= begin_s) & (starts_s < end_s)
    first, last = np.searchsorted(requests.arrival_s, [begin_s, end_s])
    come = np.concatenate([np.flatnonzero(waited), np.arange(first, last)])
    come = come[(starts_s[come] < end_s) & (requests.deadline_s[come] > starts_s[come])]
    come = come[np.argsort(starts_s[come], kind="stable")]
    at_node = np.asarray(placement)[requests.service[come]]
    edges_s = np.unique(np.concatenate([np.arange(np.floor(begin_s / BIN_S), np.ceil(end_s / BIN_S) + 1) * BIN_S,
                                        [begin_s, end_s]]))  # fmt: skip
    edges_s = edges_s[(edges_s >= begin_s) & (edges_s <= end_s)]
    for node, machine in enumerate(scene.nodes):
        own = come[at_node == node]
        arrivals = np.stack([
            starts_s[own], own.astype(float), requests.deadline_s[own], requests.gpu_s[own], requests.cpu_s[own],
            np.ones(own.size),
        ])  # fmt: skip
        here = [i for i, each in enumerate(scene.services) if each.radio and placement[i] == node]
        jobs[node].room(own.size)
        whole = np.array([machine.gpu, machine.cpu])
        for low_s, high_s in itertools.pairwise(edges_s.tolist()):
            up = [i for i in here if ready_s[i] <= low_s]
            needs = scene.needs[min(int(low_s / BIN_S), scene.needs.shape[0] - 1), up].T
            met = np.zeros(len(up))
            a, b = np.searchsorted(arrivals[0], [low_s, high_s])
            jobs[node].count = advance(
                jobs[node].columns, jobs[node].count, low_s, high_s, arrivals[:, a:b].copy(), needs.copy(), whole,
                RULES.index(rule), finish_s, met,
            )  # fmt: skip
            met_s[up] += met


def _first_loads(scene: Scene) -> list[Load]:
    """Return what is known before anything was seen: nothing but what radio functions need."""
    return [
        Load(rate_per_s=0.0, gpu_s=scene.needs[0, i, 0], cpu_s=scene.needs[0, i, 1], spread=0.0, fulfilled=1.0)
        for i in range(len(scene.services))
    ]


def _seen(scene: Scene, before: list[Load], begin_s: float, end_s: float, finish_s: NDArray[np.float64],
          met_s: NDArray[np.float64]) -> list[Load]:  # fmt: skip
    """Return what a controller sees of a period; of requests whose deadline is still to come, nothing is known."""
    requests = scene.requests
    first, last = np.searchsorted(requests.arrival_s, [begin_s, end_s])
    service = requests.service[first:last]
    known = requests.deadline_s[first:last] <= end_s
    in_time = ~np.isnan(finish_s[first:last])
    bin_ = min(int((end_s - 1e-9) / BIN_S), scene.needs.shape[0] - 1)
    found = []
    for i, each in enumerate(scene.services):
        old = before[i]
        if each.radio:
            found.append(Load(
                rate_per_s=0.0, gpu_s=float(scene.needs[bin_, i, 0]), cpu_s=float(scene.needs[bin_, i, 1]), spread=0.0,
                fulfilled=float(met_s[i]) / (end_s - begin_s),
            ))  # fmt: skip
            continue
        own = service == i
        rate = float(own.sum()) / (end_s - begin_s)
        if not own.any():
            found.append(Load(rate_per_s=old.rate_per_s * (1 - _NEWEST), gpu_s=old.gpu_s, cpu_s=old.cpu_s,
                              spread=old.spread, fulfilled=old.fulfilled))  # fmt: skip
            continue
        gpu = requests.gpu_s[first:last][own]
        new = Load(
            rate_per_s=rate, gpu_s=float(gpu.mean()), cpu_s=float(requests.cpu_s[first:last][own].mean()),
            spread=float(gpu.var() / gpu.mean() ** 2),
            fulfilled=float(in_time[own & known].mean()) if (own & known).any() else old.fulfilled,
        )  # fmt: skip
        if old.rate_per_s > 0:
            new = Load(**{name: _NEWEST * getattr(new, name) + (1 - _NEWEST) * getattr(old, name)
                          for name in ("rate_per_s", "gpu_s", "cpu_s", "spread")}, fulfilled=new.fulfilled)  # fmt: skip
        found.append(new)
    return found
