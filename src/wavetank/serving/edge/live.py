"""Early-exit networks served on this machine's CPU: a client that sends at its times, one server that runs batches.

The scheduler is the object that the simulation uses.  The server has one thread, which decides, runs a batch to its end
and notes when; another thread is the client.  A request shows a page of 48 digits, so that batches last milliseconds,
as those of the networks that these stand for, and decisions microseconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.machine.threads import libraries_limited
from wavetank.serving.edge.interface import EdgeScheduler, ExitProfile, Queues
from wavetank.serving.edge.networks import EXITS, NAMES, ExitNetwork, Floats
from wavetank.serving.edge.simulation import EdgeRun, check_served
from wavetank.sim.rng import stream

PAGE = 48
_SLOWEST_S = 60.0


def profile_networks(
    served: Sequence[ExitNetwork], images: Floats, labels: NDArray[np.int64], *, max_batch: int = 8, rounds: int = 40
) -> tuple[ExitProfile, ExitProfile]:
    """Measure how long batches take and how often exits are right.

    Parameters
    ----------
    served : sequence of ExitNetwork
    images : float32, shape (n, 64)
    labels : int64, shape (n,)
    max_batch : int
    rounds : int
        Of every model, exit and size, in turns.

    Returns
    -------
    (ExitProfile, ExitProfile)
        Mean latencies, and their 95th percentiles.
    """
    took_s = np.zeros((rounds, len(served), EXITS, max_batch))
    draws = stream(0, "edge-profile")
    with libraries_limited(1):
        for each in range(rounds):
            # In any order, as batches come: what ran just before decides what is in the caches.
            for place in draws.permutation(took_s[0].size).tolist():
                model, exit_, fewer = np.unravel_index(place, took_s.shape[1:])
                began_s = time.perf_counter()
                _answered(served[model], images, labels, range(each, each + int(fewer) + 1), int(exit_))
                took_s[each, model, exit_, fewer] = time.perf_counter() - began_s
    accuracy = tuple(
        tuple(float((network.labels(images, exit_) == labels).mean()) for exit_ in range(EXITS)) for network in served
    )
    # The first rounds warm caches up; rare interruptions of the machine are no part of a batch.
    kept = np.sort(took_s[rounds // 10 :], axis=0)[: max(int(0.98 * rounds), 1)]
    tables = (kept.mean(axis=0), np.quantile(kept, 0.95, axis=0))
    mean, high = (
        ExitProfile(
            models=NAMES[: len(served)],
            latency_s=tuple(tuple(tuple(batches) for batches in exits) for exits in table.tolist()), accuracy=accuracy,
        )
        for table in tables
    )  # fmt: skip
    return mean, high


def serve_edge(
    served: Sequence[ExitNetwork],
    images: Floats,
    labels: NDArray[np.int64],
    arrival_s: Sequence[NDArray[np.float64]],
    profile: ExitProfile,
    scheduler: EdgeScheduler,
    slo_s: float,
) -> EdgeRun:
    """Serve requests as they come.

    Parameters
    ----------
    served : sequence of ExitNetwork
    images : float32, shape (n, 64)
        What requests show, a page each.
    labels : int64, shape (n,)
    arrival_s : sequence of float64 array
        Per model, ascending, s from the start on.
    profile : ExitProfile
        What the scheduler looks latencies up in.
    scheduler : EdgeScheduler
    slo_s : float

    Returns
    -------
    EdgeRun
        With measured times, arrivals as the client sent them, and what was seen right.

    Raises
    ------
    WavetankError
        If the scheduler names a batch that does not exist, or the machine does not get on for a minute.
    """
    check_served(arrival_s, profile, slo_s)
    if len(profile.models) != len(served):
        raise BadValueError("Every network has a profile.", given=len(profile.models), allowed=str(len(served)))
    model = np.concatenate([np.full(each.size, m) for m, each in enumerate(arrival_s)]).astype(np.int64)
    times = np.concatenate(arrival_s)
    order = np.argsort(times, kind="stable")
    model, times = model[order], times[order]
    right = np.zeros(times.size)
    run = EdgeRun(
        model=model, arrival_s=np.full(times.size, np.nan), finish_s=np.full(times.size, np.nan),
        exit=np.full(times.size, -1, np.int64), right=right,
    )  # fmt: skip
    sent: deque[int] = deque()
    came, stop = threading.Event(), threading.Event()
    start_s = time.perf_counter() + 0.02

    def put(number: int, at_s: float) -> None:
        run.arrival_s[number] = at_s
        sent.append(number)
        came.set()

    sender = threading.Thread(
        target=send_when_due, args=(times.tolist(), put, stop.wait, start_s), name="edge-client", daemon=True
    )
    with libraries_limited(1):
        sender.start()
        try:
            _serve(run, right, served, images, labels, profile, scheduler, slo_s, sent, came, start_s)
        finally:
            stop.set()
            sender.join(timeout=10.0)
    return run


def send_when_due(
    due_s: Sequence[float],
    put: Callable[[int, float], object],
    wait: Callable[[float], bool],
    start_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Send requests, none before it is due and none later than the one that waits is woken.

    Parameters
    ----------
    due_s : sequence of float
        Ascending, s from the start on.
    put : callable
        Takes a request's number, and when it was sent, s from the start on.
    wait : callable
        Waits for at most some seconds; true if nothing more is to be sent.
    start_s : float
        By the clock.
    clock : callable
        Returns s.
    """
    for number, at_s in enumerate(due_s):
        while True:
            if wait(max(start_s + at_s - clock(), 0.0)):
                return
            if clock() >= start_s + at_s:
                break
        put(number, clock() - start_s)


def _serve(run: EdgeRun, right: NDArray[np.float64], served: Sequence[ExitNetwork], images: Floats,
           labels: NDArray[np.int64], profile: ExitProfile, scheduler: EdgeScheduler, slo_s: float,
           sent: deque[int], came: threading.Event, start_s: float) -> None:  # fmt: skip
    queues: list[list[int]] = [[] for _ in served]
    left, turn, moved_s = run.model.size, 0, time.perf_counter()
    while left:
        came.clear()
        while sent:
            i = sent.popleft()
            queues[run.model[i]].append(i)
        now_s = time.perf_counter() - start_s
        if scheduler.drops_late:
            for m, queue in enumerate(queues):
                latest_s = now_s + profile.seconds(m, profile.exits - 1, 1) - slo_s
                queues[m] = [i for i in queue if run.arrival_s[i] >= latest_s]
                left -= len(queue) - len(queues[m])
        if not any(queues):
            if left and not came.wait(1.0) and time.perf_counter() - max(moved_s, start_s) > _SLOWEST_S:
                raise WavetankError("No request came for a minute.", where="edge client")
            continue
        chosen = scheduler.choose(
            Queues(now_s, slo_s, [run.arrival_s[queue].tolist() for queue in queues]), profile, turn
        )
        if chosen.batch == 0:
            wait_s = min(chosen.until_s - (time.perf_counter() - start_s), 1.0)
            if wait_s > 0:
                came.wait(wait_s)
            continue
        possible = 0 <= chosen.model < len(queues) and 0 <= chosen.exit < profile.exits
        if not possible or not 0 < chosen.batch <= min(len(queues[chosen.model]), profile.max_batch):
            raise WavetankError(f"{type(scheduler).__name__} chose a batch that does not exist.", given=chosen)
        batch = queues[chosen.model][: chosen.batch]
        found = _answered(served[chosen.model], images, labels, batch, chosen.exit)
        moved_s = time.perf_counter()
        run.finish_s[batch] = moved_s - start_s
        run.exit[batch] = chosen.exit
        right[batch] = found
        del queues[chosen.model][: chosen.batch]
        left -= chosen.batch
        turn += 1


def pages(requests: Sequence[int], images: int) -> NDArray[np.int64]:
    """Return which images requests show.

    Parameters
    ----------
    requests : sequence of int
        Their numbers.
    images : int

    Returns
    -------
    int64, shape (requests * 48,)
    """
    first = np.asarray(requests, np.int64) * PAGE
    return ((first[:, None] + np.arange(PAGE)) % images).ravel()


def _answered(
    network: ExitNetwork, images: Floats, labels: NDArray[np.int64], requests: Sequence[int], exit_: int
) -> NDArray[np.float64]:
    """Run a batch and return the share of each page that was read right."""
    shown = pages(requests, images.shape[0])
    right: NDArray[np.float64] = (network.labels(images[shown], exit_) == labels[shown]).reshape(-1, PAGE).mean(axis=1)
    return right


def decision_s(scheduler: EdgeScheduler, profile: ExitProfile, slo_s: float) -> float:
    """Return how long a decision takes on this machine, with three requests in every queue; median.

    Parameters
    ----------
    scheduler : EdgeScheduler
    profile : ExitProfile
    slo_s : float
    """
    took_s = []
    waiting = [[-0.3 * slo_s, -0.2 * slo_s, -0.1 * slo_s] for _ in profile.models]
    for turn in range(200):
        began_s = time.perf_counter()
        scheduler.choose(Queues(0.0, slo_s, waiting), profile, turn)
        took_s.append(time.perf_counter() - began_s)
    return float(np.median(took_s))
