"""What pipelines of unequal passes take: the 1F1B schedule with a time for each stage and micro-batch.

The graph is that of :mod:`wavetank.workloads.pipelines`, laid out once and run again with other durations by
:mod:`wavetank.sim.steps`.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled
from wavetank.sim.steps import COMPUTE
from wavetank.workloads.pipelines import passes, pipeline_graph

PS = 1e12


class PipelineClock:
    """One pipeline with the 1F1B schedule, run again and again.

    Parameters
    ----------
    stages, microbatches : int
    send_ps : int
        What a boundary between stages takes, ps.
    """

    def __init__(self, stages: int, microbatches: int, send_ps: int = 0) -> None:
        graph = pipeline_graph(
            schedule="1f1b", stages=stages, microbatches=microbatches, forward_ps=1, backward_ps=1, send_ps=send_ps
        )
        self.stages, self.microbatches = stages, microbatches
        self._prepared = graph.prepared()
        self._duration = graph.steps.duration_ps.copy()
        # The passes of a stage stand in their order, before its sends.
        self._at = np.flatnonzero(graph.steps.kind == COMPUTE)
        orders = [passes("1f1b", stage, stages=stages, microbatches=microbatches) for stage in range(stages)]
        self._stage = np.repeat(np.arange(stages), 2 * microbatches)
        self._microbatch = np.array([each.microbatch for order in orders for each in order])
        self._backward = np.array([each.backward for order in orders for each in order])

    def time_ps(self, chunk_ps: NDArray[np.int64]) -> int:
        """Return when the last pass ends, ps.

        Parameters
        ----------
        chunk_ps : int64 array (stages, microbatches)
            Forward and backward pass of a micro-batch through a stage together, ps.

        Raises
        ------
        BadValueError
            For another shape, or a time below 0.
        """
        if chunk_ps.shape != (self.stages, self.microbatches) or (chunk_ps < 0).any():
            raise BadValueError(
                "Every micro-batch takes a time on every stage.", given=f"shape {chunk_ps.shape}",
                allowed=f"({self.stages}, {self.microbatches}), 0 ps or more",
            )  # fmt: skip
        chunk = chunk_ps[self._stage, self._microbatch]
        forward = chunk // 3
        self._duration[self._at] = np.where(self._backward, chunk - forward, forward)
        return self._prepared.times(self._duration).makespan_ps


@functools.lru_cache(maxsize=1024)
def clock(stages: int, microbatches: int, send_ps: int = 0) -> PipelineClock:
    """Return the clock of a pipeline, laid out at the first call.

    Parameters
    ----------
    stages, microbatches, send_ps
        As for :class:`PipelineClock`.
    """
    return PipelineClock(stages, microbatches, send_ps)


@functools.lru_cache(maxsize=200_000)
def even_time_ps(stage_ps: tuple[int, ...], microbatches: int, send_ps: int) -> int:
    """Return what a pipeline takes whose micro-batches are all alike, ps; 0 without any.

    Plans are searched among pipelines of many lengths, each of which would be a graph of its own: this goes through the
    same schedule without one.

    Parameters
    ----------
    stage_ps : tuple of int
        Forward and backward pass of one micro-batch through each stage.
    microbatches, send_ps : int
    """
    return int(_even_time(np.array(stage_ps, np.int64), microbatches, send_ps)) if microbatches else 0


@compiled
def _even_time(chunk, microbatches, send):  # type: ignore[no-untyped-def]
    stages = chunk.size
    forward = chunk // 3
    # When inputs and gradients arrive at a stage; of a stage what is done, and when it and its two senders are free.
    arrived = np.full((2, stages, microbatches), -1, np.int64)
    arrived[0, 0, :] = 0
    done = np.zeros((2, stages), np.int64)
    free = np.zeros((3, stages), np.int64)
    last, left = 0, 2 * stages * microbatches
    while left > 0:
        for stage in range(stages):
            first = min(microbatches, stages - 1 - stage)
            while done[1, stage] < microbatches:
                number = done[0, stage] + done[1, stage]
                back = number >= first and (number >= 2 * microbatches - first or (number - first) % 2 == 1)
                way = 1 if back else 0
                at = done[way, stage]
                if arrived[way, stage, at] < 0:
                    break
                took = chunk[stage] - forward[stage] if back else forward[stage]
                end = max(free[2, stage], arrived[way, stage, at]) + took
                free[2, stage] = end
                done[way, stage] += 1
                left -= 1
                last = max(last, end)
                if not back and stage == stages - 1:
                    arrived[1, stage, at] = end
                elif (back and stage > 0) or not back:
                    there = max(end, free[way, stage]) + send
                    free[way, stage] = there
                    arrived[way, stage - 1 if back else stage + 1, at] = there
    return last
