"""The job, the GPUs that are left of it, and the plan that says who computes what.

A plan is valid for a job whatever made it, and what it takes is computed here, by the same rules for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.platforms.links import Link
from wavetank.training.reshaping.pipeline_clock import PS, even_time_ps

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job with tensor, pipeline and data parallelism, and what its operations take.

    Device ``(replica * stages + stage) * tensor + t`` is member t of a group at the start.

    Parameters
    ----------
    tensor, stages, replicas : int
        GPUs of a group, groups of a replica, and replicas, at the start.
    layers : int
        Of the model, all alike.
    heads : int
        Of attention: what a group divides among its members, the largest part decides.
    microbatches : int
        Of a step, over all replicas.
    layer_ps : int
        Forward and backward pass of one layer for one micro-batch on one healthy GPU, ps.
    activation_bytes : float
        That a layer sums over its group four times for a micro-batch, and that a boundary between stages sends.
    layer_bytes : float
        Parameters of a layer, 2 bytes each.
    link, network : Link
        Between the members of a group, and between groups.
    room : float
        By which the layers' share on a GPU may grow until its memory is full.
    regroup_s : float
        In which new groups are formed, whatever changes, s.
    """

    tensor: int
    stages: int
    replicas: int
    layers: int
    heads: int
    microbatches: int
    layer_ps: int
    activation_bytes: float
    layer_bytes: float
    link: Link
    network: Link
    room: float = 2.0
    regroup_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("tensor", "stages", "replicas", "layers", "heads", "microbatches", "layer_ps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadValueError("A job is made of whole numbers.", given=value, allowed="1 or more", where=name)
        if self.layers < self.stages or self.heads < self.tensor or self.microbatches < self.replicas:
            raise BadValueError(
                "Every stage has a layer, every member a head, every replica a micro-batch.",
                given=f"{self.layers} layers on {self.stages} stages, {self.heads} heads on {self.tensor} GPUs, "
                f"{self.microbatches} micro-batches on {self.replicas} replicas", allowed="as many, or more",
            )  # fmt: skip
        for name, low in (("activation_bytes", 0.0), ("layer_bytes", 0.0), ("room", 1.0), ("regroup_s", 0.0)):
            if not low <= getattr(self, name) < math.inf:
                raise BadValueError("This is no figure of a job.", given=getattr(self, name),
                                    allowed=f"{low:g} or more, finite", where=name)  # fmt: skip

    @property
    def devices(self) -> int:
        """How many GPUs the job has."""
        return self.tensor * self.stages * self.replicas

    @property
    def send_ps(self) -> int:
        """What a boundary between stages takes, ps."""
        return round((self.network.latency_s + self.activation_bytes / self.network.bytes_per_s) * PS)

    def group(self, replica: int, stage: int) -> tuple[int, ...]:
        """Return the devices of a group at the start."""
        first = (replica * self.stages + stage) * self.tensor
        return tuple(range(first, first + self.tensor))

    def fits(self, members: int) -> int:
        """Return how many layers fit into a group."""
        return math.floor(self.room * math.ceil(self.layers / self.stages) / self.tensor * members + 1e-9)

    def pace_ps(self, speeds: Sequence[float]) -> int:
        """Return what a group takes for one layer and micro-batch, ps: that of its slowest member.

        Parameters
        ----------
        speeds : sequence of float
            Of its members, above 0.
        """
        share = math.ceil(self.heads / len(speeds)) / self.heads
        # A GPU computes slower, and what it sends is not.
        summing_s = 4 * self.link.all_reduce_s(len(speeds), self.activation_bytes) if len(speeds) > 1 else 0.0
        return round(share * self.layer_ps / min(speeds) + summing_s * PS)


class Replica(NamedTuple):
    """A pipeline of a plan.

    Attributes
    ----------
    groups : tuple of tuple of int
        Devices of each stage; an empty one is a stage whose micro-batches go to the same stage of other replicas.
    layers : tuple of int
        Of each stage.
    """

    groups: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]


class Plan(NamedTuple):
    """Who computes what.

    Attributes
    ----------
    replicas : tuple of Replica
    quota : tuple of int
        Micro-batches of each replica.
    restart : bool
        Whether the job stops for it and begins again from a checkpoint.
    """

    replicas: tuple[Replica, ...]
    quota: tuple[int, ...]
    restart: bool = False


class View(NamedTuple):
    """What a reshaper decides from.

    Attributes
    ----------
    job : Job
    speed : float64 array (devices,)
        1 of a healthy device, 0 of a dead one.
    plan : Plan
        That is in force.
    quiet_s : float
        Expected time until the next change, s.
    restart_s : float
        What a restart costs, work that was not saved included, s.
    """

    job: Job
    speed: Floats
    plan: Plan
    quiet_s: float = math.inf
    restart_s: float = 0.0


class Reshaper(Protocol):
    """Answers a change of the devices' speeds with a plan."""

    def reshape(self, view: View) -> Plan | None:
        """Return the plan, or None where the job cannot go on."""
        ...


def healthy_plan(job: Job) -> Plan:
    """Return the plan of a job whose devices are all well.

    Parameters
    ----------
    job : Job
    """
    layers = even_layers(job.layers, job.stages)
    replicas = tuple(
        Replica(tuple(job.group(replica, stage) for stage in range(job.stages)), layers)
        for replica in range(job.replicas)
    )
    return Plan(replicas, even_layers(job.microbatches, job.replicas))


def even_layers(count: int, parts: int) -> tuple[int, ...]:
    """Return whole parts that differ by one at most, the larger ones first.

    Parameters
    ----------
    count, parts : int
    """
    least, more = divmod(count, parts)
    return tuple(least + (place < more) for place in range(parts))


def stage_ps(job: Job, speed: Floats, replica: Replica) -> tuple[int, ...]:
    """Return what a micro-batch takes on each stage, ps; of a stage without a group, 0.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    replica : Replica
    """
    return tuple(
        layers * job.pace_ps([float(speed[each]) for each in group]) if group else 0
        for group, layers in zip(replica.groups, replica.layers, strict=True)
    )


def check_plan(job: Job, speed: Floats, plan: Plan) -> None:
    """Refuse a plan that does not compute the step, or not on devices that live and have the memory.

    Parameters
    ----------
    job, speed, plan
        As for :func:`step_ps`.

    Raises
    ------
    BadValueError
        It names what is wrong.
    """

    def refuse(given: object, allowed: str) -> BadValueError:
        return BadValueError("The plan cannot be carried out.", given=given, allowed=allowed)

    used = [each for replica in plan.replicas for group in replica.groups for each in group]
    if any(not 0 <= each < job.devices for each in used):
        raise refuse("a device that there is not", f"0 to {job.devices - 1}")
    if len(used) != len(set(used)) or any(speed[each] <= 0 for each in used):
        raise refuse("a device that is used twice, or dead", "living devices, once each")
    if len(plan.quota) != len(plan.replicas) or sum(plan.quota) != job.microbatches or min(plan.quota, default=-1) < 0:
        raise refuse(f"quotas {plan.quota}", f"{len(plan.replicas)} quotas that sum to {job.microbatches}")
    for replica in plan.replicas:
        if sum(replica.layers) != job.layers or len(replica.layers) != len(replica.groups) or min(replica.layers) < 1:
            raise refuse(f"layers {replica.layers}", f"1 or more on each stage, {job.layers} in all")
        for group, layers in zip(replica.groups, replica.layers, strict=True):
            if group and layers > job.fits(len(group)):
                raise refuse(f"{layers} layers on {len(group)} GPUs", f"at most {job.fits(len(group))}")
    working = [replica for replica, quota in zip(plan.replicas, plan.quota, strict=True) if quota]
    if any(not all(replica.groups) for replica in working):
        alike = len({replica.layers for replica in working}) == 1
        if not alike or not all(any(groups) for groups in zip(*(each.groups for each in working), strict=True)):
            raise refuse("a stage that no group computes", "a group for every stage, or one elsewhere with its layers")


def step_ps(job: Job, speed: Floats, plan: Plan) -> int:
    """Return what a step takes, ps: the slowest pipeline, and the sum of gradients.

    Where a stage of a replica has no group, groups of the same stage elsewhere compute its micro-batches, too.  What
    they do more fits into their idle time without a loss, and each starts and ends with the pipeline's own fill and
    drain: a bound from below, in favour of who reroutes.

    Parameters
    ----------
    job : Job
    speed : float64 array (devices,)
    plan : Plan
    """
    pairs = [(replica, quota) for replica, quota in zip(plan.replicas, plan.quota, strict=True) if quota]
    times = [stage_ps(job, speed, replica) for replica, _ in pairs]
    if any(not group for replica, _ in pairs for group in replica.groups):
        slowest = _rerouted_ps(job, pairs, times)
    else:
        slowest = max(even_time_ps(time, quota, job.send_ps)
                      for time, (_, quota) in zip(times, pairs, strict=True))  # fmt: skip
    most = max(
        layers / len(group) for replica, _ in pairs
        for group, layers in zip(replica.groups, replica.layers, strict=True) if group
    )  # fmt: skip
    # Gradients in 4 bytes, parameters in 2.
    reduce_s = job.network.all_reduce_s(len(pairs), 2 * job.layer_bytes * most) if len(pairs) > 1 else 0.0
    return slowest + round(reduce_s * PS)


def _rerouted_ps(job: Job, pairs: list[tuple[Replica, int]], times: list[tuple[int, ...]]) -> int:
    """The least time for a step in which micro-batches go through any living group of each stage."""
    stages = len(times[0])
    fastest = [min((time[stage] for time in times if time[stage]), default=0) for stage in range(stages)]
    total = sum(quota for _, quota in pairs)
    found = 0
    for stage in range(stages):
        paces = [time[stage] for time in times if time[stage]]
        # Micro-batches go where they are done first.
        counts = [0] * len(paces)
        for _ in range(total):
            place = min(range(len(paces)), key=lambda at: (counts[at] + 1) * paces[at])
            counts[place] += 1
        busiest = max(count * pace for count, pace in zip(counts, paces, strict=True))
        ahead = sum(fastest[:stage]) + 2 * stage * job.send_ps
        found = max(found, busiest + ahead)
    whole = [(time, quota) for time, (_, quota) in zip(times, pairs, strict=True) if all(time)]
    return max([found, *(even_time_ps(time, quota, job.send_ps) for time, quota in whole)])


def move_s(job: Job, before: Plan, after: Plan) -> float:
    """Return how long a change of plan stops the job: new groups, and the state that devices have not held so far, s.

    Each device fetches what it lacks of its layers from others that hold it, all at once over the network.

    Parameters
    ----------
    job : Job
    before, after : Plan
    """
    held, wanted = _held(before), _held(after)
    most = 0.0
    for device, (first, last, members) in wanted.items():
        old_first, old_last, old_members = held.get(device, (0, 0, 1))
        kept = max(0, min(last, old_last) - max(first, old_first))
        new = (last - first - kept) / members + kept * max(0.0, 1 / members - 1 / old_members)
        most = max(most, new)
    # Parameters and gradients in 2 bytes, master copy and two moments in 4.
    return job.regroup_s + 8 * job.layer_bytes * most / job.network.bytes_per_s


def _held(plan: Plan) -> dict[int, tuple[int, int, int]]:
    """By device the first layer, the one after the last, and the members of its group."""
    found = {}
    for replica in plan.replicas:
        first = 0
        for group, layers in zip(replica.groups, replica.layers, strict=True):
            found.update(dict.fromkeys(group, (first, first + layers, len(group))))
            first += layers
    return found
