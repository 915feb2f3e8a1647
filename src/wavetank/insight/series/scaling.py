"""Which memory size a function gets on which day: the cheapest that is predicted to be fast enough.

The rule is the same for every forecaster; what differs is what it is given.  A phase that is predicted to be slow gets
more memory, and gives it back afterwards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.insight.series.interface import Floats


def sizes_for(predicted_ms: Floats, memory_mb: Floats, target_ms: float) -> NDArray[np.int64]:
    """Return which size each step gets: the one of least predicted cost within the target, else the fastest.

    Parameters
    ----------
    predicted_ms : array of float, shape (sizes, steps)
        Latency.
    memory_mb : array of float, shape (sizes,)
        Memory of each size; cost is memory times latency.
    target_ms : float
        The longest latency that is wanted.

    Returns
    -------
    numpy.ndarray of int64, shape (steps,)
        Indices of sizes; the smaller memory of equals.

    Raises
    ------
    BadValueError
        If the shapes do not belong together, or a prediction is not finite and above 0.
    """
    if predicted_ms.ndim != 2 or memory_mb.shape != predicted_ms.shape[:1]:
        raise BadValueError(
            "There is one memory size a row of predictions.", given=(predicted_ms.shape, memory_mb.shape)
        )
    if not (np.isfinite(predicted_ms) & (predicted_ms > 0)).all():
        raise BadValueError("Predicted latencies are finite and above 0.", given=predicted_ms.min())
    order = np.argsort(memory_mb, kind="stable")
    ordered = predicted_ms[order]
    cost = ordered * memory_mb[order, None]
    within = np.where(ordered <= target_ms, cost, np.inf)
    cheapest = np.where(np.isinf(within).all(axis=0), ordered.argmin(axis=0), within.argmin(axis=0))
    return np.asarray(order[cheapest], np.int64)
