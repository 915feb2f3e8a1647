"""A process that measures shares of traces by one of the analysers that live here."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from wavetank.errors import WavetankError
from wavetank.insight.metrics.cards import Card
from wavetank.insight.metrics.definitions import figures
from wavetank.insight.metrics.hta_process import answer
from wavetank.insight.metrics.interface import SHARED
from wavetank.insight.traces.measures import TraceSource
from wavetank.workloads.kineto import COPY, FILL, KERNEL, read_kineto

_COMMUNICATION = ("nccl", "rccl")


def toolkit(file: str) -> dict[str, float]:
    """Return the shares of a trace by the metrics of :mod:`~wavetank.insight.metrics.definitions`.

    Parameters
    ----------
    file : str
    """
    found = figures(Card(version=1), TraceSource(Path(file)), SHARED)
    return {name: figure.value for name, figure in found.items() if figure.value is not None}


def summed(file: str) -> dict[str, float]:
    """Return shares from sums of durations, as a table of kernels has them: what runs at once is not known.

    Parameters
    ----------
    file : str
    """
    trace = read_kineto(Path(file))
    took = (trace.end_ns - trace.start_ns).astype(np.float64)
    device = np.isin(trace.kind, (KERNEL, COPY, FILL))
    if not device.any():
        return {}
    span = float(trace.end_ns[device].max() - trace.start_ns[device].min())
    talk = float(took[trace.communicates].sum())
    compute = float(took[(trace.kind == KERNEL) & ~trace.communicates].sum())
    if span <= 0:
        return {}
    found = {"idle_fraction": max(0.0, 1 - float(took[device].sum()) / span), "compute_fraction": compute / span}
    if talk:
        # What does not fit one after the other into the span must have run at once.
        found["compute_comm_overlap"] = min(1.0, max(0.0, (compute + talk - span) / talk))
    return found


def plainly(file: str) -> dict[str, float]:
    """Return shares by the standard library: a whole file by json, intervals by sorting lists.

    Parameters
    ----------
    file : str
    """
    raw = Path(file).read_bytes()
    content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    talk: list[tuple[float, float]] = []
    compute: list[tuple[float, float]] = []
    busy: list[tuple[float, float]] = []
    for each in content["traceEvents"]:
        kind = each.get("cat")
        if each.get("ph") != "X" or kind not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        interval = (each["ts"], each["ts"] + each.get("dur", 0))
        busy.append(interval)
        if kind == "kernel":
            talks = any(word in each["name"].lower() for word in _COMMUNICATION)
            (talk if talks else compute).append(interval)
    if not busy:
        return {}
    span = max(end for _, end in busy) - min(begin for begin, _ in busy)
    found = {"idle_fraction": 1 - _length(busy) / span, "compute_fraction": _length(compute) / span}
    if talk:
        both = _length(talk) + _length(compute) - _length(talk + compute)
        found["compute_comm_overlap"] = both / _length(talk)
    return found


def _length(intervals: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


ANALYSERS: Mapping[str, Callable[[str], dict[str, float]]] = MappingProxyType(
    {"toolkit": toolkit, "summed": summed, "plainly": plainly}
)


def main(name: str) -> None:
    """Read the question on standard input and print the answer.

    Parameters
    ----------
    name : str
        Of :data:`ANALYSERS`.
    """
    question: dict[str, Any] = json.load(sys.stdin)

    def measure(file: str) -> dict[str, float]:
        try:
            return ANALYSERS[name](file)
        except WavetankError:
            return {}

    if question["warm"]:
        measure(question["warm"])
    said = [answer(measure, file, question["repeats"]) for file in question["files"]]
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
