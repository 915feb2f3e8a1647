"""The layouts that kernels use, each described by a few numbers and turned into one linear layout for a shape.

Registers, lanes and warps of a *blocked* layout tile the tensor in an order of dimensions; matrix units dictate the
fragments of their operands and results; a *slice* is what is left of a layout when one dimension is reduced; shared
memory is laid out row by row, swizzled (rows xor-ed into columns) or padded. Where a tile is larger than the tensor
its places hold copies; where it is smaller, registers repeat it.

Source: "Linear Layouts", arXiv 2505.23819, section 4.3 and appendix; the fragments are those of the PTX and CDNA
manuals; Triton's compiler gives the same bases (held against it where it is installed).

Differs from the source:

1. One block of threads: clusters of blocks are not laid out.
2. Matrix fragments are for two dimensions; batches are left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import log2_of
from wavetank.settings import setting

_Bases = dict[str, list[tuple[int, ...]]]


class Encoding(Protocol):
    """A family with its numbers chosen."""

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout of a tensor of that shape, dimensions named dim0, dim1, ..."""
        ...


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """Registers, then lanes, then warps tile the tensor, each along ``order``.

    Attributes
    ----------
    registers, lanes, warps : tuple of int
        How many along each dimension.
    order : tuple of int
        Dimensions, fastest first.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    order: tuple[int, ...]

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout; registers repeat the tile along ``order``."""
        dims = len(self.order)
        if sorted(self.order) != list(range(dims)) or {len(self.registers), len(self.lanes), len(self.warps)} != {dims}:
            raise BadValueError(
                "A blocked layout has one number per dimension, and its order names each dimension once.",
                given=f"registers={self.registers}, lanes={self.lanes}, warps={self.warps}, order={self.order}",
                where="blocked",
            )
        bases: _Bases = {}
        reached = [0] * dims
        for name, counts in (("register", self.registers), ("lane", self.lanes), ("warp", self.warps)):
            bases[name] = []
            for dim in self.order:
                for _ in range(log2_of(counts[dim], f"blocked, {name}s of dimension {dim}")):
                    bases[name].append(_unit(dims, dim, 1 << reached[dim]))
                    reached[dim] += 1
        if len(shape) == dims:
            # A thread has no registers beyond the tensor; lanes and warps are there all the same and hold copies.
            bases["register"] = [
                base for base in bases["register"] if all(a < b for a, b in zip(base, shape, strict=True))
            ]
        return _fitted(bases, shape, self.order, self)


@dataclass(frozen=True, kw_only=True)
class MmaResult:
    """The accumulator of mma.m16n8: two neighbours a register pair, four lanes a row.

    Attributes
    ----------
    warps : tuple of int
        Warps along rows and columns.
    """

    warps: tuple[int, int]

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout; warps and repeats go along columns first."""
        bases: _Bases = {
            "register": [(0, 1), (8, 0)],
            "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
            "warp": _warps(self.warps, (16, 8), (1, 0)),
        }
        return _fitted(bases, shape, (1, 0), self)


@dataclass(frozen=True, kw_only=True)
class MmaOperand:
    """An operand of mma.m16n8: the left one (0) lies along rows, the right one (1) along columns.

    Attributes
    ----------
    operand : int
        0 or 1.
    width : int
        Elements in a row along the inner dimension that a lane holds: 4 bytes, or more to load more at once.
    warps : tuple of int
        Warps of the result along rows and columns.
    """

    operand: int
    width: int
    warps: tuple[int, int]

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout; registers repeat it along the inner dimension first."""
        inner, outer = _inner(self.operand)
        low = log2_of(self.width, "mma operand, width")
        inside = [_unit(2, inner, 1 << bit) for bit in range(low)]
        further = _unit(2, inner, 4 * self.width)
        bases: _Bases = {
            "register": [*inside, *([_unit(2, 0, 8)] if self.operand == 0 else []), further],
            "lane": [_unit(2, inner, self.width << bit) for bit in range(2)]
            + [_unit(2, outer, 1 << bit) for bit in range(3)],
            "warp": _shared_by(_warps(self.warps, (16, 8), (1, 0)), inner),
        }
        return _fitted(bases, shape, (inner, outer), self)


@dataclass(frozen=True, kw_only=True)
class WgmmaResult:
    """The accumulator of Hopper's wgmma: each warp holds 16 rows and all columns of an instruction.

    Attributes
    ----------
    warps : tuple of int
        Warps along rows (a group has four) and columns.
    columns : int
        Of one instruction: 8 to 256.
    """

    warps: tuple[int, int]
    columns: int

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout; warps go along rows first, repeats along columns first."""
        high = log2_of(self.columns, "wgmma, columns")
        if high < 3:
            raise BadValueError("An instruction has at least 8 columns.", given=self.columns, where="wgmma, columns")
        bases: _Bases = {
            "register": [(0, 1), (8, 0), *((0, 1 << bit) for bit in range(3, high))],
            "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
            "warp": _warps(self.warps, (16, self.columns), (0, 1)),
        }
        return _fitted(bases, shape, (1, 0), self)


@dataclass(frozen=True, kw_only=True)
class WgmmaOperand:
    """The left operand of wgmma when it comes from registers.

    Attributes
    ----------
    width : int
        Elements in a row that a lane holds.
    warps : tuple of int
        Warps of the result along rows and columns.
    """

    width: int
    warps: tuple[int, int]

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout; registers repeat it along the inner dimension first."""
        low = log2_of(self.width, "wgmma operand, width")
        bases: _Bases = {
            "register": [*((0, 1 << bit) for bit in range(low)), (8, 0), (0, 4 * self.width)],
            "lane": [(0, self.width), (0, 2 * self.width), (1, 0), (2, 0), (4, 0)],
            "warp": _shared_by(_warps(self.warps, (16, 1), (0, 1)), 1),
        }
        return _fitted(bases, shape, (1, 0), self)


@dataclass(frozen=True, kw_only=True)
class MfmaResult:
    """The accumulator of AMD's mfma with 64 lanes: four rows (or columns, transposed) in a lane's registers.

    Attributes
    ----------
    side : int
        Rows and columns of the instruction: 16 or 32.
    transposed : bool
        Whether registers go along columns.
    warps : tuple of int
        Warps along rows and columns.
    """

    side: int
    transposed: bool
    warps: tuple[int, int]

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout; warps and repeats go along columns first."""
        high = _mfma_side(self.side)
        along, across = (1, 0) if self.transposed else (0, 1)
        lanes = [_unit(2, across, 1 << bit) for bit in range(high)]
        far = [_unit(2, along, 1 << bit) for bit in range(2, high)]
        bases: _Bases = {
            "register": [_unit(2, along, 1), _unit(2, along, 2), *far[6 - high :]],
            "lane": [*lanes, *far[: 6 - high]],
            "warp": _warps(self.warps, (self.side, self.side), (1, 0)),
        }
        return _fitted(bases, shape, (1, 0), self)


@dataclass(frozen=True, kw_only=True)
class MfmaOperand:
    """An operand of AMD's mfma: 64 lanes, ``width`` elements along the inner dimension in a lane.

    Attributes
    ----------
    operand : int
        0 (left) or 1 (right).
    side : int
        Rows and columns of the instruction: 16 or 32.
    width : int
        Elements in a row along the inner dimension that a lane holds.
    warps : tuple of int
        Warps of the result along rows and columns.
    """

    operand: int
    side: int
    width: int
    warps: tuple[int, int]

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout; registers repeat it along the inner dimension first."""
        high, low = _mfma_side(self.side), log2_of(self.width, "mfma operand, width")
        inner, outer = _inner(self.operand)
        bases: _Bases = {
            "register": [_unit(2, inner, 1 << bit) for bit in range(low)],
            "lane": [_unit(2, outer, 1 << bit) for bit in range(high)]
            + [_unit(2, inner, self.width << bit) for bit in range(6 - high)],
            "warp": _shared_by(_warps(self.warps, (self.side, self.side), (1, 0)), inner),
        }
        return _fitted(bases, shape, (inner, outer), self)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What is left of a layout when one dimension has been reduced away.

    Attributes
    ----------
    parent : Encoding
    axis : int
        The dimension that is gone.
    """

    parent: Encoding
    axis: int

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout of the reduced shape; registers that would hold copies are left out."""
        whole = [*shape[: self.axis], 1, *shape[self.axis :]]
        if not 0 <= self.axis < len(whole):
            raise BadValueError(
                "There is no such dimension.", given=self.axis, allowed=f"0 to {len(shape)}", where="slice"
            )
        layout = self.parent.layout(whole)
        kept = [name for place, name in enumerate(layout.out_sizes) if place != self.axis]
        cut = layout.sublayout(list(layout.in_sizes), kept).without_broadcast("register")
        found = cut.renamed({name: f"dim{place}" for place, name in enumerate(kept)})
        found.origin = self
        return found


@dataclass(frozen=True, kw_only=True)
class SwizzledShared:
    """Shared memory, row by row, with groups of ``vector`` elements xor-ed by the row.

    Attributes
    ----------
    vector : int
        Elements that stay together.
    per_phase : int
        Rows that share one swizzle.
    max_phase : int
        Different swizzles; 1 for none.
    order : tuple of int
        Dimensions, fastest first.
    """

    vector: int
    per_phase: int
    max_phase: int
    order: tuple[int, ...]

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout from offsets (in elements) to the tensor."""
        for name in ("vector", "per_phase", "max_phase"):
            log2_of(getattr(self, name), f"swizzled, {name}")
        bits = _bits_of(shape, self.order, "swizzled")
        dims, columns = len(shape), shape[self.order[0]]
        bases = [_unit(dims, self.order[0], 1 << bit) for bit in range(bits[self.order[0]])]
        for number, dim in enumerate(self.order[1:]):
            for bit in range(bits[dim]):
                row = list(_unit(dims, dim, 1 << bit))
                if number == 0:
                    row[self.order[0]] = self.vector * (((1 << bit) // self.per_phase) % self.max_phase) % columns
                bases.append(tuple(row))
        return _memory(bases, shape, self)


@dataclass(frozen=True, kw_only=True)
class TileShared:
    """Shared memory as the tensor memory accelerator and wgmma want it: tiles of 8 rows, 16-byte groups xor-ed.

    Attributes
    ----------
    swizzle_bytes : int
        Width of a tile: 32, 64 or 128.
    element_bytes : int
    transposed : bool
        Whether columns are contiguous.
    """

    swizzle_bytes: int
    element_bytes: int
    transposed: bool = False

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout from offsets (in elements) to the tensor; tiles go down the rows first."""
        if self.swizzle_bytes not in (32, 64, 128):
            raise BadValueError("There is no such swizzle.", given=self.swizzle_bytes, allowed="32, 64 or 128")
        if self.element_bytes not in (1, 2, 4, 8, 16):
            raise BadValueError(
                "There are no elements of that size.",
                given=self.element_bytes,
                allowed="1, 2, 4, 8 or 16 bytes",
                where="tile",
            )
        slow, fast = (1, 0) if self.transposed else (0, 1)
        bits = _bits_of(shape, (fast, slow), "tile")
        width = log2_of(self.swizzle_bytes // self.element_bytes, "tile, elements a row")
        if bits[fast] < width or bits[slow] < 3:
            raise BadValueError(
                "The tensor is smaller than one tile.",
                given=tuple(shape),
                allowed=f"at least 8 rows of {1 << width} elements",
                where="tile",
            )
        group, share = 16 // self.element_bytes, 128 // self.swizzle_bytes
        bases = [_unit(2, fast, 1 << bit) for bit in range(width)]
        for bit in range(3):
            row = list(_unit(2, slow, 1 << bit))
            row[fast] = group * (((1 << bit) // share) % (8 // share))
            bases.append(tuple(row))
        bases += [_unit(2, slow, 1 << bit) for bit in range(3, bits[slow])]
        bases += [_unit(2, fast, 1 << bit) for bit in range(width, bits[fast])]
        return _memory(bases, shape, self)


@dataclass(frozen=True, kw_only=True)
class PaddedShared:
    """Shared memory, row by row, with a gap after every ``interval`` elements: not linear, so described in two steps.

    Attributes
    ----------
    order : tuple of int
        Dimensions, fastest first.
    """

    interval: int = setting(32, says="Elements between two gaps", low=1)
    padding: int = setting(1, says="Elements per gap", low=0)
    order: tuple[int, ...] = (1, 0)

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the linear part: offsets without gaps to the tensor."""
        if self.interval < 1 or self.padding < 0:
            raise BadValueError(
                "Gaps come after one element or more, and have none or more.",
                given=f"interval={self.interval}, padding={self.padding}",
                allowed="interval from 1, padding from 0",
                where="padded",
            )
        bits = _bits_of(shape, self.order, "padded")
        bases = [_unit(len(shape), dim, 1 << bit) for dim in self.order for bit in range(bits[dim])]
        return _memory(bases, shape, self)

    def places(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where offsets lie once the gaps are there, in elements."""
        return offsets + offsets // self.interval * self.padding


def _unit(dims: int, dim: int, value: int) -> tuple[int, ...]:
    return tuple(value if place == dim else 0 for place in range(dims))


def _inner(operand: int) -> tuple[int, int]:
    if operand not in (0, 1):
        raise BadValueError(
            "A product has two operands.", given=operand, allowed="0 (left) or 1 (right)", where="operand"
        )
    return (1, 0) if operand == 0 else (0, 1)


def _mfma_side(side: int) -> int:
    if side not in (16, 32):
        raise BadValueError("There is no such instruction.", given=side, allowed="16 or 32", where="mfma, side")
    return log2_of(side, "mfma, side")


def _warps(counts: Sequence[int], tile: Sequence[int], order: Sequence[int]) -> list[tuple[int, ...]]:
    return [
        _unit(len(tile), dim, tile[dim] << bit)
        for dim in order
        for bit in range(log2_of(counts[dim], f"warps of dimension {dim}"))
    ]


def _shared_by(bases: list[tuple[int, ...]], inner: int) -> list[tuple[int, ...]]:
    """Return warps' bases of an operand: along its inner dimension all warps hold the same."""
    return [(0,) * len(basis) if basis[inner] else basis for basis in bases]


def _bits_of(shape: Sequence[int], order: Sequence[int], where: str) -> list[int]:
    if sorted(order) != list(range(len(shape))):
        raise BadValueError(
            "The order names each dimension of the tensor once.",
            given=tuple(order),
            allowed=f"an order of 0 to {len(shape) - 1}",
            where=where,
        )
    return [log2_of(size, f"{where}, dimension {dim}") for dim, size in enumerate(shape)]


def _memory(bases: Sequence[tuple[int, ...]], shape: Sequence[int], origin: Encoding) -> Layout:
    layout = Layout({"offset": bases}, {f"dim{dim}": size for dim, size in enumerate(shape)})
    layout.origin = origin
    return layout


def _fitted(bases: _Bases, shape: Sequence[int], order: Sequence[int], origin: Encoding) -> Layout:
    """Return the layout of ``shape``: what lies beyond becomes copies, what is missing comes from more registers."""
    if len(shape) != len(order):
        raise BadValueError(
            "The layout is for tensors of another number of dimensions.",
            given=tuple(shape),
            allowed=f"{len(order)} dimensions",
            where=type(origin).__name__,
        )
    bits = [log2_of(size, f"dimension {dim}") for dim, size in enumerate(shape)]
    reached = [0] * len(shape)
    fitted: _Bases = {}
    for name, vectors in bases.items():
        fitted[name] = []
        for vector in vectors:
            fits = all(part >> bits[dim] == 0 for dim, part in enumerate(vector))
            fitted[name].append(vector if fits else (0,) * len(shape))
            for dim, part in enumerate(vector):
                reached[dim] = max(reached[dim], part.bit_length())
    for dim in order:
        fitted["register"] += [_unit(len(shape), dim, 1 << bit) for bit in range(reached[dim], bits[dim])]
    layout = Layout(fitted, {f"dim{dim}": size for dim, size in enumerate(shape)})
    layout.origin = origin
    return layout
