"""Segments of a sparse matrix for vector registers: every lane walks its own nonzeros, and bits say when it emits.

A segment is a rectangle of ``STEPS`` steps by as many lanes as fit a 64-byte register.  Each lane holds ``STEPS``
neighbouring nonzeros, so all lanes have equal work whatever the rows look like, and there is no branch on row lengths:
a step multiplies and adds in all lanes, squeezes the lanes whose row ends (one bit each) to the front of a queue, moves
the queue's end by the number of ones, and clears these lanes.  The pieces in the queue are then added to their rows.

Source: Q. Zhang et al., "MERBIT: A GPU-Based SpMV Method for Iterative Workloads", arXiv 2605.07391, 2026; the
transposed rectangle is that of W. Liu and B. Vinter, "CSR5", ICS 2015.

Differs from the source:
1. The bit of a row's end sits on the row's last nonzero, not on a step of its own, so that no lane idles; rows without
   nonzeros take no step at all.
2. A lane's last step always emits, so that nothing is carried between lanes in registers.
3. What belongs to the row that was open before a segment becomes the segment's carry; carries are added in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from wavetank.kernels.sparse.merge_path import row_of
from wavetank.sim.compiled import compiled

STEPS = 64
REGISTER_BYTES = 64
_UNROLL = 2
_BYTE, _INT, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def lanes_of(dtype: Any) -> int:
    """Return the lanes of a register for values of a type: 8 for float64, 16 for float32."""
    return REGISTER_BYTES // np.dtype(dtype).itemsize


def _function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


class _Emitter:
    """Writes the code of one loop over steps; one object a compilation."""

    def __init__(self, builder: Any, item: Any, lanes: int, column: Any) -> None:
        self.builder, self.item, self.lanes, self.column = builder, item, lanes, column
        self.item_bytes = REGISTER_BYTES // lanes
        self.vector = ir.VectorType(item, lanes)
        self.mask = ir.VectorType(ir.IntType(1), lanes)
        self.kind = f"v{lanes}f{8 * self.item_bytes}"

    def at(self, address: Any, offset: Any, size: int, kind: Any) -> Any:
        """Return a pointer to item ``offset`` of ``size`` bytes."""
        scaled = self.builder.mul(offset, ir.Constant(_LONG, size))
        return self.builder.inttoptr(self.builder.add(address, scaled), kind.as_pointer())

    def gathered(self, columns: Any, first: Any, x: Any) -> Any:
        """Return the lanes' items of x by one gather instruction: few instructions, hence many misses in flight."""
        b, wide = self.builder, ir.VectorType(_LONG, self.lanes)
        narrow = ir.VectorType(self.column, self.lanes)
        indices = b.load(self.at(columns, first, self.column.width // 8, narrow), align=self.column.width // 8)
        undefined = ir.Constant(wide, ir.Undefined)
        spread = ir.Constant(ir.VectorType(_INT, self.lanes), [0] * self.lanes)
        base = b.shuffle_vector(b.insert_element(undefined, x, ir.Constant(_INT, 0)), undefined, spread)
        scale = ir.Constant(wide, [self.item_bytes] * self.lanes)
        pointers = ir.VectorType(self.item.as_pointer(), self.lanes)
        addresses = b.inttoptr(b.add(base, b.mul(b.zext(indices, wide), scale)), pointers)
        name = f"llvm.masked.gather.{self.kind}.v{self.lanes}p0"
        gather = _function(b, name, self.vector, [pointers, _INT, self.mask, self.vector])
        every = ir.Constant(self.mask, [1] * self.lanes)
        return b.call(
            gather, [addresses, ir.Constant(_INT, self.item_bytes), every, ir.Constant(self.vector, ir.Undefined)]
        )

    def loaded(self, columns: Any, first: Any, x: Any) -> Any:
        """Return the lanes' items of x by one load each: faster where they lie in the nearest cache."""
        b, size = self.builder, self.column.width // 8
        found = ir.Constant(self.vector, ir.Undefined)
        for lane in range(self.lanes):
            place = self.at(columns, b.add(first, ir.Constant(_LONG, lane)), size, self.column)
            index = b.zext(b.load(place, align=size), _LONG)
            each = b.load(self.at(x, index, self.item_bytes, self.item), align=self.item_bytes)
            found = b.insert_element(found, each, ir.Constant(_INT, lane))
        return found

    def loop(self, steps: Any, values: Any, columns: Any, masks: Any, x: Any, queue: Any, gather: bool) -> Any:
        """Emit the loop; addresses are those of the segment, ``values`` is None for ones. Return the pieces emitted."""
        b, lanes, size = self.builder, self.lanes, self.item_bytes
        bits = ir.IntType(lanes)
        none = ir.Constant(self.vector, [0.0] * lanes)
        squeeze = _function(
            b, f"llvm.experimental.vector.compress.{self.kind}", self.vector, [self.vector, self.mask, self.vector]
        )
        ones = _function(b, f"llvm.ctpop.i{lanes}", bits, [bits])
        fused = _function(b, f"llvm.fma.{self.kind}", self.vector, [self.vector] * 3)
        before = b.basic_block
        body, after = b.append_basic_block("steps"), b.append_basic_block("emitted")
        b.branch(body)
        b.position_at_end(body)
        step, sums, emitted = b.phi(_LONG), b.phi(self.vector), b.phi(_LONG)
        step.add_incoming(ir.Constant(_LONG, 0), before)
        sums.add_incoming(none, before)
        emitted.add_incoming(ir.Constant(_LONG, 0), before)
        total, count = sums, emitted
        for repeat in range(_UNROLL):
            now = b.add(step, ir.Constant(_LONG, repeat))
            first = b.mul(now, ir.Constant(_LONG, lanes))
            items = (self.gathered if gather else self.loaded)(columns, first, x)
            if values is None:
                total = b.fadd(items, total)
            else:
                weights = b.load(self.at(values, first, size, self.vector), align=size)
                total = b.call(fused, [weights, items, total])
            ends = b.load(self.at(masks, now, lanes // 8, bits), align=lanes // 8)
            flags = b.bitcast(ends, self.mask)
            pieces = b.call(squeeze, [total, flags, ir.Constant(self.vector, ir.Undefined)])
            b.store(pieces, self.at(queue, count, size, self.vector), align=size)
            count = b.add(count, b.zext(b.call(ones, [ends]), _LONG))
            total = b.select(flags, none, total)
        following = b.add(step, ir.Constant(_LONG, _UNROLL))
        step.add_incoming(following, body)
        sums.add_incoming(total, body)
        emitted.add_incoming(count, body)
        b.cbranch(b.icmp_signed("<", following, steps), body, after)
        b.position_at_end(after)
        return count


def _generator(values: Any, columns: Any, x: Any, gather: bool) -> Any:
    lanes = REGISTER_BYTES * 8 // x.dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        steps, value_array, column_array, mask_array, segment, x_array, first_column, queue = arguments
        item = context.get_value_type(x.dtype)
        column = ir.IntType(columns.dtype.bitwidth)
        emitter = _Emitter(builder, item, lanes, column)

        def address(kind: Any, array: Any) -> Any:
            return builder.ptrtoint(context.make_array(kind)(context, builder, array).data, _LONG)

        def moved(start: Any, items: Any, size: int) -> Any:
            return builder.add(start, builder.mul(items, ir.Constant(_LONG, size)))

        first_step = builder.mul(segment, ir.Constant(_LONG, STEPS))
        first = builder.mul(first_step, ir.Constant(_LONG, lanes))
        kinds = signature.args
        weights = None
        if not isinstance(values, types.NoneType):
            weights = moved(address(kinds[1], value_array), first, emitter.item_bytes)
        return emitter.loop(
            steps,
            weights,
            moved(address(kinds[2], column_array), first, column.width // 8),
            moved(address(kinds[3], mask_array), first_step, lanes // 8),
            moved(address(kinds[5], x_array), first_column, emitter.item_bytes),
            address(kinds[7], queue),
            gather,
        )

    return generate


@intrinsic  # type: ignore[misc, unused-ignore]
def _gathering(
    context: Any, steps: Any, values: Any, columns: Any, masks: Any, segment: Any, x: Any, first: Any, queue: Any
) -> Any:
    arguments = (types.int64, values, columns, masks, types.int64, x, types.int64, queue)
    return types.int64(*arguments), _generator(values, columns, x, True)


@intrinsic  # type: ignore[misc, unused-ignore]
def _loading(
    context: Any, steps: Any, values: Any, columns: Any, masks: Any, segment: Any, x: Any, first: Any, queue: Any
) -> Any:
    arguments = (types.int64, values, columns, masks, types.int64, x, types.int64, queue)
    return types.int64(*arguments), _generator(values, columns, x, False)


@compiled(nogil=True)
def steps_of(segment: int, nonzeros: int, lanes: int) -> int:
    """Return the steps of a segment: ``STEPS``, or fewer for the last one, an even number."""
    left = nonzeros - segment * STEPS * lanes
    steps = min(STEPS, (left + lanes - 1) // lanes)
    return (steps + _UNROLL - 1) // _UNROLL * _UNROLL


@compiled(nogil=True)
def count_pieces(starts: NDArray[Any], lanes: int, begin: int, end: int, first_row: Any, pieces: Any) -> None:
    """Find each segment's first row, into ``first_row``, and the pieces that it emits, into ``pieces``."""
    nonzeros, rows = np.int64(starts[-1]), starts.size - 1
    size = STEPS * lanes
    row = row_of(starts, begin * size, 0, rows - 1)
    for segment in range(begin, end):
        low = segment * size
        high: Any = min(nonzeros, (segment + 1) * size)
        while np.int64(starts[row + 1]) <= low:
            row += 1
        first_row[segment] = row
        steps = steps_of(segment, nonzeros, lanes)
        # The ends of rows in the segment, and the ends of lanes that are none.
        count, lane_end = 0, low + steps
        at = row
        while at < rows and np.int64(starts[at]) < high:
            stop = np.int64(starts[at + 1])
            while lane_end < min(stop, high):
                count += 1
                lane_end += steps
            if stop > np.int64(starts[at]) and stop <= high:
                count += 1
                if lane_end == stop:
                    lane_end += steps
            at += 1
        if np.int64(starts[at]) > high:
            count += 1
        pieces[segment] = count
        row = at - 1


@compiled(nogil=True)
def column_ranges(columns: NDArray[Any], lanes: int, begin: int, end: int, lowest: Any) -> int:
    """Find each segment's lowest column, into ``lowest``, and return the widest range of columns of one."""
    widest = 0
    size = STEPS * lanes
    for segment in range(begin, end):
        mine = columns[segment * size : min(columns.size, (segment + 1) * size)]
        low, high = mine[0], mine[0]
        for i in range(mine.size):
            low, high = min(low, mine[i]), max(high, mine[i])
        lowest[segment] = low
        widest = max(widest, high - low)
    return widest


@compiled(nogil=True)
def _mark_ends(
    starts: Any, low: int, high: int, steps: int, lanes: int, first_row: int, masks: Any, first_mask: int
) -> None:  # fmt: skip
    """Set the bits of a segment: where a row ends, where a lane ends, and at the last nonzero."""
    row = first_row
    while row < starts.size - 1 and np.int64(starts[row]) < high:
        place = np.int64(starts[row + 1]) - 1 - low
        if 0 <= place < high - low:
            # Shifts instead of a division, in all segments but the last.
            owner = place // STEPS if steps == STEPS else place // steps
            masks[first_mask + place - owner * steps] |= 1 << owner
        row += 1
    for lane in range(lanes):
        first = low + lane * steps
        stop: Any = min(first + steps, high)
        if stop > first:
            masks[first_mask + stop - 1 - first] |= 1 << lane


@compiled(nogil=True)
def lay_out(
    starts: NDArray[Any], given_columns: NDArray[Any], given_values: NDArray[Any], ranks: Any, lanes: int, begin: int,
    end: int, first_row: Any, first_piece: Any, lowest: Any, values: Any, columns: Any, masks: Any, offsets: Any,
) -> None:  # fmt: skip
    """Write segments ``begin`` to ``end - 1``: values and columns in lanes, a mask a step, the row of each piece.

    Parameters
    ----------
    starts, given_columns, given_values : ndarray
        Compressed rows.
    ranks : ndarray or None
        New number of every column.
    first_row, first_piece, lowest : ndarray, shape (segments + 1,)
        Row of the first nonzero, pieces before the segment, lowest column (0 for whole column numbers).
    values : ndarray or None
        Out, shape (segments * STEPS * lanes,); None for a matrix of ones.
    columns, masks, offsets : ndarray
        Out; offsets are rows, counted from the segment's first.
    """
    nonzeros = np.int64(starts[-1])
    size = STEPS * lanes
    row = np.empty(lanes, np.int64)
    for segment in range(begin, end):
        low, steps = segment * size, steps_of(segment, nonzeros, lanes)
        high: Any = min(low + size, nonzeros)
        base, column_base = first_row[segment], lowest[segment]
        for lane in range(lanes):
            from_, to = min(low + lane * steps, high), min(low + (lane + 1) * steps, high)
            for at in range(from_, to):
                column = np.int64(given_columns[at])
                if ranks is not None:
                    column = np.int64(ranks[column])
                columns[low + (at - from_) * lanes + lane] = column - column_base
            if values is not None:
                for at in range(from_, to):
                    values[low + (at - from_) * lanes + lane] = given_values[at]
        first_mask = segment * STEPS
        _mark_ends(starts, low, high, steps, lanes, base, masks, first_mask)
        for lane in range(lanes):
            row[lane] = row_of(starts, min(low + lane * steps, nonzeros - 1), base, first_row[segment + 1])
        piece = first_piece[segment]
        for step in range(steps):
            mask = np.int64(masks[first_mask + step])
            lane = 0
            while mask:
                if mask & 1:
                    offsets[piece] = row[lane] - base
                    piece += 1
                    following = low + lane * steps + step + 1
                    # A lane's last step also ends what is no row.
                    while following < nonzeros and np.int64(starts[row[lane] + 1]) <= following:
                        row[lane] += 1
                mask >>= 1
                lane += 1


@compiled(nogil=True)
def multiply_segments(
    nonzeros: int, begin: int, end: int, first_row: Any, first_piece: Any, lowest: Any, values: Any, columns: Any,
    masks: Any, offsets: Any, x: NDArray[Any], gather: bool, y: NDArray[Any], carries: NDArray[Any],
) -> None:  # fmt: skip
    """Multiply segments ``begin`` to ``end - 1``.

    A segment writes the rows behind its first one up to and with the next segment's first one: no row is written by
    two.  What it has of its first row is added where that row was begun by an earlier segment of this range; else it
    goes to ``carries[segment]``, for :func:`add_carries`.
    """
    lanes = REGISTER_BYTES // x.itemsize
    queue = np.empty(STEPS * lanes + lanes, x.dtype)
    open_row = np.uint64(first_row[begin])
    for segment in range(begin, end):
        steps = steps_of(segment, nonzeros, lanes)
        if gather:
            _gathering(steps, values, columns, masks, segment, x, np.int64(lowest[segment]), queue)
        else:
            _loading(steps, values, columns, masks, segment, x, np.int64(lowest[segment]), queue)
        base = np.uint64(first_row[segment])
        for row in range(base + np.uint64(1), np.uint64(first_row[segment + 1]) + np.uint64(1)):
            y[row] = 0
        carry = x.dtype.type(0)
        first = first_piece[segment]
        for piece in range(first_piece[segment + 1] - first):
            offset = np.uint64(offsets[first + piece])
            if offset == 0:
                carry += queue[piece]
            else:
                y[base + offset] += queue[piece]
        if base == open_row:
            carries[segment] = carry
        else:
            y[base] += carry


@compiled(nogil=True)
def add_carries(begin: int, end: int, first_row: Any, carries: NDArray[Any], y: NDArray[Any]) -> None:
    """Add what segments ``begin`` to ``end - 1`` have of the row that was open before them, in their order."""
    row = first_row[begin]
    for segment in range(begin, end):
        if first_row[segment] != row:
            break
        y[row] += carries[segment]


@compiled(nogil=True)
def take(x: NDArray[Any], order: Any, scale: Any, out: NDArray[Any], begin: int, end: int) -> None:
    """Write ``scale * x[order]`` for a range of positions; ``order`` may be None for x as it lies."""
    if order is None:
        for i in range(begin, end):
            out[i] = scale * x[i]
    else:
        for i in range(begin, end):
            out[i] = scale * x[order[i]]


@compiled(nogil=True)
def spread(compact: NDArray[Any], rows: NDArray[Any], y: NDArray[Any]) -> None:
    """Write the rows that hold something into ``y``, zero elsewhere."""
    y[:] = 0
    for i in range(rows.size):
        y[rows[i]] = compact[i]
