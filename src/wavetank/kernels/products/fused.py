"""The fused product: sums of blocks, products and their distribution in one pass that keeps the multiplier busy.

Each of a scheme's products is a Goto-style loop.  The sums of the left and the right operand are formed while they are
packed, row by row, which is how memory is fast.  Finished tiles stay in the caches until a row block is done; then they
go to all their blocks of the result, again row by row.  No sum and no product is ever a matrix in memory.

Source: H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026 (fusing products and combination, groups of products that
share data); J. Huang et al., "Strassen's Algorithm Reloaded", SC 2016 (sums formed while packing).

Differs from the source:
1. A product is collected in a buffer over the whole inner dimension, so that each block of the result is read and
written once per product and not once per chunk.
2. Threads take columns (or rows) of every block; each packs for itself, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from wavetank.kernels.products.microkernel import LINE_BYTES, multiply_tile, tile_of
from wavetank.kernels.products.packing import pack_panels, pack_rows, spread_tiles, terms_of
from wavetank.kernels.products.schemes import Scheme
from wavetank.machine.threads import together
from wavetank.sim.compiled import compiled

# Between packed panels: without it all panels of a row would compete for the same few places of the caches.
PANEL_GAP_BYTES = 128


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
    first_product: int
    last_product: int


class Buffers(NamedTuple):
    """Addresses of one thread's scratch, each at the start of a cache line."""

    left: int
    """A packed block of the left operand."""
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


@njit(inline="always")
def panel_bytes(deep, blocking):  # type: ignore[no-untyped-def]
    """Return the distance of packed right panels in a chunk of ``deep`` inner elements."""
    kept = (deep + blocking.lanes - 1) // blocking.lanes * blocking.lanes
    return kept * blocking.tile_columns * blocking.itemsize + PANEL_GAP_BYTES


@njit(inline="always")
def chunk_bytes(column, panels, blocking):  # type: ignore[no-untyped-def]
    """Return where the chunk that begins at inner index ``column`` lies behind the first."""
    return column // blocking.depth * panels * panel_bytes(blocking.depth, blocking)


@compiled(nogil=True)
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
    inner = share.inner
    panels = share.last_panel - share.first_panel
    left_row = (blocking.depth + line // itemsize) * itemsize
    tile_bytes = tile_rows * tile_columns * itemsize
    prepared = buffers.right_product > 0
    first_kept = share.first_panel if prepared else 0
    panels_kept = share.panels if prepared else panels
    first_column = share.first_panel * tile_columns
    for product in range(share.first_product, share.last_product):
        right_at = buffers.right + product * buffers.right_product
        if not prepared:
            for column in range(0, inner, blocking.depth):
                deep = min(blocking.depth, inner - column)
                pack_panels(
                    one, right, product, column, deep, first_column, panels,
                    right_at + chunk_bytes(column, panels, blocking), panel_bytes(deep, blocking), tile_columns, lanes,
                    itemsize,
                )  # fmt: skip
        for row in range(share.first_row, share.last_row, blocking.rows):
            high = min(blocking.rows, share.last_row - row)
            tiles_high = (high + tile_rows - 1) // tile_rows
            for column in range(0, inner, blocking.depth):
                deep = min(blocking.depth, inner - column)
                pack_rows(
                    one, left, product, row, high, column, deep, buffers.left, left_row, tile_columns, lanes, itemsize
                )
                chunk_at = right_at + chunk_bytes(column, panels_kept, blocking)
                step = panel_bytes(deep, blocking)
                # While one right panel is used, the next is fetched.
                ahead = (tile_columns * itemsize + tiles_high - 1) // tiles_high
                for panel in range(panels):
                    right_here = chunk_at + (first_kept + panel) * step
                    for tile in range(tiles_high):
                        multiply_tile(
                            one, deep, buffers.left + tile * tile_rows * left_row, left_row, right_here,
                            buffers.tiles + (tile * panels + panel) * tile_bytes,
                            right_here + step + tile * deep * ahead, ahead, column > 0,
                        )  # fmt: skip
            for tile in range(tiles_high):
                spread_tiles(
                    result, product, row + tile * tile_rows, min(tile_rows, high - tile * tile_rows), first_column,
                    panels, buffers.tiles + tile * panels * tile_bytes, tile_bytes, tile_columns, lanes, itemsize,
                )  # fmt: skip


@compiled(nogil=True)
def _pack_right(one, right, inner, first_panel, last_panel, panels, target, target_product, blocking):  # type: ignore[no-untyped-def]
    """Pack the column panels of all sums of the right operand, for products with many left ones."""
    itemsize, lanes, tile_columns = blocking.itemsize, blocking.lanes, blocking.tile_columns
    for product in range(right.start.size - 1):
        for column in range(0, inner, blocking.depth):
            deep = min(blocking.depth, inner - column)
            step = panel_bytes(deep, blocking)
            pack_panels(
                one, right, product, column, deep, first_panel * tile_columns, last_panel - first_panel,
                target + product * target_product + chunk_bytes(column, panels, blocking) + first_panel * step, step,
                tile_columns, lanes, itemsize,
            )  # fmt: skip


# Rows and depth of a packed left block by bytes of an element: it takes under half of a 1 MB second-level cache, and
# its depth is long because finished tiles are added up in a buffer once per chunk.
_BLOCK = {4: (224, 512), 8: (112, 512)}

# Measured: a plain product is best with narrower strips, a scheme's with fewer packings of the left operand.
_STRIP_BYTES = {False: 4096, True: 8192}
# Operations of one call: an interrupt waits for its end.
_FLOPS_OF_A_CALL = 1 << 33
# For fewer rows the packing of the right panels would be felt.
_LEAST_ROWS = 2048
# Elements that one call packs at most, for the same reason.
_PACKED_IN_A_CALL = 1 << 25
# Packed right panels beyond this size would come from memory and not from the last cache.
_RIGHT_BYTES = 1 << 24


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
    strip = min(_STRIP_BYTES[scheme.rank > 1], _RIGHT_BYTES // deep)
    strip = max(1, strip // (tile.columns * itemsize))
    mine = -(-panels // threads) if by_columns else panels
    # Strips of even width: a narrow rest would pack the left operand for little.
    strip = -(-mine // -(-mine // strip))
    return Layout(high, deep, wide, panels, strip, threads, by_columns)


def _right_bytes(deep: int, panels: int, blocking: Blocking) -> int:
    """Return the bytes that the packed right panels of one product take."""
    last = (deep - 1) // blocking.depth * blocking.depth
    return int(chunk_bytes(last, panels, blocking) + panels * panel_bytes(deep - last, blocking))


def _scratch_sizes(layout: Layout, blocking: Blocking, prepared: bool) -> tuple[int, int, int]:
    """Return a thread's bytes for left blocks, right panels and tiles, each a multiple of a line."""
    itemsize = blocking.itemsize
    left = (blocking.rows + blocking.lanes) * (blocking.depth + LINE_BYTES // itemsize) * itemsize
    right = 0 if prepared else _right_bytes(layout.deep, layout.strip, blocking)
    tiles = min(blocking.rows, -(-layout.high // blocking.tile_rows) * blocking.tile_rows)
    tiles *= layout.strip * blocking.tile_columns * itemsize
    return tuple(-(-size // LINE_BYTES) * LINE_BYTES for size in (left, right, tiles))  # type: ignore[return-value]


def workspace_bytes(
    m: int, k: int, n: int, dtype: DTypeLike, scheme: Scheme, threads: int, prepared: bool = False
) -> int:
    """Return the most memory a fused product allocates beside its result, in bytes.

    A thread keeps one packed left block, the packed right panels of one strip of one product (the inner length of a
    block times at most 8 KiB of columns, 16 MiB in all unless a single panel takes more), and the tiles of one row
    block.
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
        self.product_bytes = _right_bytes(self.layout.deep, self.layout.panels, blocking)
        self.room = _lines(scheme.rank * self.product_bytes)
        right = terms_of(b, scheme.v, (scheme.k, scheme.n), (self.layout.deep, self.layout.wide))
        panels = self.layout.panels
        parts = max(threads, scheme.rank * self.layout.deep * self.layout.wide // _PACKED_IN_A_CALL)
        parts = min(parts, panels)
        calls = [
            (
                b.dtype.type(1), right, self.layout.deep, panels * part // parts, panels * (part + 1) // parts, panels,
                self.room.ctypes.data, self.product_bytes, blocking,
            )
            for part in range(parts)
        ]  # fmt: skip
        together(_pack_right, calls, threads)


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

    halted: list[bool] = []

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
            flops = 2 * layout.deep * (last - first) * blocking.tile_columns
            for low, high, some, others in _calls(rows, flops, scheme.rank, blocking):
                if halted:
                    return
                multiply_fused(
                    a.dtype.type(1), left, right, result,
                    Share(low, high, layout.deep, first, last, layout.panels, some, others), buffers, blocking,
                )  # fmt: skip

    together(share, [(part,) for part in range(layout.threads)], layout.threads, halt=lambda: halted.append(True))


def _calls(
    rows: tuple[int, int], row_flops: int, products: int, blocking: Blocking
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the rows and the products of each call on one strip: all at once where it is short enough.

    Products come one after the other anyway, so to cut between them costs nothing; rows only where one product alone
    takes too long.
    """
    height = max(_FLOPS_OF_A_CALL // row_flops, _LEAST_ROWS) // blocking.rows * blocking.rows
    for low in range(rows[0], rows[1], height):
        high = min(low + height, rows[1])
        step = max(1, _FLOPS_OF_A_CALL // (row_flops * (high - low)))
        for some in range(0, products, step):
            yield low, high, some, min(some + step, products)


def _cut(count: int, parts: int, part: int) -> tuple[int, int]:
    return count * part // parts, count * (part + 1) // parts
