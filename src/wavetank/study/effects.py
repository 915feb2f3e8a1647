"""Intervals and paired comparisons from few runs: what is known of a figure, and when nothing is.

The unit is a replicate: a seed of a simulation, a process of a timing study (rounds of one process share what the
process happened to get, its pages and its neighbours, and count as one).  Two systems are compared on the logarithm of
their ratio, replicate by replicate, so that what a replicate does to both cancels; the interval of the mean logarithm
is Student's t.  Below :data:`LEAST_FOR_INTERVAL` replicates no interval without assumptions reaches 95 %, so none is
shown there: verdicts alone use Student's t from :data:`LEAST_FOR_VERDICT` replicates on.

Sources: D. Altman, D. Machin, T. Bryant, M. Gardner, "Statistics with Confidence", 2000 (intervals of a median from
order statistics); T. Kalibera, R. Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013 (replication at the
level of processes).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
# The interval from the least to the most of six values contains the median in 1 - 2 / 2**6 = 96.9 % of all samples.
LEAST_FOR_INTERVAL = 6
LEAST_FOR_VERDICT = 3


@dataclass(frozen=True)
class Effect:
    """A figure over replicates, or the ratio of two systems over the replicates that both have.

    Attributes
    ----------
    centre : float
        The geometric mean; the arithmetic mean where a value is zero or negative; NaN without values.
    low, high : float
        Ends of the interval that verdicts are given on; infinite where the replicates are too few for one.
    least, most : float
        Smallest and largest value.
    count : int
        Replicates.
    exact : bool
        Whether the figure is the same in every run by its nature, so that one run is enough.
    """

    centre: float
    low: float
    high: float
    least: float
    most: float
    count: int
    exact: bool = False

    @property
    def decided(self) -> bool:
        """Whether there is an interval to give a verdict on."""
        return not math.isnan(self.centre) and not (math.isinf(self.low) and math.isinf(self.high) and self.low < 0)

    def within(self, write: Callable[[float], str]) -> str:
        """Return how far the figure is known, in words: its interval, or the range of too few replicates.

        Parameters
        ----------
        write : callable
            Writes one value.
        """
        if self.exact:
            return "exact"
        if self.count < 2:
            return "1 run" if self.count else ""
        if self.least == self.most:
            return f"the same in {self.count} runs"
        if self.count < LEAST_FOR_INTERVAL:
            return f"{write(self.least)} to {write(self.most)} in {self.count} runs"
        return f"{write(self.low)} to {write(self.high)} at 95 %, {self.count} runs"


NOTHING = Effect(math.nan, -math.inf, math.inf, math.nan, math.nan, 0)


def effect(values: Sequence[float], *, comparisons: int = 1, exact: bool = False) -> Effect:
    """Return what is known of a figure from one value per replicate.

    Positive values are judged on their logarithms, others as they are.  Values that do not differ have an interval
    without width; zeros or infinities among other values have one from order statistics only, where the replicates
    are enough for one.

    Parameters
    ----------
    values : sequence of float
        One per replicate; NaN where a replicate has none.
    comparisons : int
        How many comparisons share the 5 % of false verdicts (Bonferroni's correction).
    exact : bool
        Whether the figure is the same in every run by its nature.

    Examples
    --------
    >>> found = effect([1.02, 1.05, 1.03, 1.04])
    >>> round(found.low, 3), round(found.centre, 3), round(found.high, 3)
    (1.015, 1.035, 1.056)
    >>> effect([1.02]).decided, effect([1.02], exact=True).decided
    (False, True)
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return NOTHING
    least, most, count = min(known), max(known), len(known)
    if least == most and (exact or count >= LEAST_FOR_VERDICT):
        return Effect(least, least, least, least, most, count, exact)
    if least > 0 and math.isfinite(most):
        logs = [math.log(value) for value in known]
        centre, half = _student(logs, comparisons)
        return Effect(math.exp(centre), _exp(centre - half), _exp(centre + half), least, most, count)
    if math.isfinite(least) and math.isfinite(most) and least < 0:
        centre, half = _student(known, comparisons)
        return Effect(centre, centre - half, centre + half, least, most, count)
    low, high = order_interval(known, 1 - (1 - CONFIDENCE) / comparisons)
    return Effect(statistics.median(known), low, high, least, most, count)


def _exp(value: float) -> float:
    """Return the exponential; an unknown end on the low side is minus infinity, as where there is no logarithm."""
    return -math.inf if value == -math.inf else math.exp(value) if value < 709 else math.inf


def _student(values: Sequence[float], comparisons: int) -> tuple[float, float]:
    """Return the mean and half the width of its interval, infinite where the values are too few."""
    centre = statistics.fmean(values)
    if len(values) < LEAST_FOR_VERDICT:
        return centre, math.inf
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 1 - (1 - CONFIDENCE) / 2 / comparisons))
    return centre, quantile * statistics.stdev(values) / math.sqrt(len(values))


def order_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the narrowest symmetric pair of order statistics that contains the median with that confidence.

    It holds for every distribution.  Where even the least and the most do not reach the confidence, the interval is
    everything.

    Parameters
    ----------
    values : sequence of float
        Without NaN.
    confidence : float
        Above 0, below 1.

    Examples
    --------
    >>> order_interval([1, 2, 3, 4, 5, 6])
    (1, 6)
    >>> order_interval(range(12))
    (2, 9)
    >>> order_interval([1, 2, 3])
    (-inf, inf)
    """
    ordered, count = sorted(values), len(values)
    outside, kept = 0.0, None
    for position in range(count // 2):
        outside += 2 * math.comb(count, position) / 2**count
        if 1 - outside < confidence:
            break
        kept = position
    return (-math.inf, math.inf) if kept is None else (ordered[kept], ordered[-1 - kept])


def shown_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends that a table shows beside a median: a 95 % interval, or least and most of too few values.

    Parameters
    ----------
    values : sequence of float
        Without NaN, at least one.
    """
    if len(values) >= LEAST_FOR_INTERVAL:
        return order_interval(values)
    return min(values), max(values)


def per_replicate(values: Mapping[int, float], rounds: int = 1) -> dict[int, float]:
    """Return one value per replicate: the median of the values that share it.

    Parameters
    ----------
    values : mapping of int to float
        Values by seed, or by round of a timing study.
    rounds : int
        Consecutive seeds that make one replicate: the rounds of a process.
    """
    groups: dict[int, list[float]] = {}
    for seed, value in values.items():
        if not math.isnan(value):
            groups.setdefault(seed // rounds, []).append(value)
    return {number: statistics.median(group) for number, group in sorted(groups.items())}


def paired(
    values: Mapping[int, float],
    versus: Mapping[int, float],
    *,
    rounds: int = 1,
    comparisons: int = 1,
    exact: bool = False,
) -> Effect:
    """Return the ratio of two systems over the seeds (or rounds) that both have.

    Parameters
    ----------
    values, versus : mapping of int to float
        Values of the two systems, by seed or round.
    rounds, comparisons, exact
        As :func:`per_replicate` and :func:`effect` take them.

    Examples
    --------
    >>> round(paired({0: 2.0, 1: 4.0, 2: 8.0}, {0: 1.0, 1: 2.0, 2: 4.0}).centre, 6)
    2.0
    """
    ratios = {seed: ratio(value, versus[seed]) for seed, value in values.items() if seed in versus}
    return effect(list(per_replicate(ratios, rounds).values()), comparisons=comparisons, exact=exact)


def ratio(value: float, base: float) -> float:
    """Return value / base; two zeros are equal, and what is not zero is infinitely many times zero.

    Parameters
    ----------
    value, base : float
    """
    if base == 0:
        return 1.0 if value == 0 else math.copysign(math.inf, value)
    return value / base


def strongest(values: Mapping[str, Mapping[int, float]], better: str) -> str | None:
    """Return the system with the best median over the replicates that all of them have; None without any.

    The best of each replicate would be no system: with several equal rivals it is the luckiest one every time.

    Parameters
    ----------
    values : mapping of str to (mapping of int to float)
        Values of each system, by seed or round.
    better : str
        ``lower`` or ``higher``.
    """
    having = {name: found for name, found in values.items() if found}
    if not having:
        return None
    common = set.intersection(*(set(found) for found in having.values()))
    medians = {name: statistics.median(found[seed] for seed in common or found) for name, found in having.items()}
    return (min if better == "lower" else max)(medians, key=lambda name: medians[name])
