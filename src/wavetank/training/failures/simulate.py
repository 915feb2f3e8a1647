"""A training job that fails and recovers, simulated from failure to failure.

Between two failures steps are all alike, so that they are jumped over; at a failure the policy is asked, and its answer
costs what the job says.  All tokens, GPU hours and losses of all policies are counted here.

Rules that decide comparisons:

1. A death during the computation is noticed when the gradients are summed, by survivors that finish theirs first; a
   launcher that restarts the job notices it at once.  Both take ``detect_s``.
2. A replica dies as a whole, with all of its GPUs.  What it had computed in the step is lost.
3. Another death during a recovery begins the recovery again.  During a restart, too, where failures come in time.
4. Steps count when they are done, until a restart takes them back; what a run has not finished at its end is nothing.
5. GPU hours of live replicas run through waits, checkpoints and restarts, and include spares that compute nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavetank.errors import BadValueError
from wavetank.training.failures.failure_times import StepFailures, TimedFailures
from wavetank.training.failures.interface import (
    ANSWERS,
    COMPUTE_ALL,
    COMPUTE_LOST,
    FROM_CHECKPOINT,
    LEAVE_OUT,
    REPLACE,
    SKIP_STEP,
    Job,
    Loss,
    Plan,
    Recovery,
)


@dataclass(frozen=True)
class TrainingRun:
    """What a job did.

    Parameters
    ----------
    trained, wanted : int
        Microbatches whose gradients went into parameters that are still there, and how many the same steps should have.
    computed : int
        Microbatches that were computed, those that were lost or done again included.
    dropped : int
        Microbatches that were due and will never be trained.
    steps : int
        Steps that are still there.
    failures : int
        Deaths of replicas in use.
    replicas : int
        In use at the end.
    time_s : float
    recovering_s : float
        Of it from deaths until the job was where it had been.
    live_gpu_s, healthy_gpu_s, owned_gpu_s : float
        GPU seconds of replicas in use and spares; of all GPUs that are not broken; of all GPUs that the job began with.
    tokens : int
        Of a microbatch.
    """

    trained: int
    wanted: int
    computed: int
    dropped: int
    steps: int
    failures: int
    replicas: int
    time_s: float
    recovering_s: float
    live_gpu_s: float
    healthy_gpu_s: float
    owned_gpu_s: float
    tokens: int

    def per_gpu_hour(self, gpu_s: float) -> float:
        """Return trained tokens per GPU hour; 0 without any."""
        return self.trained * self.tokens / gpu_s * 3600 if gpu_s else 0.0


def simulate(
    job: Job, failures: StepFailures | TimedFailures, recovery: Recovery, plan: Plan, *, broken_gpus: int | None = None
) -> TrainingRun:
    """Run a job until its failures, or its time, are over.

    Parameters
    ----------
    job : Job
    failures : StepFailures or TimedFailures
        With steps, the run ends when the last failure is dealt with.
    recovery : Recovery
    plan : Plan
    broken_gpus : int, optional
        GPUs of a replica that a failure breaks; all by default.

    Raises
    ------
    BadValueError
        If the plan or an answer is none.
    """
    if plan.checkpoint_every < 0 or plan.spares < 0:
        raise BadValueError("A plan counts steps and spares.", given=plan, allowed="0 or more")
    course = _Course(job, failures, recovery, plan)
    course.run()
    return course.result(job.gpus if broken_gpus is None else broken_gpus)


class _Course:
    """The state of a run.  ``due`` microbatches belong to a step now; ``since`` are not in a checkpoint yet."""

    def __init__(self, job: Job, failures: StepFailures | TimedFailures, recovery: Recovery, plan: Plan) -> None:
        self.job, self.recovery, self.plan = job, recovery, plan
        self.steps_fail = failures if isinstance(failures, StepFailures) else None
        self.timed = failures.first(job.replicas + plan.spares) if isinstance(failures, TimedFailures) else None
        self.end_s = math.inf if self.timed is None else self.timed.horizon_s
        self.share = job.quota(job.microbatches, job.replicas)
        self.active = list(range(job.replicas))
        self.spares = list(range(job.replicas, job.replicas + plan.spares))
        # Machines that are not in use, and from when on they could be.
        self.away: dict[int, float] = {}
        self.next = 0
        self.deaths: list[tuple[float, float]] = []
        self.now_s = self.live_gpu_s = self.recovering_s = 0.0
        self.trained = self.wanted = self.since = self.since_wanted = 0
        self.computed = self.dropped = self.steps = self.since_steps = self.failures = 0

    # -- what holds between failures -----------------------------------------------------------------------------------

    @property
    def due(self) -> int:
        """Return the microbatches of a step."""
        replicas = len(self.active)
        return self.job.microbatches if self.plan.keeps_batch else min(self.job.microbatches, self.share * replicas)

    def step_s(self) -> float:
        return self.job.step_s(self.due, len(self.active)) + self.job.snapshot_s * self.plan.snapshots

    def advance(self, seconds: float) -> None:
        # What lies after the end of the run does not count.
        seconds = min(seconds, self.end_s - self.now_s)
        self.now_s += seconds
        self.live_gpu_s += seconds * (len(self.active) + len(self.spares)) * self.job.gpus

    def did(self, count: int, steps: int = 1) -> None:
        """Note steps that were done, with the microbatches that went in."""
        self.since += count
        self.since_wanted += steps * self.job.microbatches
        self.since_steps += steps

    def saved(self) -> None:
        self.trained += self.since
        self.wanted += self.since_wanted
        self.steps += self.since_steps
        self.since = self.since_wanted = self.since_steps = 0

    def quiet(self, until_s: float, steps: float, begun_by_s: float = math.inf) -> bool:
        """Do whole steps and checkpoints until one would pass the time, or begin too late, or the steps are done.

        Returns whether it is a step that the time falls into, and not a checkpoint.
        """
        every, checkpoint_s = self.plan.checkpoint_every, self.job.checkpoint_s
        step_s, due = self.step_s(), self.due
        while True:
            # No room at all where replicas died while others joined.
            room_s, early_s = until_s - self.now_s, begun_by_s - self.now_s
            if every and self.since_steps >= every:
                if room_s < checkpoint_s or early_s <= 0:
                    return False
                self.advance(checkpoint_s)
                self.saved()
                continue
            if steps <= 0 or early_s <= 0:
                return True
            if every and not self.since_steps:
                # Whole rounds of steps and a checkpoint, at once.
                round_s = every * step_s + checkpoint_s
                rounds = int(min(min(room_s, early_s) / round_s, steps / every, 1e15))
                if rounds > 0:
                    self.advance(rounds * round_s)
                    self.did(rounds * every * due, rounds * every)
                    self.computed += rounds * every * due
                    self.saved()
                    steps -= rounds * every
                    continue
            begun = math.ceil(min(early_s / step_s, 1e15))
            count = int(min(room_s / step_s, begun, steps, every - self.since_steps if every else 1e15))
            if count <= 0:
                return True
            self.advance(count * step_s)
            self.did(count * due, count)
            self.computed += count * due
            steps -= count

    # -- failures ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if self.steps_fail is not None:
            for place in self.steps_fail.places:
                self.quiet(math.inf, self.steps_fail.every - 1)
                self.advance(self.step_s() - (1 - place) * self.job.reduce_s(len(self.active)))
                self.recover(self.active[-1], in_step=True, unfinished_s=0.0)
                if not self.active:
                    return
            return
        while self.now_s < self.end_s and self.active:
            time_s, machine = self.event()
            back_s = self.next_return()
            in_step = self.quiet(min(time_s, self.end_s), math.inf, back_s)
            if back_s <= self.now_s:
                self.join()
            elif time_s >= self.end_s:
                self.advance(self.end_s - self.now_s)
            elif machine not in self.active:
                self.note()
            else:
                begun_s = max(0.0, time_s - self.now_s)
                self.advance(begun_s)
                computing_s = self.step_s() - self.job.reduce_s(len(self.active))
                self.recover(machine, in_step=in_step, unfinished_s=max(0.0, computing_s - begun_s) * in_step)

    def event(self) -> tuple[float, int]:
        """Return time and machine of the next failure; the end of time where there is none."""
        if self.timed is None or self.next >= len(self.timed.time_s):
            return math.inf, -1
        return float(self.timed.time_s[self.next]), int(self.timed.machine[self.next])

    def note(self) -> None:
        """Take down the failure that comes next: its machine is away."""
        if self.timed is None:
            return
        time_s, machine = self.event()
        self.away[machine] = max(float(self.timed.back_s[self.next]), self.away.get(machine, 0.0))
        before = len(self.spares)
        if machine in self.spares:
            self.spares.remove(machine)
        self.next += 1
        self.refill(max(self.now_s, time_s))
        # A spare may fail in the middle of a step that is still to come; until then it is held.
        self.live_gpu_s += max(0.0, time_s - self.now_s) * (before - len(self.spares)) * self.job.gpus

    def refill(self, time_s: float) -> None:
        """Make machines spares that are repaired at that time."""
        for machine in self.ready(time_s):
            if len(self.spares) < self.plan.spares:
                self.spares.append(machine)
                del self.away[machine]

    def ready(self, time_s: float) -> list[int]:
        return sorted(machine for machine, back_s in self.away.items() if back_s <= time_s)

    def next_return(self) -> float:
        """Return when a repaired machine may join; infinity where none does."""
        if not self.plan.rejoins or len(self.active) >= self.job.replicas:
            return math.inf
        return min(self.away.values(), default=math.inf)

    def join(self) -> None:
        """Let what was repaired take part again, with the state of another replica."""
        self.active += self.ready(self.now_s)[: self.job.replicas - len(self.active)]
        for machine in self.active:
            self.away.pop(machine, None)
        self.advance(self.job.regroup_s + self.job.copy_s)

    def strike(self, machine: int) -> None:
        self.failures += 1
        self.active.remove(machine)
        if self.timed is None:
            self.away[machine] = math.inf
            self.deaths.append((self.now_s, math.inf))
        else:
            self.note()

    def recover(self, machine: int, *, in_step: bool, unfinished_s: float) -> None:
        """Do what the policy says until the job goes on, however many more die meanwhile."""
        begun_s, due, replicas = self.now_s, self.due, len(self.active)
        held, before = self.job.quota(due, replicas), self.failures
        while True:
            self.strike(machine)
            answer = self.asked()
            seconds = self.cost_s(answer, due, held, in_step=in_step, unfinished_s=unfinished_s)
            ends_s = self.now_s + seconds
            again = self.struck_within(seconds)
            if again is None:
                break
            machine, unfinished_s = again, 0.0
        self.recovering_s += self.now_s - begun_s
        if answer == FROM_CHECKPOINT:
            # Also where the time is up before the restart is over.
            self.since = self.since_wanted = self.since_steps = 0
            self.computed += due * in_step
        if ends_s > self.end_s:
            return
        if answer == FROM_CHECKPOINT:
            self.restart()
        elif in_step:
            self.finish(answer, due, min(due, held * (self.failures - before)))

    def asked(self) -> str:
        if not self.active:
            return FROM_CHECKPOINT
        answer = self.recovery.answer(Loss(len(self.active), len(self.spares), self.since_steps))
        if answer not in ANSWERS or (answer == REPLACE and not self.spares):
            raise BadValueError(
                "Survivors cannot do what the policy says.",
                given=f"{answer!r} with {len(self.spares)} spares",
                allowed=ANSWERS,
                where=type(self.recovery).__qualname__,
            )
        if answer == REPLACE:
            self.active.append(self.spares.pop(0))
        return answer

    def cost_s(self, answer: str, due: int, held: int, *, in_step: bool, unfinished_s: float) -> float:
        """Return how long a recovery takes from the death on."""
        job, replicas = self.job, len(self.active)
        if answer == FROM_CHECKPOINT:
            return job.detect_s + job.restart_s
        seconds = unfinished_s + job.detect_s + job.regroup_s + job.copy_s * (answer == REPLACE)
        if not in_step or answer == SKIP_STEP:
            return seconds
        wanted = job.quota(due, replicas)
        more = {COMPUTE_LOST: max(0, wanted - held), COMPUTE_ALL: wanted, REPLACE: wanted, LEAVE_OUT: 0}[answer]
        seconds += more * job.microbatch_s + job.reduce_s(replicas)
        return seconds + job.snapshot_s * self.plan.snapshots

    def struck_within(self, seconds: float) -> int | None:
        """Let time pass; return the machine of a replica that dies meanwhile, and stop there."""
        stop_s = self.now_s + seconds
        while True:
            time_s, machine = self.event()
            if time_s > min(stop_s, self.end_s):
                self.advance(stop_s - self.now_s)
                return None
            self.advance(max(0.0, time_s - self.now_s))
            if machine in self.active:
                return machine
            self.note()

    def finish(self, answer: str, due: int, lost: int) -> None:
        """Count the step in which replicas died."""
        self.computed += due
        if answer == SKIP_STEP:
            self.dropped += due
        elif answer == LEAVE_OUT:
            self.dropped += lost
            self.did(due - lost)
        else:
            self.computed += lost if answer == COMPUTE_LOST else due
            self.did(due)

    def restart(self) -> None:
        """Go back to the checkpoint, with all machines that can be used."""
        if not self.active and not self.spares and self.plan.checkpoint_every:
            self.wait_for_repair()
        for machine in [*self.ready(self.now_s), *self.spares]:
            if len(self.active) < self.job.replicas:
                self.active.append(machine)
                self.away.pop(machine, None)
        self.spares = [machine for machine in self.spares if machine not in self.active]
        self.refill(self.now_s)

    def wait_for_repair(self) -> None:
        """Let time pass until a machine can be used, if one ever can; what fails meanwhile stays away for longer."""
        while True:
            back_s, (time_s, _) = min(self.away.values(), default=math.inf), self.event()
            if back_s == math.inf:
                return
            if time_s >= min(back_s, self.end_s):
                self.advance(max(0.0, back_s - self.now_s))
                return
            self.advance(max(0.0, time_s - self.now_s))
            self.note()

    def result(self, broken_gpus: int) -> TrainingRun:
        self.saved()
        machines = self.job.replicas + self.plan.spares
        owned_s = self.now_s * machines
        broken_s = sum(min(back_s, self.now_s) - time_s for time_s, back_s in self.absences() if time_s < self.now_s)
        return TrainingRun(
            trained=self.trained,
            wanted=self.wanted,
            computed=self.computed,
            dropped=self.dropped,
            steps=self.steps,
            failures=self.failures,
            replicas=len(self.active),
            time_s=self.now_s,
            recovering_s=self.recovering_s,
            live_gpu_s=self.live_gpu_s,
            healthy_gpu_s=owned_s * self.job.gpus - broken_s * broken_gpus,
            owned_gpu_s=owned_s * self.job.gpus,
            tokens=self.job.tokens,
        )

    def absences(self) -> list[tuple[float, float]]:
        """Return when machines were away, whether they were in use or not; overlaps of one machine are joined."""
        if self.timed is None:
            return self.deaths
        found: list[tuple[float, float]] = []
        until: dict[int, float] = {}
        for time_s, machine, back_s in zip(*(each.tolist() for each in self.timed[:3]), strict=True):
            if back_s > until.get(machine, -1.0):
                found.append((max(time_s, until.get(machine, 0.0)), back_s))
                until[machine] = back_s
        return found
