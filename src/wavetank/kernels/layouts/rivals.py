"""How layouts were converted before: always through shared memory, laid out by one simple rule.

Row by row as it comes; with a gap after each row; with groups of elements xor-ed by the row, as libraries for matrix
products do it; and the collection of rules for pairs of layout families that a compiler without the algebra has.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.kernels.layouts.access import VECTORS, Banks
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.conversion import (
    NOTHING,
    Plan,
    ThroughShared,
    UnsupportedPairError,
    checked_pair,
    through_shared,
)
from wavetank.kernels.layouts.families import Blocked, MmaOperand, MmaResult, PaddedShared, Slice, SwizzledShared
from wavetank.kernels.layouts.gather import GatherPlan, through_memory
from wavetank.kernels.layouts.matrices import ROW_BYTES


@dataclass(frozen=True, kw_only=True)
class UnswizzledShared:
    """Through shared memory, row by row, always."""

    def plan(self, source: Layout, target: Layout, element_bytes: int = 4, banks: Banks | None = None) -> Plan:
        """Return the plan; vectors are as wide as rows and registers allow."""
        return _by_rows(source, target, element_bytes, banks or Banks(), None)

    def plan_gather(
        self, source: Layout, index: Layout, axis: str, element_bytes: int = 4, banks: Banks | None = None
    ) -> GatherPlan:
        """Return the plan of a gather: stored row by row, loaded element by element."""
        return through_memory(source, index, axis, element_bytes, _rows_of(source), None, banks or Banks())


@dataclass(frozen=True, kw_only=True)
class PaddedRows:
    """Through shared memory with a gap after each row, as wide as the widest vector of either side."""

    def plan(self, source: Layout, target: Layout, element_bytes: int = 4, banks: Banks | None = None) -> Plan:
        """Return the plan; the gap keeps vectors and matrices aligned and is at least one word."""
        banks = banks or Banks()
        target = checked_pair(source, target, element_bytes, banks)
        row = _sizes(source)[-1] if source.out_sizes else 1
        gap = max(_vector(source, element_bytes, banks), _vector(target, element_bytes, banks))
        least = max(gap, banks.word_bytes // element_bytes, 1)
        plan = _by_rows(source, target, element_bytes, banks, PaddedShared(interval=row, padding=least))
        if least * element_bytes < ROW_BYTES:
            # The usual gap where matrix instructions are used: they want rows of 16 bytes aligned.
            wider = PaddedShared(interval=row, padding=ROW_BYTES // element_bytes)
            other = _by_rows(source, target, element_bytes, banks, wider)
            if isinstance(other.step, ThroughShared) and (other.step.store.way, other.step.load.way) != (
                VECTORS,
                VECTORS,
            ):
                return other
        return plan

    def plan_gather(
        self, source: Layout, index: Layout, axis: str, element_bytes: int = 4, banks: Banks | None = None
    ) -> GatherPlan:
        """Return the plan of a gather: stored row by row with gaps, loaded element by element."""
        banks = banks or Banks()
        row = _sizes(source)[-1] if source.out_sizes else 1
        gap = max(_vector(source, element_bytes, banks), banks.word_bytes // element_bytes, 1)
        padding = PaddedShared(interval=row, padding=gap)
        return through_memory(source, index, axis, element_bytes, _rows_of(source), padding, banks)


@dataclass(frozen=True, kw_only=True)
class XorSwizzle:
    """Through shared memory with vectors xor-ed by the row, the swizzle that matrix products use."""

    def plan(self, source: Layout, target: Layout, element_bytes: int = 4, banks: Banks | None = None) -> Plan:
        """Return the plan; as many rows share a swizzle as fit into one row of banks."""
        banks = banks or Banks()
        target = checked_pair(source, target, element_bytes, banks)
        shape = _sizes(source)
        if len(shape) < 2:
            return _by_rows(source, target, element_bytes, banks, None)
        vector = max(_vector(source, element_bytes, banks), _vector(target, element_bytes, banks))
        swizzled = classic_swizzle(shape, vector, element_bytes, banks)
        return through_shared(source, target, element_bytes, _named(swizzled.layout(shape), source), None, banks)


@dataclass(frozen=True, kw_only=True)
class PairRules:
    """One rule for each pair of families that has one; all other pairs are refused.

    Blocked layouts, slices of them and results of matrix products go to each other through padded memory, and to
    operands through swizzled memory.  Operands as sources, slices of fragments, other vendors' fragments and
    whatever a shape operator made have no rule.
    """

    def plan(self, source: Layout, target: Layout, element_bytes: int = 4, banks: Banks | None = None) -> Plan:
        """Return the rule's plan.

        Raises
        ------
        UnsupportedPairError
            Where there is no rule.
        """
        banks = banks or Banks()
        found = checked_pair(source, target, element_bytes, banks)
        if source == found:
            return Plan(kind=NOTHING, source=source, target=found, element_bytes=element_bytes, banks=banks, step=None)
        if _is_plain(source.origin) and _is_plain(target.origin):
            return PaddedRows().plan(source, target, element_bytes, banks)
        # A lane's share of an operand is one word; wider shares came with mixed precision.
        ordinary = isinstance(target.origin, MmaOperand) and target.origin.width * element_bytes == banks.word_bytes
        if _is_plain(source.origin) and ordinary:
            return XorSwizzle().plan(source, target, element_bytes, banks)
        raise UnsupportedPairError(
            "There is no rule for this pair of layouts.",
            given=f"{_family(source)} to {_family(target)}",
            allowed="blocked, slices of blocked and mma results to each other or to 4-byte mma operands",
            where="pair rules",
            hint="the linear planner converts any pair",
        )


def classic_swizzle(
    shape: tuple[int, ...], vector: int, element_bytes: int, banks: Banks | None = None
) -> SwizzledShared:
    """Return the numbers of the classic swizzle: rows that fill one row of banks together share a phase.

    Parameters
    ----------
    shape : tuple of int
        Of the tensor, last dimension fastest.
    vector : int
        Elements that stay together.
    element_bytes : int
    banks : Banks, optional
    """
    banks = banks or Banks()
    columns, row_bytes = shape[-1], banks.banks * banks.word_bytes
    per_phase = max(row_bytes // (columns * element_bytes), 1)
    groups = max(min(row_bytes // element_bytes, columns * per_phase) // vector, 1)
    order = tuple(reversed(range(len(shape))))
    return SwizzledShared(vector=vector, per_phase=per_phase, max_phase=max(groups // per_phase, 1), order=order)


def _is_plain(origin: object) -> bool:
    if isinstance(origin, Slice):
        return isinstance(origin.parent, Blocked)
    return isinstance(origin, Blocked | MmaResult)


def _family(layout: Layout) -> str:
    return "a layout of no family" if layout.origin is None else type(layout.origin).__name__


def _sizes(layout: Layout) -> tuple[int, ...]:
    return tuple(layout.out_sizes.values())


def _vector(layout: Layout, element_bytes: int, banks: Banks) -> int:
    return min(layout.vector_width(), banks.vector_bytes // element_bytes)


def _named(memory: Layout, tensor: Layout) -> Layout:
    return memory.renamed(dict(zip(memory.out_sizes, tensor.out_sizes, strict=True)))


def _rows_of(tensor: Layout) -> Layout:
    order = tuple(reversed(range(len(tensor.out_sizes))))
    return _named(PaddedShared(interval=1, padding=0, order=order).layout(_sizes(tensor)), tensor)


def _by_rows(source: Layout, target: Layout, element_bytes: int, banks: Banks, padding: PaddedShared | None) -> Plan:
    return through_shared(source, target, element_bytes, _rows_of(source), padding, banks)
