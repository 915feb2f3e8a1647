"""Generates the innermost loop: a few rows of the next grid from the rows around them, one vector register at a time.

A block computes several rows at once, so that a row that has been loaded serves all sums in which it takes part.
Two forms exist.  *Terms* multiplies and adds every neighbour, whatever the weights.  *Factors* is for boxes whose
weights are a column times a row: it sums down the columns, keeps those sums in registers and sums along the rows with
shuffles, 2 (2 r + 1) products per cell instead of (2 r + 1) squared.  Every form adds in one fixed order, whatever the
number of rows or the place in the grid, and multiplies a cell before it adds it to another, so that no sum overflows
where the result does not.

Source: LLVM Language Reference, ``llvm.fma`` and ``shufflevector``; register blocking over rows as in K. Datta et al.,
"Stencil Computation Optimization and Auto-tuning on State-of-the-art Multicore Architectures", SC 2008.

Differs from the source:
1. Vector code is generated here from the pattern, not found by search among compiled variants.
2. Products and sums are fused, so each term is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from wavetank.kernels.stencils.pattern import MAX_RADIUS, Stencil
from wavetank.machine.stream_stores import LINE_BYTES

_INDEX, _ADDRESS = ir.IntType(32), ir.IntType(64)
_TERMS, _FACTORS = "terms", "factors"
# Larger factors, and smaller than its inverse, would leave the range of float32 with cells that do not.
_MOST_FACTOR = 2.0**32
# What a turn of the loop computes divides this; a block writes less than it beyond its end, and reads a line further.
STEP_BYTES = 2 * LINE_BYTES


class Form(NamedTuple):
    """How a pattern is evaluated: the name that selects the generated code, and the numbers it takes."""

    key: str
    """What :func:`blocks` is specialised on, without the number of rows."""
    rows: int
    """Rows of a block that evaluate fastest."""
    coefficients: NDArray[Any]
    """Of the grid's type: one for each term, or the column's factors and then the row's."""
    flops_per_point: int
    """Multiplications and additions that the form does for a cell."""


@cache
def _register_bytes() -> int:
    """Return the width of this processor's vector registers; there are 32 of the widest, else 16."""
    return LINE_BYTES if binding.get_host_cpu_features().get("avx512f", False) else LINE_BYTES // 2


def form_of(pattern: Stencil, dtype: DTypeLike) -> Form:
    """Choose the form that evaluates a pattern with the fewest operations."""
    kind = np.dtype(dtype)
    radius = pattern.radius
    factors = column_and_row(pattern)
    if factors is None:
        width = _register_bytes()
        # Twelve sums at a time: as many as leave registers for cells and weights, enough to hide the units' latency.
        rows = 6 if width == LINE_BYTES else 3
        mask = sum(1 << ((dy + radius) * (2 * radius + 1) + dx + radius) for dy, dx in pattern.offsets)
        key = f"{_TERMS} {kind.itemsize} {radius} {width} {mask:x}"
        return Form(key, rows, pattern.coefficients_as(kind), pattern.flops_per_point)
    column, row = (np.asarray(factor, kind) for factor in factors)
    # Equal weights share a register.
    mirrored = np.array_equal(column, column[::-1]) and np.array_equal(row, row[::-1])
    key = f"{_FACTORS} {kind.itemsize} {radius} {LINE_BYTES} {int(mirrored):x}"
    # More rows would need more registers than there are.
    rows = 3 if radius == MAX_RADIUS else 4
    return Form(key, rows, np.concatenate([column, row]), 2 * (4 * radius + 1))


def column_and_row(pattern: Stencil) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return column and row whose outer product is the box; None if there are none.

    Each weight, however small beside others, is the product to 8 roundings of float64 of itself, and a weight of zero
    exactly.  Factors other than zero lie between 2^-32 and 2^32, so that sums down a column neither overflow for cells
    below 2^-36 of the type's largest number nor lose digits for cells above 2^32 of its smallest normal one.
    """
    if pattern.shape != "box" or pattern.radius == 0:
        return None
    weights = pattern.matrix()
    pivot = np.unravel_index(np.argmax(np.abs(weights)), weights.shape)
    largest = weights[pivot]
    if largest == 0:
        return None
    column = weights[:, pivot[1]] / np.sqrt(abs(largest))
    row = weights[pivot[0]] / (np.sqrt(abs(largest)) * np.sign(largest))
    sizes = np.abs(np.concatenate([column, row]))
    if not ((sizes == 0) | ((sizes >= 1 / _MOST_FACTOR) & (sizes <= _MOST_FACTOR))).all():
        return None
    errors = np.abs(np.outer(column, row) - weights)
    return (column, row) if (errors <= 8 * np.finfo(np.float64).eps * np.abs(weights)).all() else None


@dataclass
class _Body:
    """Emits the instructions of one block."""

    builder: Any
    form: str
    item: int
    radius: int
    width: int
    mask: int
    rows: int
    streaming: bool

    def __post_init__(self) -> None:
        self.lanes = self.width // self.item
        self.element = ir.FloatType() if self.item == 4 else ir.DoubleType()
        self.vector = ir.VectorType(self.element, self.lanes)
        self.fused = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(self.vector, [self.vector] * 3),
            f"llvm.fma.v{self.lanes}f{8 * self.item}",
        )

    def emit(self, outs: Any, ins: Any, ahead: Any, weights: Any, start: Any, stop: Any) -> None:
        builder = self.builder
        self.ins = [self._table(ins, j) for j in range(self.rows + 2 * self.radius)]
        self.outs = [self._table(outs, i) for i in range(self.rows)]
        self.wanted = [self._table(ahead, i) for i in range(self.rows)] if self.streaming else []
        carried = []
        if self.form == _TERMS:
            side = 2 * self.radius + 1
            places = [place for place in range(side * side) if self.mask >> place & 1]
            self.places = {(at // side - self.radius, at % side - self.radius): k for k, at in enumerate(places)}
            self.weights = [self._spread(weights, k) for k in range(len(places))]
        else:
            self.weights = self._factor_weights(weights)
            carried = self._columns(start, -LINE_BYTES) + self._columns(start, 0)
        before = builder.basic_block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", start, stop), loop, done)
        builder.position_at_end(loop)
        at = builder.phi(_ADDRESS)
        at.add_incoming(start, before)
        kept = [builder.phi(self.vector) for _ in carried]
        for phi, value in zip(kept, carried, strict=True):
            phi.add_incoming(value, before)
        step = STEP_BYTES if self.form == _TERMS else LINE_BYTES
        for base in self.wanted:
            for shift in range(0, step, LINE_BYTES):
                self._prefetch(base, at, shift)
        if self.form == _TERMS:
            self._terms(at)
        else:
            left, middle = kept[: self.rows], kept[self.rows :]
            right = self._columns(at, LINE_BYTES)
            for i, three in enumerate(zip(left, middle, right, strict=True)):
                self._store(i, self._along(*three), at, 0)
            for phi, value in zip(kept, [*middle, *right], strict=True):
                phi.add_incoming(value, loop)
        further = builder.add(at, ir.Constant(_ADDRESS, step))
        at.add_incoming(further, loop)
        builder.cbranch(builder.icmp_signed("<", further, stop), loop, done)
        builder.position_at_end(done)

    def _terms(self, at: Any) -> None:
        """Emit all sums of a step; a cell that was loaded, and a weight, serve as many of them as they can."""
        shifts = range(0, STEP_BYTES, self.width)
        sums: dict[tuple[int, int], Any] = {}
        reach = range(-self.radius, self.radius + 1)
        for j in range(self.rows + 2 * self.radius):
            for dx in reach:
                users = [(i, self.places.get((j - i - self.radius, dx))) for i in range(self.rows)]
                if all(place is None for _, place in users):
                    continue
                values = [self._load(j, at, shift + dx * self.item) for shift in shifts]
                for i, place in users:
                    if place is not None:
                        for shift, value in zip(shifts, values, strict=True):
                            total = sums.get((i, shift))
                            sums[i, shift] = self._add_product(self.weights[place], value, total)
        for (i, shift), total in sorted(sums.items(), key=lambda each: each[0]):
            self._store(i, total, at, shift)

    def _factor_weights(self, weights: Any) -> list[Any]:
        side = 2 * self.radius + 1
        if not self.mask:
            return [self._spread(weights, k) for k in range(2 * side)]
        half = [[self._spread(weights, first + k) for k in range(self.radius + 1)] for first in (0, side)]
        return [*half[0], *half[0][-2::-1], *half[1], *half[1][-2::-1]]

    def _columns(self, at: Any, shift: int) -> list[Any]:
        values = [self._load(j, at, shift) for j in range(self.rows + 2 * self.radius)]
        weights = self.weights[: 2 * self.radius + 1]
        return [self._factor(values[i : i + len(weights)], weights) for i in range(self.rows)]

    def _along(self, left: Any, middle: Any, right: Any) -> Any:
        values = [self._shifted(left, middle, right, dx) for dx in range(-self.radius, self.radius + 1)]
        return self._factor(values, self.weights[2 * self.radius + 1 :])

    def _factor(self, values: list[Any], weights: list[Any]) -> Any:
        total = None
        for weight, value in zip(weights, values, strict=True):
            total = self._add_product(weight, value, total)
        return total

    def _add_product(self, weight: Any, value: Any, total: Any) -> Any:
        if total is None:
            return self.builder.fmul(weight, value)
        return self.builder.call(self.fused, [weight, value, total])

    def _shifted(self, left: Any, middle: Any, right: Any, dx: int) -> Any:
        if dx == 0:
            return middle
        first, second, skip = (left, middle, self.lanes + dx) if dx < 0 else (middle, right, dx)
        lanes = [ir.Constant(_INDEX, skip + lane) for lane in range(self.lanes)]
        return self.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_INDEX, self.lanes), lanes))

    def _spread(self, weights: Any, k: int) -> Any:
        address = self.builder.add(weights, ir.Constant(_ADDRESS, k * self.item))
        weight = self.builder.load(self.builder.inttoptr(address, self.element.as_pointer()), align=self.item)
        nothing = ir.Constant(self.vector, ir.Undefined)
        seed = self.builder.insert_element(nothing, weight, ir.Constant(_INDEX, 0))
        lanes = ir.Constant(ir.VectorType(_INDEX, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(seed, nothing, lanes)

    def _table(self, table: Any, index: int) -> Any:
        address = self.builder.add(table, ir.Constant(_ADDRESS, 8 * index))
        return self.builder.load(self.builder.inttoptr(address, _ADDRESS.as_pointer()), align=8)

    def _place(self, base: Any, at: Any, shift: int) -> Any:
        address = self.builder.add(self.builder.add(base, at), ir.Constant(_ADDRESS, shift))
        return self.builder.inttoptr(address, self.vector.as_pointer())

    def _load(self, row: int, at: Any, shift: int) -> Any:
        return self.builder.load(self._place(self.ins[row], at, shift), align=self.item)

    def _prefetch(self, base: Any, at: Any, shift: int) -> None:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INDEX, _INDEX, _INDEX])
        fetch = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        read, second_level, data = (ir.Constant(_INDEX, number) for number in (0, 2, 1))
        self.builder.call(fetch, [self.builder.bitcast(self._place(base, at, shift), byte), read, second_level, data])

    def _store(self, row: int, value: Any, at: Any, shift: int) -> None:
        place = self._place(self.outs[row], at, shift)
        if self.streaming:
            store = self.builder.store(value, place, align=self.width)
            store.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(_INDEX, 1)]))
        else:
            self.builder.store(value, place, align=self.item)


@cache
def blocks(key: str, rows: int) -> NDArray[np.int64]:
    """Return the addresses of the functions that compute rows of the next grid, made and compiled at the first call.

    Parameters
    ----------
    key : str
        :attr:`Form.key`.
    rows : int

    Returns
    -------
    ndarray of int64, shape (3,)
        For ``rows`` rows, for ``rows`` rows stored past the caches, and for one row; see :func:`call_block`.  The last
        of the past-the-caches kind needs rows that start a line each, and writes nothing beyond ``stop`` if that is a
        multiple of :data:`STEP_BYTES` from ``start``.
    """
    form, item, radius, width, mask = key.split()
    kinds = ((rows, False), (rows, True), (1, False))
    with global_compiler_lock:
        library = cpu_target.target_context.codegen().create_library("stencil " + key)
        module = library.create_ir_module("stencil")
        for number, (count, past_caches) in enumerate(kinds):
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_ADDRESS] * 6), _name_of(key, rows, number))
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            body = _Body(inner, form, int(item), int(radius), int(width), int(mask, 16), count, past_caches)
            body.emit(*function.args)
            inner.ret_void()
        library.add_ir_module(module)
        library.finalize()
        found = [library.get_pointer_to_function(_name_of(key, rows, number)) for number in range(len(kinds))]
    _kept.append(library)
    return np.array(found, np.int64)


# Libraries whose addresses are in use; there is one for each key, which the cache above keeps for as long.
_kept: list[Any] = []


def _name_of(key: str, rows: int, number: int) -> str:
    return f"stencil_block_{'_'.join(key.split())}_{rows}_{number}"


@intrinsic  # type: ignore[misc, unused-ignore]
def call_block(
    typing_context: Any, address: Any, outs: Any, ins: Any, ahead: Any, weights: Any, start: Any, stop: Any
) -> Any:
    """Compute rows of the next grid.

    Parameters
    ----------
    address : intp
        One of those that :func:`blocks` returns.
    outs, ins : intp
        Addresses of tables of addresses: of ``rows`` rows to write, and of the ``rows + 2 radius`` rows they need.
    ahead : intp
        Address of a table of ``rows`` addresses: rows to bring into the second-level cache while streaming.
    weights : intp
        Address of :attr:`Form.coefficients`.
    start, stop : intp
        Bytes from the addresses in the tables at which to begin and end.  Whole steps are computed: less than
        :data:`STEP_BYTES` beyond ``stop`` are written, and up to a line more on either side is read.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_ADDRESS] * 6)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def move_bytes(typing_context: Any, destination: Any, source: Any, count: Any) -> Any:
    """Copy ``count`` bytes from address ``source`` to address ``destination``; the two must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, start, size = arguments
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(target, byte), builder.inttoptr(start, byte), size, 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate
