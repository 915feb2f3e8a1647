"""Reshapes a layout around sick GPUs from the inside out: group, pipeline, replicas.

A slow GPU slows its tensor-parallel group, that its pipeline, and that all replicas.  Dropping the whole group or
replica wastes the healthy rest; one remedy alone reaches only as far as its dimension.  Here a group leaves out single
GPUs, layers move from slow to fast stages, and micro-batches from slow to fast replicas, each after the one before.
Every combination is priced with the pipeline's schedule, so that no single remedy can be better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wavetank.settings import setting
from wavetank.training.reshaping.interface import (
    Floats,
    Job,
    Plan,
    Replica,
    View,
    even_layers,
    stage_ps,
    step_ps,
)
from wavetank.training.reshaping.partition import linear_partition, quotas
from wavetank.training.reshaping.pipeline_clock import even_time_ps

Groups = tuple[tuple[tuple[int, ...], ...], ...]
"""By replica and stage, the devices that take part."""


@dataclass(frozen=True, kw_only=True)
class Reshape:
    """Acts on the chosen dimensions; a dimension that is not chosen stays as it is for equal GPUs.

    Replicas with a group that cannot go on are left out.  ``reshape(view)`` returns the plan with the shortest step.
    """

    tensor: bool = setting(True, says="Whether groups leave out single GPUs")
    pipeline: bool = setting(True, says="Whether layers move between stages, alike in all replicas")
    data: bool = setting(True, says="Whether micro-batches move between replicas")
    own_layers: bool = setting(False, says="Whether each replica may have a division of layers of its own")

    def reshape(self, view: View) -> Plan | None:
        """Return the plan with the shortest step; the first of equal ones.

        Parameters
        ----------
        view : View
        """
        best, best_ps = None, 0
        plans = candidates(
            view.job, view.speed, tensor=self.tensor, pipeline=self.pipeline, data=self.data, own_layers=self.own_layers
        )
        for plan in plans:
            took = step_ps(view.job, view.speed, plan)
            if best is None or took < best_ps:
                best, best_ps = plan, took
        return best


def fastest_members(job: Job, speed: Floats, group: tuple[int, ...]) -> tuple[int, ...]:
    """Return the members with which a group is fastest, the more of equal ones; none where all are dead.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    group : tuple of int
    """
    # The fastest k members are the best k: the slowest of them sets the pace.
    alive = sorted((each for each in group if speed[each] > 0), key=lambda each: (-speed[each], each))
    if not alive:
        return ()
    counts = range(len(alive), 0, -1)
    count = min(counts, key=lambda k: job.pace_ps([float(speed[each]) for each in alive[:k]]))
    return tuple(sorted(alive[:count]))


def candidates(
    job: Job, speed: Floats, *, tensor: bool, pipeline: bool, data: bool, own_layers: bool = False
) -> Iterator[Plan]:
    """Yield the plans that the chosen dimensions allow, those that change least first.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    tensor, pipeline, data, own_layers : bool
        As for :class:`Reshape`.
    """
    for groups in _group_choices(job, speed, tensor):
        able = [place for place, each in enumerate(groups) if all(each)]
        # One replica after another is left out, the slowest first.
        paces = {place: max(_paces(job, speed, groups[place])) for place in able}
        able.sort(key=lambda place: (paces[place], place))
        for count in range(len(able), 0, -1):
            chosen = [groups[place] for place in sorted(able[:count])]
            for layers in _layer_choices(job, speed, chosen, pipeline=pipeline, data=data):
                replicas = tuple(Replica(each, layers) for each in chosen)
                yield from _quota_choices(job, speed, replicas, data)
            if pipeline and own_layers:
                divided = [_own_layers(job, speed, each) for each in chosen]
                if all(divided):
                    replicas = tuple(Replica(each, layers) for each, layers in zip(chosen, divided, strict=True))
                    yield from _quota_choices(job, speed, replicas, data)


def _group_choices(job: Job, speed: Floats, tensor: bool) -> list[Groups]:
    whole = tuple(tuple(job.group(replica, stage) for stage in range(job.stages)) for replica in range(job.replicas))
    alive = tuple(
        tuple(group if all(speed[each] > 0 for each in group) else () for group in replica) for replica in whole
    )
    if not tensor:
        return [alive]
    found = [alive]
    living = tuple(tuple(tuple(each for each in group if speed[each] > 0) for group in replica) for replica in whole)
    fastest = tuple(tuple(fastest_members(job, speed, group) for group in replica) for replica in whole)
    for each in (fastest, living):
        if each not in found:
            found.append(each)
    return found


def _paces(job: Job, speed: Floats, groups: tuple[tuple[int, ...], ...]) -> list[int]:
    return [job.pace_ps([float(speed[each]) for each in group]) for group in groups]


def _layer_choices(
    job: Job, speed: Floats, chosen: list[tuple[tuple[int, ...], ...]], *, pipeline: bool, data: bool
) -> Iterator[tuple[int, ...]]:
    most = [min(job.fits(len(groups[stage])) for groups in chosen) for stage in range(job.stages)]
    even = even_layers(job.layers, job.stages)
    if all(count <= limit for count, limit in zip(even, most, strict=True)):
        yield even
    if not pipeline:
        return
    paces = [_paces(job, speed, groups) for groups in chosen]
    # By the slowest replica of each stage; or by one replica, where the others may have fewer micro-batches.
    wanted = [[int(each) for each in np.array(paces).max(axis=0)], *(paces if data else ())]
    found = {even}
    for pace in wanted:
        moved = linear_partition([1] * job.layers, pace, most)
        if moved and moved not in found:
            found.add(moved)
            yield moved


def _own_layers(job: Job, speed: Floats, groups: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return linear_partition([1] * job.layers, _paces(job, speed, groups), [job.fits(len(group)) for group in groups])


def _quota_choices(job: Job, speed: Floats, replicas: tuple[Replica, ...], data: bool) -> Iterator[Plan]:
    even = even_layers(job.microbatches, len(replicas))
    yield Plan(replicas, even)
    if data:
        moved = best_quotas(job, speed, replicas)
        if moved != even:
            yield Plan(replicas, moved)


def best_quotas(job: Job, speed: Floats, replicas: tuple[Replica, ...]) -> tuple[int, ...]:
    """Return micro-batches by replica, so that the last pipeline ends as early as it can.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    replicas : tuple of Replica
    """
    times = [stage_ps(job, speed, replica) for replica in replicas]
    return quotas(job.microbatches, [lambda n, time=time: even_time_ps(time, n, job.send_ps) for time in times])  # type: ignore[misc]
