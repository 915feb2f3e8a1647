"""A lower-complexity product on top of a library's: sums in one pass, the library multiplies, results spread in one
pass.

What remains when the inner product is a sealed library call: sums cannot be formed inside it, but each is formed in
one pass over memory instead of one an addition, and a finished product is added to all its blocks in one pass.

Source: H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026 (combine passes); the separate-pass form is that of A.
Benson, G. Ballard, "A Framework for Practical Parallel Fast Matrix Multiplication", PPoPP 2015.

Differs from the source:
1. Blocks that reach over an edge are padded with zeros inside the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from wavetank.kernels.products.microkernel import tile_of
from wavetank.kernels.products.packing import pack_rows, spread_rows, terms_of
from wavetank.kernels.products.schemes import Scheme
from wavetank.machine.thread_pool import cuts, thread_pool

Multiply = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], object]
"""Writes the product of the first two matrices to the third."""


def _blocks(m: int, k: int, n: int, dtype: DTypeLike, scheme: Scheme) -> tuple[int, int, int]:
    lanes = tile_of(np.dtype(dtype)).lanes
    sides = zip((m, k, n), (scheme.m, scheme.k, scheme.n), strict=True)
    high, deep, wide = (_up(_up(size, parts) // parts, lanes) for size, parts in sides)
    return high, deep, wide


def _up(size: int, step: int) -> int:
    """Return the least multiple of ``step`` that is not below ``size``."""
    return (size + step - 1) // step * step


def workspace_bytes(m: int, k: int, n: int, dtype: DTypeLike, scheme: Scheme) -> int:
    """Return the bytes of one left sum, one right sum and one product, sides rounded up to whole vectors."""
    high, deep, wide = _blocks(m, k, n, dtype, scheme)
    return (high * deep + deep * wide + high * wide) * np.dtype(dtype).itemsize


def combined_product(
    a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], scheme: Scheme, multiply: Multiply, threads: int
) -> None:
    """Write the product of ``a`` and ``b`` to ``out``; arguments as of ``fused_product``.

    Parameters
    ----------
    a, b, out : arrays, shapes (m, k), (k, n) and (m, n)
    scheme : Scheme
    multiply : callable
        The library's product.
    threads : int
        For the passes; the library has its own.
    """
    high, deep, wide = _blocks(a.shape[0], a.shape[1], out.shape[1], a.dtype, scheme)
    left = terms_of(a, scheme.u, (scheme.m, scheme.k), (high, deep))
    right = terms_of(b, scheme.v, (scheme.k, scheme.n), (deep, wide))
    result = terms_of(out, scheme.w, (scheme.m, scheme.n), (high, wide))
    sum_a, sum_b, product = (np.empty(shape, a.dtype) for shape in ((high, deep), (deep, wide), (high, wide)))
    tile, size, one = tile_of(a.dtype), a.itemsize, a.dtype.type(1)

    def parts(rows: int) -> list[tuple[int, int]]:
        groups = rows // tile.lanes
        return [(start * tile.lanes, stop * tile.lanes) for start, stop in cuts(groups, min(threads, groups))]

    pool = thread_pool(threads)
    for r in range(scheme.rank):
        for terms, target in ((left, sum_a), (right, sum_b)):
            row = target.strides[0]
            pool(pack_rows, [
                (one, terms, r, start, stop - start, 0, target.shape[1], target.ctypes.data + start * row, row,
                 tile.columns, tile.lanes, size)
                for start, stop in parts(target.shape[0])
            ])  # fmt: skip
        multiply(sum_a, sum_b, product)
        row = product.strides[0]
        pool(spread_rows, [
            (result, r, start, stop - start, 0, wide, product.ctypes.data + start * row, row, tile.lanes, size)
            for start, stop in parts(high)
        ])  # fmt: skip


def separate_product(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], scheme: Scheme, multiply: Multiply) -> None:
    """Write the product of ``a`` and ``b`` to ``out``, every addition a pass of its own over memory.

    The textbook form, kept as a rival: sides must be multiples of the scheme's blocks, or it pads copies.
    """
    sides = zip((*a.shape, out.shape[1]), (scheme.m, scheme.k, scheme.n), strict=True)
    high, deep, wide = (-(-size // parts) for size, parts in sides)
    a = _padded(a, (high * scheme.m, deep * scheme.k))
    b = _padded(b, (deep * scheme.k, wide * scheme.n))
    padded = (high * scheme.m, wide * scheme.n)
    whole = out if out.shape == padded else np.empty(padded, out.dtype)
    blocks_a, blocks_b, blocks_c = _cut(a, high, deep), _cut(b, deep, wide), _cut(whole, high, wide)
    product = np.empty((high, wide), out.dtype)
    written: set[int] = set()
    for u, v, w in zip(scheme.u, scheme.v, scheme.w, strict=True):
        multiply(_summed(blocks_a, u), _summed(blocks_b, v), product)
        for i in np.flatnonzero(w):
            scaled = product if w[i] == 1 else product * out.dtype.type(w[i])
            if i in written:
                blocks_c[i] += scaled
            else:
                blocks_c[i][:] = scaled
                written.add(int(i))
    if whole is not out:
        out[:] = whole[: out.shape[0], : out.shape[1]]


def _cut(matrix: NDArray[Any], high: int, wide: int) -> list[NDArray[Any]]:
    """Return the blocks of a matrix, row by row of blocks."""
    height, width = matrix.shape
    return [matrix[i : i + high, j : j + wide] for i in range(0, height, high) for j in range(0, width, wide)]


def _padded(matrix: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    if matrix.shape == shape:
        return matrix
    padded = np.zeros(shape, matrix.dtype)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


def _summed(blocks: list[NDArray[Any]], coefficients: NDArray[np.int64]) -> NDArray[Any]:
    places = np.flatnonzero(coefficients)
    kind = blocks[0].dtype.type
    if len(places) == 1 and coefficients[places[0]] == 1:
        return blocks[places[0]]
    total = blocks[places[0]] * kind(coefficients[places[0]])
    for i in places[1:]:
        if coefficients[i] == 1:
            total += blocks[i]
        elif coefficients[i] == -1:
            total -= blocks[i]
        else:
            total += blocks[i] * kind(coefficients[i])
    return total
