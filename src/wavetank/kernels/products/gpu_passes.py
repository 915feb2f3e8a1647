"""The kernels of :mod:`.gpu_kernels` with tensors for arguments: how each is cut, compiled and launched.

Differs from the source:
1. Tiles are fixed by type and shared memory instead of searched for; the profile decides whether they are used.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from wavetank.kernels.products.gpu_kernels import FIRST, LAST, multiply_blocks, spread_products, sum_blocks
from wavetank.kernels.products.schemes import CLASSICAL, Scheme

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run on the CPU, line by line, for tests: TRITON_INTERPRET was set when this module was loaded."""


class Tile(NamedTuple):
    """How :func:`multiply_blocks` is cut and compiled."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    halvings: int


# By what is multiplied; the first of each fits the shared memory of a data centre's GPU, the second that of any.
_TILES = {
    "half": (Tile(128, 256, 64, 8, 3, 3), Tile(128, 128, 32, 8, 3, 2)),
    "tf32": (Tile(128, 128, 32, 8, 4, 1), Tile(128, 128, 32, 8, 2, 1)),
    "float32": (Tile(128, 128, 16, 8, 3, 0), Tile(128, 128, 16, 8, 3, 0)),
    "float64": (Tile(64, 64, 16, 4, 3, 1), Tile(64, 64, 16, 4, 3, 1)),
}
_LARGE_SHARED_BYTES = 160 * 1024
_GROUP = 8
_PASS_COLUMNS = 128
_PASS_WARPS = 4
_HALVES = (torch.float16, torch.bfloat16)


def tile_for(dtype: torch.dtype, tf32: bool, shared_bytes: int) -> Tile:
    """Return the tile of the multiplying kernel.

    Parameters
    ----------
    dtype : torch.dtype
        Of the operands.
    tf32 : bool
        Whether float32 is rounded to TF32.
    shared_bytes : int
        Shared memory that a block of the GPU can have.
    """
    kind = "half" if dtype in _HALVES else "float64" if dtype == torch.float64 else "tf32" if tf32 else "float32"
    return _TILES[kind][shared_bytes < _LARGE_SHARED_BYTES]


def pass_rows(blocks: int, itemsize: int) -> int:
    """Return the rows of a pass's tile: a thread holds its elements of all blocks in registers."""
    rows = 8 if blocks <= 9 else 4 if blocks <= 16 else 2 if blocks <= 36 else 1
    return max(1, rows // 2) if itemsize == 8 else rows


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums and products of ``dtype`` are formed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Contributions(NamedTuple):
    """Where products go, product after product: the table that :func:`multiply_blocks` reads."""

    starts: NDArray[np.int32]
    places: NDArray[np.int32]
    scales: NDArray[np.float64]
    states: NDArray[np.int32]


def contributions_of(table: NDArray[np.int64]) -> Contributions:
    """Return the non-zero coefficients of a table of shape (products, blocks), and who is first and last to a block."""
    products, places = np.nonzero(table)
    states = np.zeros(len(places), np.int32)
    states[np.unique(places, return_index=True)[1]] |= FIRST.value
    states[len(places) - 1 - np.unique(places[::-1], return_index=True)[1]] |= LAST.value
    starts = np.searchsorted(products, np.arange(len(table) + 1)).astype(np.int32)
    return Contributions(starts, places.astype(np.int32), table[products, places].astype(np.float64), states)


@functools.lru_cache(maxsize=128)
def _flat(scheme: Scheme, operand: str, turned: bool) -> tuple[int, ...]:
    parts = {"u": (scheme.m, scheme.k), "v": (scheme.k, scheme.n), "w": (scheme.m, scheme.n)}[operand]
    table = getattr(scheme, operand).reshape(scheme.rank, *parts)
    return tuple(map(int, (table.transpose(0, 2, 1) if turned else table).ravel()))


@functools.lru_cache(maxsize=128)
def _contributions_on(scheme: Scheme, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    starts, places, scales, states = (torch.from_numpy(part) for part in contributions_of(scheme.w))
    return tuple(part.to(device) for part in (starts, places, scales.to(dtype), states))


def _number(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype == torch.float64 else tl.float32


def form_sums(matrix: torch.Tensor, scheme: Scheme, operand: str, block: tuple[int, int]) -> torch.Tensor:
    """Return all sums of an operand's blocks, formed in one pass.

    Parameters
    ----------
    matrix : tensor, 2-D
        Any strides.
    scheme : Scheme
    operand : str
        "u" for the left one, "v" for the right one.
    block : (int, int)
        Rows and columns of a block; what lies outside the matrix counts as zero.

    Returns
    -------
    tensor, shape (rank, *block)
        Of the matrix's type; with neighbours along the same direction as in the matrix.
    """
    turned = matrix.stride(0) == 1 and matrix.stride(1) != 1
    parts = (scheme.m, scheme.k) if operand == "u" else (scheme.k, scheme.n)
    if turned:
        matrix, parts, block = matrix.T, parts[::-1], block[::-1]
    sums = torch.empty((scheme.rank, *block), dtype=matrix.dtype, device=matrix.device)
    rows = pass_rows(parts[0] * parts[1], matrix.itemsize)
    sum_blocks[(triton.cdiv(block[0], rows) * triton.cdiv(block[1], _PASS_COLUMNS),)](
        matrix,
        sums,
        *matrix.shape,
        *block,
        *matrix.stride(),
        coefficients=_flat(scheme, operand, turned),
        count=scheme.rank,
        down=parts[0],
        across=parts[1],
        number=_number(matrix.dtype),
        tile_rows=rows,
        tile_columns=_PASS_COLUMNS,
        num_warps=_PASS_WARPS,
    )
    return sums.transpose(1, 2) if turned else sums


def spread(products: torch.Tensor, result: torch.Tensor, scheme: Scheme, flag: torch.Tensor) -> None:
    """Write a result from the products of a scheme, in one pass.

    Parameters
    ----------
    products : tensor, shape (rank, high, wide), contiguous
    result : tensor, 2-D
        With neighbours in a row next to each other.
    scheme : Scheme
    flag : tensor of one int32
        Becomes 1 if an entry of the result is not finite.
    """
    _, high, wide = products.shape
    rows = pass_rows(scheme.m * scheme.n, result.itemsize)
    spread_products[(triton.cdiv(high, rows) * triton.cdiv(wide, _PASS_COLUMNS),)](
        products,
        result,
        flag,
        *result.shape,
        high,
        wide,
        result.stride(0),
        coefficients=_flat(scheme, "w", False),
        count=scheme.rank,
        down=scheme.m,
        across=scheme.n,
        number=_number(result.dtype),
        tile_rows=rows,
        tile_columns=_PASS_COLUMNS,
        num_warps=_PASS_WARPS,
    )


def multiply_and_spread(
    left: torch.Tensor, right: torch.Tensor, result: torch.Tensor, scheme: Scheme, flag: torch.Tensor, tile: Tile,
    tf32: bool,
) -> None:  # fmt: skip
    """Multiply sums and add each product to its blocks of the result on the way.

    Parameters
    ----------
    left, right : tensors, shapes (rank, high, deep) and (rank, deep, wide)
    result : tensor, 2-D
        With neighbours in a row next to each other.
    scheme : Scheme
    flag : tensor of one int32
        Becomes 1 if an entry of the result is not finite.
    tile : Tile
    tf32 : bool
        Whether float32 is rounded to TF32.
    """
    kind = accumulator(result.dtype)
    apart = kind != result.dtype
    shape = (scheme.m * scheme.n, left.shape[1], right.shape[2])
    partial = torch.empty(shape, dtype=kind, device=result.device) if apart else result
    _multiply(left, right, partial, result, scheme, flag, tile, tf32, apart=apart, guarded=False)


def multiply_again(
    left: torch.Tensor, right: torch.Tensor, result: torch.Tensor, flag: torch.Tensor, tile: Tile, tf32: bool
) -> None:
    """Compute the classical product where ``flag`` is 1, else nothing; the flag is read on the device.

    Parameters
    ----------
    left, right : tensors, shapes (m, k) and (k, n)
        Any strides.
    result, flag, tile, tf32
        As of :func:`multiply_and_spread`.
    """
    _multiply(
        left[None], right[None], result, result, CLASSICAL, flag, tile, tf32, apart=False, guarded=True
    )  # fmt: skip


def _multiply(
    left: torch.Tensor, right: torch.Tensor, partial: torch.Tensor, result: torch.Tensor, scheme: Scheme,
    flag: torch.Tensor, tile: Tile, tf32: bool, *, apart: bool, guarded: bool,
) -> None:  # fmt: skip
    _, high, deep = left.shape
    wide = right.shape[2]
    if INTERPRETED and left.dtype == torch.bfloat16:
        # The interpreter cannot multiply bfloat16; float32 holds each product of two without rounding.
        left, right = left.float(), right.float()
    multiply_blocks[(triton.cdiv(high, tile.rows) * triton.cdiv(wide, tile.columns),)](
        left,
        right,
        partial,
        result,
        flag,
        *_contributions_on(scheme, result.device, accumulator(result.dtype)),
        scheme.rank,
        high,
        deep,
        wide,
        *left.stride(),
        *right.stride(),
        *result.shape,
        result.stride(0),
        scheme.n,
        number=_number(result.dtype),
        precision="tf32" if tf32 else "ieee",
        apart=apart,
        guarded=guarded,
        tile_rows=tile.rows,
        tile_columns=tile.columns,
        tile_depth=tile.depth,
        group=_GROUP,
        halvings=tile.halvings,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
