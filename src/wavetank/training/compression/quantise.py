"""Floating-point numbers as integers that may be summed: once, with a proven bound, or by chance, without a bias.

**By a bound.**  A number becomes the nearest multiple of a step that is a hair less than twice the bound.  Integers are
summed exactly, so that the sum over P ranks is off by P times the bound at most, plus the rounding of the result to
single precision.  **By chance** (QSGD): a number becomes one of the two multiples around it, the nearer one more often,
so that the mean is right.  **Differences** (Lorenzo) of integers in the rows and columns of a plane are integers
again and linear: the sum of differences is the difference of sums.  They wrap around at 2^32; sums of the integers do
not, so that what is summed back is right.

Source: S. Di, F. Cappello, "Fast Error-bounded Lossy HPC Data Compression with SZ", IPDPS 2016; quantising before
predicting: J. Tian et al., "cuSZ", PACT 2020; D. Alistarh et al., "QSGD", NeurIPS 2017, arXiv 1610.02132.

Differs from the source:

1. QSGD here scales a bucket by its largest number over all ranks, not by each rank's own norm: otherwise integers of
   different ranks would not have a common unit and could not be summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

LARGEST = 2**31 - 1
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
# What the rounding of a quotient in double precision can move, over 2^31 steps, with room to spare.
_HAIR = 2.0**-18


def step_of(bound: float) -> float:
    """Return the step whose multiples are within the bound of every number.

    Parameters
    ----------
    bound : float

    Raises
    ------
    BadValueError
        If the bound is not above 0, finite, and large enough for double precision to divide by.
    """
    # Written so that nan fails too.
    if isinstance(bound, bool) or not 1e-300 <= bound <= 1e300:
        raise BadValueError("An error needs a bound.", given=bound, allowed="1e-300 to 1e300",
                            hint="for sums without errors take plain-ring")  # fmt: skip
    return 2.0 * bound / (1.0 + _HAIR)


@compiled(nogil=True)
def _quantise(values: Any, per_step: Any, largest: Any, out: Any) -> Any:
    """Fill ``out`` with the nearest multiples; return the first place that has none, or -1."""
    bad = False
    for i in range(values.size):
        q = np.rint(np.float64(values[i]) * per_step)
        # Neither nan nor infinity is within.
        bad |= not (abs(q) <= largest)
        out[i] = np.int32(q)
    if bad:
        for i in range(values.size):
            if not (abs(np.rint(np.float64(values[i]) * per_step)) <= largest):
                return i
    return -1


def quantised(values: Floats, bound: float, size: int = 1) -> Ints:
    """Return the multiples of the bound's step that are nearest to numbers.

    Parameters
    ----------
    values : float32 or float64 array (n,)
    bound : float
        Largest error of each, above 0.
    size : int
        Ranks whose integers are to be summed without overflow.

    Raises
    ------
    BadValueError
        If a number is not finite, or so large that a sum could overflow; the message says which and how many steps.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.size, np.int32)
    step = step_of(bound)
    largest = LARGEST // size
    place = int(_quantise(flat, 1.0 / step, float(largest), out))
    if place >= 0:
        _refuse(flat, place, f"within {largest * step:g}, which {size} ranks can sum at this bound")
    return out


def restored(integers: Ints, bound: float, size: int = 1) -> Floats:
    """Return what integers stand for, in single precision.

    Parameters
    ----------
    integers : int32 array (n,)
    bound : float
    size : int
        Ranks whose integers were summed.  What rounding alone has moved beyond the largest number becomes that number.
    """
    out = np.empty(integers.size, np.float32)
    step = step_of(bound)
    if LARGEST * step <= _LARGEST_FLOAT:
        _restore(integers, step, out)
        return out
    wide = integers * step
    within = np.abs(wide) - size * bound <= _LARGEST_FLOAT
    with np.errstate(over="ignore"):
        out[:] = np.where(within, np.clip(wide, -_LARGEST_FLOAT, _LARGEST_FLOAT), wide)
    return out


@compiled(nogil=True)
def _restore(integers: Any, step: Any, out: Any) -> None:
    for i in range(integers.size):
        out[i] = np.float32(integers[i] * step)


def _refuse(flat: NDArray[Any], place: int, allowed: str) -> None:
    if not np.isfinite(flat[place]):
        raise BadValueError("What is not finite cannot be quantised.", given=f"{flat[place]} at {place}",
                            allowed="finite numbers", hint="plain-ring sums nan and infinity as they are")  # fmt: skip
    raise BadValueError("The number is too large for this bound.", given=f"{flat[place]:g} at {place}",
                        allowed=allowed, hint="take a larger bound")  # fmt: skip


def scales_of(values: Floats, bucket: int) -> Floats:
    """Return the largest magnitude of each bucket.

    Parameters
    ----------
    values : float32 array (n,)
    bucket : int
        Numbers of a bucket; the last one may have fewer.

    Raises
    ------
    BadValueError
        If a number is not finite.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if not flat.size:
        return np.zeros(0, np.float32)
    found = np.maximum.reduceat(np.abs(flat), np.arange(0, flat.size, bucket))
    if not np.all(np.isfinite(found)):
        _refuse(flat, int(np.flatnonzero(~np.isfinite(flat))[0]), "")
    return found


@compiled(nogil=True)
def _by_chance(values: Any, units: Any, bucket: Any, uniform: Any, out: Any) -> None:
    for i in range(values.size):
        unit = np.float64(units[i // bucket])
        out[i] = np.int32(np.floor(np.float64(values[i]) / unit + uniform[i])) if unit > 0.0 else 0


def by_chance(values: Floats, units: NDArray[np.float64], bucket: int, uniform: NDArray[np.float32]) -> Ints:
    """Return one of the two multiples of its bucket's unit around each number; on average it is the number.

    Parameters
    ----------
    values : float32 array (n,)
    units : float64 array (buckets,)
        The same on all ranks; 0 where all numbers are 0.  In double precision, as a rounded unit of very small numbers
        would have more multiples in a number than there are levels.
    bucket : int
    uniform : float32 array (n,)
        Draws from 0 to 1, other ones on each rank.
    """
    out = np.empty(values.size, np.int32)
    _by_chance(np.ascontiguousarray(values).reshape(-1), units, bucket, uniform, out)
    return out


@compiled(nogil=True)
def _differences(q: Any, out: Any) -> None:
    planes, rows, columns = q.shape
    for k in range(planes):
        for i in range(rows):
            before = np.int32(0)
            for j in range(columns):
                value = q[k, i, j]
                if i > 0:
                    value -= q[k, i - 1, j]
                out[k, i, j] = np.int32(value - before)
                before = np.int32(value)


@compiled(nogil=True)
def _sums(d: Any) -> None:
    planes, rows, columns = d.shape
    for k in range(planes):
        for i in range(rows):
            row = np.int32(0)
            for j in range(columns):
                row = np.int32(row + d[k, i, j])
                d[k, i, j] = np.int32(row + d[k, i - 1, j]) if i > 0 else row


def as_planes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return a shape as planes of rows and columns; leading dimensions become planes.

    Parameters
    ----------
    shape : tuple of int
    """
    if len(shape) < 2:
        return 1, 1, int(np.prod(shape))
    return int(np.prod(shape[:-2])), shape[-2], shape[-1]


def differences(integers: Ints, shape: tuple[int, ...]) -> Ints:
    """Return each integer less its left and upper neighbours plus the one between, modulo 2^32.

    Parameters
    ----------
    integers : int32 array (n,)
    shape : tuple of int
        Of the grid; the last two dimensions count.
    """
    out = np.empty(integers.size, np.int32)
    _differences(integers.reshape(as_planes(shape)), out.reshape(as_planes(shape)))
    return out


def summed(differenced: Ints, shape: tuple[int, ...]) -> Ints:
    """Return what :func:`differences` was made of.

    Parameters
    ----------
    differenced : int32 array (n,)
    shape : tuple of int
    """
    out = differenced.copy()
    _sums(out.reshape(as_planes(shape)))
    return out
