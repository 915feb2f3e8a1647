"""The batch of a step, what a planner decides about it, and what the step then takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.training.sections.simulate import UNBOUNDED, Flow, check_queue, run

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LAYOUTS = ("sections", "stage-0")


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The samples of one optimiser step.

    A data-parallel rank of the critical section is a pipeline of equal stages, which takes one sample after another;
    its time of a sample is that of one stage, forward and backward.  Times of the encoder are those on the GPUs of one
    stage.

    Parameters
    ----------
    tokens : int64 array (samples,)
        Tokens that the model sees.
    forward_ps, backward_ps : int64 array (samples,)
        Encoder; 0 of samples without images.
    critical_ps : int64 array (samples,)
    ranks : int
        Data-parallel ranks.
    stages, stage_gpus, stage_layers : int
        Of the critical section, for each rank: pipeline stages, GPUs and layers of a stage.
    encoder_gpus : int
        GPUs of the encoder's section for each rank, where it has one.
    queue : int
        Samples that may wait between sections, unless a plan says otherwise.

    Raises
    ------
    BadValueError
        If arrays differ in shape, a time is negative, the critical section skips a sample, or a number is out of range.
    """

    tokens: Ints
    forward_ps: Ints
    critical_ps: Ints
    backward_ps: Ints
    ranks: int
    stages: int = 8
    stage_gpus: int = 8
    stage_layers: int = 10
    encoder_gpus: int = 8
    queue: int = 4

    def __post_init__(self) -> None:
        shape = self.tokens.shape
        arrays = (self.tokens, self.forward_ps, self.critical_ps, self.backward_ps)
        if len(shape) != 1 or not shape[0] or any(each.shape != shape or each.dtype != np.int64 for each in arrays):
            raise BadValueError("A batch has a figure of int64 for each sample.", given=str([a.shape for a in arrays]))
        if min(int(each.min()) for each in arrays) < 0 or int(self.critical_ps.min()) < 1:
            raise BadValueError(
                "A sample has times from 0, and the critical section always has work.",
                given=str([int(each.min()) for each in arrays]),
            )
        for name in ("ranks", "stages", "stage_gpus", "stage_layers", "encoder_gpus"):
            if getattr(self, name) < (2 if name == "stages" else 1):
                raise BadValueError(
                    "A section has ranks, GPUs, layers and stages.", given=getattr(self, name), where=name
                )
        check_queue(self.queue)


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Where the encoder runs, and in which order samples come.

    Parameters
    ----------
    orders : tuple of int64 array
        For each rank, the numbers of its samples in their order.
    layout : str
        ``sections``: the encoder has GPUs of its own; ``stage-0``: it is part of the model's first pipeline stage.
    moved_layers : int
        Layers that the first stage gives to the others; only with ``stage-0``.
    queue : int
        Samples that may wait between sections; :data:`~wavetank.training.sections.simulate.UNBOUNDED` for any number.
    """

    orders: tuple[Ints, ...]
    layout: str = "sections"
    moved_layers: int = 0
    queue: int = UNBOUNDED


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step takes.

    Parameters
    ----------
    time_ps : int
        Until the last rank is done.
    idle_ps : float
        What the critical section waits, mean over the ranks: for its samples, and at the end for the last rank.
    bound_ps : int
        The least time that any order could take with these sections: the largest work of a section, or longest sample.
    gpus : int
        Of all ranks.
    """

    time_ps: int
    idle_ps: float
    bound_ps: int
    gpus: int


class Planner(Protocol):
    """Decides about a batch."""

    def plan(self, batch: Batch) -> Plan:
        """Return the plan.

        Parameters
        ----------
        batch : Batch
            With predicted times.
        """
        ...


def flow(batch: Batch, plan: Plan, samples: Ints) -> Flow:
    """Return the times of samples in a plan's layout.

    Parameters
    ----------
    batch : Batch
    plan : Plan
        Only its layout, moved layers and queue are read.
    samples : int64 array

    Raises
    ------
    BadValueError
        If there is no such layout, or the first stage cannot give as many layers.
    """
    forward, critical, backward = (each[samples] for each in (batch.forward_ps, batch.critical_ps, batch.backward_ps))
    if plan.layout == "sections":
        if plan.moved_layers:
            raise BadValueError("Only the first stage gives layers away.", given=plan.layout, allowed="stage-0")
        forward, backward = (_scaled(each, batch.stage_gpus, batch.encoder_gpus) for each in (forward, backward))
    elif plan.layout == "stage-0":
        if not 0 <= plan.moved_layers <= batch.stage_layers:
            raise BadValueError(
                "The first stage gives layers that it has.", given=plan.moved_layers,
                allowed=f"0 to {batch.stage_layers}",
            )  # fmt: skip
        left = batch.stage_layers - plan.moved_layers
        # A third of a layer's work is forward.
        forward = forward + _scaled(critical, left, 3 * batch.stage_layers)
        backward = backward + _scaled(critical, 2 * left, 3 * batch.stage_layers)
        others = batch.stages - 1
        critical = _scaled(critical, others * batch.stage_layers + plan.moved_layers, others * batch.stage_layers)
    else:
        raise BadValueError("There is no such layout.", given=plan.layout, allowed=LAYOUTS)
    return Flow(forward_ps=forward[None], critical_ps=critical, backward_ps=backward[None], queue=plan.queue)


def dealt(batch: Batch, plan: Plan) -> list[Ints]:
    """Return the samples of each rank, as they come, so that the work of every section of a layout is spread.

    The longest samples come first, each to the rank whose busier section then has least work, of these to the one with
    least in all sections; none gets more than a quarter above its share of samples.

    Parameters
    ----------
    batch : Batch
    plan : Plan
        Only its layout and moved layers are read.
    """
    times = flow(batch, plan, np.arange(batch.tokens.size))
    work = np.stack([times.forward_ps[0] + times.backward_ps[0], times.critical_ps])
    count, ranks = batch.tokens.size, batch.ranks
    share = -(-count // ranks)
    where = np.full(count, -1, np.int64)
    taken, loads = np.zeros(ranks, np.int64), np.zeros((2, ranks), np.int64)
    for sample in np.lexsort((np.arange(count), -work.sum(0))):
        then = loads + work[:, [sample]]
        rank = int(np.lexsort((np.arange(ranks), then.sum(0), then.max(0), taken >= share + share // 4))[0])
        where[sample] = rank
        taken[rank] += 1
        loads[:, rank] = then[:, rank]
    return [np.flatnonzero(where == rank) for rank in range(ranks)]


def _scaled(times: Ints, factor: int, divisor: int) -> Ints:
    """Return times * factor / divisor in whole picoseconds, never down to nothing."""
    # Days in picoseconds times dozens of layers are more than 64 bits hold.
    whole, rest = np.divmod(times, divisor)
    found: Ints = np.where(times > 0, np.maximum(whole * factor + rest * factor // divisor, 1), 0)
    return found


def _filling_ps(batch: Batch, plan: Plan, order: Ints) -> int:
    """Return what the first sample's forward and the last one's backward pass take in the model's first stage.

    A pipeline's filling and draining is left out where the pipeline is one machine, and so it is where it is two.
    """
    if plan.layout != "stage-0" or not order.size:
        return 0
    left = batch.stage_layers - plan.moved_layers
    first, last = (int(batch.critical_ps[each]) for each in (order[0], order[-1]))
    return (first + 2 * last) * left // (3 * batch.stage_layers)


def step(batch: Batch, plan: Plan) -> Step:
    """Return what a plan takes with a batch, by the same rules for every planner.

    Parameters
    ----------
    batch : Batch
        With real times.
    plan : Plan

    Raises
    ------
    BadValueError
        If orders leave a sample out, or have one twice.
    """
    if len(plan.orders) != batch.ranks:
        raise BadValueError("A plan has an order for each rank.", given=len(plan.orders), allowed=str(batch.ranks))
    together = np.concatenate(plan.orders)
    if not np.array_equal(np.sort(together), np.arange(batch.tokens.size)):
        raise BadValueError("The orders of a plan have each sample once.", given=f"{together.size} samples",
                            allowed=f"the {batch.tokens.size} of the batch")  # fmt: skip
    ends, idle, bounds = [], [], []
    for order in plan.orders:
        times = flow(batch, plan, order)
        found = run(times, np.arange(order.size))
        ends.append(max(found.makespan_ps - _filling_ps(batch, plan, order), times.bound_ps))
        idle.append(ends[-1] - int(times.critical_ps.sum()))
        bounds.append(times.bound_ps)
    last = max(ends)
    per_rank = batch.stages * batch.stage_gpus + (batch.encoder_gpus if plan.layout == "sections" else 0)
    waits = [last - end + wait for end, wait in zip(ends, idle, strict=True)]
    return Step(time_ps=last, idle_ps=float(np.mean(waits)), bound_ps=max(bounds), gpus=batch.ranks * per_rank)
