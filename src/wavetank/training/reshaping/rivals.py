"""What else is done around sick GPUs: one dimension alone, other pipelines, other routes, a restart."""

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
    move_s,
    step_ps,
)
from wavetank.training.reshaping.partition import linear_partition
from wavetank.training.reshaping.reshape import Reshape, best_quotas, settled


@dataclass(frozen=True, kw_only=True)
class BestSingleDimension:
    """Tries each of the three remedies alone, and takes the best for each change."""

    def reshape(self, view: View) -> Plan | None:
        """Return the shortest of three plans.

        Parameters
        ----------
        view : View
        """
        alone = (
            Reshape(tensor=True, pipeline=False, data=False),
            Reshape(tensor=False, pipeline=True, data=False),
            Reshape(tensor=False, pipeline=False, data=True),
        )
        return _shortest(view, (plan for each in alone if (plan := each.reshape(view)) is not None))


@dataclass(frozen=True, kw_only=True)
class Reroute:
    """The rule of ReCycle: micro-batches of a lost group go to the groups of the same stage in other replicas.

    A slow group is kept, or treated as lost, whichever gives the shorter step.  What peers do more fits into their idle
    time without a loss.
    """

    def reshape(self, view: View) -> Plan | None:
        """Return a plan with empty groups where others step in.

        Parameters
        ----------
        view : View
        """
        return _shortest(view, self._plans(view.job, view.speed))

    def _plans(self, job: Job, speed: Floats) -> Iterator[Plan]:
        layers = even_layers(job.layers, job.stages)
        limits = sorted({float(each) for each in speed if each > 0})
        for limit in limits:
            replicas = []
            for replica in range(job.replicas):
                whole = [job.group(replica, stage) for stage in range(job.stages)]
                kept = tuple(group if min(speed[each] for each in group) >= limit else () for group in whole)
                replicas.append(Replica(kept, layers))
            if all(any(replica.groups[stage] for replica in replicas) for stage in range(job.stages)):
                yield Plan(tuple(replicas), even_layers(job.microbatches, job.replicas))


@dataclass(frozen=True, kw_only=True)
class PipelineTemplates:
    """The rule of Oobleck: pipelines of different lengths are made of the groups that are left.

    Groups with a dead GPU are dropped, slow ones dropped or kept.  Any number of pipelines is tried; layers and
    micro-batches follow the speeds in each, and each has its own division of layers.
    """

    node: int = setting(0, unit="GPUs", says="GPUs that are dropped together; 0: those of a group", low=0, high=1024)

    def reshape(self, view: View) -> Plan | None:
        """Return the shortest plan made of whole groups.

        Parameters
        ----------
        view : View
        """
        found = _shortest(view, self._plans(view.job, view.speed))
        return None if found is None else settled(view.job, view.speed, found, data=True, own_layers=True)

    def _plans(self, job: Job, speed: Floats) -> Iterator[Plan]:
        for homes in _whole_groups(job, speed, self.node):
            for count in range(1, job.replicas + 1):
                replicas = _pipelines(job, speed, homes, count)
                if replicas:
                    yield Plan(replicas, best_quotas(job, speed, replicas))


@dataclass(frozen=True, kw_only=True)
class RestartAnew:
    """Ends the job and starts it from its checkpoint, as equal pipelines of the groups that are well.

    Any length of pipelines is tried, and as many of them as at first or fewer: that layout is taken to be the best for
    a healthy job.  While nothing is dead, the job is restarted only if what it gains until the next change is worth the
    restart.
    """

    always: bool = setting(False, says="Whether it restarts at every change, whether that pays or not")

    def reshape(self, view: View) -> Plan | None:
        """Return the plan after a restart, or the one in force.

        Parameters
        ----------
        view : View
        """
        job, speed = view.job, view.speed
        found = _shortest(view, self._plans(job, speed))
        if found is None:
            return None
        able = all(speed[each] > 0 for replica in view.plan.replicas for group in replica.groups for each in group)
        if able and not self.always:
            now, then = step_ps(job, speed, view.plan), step_ps(job, speed, found)
            cost_s = view.restart_s + move_s(job, view.plan, found)
            # Steps in the time until the next change: quiet_s / now without it, (quiet_s - cost_s) / then with it.
            if now <= then or view.quiet_s * (now - then) <= cost_s * now:
                return view.plan
        return found._replace(restart=True)

    def _plans(self, job: Job, speed: Floats) -> Iterator[Plan]:
        for homes in _whole_groups(job, speed):
            groups = [group for home in homes for group in home]
            for stages in range(1, min(len(groups), job.layers) + 1):
                layers = even_layers(job.layers, stages)
                if max(layers) > job.fits(job.tensor):
                    continue
                count = min(len(groups) // stages, job.replicas)
                replicas = tuple(
                    Replica(tuple(groups[place * stages : (place + 1) * stages]), layers) for place in range(count)
                )
                yield Plan(replicas, even_layers(job.microbatches, count))


def _shortest(view: View, plans: Iterator[Plan]) -> Plan | None:
    return min(plans, key=lambda plan: step_ps(view.job, view.speed, plan), default=None)


def _whole_groups(job: Job, speed: Floats, node: int = 0) -> Iterator[list[list[tuple[int, ...]]]]:
    """Yield the groups without a dead GPU by replica: all of them, then without the slowest, and so on.

    In a node that is dropped as a whole, all GPUs count as its slowest one.
    """
    if node:
        lowest = np.minimum.reduceat(speed, np.arange(0, speed.size, node))
        speed = np.repeat(lowest, node)[: speed.size]
    for limit in sorted({float(each) for each in speed if each > 0}):
        yield [
            [
                job.group(replica, stage)
                for stage in range(job.stages)
                if min(speed[each] for each in job.group(replica, stage)) >= limit
            ]
            for replica in range(job.replicas)
        ]


def _pipelines(job: Job, speed: Floats, homes: list[list[tuple[int, ...]]], count: int) -> tuple[Replica, ...]:
    """Return pipelines out of whole groups, as long as they can be and most groups where they were; empty for none."""
    total = sum(map(len, homes))
    # The replicas that have most groups stay; the others give theirs away.
    order = sorted(range(len(homes)), key=lambda place: (-len(homes[place]), place))
    lengths = even_layers(min(total, count * job.layers), count)
    kept = [list(homes[place]) for place in order[:count]]
    spare = [group for place in order[count:] for group in homes[place]]
    for home, length in zip(kept, lengths, strict=True):
        while len(home) > length:
            spare.append(home.pop())
    for home, length in zip(kept, lengths, strict=True):
        while len(home) < length and spare:
            home.append(spare.pop(0))
    found = []
    for home in kept:
        pace = [job.pace_ps([float(speed[each]) for each in group]) for group in home]
        layers = linear_partition([1] * job.layers, pace, [job.fits(len(group)) for group in home]) if home else ()
        if not layers:
            return ()
        found.append(Replica(tuple(home), layers))
    return tuple(found)
