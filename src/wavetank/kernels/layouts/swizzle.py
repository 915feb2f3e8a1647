"""The placement in shared memory that serves two layouts at once without bank conflicts.

A placement is an ordered basis of the tensor's bits: first what lies within one vector, then within one row of
banks, then which row (the segment). Two lanes conflict when they differ in the segment alone, so the segment must
avoid the span of what the writing lanes touch in one phase, and the span of what the reading lanes touch; such a
space always exists, and sums of one vector from each side find it.

Source: "Linear Layouts", arXiv 2505.23819, section 5.4 (optimal swizzling).

Differs from the source:

1. Store and load may have different vector widths: after the registers that both layouts share, those of one side go
   on, whichever saves more instructions. ``common_only`` gives the paper's rule.
2. Where a warp can move matrices (ldmatrix, stmatrix), what one of their rows holds may come first too, and whichever
   placement takes the fewest wavefronts, then instructions, is kept.
3. Bits within a word that no register fills are given to lanes, so that no conflict is ever left on machines whose
   lanes of a phase fill one row of banks.
"""

from __future__ import annotations

from wavetank.kernels.layouts.access import (
    Access,
    Banks,
    Spread,
    accesses,
    phase_lane_bits,
    row_bits,
    vector_bits_of,
    word_bits,
)
from wavetank.kernels.layouts.bits import avoiding, beyond, intersection
from wavetank.kernels.layouts.matrices import cheapest, prefix_of, rows_of, ways_of


def place(
    source: Spread,
    target: Spread,
    dimension: int,
    element_bytes: int,
    banks: Banks = Banks(),  # noqa: B008  (immutable)
    *,
    common_only: bool = False,
) -> tuple[tuple[int, ...], Access, Access]:
    """Return the best placement and how each side goes through it.

    Parameters
    ----------
    source, target : Spread
        Who writes and who reads, in flat tensor bits.
    dimension : int
        Bits of the tensor.
    element_bytes : int
    banks : Banks
    common_only : bool
        Vectors only of registers that both sides hold together.

    Returns
    -------
    basis : tuple of int
        Where in the tensor each bit of the offset lies: vector, bank, segment.
    store, load : Access
    """
    widest = max(banks.vector_bytes // element_bytes, 1).bit_length() - 1
    common = intersection(source.registers, target.registers)[:widest]
    prefixes = [common]
    if not common_only and len(common) < widest:
        for side in (source, target):
            longer = [*common, *beyond(common, side.registers)[: widest - len(common)]]
            if len(longer) > len(common):
                prefixes.append(longer)
    found = None
    for prefix in prefixes:
        found = _better(found, prefix, (None, None), source, target, dimension, element_bytes, banks)
    if found is None or all(side.vector_bits == widest and not side.selects(element_bytes) for side in found[2:]):
        return found[1:] if found else ((), Access((), (), (), 0), Access((), (), (), 0))
    for storing, side in ((True, source), (False, target)):
        for way in ways_of(banks, storing):
            lines = prefix_of(way, side, common, element_bytes)
            if lines is not None and not (storing and side.idle_lanes):
                ways = (way, None) if storing else (None, way)
                found = _better(found, lines, ways, source, target, dimension, element_bytes, banks)
    return found[1:]


_Found = tuple[tuple[int, int], tuple[int, ...], Access, Access]


def _better(
    found: _Found | None,
    prefix: list[int],
    ways: tuple[str | None, str | None],
    source: Spread,
    target: Spread,
    dimension: int,
    element_bytes: int,
    banks: Banks,
) -> _Found:
    """Return the placement around a prefix, and how each side goes through it, or the one found before."""
    widths = vector_bits_of(prefix, source, len(prefix)), vector_bits_of(prefix, target, len(prefix))
    basis = _around(prefix, widths, ways, source, target, dimension, element_bytes, banks)
    store, load = accesses(basis, source, target, widths)
    store, one = cheapest(store, True, element_bytes, banks)
    load, other = cheapest(load, False, element_bytes, banks)
    cost = one[0] + other[0], one[1] + other[1]
    return (cost, basis, store, load) if found is None or cost < found[0] else found


def _around(
    prefix: list[int],
    widths: tuple[int, int],
    ways: tuple[str | None, str | None],
    source: Spread,
    target: Spread,
    dimension: int,
    element_bytes: int,
    banks: Banks,
) -> tuple[int, ...]:
    word, row = word_bits(element_bytes, banks), min(row_bits(element_bytes, banks), dimension)
    # A lane whose own offset lies within a vector would have its registers in another order than its neighbours, so
    # what lanes and warps differ in becomes bank and segment wherever there is a choice.
    movers = [*target.lanes, *source.lanes, *target.warps, *source.warps]
    units = [1 << bit for bit in range(dimension)]
    start = list(prefix)
    if len(start) < word:
        start += beyond(start, [*movers, *units])[: word - len(start)]
    touched = []
    for side, width, way in zip((source, target), widths, ways, strict=True):
        if way is None:
            lanes_now = side.lanes[: phase_lane_bits(width, element_bytes, banks)]
            touched.append(beyond([], [*lanes_now, *start[: max(word, width)]]))
        else:
            touched.append(beyond([], [*rows_of(way, side, prefix), *start]))
    segment = avoiding(touched[0], touched[1], dimension, dimension - row, prefer=movers)
    return (*start, *beyond([*start, *segment], [*movers, *units]), *segment)
