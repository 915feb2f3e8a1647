"""The fused product: sums of blocks, products and their distribution in one pass that keeps the multiplier busy.

Each of a scheme's products is a Goto-style loop.  The sums of the left and the right operand are packed a little at a
time between micro-kernel calls, from lines that were asked for some calls earlier, and a finished tile goes straight to
all its blocks of the result.  No sum and no product is ever a matrix in memory, and memory works while the
multipliers do.

Source: H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026 (fusing products and combination, groups of products that
share data); J. Huang et al., "Strassen's Algorithm Reloaded", SC 2016 (sums formed while packing).

Differs from the source:
1. Packing the next block overlaps with multiplying the present one, by prefetches and two buffers.
2. Threads take columns (or rows) of every block; each packs for itself, and none waits for another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from wavetank.kernels.crew import crew_of
from wavetank.kernels.products.microkernel import LINE_BYTES, fetch_line, multiply_tile, tile_of
from wavetank.kernels.products.packing import add_tile, fetch_rows, fetch_tile, pack_rows, terms_of
from wavetank.kernels.products.schemes import Scheme


class Share(NamedTuple):
    """What one thread multiplies: of every block the same rows and columns, all of the inner dimension."""

    first_row: int
    """In rows of a block; a multiple of the register tile."""
    last_row: int
    inner: int
    """Length of the inner dimension of a block."""
    first_panel: int
    """In column panels of a block, each as wide as the register tile."""
    last_panel: int
    panels: int
    """Column panels of a whole block: where a prepared right operand has its next chunk."""


class Buffers(NamedTuple):
    """Addresses of one thread's scratch, each at the start of a cache line."""

    left: int
    """Two packed blocks of the left operand."""
    right: int
    """The packed panels of the right operand, or those prepared earlier."""
    right_product: int
    """Bytes from one prepared product to the next; 0 where the right operand is packed on the way."""
    tiles: int
    """The tiles of one row block."""


class Blocking(NamedTuple):
    """Sizes that suit the caches."""

    rows: int
    """Rows of a packed left block; a multiple of the register tile."""
    depth: int
    """Inner length of a chunk."""
    tile_rows: int
    tile_columns: int
    lanes: int
    itemsize: int


@njit(cache=True, nogil=True)
def multiply_fused(one, left, right, result, share, buffers, blocking):  # type: ignore[no-untyped-def]
    """Compute a thread's share of all products and add them to the result.

    Parameters
    ----------
    one : float32 or float64
        The number 1 in the type of the elements.
    left, right, result : Terms
    share : Share
    buffers : Buffers
    blocking : Blocking
    """
    itemsize, lanes = blocking.itemsize, blocking.lanes
    tile_rows, tile_columns = blocking.tile_rows, blocking.tile_columns
    line = 64
    products = left.start.size - 1
    inner = share.inner
    rows = share.last_row - share.first_row
    panels = share.last_panel - share.first_panel
    row_blocks = (rows + blocking.rows - 1) // blocking.rows
    chunks = (inner + blocking.depth - 1) // blocking.depth
    steps = products * row_blocks * chunks
    left_row = (blocking.depth + line // itemsize) * itemsize
    left_block = (blocking.rows + lanes) * left_row
    tile_bytes = tile_rows * tile_columns * itemsize
    prepared = buffers.right_product > 0
    # A right panel that is used for one row block only always lies in the same, then warm, place.
    kept = prepared or row_blocks > 1
    panels_kept = share.panels if prepared else panels

    # The very first blocks are packed before anything can be multiplied.
    high = min(blocking.rows, rows)
    deep = min(blocking.depth, inner)
    pack_rows(one, left, 0, share.first_row, high, 0, deep, buffers.left, left_row, tile_columns, lanes, itemsize)
    if not prepared:
        pack_rows(
            one, right, 0, 0, deep, share.first_panel * tile_columns, tile_columns, buffers.right,
            tile_columns * itemsize, tile_columns, lanes, itemsize,
        )  # fmt: skip
    for step in range(steps):
        product, within = step // (row_blocks * chunks), step % (row_blocks * chunks)
        row_block, chunk = within // chunks, within % chunks
        row = share.first_row + row_block * blocking.rows
        high = min(blocking.rows, share.last_row - row)
        column = chunk * blocking.depth
        deep = min(blocking.depth, inner - column)
        deep_kept = (deep + lanes - 1) // lanes * lanes
        left_here = buffers.left + (step % 2) * left_block
        tiles_high = (high + tile_rows - 1) // tile_rows

        following = step + 1
        more = following < steps
        next_product, next_within = following // (row_blocks * chunks), following % (row_blocks * chunks)
        next_chunk = next_within % chunks
        next_row = share.first_row + (next_within // chunks) * blocking.rows
        next_high = min(blocking.rows, share.last_row - next_row) if more else 0
        next_column = next_chunk * blocking.depth
        next_deep = min(blocking.depth, inner - next_column)
        left_next = buffers.left + (following % 2) * left_block
        # Rows are packed in whole groups, as many as a vector has lanes: that is how a transposed operand comes.
        groups = (next_high + lanes - 1) // lanes

        chunk_at = buffers.right + product * buffers.right_product + column * panels_kept * tile_columns * itemsize
        for panel in range(panels):
            if kept:
                position = panel + (share.first_panel if prepared else 0)
                right_here = chunk_at + position * deep_kept * tile_columns * itemsize
            else:
                right_here = buffers.right
            # Which right panel is to be packed at the end of this turn, if any.
            pack_product, pack_column, pack_panel = product, column, panel + 1
            packing = not prepared and row_block == 0
            if panel + 1 == panels:
                pack_product, pack_column, pack_panel = next_product, next_column, 0
                packing = not prepared and more and next_row == share.first_row
            pack_deep = min(blocking.depth, inner - pack_column)
            pack_at = (share.first_panel + pack_panel) * tile_columns
            group, last_group = panel * groups // panels, (panel + 1) * groups // panels
            fetch_count = (last_group - group) * lanes
            right_next = right_here + deep * tile_columns * itemsize
            ahead = (deep * tile_columns * itemsize + tiles_high - 1) // tiles_high
            for tile in range(tiles_high):
                if packing:
                    begin, end = pack_deep * tile // tiles_high, pack_deep * (tile + 1) // tiles_high
                    if right.column_bytes == itemsize:
                        fetch_rows(
                            right, pack_product, pack_column + begin, end - begin, pack_at, tile_columns, itemsize
                        )
                    else:
                        begin, end = tile_columns * tile // tiles_high, tile_columns * (tile + 1) // tiles_high
                        fetch_rows(right, pack_product, pack_column, pack_deep, pack_at + begin, end - begin, itemsize)
                elif kept:
                    for place in range(right_next + tile * ahead, right_next + (tile + 1) * ahead, line):
                        fetch_line(place)
                if fetch_count:
                    if left.column_bytes == itemsize:
                        begin, end = fetch_count * tile // tiles_high, fetch_count * (tile + 1) // tiles_high
                        fetch_rows(
                            left, next_product, next_row + group * lanes + begin, end - begin, next_column, next_deep,
                            itemsize,
                        )  # fmt: skip
                    else:
                        begin, end = next_deep * tile // tiles_high, next_deep * (tile + 1) // tiles_high
                        fetch_rows(
                            left, next_product, next_row + group * lanes, fetch_count, next_column + begin,
                            end - begin, itemsize,
                        )  # fmt: skip
                tile_row = row + tile * tile_rows
                tile_column = (share.first_panel + panel) * tile_columns
                finished = chunk + 1 == chunks
                if finished:
                    fetch_tile(
                        result, product, tile_row, min(tile_rows, share.last_row - tile_row), tile_column,
                        tile_columns, itemsize,
                    )  # fmt: skip
                tile_at = buffers.tiles + (panel * tiles_high + tile) * tile_bytes
                multiply_tile(
                    one, deep, left_here + tile * tile_rows * left_row, left_row, right_here, tile_at, chunk > 0
                )
                if finished:
                    add_tile(
                        result, product, tile_row, min(tile_rows, share.last_row - tile_row), tile_column,
                        tile_columns, tile_at, lanes, itemsize,
                    )  # fmt: skip
            if packing:
                target = buffers.right
                if kept:
                    pack_kept = (pack_deep + lanes - 1) // lanes * lanes
                    target += (pack_column * panels + pack_panel * pack_kept) * tile_columns * itemsize
                pack_rows(
                    one, right, pack_product, pack_column, pack_deep, pack_at, tile_columns, target,
                    tile_columns * itemsize, tile_columns, lanes, itemsize,
                )  # fmt: skip
            if last_group > group:
                pack_rows(
                    one, left, next_product, next_row + group * lanes, min(last_group * lanes, next_high) - group *
                    lanes, next_column, next_deep, left_next + group * lanes * left_row, left_row, tile_columns, lanes,
                    itemsize,
                )  # fmt: skip


@njit(cache=True, nogil=True)
def _pack_right(one, right, inner, first_panel, last_panel, panels, target, target_product, blocking):  # type: ignore[no-untyped-def]
    """Pack the column panels of all sums of the right operand, for products with many left ones."""
    itemsize, lanes, tile_columns = blocking.itemsize, blocking.lanes, blocking.tile_columns
    for product in range(right.start.size - 1):
        for column in range(0, inner, blocking.depth):
            deep = min(blocking.depth, inner - column)
            kept = (deep + lanes - 1) // lanes * lanes
            chunk_at = target + product * target_product + column * panels * tile_columns * itemsize
            for panel in range(first_panel, last_panel):
                pack_rows(
                    one, right, product, column, deep, panel * tile_columns, tile_columns,
                    chunk_at + panel * kept * tile_columns * itemsize, tile_columns * itemsize, tile_columns, lanes,
                    itemsize,
                )  # fmt: skip


# Rows and depth of a packed left block by bytes of an element: it takes under half of a 1 MB second-level cache.
_BLOCK = {4: (448, 128), 8: (308, 96)}
# Measured: a plain product is best with narrower strips, a scheme's with fewer packings of the left operand.
_STRIP_BYTES = {False: 4096, True: 8192}


def blocking_of(dtype: DTypeLike) -> Blocking:
    """Return the sizes of packed blocks: a left block fits the second cache, a right panel half the first."""
    tile, itemsize = tile_of(np.dtype(dtype)), np.dtype(dtype).itemsize
    rows, depth = _BLOCK[itemsize]
    return Blocking(
        rows=rows // tile.rows * tile.rows,
        depth=depth,
        tile_rows=tile.rows,
        tile_columns=tile.columns,
        lanes=tile.lanes,
        itemsize=itemsize,
    )


class Layout(NamedTuple):
    """How one product is cut into blocks, strips and shares."""

    high: int
    """Rows of a block."""
    deep: int
    """Inner length of a block."""
    wide: int
    """Columns of a block."""
    panels: int
    """Column panels of a block."""
    strip: int
    """Column panels multiplied at a time."""
    threads: int
    by_columns: bool
    """Whether threads share the columns of every block, or its rows."""


def layout_of(m: int, k: int, n: int, dtype: DTypeLike, scheme: Scheme, threads: int) -> Layout:
    """Return how a product of these sizes is cut."""
    tile, itemsize = tile_of(np.dtype(dtype)), np.dtype(dtype).itemsize
    high, deep, wide = -(-m // scheme.m), -(-k // scheme.k), -(-n // scheme.n)
    panels, tiles = -(-wide // tile.columns), -(-high // tile.rows)
    by_columns = wide >= high or tiles < threads
    threads = min(threads, panels if by_columns else tiles)
    strip = max(1, _STRIP_BYTES[scheme.rank > 1] // (tile.columns * itemsize))
    mine = -(-panels // threads) if by_columns else panels
    # Strips of even width: a narrow rest would pack the left operand for little.
    strip = -(-mine // -(-mine // strip))
    return Layout(high, deep, wide, panels, strip, threads, by_columns)


def _scratch_sizes(layout: Layout, blocking: Blocking, prepared: bool) -> tuple[int, int, int]:
    """Return a thread's bytes for left blocks, right panels and tiles, each a multiple of a line."""
    itemsize = blocking.itemsize
    left = 2 * (blocking.rows + blocking.lanes) * (blocking.depth + LINE_BYTES // itemsize) * itemsize
    rows = layout.high if layout.by_columns else -(-layout.high // layout.threads) + blocking.tile_rows
    depth = layout.deep + blocking.lanes if rows > blocking.rows else blocking.depth + blocking.lanes
    width = layout.strip if rows > blocking.rows else 1
    right = 0 if prepared else depth * width * blocking.tile_columns * itemsize
    tiles = min(blocking.rows, rows + blocking.tile_rows) * layout.strip * blocking.tile_columns * itemsize
    return tuple(-(-size // LINE_BYTES) * LINE_BYTES for size in (left, right, tiles))  # type: ignore[return-value]


def workspace_bytes(
    m: int, k: int, n: int, dtype: DTypeLike, scheme: Scheme, threads: int, prepared: bool = False
) -> int:
    """Return the most memory a fused product allocates beside its result, in bytes.

    A thread keeps two packed left blocks, the packed right panels of one strip of one product (the inner length of a
    block times at most 2,048 columns), and the tiles of one row block.
    """
    layout = layout_of(m, k, n, dtype, scheme, threads)
    return layout.threads * sum(_scratch_sizes(layout, blocking_of(dtype), prepared)) + LINE_BYTES


def _lines(size: int) -> NDArray[np.uint8]:
    """Return ``size`` bytes that start at a cache line."""
    room = np.empty(size + LINE_BYTES, np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    return room[start : start + size]


class PackedRight:
    """All sums of a right operand, packed once for many products.

    Parameters
    ----------
    b : array, shape (k, n)
    scheme : Scheme
    threads : int
    """

    def __init__(self, b: NDArray[Any], scheme: Scheme, threads: int) -> None:
        blocking = blocking_of(b.dtype)
        self.layout = layout_of(1, b.shape[0], b.shape[1], b.dtype, scheme, 1)
        deep_kept = -(-self.layout.deep // blocking.lanes) * blocking.lanes
        self.product_bytes = deep_kept * self.layout.panels * blocking.tile_columns * blocking.itemsize
        self.room = _lines(scheme.rank * self.product_bytes)
        right = terms_of(b, scheme.v, (scheme.k, scheme.n), (self.layout.deep, self.layout.wide))
        panels, parts = self.layout.panels, min(threads, self.layout.panels)
        calls = [
            (
                b.dtype.type(1), right, self.layout.deep, panels * part // parts, panels * (part + 1) // parts, panels,
                self.room.ctypes.data, self.product_bytes, blocking,
            )
            for part in range(parts)
        ]  # fmt: skip
        with crew_of(parts) as crew:
            crew(_pack_right, calls)


def fused_product(
    a: NDArray[Any],
    b: NDArray[Any] | None,
    out: NDArray[Any],
    scheme: Scheme,
    threads: int,
    packed: PackedRight | None = None,
) -> None:
    """Write the product of ``a`` and ``b`` to ``out``.

    Parameters
    ----------
    a, b : arrays, shapes (m, k) and (k, n)
        float32 or float64, with neighbours in memory along one of the two directions; ``b`` may be None with
        ``packed``.
    out : array, shape (m, n)
        Of the same type, neighbours along rows, overlapping neither input.
    scheme : Scheme
    threads : int
    packed : PackedRight, optional
        The right operand packed earlier with the same scheme.
    """
    (m, k), n = a.shape, out.shape[1]
    blocking = blocking_of(a.dtype)
    layout = layout_of(m, k, n, a.dtype, scheme, threads)
    left = terms_of(a, scheme.u, (scheme.m, scheme.k), (layout.high, layout.deep))
    result = terms_of(out, scheme.w, (scheme.m, scheme.n), (layout.high, layout.wide))
    # With packed panels the right terms are never read; the left ones stand in so that one compiled form serves both.
    right = left if b is None else terms_of(b, scheme.v, (scheme.k, scheme.n), (layout.deep, layout.wide))
    sizes = _scratch_sizes(layout, blocking, packed is not None)
    room = _lines(layout.threads * sum(sizes))

    def share(part: int) -> None:
        start = room.ctypes.data + part * sum(sizes)
        buffers = Buffers(
            left=start,
            right=start + sizes[0] if packed is None else packed.room.ctypes.data,
            right_product=0 if packed is None else packed.product_bytes,
            tiles=start + sizes[0] + sizes[1],
        )
        rows, columns = (0, layout.high), (0, layout.panels)
        if layout.by_columns:
            columns = _cut(layout.panels, layout.threads, part)
        else:
            tiles = _cut(-(-layout.high // blocking.tile_rows), layout.threads, part)
            rows = tiles[0] * blocking.tile_rows, min(tiles[1] * blocking.tile_rows, layout.high)
        for first in range(columns[0], columns[1], layout.strip):
            last = min(first + layout.strip, columns[1])
            multiply_fused(
                a.dtype.type(1), left, right, result,
                Share(rows[0], rows[1], layout.deep, first, last, layout.panels), buffers, blocking,
            )  # fmt: skip

    with crew_of(layout.threads) as crew:
        crew(share, [(part,) for part in range(layout.threads)])


def _cut(count: int, parts: int, part: int) -> tuple[int, int]:
    return count * part // parts, count * (part + 1) // parts
