"""Triton kernels of the product with fewer multiplications on a GPU: sums of blocks, products, their distribution.

Sums of one operand are formed in one pass: a program reads the same tile of every block once and writes that tile of
all sums, so each element is read once however many sums it is part of.  Products are spread to the result in the same
way, or by the multiplying kernel itself: there a program owns a tile of all blocks of the result, computes the tile of
one product after the other, and adds it where it belongs while it is still in registers.

Source: H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026: group-parallel combination, fusion of product and
combination, first contributions stored and later ones added by one owner.

Differs from the source:
1. Written once; what a scheme needs is unrolled from its coefficients when a kernel is compiled, or read from a table.
2. Groups are not split to fill the last wave: the batched product of the library fills it.
3. Every kernel that writes the result notes whether something was not finite; the classical product behind reads that
note on the device and ends at once where all is well, so that nothing waits for the host.

Offsets are int64 everywhere: a batch of sums passes 2^31 elements before it fills a GPU.
"""

# The language of these kernels is Triton's: arguments have no types in Python, and tuples grow as loops are unrolled.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

FIRST, LAST = tl.constexpr(1), tl.constexpr(2)
"""Bits of a contribution's state: the first to its block of the result, and the last."""


@triton.jit
def sum_blocks(
    matrix,
    sums,
    rows,
    columns,
    high,
    wide,
    row_stride,
    column_stride,
    coefficients: tl.constexpr,
    count: tl.constexpr,
    down: tl.constexpr,
    across: tl.constexpr,
    number: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Write ``count`` sums of the ``down`` x ``across`` blocks of a matrix; one program per tile of a block.

    Parameters
    ----------
    matrix : pointer, shape (rows, columns), strides (row_stride, column_stride)
        Blocks are ``high`` x ``wide``; what lies outside the matrix counts as zero.
    sums : pointer, shape (count, high, wide), contiguous
    coefficients : tuple of int, length count * down * across
    number : tl.dtype
        In which sums are formed.
    """
    tile = tl.program_id(0)
    tiles_across = tl.cdiv(wide, tile_columns)
    row = (tile // tiles_across) * tile_rows + tl.arange(0, tile_rows)
    column = (tile % tiles_across) * tile_columns + tl.arange(0, tile_columns)
    inside = (row < high)[:, None] & (column < wide)[None, :]
    blocks = ()
    for place in tl.static_range(down * across):
        i = row + (place // across) * high
        j = column + (place % across) * wide
        at = i.to(tl.int64)[:, None] * row_stride + j.to(tl.int64)[None, :] * column_stride
        given = tl.load(matrix + at, mask=inside & (i < rows)[:, None] & (j < columns)[None, :], other=0.0)
        blocks += (given.to(number),)
    target = sums + row.to(tl.int64)[:, None] * wide + column[None, :]
    for product in tl.static_range(count):
        total = tl.zeros((tile_rows, tile_columns), number)
        for place in tl.static_range(down * across):
            if coefficients[product * down * across + place] != 0:
                total += blocks[place] * coefficients[product * down * across + place]
        tl.store(target, total.to(sums.dtype.element_ty), mask=inside)
        target += high.to(tl.int64) * wide


@triton.jit
def spread_products(
    products,
    result,
    flag,
    rows,
    columns,
    high,
    wide,
    row_stride,
    coefficients: tl.constexpr,
    count: tl.constexpr,
    down: tl.constexpr,
    across: tl.constexpr,
    number: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Write all blocks of the result from ``count`` products; one program per tile of a block.

    Parameters
    ----------
    products : pointer, shape (count, high, wide), contiguous
    result : pointer, shape (rows, columns), strides (row_stride, 1)
    flag : pointer to int32
        Becomes 1 if an entry of the result is not finite.
    coefficients : tuple of int, length count * down * across
    number : tl.dtype
        In which products are added.
    """
    tile = tl.program_id(0)
    tiles_across = tl.cdiv(wide, tile_columns)
    row = (tile // tiles_across) * tile_rows + tl.arange(0, tile_rows)
    column = (tile % tiles_across) * tile_columns + tl.arange(0, tile_columns)
    inside = (row < high)[:, None] & (column < wide)[None, :]
    totals = ()
    for _ in tl.static_range(down * across):
        totals += (tl.zeros((tile_rows, tile_columns), number),)
    source = products + row.to(tl.int64)[:, None] * wide + column[None, :]
    for product in tl.static_range(count):
        given = tl.load(source, mask=inside, other=0.0).to(number)
        source += high.to(tl.int64) * wide
        added = ()
        for place in tl.static_range(down * across):
            if coefficients[product * down * across + place] != 0:
                added += (totals[place] + given * coefficients[product * down * across + place],)
            else:
                added += (totals[place],)
        totals = added
    bad = tl.zeros((tile_rows, tile_columns), tl.int1)
    for place in tl.static_range(down * across):
        i = row + (place // across) * high
        j = column + (place % across) * wide
        within = inside & (i < rows)[:, None] & (j < columns)[None, :]
        value = totals[place].to(result.dtype.element_ty)
        tl.store(result + i.to(tl.int64)[:, None] * row_stride + j[None, :], value, mask=within)
        # A finite number less itself is zero.
        bad |= ((value - value) != 0) & within
    tl.store(flag, 1, mask=tl.max(bad.to(tl.int32)) != 0)


@triton.jit
def multiply_blocks(
    left,
    right,
    partial,
    result,
    flag,
    starts,
    places,
    scales,
    states,
    count,
    high,
    deep,
    wide,
    left_product,
    left_row,
    left_column,
    right_product,
    right_row,
    right_column,
    rows,
    columns,
    row_stride,
    across,
    number: tl.constexpr,
    precision: tl.constexpr,
    apart: tl.constexpr,
    guarded: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    tile_depth: tl.constexpr,
    group: tl.constexpr,
    halvings: tl.constexpr,
):
    """Multiply ``count`` pairs of sums and add each product to its blocks of the result; one program per tile of it.

    Parameters
    ----------
    left, right : pointers, shapes (count, high, deep) and (count, deep, wide)
        With strides ``left_product, left_row, left_column`` and so on.
    partial : pointer, shape (blocks, high, wide), contiguous
        Where sums of products wait in ``number``, if ``apart``; else they wait in the result.
    result : pointer, shape (rows, columns), strides (row_stride, 1)
        ``across`` blocks lie beside each other.
    flag : pointer to int32
        Becomes 1 if an entry of the result is not finite.  If ``guarded``, nothing is done where it is 0.
    starts, places, scales, states : pointers
        Contributions of product r are those from ``starts[r]`` to ``starts[r + 1]``: block of the result, coefficient,
        and whether it is the block's first (bit 0) or last (bit 1).
    number : tl.dtype
        In which products are formed and added.
    precision : str
        Of products of float32: "ieee" or "tf32".
    group : int
        Tiles of this many rows of tiles follow each other down, so that they share what they read.
    halvings : int
        A product's tile is added in 2**halvings slices, so that what is read back has room in registers beside it.
    """
    if guarded:  # noqa: SIM102  (with "and", the compiler would load in both cases)
        if tl.load(flag) == 0:
            return
    tile = tl.program_id(0)
    tiles_down, tiles_across = tl.cdiv(high, tile_rows), tl.cdiv(wide, tile_columns)
    first = (tile // (group * tiles_across)) * group
    here = min(tiles_down - first, group)
    within = tile % (group * tiles_across)
    row = (first + within % here) * tile_rows + tl.arange(0, tile_rows)
    start_column = (within // here) * tile_columns
    column = start_column + tl.arange(0, tile_columns)
    inner = tl.arange(0, tile_depth)
    left_at = left + row.to(tl.int64)[:, None] * left_row + inner.to(tl.int64)[None, :] * left_column
    right_at = right + inner.to(tl.int64)[:, None] * right_row + column.to(tl.int64)[None, :] * right_column
    for product in range(count):
        x_at, y_at = left_at, right_at
        total = tl.zeros((tile_rows, tile_columns), number)
        for step in range(tl.cdiv(deep, tile_depth)):
            rest = deep - step * tile_depth
            x = tl.load(x_at, mask=(row < high)[:, None] & (inner < rest)[None, :], other=0.0)
            y = tl.load(y_at, mask=(inner < rest)[:, None] & (column < wide)[None, :], other=0.0)
            total = tl.dot(x, y, total, input_precision=precision, out_dtype=number)
            x_at += tl.cast(left_column, tl.int64) * tile_depth
            y_at += tl.cast(right_row, tl.int64) * tile_depth
        slices = (total,)
        for halving in tl.static_range(halvings):
            finer = ()
            for part in tl.static_range(2**halving):
                pair = tl.reshape(slices[part], (tile_rows, 2, tile_columns // 2 ** (halving + 1)))
                near, far = tl.split(tl.permute(pair, (0, 2, 1)))
                finer += (near, far)
            slices = finer
        begin, end = tl.load(starts + product), tl.load(starts + product + 1)
        for term in range(begin, end):
            place, scale, state = tl.load(places + term), tl.load(scales + term), tl.load(states + term)
            down, aside = (place // across) * high, (place % across) * wide
            if (state & FIRST) == 0:
                # What is read was written by this program, but by other threads of it where layouts differ.
                tl.debug_barrier()
            for part in tl.static_range(2**halvings):
                mine = start_column + part * (tile_columns // 2**halvings) + tl.arange(0, tile_columns // 2**halvings)
                inside = (row < high)[:, None] & (mine < wide)[None, :]
                inside &= (row + down < rows)[:, None] & (mine + aside < columns)[None, :]
                at = (row + down).to(tl.int64)[:, None] * row_stride + (mine + aside)[None, :]
                waits = at
                if apart:
                    waits = (place.to(tl.int64) * high + row)[:, None] * wide + mine[None, :]
                value = slices[part] * scale
                if (state & FIRST) == 0:
                    value += tl.load(partial + waits, mask=inside, other=0.0)
                if (state & LAST) == 0:
                    tl.store(partial + waits, value, mask=inside)
                else:
                    final = value.to(result.dtype.element_ty)
                    tl.store(result + at, final, mask=inside)
                    bad = ((final - final) != 0) & inside
                    tl.store(flag, 1, mask=tl.max(bad.to(tl.int32)) != 0)
        left_at += left_product
        right_at += right_product
