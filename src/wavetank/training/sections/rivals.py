"""Orders and layouts that the wavefront is held against, on the same sections and the same queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from wavetank.errors import BadValueError, GaveUpError, missing_extra
from wavetank.settings import setting
from wavetank.training.sections.flow_shop import johnson, longest_total_first, neh
from wavetank.training.sections.interface import Batch, Ints, Plan, dealt, flow, step
from wavetank.training.sections.maestro import wavefront
from wavetank.training.sections.simulate import UNBOUNDED, Flow


def as_given(times: Flow) -> Ints:
    """Return samples as they come.

    Parameters
    ----------
    times : Flow
    """
    return np.arange(times.critical_ps.size)


def static_rule(times: Flow) -> Ints:
    """Return half of the texts, then images by ascending encoder time, then the other texts.

    Parameters
    ----------
    times : Flow

    Examples
    --------
    >>> work = np.array([[9, 0, 3, 0, 0]])
    >>> static_rule(Flow(forward_ps=work, critical_ps=np.ones(5, np.int64), backward_ps=2 * work)).tolist()
    [1, 2, 0, 3, 4]
    """
    encoder = times.forward_ps.sum(0)
    texts, images = np.flatnonzero(encoder == 0), np.flatnonzero(encoder > 0)
    half = texts.size // 2
    images = images[np.argsort(encoder[images], kind="stable")]
    return np.concatenate([texts[:half], images, texts[half:]])


def round_robin(times: Flow) -> Ints:
    """Return a text and a sample with images in turn, as long as there are both.

    Parameters
    ----------
    times : Flow
    """
    encoder = times.forward_ps.sum(0)
    kinds = (encoder > 0).astype(np.int64)
    turn = np.zeros(kinds.size, np.int64)
    for kind in (0, 1):
        turn[kinds == kind] = np.arange(int((kinds == kind).sum()))
    found: Ints = np.lexsort((kinds, turn))
    return found


def longest_first_order(times: Flow) -> Ints:
    """Return samples by their time in all sections, the longest first (LPT).

    Parameters
    ----------
    times : Flow
    """
    return longest_total_first(_three(times))


def johnson_order(times: Flow) -> Ints:
    """Return Johnson's order of encoder forward and model, as if nothing came after.

    Parameters
    ----------
    times : Flow
    """
    return johnson(_three(times)[:, :2])


def neh_order(times: Flow) -> Ints:
    """Return NEH's order of the flow shop whose encoder has its GPUs twice, and unlimited queues.

    Parameters
    ----------
    times : Flow
    """
    return neh(_three(times))


def _three(times: Flow) -> Ints:
    return np.stack([times.forward_ps.sum(0), times.critical_ps, times.backward_ps.sum(0)], 1)


ORDERS: dict[str, Callable[[Flow], Ints]] = {
    "given": as_given,
    "static": static_rule,
    "round-robin": round_robin,
    "longest": longest_first_order,
    "johnson": johnson_order,
    "neh": neh_order,
}
"""Rules for an order, by name."""


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """Planner that gives the encoder GPUs of its own and sorts samples by a rule."""

    rule: str = setting("given", says="Rule for the order", choices=tuple(ORDERS))
    deep: bool = setting(False, says="Whether queues between sections hold any number of samples")

    def plan(self, batch: Batch) -> Plan:
        """Return the order of each rank.

        Parameters
        ----------
        batch : Batch
        """
        plan = Plan(orders=(), queue=UNBOUNDED if self.deep else batch.queue)
        ranks = dealt(batch, plan)
        return replace(plan, orders=tuple(each[ORDERS[self.rule](flow(batch, plan, each))] for each in ranks))


@dataclass(frozen=True, kw_only=True)
class OneConfiguration:
    """Planner with the encoder in the first stage of the model's pipeline, and samples as they come."""

    replanned: bool = setting(False, says="Whether the first stage gives layers away, as many as is best for the batch")
    reordered: bool = setting(False, says="Whether samples are reordered as Maestro does")

    def plan(self, batch: Batch) -> Plan:
        """Return the plan that is best with the predicted times.

        Parameters
        ----------
        batch : Batch
        """
        plans = []
        for moved in range(batch.stage_layers + 1 if self.replanned else 1):
            # A pipeline has as many samples in flight as stages.
            plan = Plan(orders=(), layout="stage-0", moved_layers=moved, queue=batch.stages)
            orders = dealt(batch, plan)
            if self.reordered:
                orders = [each[wavefront(flow(batch, plan, each))] for each in orders]
            plans.append(replace(plan, orders=tuple(orders)))
        return min(plans, key=lambda each: step(batch, each).time_ps)


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Planner that lets a solver find the order of few samples, with unlimited queues."""

    most: int = setting(10, unit="samples", says="Samples of a rank, at most", low=1, high=14)
    solver_work: float = setting(4.0, says="Deterministic time of the solver for a rank", low=0.001, high=1e4)

    def plan(self, batch: Batch) -> Plan:
        """Return the order of the model in the best schedule.

        Parameters
        ----------
        batch : Batch

        Raises
        ------
        BadValueError
            If a rank has more samples.
        GaveUpError
            If the solver finds nothing in its time.
        MissingExtraError
            If ortools is not installed.
        """
        plan = Plan(orders=(), queue=UNBOUNDED)
        orders = []
        for samples in dealt(batch, plan):
            if samples.size > self.most:
                raise BadValueError(
                    "The solver is for few samples.", given=samples.size, allowed=f"up to {self.most} for each rank",
                    hint="set samples_per_rank",
                )  # fmt: skip
            order, _ = best_schedule(flow(batch, plan, samples), self.solver_work)
            orders.append(samples[order])
        return replace(plan, orders=tuple(orders))


def best_schedule(times: Flow, solver_work: float = 4.0) -> tuple[Ints, int]:
    """Return the model's order in the best schedule that a solver finds, and a lower bound of any schedule's makespan.

    Sections may take samples in different orders, and queues hold any number of them.

    Parameters
    ----------
    times : Flow
    solver_work : float
        Deterministic time that the solver may take.

    Returns
    -------
    tuple of int64 array and int
        The bound is in picoseconds, rounded down to a 10,000th of the sum of times.

    Raises
    ------
    GaveUpError
        If the solver finds nothing in its time.
    MissingExtraError
        If ortools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise missing_extra("ortools", "training", needed_for="The best schedule") from None
    rows = [*times.forward_ps, times.critical_ps, *times.backward_ps]
    unit = max(1, sum(int(each.sum()) for each in rows) // 10_000)
    horizon = sum(int((-(-each // unit)).sum()) for each in rows)
    model = cp_model.CpModel()
    makespan = model.new_int_var(0, horizon, "makespan")

    def interval(length: int) -> tuple[cp_model.IntVar, cp_model.IntervalVar]:
        start = model.new_int_var(0, horizon, "")
        model.add(makespan >= start + length)
        return start, model.new_fixed_size_interval_var(start, length, "")

    samples = range(times.critical_ps.size)
    critical = [interval(int(times.critical_ps[i]) // unit) for i in samples]
    model.add_no_overlap([each for _, each in critical])
    for forward, backward in zip(times.forward_ps, times.backward_ps, strict=True):
        first, second = [], []
        for i in samples:
            begin, end = int(forward[i]) // unit, int(backward[i]) // unit
            if forward[i]:
                start, box = interval(begin)
                first.append(box)
                model.add(critical[i][0] >= start + begin)
            if backward[i]:
                start, box = interval(end)
                second.append(box)
                model.add(start >= critical[i][0] + int(times.critical_ps[i]) // unit)
        for boxes in [first + second] if times.shared else [first, second]:
            model.add_no_overlap(boxes)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = solver_work
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise GaveUpError("The solver found no schedule.", given=solver.status_name(status))
    starts = np.array([solver.value(start) for start, _ in critical], np.int64)
    return np.lexsort((np.arange(starts.size), starts)), int(solver.best_objective_bound) * unit
