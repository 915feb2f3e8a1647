"""Periods of a series with gaps: peaks of a periodogram that shuffled blocks of the same series do not reach.

The periodogram fits a constant and one sine at each frequency to what was observed, so that gaps need no filling (Lomb,
Scargle; with the constant, Zechmeister and Kürster).  Its level of chance comes from the series itself: blocks of a few
neighbours are put in random order, which keeps short-range correlation and destroys cycles.  The strongest cycle above
the level is taken out with its harmonics, until none is left; a cycle counts only if the autocorrelation has a hill at
its period, and harmonics of a longer one are merged into it.

Sources: M. Zechmeister, M. Kürster, "The generalised Lomb-Scargle periodogram", A&A 496, 2009; the idea of the two
tests is M. Vlachos, P. Yu, V. Castelli, "On Periodicity Detection and Structural Periodic Similarity", SDM 2005.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEAST_CYCLES = 3
_OVERSAMPLED = 4
_LEAST_VALUES = 16
_MOST_FREQUENCIES = 1 << 15
_MOST_PERIODS = 6
_EULER = 0.5772156649015329
_TINY = 1e-300
# Of a period: within this a hill of the autocorrelation is sought, and a calendar's period is taken for it.
_HILL, _SNAP = 0.05, 0.01
_HARMONICS = 3
_BESIDE = 0.05
_MOST_MERGED = 6


class Period(NamedTuple):
    """A period that was found.

    Parameters
    ----------
    period : float
        In steps of the grid.
    power : float
        Share of the variance that one sine of this period explains, of the series without the cycles found before.
    excess : float
        The power over its mean in shuffled series.
    level : float
        What the largest excess of a shuffled series reaches by chance.
    """

    period: float
    power: float
    excess: float
    level: float


def periodogram(values: Floats, missing: Flags, *, oversampled: int = _OVERSAMPLED) -> tuple[Floats, Floats]:
    """Return frequencies and the share of the variance that a sine of each explains.

    Parameters
    ----------
    values : array of float, shape (..., n)
        On a regular grid; rows share their gaps.
    missing : array of bool, shape (n,)
        Values there are not looked at.
    oversampled : int
        Frequencies per 1 / n.

    Returns
    -------
    frequency : numpy.ndarray of float64, shape (frequencies,)
        In cycles a step, above 0 and below one half.
    power : numpy.ndarray of float64, shape (..., frequencies)
        From 0 to 1; 0 for a series without variance.
    """
    seen = ~np.asarray(missing, bool)
    n, many = seen.size, int(seen.sum())
    size = fft.next_fast_len(oversampled * n, real=True)
    size += size % 2
    count = size // 2 - 1
    of = np.where(seen, values, 0.0)
    of = np.where(seen, of - of.sum(-1, keepdims=True) / max(many, 1), 0.0)
    total = (of**2).sum(-1, keepdims=True)
    spectrum = fft.rfft(of, size, axis=-1)[..., 1 : count + 1]
    window = fft.fft(seen.astype(np.float64), size) / max(many, 1)
    once, twice = window[1 : count + 1], window[(2 * np.arange(1, count + 1)) % size]
    cosine, sine = once.real, -once.imag
    cc = 0.5 * (1.0 + twice.real) - cosine**2
    ss = 0.5 * (1.0 - twice.real) - sine**2
    cs = -0.5 * twice.imag - cosine * sine
    yc, ys = spectrum.real / max(many, 1), -spectrum.imag / max(many, 1)
    determinant = np.maximum(cc * ss - cs**2, 1e-12)
    explained = (ss * yc**2 + cc * ys**2 - 2.0 * cs * yc * ys) / determinant
    power = explained * many / np.maximum(total, _TINY)
    return np.arange(1, count + 1) / size, np.clip(power, 0.0, 1.0)


def autocorrelation(values: Floats, missing: Flags, lags: NDArray[np.int64]) -> Floats:
    """Return the correlation of a series with itself, from the pairs that were both observed.

    Parameters
    ----------
    values : array of float, shape (n,)
    missing : array of bool, shape (n,)
    lags : array of int, shape (lags,)
        From 1; 0 is returned where no pair is there.
    """
    seen = ~np.asarray(missing, bool)
    of = np.where(seen, values, 0.0)
    of = np.where(seen, of - of.sum() / max(int(seen.sum()), 1), 0.0)
    variance = (of**2).sum() / max(int(seen.sum()), 1)
    out = np.zeros(len(lags))
    for at, lag in enumerate(lags):
        if 0 < lag < of.size and variance > 0:
            pairs = int((seen[lag:] & seen[:-lag]).sum())
            out[at] = (of[lag:] * of[:-lag]).sum() / (pairs * variance) if pairs else 0.0
    return out


def harmonics(period: float, steps: Floats, *, most: int = _HARMONICS) -> Floats:
    """Return sines and cosines of a period and its harmonics, as many as the grid can hold.

    Parameters
    ----------
    period : float
        Above 2, in steps.
    steps : array of float, shape (n,)
    most : int
        Harmonics at most.

    Returns
    -------
    numpy.ndarray of float64, shape (n, columns)
    """
    orders = np.arange(1, max(min(most, math.ceil(period / 2.0) - 1), 1) + 1)
    angle = 2.0 * np.pi * np.multiply.outer(np.asarray(steps, np.float64), orders / period)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


def find_periods(
    values: Floats,
    missing: Flags,
    *,
    anchors: Sequence[float] = (),
    chance: float = 0.001,
    surrogates: int = 200,
    seed: int = 0,
) -> tuple[Period, ...]:
    """Return the periods of a series without trend, the strongest first.

    Parameters
    ----------
    values : array of float, shape (n,)
        On a regular grid, trend and level shifts taken out.
    missing : array of bool, shape (n,)
    anchors : sequence of float
        Periods of the calendar in steps: each is tested alone, beyond the search over all.
    chance : float
        With which a series without cycles shows one; an anchor has this chance of its own.
    surrogates : int
        How many orders of the blocks are tried.
    seed : int
        Of the orders.

    Returns
    -------
    tuple of Period
        None shorter than two steps or with fewer than three cycles; empty for fewer than 16 observed values.

    Raises
    ------
    BadValueError
        If the chance is not between 0 and 1, or fewer than 20 orders are tried.
    """
    if not 0 < chance < 1 or surrogates < 20:
        raise BadValueError("A level of chance needs 20 orders of blocks.", given=(chance, surrogates))
    gone = np.asarray(missing, bool) | ~np.isfinite(values)
    if gone.size - int(gone.sum()) < _LEAST_VALUES:
        return ()
    seen = np.flatnonzero(~gone)
    span = float(seen[-1] - seen[0] + 1)
    steps = np.arange(gone.size, dtype=np.float64)
    allowed = [each for each in anchors if 2.0 < each <= span / LEAST_CYCLES]
    rng = stream(seed, "periods")
    found: list[Period] = []
    refused: list[float] = []
    rest = np.where(gone, 0.0, values)
    while len(found) < _MOST_PERIODS:
        next_one = _strongest(rest, gone, span, allowed, refused, chance, surrogates, rng)
        if next_one is None:
            break
        if _has_hill(rest, gone, next_one.period):
            found.append(next_one)
            rest = _without(np.where(gone, 0.0, values), gone, [each.period for each in found], steps)
        else:
            refused.append(next_one.period)
            if len(refused) > _MOST_PERIODS:
                break
    return _merged(found, allowed, span)


def _strongest(
    rest: Floats, gone: Flags, span: float, anchors: list[float], refused: list[float], chance: float,
    surrogates: int, rng: np.random.Generator,
) -> Period | None:  # fmt: skip
    seen = np.flatnonzero(~gone)
    series = rest[seen]
    if not series.std() > 1e-9 * max(float(np.abs(series).max()), _TINY):
        return None
    oversampled = max(1, min(_OVERSAMPLED, 2 * _MOST_FREQUENCIES // gone.size))
    shuffled = np.zeros((surrogates, gone.size))
    block = int(np.clip(series.size // 20, 4, 14))
    for row in range(surrogates):
        shuffled[row, seen] = series[_order(series.size, block, rng)]
    frequency, power = periodogram(rest, gone, oversampled=oversampled)
    _, chances = periodogram(shuffled, gone, oversampled=oversampled)
    usable = frequency >= LEAST_CYCLES / span * (1.0 - 1e-9)
    for each in refused:
        usable &= np.abs(frequency - 1.0 / each) > 1.0 / span
    if not usable.any():
        return None
    mean = np.maximum(chances.mean(0), _TINY)
    excess = np.where(usable, power / mean, 0.0)
    level = _level((chances / mean)[:, usable].max(1), chance)
    peak = int(excess.argmax())
    if excess[peak] > level:
        period = 1.0 / _summit(frequency, power, peak)
        near = min(anchors, key=lambda each: abs(each - period), default=math.inf)
        period = near if abs(near - period) <= _SNAP * period else period
        return Period(period, float(power[peak]), float(excess[peak]), level)
    alone = -math.log(chance)
    best = None
    for each in anchors:
        at = int(np.abs(frequency - 1.0 / each).argmin())
        if usable[at] and excess[at] > alone and (best is None or excess[at] > best.excess):
            best = Period(each, float(power[at]), float(excess[at]), alone)
    return best


def _order(size: int, block: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an order of blocks, whose lengths are random: equal ones would keep the cycles that they hold whole."""
    lengths = rng.integers(block // 2, block + block // 2 + 1, 2 * size // block + 2)
    block_of = np.repeat(np.arange(lengths.size), lengths)[:size]
    return np.argsort(rng.random(lengths.size)[block_of], kind="stable")


def _level(largest: Floats, chance: float) -> float:
    """Return what the largest of many exceeds with this chance: a Gumbel distribution through their moments."""
    scale = largest.std(ddof=1) * math.sqrt(6.0) / math.pi
    return float(largest.mean() - _EULER * scale - scale * math.log(-math.log1p(-chance)))


def _summit(frequency: Floats, power: Floats, peak: int) -> float:
    """Return the frequency of the top of a parabola through a peak and its neighbours."""
    if not 0 < peak < power.size - 1:
        return float(frequency[peak])
    left, top, right = power[peak - 1], power[peak], power[peak + 1]
    bend = left - 2.0 * top + right
    shift = float(np.clip(0.5 * (left - right) / bend, -0.5, 0.5)) if bend < 0 else 0.0
    return float(frequency[peak] + shift * (frequency[1] - frequency[0]))


def _has_hill(rest: Floats, gone: Flags, period: float) -> bool:
    """Return whether the autocorrelation near a period is above that of half and of one and a half of it."""
    wide = max(round(_HILL * period), 1)
    lags = np.arange(max(round(period) - wide, 2), round(period) + wide + 1)
    hill = float(autocorrelation(rest, gone, lags).max())
    if period < 3:
        return hill > 0
    sides = autocorrelation(rest, gone, np.array([max(int(period / 2.0), 1), round(1.5 * period)]))
    return hill > 0 and hill > float(sides.min())


def _without(values: Floats, gone: Flags, periods: list[float], steps: Floats) -> Floats:
    columns = np.concatenate([np.ones((steps.size, 1)), *(harmonics(each, steps) for each in periods)], axis=1)
    fitted, *_ = np.linalg.lstsq(columns[~gone], values[~gone], rcond=None)
    return np.where(gone, 0.0, values - columns @ fitted)


def _merged(found: list[Period], anchors: Sequence[float], span: float) -> tuple[Period, ...]:
    """Drop periods beside a surer one, as cycles that come and go have them, and whole parts of a longer one."""
    alone: list[Period] = []
    for each in sorted(found, key=lambda one: (one.period in anchors, one.power), reverse=True):
        if not any(_alike(each.period, other.period, 1, span) for other in alone):
            alone.append(each)
    kept: list[Period] = []
    for each in sorted(alone, key=lambda one: -one.period):
        if not any(
            _alike(each.period, other.period, order, span)
            for other in kept
            for order in range(2, _MOST_MERGED + 1)
            if order <= _HARMONICS or other.period < 2 * _MOST_MERGED
        ):
            kept.append(each)
    return tuple(sorted(kept, key=lambda one: -one.excess))


def _alike(period: float, other: float, order: int, span: float) -> bool:
    """Return whether a frequency is that of another's harmonic, as near as the span or a changing size let it be."""
    return abs(1.0 / period - order / other) <= max(0.75 / span, _BESIDE / other)
