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
from wavetank.training.domains.interface import Alone, Layout, Outcome, even_sizes
from wavetank.training.domains.rivals import OneProcess

ROWS = 2
# glibc's mallopt: from which size on blocks go back to the system when they are free, and how much else is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_RETURNED_AT_ONCE = {_MMAP_THRESHOLD: 1 << 16, _TRIM_THRESHOLD: 1 << 17}
_KEPT = {_MMAP_THRESHOLD: 1 << 25, _TRIM_THRESHOLD: 1 << 26}
# Of linux/tcp.h: where bytes_acked lies in tcp_info.
_TCP_INFO_BYTES, _ACKED_AT = 192, 120
# A peak is measured to some pages, and to what libraries keep.
_SLACK = 1.02


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


def layout_of(system: Any, rows: int, processes: int, cuts: Sequence[int]) -> Layout:
    """Return how a sample is cut for a system.

    Parameters
    ----------
    system : Divider
    rows, processes : int
    cuts : sequence of int
        Rows of each process, where the system does not ask for others.
    """
    ask = getattr(system, "sizes", None)
    return Layout(ROWS, tuple(cuts) if ask is None else ask(rows, processes, tuple(cuts)))


def memory_step(memory_rows: int, patch: int) -> int:
    """Return by how many rows samples differ of which the largest is sought that fits: about a quarter of the limit's.

    Parameters
    ----------
    memory_rows : int
        A multiple of ``patch``.
    patch : int
        Rows of a patch, which nobody cuts.
    """
    return max(patch, memory_rows // 4 // patch * patch)


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
    everyone = Domain(range(rank.size), groups[max(cuts, key=int)])
    step = memory_step(memory_rows, _patch(sample, target))
    # Memory first: what is resident is what is in use while nothing else was left behind.
    _allocate_as(_RETURNED_AT_ONCE)
    found["plain"] = plain = _plain(everyone, model, sample, target, memory_rows)
    mine = {processes: parts for processes, parts in cuts.items() if rank.number < int(processes)}
    for processes, parts in mine.items():
        domain = Domain(range(int(processes)), groups[processes])
        found[processes] = {}
        for name, way in ways.items():
            layout = layout_of(way, sample.shape[ROWS], domain.size, parts)
            one = _checked(way, domain, model, sample, target, layout)
            # The step before also took what libraries keep for ever.
            one["peak_bytes"] = _peak_bytes(way, domain, model, sample, target, layout)
            if domain.size > 1 or len(cuts) == 1:
                # Nobody has more than as many times the rows.
                most = domain.size * memory_rows
                one["most_rows"] = _most_rows(way, domain, model, sample, target, step, most, plain["limit_bytes"])
            found[processes][name] = one | {"time_s": []}
    _allocate_as(_KEPT)
    for processes, parts in mine.items():
        domain = Domain(range(int(processes)), groups[processes])
        for turn in range(turns):
            for name in [*ways][turn % len(ways) :] + [*ways][: turn % len(ways)]:
                layout = layout_of(ways[name], sample.shape[ROWS], domain.size, parts)
                found[processes][name]["time_s"].append(_timed(ways[name], domain, model, sample, target, layout))
    return found


def _allocate_as(parameters: Mapping[int, int]) -> None:
    """Let glibc give freed memory back to the system at once, or keep it, as it comes to do in a long run."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for number, value in parameters.items():
            library.mallopt(number, value)
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
        "sizes": list(layout.sizes), "grad_begin": layout.begins()[domain.place],
        "grad": None if outcome.grad is None else outcome.grad.numpy(),
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


def _plain(domain: Any, model: Any, sample: np.ndarray, target: np.ndarray, rows: int) -> dict[str, int]:
    """What the step takes in one process, which all are held against: of the whole sample, and of ``rows``."""
    import torch
    import torch.distributed as dist

    peaks = torch.zeros(2, dtype=torch.int64)
    if not domain.place:
        for at, (given, aim) in enumerate(((sample, target), _samples(sample, target, rows))):
            for _ in range(2):
                # The first step also takes what libraries keep for ever.
                peaks[at] = _peak_bytes(OneProcess(), Alone(), model, given, aim, Layout(ROWS, (given.shape[ROWS],)))
    dist.broadcast(peaks, domain.members[0], group=domain.group)
    return {"peak_bytes": int(peaks[0]), "limit_bytes": int(peaks[1])}


def _most_rows(
    way: Any, domain: Any, model: Any, sample: np.ndarray, target: np.ndarray, step: int, most: int, limit_bytes: int
) -> int:
    """Rows of the largest sample, evenly cut, that fits into a limit of memory in every process; multiples of a step.

    The more rows, the more memory: half of those that are left need not be tried each time.
    """
    import torch

    coarse = _patch(sample, target)
    fits, too_many = 0, most // step + 1
    while too_many - fits > 1:
        tried = (fits + too_many) // 2
        rows = tried * step
        wide, aim = _samples(sample, target, rows)
        cuts = [coarse * each for each in even_sizes(rows // coarse, domain.size)]
        peak = _peak_bytes(way, domain, model, wide, aim, layout_of(way, rows, domain.size, cuts))
        largest = int(domain.all_reduce(torch.tensor(peak), largest=True))
        fits, too_many = (tried, too_many) if largest <= limit_bytes * _SLACK else (fits, tried)
    return fits * step


def _patch(sample: np.ndarray, target: np.ndarray) -> int:
    return int(sample.shape[ROWS] // target.shape[ROWS])


def _samples(sample: np.ndarray, target: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A sample of some rows, those of the given one again and again, and an aim of its shape."""
    wide = np.resize(np.moveaxis(sample, ROWS, 0), (rows, *np.delete(sample.shape, ROWS)))
    aim = np.zeros((*target.shape[:ROWS], rows // _patch(sample, target), target.shape[-1]))
    return np.moveaxis(wide, 0, ROWS), aim


def _peak_bytes(way: Any, domain: Any, model: Any, sample: np.ndarray, target: np.ndarray, layout: Layout) -> int:
    """How much the memory of this process grows at most during a step, its part of the sample included."""
    import torch.distributed as dist

    model.zero_grad(set_to_none=True)
    gc.collect()
    # What is left, libraries above all, is not looked through again.
    gc.freeze()
    _allocate_as({})
    if domain.size > 1:
        dist.barrier(group=domain.group)
    reset_peak()
    before = resident_bytes("VmRSS")
    part = _part(sample, layout, domain.place).clone()
    _step(way, domain, model, part, target, layout)
    peak = resident_bytes("VmHWM") - before
    model.zero_grad(set_to_none=True)
    if domain.size > 1:
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
