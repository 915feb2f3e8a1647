"""A compute stream, a copy stream and a link: when the blocks of a model run whose weights come from the host.

1. Blocks run one after the other, step after step; a block starts when its weights are there.  The first block of a
   step is copied while the last ones of the step before run.
2. Blocks are copied in the order in which they run.  The copy of a block begins when a landing slot is free; a slot is
   free again when its block has ended.
3. Before each chunk the system's rule is asked; a chunk that has begun goes on.
4. A collective is pending from the time at which this device comes to it, and moves bytes from the time at which the
   last device has.  Where it takes the link of the copies, both share it.

Time is counted in whole picoseconds; equal arguments give equal times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.offload.interface import COLLECTIVE, COMPUTE, Case, Offload, Phase, Plan
from wavetank.sim.links import CopyView, SharedLink

_COPY, _MOVE = "copy", "collective"


@dataclass(frozen=True, kw_only=True)
class Times:
    """What a run of several steps took.

    Parameters
    ----------
    end_ps : tuple of int
        Ends of the steps.
    longest_wait_ps : int
        By how much a collective took longer than on a free link, at most.
    stalled_ps : int
        How long the compute stream waited for weights, all steps.
    copied_bytes : int
        Over the link, for all blocks that ran: copied, or read in place.
    peak_bytes : int
        Weights that stay, landing slots, and what else is on the device.
    """

    end_ps: tuple[int, ...]
    longest_wait_ps: int
    stalled_ps: int
    copied_bytes: int
    peak_bytes: int

    @property
    def step_ps(self) -> int:
        """Time of a step once the first is over, rounded down."""
        steps = len(self.end_ps) - 1
        return (self.end_ps[-1] - self.end_ps[0]) // steps if steps else self.end_ps[0]


def simulate_offload(
    system: Offload,
    case: Case,
    *,
    steps: int = 3,
    late_ps: Sequence[int] = (0,),
    weight: int = 1,
) -> Times:
    """Return what steps take.

    Parameters
    ----------
    system : Offload
    case : Case
    steps : int
        1 or more; the first one begins without any weights but those that stay.
    late_ps : sequence of int
        How long after this device the last one comes to each collective, ps; used again from the front at its end.
    weight : int
        Of a collective beside a copy of weight 1 on the link.

    Raises
    ------
    BadValueError
        For a plan that does not fit the case, no steps, and negative times.
    """
    plan = system.plan(case)
    _check(plan, case, steps, late_ps)
    return _Run(system, plan, case, steps * case.layers, _Peers(late_ps, weight)).run()


class _Peers(NamedTuple):
    """The other devices of collectives."""

    late_ps: Sequence[int]
    weight: int


def _check(plan: Plan, case: Case, steps: int, late_ps: Sequence[int]) -> None:
    if len(plan.resident) != case.layers or not all(0 <= each <= case.weight_bytes for each in plan.resident):
        raise BadValueError("What stays is a part of every block.", given=plan.resident,
                            allowed=f"{case.layers} numbers from 0 to {case.weight_bytes} bytes")  # fmt: skip
    if plan.chunk_bytes < 1 or plan.slots < 1:
        raise BadValueError("Weights that are copied need chunks and a slot.", given=(plan.chunk_bytes, plan.slots),
                            allowed="1 or more of both")  # fmt: skip
    if steps < 1 or not late_ps or min(late_ps) < 0:
        raise BadValueError("There are steps, and nobody is early.", given=(steps, tuple(late_ps)))


class _Copies:
    """The copy stream: one block's copy at a time, one chunk of it at a time, while landing slots last."""

    def __init__(self, system: Offload, plan: Plan, case: Case, jobs: int) -> None:
        self.system, self.plan, self.case, self.jobs = system, plan, case, jobs
        self.last = jobs + case.layers
        self.missing = [0 if plan.in_place else case.weight_bytes - each for each in plan.resident]
        # Visits below this one have their weights, in the order in which they run.  The last step copies for one more.
        self.there = 0
        self.lacks, self.under_way = 0, 0
        self.taken: set[int] = set()
        self.copied = 0
        self.ask_again_ps: int | None = None

    def of(self, job: int) -> int:
        """Bytes that a visit of a block lacks."""
        return self.missing[job % self.case.layers]

    def next_chunk(self, now_ps: int, pending: int, needed_ps: Callable[[int], int]) -> int:
        """Return the bytes of the chunk that begins now, 0 for none."""
        self.ask_again_ps = None
        while self.there < self.last and not self.of(self.there):
            self.there += 1
        if self.under_way or self.there == self.last:
            return 0
        if self.there not in self.taken:
            if len(self.taken) >= self.plan.slots:
                return 0
            self.taken.add(self.there)
            self.lacks = self.of(self.there)
        left_ps = self.case.link.chunked_ps(self.lacks, self.plan.chunk_bytes)
        view = CopyView(pending=pending, left_ps=left_ps, due_ps=max(0, needed_ps(self.there) - now_ps))
        if self.system.waits(view):
            if view.slack_ps > 0:
                self.ask_again_ps = now_ps + view.slack_ps
            return 0
        self.under_way = min(self.plan.chunk_bytes, self.lacks)
        return self.under_way

    def ended(self) -> None:
        """Count the chunk that was under way."""
        self.lacks -= self.under_way
        if self.there < self.jobs:
            self.copied += self.under_way
        self.under_way = 0
        if not self.lacks:
            self.there += 1


class _Run:
    """Both streams and the link; a job is one visit of a block."""

    def __init__(self, system: Offload, plan: Plan, case: Case, jobs: int, peers: _Peers) -> None:
        self.plan, self.case, self.jobs, self.peers = plan, case, jobs, peers
        self.copies = _Copies(system, plan, case, jobs)
        self.link = SharedLink()
        self.now = 0
        self.job, self.phase = 0, -1  # phase -1: the block has not begun
        self.until: int | None = None  # end of a phase, or of waiting for others; None where the link says it
        self.idle_since = self.came_at = 0
        self.gathers = self.moves = False  # whether others have yet to come to a collective; whether it takes the link
        self.collectives = self.longest_wait = self.stalled = self.read_in_place = 0
        self.ends: list[int] = []
        self.rest_ps = [sum(each.ps for each in case.phases[i:]) for i in range(len(case.phases) + 1)]

    def run(self) -> Times:
        while self.job < self.jobs:
            if self.compute() or self.copy():
                continue
            times = (self.until, self.copies.ask_again_ps, self.link.next_end_ps())
            self.now = min((each for each in times if each is not None and each >= self.now), default=-1)
            if self.now < 0:
                raise WavetankError("Nothing goes on: the rule lets a copy wait that a block needs.")
            for name in self.link.advance(self.now):
                if name == _COPY:
                    self.copies.ended()
                else:
                    self.end_collective()
        return Times(
            end_ps=tuple(self.ends), longest_wait_ps=self.longest_wait, stalled_ps=self.stalled,
            copied_bytes=self.copies.copied + self.read_in_place, peak_bytes=self.peak_bytes(),
        )  # fmt: skip

    def peak_bytes(self) -> int:
        lacking = [each for each in self.copies.missing if each]
        slots = 0 if self.plan.in_place else min(self.plan.slots, len(lacking)) * max(lacking, default=0)
        return sum(self.plan.resident) + slots + self.case.beside_bytes

    def needed_ps(self, job: int) -> int:
        """When a block is expected to begin, if no other waits for weights."""
        if self.phase < 0:
            rest = self.rest_ps[0] if self.job < job else 0
        else:
            # Of the phase that runs, only what is computed has an end that is known.
            until = self.until if self.current.kind == COMPUTE else None
            running = self.current.ps if until is None else until - self.now
            rest = running + self.rest_ps[self.phase + 1]
        return self.now + rest + max(0, job - self.job - 1) * self.rest_ps[0]

    @property
    def current(self) -> Phase:
        return self.case.phases[self.phase]

    def end_collective(self) -> None:
        self.longest_wait = max(self.longest_wait, self.now - self.came_at - self.current.ps)
        self.moves, self.until = False, self.now

    def copy(self) -> bool:
        """Begin a chunk; return whether there was one to begin."""
        pending = int(self.case.contended and (self.gathers or self.moves))
        chunk = self.copies.next_chunk(self.now, pending, self.needed_ps)
        if chunk:
            self.link.start(self.now, _COPY, self.case.link.work_ps(chunk))
        return chunk > 0

    def compute(self) -> bool:
        """Take the compute stream one step further; return whether there was one."""
        if self.phase < 0:
            if self.copies.there <= self.job and self.copies.of(self.job):
                return False
            self.stalled += self.now - self.idle_since
            self.begin(0)
        elif self.moves or self.until is None or self.now < self.until:
            return False
        elif self.gathers:
            self.others_came()
        elif self.phase + 1 < len(self.case.phases):
            self.begin(self.phase + 1)
        else:
            self.end_block()
        return True

    def others_came(self) -> None:
        """Move the bytes of a collective."""
        self.came_at, self.gathers = self.now, False
        if self.case.contended:
            self.moves, self.until = True, None
            self.link.start(self.now, _MOVE, self.current.ps, weight=self.peers.weight)
        else:
            self.until = self.now + self.current.ps

    def end_block(self) -> None:
        self.copies.taken.discard(self.job)
        self.job += 1
        self.phase, self.until, self.idle_since = -1, None, self.now
        if self.job % self.case.layers == 0:
            self.ends.append(self.now)

    def begin(self, phase: int) -> None:
        self.phase = phase
        if self.current.kind == COLLECTIVE:
            late = self.peers.late_ps[self.collectives % len(self.peers.late_ps)]
            self.collectives += 1
            self.gathers, self.until = True, self.now + late
            return
        took = self.current.ps
        if self.plan.in_place:
            kept = self.plan.resident[self.job % self.case.layers]
            read = self.current.weight_bytes * (self.case.weight_bytes - kept) // max(self.case.weight_bytes, 1)
            took = max(took, self.case.link.work_ps(read))
            self.read_in_place += read
        self.until = self.now + took
