"""Traces with planted shares: the truth is what was planted, counted nanosecond by nanosecond, not what a reader finds.

A device runs communication and computation in turns, on streams that overlap as planned.  What tempts a careless reader
is planted, too: two streams that compute at once, two that communicate at once, kernels that touch, copies during
communication, operators of the host with a kernel's name, events in any order, a clock that began in 1970.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.rng import stream

OVERLAPS = (0, 50, 100)
_ROUNDS, _TALK_NS = 24, 4000
_ORIGIN_US = 4_458_676_500_000
_COMPUTE, _SECOND, _TALK, _SECOND_TALK, _COPY = 7, 13, 20, 21, 30
_TALKS = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclKernel_SendRecv")
_COMPUTES = ("ampere_sgemm_128x64_tn", "void at::native::vectorized_elementwise_kernel<4>(int)")


class Planted(NamedTuple):
    """A trace, and what is true of it.

    Parameters
    ----------
    events : list of dict
        As a profiler writes them.
    truth : dict of str to float
        Shares by the names of the metrics.
    """

    events: list[dict[str, Any]]
    truth: dict[str, float]

    def write(self, path: Path) -> Path:
        """Write the trace; return its path.

        Parameters
        ----------
        path : Path
        """
        content = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}, "traceEvents": self.events}
        path.write_text(json.dumps(content), encoding="utf-8")
        return path


def planted(percent: int, seed: int) -> Planted:
    """Return a trace in which this share of communication is hidden, in percent.

    Parameters
    ----------
    percent : int
        0 to 100.
    seed : int
    """
    draws = stream(seed, "planted overlap")
    kernels: list[tuple[str, str, int, int, int]] = []
    at = 0
    for turn in range(_ROUNDS):
        # Computation of its own, in touching kernels and on two streams at once.
        for _ in range(int(draws.integers(1, 4))):
            took = int(draws.integers(500, 3000))
            kernels.append(("kernel", _COMPUTES[turn % 2], _COMPUTE, at, at + took))
            if draws.random() < 0.5:
                kernels.append(("kernel", _COMPUTES[0], _SECOND, at + took // 4, at + took // 2))
            at += took
        at += int(draws.integers(1, 2000))
        kernels.append(("kernel", _TALKS[turn % 2], _TALK, at, at + _TALK_NS))
        if turn % 3 == 0:
            kernels.append(("kernel", _TALKS[0], _SECOND_TALK, at + 100, at + _TALK_NS // 2))
        hidden = _TALK_NS * percent // 100
        if hidden:
            first = at + int(draws.integers(0, _TALK_NS - hidden + 1))
            middle = first + hidden // 2
            kernels.append(("kernel", _COMPUTES[0], _COMPUTE, first, middle))
            kernels.append(("kernel", _COMPUTES[1], _COMPUTE, middle, first + hidden))
            kernels.append(("kernel", _COMPUTES[1], _SECOND, first, first + hidden // 3))
        if turn % 4 == 0:
            kernels.append(("gpu_memcpy", "Memcpy DtoD (Device -> Device)", _COPY, at + 50, at + 1500))
        at += _TALK_NS + int(draws.integers(0, 1500))
    events = [_event(*kernel) for kernel in kernels]
    # Host events, one with the name of a kernel, are none of the device's.
    events.append({"ph": "X", "cat": "cpu_op", "name": _COMPUTES[0], "pid": 1, "tid": 1,
                   "ts": _ORIGIN_US, "dur": at / 1000, "args": {}})  # fmt: skip
    return Planted([events[each] for each in draws.permutation(len(events))], _counted(kernels, at))


def _event(category: str, name: str, lane: int, begin: int, end: int) -> dict[str, Any]:
    args: dict[str, Any] = {"stream": lane, "device": 0, "correlation": begin + 1}
    if category == "gpu_memcpy":
        args["bytes"] = 4096
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": lane,
            "ts": round(_ORIGIN_US + begin / 1000, 3), "dur": (end - begin) / 1000, "args": args}  # fmt: skip


def _counted(kernels: list[tuple[str, str, int, int, int]], until: int) -> dict[str, float]:
    """Count each nanosecond."""
    talk, compute, any_of = (np.zeros(until + 1, bool) for _ in range(3))
    for category, name, _, begin, end in kernels:
        any_of[begin:end] = True
        if category == "kernel":
            (talk if name in _TALKS else compute)[begin:end] = True
    span = _span(any_of)
    return {
        "compute_comm_overlap": float((talk & compute).sum() / talk.sum()),
        "idle_fraction": float(1 - any_of.sum() / span),
        "compute_fraction": float(compute.sum() / span),
    }


def _span(any_of: NDArray[np.bool_]) -> int:
    at = np.flatnonzero(any_of)
    return int(at[-1] - at[0] + 1)
