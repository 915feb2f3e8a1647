"""Counter-based random draws for compiled code.

A stream is two float64 cells, key and counter, so that it fits into the state array of any policy; each draw hashes
the pair (SplitMix64's finaliser), so that a run depends on how often a policy drew and on nothing else.

Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, uint64
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@compiled(uint64(uint64), inline="always")
def mix(bits: int) -> int:
    """Return SplitMix64's finaliser of 64 bits."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


@compiled(float64(float64[::1]))
def next_uniform(stream: NDArray[np.float64]) -> float:
    """Draw a number from [0, 1).

    Parameters
    ----------
    stream : float64 array (>= 2,)
        Key and counter, both whole numbers below 2**53; the counter is advanced.
    """
    stream[1] += 1.0
    bits = mix(mix(np.uint64(stream[0]) + _GOLDEN) + np.uint64(stream[1]) * _GOLDEN)
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@compiled(int64(float64[::1], int64))
def next_below(stream: NDArray[np.float64], bound: int) -> int:
    """Draw a whole number from 0 to ``bound - 1``.

    Parameters
    ----------
    stream : float64 array (>= 2,)
        Key and counter, as in :func:`next_uniform`.
    bound : int
        From 1 to 2**53.
    """
    return np.int64(next_uniform(stream) * bound)
