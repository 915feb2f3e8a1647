"""How often to save: what checkpoints, failures and restarts cost together.

Sources: J. W. Young, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 17(9), 1974; J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math

from wavetank.errors import BadValueError


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return Young's interval between checkpoints of least waste, s, for failures without memory.

    Parameters
    ----------
    checkpoint_s : float
    mtbf_s : float
        Mean time between failures of the whole job.

    References
    ----------
    J. W. Young, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 17(9), 1974.
    """
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_time_ratio(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the expected time of a job over that without failures and checkpoints.

    Failures have no memory and strike during checkpoints and restarts, too.

    Parameters
    ----------
    interval_s : float
        Work between two checkpoints, s.
    checkpoint_s, restart_s, mtbf_s : float
        s.

    References
    ----------
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006,
    equation 20.
    """
    return mtbf_s / interval_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + checkpoint_s) / mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return Daly's interval between checkpoints of least expected time, s; the restart's length does not matter.

    Parameters
    ----------
    checkpoint_s, mtbf_s : float
        Above 0, s.

    Returns
    -------
    float
        Where the derivative of :func:`daly_time_ratio` is zero, to full precision; Daly's own closed form, a series
        in ``checkpoint_s / mtbf_s``, approximates it.

    Raises
    ------
    BadValueError
        If a time is not above 0 and finite.
    """
    if not (0 < checkpoint_s < math.inf and 0 < mtbf_s < math.inf):
        raise BadValueError("Checkpoints and failures take time.", given=f"{checkpoint_s} s, {mtbf_s} s",
                            allowed="finite times above 0")  # fmt: skip
    # With x = interval / mtbf and c = checkpoint / mtbf: (1 - x) exp(x + c) = 1, whose left side falls for x > 0.
    low, high, cost = 0.0, 1.0, checkpoint_s / mtbf_s
    for _ in range(200):
        middle = (low + high) / 2
        # As a logarithm, for checkpoints that take longer than the time between failures.
        if math.log1p(-middle) + middle + cost > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2 * mtbf_s
