"""Random streams that depend on what is drawn, never on who draws first.

A stream is named by a seed and a path (``"arrivals"``, ``"router", 3``).  Equal names give equal streams on any
machine and in any process, and adding a consumer never shifts the draws of another.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_ALL = 2**64 - 1


def stream_key(seed: int, *path: str | int) -> int:
    """Return the 64-bit key of the stream named by ``seed`` and ``path``."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *path):
        digest.update(f"{type(part).__name__}:{part}\n".encode())
    return int.from_bytes(digest.digest(), "little")


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """Return numpy's Philox generator for the stream named by ``seed`` and ``path``.

    Parameters
    ----------
    seed : int
        The trial's seed.
    *path : str or int
        The purpose of the draws.
    """
    return np.random.Generator(np.random.Philox(key=stream_key(seed, *path)))


class Draws:
    """A counter-based stream of single draws: plain Python, two whole numbers of state, copied and compared at will.

    The n-th draw is SplitMix64's finaliser of key and n.  For many draws at once use :func:`stream`.

    Parameters
    ----------
    key : int
        As :func:`stream_key` gives it.
    count : int
        How many draws were made.
    """

    __slots__ = ("count", "key")

    def __init__(self, key: int, count: int = 0) -> None:
        self.key = key
        self.count = count

    def bits(self) -> int:
        """Draw a whole number from 0 to 2**64 - 1."""
        self.count += 1
        found = (self.key + self.count * 0x9E3779B97F4A7C15) & _ALL
        found = ((found ^ (found >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
        found = ((found ^ (found >> 27)) * 0x94D049BB133111EB) & _ALL
        return found ^ (found >> 31)

    def random(self) -> float:
        """Draw a number from [0, 1)."""
        return (self.bits() >> 11) * 2.0**-53

    def below(self, bound: int) -> int:
        """Draw a whole number from 0 to ``bound - 1``; biased by less than ``bound / 2**64``."""
        return (self.bits() * bound) >> 64

    def between(self, low: int, high: int) -> int:
        """Draw a whole number from the closed interval."""
        return low + self.below(high - low + 1)

    def exponential(self, mean: float) -> float:
        """Draw from the exponential distribution."""
        return -mean * math.log1p(-self.random())

    def chance(self, probability: float) -> bool:
        """Return True with that probability."""
        return self.random() < probability

    def choice(self, items: Sequence[T]) -> T:
        """Draw one item."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Draw ``count`` different items, in random order."""
        pool = list(items)
        for place in range(count):
            other = place + self.below(len(pool) - place)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:count]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order."""
        return self.sample(items, len(items))

    def copy(self) -> Draws:
        """Return a stream that goes on from the same place."""
        return Draws(self.key, self.count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Draws) and (self.key, self.count) == (other.key, other.count)

    def __hash__(self) -> int:
        return hash((self.key, self.count))

    def __repr__(self) -> str:
        return f"Draws({self.key}, {self.count})"
