"""The innermost loop of a dense product, and the vector operations around it, written as compiler intrinsics.

A tile of the result stays in registers while a row panel of the left and a column panel of the right operand stream by:
one load of the right panel and a broadcast of the left feed as many multiply-adds as there are registers for. The tile
is chosen by the processor's vector width, so that the same code is the right one on AVX-512, AVX2 and NEON.

Source: K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008; tile
shapes by the analysis of Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", ACM TOMS 43(2), 2016.

Differs from the source:
1. The left panel is kept row by row, not column by column: packing it is then a plain sum of rows.
2. Written in LLVM's language, not assembler: registers and instructions are chosen by the compiler for the host.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike

LINE_BYTES = 64
_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)


@dataclass(frozen=True)
class Tile:
    """The part of the result that stays in registers.

    Parameters
    ----------
    rows : int
        Rows of the tile.
    vectors : int
        Vectors a row.
    lanes : int
        Elements a vector.
    """

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Elements a row of the tile."""
        return self.vectors * self.lanes


@functools.cache
def tile_of(dtype: DTypeLike) -> Tile:
    """Return the register tile for float32 or float64 on this processor."""
    return _tile(np.dtype(dtype).itemsize, _vector_bytes())


@functools.cache
def _vector_bytes() -> tuple[int, int]:
    """Return the bytes of a vector register and how many registers there are."""
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 32
    if features.get("avx2") and features.get("fma"):
        return 32, 16
    return 16, 32 if features.get("neon") else 16


def _tile(itemsize: int, vector: tuple[int, int]) -> Tile:
    size, registers = vector
    # All registers but the row of the right panel and a broadcast of the left: 14 x 2, 6 x 2, 8 x 3, 4 x 3.
    rows, vectors = {(64, 32): (14, 2), (32, 16): (6, 2), (16, 32): (8, 3), (16, 16): (4, 3)}[size, registers]
    return Tile(rows, vectors, size // itemsize)


def _element(kind: Any) -> tuple[Any, int, Any, str]:
    """Return the LLVM element, its bytes, its vector and the vector's suffix for a numba float type."""
    size = 4 if kind == types.float32 else 8
    element = ir.FloatType() if size == 4 else ir.DoubleType()
    lanes = _tile(size, _vector_bytes()).lanes
    return element, size, ir.VectorType(element, lanes), f"v{lanes}f{8 * size}"


def _at(builder: Any, address: Any, offset_bytes: int, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, ir.Constant(_I64, offset_bytes)), kind.as_pointer())


def _spread(builder: Any, scalar: Any, vector: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, undefined, zeros)


def _fma(builder: Any, vector: Any, suffix: str) -> Any:
    kind = ir.FunctionType(vector, [vector] * 3)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.{suffix}")


def _fetch(builder: Any, address: Any, locality: int) -> None:
    """Ask for a cache line to be read, in the first-level (3) or second-level (2) cache."""
    byte = _I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(call, [builder.inttoptr(address, byte), *(ir.Constant(_I32, flag) for flag in (0, locality, 1))])


def _mask(builder: Any, count: Any, lanes: int) -> Any:
    """Return the lanes below ``count`` (clipped by comparison) as a vector of bits."""
    kind = ir.VectorType(_I64, lanes)
    return builder.icmp_signed("<", ir.Constant(kind, list(range(lanes))), _spread(builder, count, kind))


def _masked_load(builder: Any, address: Any, mask: Any, vector: Any, suffix: str, size: int) -> Any:
    kind = ir.FunctionType(vector, [vector.as_pointer(), _I32, ir.VectorType(_I1, vector.count), vector])
    load = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.{suffix}.p0")
    zero = ir.Constant(vector, [0.0] * vector.count)
    return builder.call(load, [builder.inttoptr(address, vector.as_pointer()), ir.Constant(_I32, size), mask, zero])


def _masked_store(builder: Any, value: Any, address: Any, mask: Any, vector: Any, suffix: str, size: int) -> None:
    kind = ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), _I32, ir.VectorType(_I1, vector.count)])
    store = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.store.{suffix}.p0")
    builder.call(store, [value, builder.inttoptr(address, vector.as_pointer()), ir.Constant(_I32, size), mask])


def _tile_function(module: Any, shape: Tile, element: Any, size: int, vector: Any, suffix: str) -> Any:
    """Return the module's function for one tile.

    A function of its own, never inlined: the registers of the loop must not be shared with what surrounds it.
    """
    name = f"wavetank_multiply_tile_{suffix}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64] * 7 + [_I1]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    count, left_at, left_step, right_at, tile_at, fetched_at, fetched_step, adding = function.args
    before = function.append_basic_block("enter")
    loop, done = function.append_basic_block("depth"), function.append_basic_block("sum")
    builder = ir.IRBuilder(before)
    fma = _fma(builder, vector, suffix)
    width = shape.lanes * size
    # The tile is needed when the loop is done: asked for now, it is there by then.
    for place in range(0, shape.rows * shape.columns * size, LINE_BYTES):
        _fetch(builder, builder.add(tile_at, ir.Constant(_I64, place)), 3)
    builder.branch(loop)
    builder.position_at_end(loop)
    step, left, right, fetched = (builder.phi(_I64) for _ in range(4))
    sums = [builder.phi(vector) for _ in range(shape.rows * shape.vectors)]
    for each, start in ((step, ir.Constant(_I64, 0)), (left, left_at), (right, right_at), (fetched, fetched_at)):
        each.add_incoming(start, before)
    for each in sums:
        each.add_incoming(ir.Constant(vector, [0.0] * shape.lanes), before)
    # A line at a time: many requests at once would hold up the loads that the sums wait for.
    _fetch(builder, fetched, 2)
    fetched.add_incoming(builder.add(fetched, fetched_step), loop)
    loaded = [builder.load(_at(builder, right, v * width, vector), align=width) for v in range(shape.vectors)]
    after, row = [], left
    for r in range(shape.rows):
        spread = _spread(builder, builder.load(_at(builder, row, 0, element), align=size), vector)
        for v in range(shape.vectors):
            after.append(builder.call(fma, [spread, loaded[v], sums[r * shape.vectors + v]]))
        row = builder.add(row, left_step)
    next_step = builder.add(step, ir.Constant(_I64, 1))
    step.add_incoming(next_step, loop)
    left.add_incoming(builder.add(left, ir.Constant(_I64, size)), loop)
    right.add_incoming(builder.add(right, ir.Constant(_I64, shape.columns * size)), loop)
    for each, value in zip(sums, after, strict=True):
        each.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", next_step, count), loop, done)
    builder.position_at_end(done)
    places = [_at(builder, tile_at, i * width, vector) for i in range(len(after))]
    with builder.if_else(adding) as (then, otherwise):
        with then:
            for value, place in zip(after, places, strict=True):
                builder.store(builder.fadd(builder.load(place, align=width), value), place, align=width)
        with otherwise:
            for value, place in zip(after, places, strict=True):
                builder.store(value, place, align=width)
    builder.ret_void()
    return function


@intrinsic  # type: ignore[misc, unused-ignore]
def multiply_tile(
    typing_context: Any,
    one: Any,
    depth: Any,
    left: Any,
    left_row_bytes: Any,
    right: Any,
    tile: Any,
    fetched: Any,
    fetched_step_bytes: Any,
    add: Any,
) -> Any:
    """Multiply a row panel by a column panel into the tile at address ``tile``.

    Parameters
    ----------
    one : float32 or float64
        Says the type of the elements.
    depth : int64
        Length of the inner dimension, at least 1.
    left : int64
        Address of the left panel: rows of ``depth`` elements, ``left_row_bytes`` apart.
    right : int64
        Address of the right panel: ``depth`` rows of the tile's columns, one after the other, whole lines.
    tile : int64
        Address of the tile, row by row, whole lines.
    fetched, fetched_step_bytes : int64
        What to ask for meanwhile, in the second-level cache, and how much further with every element of the inner
        dimension; no address is wrong.
    add : boolean
        Add to what the tile holds instead of replacing it.
    """
    element, size, vector, suffix = _element(one)
    shape = _tile(size, _vector_bytes())

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag = builder.icmp_unsigned("!=", arguments[8], ir.Constant(arguments[8].type, 0))
        builder.call(_tile_function(builder.module, shape, element, size, vector, suffix), [*arguments[1:8], flag])
        return context.get_dummy_value()

    return types.void(one, *(types.int64,) * 7, types.boolean), generate


class _Loop:
    """A counted loop in LLVM's language: ``with _Loop(builder, count, *starts) as (index, *values)``.

    ``count`` must be at least 1; ``advance`` names the values of the next turn.
    """

    def __init__(self, builder: Any, count: Any, *carried: Any) -> None:
        self._builder, self._count, self._carried = builder, count, carried
        self._next: tuple[Any, ...] = ()

    def __enter__(self) -> tuple[Any, ...]:
        builder = self._builder
        before = builder.basic_block
        self._body = builder.append_basic_block("turn")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self._index = builder.phi(_I64)
        self._index.add_incoming(ir.Constant(_I64, 0), before)
        self._values = []
        for start in self._carried:
            value = builder.phi(start.type)
            value.add_incoming(start, before)
            self._values.append(value)
        return self, self._index, *self._values

    def advance(self, *values: Any) -> None:
        """Say what the carried values are in the next turn."""
        self._next = values

    def __exit__(self, *_: object) -> None:
        builder = self._builder
        following = builder.add(self._index, ir.Constant(_I64, 1))
        last = builder.basic_block
        self._index.add_incoming(following, last)
        for value, after in zip(self._values, self._next, strict=True):
            value.add_incoming(after, last)
        done = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", following, self._count), self._body, done)
        builder.position_at_end(done)


def _function(module: Any, name: str, arguments: list[Any]) -> tuple[Any, Any]:
    """Return a new function of the module that is never inlined, and a builder inside it."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("enter"))


def _sum_function(module: Any, element: Any, size: int, vector: Any, suffix: str, wide: int) -> Any:
    """Return the module's function that sums blocks of whole vectors, ``wide`` of them in registers at a time."""
    name = f"wavetank_sum_{wide}_{suffix}"
    if name in module.globals:
        return module.globals[name]
    function, builder = _function(module, name, [_I64] * 10)
    target, target_step, strip_step, source, source_step, rows, strips, addresses, scales, terms = function.args
    fma = _fma(builder, vector, suffix)
    bytes_wide = ir.Constant(_I64, wide * vector.count * size)
    zero = ir.Constant(vector, [0.0] * vector.count)
    with _Loop(builder, rows, target, source) as (row_loop, _, to, start):
        with _Loop(builder, strips, to, start) as (strip_loop, _, place, offset):
            with _Loop(builder, terms, *[zero] * wide) as (term_loop, term, *sums):
                at = builder.load(_indexed(builder, addresses, term, 8, _I64), align=8)
                scale = builder.load(_indexed(builder, scales, term, size, element), align=size)
                spread = _spread(builder, scale, vector)
                first = builder.add(at, offset)
                # The next row starts in another page, where no processor looks ahead by itself.
                following = builder.add(first, source_step)
                for ahead in range(0, wide * vector.count * size, LINE_BYTES):
                    _fetch(builder, builder.add(following, ir.Constant(_I64, ahead)), 2)
                loaded = [
                    builder.load(_at(builder, first, v * vector.count * size, vector), align=size) for v in range(wide)
                ]
                added = [builder.call(fma, [spread, load, old]) for load, old in zip(loaded, sums, strict=True)]
                term_loop.advance(*added)
            for v, value in enumerate(added):
                builder.store(value, _at(builder, place, v * vector.count * size, vector), align=size)
            strip_loop.advance(builder.add(place, strip_step), builder.add(offset, bytes_wide))
        row_loop.advance(builder.add(to, target_step), builder.add(start, source_step))
    builder.ret_void()
    return function


def _indexed(builder: Any, start: Any, index: Any, size: int, kind: Any) -> Any:
    return builder.inttoptr(builder.add(start, builder.mul(index, ir.Constant(_I64, size))), kind.as_pointer())


def _sum_blocks(one: Any, wide: int) -> Any:
    element, size, vector, suffix = _element(one)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(_sum_function(builder.module, element, size, vector, suffix, wide), arguments[1:])
        return context.get_dummy_value()

    return types.void(one, *(types.int64,) * 10), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def sum_blocks(
    typing_context: Any,
    one: Any,
    target: Any,
    target_row_bytes: Any,
    target_step_bytes: Any,
    offset: Any,
    source_row_bytes: Any,
    rows: Any,
    vectors: Any,
    addresses: Any,
    scales: Any,
    terms: Any,
) -> Any:
    """Write a weighted sum of blocks, ``rows`` of ``vectors`` whole vectors each.

    Parameters
    ----------
    one : float32 or float64
        Says the type of the elements.
    target, target_row_bytes, target_step_bytes : int64
        Where the first row is written, and the distances of rows and of neighbours in a row.
    offset, source_row_bytes : int64
        Where in each block the first row is read, and the distance of rows.
    rows, vectors : int64
        At least 1.
    addresses, scales : int64
        Where the blocks' addresses (int64) and coefficients are kept.
    terms : int64
        Number of blocks, at least 1.
    """
    return _sum_blocks(one, 1)


@intrinsic  # type: ignore[misc, unused-ignore]
def sum_panels(
    typing_context: Any,
    one: Any,
    target: Any,
    target_row_bytes: Any,
    target_step_bytes: Any,
    offset: Any,
    source_row_bytes: Any,
    rows: Any,
    panels: Any,
    addresses: Any,
    scales: Any,
    terms: Any,
) -> Any:
    """As :func:`sum_blocks`, for rows of ``panels`` panels, each as wide as the register tile."""
    return _sum_blocks(one, _tile(_element(one)[1], _vector_bytes()).vectors)


@intrinsic  # type: ignore[misc, unused-ignore]
def spread_panels(
    typing_context: Any,
    target: Any,
    target_row_bytes: Any,
    source: Any,
    source_panel_bytes: Any,
    rows: Any,
    panels: Any,
    scale: Any,
    add: Any,
) -> Any:
    """Write or add ``scale`` times rows that lie in pieces as wide as the register tile.

    Parameters
    ----------
    target, target_row_bytes : int64
        Where the first row goes, whole, and the distance of rows.
    source, source_panel_bytes : int64
        The first row's first piece, aligned to whole vectors, and the distance of a row's pieces; a piece's next row
        follows it at once.
    rows, panels : int64
        At least 1.
    scale : float32 or float64
    add : boolean
        Add to the target instead of replacing it.
    """
    element, size, vector, suffix = _element(scale)
    shape = _tile(size, _vector_bytes())
    name, width = f"wavetank_spread_panels_{suffix}", vector.count * size

    def body(module: Any) -> Any:
        if name in module.globals:
            return module.globals[name]
        function, builder = _function(module, name, [_I64] * 6 + [element, _I1])
        target_at, target_step, source_at, source_step, high, count, factor, adding = function.args
        fma, spread = _fma(builder, vector, suffix), _spread(builder, factor, vector)
        piece = ir.Constant(_I64, shape.columns * size)
        adds, sets = function.append_basic_block("add"), function.append_basic_block("set")
        builder.cbranch(adding, adds, sets)
        for block, fused in ((adds, True), (sets, False)):
            builder.position_at_end(block)
            with _Loop(builder, high, target_at, source_at) as (row_loop, _, row_to, row_from):
                with _Loop(builder, count, row_to, row_from) as (loop, _, to, source):
                    if fused:
                        following = builder.add(to, target_step)
                        for ahead in range(0, shape.columns * size, LINE_BYTES):
                            _fetch(builder, builder.add(following, ir.Constant(_I64, ahead)), 2)
                    for v in range(shape.vectors):
                        value = builder.load(_at(builder, source, v * width, vector), align=width)
                        place = _at(builder, to, v * width, vector)
                        if fused:
                            value = builder.call(fma, [spread, value, builder.load(place, align=size)])
                        else:
                            value = builder.fmul(spread, value)
                        builder.store(value, place, align=size)
                    loop.advance(builder.add(to, piece), builder.add(source, source_step))
                row_loop.advance(builder.add(row_to, target_step), builder.add(row_from, piece))
            builder.ret_void()
        return function

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag = builder.icmp_unsigned("!=", arguments[7], ir.Constant(arguments[7].type, 0))
        builder.call(body(builder.module), [*arguments[:7], flag])
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 6, scale, types.boolean), generate


def _combine(one: Any, add: bool, masked: str) -> Any:
    """Return signature and code of ``target (+)= scale * source`` for a vector of which one side is cut off."""
    _, size, vector, suffix = _element(one)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, scale = arguments[:3]
        pointer = builder.inttoptr(target, vector.as_pointer())
        mask = _mask(builder, arguments[3], vector.count)
        if masked == "source":
            value = _masked_load(builder, source, mask, vector, suffix, size)
        else:
            value = builder.load(builder.inttoptr(source, vector.as_pointer()), align=size)
        factor = _spread(builder, scale, vector)
        if add:
            old = (
                _masked_load(builder, target, mask, vector, suffix, size)
                if masked == "target"
                else builder.load(pointer, align=size)
            )
            value = builder.call(_fma(builder, vector, suffix), [factor, value, old])
        else:
            value = builder.fmul(factor, value)
        if masked == "target":
            _masked_store(builder, value, target, mask, vector, suffix, size)
        else:
            builder.store(value, pointer, align=size)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, one, types.int64), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def set_from_part(typing_context: Any, target: Any, source: Any, scale: Any, count: Any) -> Any:
    """Write ``scale`` times the vector at ``source``; its first ``count`` elements exist, the others count as zero."""
    return _combine(scale, add=False, masked="source")


@intrinsic  # type: ignore[misc, unused-ignore]
def add_from_part(typing_context: Any, target: Any, source: Any, scale: Any, count: Any) -> Any:
    """As :func:`set_from_part`, but add to the target."""
    return _combine(scale, add=True, masked="source")


@intrinsic  # type: ignore[misc, unused-ignore]
def set_part(typing_context: Any, target: Any, source: Any, scale: Any, count: Any) -> Any:
    """Write ``scale`` times the vector at ``source`` to the ``count`` elements of the target that exist."""
    return _combine(scale, add=False, masked="target")


@intrinsic  # type: ignore[misc, unused-ignore]
def add_part(typing_context: Any, target: Any, source: Any, scale: Any, count: Any) -> Any:
    """As :func:`set_part`, but add to the target."""
    return _combine(scale, add=True, masked="target")


@intrinsic  # type: ignore[misc, unused-ignore]
def transpose_square(
    typing_context: Any,
    target: Any,
    target_row_bytes: Any,
    source: Any,
    source_row_bytes: Any,
    scale: Any,
    add: Any,
    rows: Any,
    columns: Any,
) -> Any:
    """Write or add ``scale`` times the transpose of a square of as many rows as a vector has lanes.

    Parameters
    ----------
    target, target_row_bytes : int64
        Address of the square written, all of it, and the distance of its rows.
    source, source_row_bytes : int64
        The square read.
    scale : float32 or float64
    add : boolean
        Add to the target instead of replacing it.
    rows, columns : int64
        How much of the source exists; the rest counts as zero and is not read.
    """
    _, size, vector, suffix = _element(scale)
    lanes = vector.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_at, target_step, source_at, source_step, factor, adding, high, wide = arguments
        inside, nothing = _mask(builder, wide, lanes), ir.Constant(ir.VectorType(_I1, lanes), [0] * lanes)
        lines = []
        for i in range(lanes):
            mask = builder.select(builder.icmp_signed("<", ir.Constant(_I64, i), high), inside, nothing)
            at = builder.add(source_at, builder.mul(source_step, ir.Constant(_I64, i)))
            lines.append(_masked_load(builder, at, mask, vector, suffix, size))
        kind = ir.VectorType(_I32, lanes)
        low = ir.Constant(kind, [lane // 2 + lanes * (lane % 2) for lane in range(lanes)])
        top = ir.Constant(kind, [lanes // 2 + lane // 2 + lanes * (lane % 2) for lane in range(lanes)])
        # Each pass interleaves line i with line i + lanes/2; after log2(lanes) passes rows are columns.
        for _ in range(lanes.bit_length() - 1):
            half = lanes // 2
            mixed = [
                builder.shuffle_vector(lines[i], lines[i + half], order) for i in range(half) for order in (low, top)
            ]
            lines = mixed
        spread = _spread(builder, factor, vector)
        places = [
            builder.inttoptr(
                builder.add(target_at, builder.mul(target_step, ir.Constant(_I64, i))), vector.as_pointer()
            )
            for i in range(lanes)
        ]
        fma = _fma(builder, vector, suffix)
        with builder.if_else(adding) as (then, otherwise):
            with then:
                for line, place in zip(lines, places, strict=True):
                    old = builder.load(place, align=size)
                    builder.store(builder.call(fma, [spread, line, old]), place, align=size)
            with otherwise:
                for line, place in zip(lines, places, strict=True):
                    builder.store(builder.fmul(spread, line), place, align=size)
        return context.get_dummy_value()

    four = (types.int64,) * 4
    return types.void(*four, scale, types.boolean, types.int64, types.int64), generate
