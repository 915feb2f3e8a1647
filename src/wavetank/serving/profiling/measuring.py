"""Measures operations one by one: which points of a batch, with which arguments, and for how long.

Only what the request sets is swept.  Between two calls of an operation a pass through a model runs all others: on a
processor its caches are therefore emptied before every call, all but the activations, which the operation before has
just written; weights and KV caches are taken in turns from several copies.
"""

from __future__ import annotations

import functools
import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wavetank.errors import BadValueError, WavetankError
from wavetank.machine import limits, profiles
from wavetank.machine.clocks import CpuClock
from wavetank.machine.cuda import DeviceClock, require_cuda, require_free, require_torch
from wavetank.machine.threads import usable_cores
from wavetank.serving.profiling.database import OperationDatabase, Point, Result, conditions_of
from wavetank.serving.profiling.decoder import attention_arguments
from wavetank.serving.profiling.operations import Operation, evaluated, is_symbol, tensors
from wavetank.serving.profiling.taint import CONTEXT, MAX_CONTEXT, MAX_NUM_REQS, NUM_REQS, NUM_TOKS

WARM_UPS, RUNS, LAUNCHES = 5, 20, 10
"""Of every point, as in the source; ``LAUNCHES`` calls make one run on a GPU."""
_PATTERN = 99_991
# A clock that did not advance says that a call took less than it can show.
_TICK_S = 1e-8
# Copies of weights: as many as make up this much memory, and no more than these.
_OUTGROWN_BYTES, _MOST_COPIES = 64 << 20, 8
# What is read to empty the caches of a core, and the most that is read again of each activation.
_FLUSHED_BYTES, _MOST_WARM_BYTES = 8 << 20, 1 << 20
# Whole numbers are random ones below the first size of an operation that looks something up, and below this elsewhere.
_OTHER_BOUND = 1024
_INDEXING = ("embedding", "index", "gather", "take", "scatter", "select")
# Middle half of the runs over their median, above which something else used the machine; the sweep is made again.
_LARGEST_SPREAD = 0.25


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Where operations are measured.

    Attributes
    ----------
    tokens, requests : tuple of int
        Of operations that depend on these alone.
    chunks, pasts, decodes, contexts : tuple of int
        Attention of prompt chunks after a part of the same prompt, and of decoding sequences.
    mixed_chunks, mixed_pasts, mixed_decodes, mixed_contexts : tuple of int
        Attention of both together.
    """

    tokens: tuple[int, ...]
    requests: tuple[int, ...]
    chunks: tuple[int, ...]
    pasts: tuple[int, ...]
    decodes: tuple[int, ...]
    contexts: tuple[int, ...]
    mixed_chunks: tuple[int, ...]
    mixed_pasts: tuple[int, ...]
    mixed_decodes: tuple[int, ...]
    mixed_contexts: tuple[int, ...]

    @classmethod
    def up_to(cls, max_tokens: int = 2048, max_requests: int = 128, max_context: int = 4096) -> Grid:
        """Return the grid for an engine with these limits.

        Parameters
        ----------
        max_tokens : int
            Of a step.
        max_requests : int
            In a batch.
        max_context : int
            Of one request, prompt and answer.

        Raises
        ------
        BadValueError
            If a limit leaves fewer than two points.
        """
        for name, value, least in (("max_tokens", max_tokens, 16), ("max_requests", max_requests, 2),
                                   ("max_context", max_context, 32)):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 20:
                raise BadValueError("A limit of the grid is out of range.", given=value,
                                    allowed=f"{least} to {1 << 20}", where=name)  # fmt: skip
        chunks, pasts = _axis(min(max_tokens, max_context)), (0, *_axis(max_context // 2, 4, 16))
        decodes, contexts = _axis(max_requests, 2), _axis(max_context, 4, 16)
        return cls(
            tokens=_axis(max_tokens, 2, 1, between=True), requests=_axis(max_requests, 2), chunks=chunks, pasts=pasts,
            decodes=decodes, contexts=contexts, mixed_chunks=_ends(chunks), mixed_pasts=(0, pasts[-1]),
            mixed_decodes=_ends(decodes), mixed_contexts=(contexts[0], contexts[-1]),
        )  # fmt: skip

    def points(self, operation: Operation) -> list[Point]:
        """Return where an operation is measured."""
        kind = operation.kind
        if kind == "once":
            return [Point(tokens=self.tokens[len(self.tokens) // 2], requests=self.requests[0])]
        if kind == "tokens":
            return [Point(tokens=n) for n in self.tokens]
        if kind == "requests":
            return [Point(requests=n) for n in self.requests]
        if kind == "attention":
            alone = [Point(chunk=c, past=p) for c, p in itertools.product(self.chunks, self.pasts)]
            decodes = [Point(decodes=r, context=n) for r, n in itertools.product(self.decodes, self.contexts)]
            mixed = itertools.product(self.mixed_chunks, self.mixed_pasts, self.mixed_decodes, self.mixed_contexts)
            return [*alone, *decodes, *(Point(chunk=c, past=p, decodes=r, context=n) for c, p, r, n in mixed)]
        axes = {
            "tokens": self.tokens[::2] if NUM_TOKS in operation.swept else (0,),
            "requests": self.requests[::2] if NUM_REQS in operation.swept else (0,),
            "context": self.contexts if CONTEXT in operation.swept else (0,),
        }
        found = [Point(tokens=t, requests=r, context=c) for t, r, c in itertools.product(*axes.values())]
        # A batch has no more sequences than tokens.
        return [each for each in found if not (each.tokens and each.requests > each.tokens)]

    def quantities(self, point: Point) -> dict[str, int]:
        """Return the request quantities of a point, by label."""
        return {
            NUM_TOKS: point.tokens or point.chunk + point.decodes, CONTEXT: point.context,
            NUM_REQS: point.requests or point.decodes + (point.chunk > 0), MAX_NUM_REQS: self.requests[-1],
            MAX_CONTEXT: max(self.contexts[-1], self.pasts[-1] + self.chunks[-1]),
        }  # fmt: skip


def _axis(most: int, factor: int = 4, first: int = 1, between: bool = False) -> tuple[int, ...]:
    found = {first, most}
    value = first
    while value < most:
        found.add(value)
        if between and value >= 16:
            found.add(min(value + value // 2, most))
        value *= factor
    return tuple(sorted(each for each in found if each <= most))


def _ends(axis: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((axis[0], axis[len(axis) // 2], axis[-1])))


def device_conditions(device: str, threads: int, clock: str = "wall") -> str:
    """Return what results hold for.

    Parameters
    ----------
    device : str
        As torch names it.
    threads : int
        That torch may use; of no matter on a GPU.
    clock : str
        Likewise.
    """
    torch = require_cuda("Profiling on a GPU", device)
    if torch.device(device).type == "cuda":
        return conditions_of({"device": torch.cuda.get_device_name(device), "torch": torch.__version__,
                              "cuda": str(torch.version.cuda)})  # fmt: skip
    return conditions_of({"device": limits.cpu_model(), "system": platform.machine(), "torch": torch.__version__,
                          "threads": str(threads), "clock": clock})  # fmt: skip


class Call(NamedTuple):
    """One call of an operation: what it does, and the activations that it finds in the caches."""

    run: Callable[[], object]
    activations: tuple[Any, ...]


class Replay:
    """An operation that can be called again and again: its weights are made once, the rest for each point."""

    def __init__(self, operation: Operation, grid: Grid, device: str) -> None:
        self.torch = require_torch("Measuring an operation")
        self.operation, self.grid, self.device = operation, grid, device
        namespace, self._name, overload = operation.name.split(".")
        self._function = getattr(getattr(getattr(self.torch.ops, namespace), self._name), overload)
        largest = max(bytes_of(operation, grid, point) for point in grid.points(operation))
        # Weights are the same at every point: what the request sets is in no weight.
        weights = [(place, part) for place, part in enumerate(operation.arguments["a"]) if _is_weight(part)]
        each = sum(_tensor_bytes(self.torch, part, {}) for _, part in weights)
        # A KV cache is as large as the largest batch needs it.
        each = largest if operation.kind == "attention" else each
        self._copies = min(_MOST_COPIES, max(1, -(-_OUTGROWN_BYTES // each))) if each else 1
        need, purpose = largest + each * (self._copies - 1), f"Measuring {operation.words()}"
        if self.torch.device(device).type == "cuda":
            require_free(device, float(need), purpose)
        else:
            limits.require_memory(need, purpose, "profile with a smaller grid")
        self._weights = [
            {place: _made(self.torch, part, 1, device) for place, part in weights} for _ in range(self._copies)
        ]

    def calls(self, point: Point) -> list[Call]:
        """Return calls at a point that differ in the weights, or the KV cache, that they read alone."""
        arguments, quantities = self.operation.arguments, self.grid.quantities(point)
        if self.operation.kind == "attention":
            longest = max(point.past + point.chunk, point.context)
            made = [attention_arguments(arguments, point._asdict(), self.device, longest) for _ in range(self._copies)]
            return [Call(functools.partial(self._function, *each), each[:3]) for each in made]
        values = evaluated(arguments, quantities)
        first = next((each["d"][0] for each in tensors(values) if each["d"]), 1)
        bound = first if self._name.startswith(_INDEXING) else _OTHER_BOUND
        shared = {
            place: _made(self.torch, part, bound, self.device)
            for place, part in enumerate(values["a"]) if not _is_weight(part)
        }  # fmt: skip
        named = {key: _made(self.torch, part, bound, self.device) for key, part in values.get("k", {}).items()}
        made_of = [{**shared, **weights} for weights in self._weights]
        read = tuple(each for each in shared.values() if isinstance(each, self.torch.Tensor))
        return [
            Call(functools.partial(self._function, *(each[i] for i in sorted(each)), **named), read) for each in made_of
        ]


def bytes_of(operation: Operation, grid: Grid, point: Point) -> int:
    """Return the bytes of an operation's arguments at a point."""
    torch = require_torch("Measuring an operation")
    quantities = grid.quantities(point)
    if operation.kind == "attention":
        # Slots of a cache that no sequence has are not touched.
        quantities[MAX_NUM_REQS] = max(quantities[NUM_REQS], 1)
    return sum(_tensor_bytes(torch, each, quantities) for each in tensors(operation.arguments))


def _tensor_bytes(torch: Any, tensor: Mapping[str, Any], quantities: Mapping[str, int]) -> int:
    found = getattr(torch, tensor["t"]).itemsize
    for size in evaluated(tensor["d"], quantities):
        found *= size
    return int(found)


def _is_weight(part: Any) -> bool:
    return isinstance(part, dict) and "w" in part


def _made(torch: Any, part: Any, bound: int, device: str) -> Any:
    """Return an argument from its evaluated structure."""
    if isinstance(part, list):
        return [_made(torch, each, bound, device) for each in part]
    if not isinstance(part, dict):
        return part
    if "f" in part:
        return float.fromhex(part["f"])
    if "any" in part:
        return 1.0
    if "v" in part:
        text = part["v"]
        return getattr(torch, text.removeprefix("torch.")) if text.startswith("torch.") else torch.device(device)
    if "t" not in part or is_symbol(part):
        raise WavetankError("An argument of an operation cannot be made.", given=part)
    sizes, dtype = (
        [1 if d in part.get("e", ()) else size for d, size in enumerate(part["d"])],
        getattr(torch, part["t"]),
    )
    order = [*part.get("o", ()), *(d for d in range(len(sizes)) if d not in part.get("o", ()))] if "o" in part else None
    shape = [sizes[d] for d in order] if order else sizes
    if dtype.is_floating_point:
        tensor = _random(torch, shape, device).to(dtype)
    elif dtype is torch.bool:
        tensor = torch.ones(shape, dtype=dtype, device=device)
    else:
        tensor = torch.randint(0, max(bound, 1), shape, dtype=dtype, device=device)
    if order:
        tensor = tensor.permute([order.index(d) for d in range(len(sizes))])
    return tensor.expand(part["d"]) if "e" in part else tensor


def _random(torch: Any, shape: Sequence[int], device: str) -> Any:
    """Return normal numbers, large tensors a pattern that repeats: drawing them would take longer than measuring."""
    count = math.prod(shape)
    pattern = torch.randn(min(count, _PATTERN), device=device)
    return pattern.repeat(-(-count // max(len(pattern), 1)))[:count].view(shape) if count else torch.empty(shape)


CLOCKS = ("wall", "processor")
"""What seconds are: those of the wall, or those that the processor worked for this process."""


class _ProcessorClock(CpuClock):
    """Processor time, with the face of a device's clock."""

    on_gpu = False

    def wait(self) -> None:
        """Nothing is queued."""


def clock_of(name: str, device: str) -> DeviceClock | _ProcessorClock:
    """Return a clock.

    Parameters
    ----------
    name : {"wall", "processor"}
        A GPU has its own events, whatever the name.  Where several programs share the cores, and one thread computes,
        processor time is what the wall would show on a calm machine.
    device : str
    """
    if name not in CLOCKS:
        raise BadValueError("There is no such clock.", given=name, allowed=CLOCKS, where="clock")
    device_clock = DeviceClock(device)
    return device_clock if name == CLOCKS[0] or device_clock.on_gpu else _ProcessorClock()


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How a point is timed.

    Attributes
    ----------
    device : str
    clock : {"wall", "processor"}
    warm_ups, runs : int
    budget_s : float
        After which a point has enough runs, if it has three.
    tries : int
        Sweeps of an operation in all, while the machine is busy.
    """

    device: str = "cpu"
    clock: str = "wall"
    warm_ups: int = WARM_UPS
    runs: int = RUNS
    budget_s: float = 0.5
    tries: int = 2

    def timed(self, calls: Sequence[Call]) -> tuple[list[float], float]:
        """Return the seconds of one call, run by run, and all the time that was spent.

        Parameters
        ----------
        calls : sequence of Call
            Taken in turns.
        """
        clock = clock_of(self.clock, self.device)
        began = time.perf_counter()
        turns = itertools.cycle(calls)
        for _ in range(self.warm_ups):
            next(turns).run()
        clock.wait()
        captured = _captured(calls, clock) if clock.on_gpu else None
        seconds: list[float] = []
        while len(seconds) < self.runs:
            if captured is not None:
                seconds.append(clock.seconds(captured) / LAUNCHES)
            else:
                call = next(turns)
                _empty_caches(call.activations)
                seconds.append(max(clock.seconds(call.run), _TICK_S))
            if len(seconds) >= 3 and time.perf_counter() - began > self.budget_s:
                break
        return seconds, time.perf_counter() - began


@functools.cache
def _flushed() -> Any:
    return require_torch("Measuring").ones(_FLUSHED_BYTES // 4)


def _empty_caches(kept: Sequence[Any]) -> None:
    """Put into the caches of this core what no operation reads, and then the tensors that are kept."""
    _flushed().sum()
    for tensor in kept:
        if tensor.numel() * tensor.element_size() <= _MOST_WARM_BYTES and tensor.dtype.is_floating_point:
            tensor.sum()


def _captured(calls: Sequence[Call], clock: Any) -> Callable[[], object]:
    """Return a CUDA graph of ten launches; where an operation cannot be captured, the launches themselves."""
    torch = require_torch("A GPU")
    turns = itertools.cycle(calls)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(LAUNCHES):
                next(turns).run()
        clock.wait()
    except RuntimeError:
        clock.wait()
        return lambda: [next(turns).run() for _ in range(LAUNCHES)]
    replay: Callable[[], object] = graph.replay
    return replay


def sweep(operation: Operation, grid: Grid, points: Sequence[Point], timing: Timing) -> dict[Point, Result]:
    """Measure an operation at some points; again where the machine was busy, and marked where it still was.

    Parameters
    ----------
    operation : Operation
    grid : Grid
    points : sequence of Point
    timing : Timing
    """
    torch = require_torch("Measuring an operation")
    found: dict[Point, Result] = {}
    cores = usable_cores()
    with torch.inference_mode():
        replay = Replay(operation, grid, timing.device)
    for _ in range(timing.tries):
        others = limits.others_cores()
        spreads = []
        with torch.inference_mode():
            for point in points:
                seconds, spent_s = timing.timed(replay.calls(point))
                found[point] = summary(seconds, spent_s)
                spreads.append(_spread(seconds))
        why = profiles.disturbance(statistics.median(spreads), _LARGEST_SPREAD, others(), cores)
        if not why:
            return found
    return {point: replace(result, disturbed=True) for point, result in found.items()}


def summary(seconds: Sequence[float], spent_s: float) -> Result:
    """Return what the runs of one point come to.

    Parameters
    ----------
    seconds : sequence of float
    spent_s : float
    """
    return Result(
        median_s=statistics.median(seconds), mean_s=statistics.fmean(seconds), min_s=min(seconds), max_s=max(seconds),
        std_s=statistics.pstdev(seconds), runs=len(seconds), spent_s=spent_s,
    )  # fmt: skip


def _spread(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    middle = statistics.median(ordered)
    return (ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4]) / middle if middle else 0.0


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What filling a database took.

    Attributes
    ----------
    measured, reused : tuple of Operation
        Operations of which a point or more was measured, and those of which none was.
    points_measured, points_reused : int
    spent_s : float
    disturbed : tuple of Operation
        Measured while the machine was busy; the next profile measures them again.
    """

    measured: tuple[Operation, ...]
    reused: tuple[Operation, ...]
    points_measured: int
    points_reused: int
    spent_s: float
    disturbed: tuple[Operation, ...]


def fill(
    database: OperationDatabase,
    operations: Sequence[Operation],
    grid: Grid,
    conditions: str,
    timing: Timing,
    said: Callable[[str], object] = lambda text: None,
) -> Swept:
    """Measure what the database lacks of some operations.

    Parameters
    ----------
    database : OperationDatabase
    operations : sequence of Operation
        Distinct ones.
    grid : Grid
    conditions : str
    timing : Timing
    said : callable
        Called with each operation that is measured, in words.
    """
    measured: list[Operation] = []
    reused: list[Operation] = []
    disturbed: list[Operation] = []
    points_measured = points_reused = 0
    spent_s = 0.0
    for operation in operations:
        points = grid.points(operation)
        # One process of this machine measures at a time; what it found meanwhile is not measured again.
        missing = database.missing(operation, conditions, points)
        if missing:
            with profiles.locked("operations"):
                missing = database.missing(operation, conditions, points)
                if missing:
                    said(operation.words())
                    found = sweep(operation, grid, missing, timing)
                    database.store(operation, conditions, found)
                    spent_s += sum(each.spent_s for each in found.values())
                    if any(each.disturbed for each in found.values()):
                        disturbed.append(operation)
        (measured if missing else reused).append(operation)
        points_measured += len(missing)
        points_reused += len(points) - len(missing)
    return Swept(
        measured=tuple(measured), reused=tuple(reused), points_measured=points_measured, points_reused=points_reused,
        spent_s=spent_s, disturbed=tuple(disturbed),
    )  # fmt: skip
