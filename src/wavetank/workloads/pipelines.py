"""Step graphs of pipeline schedules and of data-parallel steps.

A schedule is an order of forward and backward passes for every stage: GPipe runs all forward passes first, 1F1B begins
a backward pass as soon as it can and keeps no more than ``stages`` micro-batches in flight, the interleaved schedule
gives each stage several chunks of the model, so that a pipeline fills and drains in less time.

Sources: Y. Huang et al., "GPipe", 2019; D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", 2021, for 1F1B with a flush and its interleaved form.

Differs from the sources:

1. Backward passes run in the order of micro-batches in GPipe, too.
2. Sends overlap with passes: each stage sends on streams of its own, one forward and one backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.sim.steps import COMPUTE, SEND
from wavetank.workloads.operations import Operation, StepGraph

SCHEDULES = ("gpipe", "1f1b", "interleaved")
COMPUTE_STREAM, FORWARD_STREAM, BACKWARD_STREAM = range(3)


class Pass(NamedTuple):
    """One pass of a stage: of which micro-batch, through which of the stage's chunks, and which way."""

    backward: bool
    microbatch: int
    chunk: int


def check_pipeline(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> None:
    """Refuse a pipeline that no schedule can run.

    Parameters
    ----------
    schedule : str
        One of :data:`SCHEDULES`.
    stages, microbatches : int
        1 or more.
    chunks : int
        Chunks of the model on every stage; 1 unless interleaved.

    Raises
    ------
    BadValueError
        For what is out of range, and for interleaved micro-batches that are no multiple of the stages.
    """
    if schedule not in SCHEDULES:
        raise BadValueError("There is no such pipeline schedule.", given=schedule, allowed=SCHEDULES)
    for name, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise BadValueError(f"A pipeline has {name}.", given=value, allowed="a whole number from 1", where=name)
    if schedule != "interleaved" and chunks != 1:
        raise BadValueError("Only the interleaved schedule has several chunks on a stage.", given=chunks, allowed="1")
    if schedule == "interleaved" and microbatches % stages:
        raise BadValueError(
            "The interleaved schedule needs as many micro-batches as stages, or a multiple.", given=microbatches,
            allowed=f"a multiple of {stages}",
        )  # fmt: skip


def passes(schedule: str, stage: int, *, stages: int, microbatches: int, chunks: int = 1) -> list[Pass]:
    """Return what one stage does, in order.

    Parameters
    ----------
    schedule, stages, microbatches, chunks
        As for :func:`check_pipeline`.
    stage : int

    Raises
    ------
    BadValueError
        As :func:`check_pipeline`, and for a stage that there is not.

    Examples
    --------
    >>> ["FB"[each.backward] + str(each.microbatch) for each in passes("1f1b", 0, stages=2, microbatches=3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    check_pipeline(schedule, stages, microbatches, chunks)
    if isinstance(stage, bool) or not isinstance(stage, int | np.integer) or not 0 <= stage < stages:
        raise BadValueError("The pipeline has no such stage.", given=stage, allowed=f"0 to {stages - 1}", where="stage")
    total = microbatches * chunks

    def forward(k: int) -> Pass:
        block, within = divmod(k, stages * chunks)
        return Pass(False, block * stages + within % stages, within // stages)

    def backward(k: int) -> Pass:
        _, microbatch, chunk = forward(k)
        return Pass(True, microbatch, chunks - 1 - chunk)

    if schedule != "interleaved":
        # One chunk: micro-batches in their order.
        forward, backward = (lambda k: Pass(False, k, 0)), (lambda k: Pass(True, k, 0))
    if schedule == "gpipe":
        first = total
    elif schedule == "1f1b":
        first = min(total, stages - 1 - stage)
    else:
        # All at once where there is one round of micro-batches, as in Megatron-LM.
        first = total if microbatches == stages else min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)
    found = [forward(k) for k in range(first)]
    for k in range(total - first):
        found += [forward(first + k), backward(k)]
    return found + [backward(k) for k in range(total - first, total)]


def pipeline_graph(
    *,
    schedule: str = "1f1b",
    stages: int,
    microbatches: int,
    chunks: int = 1,
    forward_ps: int | Sequence[int],
    backward_ps: int | Sequence[int],
    send_ps: int | None = None,
    sent_bytes: int = 0,
    links: Sequence[int] | None = None,
) -> StepGraph:
    """Return the graph of one step of a pipeline; stage s is rank s.

    Parameters
    ----------
    schedule, stages, microbatches, chunks
        As for :func:`check_pipeline`.
    forward_ps, backward_ps : int or sequence of int
        A pass of one micro-batch through one chunk: of all stages, or of each.
    send_ps : int, optional
        What a boundary between stages takes, as a send of its own; without it, results are there at once.
    sent_bytes : int
        Size of what is sent.
    links : sequence of int, optional
        The shared link of the sends of each stage.

    Raises
    ------
    BadValueError
        As :func:`check_pipeline`, and for as many durations or links as there are no stages.
    """
    check_pipeline(schedule, stages, microbatches, chunks)
    took = {}
    for name, given in (("forward_ps", forward_ps), ("backward_ps", backward_ps), ("links", links)):
        each = np.asarray(-1 if given is None else given)
        each = np.full(stages, each) if each.ndim == 0 else each
        if each.shape != (stages,):
            raise BadValueError(f"A pipeline has one of {name} for each stage.", given=each.size, allowed=str(stages))
        took[name] = each
    orders = [
        passes(schedule, stage, stages=stages, microbatches=microbatches, chunks=chunks) for stage in range(stages)
    ]
    per_stage = 2 * microbatches * chunks
    sends = send_ps is not None and stages > 1
    last = stages * chunks - 1
    # By virtual stage (chunk * stages + stage), direction and micro-batch: number of the pass, then of its send.
    passed = np.full((stages * chunks, 2, microbatches), -1, np.int64)
    sent = passed.copy()
    ranks, streams, kinds, durations, links_of, size = [], [], [], [], [], 0
    for stage, order in enumerate(orders):
        backward, microbatch, chunk = np.array(order, np.int64).T
        virtual = chunk * stages + stage
        passed[virtual, backward, microbatch] = size + np.arange(per_stage)
        size += per_stage
        ranks.append(np.full(per_stage, stage))
        streams.append(np.full(per_stage, COMPUTE_STREAM))
        kinds.append(np.full(per_stage, COMPUTE))
        durations.append(np.where(backward == 1, took["backward_ps"][stage], took["forward_ps"][stage]))
        links_of.append(np.full(per_stage, -1))
        if sends:
            for way, edge in ((0, last), (1, 0)):
                at = (backward == way) & (virtual != edge)
                count = int(at.sum())
                sent[virtual[at], way, microbatch[at]] = size + np.arange(count)
                size += count
                ranks.append(np.full(count, stage))
                streams.append(np.full(count, FORWARD_STREAM + way))
                kinds.append(np.full(count, SEND))
                durations.append(np.full(count, send_ps))
                links_of.append(np.full(count, took["links"][stage]))
    before, after = [], []
    for way in (0, 1):
        giver = sent if sends else passed
        # Forward to the next virtual stage, backward to the one before.
        first, then = (slice(0, -1), slice(1, None)) if way == 0 else (slice(1, None), slice(0, -1))
        before.append(giver[first, way].ravel())
        after.append(passed[then, way].ravel())
        if sends:
            at = sent[:, way] >= 0
            before.append(passed[:, way][at])
            after.append(sent[:, way][at])
    before.append(passed[last, 0])
    after.append(passed[last, 1])
    froms, tos = np.concatenate(before), np.concatenate(after)
    by_operation = np.argsort(tos, kind="stable")
    return StepGraph(
        rank=np.concatenate(ranks),
        stream=np.concatenate(streams),
        kind=np.concatenate(kinds),
        duration_ps=np.concatenate(durations),
        n_bytes=np.where(np.concatenate(kinds) == SEND, sent_bytes, 0),
        link=np.concatenate(links_of),
        dep_start=np.r_[0, np.cumsum(np.bincount(tos, minlength=size))],
        dep=froms[by_operation],
    )


def pipeline_time_ps(
    schedule: str,
    *,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    forward_ps: int,
    backward_ps: int,
) -> int:
    """Return the makespan of a pipeline of equal stages in closed form, without sends.

    All stages work without a gap but for the time in which the pipeline fills and drains, which is that of
    ``stages - 1`` passes each way, through one chunk.

    Parameters
    ----------
    schedule, stages, microbatches, chunks
        As for :func:`check_pipeline`.
    forward_ps, backward_ps : int
        A pass through one chunk.

    Examples
    --------
    >>> pipeline_time_ps("1f1b", stages=4, microbatches=8, forward_ps=10, backward_ps=20)
    330
    """
    check_pipeline(schedule, stages, microbatches, chunks)
    return (microbatches * chunks + stages - 1) * (forward_ps + backward_ps)


def data_parallel_graph(
    *, ranks: int, layers: int, forward_ps: int, backward_ps: int, reduce_ps: int, gradient_bytes: int = 0
) -> StepGraph:
    """Return the graph of a data-parallel step: gradients are summed layer by layer while the backward pass goes on.

    Parameters
    ----------
    ranks, layers : int
    forward_ps, backward_ps : int
        Of one layer.
    reduce_ps : int
        The all-reduce of the gradients of one layer.
    gradient_bytes : int
        Of one layer.

    Raises
    ------
    BadValueError
        For less than one rank or layer, or no whole number of them.

    Examples
    --------
    >>> graph = data_parallel_graph(ranks=2, layers=3, forward_ps=10, backward_ps=20, reduce_ps=25)
    >>> graph.times().makespan_ps
    125
    """
    for name, value in (("ranks", ranks), ("layers", layers)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise BadValueError(
                f"A data-parallel step has {name}.", given=value, allowed="a whole number from 1", where=name
            )
    operations: list[Operation] = []
    for rank in range(ranks):
        operations += [Operation(rank=rank, duration_ps=forward_ps, name=f"forward {k}") for k in range(layers)]
        first = len(operations)
        operations += [Operation(rank=rank, duration_ps=backward_ps, name=f"backward {k}") for k in range(layers)[::-1]]
        operations += [
            Operation(rank=rank, stream=1, kind="collective", collective="all-reduce", group=0, duration_ps=reduce_ps,
                      n_bytes=gradient_bytes, after=(first + k,), name=f"gradients {layers - 1 - k}")
            for k in range(layers)
        ]  # fmt: skip
    return StepGraph.of(operations, groups=(range(ranks),))
