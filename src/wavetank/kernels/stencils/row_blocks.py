"""Generates the innermost loop: a few rows of the next grid from the rows around them, one vector register at a time.

A block computes several rows at once, so that a row that has been loaded serves all sums in which it takes part.
Four forms exist.  *Terms* multiplies and adds every neighbour.  *Rings* is for stars whose four arms are alike: cells
at equal distance are added first, and those to the left and right come from shuffles, because a load that straddles two
lines costs twice.  *Factors* is for boxes whose weights are a column times a row: it sums down the columns, keeps those
sums in registers and sums along the rows with shuffles, 2 (2 r + 1) products a cell instead of (2 r + 1) squared.
*Mirrored* is the same for palindromes, with cells at equal distance added first.  Every form adds in one fixed order,
whatever the number of rows or the place in the grid.

Source: LLVM Language Reference, ``llvm.fma`` and ``shufflevector``; register blocking over rows as in K. Datta et al.,
"Stencil Computation Optimization and Auto-tuning on State-of-the-art Multicore Architectures", SC 2008.

Differs from the source:
1. Vector code is generated here from the pattern, not found by search among compiled variants.
2. Products and sums are fused, so each term is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from wavetank.kernels.stencils.pattern import MAX_RADIUS, Stencil
from wavetank.kernels.stream_stores import LINE_BYTES

_INDEX, _ADDRESS = ir.IntType(32), ir.IntType(64)
_TERMS, _RINGS, _FACTORS, _MIRRORED = "terms", "rings", "factors", "mirrored"


class Form(NamedTuple):
    """How a pattern is evaluated: the name that selects the generated code, and the numbers it takes."""

    key: str
    """What :func:`block` is specialised on, without the number of rows."""
    rows: int
    """Rows of a block that evaluate fastest."""
    coefficients: NDArray[Any]
    """Of the grid's type: one for each term, or the column's factors and then the row's."""
    flops_per_point: int
    """Multiplications and additions that the form does for a cell."""


def form_of(pattern: Stencil, dtype: DTypeLike) -> Form:
    """Choose the form that evaluates a pattern with the fewest operations."""
    kind = np.dtype(dtype)
    radius = pattern.radius
    arms = _arms(pattern)
    if arms is not None:
        rings = np.asarray(arms, kind)
        return Form(f"{_RINGS} {kind.itemsize} {radius} 1 0", 6 if radius <= 2 else 4, rings, 5 * radius + 1)
    factors = _column_and_row(pattern)
    if factors is None:
        wide = 2 if pattern.points > 2 * (2 * radius + 1) else 1
        rows = 6 if wide == 2 else 4 if radius <= 1 else 2
        registers = 1 if rows == 4 else 2
        mask = sum(1 << ((dy + radius) * (2 * radius + 1) + dx + radius) for dy, dx in pattern.offsets)
        key = f"{_TERMS} {kind.itemsize} {radius} {registers} {mask:x}"
        return Form(key, rows, pattern.coefficients_as(kind), pattern.flops_per_point)
    column, row = (np.asarray(factor, kind) for factor in factors)
    mirrored = np.array_equal(column, column[::-1]) and np.array_equal(row, row[::-1])
    key = f"{_MIRRORED if mirrored else _FACTORS} {kind.itemsize} {radius} 1 0"
    # More rows would need more registers than there are.
    rows = 3 if radius == MAX_RADIUS else 4
    flops = 2 * (3 * radius + 1 if mirrored else 4 * radius + 1)
    return Form(key, rows, np.concatenate([column, row]), flops)


def _arms(pattern: Stencil) -> list[float] | None:
    """Return the weights at distance 0, 1, ... of a star whose four arms are alike; None for any other pattern."""
    radius = pattern.radius
    if pattern.shape != "star" or radius == 0:
        return None
    weights = pattern.matrix()
    along = weights[radius, radius:]
    arms = (weights[radius, radius::-1], weights[radius:, radius], weights[radius::-1, radius])
    return list(along) if all(np.array_equal(along, arm) for arm in arms) else None


def _column_and_row(pattern: Stencil) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return column and row whose outer product is the box, to a few roundings of float64; None if there are none."""
    if pattern.shape != "box" or pattern.radius == 0:
        return None
    weights = pattern.matrix()
    pivot = np.unravel_index(np.argmax(np.abs(weights)), weights.shape)
    largest = weights[pivot]
    if largest == 0:
        return None
    column = weights[:, pivot[1]] / np.sqrt(abs(largest))
    row = weights[pivot[0]] / (np.sqrt(abs(largest)) * np.sign(largest))
    error = np.abs(np.outer(column, row) - weights).max()
    return (column, row) if error <= 4 * np.finfo(np.float64).eps * abs(largest) else None


@dataclass
class _Body:
    """Emits the instructions of one block."""

    builder: Any
    form: str
    item: int
    radius: int
    registers: int
    mask: int
    rows: int
    streaming: bool

    def __post_init__(self) -> None:
        self.lanes = LINE_BYTES // self.item
        self.element = ir.FloatType() if self.item == 4 else ir.DoubleType()
        self.vector = ir.VectorType(self.element, self.lanes)
        self.fused = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(self.vector, [self.vector] * 3),
            f"llvm.fma.v{self.lanes}f{8 * self.item}",
        )

    def emit(self, outs: Any, ins: Any, ahead: Any, weights: Any, start: Any, stop: Any) -> None:
        builder = self.builder
        side = 2 * self.radius + 1
        self.places: dict[tuple[int, int], int] = {}
        for place in range(side * side):
            if self.mask >> place & 1:
                self.places[place // side - self.radius, place % side - self.radius] = len(self.places)
        count = {_TERMS: len(self.places), _RINGS: self.radius + 1}.get(self.form, 2 * side)
        self.weights = [self._spread(weights, k) for k in range(count)]
        self.ins = [self._table(ins, j) for j in range(self.rows + 2 * self.radius)]
        self.outs = [self._table(outs, i) for i in range(self.rows)]
        wanted = [self._table(ahead, i) for i in range(self.rows)] if self.streaming else []
        carried = []
        if self.form in (_FACTORS, _MIRRORED):
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
        left, middle = kept[: self.rows], kept[self.rows :]
        for register in range(self.registers):
            shift = register * LINE_BYTES
            for base in wanted:
                self._prefetch(base, at, shift)
            if self.form == _TERMS:
                self._store(self._terms(at, shift), at, shift)
            elif self.form == _RINGS:
                self._store(self._rings(at, shift), at, shift)
            else:
                right = self._columns(at, shift + LINE_BYTES)
                sums = [self._along(*three) for three in zip(left, middle, right, strict=True)]
                self._store(sums, at, shift)
                left, middle = middle, right
        for phi, value in zip(kept, [*left, *middle], strict=True):
            phi.add_incoming(value, loop)
        further = builder.add(at, ir.Constant(_ADDRESS, self.registers * LINE_BYTES))
        at.add_incoming(further, loop)
        builder.cbranch(builder.icmp_signed("<", further, stop), loop, done)
        builder.position_at_end(done)

    def _terms(self, at: Any, shift: int) -> list[Any]:
        sums: list[Any] = [None] * self.rows
        reach = range(-self.radius, self.radius + 1)
        for j in range(self.rows + 2 * self.radius):
            for dx in reach:
                users = [(i, self.places.get((j - i - self.radius, dx))) for i in range(self.rows)]
                if all(place is None for _, place in users):
                    continue
                value = self._load(j, at, shift + dx * self.item)
                for i, place in users:
                    if place is not None:
                        sums[i] = self._add_product(self.weights[place], value, sums[i])
        return sums

    def _rings(self, at: Any, shift: int) -> list[Any]:
        column = [self._load(j, at, shift) for j in range(self.rows + 2 * self.radius)]
        return [self._ring_sum(column, j, at, shift) for j in range(self.radius, self.radius + self.rows)]

    def _ring_sum(self, column: list[Any], j: int, at: Any, shift: int) -> Any:
        add = self.builder.fadd
        left, right = (self._load(j, at, shift + side) for side in (-LINE_BYTES, LINE_BYTES))
        total = self._add_product(self.weights[0], column[j], None)
        for k in range(1, self.radius + 1):
            west, east = (self._shifted(left, column[j], right, dx) for dx in (-k, k))
            ring = add(add(west, east), add(column[j - k], column[j + k]))
            total = self._add_product(self.weights[k], ring, total)
        return total

    def _columns(self, at: Any, shift: int) -> list[Any]:
        values = [self._load(j, at, shift) for j in range(self.rows + 2 * self.radius)]
        weights = self.weights[: 2 * self.radius + 1]
        return [self._factor(values[i : i + len(weights)], weights) for i in range(self.rows)]

    def _along(self, left: Any, middle: Any, right: Any) -> Any:
        values = [self._shifted(left, middle, right, dx) for dx in range(-self.radius, self.radius + 1)]
        return self._factor(values, self.weights[2 * self.radius + 1 :])

    def _factor(self, values: list[Any], weights: list[Any]) -> Any:
        middle = self.radius
        if self.form == _FACTORS:
            total = None
            for weight, value in zip(weights, values, strict=True):
                total = self._add_product(weight, value, total)
            return total
        total = self._add_product(weights[middle], values[middle], None)
        for k in range(1, middle + 1):
            both = self.builder.fadd(values[middle - k], values[middle + k])
            total = self._add_product(weights[middle + k], both, total)
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

    def _store(self, sums: list[Any], at: Any, shift: int) -> None:
        for base, value in zip(self.outs, sums, strict=True):
            if self.streaming:
                store = self.builder.store(value, self._place(base, at, shift), align=LINE_BYTES)
                store.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(_INDEX, 1)]))
            else:
                self.builder.store(value, self._place(base, at, shift), align=self.item)


@intrinsic(prefer_literal=True)  # type: ignore[misc, unused-ignore]
def block(
    typing_context: Any,
    key: Any,
    rows: Any,
    streaming: Any,
    outs: Any,
    ins: Any,
    ahead: Any,
    weights: Any,
    start: Any,
    stop: Any,
) -> Any:
    """Compute ``rows`` rows of the next grid.

    Parameters
    ----------
    key : str literal
        :attr:`Form.key`.
    rows : int literal
    streaming : int literal
        1 to store past the caches: then the rows to write start a line each, and nothing is written beyond ``stop`` if
        it is a multiple of :data:`STEP_BYTES` from ``start``.
    outs, ins : intp
        Addresses of tables of addresses: of ``rows`` rows to write, and of the ``rows + 2 radius`` rows they need.
    ahead : intp
        Address of a table of ``rows`` addresses: rows to bring into the second-level cache while streaming.
    weights : intp
        Address of :attr:`Form.coefficients`.
    start, stop : intp
        Bytes from the addresses in the tables at which to begin and end.  Whole vectors are computed: up to
        ``registers`` lines beyond ``stop`` are written, and up to a line more on either side is read.
    """
    form, item, radius, registers, mask = key.literal_value.split()
    count, past_caches = rows.literal_value, bool(streaming.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name = f"stencil_block_{'_'.join(key.literal_value.split())}_{count}_{int(past_caches)}"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [_ADDRESS] * 6), name)
            function.linkage = "internal"
            # A function of its own: among the rest of the pass, registers would run short within the loop.
            function.attributes.add("noinline")
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            body = _Body(inner, form, int(item), int(radius), int(registers), int(mask, 16), count, past_caches)
            body.emit(*function.args)
            inner.ret_void()
        builder.call(function, arguments[3:])
        return context.get_dummy_value()

    return types.void(key, rows, streaming, *[types.intp] * 6), generate


# What a turn of the loop computes divides this; a block writes less than it beyond its end, and reads a line further.
STEP_BYTES = 2 * LINE_BYTES


@intrinsic  # type: ignore[misc, unused-ignore]
def move_bytes(typing_context: Any, destination: Any, source: Any, count: Any) -> Any:
    """Copy ``count`` bytes from address ``source`` to address ``destination``; the two must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, start, size = arguments
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(target, byte), builder.inttoptr(start, byte), size, 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate
