"""Pipelines whose encoder runs somewhere: in the first stage, before it, in the bubbles, or spread over all stages.

Every stage runs one forward and one backward pass in turn (1F1B).  Where the encoder is spread, each stage has a
chunk of the encoder's work of every micro-batch.  In the joint pipeline chunk ``m`` of stage ``s`` comes before the
stage's forward pass of micro-batch ``m - s``, which is about when the first stage begins ``m``; its backward chunk
comes after the stage's backward pass of ``m + s``, when the first stage has just done that of ``m``.  A stage begins
``s`` passes later than the first, and ends as much sooner: the chunks that are left then fill what it would have
waited.  In the static one all chunks come before the first pass and after the last, where stages wait for the
pipeline to fill and to drain.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.steps import COMPUTE
from wavetank.workloads.operations import StepGraph
from wavetank.workloads.pipelines import passes

Ints = NDArray[np.int64]

FORWARD, BACKWARD, ENCODE, RETURN = range(4)
MODES = ("plain", "joint", "static")


@dataclass(frozen=True, kw_only=True)
class Pipelined:
    """How a pipeline ran.

    Parameters
    ----------
    time_ps : int
    held : int
        The most micro-batches whose encoder outputs were in memory at once: from the begin of their first forward
        chunk, or of the first stage's forward pass, to the end of the last backward one.
    """

    time_ps: int
    held: int


def run_pipeline(
    mode: str, forward_ps: Ints, backward_ps: Ints, encode_ps: Ints | None = None, return_ps: Ints | None = None
) -> Pipelined:
    """Return how a step of a pipeline runs.

    Parameters
    ----------
    mode : str
        ``plain`` has no chunks; ``joint`` and ``static`` as above.
    forward_ps, backward_ps : int64 array (stages, microbatches)
    encode_ps, return_ps : int64 array (stages, microbatches), optional
        Chunks of the encoder, forward and backward.

    Raises
    ------
    BadValueError
        If there is no such mode, shapes differ, chunks are absent or superfluous, or a time is negative.
    """
    tables = [forward_ps, backward_ps]
    if mode not in MODES:
        raise BadValueError("There is no such pipeline.", given=mode, allowed=MODES)
    if (encode_ps is None) != (mode == "plain") or (return_ps is None) != (mode == "plain"):
        raise BadValueError("Chunks of an encoder come with a joint or static pipeline.", given=mode)
    if encode_ps is not None and return_ps is not None:
        tables += [encode_ps, return_ps]
    shape = forward_ps.shape
    if forward_ps.ndim != 2 or any(each.shape != shape or each.dtype.kind != "i" for each in tables):
        raise BadValueError(
            "A pipeline has a whole number of picoseconds for each stage and micro-batch.",
            given=str([(each.shape, str(each.dtype)) for each in tables]),
        )
    if not forward_ps.size or min(int(each.min()) for each in tables) < 0:
        raise BadValueError("Passes take no less than nothing, and there are some.", given=str(shape))
    stages, microbatches = shape
    kind, stage, number, start, dep = _template(mode, stages, microbatches)
    durations = np.zeros(kind.size, np.int64)
    for each, table in enumerate(tables):
        at = kind == each
        durations[at] = table[stage[at], number[at]]
    times = StepGraph(
        rank=stage.astype(np.int32), kind=np.full(kind.size, COMPUTE, np.int8), duration_ps=durations,
        stream=np.zeros(kind.size, np.int32), dep_start=start, dep=dep,
    ).times()  # fmt: skip
    first, last = (FORWARD, BACKWARD) if mode == "plain" else (ENCODE, RETURN)
    begins, ends = np.full(microbatches, np.iinfo(np.int64).max), np.zeros(microbatches, np.int64)
    at = kind == first if mode != "plain" else (kind == first) & (stage == 0)
    np.minimum.at(begins, number[at], times.start_ps[at])
    at = kind == last if mode != "plain" else (kind == last) & (stage == 0)
    np.maximum.at(ends, number[at], times.end_ps[at])
    # At one moment, what ends goes first.
    moments = np.concatenate([begins, ends])
    change = np.concatenate([np.ones(microbatches, np.int64), -np.ones(microbatches, np.int64)])
    order = np.lexsort((change, moments))
    return Pipelined(time_ps=int(times.makespan_ps), held=int(np.cumsum(change[order]).max()))


def programme(mode: str, stage: int, stages: int, microbatches: int) -> list[tuple[int, int]]:
    """Return kind and micro-batch of everything that a stage does, in order.

    Parameters
    ----------
    mode : str
    stage, stages, microbatches : int

    Examples
    --------
    >>> ["FBER"[kind] + str(m) for kind, m in programme("joint", 1, 2, 3)]
    ['E0', 'E1', 'F0', 'B0', 'E2', 'F1', 'B1', 'R0', 'F2', 'B2', 'R1', 'R2']
    """
    found: list[tuple[int, int]] = []
    encoded = returned = 0
    if mode == "static":
        found += [(ENCODE, m) for m in range(microbatches)]
    for each in passes("1f1b", stage, stages=stages, microbatches=microbatches):
        m = each.microbatch
        if mode == "joint" and not each.backward:
            until = min(m + stage + 1, microbatches)
            found += [(ENCODE, k) for k in range(encoded, until)]
            encoded = max(encoded, until)
        found.append((BACKWARD if each.backward else FORWARD, m))
        if mode == "joint" and each.backward:
            until = max(m - stage + 1, 0)
            found += [(RETURN, k) for k in range(returned, until)]
            returned = max(returned, until)
    if mode != "plain":
        found += [(RETURN, k) for k in range(returned, microbatches)]
    return found


@functools.lru_cache(maxsize=16)
def _template(mode: str, stages: int, microbatches: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return kind, stage and micro-batch of each operation, and what it depends on."""
    rows = [(kind, stage, m) for stage in range(stages) for kind, m in programme(mode, stage, stages, microbatches)]
    place = {row: i for i, row in enumerate(rows)}
    start, dep = [0], []
    for kind, stage, m in rows:
        if kind == FORWARD and stage:
            dep.append(place[FORWARD, stage - 1, m])
        elif kind == FORWARD and mode != "plain":
            dep += [place[ENCODE, each, m] for each in range(stages)]
        elif kind == BACKWARD:
            dep.append(place[BACKWARD, stage + 1, m] if stage + 1 < stages else place[FORWARD, stage, m])
        elif kind == RETURN:
            dep.append(place[BACKWARD, 0, m])
        start.append(len(dep))
    kinds, at, number = np.array(rows, np.int64).T
    return kinds, at, number, np.array(start, np.int64), np.array(dep, np.int64)
