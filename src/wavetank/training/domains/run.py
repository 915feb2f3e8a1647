"""What each process does in the study: the same step by every way, timed in turns, then measured for its memory."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import WavetankError
from wavetank.live.rank_process import Rank
from wavetank.training.domains.interface import Layout, Outcome, even_sizes

ROWS = 2
# glibc's mallopt: blocks above a size go back to the system as soon as they are free.
_MMAP_THRESHOLD, _BLOCK_BYTES = -3, 1 << 16
# Of linux/tcp.h: where bytes_acked lies in tcp_info.
_TCP_INFO_BYTES, _ACKED_AT = 192, 120


def described(system: Any) -> dict[str, Any]:
    """Return what another process needs to make the same system.

    Parameters
    ----------
    system : dataclass instance
        Of a class on the top level of a module.
    """
    kind = type(system)
    return {"module": kind.__module__, "name": kind.__qualname__, "parameters": dataclasses.asdict(system)}


def made(description: Mapping[str, Any]) -> Any:
    """Return the system of a description.

    Parameters
    ----------
    description : mapping
        As of :func:`described`.
    """
    return getattr(importlib.import_module(description["module"]), description["name"])(**description["parameters"])


def cut_sizes(system: Any, length: int, processes: int, cuts: Sequence[int]) -> tuple[int, ...]:
    """Return how a sample is cut for a system.

    Parameters
    ----------
    system : Divider
    length, processes : int
    cuts : sequence of int
        Parts, where the system does not ask for others.
    """
    ask = getattr(system, "sizes", None)
    return tuple(cuts) if ask is None else ask(length, processes, tuple(cuts))


def run_ways(
    rank: Rank,
    *,
    systems: Mapping[str, Mapping[str, Any]],
    network: Mapping[str, int],
    sample: np.ndarray,
    target: np.ndarray,
    cuts: Mapping[str, Sequence[int]],
    turns: int,
    memory_rows: int,
    most_times: int,
) -> dict[str, Any]:
    """Return what this process measured, by number of processes and system.

    Parameters
    ----------
    rank : Rank
    systems : mapping of str to mapping
        Descriptions, by name.
    network : mapping of str to int
        Arguments of :func:`wavetank.training.domains.network.network`.
    sample, target : float64 array
        (1, fields, rows, columns), and the same on coarse places.
    cuts : mapping of str to sequence of int
        Rows of each process, by number of processes.
    turns : int
        Timed steps.
    memory_rows : int
        Rows of the sample whose memory in one process is the limit for more processes.
    most_times : int
        Samples of one, two, ... times that number of rows are tried, up to this.
    """
    import torch
    import torch.distributed as dist

    from wavetank.training.domains.exchange import Domain
    from wavetank.training.domains.network import network as make

    torch.set_num_threads(1)
    rank.default_group()
    found: dict[str, Any] = {}
    groups = {each: dist.new_group(list(range(int(each)))) for each in cuts}
    ways = {name: made(description) for name, description in systems.items()}
    model = make(**network)
    for processes, parts in cuts.items():
        if rank.number >= int(processes):
            continue
        domain = Domain(range(int(processes)), groups[processes])
        found[processes] = {}
        for name, way in ways.items():
            sizes = cut_sizes(way, sample.shape[ROWS], domain.size, parts)
            found[processes][name] = _checked(way, domain, model, sample, target, Layout(ROWS, sizes)) | {"time_s": []}
        for turn in range(turns):
            for name in [*ways][turn % len(ways) :] + [*ways][: turn % len(ways)]:
                sizes = cut_sizes(ways[name], sample.shape[ROWS], domain.size, parts)
                found[processes][name]["time_s"].append(
                    _timed(ways[name], domain, model, sample, target, Layout(ROWS, sizes))
                )
    _returned_at_once()
    for processes, parts in cuts.items():
        if rank.number < int(processes):
            domain = Domain(range(int(processes)), groups[processes])
            for name, way in ways.items():
                found[processes][name] |= _memory(way, domain, model, sample, target, parts, memory_rows, most_times)
    return found


def _returned_at_once() -> None:
    """Let freed memory of glibc go back to the system, so that what is resident is what is in use."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
        library.malloc_trim(0)


def _part(sample: np.ndarray, layout: Layout, place: int) -> Any:
    import torch

    begin = layout.begins()[place]
    return torch.from_numpy(np.ascontiguousarray(sample[:, :, begin : begin + layout.sizes[place]]))


def _step(way: Any, domain: Any, model: Any, sample: Any, target: np.ndarray, layout: Layout) -> Outcome:
    import torch

    model.zero_grad()
    outcome: Outcome = way.step(domain, model, sample, torch.from_numpy(target), layout)
    return outcome


def _checked(
    way: Any, domain: Any, model: Any, sample: np.ndarray, target: np.ndarray, layout: Layout
) -> dict[str, Any]:
    """Run one step; return what it computed, and what it sent."""
    import torch.distributed as dist

    dist.barrier(group=domain.group)
    before, counted = acknowledged_bytes(), sum(domain.sent_bytes.values())
    halo, lost = domain.sent_bytes["halo"], sum(domain.fallbacks.values())
    outcome = _step(way, domain, model, _part(sample, layout, domain.place), target, layout)
    sent = acknowledged_bytes() - before
    weights = (
        []
        if outcome.out is None
        else [None if each.grad is None else each.grad.numpy().copy() for each in model.parameters()]
    )
    return {
        "loss": outcome.loss, "out_begin": outcome.out_layout.begins()[domain.place],
        "out": None if outcome.out is None else outcome.out.numpy(),
        "grad_begin": layout.begins()[domain.place], "grad": None if outcome.grad is None else outcome.grad.numpy(),
        "weights": weights, "acknowledged_bytes": sent,
        "counted_bytes": sum(domain.sent_bytes.values()) - counted, "halo_bytes": domain.sent_bytes["halo"] - halo,
        "fallbacks": sum(domain.fallbacks.values()) - lost,
    }  # fmt: skip


def _timed(way: Any, domain: Any, model: Any, sample: np.ndarray, target: np.ndarray, layout: Layout) -> float:
    import torch.distributed as dist

    part = _part(sample, layout, domain.place)
    dist.barrier(group=domain.group)
    began_s = time.monotonic()
    _step(way, domain, model, part, target, layout)
    dist.barrier(group=domain.group)
    return time.monotonic() - began_s


def _memory(
    way: Any, domain: Any, model: Any, sample: np.ndarray, target: np.ndarray, parts: Sequence[int], rows: int,
    most_times: int,
) -> dict[str, Any]:  # fmt: skip
    """Peaks of a step on the whole sample, and on samples of some times ``rows``, evenly cut."""
    coarse = sample.shape[ROWS] // target.shape[ROWS]
    layout = Layout(ROWS, cut_sizes(way, sample.shape[ROWS], domain.size, parts))
    peak = _peak_bytes(way, domain, model, sample, target, layout)
    by_rows = []
    for times in range(1, most_times + 1):
        wide = np.resize(np.moveaxis(sample, ROWS, 0), (times * rows, *np.delete(sample.shape, ROWS)))
        aim = np.zeros((*target.shape[:ROWS], times * rows // coarse, target.shape[-1]))
        cuts = [coarse * each for each in even_sizes(times * rows // coarse, domain.size)]
        at = Layout(ROWS, cut_sizes(way, times * rows, domain.size, cuts))
        by_rows.append(_peak_bytes(way, domain, model, np.moveaxis(wide, 0, ROWS), aim, at))
    return {"peak_bytes": peak, "peak_by_rows": by_rows}


def _peak_bytes(way: Any, domain: Any, model: Any, sample: np.ndarray, target: np.ndarray, layout: Layout) -> int:
    """How much the memory of this process grows at most during a step, its part of the sample included."""
    import torch.distributed as dist

    model.zero_grad(set_to_none=True)
    gc.collect()
    _returned_at_once()
    dist.barrier(group=domain.group)
    reset_peak()
    before = resident_bytes("VmRSS")
    part = _part(sample, layout, domain.place).clone()
    _step(way, domain, model, part, target, layout)
    peak = resident_bytes("VmHWM") - before
    model.zero_grad(set_to_none=True)
    dist.barrier(group=domain.group)
    return peak


def reset_peak() -> None:
    """Let the peak of this process's memory begin anew (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as problem:
        raise WavetankError("The peak of a process's memory is measured on Linux alone.", given=str(problem)) from None


def resident_bytes(which: str) -> int:
    """Return how much memory of this process is resident (``VmRSS``), or was at most (``VmHWM``), bytes.

    Parameters
    ----------
    which : str
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == which:
            return int(value.split()[0]) * 1024
    raise WavetankError("The system does not say how much memory a process has.", given=which)


def acknowledged_bytes() -> int:
    """Return the bytes that others have received from this process's connections, as the kernel counts (Linux)."""
    total = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as each:
                    if each.family == socket.AF_INET and each.type == socket.SOCK_STREAM:
                        facts = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                        total += struct.unpack_from("=Q", facts, _ACKED_AT)[0]
    return total
