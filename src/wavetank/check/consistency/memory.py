"""What a search has met before: an open-addressing set of 128-bit fingerprints, for compiled code.

An entry takes 16 bytes whatever it stands for.  Two of N different things share a fingerprint by chance with
probability below N^2 / 2^128.

Source: P. Wolper, D. Leroy, "Reliable Hashing without Collision Detection", CAV 1993 (hash compaction).
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled


@compiled
def remember(memory: NDArray[np.uint64], one: int, two: int) -> bool:
    """Put a fingerprint into the memory; False when it was there.

    Parameters
    ----------
    memory : uint64 array (power of two, 2)
        Zero where empty; the caller keeps it at most half full.
    one, two : uint64
    """
    mask = np.uint64(memory.shape[0] - 1)
    at = one & mask
    while True:
        if memory[at, 0] == 0 and memory[at, 1] == 0:
            memory[at, 0] = one
            memory[at, 1] = two
            return True
        if memory[at, 0] == one and memory[at, 1] == two:
            return False
        at = (at + np.uint64(1)) & mask


@compiled
def knows(memory: NDArray[np.uint64], one: int, two: int) -> bool:
    """Return whether a fingerprint is in the memory."""
    mask = np.uint64(memory.shape[0] - 1)
    at = one & mask
    while memory[at, 0] != 0 or memory[at, 1] != 0:
        if memory[at, 0] == one and memory[at, 1] == two:
            return True
        at = (at + np.uint64(1)) & mask
    return False


@compiled
def memory_of(fingerprints: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a memory of some fingerprints.

    Parameters
    ----------
    fingerprints : uint64 array (any, 2)
    """
    size = 16
    while size < 2 * fingerprints.shape[0]:
        size *= 2
    memory = np.zeros((size, 2), np.uint64)
    for at in range(fingerprints.shape[0]):
        remember(memory, fingerprints[at, 0], fingerprints[at, 1])
    return memory


@compiled
def larger(memory: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a memory of twice the size with the same content."""
    grown = np.zeros((2 * memory.shape[0], 2), np.uint64)
    for at in range(memory.shape[0]):
        if memory[at, 0] != 0 or memory[at, 1] != 0:
            remember(grown, memory[at, 0], memory[at, 1])
    return grown


@functools.lru_cache(maxsize=4)
def zobrist(bits: int) -> NDArray[np.uint64]:
    """Return random pairs of 64 bits for ``2**bits`` operations; the exclusive or of some names their set.

    Returns
    -------
    uint64 array (2**bits, 2)
    """
    draws = np.random.Generator(np.random.Philox(key=2026))
    return draws.integers(0, 2**64, (1 << bits, 2), np.uint64, endpoint=False)


def twins(names: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return for each name the place of the equal name before it; -1 where there is none, and for None.

    Parameters
    ----------
    names : sequence of hashable
        What each operation does; None for one that no other may stand for.

    Returns
    -------
    int64 array (names,)
    """
    found = np.full(len(names), -1, np.int64)
    latest: dict[Hashable, int] = {}
    for at, name in enumerate(names):
        if name is not None:
            found[at] = latest.get(name, -1)
            latest[name] = at
    return found
