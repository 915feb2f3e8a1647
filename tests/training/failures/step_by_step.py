"""The same job as :mod:`wavetank.training.failures.simulate`, one operation after the other, with nothing jumped over.

Written from the rules alone: a list of failures, a clock, and a loop over steps.
"""

from __future__ import annotations

import math
from typing import Any

from wavetank.training.failures.interface import (
    COMPUTE_ALL,
    COMPUTE_LOST,
    FROM_CHECKPOINT,
    LEAVE_OUT,
    REPLACE,
    SKIP_STEP,
)


class OverError(Exception):
    """The time is up."""


class Walk:
    """A run by time; :meth:`books` is what was counted."""

    def __init__(self, job: Any, rows: list[tuple[float, int, float]], end_s: float, answer: Any, plan: Any) -> None:
        self.job, self.end_s, self.answer, self.plan = job, end_s, answer, plan
        self.machines = job.replicas + plan.spares
        self.queue = sorted(row for row in rows if row[1] < self.machines)
        self.all = list(self.queue)
        self.active, self.spares = list(range(job.replicas)), list(range(job.replicas, self.machines))
        self.back: dict[int, float] = {}
        self.now = self.live = self.recovering = 0.0
        self.kept: list[int] = []
        self.fresh: list[int] = []
        self.computed = self.dropped = self.deaths = 0

    def batch(self) -> int:
        if self.plan.keeps_batch:
            return self.job.microbatches
        share = math.ceil(self.job.microbatches / self.job.replicas)
        return min(self.job.microbatches, share * len(self.active))

    def tick(self, seconds: float) -> None:
        late = self.now + seconds > self.end_s
        seconds = self.end_s - self.now if late else seconds
        self.live += seconds * (len(self.active) + len(self.spares)) * self.job.gpus
        self.now += seconds
        if late:
            raise OverError

    def take(self) -> int:
        """Note the next failure: the machine is away."""
        _, machine, back_s = self.queue.pop(0)
        self.back[machine] = max(back_s, self.back.get(machine, 0.0))
        if machine in self.spares:
            self.spares.remove(machine)
        self.refill()
        return machine

    def refill(self) -> None:
        for machine in sorted(self.back):
            if self.back[machine] <= self.now and len(self.spares) < self.plan.spares:
                del self.back[machine]
                self.spares.append(machine)

    def until_struck(self, seconds: float) -> int | None:
        """Pass the time; stop at the death of a replica in use, and return its number."""
        stop = self.now + seconds
        while self.queue and self.queue[0][0] <= min(stop, self.end_s):
            time_s, machine, _ = self.queue[0]
            self.tick(max(0.0, time_s - self.now))
            if machine in self.active:
                return machine
            self.take()
        self.tick(stop - self.now)
        return None

    def go(self) -> None:
        try:
            while self.active and self.now < self.end_s:
                self.round()
        except OverError:
            pass
        self.kept += self.fresh

    def round(self) -> None:
        """Join, write a checkpoint, or do a step."""
        job = self.job
        ready = [each for each in sorted(self.back) if self.back[each] <= self.now]
        if self.plan.rejoins and ready and len(self.active) < job.replicas:
            for machine in ready[: job.replicas - len(self.active)]:
                self.active.append(machine)
                del self.back[machine]
            self.tick(job.regroup_s + job.copy_s)
            return
        if self.plan.checkpoint_every and len(self.fresh) >= self.plan.checkpoint_every:
            struck = self.until_struck(job.checkpoint_s)
            if struck is None:
                self.kept, self.fresh = self.kept + self.fresh, []
            else:
                self.recover(struck, False, 0.0)
            return
        due, size = self.batch(), len(self.active)
        fullest = math.ceil(due / size)
        snapshot_s = job.snapshot_s if self.plan.snapshots else 0.0
        reduce_s = job.reduce_s(size)
        begun = self.now
        struck = self.until_struck(fullest * job.microbatch_s + reduce_s + snapshot_s)
        if struck is None:
            self.computed += due
            self.fresh.append(due)
        else:
            computing_s = fullest * job.microbatch_s + snapshot_s
            self.recover(struck, True, max(0.0, computing_s - (self.now - begun)))

    def recover(self, struck: int | None, in_step: bool, unfinished: float) -> None:
        begun, due, lost = self.now, self.batch(), 0
        fullest = math.ceil(due / len(self.active))
        try:
            while struck is not None:
                self.active.remove(struck)
                self.take()
                self.deaths += 1
                lost += fullest
                struck = self.until_struck(self.needed(due, fullest, in_step, unfinished))
                unfinished = 0.0
        finally:
            self.recovering += self.now - begun
            if self.said == FROM_CHECKPOINT:
                # Also where the time is up before the restart is over.
                self.computed += due if in_step else 0
                self.fresh = []
        if self.said == FROM_CHECKPOINT:
            self.restart()
        elif in_step:
            lost = min(lost, due)
            self.computed += due
            if self.said == SKIP_STEP:
                self.dropped += due
            elif self.said == LEAVE_OUT:
                self.dropped += lost
                self.fresh.append(due - lost)
            else:
                self.computed += lost if self.said == COMPUTE_LOST else due
                self.fresh.append(due)

    def needed(self, due: int, fullest: int, in_step: bool, unfinished: float) -> float:
        job = self.job
        self.said = self.answer if self.active else FROM_CHECKPOINT
        if self.said == REPLACE:
            if self.spares:
                self.active.append(self.spares.pop(0))
            else:
                self.said = FROM_CHECKPOINT
        if self.said == FROM_CHECKPOINT:
            return job.detect_s + job.restart_s
        seconds = unfinished + job.detect_s + job.regroup_s + (job.copy_s if self.said == REPLACE else 0.0)
        if in_step and self.said != SKIP_STEP:
            now_fullest = math.ceil(due / len(self.active))
            if self.said == COMPUTE_LOST:
                seconds += max(0, now_fullest - fullest) * job.microbatch_s
            elif self.said in (COMPUTE_ALL, REPLACE):
                seconds += now_fullest * job.microbatch_s
            seconds += job.reduce_s(len(self.active)) + (job.snapshot_s if self.plan.snapshots else 0.0)
        return seconds

    def restart(self) -> None:
        while not self.active and not self.spares and self.plan.checkpoint_every:
            first = min(self.back.values())
            if first == math.inf:
                break
            # What fails while nobody works only stays away longer.
            if self.queue and self.queue[0][0] < min(first, self.end_s):
                self.tick(max(0.0, self.queue[0][0] - self.now))
                self.take()
                continue
            self.tick(max(0.0, first - self.now))
            break
        able = [each for each in sorted(self.back) if self.back[each] <= self.now] + self.spares
        for machine in able[: self.job.replicas - len(self.active)]:
            self.active.append(machine)
            self.back.pop(machine, None)
        self.spares = [each for each in self.spares if each not in self.active]
        self.refill()

    def healthy_s(self, broken: int) -> float:
        """Return GPU seconds, counted machine by machine."""
        total = self.now * self.machines * self.job.gpus
        for machine in range(self.machines):
            until = 0.0
            for time_s, struck, back_s in self.all:
                if struck == machine and time_s < self.now:
                    total -= max(0.0, min(back_s, self.now) - max(time_s, until)) * broken
                    until = max(until, min(back_s, self.now))
        return total

    def books(self, broken: int) -> list[float]:
        """Return what a run reports, in the order of the tests."""
        wanted = len(self.kept) * self.job.microbatches
        owned_s = self.now * self.machines * self.job.gpus
        return [len(self.kept), sum(self.kept), wanted, self.computed, self.dropped, self.deaths, len(self.active),
                self.now, self.recovering, self.live, self.healthy_s(broken), owned_s]  # fmt: skip
