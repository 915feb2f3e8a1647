"""From measured points of operations to the time of any batch.

An operation's time is interpolated between what was measured, so that measured points come out as measured; along
tokens or sequences alone it never falls, because more work takes no less time: neighbours that say otherwise are noise
and become their mean.  A step is the sum of its operations, and the sum over a whole model is one table for the
compiled simulator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.profiling.database import OperationDatabase, Point, ProfiledModel
from wavetank.serving.profiling.operations import Operation, evaluated
from wavetank.serving.profiling.taint import CONTEXT, MAX_CONTEXT, MAX_NUM_REQS, NUM_REQS, NUM_TOKS

if TYPE_CHECKING:
    from wavetank.platforms.links import Link

_Floats = NDArray[np.float64]
Latency = Callable[[Point], float]
"""Seconds of one call of an operation at a point."""
# No step takes less, whatever the overhead beside the operations came to.
_LEAST_S = 1e-9


def monotone(seconds: _Floats) -> _Floats:
    """Return the nearest times, in least squares, that never fall; equal to the given ones where these do not."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(seconds).x, np.float64)


def fitted(operation: Operation, measured: Mapping[Point, float]) -> Latency:
    """Return the time of an operation at any point, from its measured ones.

    Parameters
    ----------
    operation : Operation
    measured : mapping of Point to float
        Seconds.

    Raises
    ------
    BadFileError
        If nothing was measured.
    """
    if not measured:
        raise BadFileError("Nothing was measured of an operation.", given=operation.words(),
                           hint="profile the model again")  # fmt: skip
    kind = operation.kind
    if kind == "once":
        ((_, constant_s), *_) = measured.items()
        return lambda point: constant_s
    if kind in ("tokens", "requests"):
        pairs = sorted((getattr(point, kind), seconds) for point, seconds in measured.items())
        axis, line = np.array([n for n, _ in pairs], np.float64), monotone(np.array([s for _, s in pairs]))
        return lambda point: _on_line(axis, line, float(getattr(point, kind)))
    if kind == "attention":
        return _attention(measured)
    return _product(measured)


def _on_line(axis: _Floats, line: _Floats, x: float) -> float:
    if x <= axis[-1] or axis.size == 1:
        return float(np.interp(x, axis, line))
    # The trend of the upper half: the last interval alone is mostly noise.
    half = float(np.interp(axis[-1] / 2, axis, line))
    slope = max(0.0, float(line[-1]) - half) / (axis[-1] / 2)
    return float(line[-1] + slope * (x - axis[-1]))


def _product(measured: Mapping[Point, float]) -> Latency:
    """Return an interpolation over tokens, sequences and context, as far as each was varied."""
    from scipy.interpolate import RegularGridInterpolator

    keys = [(point.tokens, point.requests, point.context) for point in measured]
    axes = [np.array(sorted({key[d] for key in keys}), np.float64) for d in range(3)]
    grid = np.full([axis.size for axis in axes], np.nan)
    for key, seconds in zip(keys, measured.values(), strict=True):
        grid[tuple(int(np.searchsorted(axis, x)) for axis, x in zip(axes, key, strict=True))] = seconds
    # A batch of fewer tokens than sequences does not exist: what is asked there is asked by interpolation alone.
    for place in map(tuple, np.argwhere(np.isnan(grid).any(axis=0) & ~np.isnan(grid).all(axis=0))):
        column = grid[(slice(None), *place)]
        known = ~np.isnan(column)
        grid[(slice(None), *place)] = np.interp(axes[0], axes[0][known], column[known])
    varied = [d for d, axis in enumerate(axes) if axis.size > 1]
    if not varied:
        return lambda point: float(grid.ravel()[0])
    table = RegularGridInterpolator([axes[d] for d in varied], grid.squeeze(), bounds_error=False, fill_value=None)
    low = np.array([axes[d][0] for d in varied])

    def latency(point: Point) -> float:
        asked = np.array([float((point.tokens, point.requests, point.context)[d]) for d in varied])
        return max(float(table(np.maximum(asked, low))[0]), _LEAST_S)

    return latency


def _attention(measured: Mapping[Point, float]) -> Latency:
    """Return attention as the compiled table has it: the mean context of the decodes counts, less the newest token."""
    table = TableStepTime.from_measurements(
        "attention", {0.0: 0.0, 1.0: 0.0}, {0.0: 0.0, 1.0: 0.0}, {_key(point): s for point, s in measured.items()}
    )

    def latency(point: Point) -> float:
        pairs = point.chunk * point.past + point.chunk * (point.chunk + 1) // 2
        return table.seconds(point.decodes, point.decodes * max(point.context - 1, 0), point.chunk, pairs)

    return latency


def _key(point: Point) -> tuple[float, float, float, float]:
    # The simulator counts a context without the token that is being computed.
    return point.chunk, point.past, point.decodes, max(point.context - 1, 0)


def batch_point(operation: Operation, point: Point) -> Point:
    """Return where in its own grid an operation stands when attention of the same batch stands at ``point``.

    Parameters
    ----------
    operation : Operation
    point : Point
        Of attention: chunk, past, decodes, context.
    """
    if operation.kind == "attention":
        return point
    return Point(
        tokens=point.chunk + point.decodes, requests=point.decodes + (point.chunk > 0),
        context=point.past + point.chunk + point.decodes * point.context,
    )  # fmt: skip


def latencies(
    database: OperationDatabase, model: ProfiledModel, conditions: str
) -> tuple[dict[Operation, Latency], dict[Operation, dict[Point, float]]]:
    """Return the fitted times of a model's operations, and what they were fitted to."""
    measured = {
        operation: {point: result.median_s for point, result in database.results(operation, conditions).items()}
        for operation in model.counts
    }
    return {operation: fitted(operation, points) for operation, points in measured.items()}, measured


def compiled_step_time(
    model: ProfiledModel,
    fits: Mapping[Operation, Latency],
    measured: Mapping[Operation, Mapping[Point, float]],
    *,
    link: Link | None = None,
) -> TableStepTime:
    """Return the step time of a whole model as a table for the compiled simulator.

    Parameters
    ----------
    model : ProfiledModel
    fits : mapping of Operation to Latency
    measured : mapping of Operation to the points it was measured at
        They become the axes of the table.
    link : Link, optional
        Between the devices of a model that several share.

    Raises
    ------
    BadValueError
        If devices share the model and no link is given.
    BadFileError
        If too few points were measured.
    """
    kinds: dict[str, list[Operation]] = {}
    for operation in model.counts:
        kinds.setdefault(operation.kind, []).append(operation)
    axes = {
        kind: sorted({getattr(point, kind) for each in kinds.get(kind, ()) for point in measured[each]})
        for kind in ("tokens", "requests")
    }
    fixed_s = model.step_s + sum(model.counts[each] * fits[each](Point()) for each in kinds.get("once", ()))
    per_token = _collectives_s(model, link, NUM_TOKS, axes["tokens"])
    per_row = _collectives_s(model, link, NUM_REQS, axes["requests"])
    for n in axes["tokens"]:
        per_token[n] += fixed_s + _sum(model, fits, kinds.get("tokens", ()), Point(tokens=n))
        # Operations that were called one by one took longer than in the pass: a step still takes time.
        per_token[n] = max(per_token[n], _LEAST_S)
    for n in axes["requests"]:
        in_row_s = _sum(model, fits, kinds.get("requests", ()), Point(requests=n))
        per_row[n] = max(per_row[n] + in_row_s + n * model.sequence_s, 0.0)
    in_batches = [*kinds.get("attention", ()), *kinds.get("product", ())]
    points = {point for each in kinds.get("attention", ()) for point in measured[each]}
    attention = {_key(point): _sum(model, fits, in_batches, point) for point in points}
    return TableStepTime.from_measurements(f"profile of {model.name}", per_token, per_row, attention)


def _sum(
    model: ProfiledModel, fits: Mapping[Operation, Latency], operations: list[Operation] | tuple[()], point: Point
) -> float:
    return sum(
        model.counts[each] * fits[each](batch_point(each, point) if point.chunk or point.decodes else point)
        for each in operations
    )


def _collectives_s(model: ProfiledModel, link: Link | None, label: str, axis: list[int]) -> dict[float, float]:
    """Return what the collectives that grow with a quantity take at each of its values; fixed ones grow with tokens."""
    import json

    found: dict[float, float] = dict.fromkeys(axis, 0.0)
    for (name, elements, dtype, devices), count in model.collectives.items():
        if link is None:
            raise BadValueError(
                "Devices share the model, and what connects them is not given.", given=f"{devices} devices, {name}",
                hint="give link=wavetank.platforms.links.Link(...)",
            )  # fmt: skip
        dims = json.loads(elements)
        if (NUM_REQS in str(dims)) != (label == NUM_REQS):
            continue
        for n in axis:
            quantities = {NUM_TOKS: n, NUM_REQS: n, MAX_NUM_REQS: n, CONTEXT: n, MAX_CONTEXT: n}
            sent = float(np.prod(evaluated(dims, quantities))) * _bytes_of(dtype)
            time_s = link.all_gather_s if "gather" in name or "scatter" in name else link.all_reduce_s
            found[n] += count * time_s(devices, sent)
    return found


def _bytes_of(dtype: str) -> int:
    """Return the bytes of an element, by the bits in its name: two narrower ones share a byte."""
    bits = re.search(r"[0-9]+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else 1
