"""What a router remembers of the prefixes that it sent to each worker: blocks, the least recently used out first.

A prompt's blocks are touched from the last to the first.  Whatever touches a block touches all before it afterwards, so
that the oldest block of a worker is always the end of a prefix: forgetting the oldest never leaves a gap in one.

The memory is one array of numbers, a part of a router's state: a hash table with chains, and for each worker a list in
the order of use.  Positions in it are counted from 1, so that an array of zeros is an empty memory.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.sim.streams import mix

_HEAD = 2  # workers, blocks that fit
_PER_WORKER = 6  # oldest, newest, blocks, tokens, first place that was given up, places ever taken
_COLUMNS = 5  # first of a bucket, next in the bucket, key, older, newer

FloatArray = NDArray[np.float64]


def empty_memory(workers: int, blocks: int) -> FloatArray:
    """Return a memory of nothing.

    Parameters
    ----------
    workers : int
    blocks : int
        How many blocks it can hold for each worker.
    """
    memory = np.zeros(_HEAD + _PER_WORKER * workers + _COLUMNS * workers * blocks)
    memory[0], memory[1] = workers, workers * blocks
    return memory


@njit(forceinline=True)
def _column(memory: FloatArray, number: int) -> int:
    """Return where the cell for position 1 of a column stands, less 1."""
    return int(_HEAD + _PER_WORKER * np.int64(memory[0]) + number * np.int64(memory[1]) - 1)


@njit(forceinline=True)
def _key(worker: int, block: int) -> float:
    # 52 bits: a whole number that a float holds exactly.  Two blocks of a memory that has 260,000 share one of these in
    # 1 of 130,000 memories.
    bits = mix(np.uint64(block) + np.uint64(worker) * np.uint64(0x9E3779B97F4A7C15))
    return np.float64(bits >> np.uint64(12)) + 1.0


@njit
def _find(memory: FloatArray, key: float) -> int:
    """Return the position of a key, 0 where it is not."""
    size = np.int64(memory[1])
    first, following, keys = _column(memory, 0), _column(memory, 1), _column(memory, 2)
    at = np.int64(memory[first + 1 + np.int64(key) % size])
    while at > 0 and memory[keys + at] != key:
        at = np.int64(memory[following + at])
    return int(at)


@njit
def _unlink(memory: FloatArray, worker: int, at: int) -> None:
    older, newer = _column(memory, 3), _column(memory, 4)
    own = _HEAD + _PER_WORKER * worker
    before, after = np.int64(memory[older + at]), np.int64(memory[newer + at])
    if before > 0:
        memory[newer + before] = after
    else:
        memory[own] = after
    if after > 0:
        memory[older + after] = before
    else:
        memory[own + 1] = before


@njit
def _append(memory: FloatArray, worker: int, at: int) -> None:
    older, newer = _column(memory, 3), _column(memory, 4)
    own = _HEAD + _PER_WORKER * worker
    newest = np.int64(memory[own + 1])
    memory[older + at] = newest
    memory[newer + at] = 0.0
    if newest > 0:
        memory[newer + newest] = at
    else:
        memory[own] = at
    memory[own + 1] = at


@njit
def _forget_oldest(memory: FloatArray, worker: int) -> None:
    """Forget the oldest block of a worker, which has one; its place is the next one to be taken."""
    size = np.int64(memory[1])
    first, following, keys, newer = (
        _column(memory, 0), _column(memory, 1), _column(memory, 2), _column(memory, 4),
    )  # fmt: skip
    own = _HEAD + _PER_WORKER * worker
    at = np.int64(memory[own])
    _unlink(memory, worker, at)
    bucket = first + 1 + np.int64(memory[keys + at]) % size
    before = np.int64(memory[bucket])
    if before == at:
        memory[bucket] = memory[following + at]
    else:
        while np.int64(memory[following + before]) != at:
            before = np.int64(memory[following + before])
        memory[following + before] = memory[following + at]
    memory[own + 3] -= memory[own + 3] / memory[own + 2]
    memory[own + 2] -= 1.0
    memory[newer + at] = memory[own + 4]
    memory[own + 4] = at


@njit
def _take_place(memory: FloatArray, worker: int) -> int:
    """Return a place for one more block of a worker, which has room."""
    own = _HEAD + _PER_WORKER * worker
    at = np.int64(memory[own + 4])
    if at > 0:
        memory[own + 4] = memory[_column(memory, 4) + at]
        return int(at)
    memory[own + 5] += 1.0
    return int(worker * (np.int64(memory[1]) // np.int64(memory[0])) + np.int64(memory[own + 5]))


@njit
def matched_blocks(memory: FloatArray, worker: int, blocks: NDArray[np.int64]) -> int:
    """Return how many leading blocks were sent to a worker and are not forgotten.

    Parameters
    ----------
    memory : float64 array
    worker : int
    blocks : int64 array (blocks,)
    """
    for i in range(blocks.size):
        if _find(memory, _key(worker, blocks[i])) == 0:
            return i
    return blocks.size


@njit
def held_tokens(memory: FloatArray, worker: int) -> float:
    """Return the tokens of the blocks that are remembered of a worker."""
    return memory[_HEAD + _PER_WORKER * worker + 3]


@njit
def remember(memory: FloatArray, worker: int, blocks: NDArray[np.int64], tokens: float) -> None:
    """Take in that blocks are sent to a worker; where there is no room its own oldest are forgotten.

    Parameters
    ----------
    memory : float64 array
    worker : int
    blocks : int64 array (blocks,)
        Of a prompt, from its first.
    tokens : float
        Of a block.
    """
    size = np.int64(memory[1])
    limit = size // np.int64(memory[0])
    first, following, keys = _column(memory, 0), _column(memory, 1), _column(memory, 2)
    own = _HEAD + _PER_WORKER * worker
    # Of a prompt that is longer than the memory the beginning stays.
    count = blocks.size if blocks.size < limit else limit
    for i in range(count - 1, -1, -1):
        key = _key(worker, blocks[i])
        at = _find(memory, key)
        if at > 0:
            _unlink(memory, worker, at)
        else:
            if memory[own + 2] >= limit:
                _forget_oldest(memory, worker)
            at = _take_place(memory, worker)
            bucket = first + 1 + np.int64(key) % size
            memory[keys + at] = key
            memory[following + at] = memory[bucket]
            memory[bucket] = at
            memory[own + 2] += 1.0
            memory[own + 3] += tokens
        _append(memory, worker, at)


@njit
def forget(memory: FloatArray, worker: int, tokens: float) -> None:
    """Forget the oldest blocks of a worker until those that stay hold no more tokens than this.

    Parameters
    ----------
    memory : float64 array
    worker : int
    tokens : float
    """
    own = _HEAD + _PER_WORKER * worker
    while memory[own + 2] > 0.0 and memory[own + 3] > tokens:
        _forget_oldest(memory, worker)
