"""Exact random draws for compiled simulators: whole numbers, geometric and hypergeometric counts.

A stream is one uint64 counter in an array, keyed by a uint64, hashed by SplitMix64's finaliser; nothing depends on
global state.  Hypergeometric counts come from inversion around the mode where the deviation is small and from
ratio-of-uniforms rejection where it is large, so that a draw costs about the same for any population.

Sources: E. Stadlober, "The ratio of uniforms approach for generating discrete random variates", J. Comput. Appl. Math.
31(1), 1990 (HRUE); D. Lemire, "Fast random integer generation in an interval", ACM TOMACS 29(1), 2019.
"""

from __future__ import annotations

import math

import numpy as np
from numba import int64, uint64
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled
from wavetank.sim.streams import mix

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_KEPT = np.uint64(11)

# Exact sums for small arguments, Stirling's series beyond.
_SMALL = 2048
_LOG_FACTORIALS = np.array([math.lgamma(k + 1.0) for k in range(_SMALL)])
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
# Above this deviation rejection is cheaper than walking from the mode.
_WIDE = 24.0


@compiled(inline="always")
def next_bits(key: int, stream: NDArray[np.uint64]) -> int:
    """Draw 64 bits and advance the stream's counter."""
    stream[0] += _ONE
    return mix(key + stream[0] * GOLDEN)


@compiled(inline="always")
def uniform(key: int, stream: NDArray[np.uint64]) -> float:
    """Draw from the open interval (0, 1), in steps of 2**-53 from 2**-54."""
    return (np.float64(next_bits(key, stream) >> _KEPT) + 0.5) * 2.0**-53


@compiled(int64(uint64, uint64[::1], int64))
def below(key: int, stream: NDArray[np.uint64], bound: int) -> int:
    """Draw a whole number from 0 to ``bound - 1`` without bias; ``bound`` is from 1 to 2**62."""
    wide = np.uint64(bound)
    # Reject what lies beyond the last whole multiple of the bound.
    limit = np.uint64(0xFFFFFFFFFFFFFFFF) - np.uint64(0xFFFFFFFFFFFFFFFF) % wide
    while True:
        bits = next_bits(key, stream)
        if bits < limit:
            return int(bits % wide)


@compiled
def failures_before_success(key: int, stream: NDArray[np.uint64], probability: float) -> float:
    """Draw how many trials fail before the first success, as a float (it may exceed 2**63)."""
    if probability >= 1.0:
        return 0.0
    return np.floor(np.log(uniform(key, stream)) / np.log1p(-probability))


@compiled
def log_factorial(k: int) -> float:
    """Return ln k!, to about 1e-16 of its value."""
    if k < _SMALL:
        return _LOG_FACTORIALS[k]
    x = np.float64(k)
    inverse = 1.0 / x
    square = inverse * inverse
    return (x + 0.5) * np.log(x) - x + _HALF_LOG_TAU + inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1260.0))


@compiled
def hypergeometric(key: int, stream: NDArray[np.uint64], good: int, bad: int, draws: int) -> int:
    """Draw how many good ones are among ``draws`` taken without replacement from ``good + bad``.

    Probabilities are those of float64 arithmetic on log factorials.

    Parameters
    ----------
    key : uint64
    stream : uint64 array (1,)
    good, bad, draws : int
        ``draws`` is at most ``good + bad``, which is at most 2**32.
    """
    if draws == 0 or good == 0:
        return 0
    if bad == 0:
        return draws
    total = good + bad
    if draws == total:
        return good
    if draws == 1:
        return 1 if below(key, stream, total) < good else 0
    # Symmetries: the rarer colour, at most half the population.
    rare = min(good, bad)
    few = min(draws, total - draws)
    common = total - rare
    share = np.float64(rare) / total
    mean = few * share
    deviation = np.sqrt(mean * (1.0 - share) * (total - few) / (total - 1.0))
    mode = int(np.floor((few + 1.0) * (rare + 1.0) / (total + 2.0)))
    least, most = max(0, few - common), min(few, rare)
    mode = min(max(mode, least), most)
    if deviation < _WIDE:
        found = _from_mode(uniform(key, stream), rare, common, few, mode, least, most)
    else:
        found = _by_ratio(key, stream, rare, common, few, mode, least, most, mean, deviation)
    if few != draws:
        found = rare - found
    return found if rare == good else draws - found


@compiled
def _log_weight(k: int, rare: int, common: int, few: int) -> float:
    return -(log_factorial(k) + log_factorial(rare - k) + log_factorial(few - k) + log_factorial(common - few + k))


@compiled
def _from_mode(u: float, rare: int, common: int, few: int, mode: int, least: int, most: int) -> int:
    """Invert the distribution, looking at the likeliest values first."""
    norm = (
        log_factorial(rare) + log_factorial(common) + log_factorial(few) + log_factorial(rare + common - few)
        - log_factorial(rare + common)
    )  # fmt: skip
    up = down = np.exp(norm + _log_weight(mode, rare, common, few))
    above = under = mode
    u -= up
    while u > 0.0:
        moved = False
        if above < most:
            up *= np.float64(rare - above) * (few - above) / (np.float64(above + 1) * (common - few + above + 1))
            above += 1
            u -= up
            if u <= 0.0:
                return above
            moved = up > 0.0
        if under > least:
            down *= np.float64(under) * (common - few + under) / (np.float64(rare - under + 1) * (few - under + 1))
            under -= 1
            u -= down
            if u <= 0.0:
                return under
            moved = moved or down > 0.0
        if not moved:
            # Rounding left a sliver beyond both ends.
            return mode
    return mode


@compiled
def _by_ratio(
    key: int, stream: NDArray[np.uint64], rare: int, common: int, few: int, mode: int, least: int, most: int,
    mean: float, deviation: float,
) -> int:  # fmt: skip
    """Reject from the table mountain of the ratio of uniforms."""
    centre = mean + 0.5
    # The hat's width: 2 sqrt(2 / e) deviations plus 3 - 2 sqrt(3 / e).
    width = 1.7155277699214135 * np.sqrt(deviation * deviation + 0.5) + 0.8989161620588988
    peak = _log_weight(mode, rare, common, few)
    while True:
        u = uniform(key, stream)
        v = uniform(key, stream)
        x = centre + width * (v - 0.5) / u
        if x < least or x >= most + 1:
            continue
        k = int(np.floor(x))
        if 2.0 * np.log(u) <= _log_weight(k, rare, common, few) - peak:
            return k
