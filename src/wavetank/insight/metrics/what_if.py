"""What a trace of one device would take with faster links: its kernels replayed in order, communication shortened.

A kernel starts some time after the latest kernel that had ended before it, on any stream: this lag is kept, and so is
the order of each stream.  The graph is run by the executor of training steps.  With unchanged durations every
kernel starts when it did.

What differs from a simulation of the job: one rank alone, so that waiting for peers is shortened like the wire, and
what the host does between kernels stays as long as it was.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.steps import COMPUTE, HOST
from wavetank.workloads.operations import MOST_PS, StepGraph

_PS = 1000
_Longs = NDArray[np.int64]


def replay_graph(
    start_ns: _Longs, end_ns: _Longs, stream: _Longs, communicates: NDArray[np.bool_], *, faster: float = 1.0
) -> StepGraph:
    """Return the graph of one device's kernels: of each its lag and itself, in the order of their starts.

    Parameters
    ----------
    start_ns, end_ns : int64 array (n,)
    stream : int64 array (n,)
        Where two of one stream run at once, the later gets a stream of its own.
    communicates : bool array (n,)
    faster : float
        By how much communication is shortened.

    Raises
    ------
    BadValueError
        If it is not above 0 and finite, or there is nothing to replay.
    """
    if not 0 < faster < math.inf:
        raise BadValueError("Links become faster by a number above 0.", given=faster)
    if not start_ns.size:
        raise BadValueError("There is nothing to replay.", given="no kernels")
    order = np.lexsort((end_ns, start_ns))
    begin, end, talks = start_ns[order], end_ns[order], communicates[order]
    lanes = _lanes(begin, end, stream[order])
    # Of the kernels that had ended by each start, the one that ended last.
    by_end = np.argsort(end, kind="stable")
    ended = np.searchsorted(end[by_end], begin, "right") - 1
    before = np.where(ended >= 0, by_end[np.maximum(ended, 0)], -1)
    # A kernel of no length that starts when another ends may come before it in this order.
    before = np.where(before < np.arange(begin.size), before, -1)
    if float(end.max() - begin[0]) * 2 * begin.size > MOST_PS / _PS:
        raise BadValueError("These kernels take too long to be replayed.", given=f"{begin.size} kernels")
    lag = begin - np.where(before >= 0, end[np.maximum(before, 0)], begin[0])
    took = (end - begin) * _PS
    took[talks] = np.rint(took[talks] / faster).astype(np.int64)
    n = begin.size
    duration = np.empty(2 * n, np.int64)
    duration[0::2], duration[1::2] = lag * _PS, took
    counts = np.zeros(2 * n, np.int64)
    counts[0::2], counts[1::2] = before >= 0, 1
    starts = np.concatenate(([0], np.cumsum(counts)))
    needed = np.empty(int(starts[-1]), np.int64)
    needed[starts[0:-1:2][before >= 0]] = 2 * before[before >= 0] + 1
    needed[starts[1::2][:n]] = np.arange(0, 2 * n, 2)
    kinds = np.empty(2 * n, np.int8)
    kinds[0::2], kinds[1::2] = HOST, COMPUTE
    # A lag takes no place on a stream: each has one of its own.
    streams = np.empty(2 * n, np.int32)
    streams[0::2], streams[1::2] = np.arange(n) + int(lanes.max()) + 1, lanes
    return StepGraph(
        rank=np.zeros(2 * n, np.int32), stream=streams, kind=kinds, duration_ps=duration, dep_start=starts, dep=needed
    )


def _lanes(begin: _Longs, end: _Longs, stream: _Longs) -> _Longs:
    """Return a lane for each kernel: that of its stream, or another where that is taken."""
    free: dict[tuple[int, int], int] = {}
    number: dict[tuple[int, int], int] = {}
    found = np.empty(begin.size, np.int64)
    for at, (start, stop, of) in enumerate(zip(begin.tolist(), end.tolist(), stream.tolist(), strict=True)):
        copy = 0
        while free.get((of, copy), start) > start:
            copy += 1
        free[of, copy] = stop
        found[at] = number.setdefault((of, copy), len(number))
    return found


def makespan_ns(
    start_ns: _Longs, end_ns: _Longs, stream: _Longs, communicates: NDArray[np.bool_], *, faster: float = 1.0
) -> float:
    """Return the time from the first start to the last end of the replayed kernels.

    Parameters
    ----------
    start_ns, end_ns, stream : int64 array (n,)
    communicates : bool array (n,)
    faster : float
        By how much communication is shortened.
    """
    graph = replay_graph(start_ns, end_ns, stream, communicates, faster=faster)
    return graph.times().makespan_ps / _PS
