"""What scenes are used for, asked so that a guess without any byte is right half of the time.

On a green place nearly every pixel is above a fixed threshold, and "everything is green" scores 96 % without a byte.
Each question here is about a median of the scene itself, so that both answers are as frequent, and answers are judged
by their balanced accuracy: the mean of the shares that are right among those with the answer yes and those with no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from wavetank.training.scenes.interface import Flags, Floats

# Pixels of a side of what stands for a field.
FIELD = 5
# The threshold of the question that is not balanced.
GREEN = 0.4


class Known(NamedTuple):
    """What a task may use beside the scene; the receiver has it.

    Parameters
    ----------
    typical : float64 array (rows, columns)
        The median of the place's past.
    previous : float64 array (rows, columns)
        The last clear scene of the past.
    clear : bool array (rows, columns)
        Which pixels of the scene are asked about.
    """

    typical: Floats
    previous: Floats
    clear: Flags


def level(values: Floats, known: Known) -> Flags:
    """Return which clear pixels are above the scene's median.

    Parameters
    ----------
    values : float64 array (rows, columns)
    known : Known
    """
    seen = values[known.clear]
    found: Flags = seen > np.median(seen)
    return found


def anomaly(values: Floats, known: Known) -> Flags:
    """Return which clear pixels differ upwards from what is typical of them, more than the median pixel does.

    Parameters
    ----------
    values : float64 array (rows, columns)
    known : Known
    """
    seen = (values - known.typical)[known.clear]
    found: Flags = seen > np.median(seen)
    return found


def change(values: Floats, known: Known) -> Flags:
    """Return which fields rose since the last clear scene, more than the median field did.

    Parameters
    ----------
    values : float64 array (rows, columns)
    known : Known
    """
    rows, columns = (side // FIELD * FIELD for side in values.shape)
    shape = (rows // FIELD, FIELD, columns // FIELD, FIELD)
    clear = known.clear[:rows, :columns].reshape(shape)
    rise = np.where(known.clear, values - known.previous, 0.0)[:rows, :columns].reshape(shape)
    count = clear.sum((1, 3))
    mean = rise.sum((1, 3))[count > 0] / count[count > 0]
    found: Flags = mean > np.median(mean)
    return found


def green(values: Floats, known: Known) -> Flags:
    """Return which clear pixels are vegetation by a fixed threshold: the question that a guess answers.

    Parameters
    ----------
    values : float64 array (rows, columns)
    known : Known
    """
    found: Flags = values[known.clear] > GREEN
    return found


TASKS: dict[str, Callable[[Floats, Known], Flags]] = {"level": level, "anomaly": anomaly, "change": change}


def balanced_accuracy(answers: Flags, truth: Flags) -> float:
    """Return the mean of the shares of right answers among true and among false; 0.5 for one that says always the same.

    Parameters
    ----------
    answers, truth : bool array
        Where all are true, or none, the plain share of right answers.
    """
    right = answers == truth
    parts = [right[of].mean() for of in (truth, ~truth) if of.any()]
    return float(np.mean(parts)) if parts else 1.0
