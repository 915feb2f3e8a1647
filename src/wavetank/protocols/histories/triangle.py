"""The impossibility triangle, walked: what a store gives up when its network parts for longer than delta.

Three pairs of coordinates cannot be had together without waiting.  The one that a simulated store can show is CAP:
while a partition lasts longer than delta, no store answers everybody, keeps one order of writes, and shows every write
within delta.  A store that keeps two of the three is a corner that can be reached; all three must never be seen.

Source: R. Landers, K. Kramer, "Light Cone Consistency", arXiv 2605.09114 v1, 2026 (the triangle); S. Gilbert, N. Lynch,
SIGACT News 33(2), 2002 (CAP).

Differs from the source:
1. The paper proves; this only looks for a run that would contradict it.
2. The side that rests on failure detection (FLP) needs runs without end and is not walked.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.check.consistency.engine import BUDGET, judge
from wavetank.check.consistency.visibility import Clocks
from wavetank.check.report import Budget
from wavetank.protocols.histories.replicas import Recorded, World
from wavetank.sim.history import Operation


@dataclass(frozen=True, kw_only=True)
class Corner:
    """What one run had of the three.

    Parameters
    ----------
    available : bool
        Every operation was answered.
    ordered : bool
        All agree on one order of writes, which respects real time.
    timely : bool
        In such an order every write was seen within delta.
    """

    available: bool
    ordered: bool
    timely: bool

    @property
    def impossible(self) -> bool:
        """Whether the run had all three."""
        return self.available and self.timely


def corner_of(run: Recorded, delta_s: float, budget: Budget = BUDGET) -> Corner:
    """Return which of the three a recorded run had.

    Parameters
    ----------
    run : Recorded
    delta_s : float
        In seconds.
    budget : Budget
    """
    clocks = Clocks(delta_s=delta_s)
    ordered = judge(run.history, "prefix-linearizable", clocks=clocks, budget=budget, prefix=False)
    timely = judge(run.history, "delta-atomic", clocks=clocks, budget=budget, prefix=False)
    return Corner(
        available=run.availability == 1.0, ordered=ordered.outcome == "holds", timely=timely.outcome == "holds"
    )


def was_tested(run: Recorded, world: World, delta_s: float) -> bool:
    """Return whether a run put the question.

    It did if, within the cut, one side wrote a key and, more than delta after that returned, the other side read it
    without having written it since: then only news from across can save the read.
    """
    begin, end = world.partition_at_s, world.partition_at_s + world.partition_s
    last = world.replicas - 1

    def alone(operation: Operation) -> bool:
        return int(operation.process.partition(".")[0]) % world.replicas == last

    writes = [operation for operation in run.history.operations if operation.action == "write"]
    reads = [operation for operation in run.history.operations if operation.action == "read"]
    for write in writes:
        if write.returned is None or write.invoked < begin:
            continue
        for read in reads:
            if read.key != write.key or alone(read) == alone(write) or read.returned is None or read.returned > end:
                continue
            own = [
                each for each in writes if each.key == read.key and alone(each) == alone(read)
                and each.invoked <= read.returned and (each.returned is None or each.returned >= write.invoked)
            ]  # fmt: skip
            if write.returned + delta_s < read.invoked and not own:
                return True
    return False
