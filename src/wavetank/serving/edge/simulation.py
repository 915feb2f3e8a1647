"""One device that serves batches by a scheduler, simulated: the accounting that all schedulers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.edge.interface import EdgeScheduler, ExitProfile, Queues

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EdgeRun:
    """What happened to every request, in order of arrival.

    Attributes
    ----------
    model : int64 array (requests,)
    arrival_s, finish_s : float64 array (requests,)
        NaN where it was dropped.
    exit : int64 array (requests,)
        -1 where it was dropped.
    right : float64 array (requests,) or None
        Share of the answer that was right, where networks really ran.
    """

    model: Ints
    arrival_s: Floats
    finish_s: Floats
    exit: Ints
    right: Floats | None = None

    def figures(self, profile: ExitProfile, slo_s: float, warm_up: int) -> dict[str, float]:
        """Return what studies compare, without the first requests of each model.

        Parameters
        ----------
        profile : ExitProfile
        slo_s : float
        warm_up : int
            Requests of each model that do not count.

        Returns
        -------
        dict
            ``violation_ratio``: share of requests that were late or dropped; ``p95_s`` of the times in the system of
            those that were served; ``exit_depth``, 1 for the first exit; ``accuracy``, a dropped request being wrong;
            ``in_time_accuracy``, a late one too.
        """
        counted = np.ones(self.model.size, bool)
        for model in range(len(profile.models)):
            counted[np.flatnonzero(self.model == model)[:warm_up]] = False
        if not counted.any():
            raise BadValueError("All requests belong to the warm-up.", given=f"{warm_up} of each model")
        served = counted & (self.exit >= 0)
        took_s = self.finish_s - self.arrival_s
        late = ~(took_s <= slo_s + 1e-12)
        by_exit = np.array(profile.accuracy)[self.model, np.maximum(self.exit, 0)]
        right = np.where(self.exit >= 0, by_exit if self.right is None else self.right, 0.0)
        return {
            "violation_ratio": float(late[counted].mean()),
            "p95_s": float(np.percentile(took_s[served], 95)) if served.any() else float("nan"),
            "exit_depth": float(self.exit[served].mean() + 1) if served.any() else float("nan"),
            "accuracy": float(right[counted].mean()),
            "in_time_accuracy": float(np.where(late, 0.0, right)[counted].mean()),
            "dropped_share": float((self.exit < 0)[counted].mean()),
        }


def check_served(arrival_s: Sequence[Floats], profile: ExitProfile, slo_s: float) -> None:
    """Refuse arrivals and deadlines that no device can serve by.

    Parameters
    ----------
    arrival_s : sequence of float64 array
    profile : ExitProfile
    slo_s : float

    Raises
    ------
    BadValueError
    """
    if len(arrival_s) != len(profile.models):
        raise BadValueError("Every model has arrivals.", given=len(arrival_s), allowed=str(len(profile.models)))
    for name, each in zip(profile.models, arrival_s, strict=True):
        if not (np.isfinite(each).all() and (each >= 0).all() and (np.diff(each) >= 0).all()):
            raise BadValueError("Arrivals are times from 0 on, in order.", where=name)
    if not 0 < slo_s < np.inf:
        raise BadValueError("A deadline is a time above 0.", given=slo_s)


def simulate_edge(
    arrival_s: Sequence[Floats],
    profile: ExitProfile,
    scheduler: EdgeScheduler,
    slo_s: float,
    actual: ExitProfile | None = None,
    noise: Floats | None = None,
    decision_s: float = 0.0,
) -> EdgeRun:
    """Serve the requests of several models on one device.

    Parameters
    ----------
    arrival_s : sequence of float64 array
        Per model, ascending.
    profile : ExitProfile
        What the scheduler looks latencies up in.
    scheduler : EdgeScheduler
    slo_s : float
        Deadline of every request after its arrival.
    actual : ExitProfile, optional
        How long batches really take; the profile by default.
    noise : float64 array, optional
        Factors on that, in turn.
    decision_s : float
        Time of a decision, in which the device waits.

    Raises
    ------
    BadValueError
        If arrivals, the deadline, the noise or the time of a decision are no times, or the profiles differ in shape.
    WavetankError
        If the scheduler names a batch that does not exist.
    """
    real = actual or profile
    check_served(arrival_s, profile, slo_s)
    if (len(real.models), real.exits, real.max_batch) != (len(profile.models), profile.exits, profile.max_batch):
        raise BadValueError("The profile that schedulers see is not of the device's shape.",
                            given=f"{len(real.models)} models, {real.exits} exits, batches up to {real.max_batch}",
                            allowed=f"{len(profile.models)}, {profile.exits}, {profile.max_batch}")  # fmt: skip
    if noise is not None and not (noise.size and np.isfinite(noise).all() and (noise > 0).all()):
        raise BadValueError("Factors on latencies are positive numbers.", given=noise[:8].tolist())
    if not 0 <= decision_s < np.inf:
        raise BadValueError("A decision takes a time of 0 or more.", given=decision_s)
    model = np.concatenate([np.full(each.size, m) for m, each in enumerate(arrival_s)]).astype(np.int64)
    times = np.concatenate(arrival_s)
    order = np.argsort(times, kind="stable")
    model, times = model[order], times[order]
    finish_s, exits = np.full(times.size, np.nan), np.full(times.size, -1, np.int64)
    queues: list[list[int]] = [[] for _ in profile.models]
    listed, owners = times.tolist(), model.tolist()
    now_s, arrived, turn = 0.0, 0, 0
    while True:
        while arrived < len(listed) and listed[arrived] <= now_s:
            queues[owners[arrived]].append(arrived)
            arrived += 1
        if scheduler.drops_late:
            for m, queue in enumerate(queues):
                # Too late for the whole model, even alone.
                latest_s = now_s + profile.seconds(m, profile.exits - 1, 1) - slo_s
                queues[m] = [i for i in queue if listed[i] >= latest_s - 1e-12]
        if not any(queues):
            if arrived == len(listed):
                return EdgeRun(model=model, arrival_s=times, finish_s=finish_s, exit=exits)
            now_s = listed[arrived]
            continue
        view = Queues(now_s, slo_s, [[listed[i] for i in queue] for queue in queues])
        chosen = scheduler.choose(view, profile, turn)
        if chosen.batch == 0:
            until_s = min(chosen.until_s, listed[arrived] if arrived < len(listed) else np.inf)
            if not now_s < until_s < np.inf:
                raise WavetankError(f"{type(scheduler).__name__} waits for nothing.", given=f"until {until_s} s")
            now_s = until_s
            continue
        possible = 0 <= chosen.model < len(queues) and 0 <= chosen.exit < profile.exits
        if not possible or not 0 < chosen.batch <= min(len(queues[chosen.model]), profile.max_batch):
            raise WavetankError(f"{type(scheduler).__name__} chose a batch that does not exist.", given=chosen)
        took_s = real.seconds(chosen.model, chosen.exit, chosen.batch)
        if noise is not None:
            took_s *= float(noise[turn % noise.size])
        now_s += took_s + decision_s
        for i in queues[chosen.model][: chosen.batch]:
            finish_s[i], exits[i] = now_s, chosen.exit
        del queues[chosen.model][: chosen.batch]
        turn += 1
