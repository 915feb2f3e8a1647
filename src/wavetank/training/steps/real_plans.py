"""Real training steps on two processes, and what torch's own observers say of them.

Each process trains a small stack of blocks (two linear layers and a residual) by four plans: data parallel
(``DistributedDataParallel``), FSDP2 (``fully_shard``), tensor parallel (``parallelize_module``) and a 1F1B pipeline
(``torch.distributed.pipelining``), through gloo on loopback, one thread each.  ``ExecutionTraceObserver`` says which
operations a step calls and which storages each touches; ``torch.profiler`` says in other steps when they begin and end;
yet other steps run with nobody watching, and their length is what a prediction is held against.

Needs the extra ``torch``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadTraceError
from wavetank.live.rank_process import Rank
from wavetank.workloads.chakra import read_trace_file
from wavetank.workloads.host_calls import Span, calls_of, spans_in, times_of

PLANS = ("data-parallel", "fsdp2", "tensor", "1f1b")
RANKS = 2
MESSAGES = ("all-reduce", "all-gather", "reduce-scatter", "send")
_BUCKET_MB = 1
_RATE = 1e-3
_CACHE_BYTES = 1 << 24
_MARK = "wavetank step"

Step = Callable[[int], None]
"""Runs one step with as many rows as it is given."""


def run_plans(
    rank: Rank,
    *,
    plans: Sequence[str],
    width: int,
    layers: int,
    microbatches: int,
    watched_rows: Sequence[int],
    rows: Sequence[int],
    sizes: Sequence[int],
    turns: int,
    repeats: int,
    seed: int,
) -> dict[str, Any]:
    """Return what this process found, as plain values.

    Every turn times messages of all sizes, then goes through the plans and numbers of rows: watched steps of
    ``watched_rows``, and steps of all ``rows`` with nobody watching.  All that is compared is spread over the same
    time, because the machine has other work.

    Parameters
    ----------
    rank : Rank
    plans : sequence of str
        Of :data:`PLANS`.
    width, layers : int
        Numbers in a row, and blocks.
    microbatches : int
        Of the pipeline; every number of rows is a multiple of it.
    watched_rows, rows : sequence of int
        Rows of a step.
    sizes : sequence of int
        Bytes of messages.
    turns, repeats : int
    seed : int
        Of weights and rows.

    Raises
    ------
    BadTraceError
        If fewer than half of the recorded steps of a plan call what its first one did.

    Returns
    -------
    dict
        ``calls`` by plan and rows, ``begin`` and ``end`` (s, one row a step, one column a call) by plan and rows,
        ``steps`` (begin and end, s) by plan and rows, ``messages`` (begin, end and processor seconds) by kind and size.
    """
    import torch

    torch.set_num_threads(1)
    rank.default_group()
    torch.manual_seed(seed)
    steps = {plan: _MAKERS[plan](rank.number, width, layers, microbatches) for plan in plans}
    found: dict[str, Any] = {"calls": {}, "begin": {}, "end": {}, "steps": {}, "messages": {}}
    with tempfile.TemporaryDirectory(prefix="wavetank-steps-") as folder:
        for plan in plans:
            found["calls"][plan] = {}
            for each in dict.fromkeys((*rows, *watched_rows)):
                for _ in range(2):
                    _timed(steps[plan], each)
            for each in watched_rows:
                found["calls"][plan][str(each)] = _called(steps[plan], each, Path(folder) / "trace.json")
    begin: dict[str, dict[str, list[Any]]] = {plan: {str(each): [] for each in watched_rows} for plan in plans}
    end: dict[str, dict[str, list[Any]]] = {plan: {str(each): [] for each in watched_rows} for plan in plans}
    alone: dict[str, dict[str, list[Any]]] = {plan: {str(each): [] for each in rows} for plan in plans}
    messages: dict[str, dict[str, list[Any]]] = {kind: {str(each): [] for each in sizes} for kind in MESSAGES}
    for turn in range(turns):
        for kind in MESSAGES:
            for size in sizes:
                messages[kind][str(size)] += [_message(rank.number, kind, size) for _ in range(repeats)]
        for plan in plans:
            for each in (rows, tuple(reversed(rows)))[turn % 2]:
                alone[plan][str(each)] += [_timed(steps[plan], each) for _ in range(repeats)]
            for each in (watched_rows, tuple(reversed(watched_rows)))[turn % 2]:
                names = [call["name"] for call in found["calls"][plan][str(each)]]
                for began, ended in _watched(steps[plan], each, names, repeats):
                    begin[plan][str(each)].append(began)
                    end[plan][str(each)].append(ended)
    for plan, each in ((plan, each) for plan in plans for each in watched_rows):
        if 2 * len(begin[plan][str(each)]) < turns * repeats:
            raise BadTraceError(
                "Most recorded steps call other operations than the first.", given=f"{plan}, {each} rows",
                allowed="the same calls in every step",
            )  # fmt: skip
    found["begin"] = {plan: {key: np.array(value) for key, value in of.items()} for plan, of in begin.items()}
    found["end"] = {plan: {key: np.array(value) for key, value in of.items()} for plan, of in end.items()}
    found["steps"] = {plan: {key: np.array(value) for key, value in of.items()} for plan, of in alone.items()}
    found["messages"] = {kind: {key: np.array(value) for key, value in of.items()} for kind, of in messages.items()}
    return found


def _timed(step: Step, rows: int) -> tuple[float, float]:
    """When a step began and ended, on the clock that all processes of the machine share."""
    import torch.distributed as dist

    dist.barrier()
    began = time.monotonic()
    step(rows)
    return began, time.monotonic()


def _called(step: Step, rows: int, file: Path) -> list[dict[str, Any]]:
    """Return what one step calls, by torch's observer of execution traces and its profiler."""
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function

    observer = ExecutionTraceObserver()
    observer.register_callback(str(file))
    _barrier()
    with (
        profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer) as profiler,
        record_function(_MARK),
    ):
        step(rows)
    observer.unregister_callback()
    spans = file.with_name("spans.json")
    profiler.export_chrome_trace(str(spans))
    return calls_of(read_trace_file(file), spans_in(spans.read_text(encoding="utf-8")), _MARK)


def _watched(step: Step, rows: int, names: Sequence[str], repeats: int) -> list[tuple[list[float], list[float]]]:
    """Return when the calls of some steps begin and end, by torch's profiler; the step's own begin and end first."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            _barrier()
            with record_function(_MARK):
                step(rows)
    spans = [Span(-1, each.name, each.thread, each.time_range.start, each.time_range.end) for each in profiler.events()]
    return times_of(spans, _MARK, names)


def _barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def _message(number: int, kind: str, size: int) -> tuple[float, float, float]:
    """When one message or collective began and ended, s, and processor seconds of this process during it.

    Of a message there and back, as if it had ended halfway.
    """
    import torch
    import torch.distributed as dist

    # As in a step: memory that was not used before, and nothing of it in a cache.
    half = torch.ones(size // 8, dtype=torch.float32)
    whole = torch.empty(2 * half.numel(), dtype=torch.float32)
    if kind in ("all-reduce", "reduce-scatter", "send"):
        whole.fill_(1.0)
    torch.ones(_CACHE_BYTES // 4).sum()
    dist.barrier()
    began, worked = time.monotonic(), time.process_time()
    if kind == "all-reduce":
        dist.all_reduce(whole)
    elif kind == "all-gather":
        dist.all_gather_into_tensor(whole, half)
    elif kind == "reduce-scatter":
        dist.reduce_scatter_tensor(torch.empty_like(half), whole)
    elif number == 0:
        dist.send(whole, 1)
        dist.recv(torch.empty_like(whole), 1)
    else:
        dist.recv(whole, 0)
        dist.send(whole, 0)
    ended, trips = time.monotonic(), 2 if kind == "send" else 1
    return began, began + (ended - began) / trips, (time.process_time() - worked) / trips


def _blocks(width: int, layers: int) -> Any:
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.gelu(self.up(x)))

    return nn.Sequential(*[Block() for _ in range(layers)])


def _rows(width: int) -> Callable[[int], tuple[Any, Any]]:
    import torch

    known: dict[int, tuple[Any, Any]] = {}

    def give(rows: int) -> tuple[Any, Any]:
        if rows not in known:
            known[rows] = torch.randn(rows, width), torch.randn(rows, width)
        return known[rows]

    return give


def _error(out: Any, wanted: Any) -> Any:
    return ((out - wanted) ** 2).mean()


def _trained(model: Any, width: int) -> Step:
    """Return a step of a model that looks like one in a single process."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    give = _rows(width)

    def step(rows: int) -> None:
        given, wanted = give(rows)
        _error(model(given), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _data_parallel(number: int, width: int, layers: int, microbatches: int) -> Step:
    from torch.nn.parallel import DistributedDataParallel

    return _trained(
        DistributedDataParallel(_blocks(width, layers), bucket_cap_mb=_BUCKET_MB, gradient_as_bucket_view=True), width
    )


def _fsdp2(number: int, width: int, layers: int, microbatches: int) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = _blocks(width, layers), init_device_mesh("cpu", (RANKS,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _trained(model, width)


def _tensor(number: int, width: int, layers: int, microbatches: int) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = _blocks(width, layers), init_device_mesh("cpu", (RANKS,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return _trained(model, width)


def _pipeline(number: int, width: int, layers: int, microbatches: int) -> Step:
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model, give = _blocks(width, layers), _rows(width)
    half = model[: layers // 2] if number == 0 else model[layers // 2 :]
    optimizer = torch.optim.SGD(half.parameters(), lr=_RATE)
    schedules: dict[int, Any] = {}

    def step(rows: int) -> None:
        if rows not in schedules:
            stage = PipelineStage(half, number, RANKS, torch.device("cpu"))
            schedules[rows] = Schedule1F1B(stage, microbatches, loss_fn=_error)
        given, wanted = give(rows)
        if number == 0:
            schedules[rows].step(given)
        else:
            schedules[rows].step(target=wanted, losses=[])
        optimizer.step()
        optimizer.zero_grad()

    return step


_MAKERS: dict[str, Callable[[int, int, int, int], Step]] = {
    "data-parallel": _data_parallel, "fsdp2": _fsdp2, "tensor": _tensor, "1f1b": _pipeline,
}  # fmt: skip
