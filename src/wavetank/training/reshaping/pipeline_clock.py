"""What pipelines of unequal passes take: the 1F1B schedule with a time for each stage and micro-batch.

The schedule is that of :mod:`wavetank.workloads.pipelines`, gone through without its graph: plans are searched among
pipelines of many lengths, and watches predict one step after another.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

PS = 1e12


def slowest_ps(chunk_ps: NDArray[np.int64], send_ps: int = 0) -> int:
    """Return when the last pass of the slowest of several pipelines ends, ps.

    Parameters
    ----------
    chunk_ps : int64 array (replicas, stages, microbatches)
        Forward and backward pass of a micro-batch through a stage together, ps.
    send_ps : int
        What a boundary between stages takes, ps.

    Raises
    ------
    BadValueError
        For another shape, or a time below 0.
    """
    if chunk_ps.ndim != 3 or not chunk_ps.size or (chunk_ps < 0).any():
        raise BadValueError(
            "Every micro-batch takes a time on every stage of every replica.", given=f"shape {chunk_ps.shape}",
            allowed="three dimensions, 0 ps or more",
        )  # fmt: skip
    return int(_slowest(np.ascontiguousarray(chunk_ps, np.int64), send_ps))


@functools.lru_cache(maxsize=200_000)
def even_time_ps(stage_ps: tuple[int, ...], microbatches: int, send_ps: int) -> int:
    """Return what a pipeline takes whose micro-batches are all alike, ps; 0 without any.

    Parameters
    ----------
    stage_ps : tuple of int
        Forward and backward pass of one micro-batch through each stage.
    microbatches, send_ps : int
    """
    return int(_even_time(np.array(stage_ps, np.int64), microbatches, send_ps)) if microbatches else 0


@compiled
def _time(chunk, send):  # type: ignore[no-untyped-def]
    stages, microbatches = chunk.shape
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
                forward = chunk[stage, at] // 3
                took = chunk[stage, at] - forward if back else forward
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


@compiled
def _even_time(stages, microbatches, send):  # type: ignore[no-untyped-def]
    chunk = np.empty((stages.size, microbatches), np.int64)
    for stage in range(stages.size):
        chunk[stage, :] = stages[stage]
    return _time(chunk, send)


@compiled
def _slowest(chunk, send):  # type: ignore[no-untyped-def]
    last = 0
    for replica in range(chunk.shape[0]):
        last = max(last, _time(chunk[replica], send))
    return last


@compiled
def moved_times(pace, layers, most, quota, send):  # type: ignore[no-untyped-def]
    """Return when the last pipeline ends if one layer moves from a stage to another in all; -1 where it cannot.

    ``pace``, ``layers`` and ``most`` have a row for each replica and a column for each stage: the time of a layer, and
    layers that there are and that fit; ``quota`` is the micro-batches of each replica.
    """
    replicas, stages = pace.shape
    found = np.full((stages, stages), -1, np.int64)
    for giver in range(stages):
        for taker in range(stages):
            able = giver != taker
            for replica in range(replicas):
                able = able and layers[replica, giver] > 1 and layers[replica, taker] < most[replica, taker]
            if not able:
                continue
            last = 0
            for replica in range(replicas):
                if quota[replica] > 0:
                    times = pace[replica] * layers[replica]
                    times[giver] -= pace[replica, giver]
                    times[taker] += pace[replica, taker]
                    last = max(last, _even_time(times, quota[replica], send))
            found[giver, taker] = last
    return found
