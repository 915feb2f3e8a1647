"""Faults planted in series: what a detector should find is known because it was put there.

A :class:`Plant` is one departure of one series over a span of samples, scaled by a strength, so that recall can be
drawn over how plain a fault is.  :func:`plant` changes an array of series in place; an array may be one chunk of a
longer stream, and the same plants, applied chunk by chunk, give what they give on the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

Kind = Literal["spike", "level", "drift", "freeze", "drop-out"]
KINDS: tuple[Kind, ...] = ("spike", "level", "drift", "freeze", "drop-out")
# Share of the samples of a span that spikes strike.
SPIKE_SHARE = 0.3
# A factor of zero has no power; this is as good as none.
_LEAST_FACTOR = 0.01


class Plant(NamedTuple):
    """One departure.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.  A level holds over the span; a drift grows linearly up to its end; spikes strike a share
        of the samples of a span (:data:`SPIKE_SHARE`), and all of one shorter than four; a frozen series repeats
        the last value before the span; of one that drops out, samples are missing.
    series : tuple of int
        Index of the series in all axes but the last, which is time.  An axis may be a slice of all: a change of all
        peers alike.
    begin, end : int
        Samples, the end excluded, counted from the start of the stream.
    factor : float
        By which values are multiplied, at full strength.
    size : float
        What is added then, in the unit of the series.
    """

    kind: Kind
    series: tuple[int | slice, ...]
    begin: int
    end: int
    factor: float = 1.0
    size: float = 0.0


def common_mode(axes: int, at: int, begin: int, end: int, *, factor: float = 1.0, size: float = 0.0) -> Plant:
    """Return a change of level that all peers have alike: no detector of single peers should speak of it.

    Parameters
    ----------
    axes : int
        Axes of the array without time; the first is that of the metrics, the others are peers.
    at : int
        The metric.
    begin, end : int
        Samples.
    factor, size : float
    """
    return Plant("level", (at, *(slice(None) for _ in range(axes - 1))), begin, end, factor, size)


def plant(
    values: NDArray[np.floating],
    plants: Sequence[Plant],
    *,
    strength: float = 1.0,
    first: int = 0,
    before: NDArray[np.floating] | None = None,
    seed: int = 0,
) -> None:
    """Change series in place.

    Parameters
    ----------
    values : ndarray of float, shape (..., samples)
        One chunk of a stream, or all of it.
    plants : sequence of Plant
        Applied one after the other.
    strength : float
        0 changes nothing, 1 is as the plants say: sizes grow with it, factors are powers, of drop-outs and frozen
        series this share of the samples (at most all) is struck.
    first : int
        Which sample of the stream is the first of the chunk.
    before : ndarray of float, shape (...), optional
        Values of the sample before the chunk, for series that were frozen earlier; by default they freeze with the
        first value of the chunk.
    seed : int
        Says which samples spikes and drop-outs strike.

    Raises
    ------
    BadValueError
        If a plant names no series, no span or no finite change.
    """
    if not 0 <= strength < np.inf:
        raise BadValueError("The strength of a fault is 0 or more.", given=strength, allowed="a finite number >= 0")
    samples = values.shape[-1]
    for number, each in enumerate(plants):
        _check(each, values)
        begin, end = max(each.begin, first) - first, min(each.end, first + samples) - first
        if begin >= end or strength == 0:
            continue
        span = values[each.series][..., begin:end]
        if each.kind in ("level", "drift"):
            grown = np.ones(end - begin)
            if each.kind == "drift":
                grown *= (np.arange(begin, end) + first + 1 - each.begin) / (each.end - each.begin)
            _changed(span, each, strength * grown)
            continue
        # Drawn for the whole span, so that chunks draw alike.
        drawn = stream(seed, "plants", number, *_place(each)).random(each.end - each.begin)
        drawn = drawn[begin + first - each.begin : end + first - each.begin]
        if each.kind == "spike":
            share = SPIKE_SHARE if each.end - each.begin >= 4 else 1.0
            _changed(span, each, strength * np.asarray(drawn < share, dtype=np.float64))
        elif each.kind == "drop-out":
            span[..., drawn < strength] = np.nan
        else:
            held = span[..., 0] if before is None else before[each.series]
            if begin > 0:
                held = values[each.series][..., begin - 1]
            struck = drawn < strength
            span[..., struck] = np.broadcast_to(np.asarray(held)[..., None], span.shape)[..., struck].copy()


def _changed(span: NDArray[np.floating], each: Plant, strength: NDArray[np.float64]) -> None:
    span *= np.power(max(each.factor, _LEAST_FACTOR), strength).astype(span.dtype)
    span += (each.size * strength).astype(span.dtype)


def _place(each: Plant) -> tuple[int, ...]:
    return (*(part for part in each.series if isinstance(part, int)), each.begin, each.end)


def _check(each: Plant, values: NDArray[np.floating]) -> None:
    if each.kind not in KINDS:
        raise BadValueError("There is no such kind of fault.", given=each.kind, allowed=KINDS)
    inside = len(each.series) == values.ndim - 1 and all(
        isinstance(part, slice) or 0 <= part < size for part, size in zip(each.series, values.shape, strict=False)
    )
    if not inside:
        raise BadValueError("The fault is in no series.", given=str(each.series),
                            allowed=f"indices into {values.shape[:-1]}")  # fmt: skip
    if not 0 <= each.begin < each.end or not (0 <= each.factor < np.inf and abs(each.size) < np.inf):
        raise BadValueError("The fault has no span, or no finite change.", given=str(each),
                            allowed="0 <= begin < end, a factor of 0 or more, a finite size")  # fmt: skip
