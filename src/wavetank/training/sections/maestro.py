"""Maestro: sections with GPUs of their own, and samples in the order in which the critical section waits least.

An encoder that shares a pipeline's first stage holds all others up whenever a sample has images, and stands still
whenever it has none.  With GPUs of its own it works ahead, as far as the queue between both reaches; then the order of
samples decides whether the model waits.  Samples are inserted one by one, the longest first, each where the step would
end soonest; what a place costs is simulated, with the queue and with forward and backward passes on the same GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wavetank.sim.compiled import compiled
from wavetank.training.sections.flow_shop import johnson, longest_total_first
from wavetank.training.sections.interface import Batch, Ints, Plan, dealt, flow
from wavetank.training.sections.simulate import Flow, run, run_compiled


@dataclass(frozen=True, kw_only=True)
class Maestro:
    """Planner that inserts samples where the step ends soonest, and keeps the given order where that is as good."""

    def plan(self, batch: Batch) -> Plan:
        """Return sections with the encoder on GPUs of its own, and the order of each rank.

        Parameters
        ----------
        batch : Batch
        """
        plan = Plan(orders=(), queue=batch.queue)
        ranks = dealt(batch, plan)
        return replace(plan, orders=tuple(each[wavefront(flow(batch, plan, each))] for each in ranks))


def wavefront(times: Flow) -> Ints:
    """Return the order of samples in which a step ends soonest, as far as insertion finds it.

    Of places where the step ends at the same time that is taken where the critical section is done first, then the
    first.  Johnson's order is taken where it is better: with one frozen section and a queue without limit it is the
    best.  Never worse than the order in which samples are given, which is kept where it is as good.

    Parameters
    ----------
    times : Flow

    Examples
    --------
    >>> times = Flow(forward_ps=np.array([[0, 2]]), critical_ps=np.array([4, 3]), backward_ps=np.array([[0, 4]]))
    >>> wavefront(times).tolist()
    [1, 0]
    """
    given = np.arange(times.critical_ps.size)
    total = np.stack([times.forward_ps.sum(0), times.critical_ps, times.backward_ps.sum(0)], 1)
    found: Ints = _inserted(
        np.ascontiguousarray(times.forward_ps), np.ascontiguousarray(times.critical_ps),
        np.ascontiguousarray(times.backward_ps), longest_total_first(total), times.queue, times.shared,
    )  # fmt: skip
    early = johnson(total[:, :2])
    return min((given, found, early), key=lambda order: run(times, order).makespan_ps)


@compiled
def _inserted(forward, critical, backward, start, queue, shared):  # type: ignore[no-untyped-def]
    count = start.size
    order = np.zeros(count, np.int64)
    trial = np.zeros(count, np.int64)
    for size in range(count):
        new = start[size]
        for i in range(size):
            trial[i + 1] = order[i]
        trial[0] = new
        best, least, least_critical = 0, np.int64(0), np.int64(0)
        for place in range(size + 1):
            if place > 0:
                trial[place - 1], trial[place] = trial[place], new
            ends, critical_ends = run_compiled(forward, critical, backward, trial, size + 1, queue, shared)
            if place == 0 or ends < least or (ends == least and critical_ends < least_critical):
                best, least, least_critical = place, ends, critical_ends
        for i in range(size, best, -1):
            order[i] = order[i - 1]
        order[best] = new
    return order
