"""Reshapes a layout around sick GPUs from the inside out: group, pipeline, replicas.

A slow GPU slows its tensor-parallel group, that its pipeline, and that all replicas.  Dropping the whole group or
replica wastes the healthy rest; one remedy alone reaches only as far as its dimension.  Here a group leaves out single
GPUs, layers move from slow to fast stages, and micro-batches from slow to fast replicas, each after the one before.
Plans are priced with the pipeline's schedule: all of a small job, and of a large one those that are best for some
shares of micro-batches, from which layers then move one by one for as long as that pays.  What a single remedy finds is
among the starts, so that none can be better.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
from wavetank.training.reshaping.partition import linear_partition, quotas, unit_partition
from wavetank.training.reshaping.pipeline_clock import even_time_ps, moved_times

Groups = tuple[tuple[int, ...], ...]
"""By stage, the devices of a replica that take part."""

Option = tuple[tuple[int, ...], int]
"""Members of a group, and what they take for a layer and micro-batch, ps."""

# Of a small job, whose best plan is looked for among all.
_FEW_DIVISIONS, _FEW_REPLICAS = 200, 4
# Of others: divisions that are priced, kinds of replicas whose shares are varied, how often and by how much, and plans
# from which layers are moved one by one.
_PRICED, _VARIED, _ROUNDS, _STARTS = 6, 8, 2, 2
_FACTORS = tuple(float(each) for each in np.geomspace(0.4, 2.5, 23))


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
        return _reshaped(self, view.job, tuple(view.speed.tolist()))


@functools.lru_cache(maxsize=256)
def _reshaped(rule: Reshape, job: Job, speeds: tuple[float, ...]) -> Plan | None:
    speed = np.array(speeds)
    plans = candidates(
        job, speed, tensor=rule.tensor, pipeline=rule.pipeline, data=rule.data, own_layers=rule.own_layers
    )
    # Of each division of layers the best plan.
    by_layers: dict[tuple[tuple[int, ...], ...], tuple[int, Plan]] = {}
    for plan in plans:
        took_ps, key = step_ps(job, speed, plan), tuple(each.layers for each in plan.replicas)
        if key not in by_layers or took_ps < by_layers[key][0]:
            by_layers[key] = took_ps, plan
    found = [plan for _, plan in sorted(by_layers.values(), key=lambda pair: pair[0])[:_STARTS]]
    # What fewer remedies find is a start, too, so that more are never worse.
    for fewer in _fewer(rule):
        plan_of_fewer = _reshaped(fewer, job, speeds)
        found += [] if plan_of_fewer is None else [plan_of_fewer]
    if rule.pipeline:
        found = [settled(job, speed, each, data=rule.data, own_layers=rule.own_layers) for each in found]
    return min(found, key=lambda plan: step_ps(job, speed, plan), default=None)


def _fewer(rule: Reshape) -> list[Reshape]:
    """Rules with less to choose from: divisions alike in all replicas, or one remedy of several."""
    if rule.own_layers:
        return [replace(rule, own_layers=False)]
    remedies = [("tensor", rule.tensor), ("pipeline", rule.pipeline), ("data", rule.data)]
    chosen = [name for name, whether in remedies if whether]
    nothing = Reshape(tensor=False, pipeline=False, data=False)
    return [replace(nothing, **{name: True}) for name in chosen] if len(chosen) > 1 else []


def settled(job: Job, speed: Floats, plan: Plan, *, data: bool, own_layers: bool) -> Plan:
    """Return a plan that is not shorter if one more layer moves from one stage to another.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    plan : Plan
    data : bool
        Whether micro-batches move, too.
    own_layers : bool
        Whether replicas may have divisions of their own; if not, layers move in all of them alike.
    """
    took_ps = step_ps(job, speed, plan)
    while True:
        tried = list(_one_layer_away(job, speed, plan))
        if own_layers:
            rows = zip(plan.replicas, plan.quota, strict=True)
            tried.append(plan._replace(replicas=tuple(_shorter(job, speed, *each) for each in rows)))
        if data:
            tried += [each._replace(quota=best_quotas(job, speed, each.replicas)) for each in tried]
        best = min(tried, key=lambda each: step_ps(job, speed, each), default=plan)
        best_ps = step_ps(job, speed, best)
        if best_ps >= took_ps:
            return plan
        plan, took_ps = best, best_ps


def _one_layer_away(job: Job, speed: Floats, plan: Plan) -> Iterator[Plan]:
    """Yield the best plans in which a layer has moved between two stages of all replicas, if all are divided alike."""
    if len({each.layers for each in plan.replicas}) > 1:
        return
    times = _moved_times(job, speed, plan.replicas, plan.quota)
    order = [place for place in np.argsort(times, axis=None, kind="stable") if times.flat[place] >= 0]
    for giver, taker in (divmod(int(place), len(times)) for place in order[:_PRICED]):
        yield plan._replace(replicas=tuple(_moved(each, giver, taker) for each in plan.replicas))


def _shorter(job: Job, speed: Floats, replica: Replica, quota: int) -> Replica:
    """Return a pipeline that is not shorter if one more of its layers moves."""
    least = even_time_ps(stage_ps(job, speed, replica), quota, job.send_ps)
    while quota:
        times = _moved_times(job, speed, (replica,), (quota,))
        able = np.where(times >= 0, times, np.iinfo(np.int64).max)
        if able.min() >= least:
            break
        giver, taker = divmod(int(able.argmin()), len(able))
        replica, least = _moved(replica, giver, taker), int(able.min())
    return replica


def _moved(replica: Replica, giver: int, taker: int) -> Replica:
    layers = list(replica.layers)
    layers[giver] -= 1
    layers[taker] += 1
    return replica._replace(layers=tuple(layers))


def _moved_times(job: Job, speed: Floats, replicas: tuple[Replica, ...], quota: tuple[int, ...]) -> NDArray[np.int64]:
    paces = [[job.pace_ps([float(speed[each]) for each in group]) for group in one.groups] for one in replicas]
    most = [[job.fits(len(group)) for group in one.groups] for one in replicas]
    layers = [one.layers for one in replicas]
    # Of replicas that are alike, the one with most micro-batches ends last.
    quotas_of: dict[tuple[tuple[int, ...], ...], int] = {}
    for row, count in zip(zip(map(tuple, paces), layers, map(tuple, most), strict=True), quota, strict=True):
        quotas_of[row] = max(count, quotas_of.get(row, 0))
    rows = (np.array(each, np.int64) for each in (*zip(*quotas_of, strict=True), tuple(quotas_of.values())))
    found: NDArray[np.int64] = moved_times(*rows, job.send_ps)
    return found


def candidates(
    job: Job, speed: Floats, *, tensor: bool, pipeline: bool, data: bool, own_layers: bool = False
) -> Iterator[Plan]:
    """Yield the plans that the chosen dimensions allow, those that change least first.

    For a small job every division of layers and every choice of replicas is among them, so that the best plan is.  Else
    divisions are those that are best for some shares of micro-batches (:func:`wanted_divisions`), and replicas are left
    out one after another, the slowest first.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    tensor, pipeline, data, own_layers : bool
        As for :class:`Reshape`.
    """
    options = [
        [group_options(job, speed, job.group(replica, stage), tensor=tensor) for stage in range(job.stages)]
        for replica in range(job.replicas)
    ]
    able = [place for place, stages in enumerate(options) if all(stages)]
    few = not pipeline or math.comb(job.layers - 1, job.stages - 1) <= _FEW_DIVISIONS
    for chosen in _choices(options, able, every=few and len(able) <= _FEW_REPLICAS):
        mine = [options[place] for place in chosen]
        for layers in _layer_choices(job, mine, pipeline=pipeline, data=data):
            for groups in _group_choices(mine, job, layers):
                replicas = tuple(Replica(each, layers) for each in groups)
                yield from _quota_choices(job, speed, replicas, data)
        if pipeline and own_layers:
            for which in (-1, 0):
                whose = [tuple(those[which] for those in stages) for stages in mine]
                divided = [_own_layers(job, stages) for stages in whose]
                if all(divided):
                    replicas = tuple(
                        Replica(tuple(members for members, _ in stages), layers)
                        for stages, layers in zip(whose, divided, strict=True)
                    )
                    yield from _quota_choices(job, speed, replicas, data)


def group_options(job: Job, speed: Floats, group: tuple[int, ...], *, tensor: bool = True) -> list[Option]:
    """Return the members with which a group may go on: as many as live first, then fewer, each time faster.

    Fewer members have less memory, and are no option unless they are faster.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    group : tuple of int
    tensor : bool
        Whether single GPUs may be left out; if not, a group with a dead one has no option.
    """
    # The fastest k members are the best k: the slowest of them sets the pace.
    alive = sorted((each for each in group if speed[each] > 0), key=lambda each: (-speed[each], each))
    if not tensor and len(alive) < len(group):
        return []
    found: list[Option] = []
    for count in range(len(alive), 0 if tensor else len(alive) - 1, -1):
        pace = job.pace_ps([float(speed[each]) for each in alive[:count]])
        if not found or pace < found[-1][1]:
            found.append((tuple(sorted(alive[:count])), pace))
    return found


def _pace(option: Option) -> int:
    return option[1]


def _choices(options: list[list[list[Option]]], able: list[int], *, every: bool) -> Iterator[list[int]]:
    """Replicas that take part: all of them, then without the slowest and so on; or every choice of them."""
    if every:
        for count in range(len(able), 0, -1):
            yield from map(list, itertools.combinations(able, count))
        return
    slowest = {place: max(min(map(_pace, those)) for those in options[place]) for place in able}
    order = sorted(able, key=lambda place: (slowest[place], place))
    for count in range(len(order), 0, -1):
        yield sorted(order[:count])


def _layer_choices(
    job: Job, mine: list[list[list[Option]]], *, pipeline: bool, data: bool
) -> Iterator[tuple[int, ...]]:
    most = np.array([
        min(job.fits(max(len(members) for members, _ in stages[stage])) for stages in mine)
        for stage in range(job.stages)
    ], np.int64)  # fmt: skip
    even = even_layers(job.layers, job.stages)
    if all(count <= limit for count, limit in zip(even, most, strict=True)):
        yield even
    if not pipeline:
        return
    if math.comb(job.layers - 1, job.stages - 1) <= _FEW_DIVISIONS:
        for cuts in itertools.combinations(range(1, job.layers), job.stages - 1):
            layers = tuple(b - a for a, b in itertools.pairwise((0, *cuts, job.layers)))
            if layers != even and all(count <= limit for count, limit in zip(layers, most, strict=True)):
                yield layers
        return
    found = {even}
    for which in (-1, 0):
        paces = np.array([[those[which][1] for those in stages] for stages in mine], np.float64)
        for layers in wanted_divisions(job.layers, paces, most, data):
            if layers not in found:
                found.add(layers)
                yield layers


def wanted_divisions(layers: int, paces: Floats, most: NDArray[np.int64], data: bool) -> list[tuple[int, ...]]:
    """Return divisions of layers, the best of them first if micro-batches could be divided at will.

    With given shares of micro-batches the step is as long as the slowest stage, whose pace is the largest of
    ``share * pace`` over replicas: an exact partition gives the division.  Shares are then varied, one kind of replica
    after another, around those that are best for the best division so far.

    Parameters
    ----------
    layers : int
    paces : float64 array (replicas, stages)
        Time for a layer.
    most : int64 array (stages,)
        Layers that fit.
    data : bool
        Whether shares of micro-batches may differ.
    """
    kinds, counts = np.unique(paces, axis=0, return_counts=True)
    found: dict[tuple[int, ...], float] = {}

    def add(shares: Floats) -> None:
        divided = unit_partition(layers, (shares[:, None] * kinds).max(axis=0), most)
        if divided.size:
            slowest = (divided * kinds).max(axis=1)
            found[tuple(divided.tolist())] = 1 / float((counts / slowest).sum()) if data else float(slowest.max())

    add(np.ones(len(kinds)))
    if data and found and len(kinds) > 1:
        for each in np.eye(len(kinds)):
            add(np.maximum(each, 1e-9))
        for _ in range(_ROUNDS):
            best = np.array(min(found, key=found.__getitem__))
            shares = 1 / (best * kinds).max(axis=1)
            for kind in np.argsort(-kinds.max(axis=1))[:_VARIED]:
                for factor in _FACTORS:
                    varied = shares.copy()
                    varied[kind] *= factor
                    add(varied)
    return sorted(found, key=found.__getitem__)[:_PRICED]


def _group_choices(mine: list[list[list[Option]]], job: Job, layers: tuple[int, ...]) -> Iterator[list[Groups]]:
    """For each replica the fastest groups that hold their layers; then with fewer layers on a GPU, too.

    Gradients take as long to sum as the most layers on a GPU.
    """
    shares = {count / len(members) for stages in mine for those, count in zip(stages, layers, strict=True)
              for members, _ in those if count <= job.fits(len(members))}  # fmt: skip
    before: list[Groups] = []
    for most in sorted(shares, reverse=True):
        found = []
        for stages in mine:
            fit = [
                [each for each in those if count <= job.fits(len(each[0])) and count / len(each[0]) <= most]
                for those, count in zip(stages, layers, strict=True)
            ]
            if not all(fit):
                return
            found.append(tuple(min(those, key=_pace)[0] for those in fit))
        if found != before:
            yield found
        before = found


def _own_layers(job: Job, stages: tuple[Option, ...]) -> tuple[int, ...]:
    most = [job.fits(len(members)) for members, _ in stages]
    return linear_partition([1] * job.layers, [pace for _, pace in stages], most)


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
