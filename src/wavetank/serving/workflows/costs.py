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
        return self._per_device(lambda stage, prefill, decode: stage.prefix_tokens / prefill)

    @cached_property
    def rest_s(self) -> FloatArray:
        """Time for everything else: the rest of the prompt, and the answer as it is expected."""
        return self._per_device(
            lambda stage, prefill, decode: (stage.prompt_tokens - stage.prefix_tokens) / prefill
            + stage.expected_tokens / decode
        )

    @cached_property
    def run_s(self) -> FloatArray:
        """Time without loading and with an empty cache."""
        return self.prefix_s + self.rest_s

    @cached_property
    def mean_s(self) -> FloatArray:
        """Time without loading and with an empty cache, mean over the devices that may compute the stage."""
        return np.array([row[np.isfinite(row)].mean() for row in self.run_s])

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
        workflow = self.application.workflow
        mean = self.mean_s
        far = 1 - 1 / len(self.platform.devices)
        found = np.zeros(len(workflow))
        for task in reversed(workflow.order):
            found[task] += mean[task]
            for parent, size in zip(workflow.parents[task], workflow.edge_bytes[task], strict=True):
                through = found[task] + far * size / self.platform.network_bytes_per_s
                found[parent] = max(found[parent], through)
        return found

    def _per_device(self, seconds) -> FloatArray:  # type: ignore[no-untyped-def]
        found = np.full(self.allowed.shape, math.inf)
        for i, stage in enumerate(self.application.stages):
            for j in np.flatnonzero(self.allowed[i]).tolist():
                device = self.platform.devices[j]
                found[i, j] = seconds(stage, device.prefill_per_s[stage.model], device.decode_per_s[stage.model])
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


def begins_s(
    view: View, times: Times, key: StageKey, device: int, caches: Caches
) -> float:
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


def split_over(
    view: View, times: Times, key: StageKey, devices: Sequence[int], caches: Sequence[Caches]
) -> Split:
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
