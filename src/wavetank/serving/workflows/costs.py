"""What a stage takes on devices in a given state: the accounting that the simulator and every scheduler share.

On one device a stage waits for its parents' outputs, loads its model if it is not resident, computes what of its prompt
is not cached, and writes its answer.  On several, each computes the prefix by itself and a share of the rest, the
shares such that all end at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wavetank.serving.workflows.caches import Caches
from wavetank.serving.workflows.interface import Application, FloatArray, Platform, Stage, StageKey, View


@dataclass(frozen=True, kw_only=True)
class Times:
    """The parts of every stage's time, as a scheduler expects them.

    Parameters
    ----------
    application : Application
    platform : Platform

    Attributes
    ----------
    allowed : array of bool, shape (stages, devices)
    load_s, prefix_s, rest_s : array of float64, shape (stages, devices)
        Loading the model, computing the whole prefix, and everything else; infinite where not allowed.
    rank_s : array of float64, shape (stages,)
        Upward rank: the stage's mean time and the longest of what comes after it, mean transfers included.
    """

    application: Application
    platform: Platform

    @cached_property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """Whether each device may compute each stage."""
        found = np.zeros((len(self.application.stages), len(self.platform.devices)), bool)
        for row, stage in zip(found, self.application.stages, strict=True):
            row[list(self.platform.may(stage))] = True
        return found

    @cached_property
    def load_s(self) -> FloatArray:
        """Time to load each stage's model."""
        sizes = np.array([self.platform.model_bytes[each.model] for each in self.application.stages])
        rates = np.array([each.load_bytes_per_s for each in self.platform.devices])
        return np.where(self.allowed, sizes[:, None] / rates, math.inf)

    @cached_property
    def prefix_s(self) -> FloatArray:
        """Time to compute each stage's whole prefix."""
        return self._parts_s[0]

    @cached_property
    def rest_s(self) -> FloatArray:
        """Time for everything else: the rest of the prompt, and the answer as it is expected."""
        return self._parts_s[1]

    @cached_property
    def run_s(self) -> FloatArray:
        """Time without loading and with an empty cache."""
        return self.prefix_s + self.rest_s

    @cached_property
    def mean_s(self) -> FloatArray:
        """Time without loading and with an empty cache, mean over the devices that may compute the stage."""
        return means(self.run_s)

    @cached_property
    def kinds(self) -> dict[tuple[str, bytes], npt.NDArray[np.int64]]:
        """Stages by model and allowed devices: they take alike times."""
        found: dict[tuple[str, bytes], list[int]] = {}
        for task, (stage, may) in enumerate(zip(self.application.stages, self.allowed, strict=True)):
            found.setdefault((stage.model, may.tobytes()), []).append(task)
        return {kind: np.array(tasks) for kind, tasks in found.items()}

    @cached_property
    def rank_s(self) -> FloatArray:
        """Upward rank of each stage."""
        workflow, far = self.application.workflow, 1 - 1 / len(self.platform.devices)
        edge_s = [[far * size / self.platform.network_bytes_per_s for size in sizes] for sizes in workflow.edge_bytes]
        return upward_s(self.mean_s, workflow.parents, edge_s, workflow.order)

    @cached_property
    def _parts_s(self) -> FloatArray:
        found = np.full((2, *self.allowed.shape), math.inf)
        for i, stage in enumerate(self.application.stages):
            for j in np.flatnonzero(self.allowed[i]).tolist():
                found[:, i, j] = self.platform.devices[j].parts_s(stage, stage.expected_tokens)
        return found


def means(run_s: FloatArray) -> FloatArray:
    """Return the mean time of each task over the devices that may run it.

    Parameters
    ----------
    run_s : array of float64, shape (tasks, devices)
        Infinite where a task may not run.
    """
    return np.array([row[np.isfinite(row)].mean() for row in run_s])


def upward_s(
    mean_s: FloatArray, parents: Sequence[Sequence[int]], edge_s: Sequence[Sequence[float]], order: Sequence[int]
) -> FloatArray:
    """Return each task's mean time and the longest way after it.

    Parameters
    ----------
    mean_s : array of float64, shape (tasks,)
    parents : sequence of sequence of int
    edge_s : sequence of sequence of float
        What each parent's output takes.
    order : sequence of int
        Parents before children.
    """
    found = np.zeros(len(order))
    for task in reversed(order):
        found[task] += mean_s[task]
        for parent, edge in zip(parents[task], edge_s[task], strict=True):
            found[parent] = max(found[parent], found[task] + edge)
    return found


class Split:
    """How a stage is shared between devices, and when it is expected to end.

    Parameters
    ----------
    fixed_s : sequence of float
        For each device when it could begin its share: after waiting, loading and computing the prefix.
    rest_s : sequence of float
        Time of the whole rest of the stage on that device.
    merge_s : float
        What every further shard takes at the end.

    Attributes
    ----------
    shares : tuple of float
        They sum to 1; one that is not above 0 says that the device is of no use.
    end_s : float
        Infinite where a device is of no use.
    """

    __slots__ = ("end_s", "shares")

    def __init__(self, fixed_s: Sequence[float], rest_s: Sequence[float], merge_s: float) -> None:
        if len(fixed_s) == 1:
            self.shares: tuple[float, ...] = (1.0,)
            self.end_s = fixed_s[0] + rest_s[0]
            return
        together = (1 + sum(f / r for f, r in zip(fixed_s, rest_s, strict=True))) / sum(1 / r for r in rest_s)
        self.shares = tuple((together - f) / r for f, r in zip(fixed_s, rest_s, strict=True))
        useful = min(self.shares) > 0
        self.end_s = together + merge_s * (len(fixed_s) - 1) if useful else math.inf


def arrives_s(view: View, platform: Platform, key: StageKey, device: int) -> float:
    """Return when the outputs of a stage's parents are on a device, if they start to move now.

    Parameters
    ----------
    view : View
        In which all parents are placed; those that are not move from nowhere.
    platform : Platform
    key : tuple of int
    device : int
    """
    number, task = key
    workflow = view.applications[number].workflow
    slowest = 0.0
    for parent, size in zip(workflow.parents[task], workflow.edge_bytes[task], strict=True):
        source = view.placed.get((number, parent))
        if source is not None:
            slowest = max(slowest, platform.transfer_s(size, source, device))
    return view.now_s + slowest


def prefix_left_s(times: Times, task: int, device: int, caches: Caches) -> float:
    """Return how long a device takes for what it lacks of a stage's prefix.

    Parameters
    ----------
    times : Times
    task, device : int
    caches : Caches
        The device's.
    """
    stage = times.application.stages[task]
    cached = caches.cached_tokens(stage)
    whole = float(times.prefix_s[task, device])
    return whole * (1 - cached / stage.prefix_tokens) if cached else whole


def begins_s(view: View, times: Times, key: StageKey, device: int, caches: Caches) -> float:
    """Return when a device could begin the part of a stage that can be shared: it waited, loaded and has the prefix.

    Parameters
    ----------
    view : View
    times : Times
        Of the stage's application.
    key : tuple of int
    device : int
    caches : Caches
        The device's.
    """
    stage: Stage = times.application.stages[key[1]]
    start = max(view.devices[device].ready_s, arrives_s(view, times.platform, key, device))
    load = 0.0 if stage.model in caches.models else float(times.load_s[key[1], device])
    return start + load + prefix_left_s(times, key[1], device, caches)


def ends_s(
    view: View, times: Times, key: StageKey, may: Sequence[int], caches: Sequence[Caches], *, shards: bool = True
) -> dict[tuple[int, ...], float]:
    """Return when a stage would end on each device, and shared between the best two, three and so on.

    Parameters
    ----------
    view : View
    times : Times
    key : tuple of int
    may : sequence of int
        Devices to choose from.
    caches : sequence of Caches
        Of all devices of the platform.
    shards : bool
        Whether it may be shared at all.
    """
    begins = {each: begins_s(view, times, key, each, caches[each]) for each in may}
    rest = {each: float(times.rest_s[key[1], each]) for each in may}
    found: dict[tuple[int, ...], float] = {(each,): begins[each] + rest[each] for each in may}
    best = sorted(may, key=lambda each: (found[each,], each))
    most = times.application.stages[key[1]].most_shards if shards else 1
    for size in range(2, min(most, len(best)) + 1):
        together = tuple(best[:size])
        split = Split([begins[each] for each in together], [rest[each] for each in together], times.platform.merge_s)
        found[together] = split.end_s
    return found


def split_over(view: View, times: Times, key: StageKey, devices: Sequence[int], caches: Sequence[Caches]) -> Split:
    """Return how a stage would be shared between devices.

    Parameters
    ----------
    view : View
    times : Times
    key : tuple of int
    devices : sequence of int
    caches : sequence of Caches
        Of all devices of the platform.
    """
    return Split(
        [begins_s(view, times, key, each, caches[each]) for each in devices],
        [float(times.rest_s[key[1], each]) for each in devices],
        times.platform.merge_s,
    )
