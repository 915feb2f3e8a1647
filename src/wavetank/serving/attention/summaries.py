"""Summaries of blocks of keys, scores from them, and 4 bits a number.

A box holds the greatest and the least number of each channel, a ball the mean key and the largest distance from it.
Both bound the product of a query and any key of the block from above, and both bounds are sums of the summary's
numbers, weighted by what the query says: that is why one kernel serves both.

References
----------
J. Tang and others, "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", 2024 (boxes); R. Chen and
others, "ArkVale: Efficient Generative LLM Inference with Recallable Key-Value Eviction", 2024 (bounding volumes).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.attention.interface import Floats
from wavetank.serving.attention.kernels import TILE

SUMMARIES = ("box", "ball")


def numbers_of(kind: str, dim: int) -> int:
    """Return how many numbers a summary has.

    Parameters
    ----------
    kind : str
        One of :data:`SUMMARIES`.
    dim : int
        Channels of a key.
    """
    return 2 * dim if kind == "box" else dim + 1


def summarise(kind: str, keys: Floats, block: int) -> Floats:
    """Return the summaries of whole blocks, float32 (blocks, numbers).

    Parameters
    ----------
    kind : str
        One of :data:`SUMMARIES`.
    keys : float32 array (tokens, dim)
        Those behind the last whole block do not count.
    block : int
        Tokens of a block.
    """
    count = keys.shape[0] // block
    blocks = keys[: count * block].reshape(count, block, keys.shape[1])
    if kind == "box":
        # Neighbours, as of each pair a query needs one.
        return np.stack((blocks.max(1), blocks.min(1)), 2).reshape(count, -1)
    centre = blocks.mean(1, dtype=np.float64).astype(np.float32)
    apart = (blocks - centre[:, None]).astype(np.float64)
    radius = np.sqrt(np.einsum("btc,btc->bt", apart, apart).max(1, initial=0.0))
    # A bound that is rounded is rounded up.
    return np.concatenate((centre, np.nextafter(radius.astype(np.float32), np.float32(np.inf))[:, None]), 1)


def query_weights(kind: str, query: Floats, reach: float = 1.0) -> Floats:
    """Return what each number of a summary counts in a score, float32 (..., numbers).

    Parameters
    ----------
    kind : str
        One of :data:`SUMMARIES`.
    query : float32 array (..., dim)
    reach : float
        Of a ball, the share of its radius that counts: 1 gives a bound, 0 the product with the mean.
    """
    if kind == "box":
        return np.stack((np.maximum(query, 0), np.minimum(query, 0)), -1).reshape(*query.shape[:-1], -1)
    length = np.linalg.norm(query, axis=-1, keepdims=True) * np.float32(reach)
    return np.concatenate((query, length), -1)


def quantise(numbers: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Return codes of numbers, one scale and one zero a column.

    A number is about ``code * scale + zero``, and off by half a scale at most, but for rounding of the sum.

    Parameters
    ----------
    numbers : float32 array (blocks, numbers)
        At least one block.
    bits : int
        1 to 8.

    Returns
    -------
    uint8 array (blocks, numbers), float32 array (numbers,), float32 array (numbers,)
        Codes, scales and zeros.

    Raises
    ------
    BadValueError
        If there is no number, or no such code.
    """
    if not 1 <= bits <= 8 or numbers.ndim != 2 or numbers.shape[0] < 1:
        raise BadValueError("Codes have 1 to 8 bits, and need numbers.", given=f"{bits} bits, {numbers.shape} numbers")
    zeros = numbers.min(0)
    scales = ((numbers.max(0).astype(np.float64) - zeros) / (2**bits - 1)).astype(np.float32)
    steps = (numbers.astype(np.float64) - zeros) / np.where(scales > 0, scales, 1.0)
    return np.clip(np.rint(steps), 0, 2**bits - 1).astype(np.uint8), scales, zeros


def tiles_of(summaries: Floats, bits: int) -> tuple[Any, ...]:
    """Return summaries as tiles: (numbers, packed, scales, zeros), as :func:`~.kernels.score_blocks` takes them.

    Parameters
    ----------
    summaries : float32 array (blocks, numbers)
    bits : int
        4 or 32.
    """
    width = summaries.shape[1]
    tiles = -(-summaries.shape[0] // TILE)
    if bits == 32:
        numbers = np.zeros((tiles, width, TILE), np.float32)
        for tile in range(tiles):
            part = summaries[tile * TILE : (tile + 1) * TILE]
            numbers[tile, :, : part.shape[0]] = part.T
        return numbers, *empty_tiles(width)[1:]
    packed = np.zeros((tiles, width, TILE // 2), np.uint8)
    scales, zeros = np.zeros((tiles, width), np.float32), np.zeros((tiles, width), np.float32)
    for tile in range(tiles):
        part = summaries[tile * TILE : (tile + 1) * TILE]
        codes = np.zeros((TILE, width), np.uint8)
        codes[: part.shape[0]], scales[tile], zeros[tile] = quantise(part, bits)
        packed[tile] = (codes[: TILE // 2] | codes[TILE // 2 :] << 4).T
    return empty_tiles(width)[0], packed, scales, zeros


def empty_tiles(width: int) -> tuple[Any, ...]:
    """Return no tiles of summaries with this many numbers, in both forms.

    Parameters
    ----------
    width : int
    """
    return (
        np.zeros((0, width, TILE), np.float32), np.zeros((0, width, TILE // 2), np.uint8),
        np.zeros((0, width), np.float32), np.zeros((0, width), np.float32),
    )  # fmt: skip
