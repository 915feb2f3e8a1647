"""Counts, without measuring, how much of a profile of many models is the same measurement twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from wavetank.platforms.catalog import Device
from wavetank.serving.profiling.database import Point
from wavetank.serving.profiling.measuring import Grid, bytes_of
from wavetank.serving.profiling.models import DecoderConfig
from wavetank.serving.profiling.operations import Operation, evaluated
from wavetank.serving.profiling.profiled import Variant, traced

# A kernel takes at least this, however little it does.
_LAUNCH_S = 4e-6


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Measurements that a set of models needs.

    Attributes
    ----------
    points, all_points : int
        Points to measure when equal keys are measured once, and when every model measures all of its own.
    seconds, all_seconds : float
        The same, weighted by the time of one call on a device.
    operations : int
        Distinct keys.
    """

    points: int
    all_points: int
    seconds: float
    all_seconds: float
    operations: int

    @property
    def saved(self) -> float:
        """Share of the measurements that is not made."""
        return 1 - self.points / self.all_points

    @property
    def saved_time(self) -> float:
        """Share of the time that is not spent."""
        return 1 - self.seconds / self.all_seconds


def count(
    models: Mapping[DecoderConfig, tuple[Operation, ...]],
    grid: Grid,
    key: Callable[[DecoderConfig, Operation], Hashable],
    device: Device,
) -> Counted:
    """Count the measurements of some models, those with equal keys once.

    Parameters
    ----------
    models : mapping of DecoderConfig to tuple of Operation
        Distinct operations of each.
    grid : Grid
    key : callable
    device : Device
    """
    seen: dict[Hashable, tuple[int, float]] = {}
    all_points, all_seconds = 0, 0.0
    for config, operations in models.items():
        for operation in operations:
            cost = _cost(operation, grid, device)
            seen.setdefault(key(config, operation), cost)
            all_points, all_seconds = all_points + cost[0], all_seconds + cost[1]
    return Counted(
        points=sum(points for points, _ in seen.values()), all_points=all_points,
        seconds=sum(seconds for _, seconds in seen.values()), all_seconds=all_seconds, operations=len(seen),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _cost(operation: Operation, grid: Grid, device: Device) -> tuple[int, float]:
    points = grid.points(operation)
    return len(points), sum(call_seconds(operation, grid, point, device) for point in points)


def call_seconds(operation: Operation, grid: Grid, point: Point, device: Device) -> float:
    """Return the roofline of one call on a device: a launch, its traffic or its arithmetic, whichever is longest."""
    if operation.kind == "once":
        return _LAUNCH_S
    arguments = evaluated(operation.arguments, grid.quantities(point))["a"]
    flops, moved = 0.0, float(bytes_of(operation, grid, point))
    if operation.kind == "attention":
        (_, heads, size), (_, kv_heads, _) = arguments[0]["d"], arguments[1]["d"]
        pairs = point.chunk * point.past + point.chunk * (point.chunk + 1) / 2 + point.decodes * point.context
        flops = 4.0 * heads * size * pairs
        read = point.past + point.chunk + point.decodes * point.context
        moved = 2.0 * 2 * kv_heads * size * read + 2.0 * 2 * heads * size * (point.chunk + point.decodes)
    elif operation.name == "aten.linear.default":
        rows, (out, into) = arguments[0]["d"][0], arguments[1]["d"]
        flops = 2.0 * rows * out * into
    elif operation.name == "wavetank.experts.default":
        rows, (_, wide, hidden), per_token = arguments[0]["d"][0], arguments[2]["d"], arguments[4]
        flops = 3.0 * rows * per_token * wide * hidden
    return max(_LAUNCH_S, moved / device.hbm_bytes_per_s, flops / device.bf16_flops_per_s)


@lru_cache(maxsize=256)
def distinct(config: DecoderConfig, variant: Variant) -> tuple[Operation, ...]:
    """Return the distinct operations of a model."""
    return tuple(traced(config, variant).counts)
