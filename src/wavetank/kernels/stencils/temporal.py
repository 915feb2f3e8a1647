"""Several sweeps in one pass over memory: strips of columns stream through a cascade of short row buffers.

A strip is walked row by row.  As soon as a row of the grid is at hand, the first time step computes the rows that it
completes, the second step what those complete, and so on; each step keeps only the few rows that the next one needs,
so that all of them fit the second-level cache.  Memory is read once and written once however many steps are taken.
Strips and bands of rows overlap by ``depth * radius`` cells which are computed twice; in return no thread waits for
another, and no cell's value depends on where strips and bands are cut.

Source: A. Nguyen et al., "3.5-D Blocking Optimization for Stencil Computations on Modern CPUs and GPUs", SC 2010.
Periodic and reflecting edges, which it leaves out, are computed in the same pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.stencils.row_blocks import STEP_BYTES, call_block, move_bytes
from wavetank.machine.stream_stores import LINE_BYTES, copy_line, fence
from wavetank.machine.thread_pool import cuts
from wavetank.sim.compiled import compiled

DIRICHLET, PERIODIC, REFLECT = 0, 1, 2
# Room on either side of a buffered row for what whole vectors read and write beyond its ends.
_MARGIN_BYTES = STEP_BYTES + 2 * LINE_BYTES
PAGE_BYTES = 4096
# Buffered rows follow each other at this distance, modulo a page; this number of rows makes half a page, more than a
# block needs.
_ROW_SHIFT_BYTES = 2 * LINE_BYTES
_STEP_ROWS = PAGE_BYTES // 2 // _ROW_SHIFT_BYTES
NEAR_BYTES = 2 * STEP_BYTES
"""How near a load may be, modulo a page, to what was just stored before it waits for it."""


class Tile(NamedTuple):
    """The cells that one call finishes: rows ``top`` to ``bottom``, columns ``left`` to ``right``."""

    top: int
    bottom: int
    left: int
    right: int


@compiled(nogil=True)
def stream_row(target: int, source: int, count: int) -> None:
    """Copy a row's bytes past the caches; what does not fill a line is stored plainly."""
    head = min((LINE_BYTES - target % LINE_BYTES) % LINE_BYTES, count)
    move_bytes(target, source, head)
    at = head
    while at + LINE_BYTES <= count:
        copy_line(np.uint64(target + at), np.uint64(source + at))
        at += LINE_BYTES
    move_bytes(target + at, source + at, count - at)


@compiled(nogil=True)
def _wrapped_row(buffer: NDArray[Any], at: int, row: NDArray[Any], low: int, high: int, boundary: int) -> None:
    """Copy columns ``low`` to ``high`` of a row to ``buffer[at:]``, going on beyond its ends as the boundary says."""
    width = row.size
    for column in range(low, min(high, 0)):
        buffer[at + column - low] = row[column % width] if boundary == PERIODIC else row[-1 - column]
    first, last = max(low, 0), min(high, width)
    if last > first:
        item = buffer.itemsize
        target = buffer.ctypes.data + (at + first - low) * item
        move_bytes(target, row.ctypes.data + first * item, (last - first) * item)
    for column in range(max(low, width), high):
        buffer[at + column - low] = row[column % width] if boundary == PERIODIC else row[2 * width - 1 - column]


def pitch_bytes(columns: int, depth: int, radius: int, item: int) -> int:
    """Return the bytes from one buffered row to the next: whole pages and two lines, so that rows use all cache sets.

    A load waits for an earlier store whose address is the same within a page, as processors compare no more of it at
    first.  Sixteen rows of a step take half a page, modulo a page, and those of the next step the other half: no cell
    that a step is about to read seems to be one that it has just written.
    """
    used = (columns + 2 * depth * radius) * item + 2 * (_MARGIN_BYTES + LINE_BYTES)
    return -(-(used - _ROW_SHIFT_BYTES) // PAGE_BYTES) * PAGE_BYTES + _ROW_SHIFT_BYTES


def buffer_bytes(pitch: int, depth: int, radius: int, rows: int) -> int:
    """Return the bytes that a call buffers: rows of the grid itself and of every step, and what places them."""
    return (_source_rows(depth, radius, rows) + depth * _STEP_ROWS) * pitch + PAGE_BYTES


def _source_rows(depth: int, radius: int, rows: int) -> int:
    # A fixed row of the rim serves all steps, and the last of them is depth * radius rows behind the first.
    return -(-(2 * rows + (depth + 2) * radius) // _STEP_ROWS) * _STEP_ROWS


@compiled
def _alike(one: int, other: int) -> bool:
    """Return whether two addresses are so near within their pages that a load of one may wait for a store to other."""
    return (one - other + NEAR_BYTES) % PAGE_BYTES < 2 * NEAR_BYTES


@compiled(nogil=True)
def run_pass(
    source: NDArray[Any],
    target: NDArray[Any],
    addresses: NDArray[np.int64],
    rows: int,
    radius: int,
    weights: NDArray[Any],
    buffer: NDArray[Any],
    pitch: int,
    top: int,
    bottom: int,
    left: int,
    right: int,
    depth: int,
    boundary: int,
    streaming: bool,
) -> None:
    """Write the tile of ``target`` that ``depth`` sweeps of ``source`` give.

    Parameters
    ----------
    source, target : ndarray, shape (height, width)
        Rows contiguous.
    addresses : ndarray of int64
        :func:`~wavetank.kernels.stencils.row_blocks.blocks` of the form, for ``rows`` rows.
    rows, radius : int
    weights : ndarray
        :attr:`~wavetank.kernels.stencils.row_blocks.Form.coefficients`.
    buffer : ndarray
        :func:`buffer_rows` rows of ``pitch`` bytes, from a multiple of 64 on.
    pitch : int
        :func:`pitch_bytes`.
    top, bottom, left, right : int
        The :class:`Tile`.
    depth : int
    boundary : int
        Place among :data:`~wavetank.kernels.stencils.pattern.BOUNDARIES`.
    streaming : bool
        Whether the tile is stored past the caches.
    """
    height, width = source.shape
    item = source.itemsize
    reach = 2 * radius
    slots0 = (2 * rows + (depth + 2) * radius + _STEP_ROWS - 1) // _STEP_ROWS * _STEP_ROWS
    slots = rows + reach
    stride = source.strides[0]
    first_of_grid = source.ctypes.data
    end_of_grid = first_of_grid + (height - 1) * source.strides[0] + width * item
    # Where column `left` of a buffered row is: in its line as that cell of the target, so that no vector straddles.
    into = (target.ctypes.data + left * item) % LINE_BYTES
    origin = ((depth * radius * item + _MARGIN_BYTES) // LINE_BYTES + 1) * LINE_BYTES + into
    # Buffered rows begin a little behind those of the target, modulo a page.
    base = buffer.ctypes.data
    base += (target.ctypes.data + left * item + _ROW_SHIFT_BYTES * _STEP_ROWS // 4 - base - origin) % PAGE_BYTES
    open_edge = boundary == PERIODIC
    low0 = left - depth * radius
    high0 = right + depth * radius
    reflected = boundary == REFLECT and (low0 < 0 or high0 > width)
    if boundary == DIRICHLET or (boundary == REFLECT and not reflected):
        low0, high0 = max(low0, 0), min(high0, width)
    elif reflected:
        low0, high0 = max(low0, -radius), min(high0, width + radius)
    near = depth == 1 and stride % PAGE_BYTES == 0 and _alike(source.ctypes.data, target.ctypes.data)
    copied = low0 < 0 or high0 > width or near

    # Of each step: the rows it computes, and the next one to compute.
    nexts = np.empty(depth + 1, np.int64)
    ends = np.empty(depth + 1, np.int64)
    for step in range(depth + 1):
        halo = (depth - step) * radius
        nexts[step], ends[step] = top - halo, bottom + halo
        if not open_edge:
            nexts[step], ends[step] = max(nexts[step], 0), min(ends[step], height)
        if step > 0 and boundary == DIRICHLET:
            nexts[step], ends[step] = max(nexts[step], radius), min(ends[step], height - radius)
    low_row = nexts[0]

    sources = np.empty(slots0, np.int64)  # address of column `left` of the grid's rows at hand
    ins = np.empty(rows + reach, np.int64)
    outs = np.empty(rows, np.int64)
    ways = np.empty(rows, np.int64)
    ahead = np.empty(rows, np.int64)  # addresses of rows that the next turn fetches
    ins_at, outs_at, ways_at = ins.ctypes.data, outs.ctypes.data, ways.ctypes.data
    ahead_at, weights_at = ahead.ctypes.data, weights.ctypes.data
    direct = streaming and target.strides[0] % LINE_BYTES == 0
    # What lies before the first whole line of the strip.
    head = -into % LINE_BYTES

    while True:
        fetched = min(nexts[0] + rows, ends[0])
        for i in range(nexts[0], fetched):
            slot = (i - low_row) % slots0
            row = i % height
            address = first_of_grid + row * source.strides[0] + left * item
            lowest = address + (low0 - left) * item - _MARGIN_BYTES
            highest = address + (high0 - left) * item + _MARGIN_BYTES
            if copied or lowest < first_of_grid or highest > end_of_grid:
                address = base + slot * pitch + origin
                start = (address - buffer.ctypes.data) // item + low0 - left
                _wrapped_row(buffer, start, source[row], low0, high0, boundary)
            sources[slot] = address
        nexts[0] = fetched
        complete = fetched == ends[0]
        for step in range(1, depth + 1):
            end = ends[step]
            # No more than a block a turn, so that nothing is overwritten that the next step has yet to read.
            limit = min(end if complete else min(end, nexts[step - 1] - radius), nexts[step] + rows)
            halo = (depth - step) * radius
            low, high = left - halo, right + halo
            if not open_edge:
                low, high = max(low, 0), min(high, width)
            start = ((low - left) * item + into) // LINE_BYTES * LINE_BYTES - into
            stop = (high - left) * item
            level = base + (slots0 + (step - 1) * _STEP_ROWS) * pitch + origin
            below = level - _STEP_ROWS * pitch
            own_slots = rows if step == depth else slots
            last = step == depth
            i = nexts[step]
            while i < limit:
                count = rows if limit - i >= rows else 1
                top_row, end_row = i - radius, i + count + radius
                if step == 1:
                    slot = (top_row - low_row) % slots0
                    for k in range(count + reach):
                        ins[k] = sources[slot]
                        slot = 0 if slot + 1 == slots0 else slot + 1
                else:
                    slot = (top_row - low_row) % slots
                    for k in range(count + reach):
                        ins[k] = below + slot * pitch
                        slot = 0 if slot + 1 == slots else slot + 1
                if boundary == DIRICHLET and (top_row < radius or end_row > height - radius):
                    for k in range(count + reach):
                        if top_row + k < radius or top_row + k >= height - radius:
                            ins[k] = sources[(top_row + k - low_row) % slots0]
                elif boundary == REFLECT and (top_row < 0 or end_row > height):
                    for k in range(count + reach):
                        j = top_row + k
                        j = -1 - j if j < 0 else 2 * height - 1 - j if j >= height else j
                        ins[k] = sources[(j - low_row) % slots0] if step == 1 else below + (j - low_row) % slots * pitch
                slot = (i - low_row) % own_slots
                for k in range(count):
                    outs[k] = level + slot * pitch
                    slot = 0 if slot + 1 == own_slots else slot + 1
                whole = 0
                if last and direct and count == rows:
                    # Whole vectors go straight to memory; what is left of the strip takes the way of single rows.
                    whole = max(stop - head, 0) // STEP_BYTES * STEP_BYTES
                if whole > 0:
                    for k in range(rows):
                        row = (nexts[0] + k) % height
                        ahead[k] = first_of_grid + row * source.strides[0] + left * item
                        ways[k] = target.ctypes.data + (i + k) * target.strides[0] + left * item
                    call_block(addresses[1], ways_at, ins_at, ahead_at, weights_at, head, head + whole)
                    call_block(addresses[0], outs_at, ins_at, ahead_at, weights_at, 0, head)
                    call_block(addresses[0], outs_at, ins_at, ahead_at, weights_at, head + whole, stop)
                elif count == rows:
                    call_block(addresses[0], outs_at, ins_at, ahead_at, weights_at, start, stop)
                else:
                    call_block(addresses[2], outs_at, ins_at, ahead_at, weights_at, start, stop)
                for k in range(count):
                    at = (outs[k] - buffer.ctypes.data) // item - left
                    if reflected and not last:
                        if low == 0:
                            for column in range(radius):
                                buffer[at - 1 - column] = buffer[at + column]
                        if high == width:
                            for column in range(radius):
                                buffer[at + width + column] = buffer[at + width - 1 - column]
                    if last:
                        place = target.ctypes.data + (i + k) * target.strides[0] + left * item
                        if whole > 0:
                            move_bytes(place, outs[k], head)
                            move_bytes(place + head + whole, outs[k] + head + whole, stop - head - whole)
                        elif streaming:
                            stream_row(place, outs[k], stop)
                        else:
                            move_bytes(place, outs[k], stop)
                    if boundary == DIRICHLET:
                        for column in range(low, min(radius, high)):
                            if last:
                                target[i + k, column] = source[i + k, column]
                            else:
                                buffer[at + column] = source[i + k, column]
                        for column in range(max(low, width - radius), high):
                            if last:
                                target[i + k, column] = source[i + k, column]
                            else:
                                buffer[at + column] = source[i + k, column]
                i += count
            nexts[step] = max(nexts[step], limit)
            complete = complete and nexts[step] >= end
        if complete:
            break
    if boundary == DIRICHLET:
        for i in range(top, min(bottom, radius)):
            target[i, left:right] = source[i, left:right]
        for i in range(max(top, height - radius), bottom):
            target[i, left:right] = source[i, left:right]
    if streaming:
        fence()


def tiles_of(shape: tuple[int, int], bands: int, columns: int) -> list[Tile]:
    """Cut a grid into bands of rows and strips of about ``columns`` columns, which begin at multiples of a line."""
    height, width = shape
    whole = -(-width // LINE_BYTES)
    strips = cuts(whole, min(whole, -(-width // columns)))
    return [
        Tile(top, bottom, left * LINE_BYTES, min(right * LINE_BYTES, width))
        for top, bottom in cuts(height, bands)
        for left, right in strips
    ]
