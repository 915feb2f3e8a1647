"""Verdicts: what an interval says of a paper's figure, of a direction or of a goal of ours.

Every verdict but "consistent" needs the whole interval on the side that it names, so noise never helps a claim.

Of a paper's figure, or of its direction where it gives no figure:

reached            the interval lies at the figure or beyond it
consistent         the interval contains the figure and excludes half of its effect: a wide one decides nothing
short of it        the effect is there, and smaller than the paper's
contradicted       the effect has the other sign, or there is exactly none
another quantity   the effect is so far beyond the paper's that something else was measured
undecided          anything else: the interval contains the neutral point, or too much besides the figure, or the
                   replicates are too few

Of a goal: reached, short of it (outside, or a limit such as zero that some run breaks), exceeds (beyond a two-sided
goal on the good side), undecided.  Of a claim without records under its settings: not run.
"""

from __future__ import annotations

import math

from wavetank.study.effects import LEAST_FOR_INTERVAL, Effect

REACHED, EXCEEDS, CONSISTENT = "reached", "exceeds", "consistent"
SHORT, CONTRADICTED, ANOTHER = "short of it", "contradicted", "another quantity"
UNDECIDED, NOT_RUN = "undecided", "not run"
VERDICTS = (REACHED, EXCEEDS, CONSISTENT, SHORT, CONTRADICTED, ANOTHER, UNDECIDED, NOT_RUN)
GOOD = (REACHED, EXCEEDS, CONSISTENT)

# Beyond twice the paper's figure, or three times its effect on the logarithmic scale, whichever is nearer.
_FAR_FACTOR = 2.0
_FAR_EFFECT = 3.0


def of_figure(found: Effect, figure: float | None, *, better: str, neutral: float) -> str:
    """Return the verdict on a paper's figure, or on its direction alone.

    Parameters
    ----------
    found : Effect
        Ours.
    figure : float or None
        The paper's; None where only the direction is claimed.
    better : str
        ``lower`` or ``higher``: the direction of the claimed effect.
    neutral : float
        The value at which there is no effect: 1 of a ratio.

    Examples
    --------
    >>> from wavetank.study.effects import effect
    >>> of_figure(effect([1.31, 1.29, 1.30]), 1.5, better="higher", neutral=1.0)
    'short of it'
    """
    if not found.count:
        return NOT_RUN
    if not found.decided:
        return UNDECIDED
    sign = -1.0 if better == "lower" else 1.0
    low, high = sorted((sign * found.low, sign * found.high))
    if high < sign * neutral:
        return CONTRADICTED
    if found.least == found.most == neutral:
        # A few equal runs show that there is exactly no effect only where all runs are equal: rare events miss three.
        return CONTRADICTED if found.exact or found.count >= LEAST_FOR_INTERVAL else UNDECIDED
    if low <= sign * neutral:
        return UNDECIDED
    if figure is None:
        return REACHED
    if high < sign * figure:
        return SHORT
    if low > sign * far(figure, neutral):
        return ANOTHER
    if low >= sign * figure:
        return REACHED
    return CONSISTENT if low > sign * _beyond(figure, neutral, share=0.5) else UNDECIDED


def _beyond(figure: float, neutral: float, *, share: float) -> float:
    """Return the value with that share of the figure's effect, on the logarithmic scale where there is one."""
    if figure <= 0 or neutral <= 0:
        return neutral + share * (figure - neutral)
    return neutral * math.exp(share * math.log(figure / neutral))


def far(figure: float, neutral: float) -> float:
    """Return the value beyond which a measured effect is another quantity than the paper's.

    Parameters
    ----------
    figure, neutral : float
        As :func:`of_figure` takes them.

    Examples
    --------
    >>> far(6.0, 1.0), round(far(1.07, 1.0), 3), far(0.5, 1.0)
    (12.0, 1.225, 0.25)
    """
    if figure <= 0 or neutral <= 0:
        return neutral + _FAR_EFFECT * (figure - neutral)
    factor = min(_FAR_EFFECT * abs(math.log(figure / neutral)), abs(math.log(figure / neutral)) + math.log(_FAR_FACTOR))
    return neutral * math.exp(math.copysign(factor, math.log(figure / neutral)))


def of_goal(found: Effect, at_least: float | None, at_most: float | None, *, better: str) -> str:
    """Return the verdict on a goal of ours.

    Parameters
    ----------
    found : Effect
    at_least, at_most : float or None
        The interval lies within these where the goal is reached.
    better : str
        ``lower`` or ``higher``: the good side, on which a two-sided goal may be exceeded; empty where neither is.
    """
    if not found.count:
        return NOT_RUN
    if not found.decided:
        return UNDECIDED
    least = -math.inf if at_least is None else at_least
    most = math.inf if at_most is None else at_most
    # A limit that no run does better than is one of every run: of a count that must be zero, the interval of a typical
    # run would not contain the run in ten that has one.
    if found.least == most < found.most or found.least < least == found.most:
        return SHORT
    if found.low >= least and found.high <= most:
        return REACHED
    two_sided = at_least is not None and at_most is not None
    if found.high < least:
        return EXCEEDS if two_sided and better == "lower" else SHORT
    if found.low > most:
        return EXCEEDS if two_sided and better == "higher" else SHORT
    return UNDECIDED
