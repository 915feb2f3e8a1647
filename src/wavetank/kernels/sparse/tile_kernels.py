"""What runs on a GPU of a sparse product: tiles of the merge path, decoded from their bits in registers.

A program takes one tile, a fixed number of steps of the path.  A step's bit says whether it ends a row; counting the
ones before it gives its row, counting the zeros its nonzero, and both are the neighbours of the next step's: loads and
stores are coalesced.  A segmented scan adds up what lies between two ends, and each end writes its row.  The row that
is open when a tile ends leaves its sum behind, and a second kernel adds these sums to their rows, in a fixed order.

Source: Q. Zhang, Z.-B. Zhang, Z. Yao and Z. Jiang, "MERBIT: A GPU-Based SpMV Method for Iterative Workloads",
arXiv 2605.07391, 2026; the path is that of D. Merrill and M. Garland, SC 2016.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Steps of a word of bits; a constant inside kernels.
WORD_STEPS = 32
_WORD = tl.constexpr(WORD_STEPS)


@triton.jit
def _ones(word: tl.tensor) -> tl.tensor:
    """Return the number of ones in each word, whose highest bit is 0."""
    pairs = word - ((word >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    bytes_ = (fours + (fours >> 4)) & 0x0F0F0F0F
    halves = bytes_ + (bytes_ >> 8)
    return (halves + (halves >> 16)) & 0x3F


@triton.jit
def _append(sums: tl.tensor, begins: tl.tensor, more: tl.tensor, more_begins: tl.tensor) -> tl.tensor:
    """Combine two neighbouring stretches of steps: a sum starts anew where a row begins."""
    return tl.where(more_begins != 0, more, sums + more), begins | more_begins


@triton.jit
def multiply_tiles(
    words: tl.tensor, ends_before: tl.tensor, first_row: tl.tensor, first_nonzero: tl.tensor, values: tl.tensor,
    columns: tl.tensor, scale: tl.tensor, x: tl.tensor, y: tl.tensor, tails: tl.tensor, STEPS: tl.constexpr,
    WEIGHTED: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply one tile per program: write the rows that end in it, and what it has of the row that it leaves open.

    Parameters
    ----------
    words : int32, shape (tiles * STEPS / 32,)
        Bit s of a word is 1 where that step ends a row.
    ends_before : int16, shape (tiles * STEPS / 32,)
        Ones of the tile before each word.
    first_row, first_nonzero : int64, shape (tiles + 1,)
        Rows finished and nonzeros consumed before each tile, and in all.
    values : float, shape (nonzeros,)
        Not read unless WEIGHTED.
    columns : int32, shape (nonzeros,)
    scale : float, shape (1,)
        Value of every nonzero, read unless WEIGHTED.
    x, y : float
        Vector and result.
    tails : float, shape (tiles,)
        Out: sums of the rows that are open at the end of each tile.
    STEPS : int
        Of a tile: a power of two, 32 to 32,768.
    WEIGHTED : bool
        Whether nonzeros have values of their own.
    """
    tile = tl.program_id(0).to(tl.int64)
    step = tl.arange(0, STEPS)
    tile_words = words + tile * (STEPS // _WORD)
    word = tl.load(tile_words + step // _WORD)
    bit = step % _WORD
    ends = (word >> bit) & 1
    before = tl.load(ends_before + tile * (STEPS // _WORD) + step // _WORD).to(tl.int32) + _ones(word & ~(-1 << bit))
    row, rows_end = tl.load(first_row + tile), tl.load(first_row + tile + 1)
    nonzero = tl.load(first_nonzero + tile)
    count = (tl.load(first_nonzero + tile + 1) - nonzero).to(tl.int32)
    # Steps behind the end of the path are no nonzeros.
    at = step - before
    some = (ends == 0) & (at < count)
    column = tl.load(columns + nonzero + at, mask=some, other=0)
    products = tl.load(x + column, mask=some, other=0.0)
    if WEIGHTED:
        products = products * tl.load(values + nonzero + at, mask=some, other=0.0)
    else:
        products = tl.where(some, products * tl.load(scale), 0.0)
    if rows_end == row:
        # All of it belongs to the open row.
        tl.store(tails + tile, tl.sum(products, axis=0))
    else:
        previous = tl.maximum(step - 1, 0)
        begins = (tl.load(tile_words + previous // _WORD, mask=step > 0, other=0) >> (previous % _WORD)) & 1
        sums, begins = tl.associative_scan((products, begins), 0, _append)
        tl.store(y + row + before, sums, mask=ends != 0)
        tl.store(tails + tile + step * 0, tl.where(ends == 0, sums, 0.0), mask=step == STEPS - 1)


@triton.jit(do_not_specialize=["count", "longest"])
def close_rows(
    rows: tl.tensor, first_tail: tl.tensor, last_tail: tl.tensor, tails: tl.tensor, y: tl.tensor, count: tl.tensor,
    longest: tl.tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Add to ROWS rows per program what the tiles before their end have of them, always in the same order.

    Parameters
    ----------
    rows : int64, shape (count,)
        Rows that cross tiles.
    first_tail, last_tail : int32, shape (count,)
        The tiles that leave the row open; ``last_tail`` is the first that does not.
    tails : float, shape (tiles,)
    y : float
        The result, changed in place.
    count : int
        Rows that cross tiles.
    longest : int
        Most tiles that leave one of them open.
    ROWS, WIDTH : int
        Powers of two: rows of a program, tiles added at once.
    """
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = place < count
    first = tl.load(first_tail + place, mask=mine, other=0)
    last = tl.load(last_tail + place, mask=mine, other=0)
    row = tl.load(rows + place, mask=mine, other=0)
    own = tl.load(y + row, mask=mine, other=0.0)
    partial = tl.zeros((ROWS, WIDTH), own.dtype)
    for begin in range(0, longest, WIDTH):
        tile = first[:, None] + begin + tl.arange(0, WIDTH)[None, :]
        partial += tl.load(tails + tile, mask=tile < last[:, None], other=0.0)
    tl.store(y + row, tl.sum(partial, axis=1) + own, mask=mine)


# Whether Triton was set, before this module was loaded, to run kernels in Python instead of compiling them.
INTERPRETED = not isinstance(multiply_tiles, triton.JITFunction)
