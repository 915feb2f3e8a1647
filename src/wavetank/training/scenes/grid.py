"""From values with an error bound to whole numbers, and back: what every codec of the study shares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.training.scenes.interface import Ints, Scene, Values

LARGEST_ALPHABET = 1 << 16
_LARGEST = 1 << 30
# Of the step, as a stream's header holds it; smaller float32 numbers are denormal.
LEAST_STEP, LARGEST_STEP = 1e-38, 1e38


class Grid(NamedTuple):
    """A scene in whole quantisation steps.

    Parameters
    ----------
    whole : int64 array (rows, columns)
        Zero where the scene is hidden.
    step : float
        A float32.
    low, alphabet : int
        The numbers of clear pixels go from ``low`` up to and without ``low + alphabet``.
    """

    whole: Ints
    step: float
    low: int
    alphabet: int


def step_for(scene: Scene, bound: float) -> float:
    """Return the largest step whose rounding, and that of float32, keeps clear values within a bound.

    Parameters
    ----------
    scene : Scene
    bound : float
        Largest error of a clear value.

    Raises
    ------
    BadValueError
        If the bound is no positive number, or finer than float32 itself: a step below 1e-38 is in no stream.
    """
    if not (np.isfinite(bound) and 0 < bound < 1e30):
        raise BadValueError("The error bound must be a positive number.", given=bound)
    top = float(np.abs(scene.values[scene.clear]).max(initial=0.0)) + bound
    # Half a unit is for rounding what is decoded to float32; the other half is more than the step itself loses by it.
    with np.errstate(over="ignore"):
        spacing = float(np.spacing(np.float32(top)))
    step = np.float32(2 * (bound - spacing))
    if not step >= LEAST_STEP:
        raise BadValueError(
            "The error bound is finer than the values themselves are.", given=bound,
            allowed=f"more than {max(spacing, LEAST_STEP):.3g}",
        )  # fmt: skip
    return float(step)


def to_grid(scene: Scene, bound: float) -> Grid:
    """Return a scene in whole steps.

    Parameters
    ----------
    scene : Scene
    bound : float
        Largest error of a clear value.

    Raises
    ------
    BadValueError
        If the bound is no positive number, or too fine for the values.
    """
    step = step_for(scene, bound)
    whole = np.rint(np.where(scene.clear, scene.values, 0.0).astype(np.float64) / step)
    shown = whole[scene.clear]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 0.0)
    if high - low >= LARGEST_ALPHABET or max(abs(low), abs(high)) >= _LARGEST:
        raise BadValueError(
            "The error bound is too fine for the range of the values.", given=bound,
            allowed=f"a range of less than {LARGEST_ALPHABET:,} steps of twice the bound",
        )  # fmt: skip
    return Grid(whole.astype(np.int64), step, int(low), int(high - low) + 1)


def from_grid(whole: np.ndarray, step: float) -> Values:
    """Return values of whole steps, as float32.

    Parameters
    ----------
    whole : array (rows, columns)
    step : float
    """
    return (np.asarray(whole, np.float64) * step).astype(np.float32)
