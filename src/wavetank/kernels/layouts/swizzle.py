"""The placement in shared memory that serves two layouts at once without bank conflicts.

A placement is an ordered basis of the tensor's bits: first what lies within one vector, then within one row of
banks, then which row (the segment). Two lanes conflict when they differ in the segment alone, so the segment must
avoid the span of what the writing lanes touch in one phase, and the span of what the reading lanes touch; such a
space always exists, and sums of one vector from each side find it.

Source: "Linear Layouts", arXiv 2505.23819, section 5.4 (optimal swizzling).

Differs from the source:

1. Store and load may have different vector widths: after the registers that both layouts share, those of one side go
   on, whichever saves more instructions. ``common_only`` gives the paper's rule.
2. Bits within a word that no register fills are given to lanes, so that no conflict is ever left on machines whose
   lanes of a phase fill one row of banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import Span, avoiding, beyond, independent, intersection


class Banks(NamedTuple):
    """The figures of a shared memory that decide about conflicts.

    Attributes
    ----------
    banks : int
        Each of which serves one word a wavefront.
    word_bytes : int
        Width of a bank.
    vector_bytes : int
        The most that one lane moves with one instruction.
    """

    banks: int = 32
    word_bytes: int = 4
    vector_bytes: int = 16


class Spread(NamedTuple):
    """Flat columns of a layout by who holds them.

    Attributes
    ----------
    registers : tuple of int
        Without copies: independent ones only.
    lanes, warps : tuple of int
        All, in order.
    kept : tuple of int
        Which register bits ``registers`` are.
    idle_lanes, idle_warps : int
        Bits that lead to copies of what others hold: a store leaves them out.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    kept: tuple[int, ...]
    idle_lanes: int
    idle_warps: int


def spread_of(layout: Layout) -> Spread:
    """Return the columns of a layout of registers, lanes and warps; a dimension it lacks has none."""
    registers, lanes, warps = (layout.columns_of(name) for name in ("register", "lane", "warp"))
    kept = tuple(independent(registers))
    span = Span(registers)
    idle = [0, 0]
    for side, columns in enumerate((lanes, warps)):
        for bit, column in enumerate(columns):
            if not span.add(column):
                idle[side] |= 1 << bit
    return Spread(tuple(registers[bit] for bit in kept), lanes, warps, kept, idle[0], idle[1])


class Access(NamedTuple):
    """One side of a trip through shared memory, in offsets of elements.

    Attributes
    ----------
    registers, lanes, warps : tuple of int
        Where each bit leads; registers without copies.
    vector_bits : int
        Binary logarithm of the elements that a lane moves with one instruction.
    idle_lanes, idle_warps : int
        Bits that must be zero for a lane or warp to take part.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    vector_bits: int
    idle_lanes: int = 0
    idle_warps: int = 0

    @property
    def warps_at_work(self) -> int:
        """Return how many warps take part."""
        return 1 << (len(self.warps) - self.idle_warps.bit_count())

    @property
    def instructions(self) -> int:
        """Return the instructions of all warps."""
        return (1 << (len(self.registers) - self.vector_bits)) * self.warps_at_work

    def selects(self, element_bytes: int) -> int:
        """Return the word moves of all warps that put registers into the order of the vector, lane by lane."""
        within = (1 << self.vector_bits) - 1
        lanes = (column for bit, column in enumerate(self.lanes) if not self.idle_lanes >> bit & 1)
        warps = (column for bit, column in enumerate(self.warps) if not self.idle_warps >> bit & 1)
        depends = len(Span(column & within for column in (*lanes, *warps)))
        return max((element_bytes << len(self.registers)) // 4, 1) * depends * self.warps_at_work

    def wavefronts(self, element_bytes: int, banks: Banks) -> int:
        """Return the rows of banks that all instructions take, from the ranks of two maps.

        Without padding: words touched in one phase spread evenly over the banks they touch.
        """
        phase_bits = phase_lane_bits(self.vector_bits, element_bytes, banks)
        word, row = _word_bits(element_bytes, banks), _row_bits(element_bytes, banks)
        busy = [column for bit, column in enumerate(self.lanes) if not self.idle_lanes >> bit & 1]
        now = [column for bit, column in enumerate(self.lanes[:phase_bits]) if not self.idle_lanes >> bit & 1]
        touched = [1 << bit for bit in range(word, self.vector_bits)] + [column >> word << word for column in now]
        words = len(Span(touched))
        spread = len(Span(column & ((1 << row) - 1) for column in touched))
        phases = 1 << (len(busy) - len(now))
        return self.instructions * phases << (words - spread)


def phase_lane_bits(vector_bits: int, element_bytes: int, banks: Banks) -> int:
    """Return the binary logarithm of the lanes that are served together: together they fill one row of banks."""
    a_lane = max(element_bytes << vector_bits, banks.word_bytes)
    return max(banks.banks * banks.word_bytes // a_lane, 1).bit_length() - 1


def _word_bits(element_bytes: int, banks: Banks) -> int:
    return max(banks.word_bytes // element_bytes, 1).bit_length() - 1


def _row_bits(element_bytes: int, banks: Banks) -> int:
    return max(banks.banks * banks.word_bytes // element_bytes, 1).bit_length() - 1


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
        widths = vector_bits_of(prefix, source, len(prefix)), vector_bits_of(prefix, target, len(prefix))
        basis = _around(prefix, widths, source, target, dimension, element_bytes, banks)
        store, load = accesses(basis, source, target, widths)
        both = (store, load)
        cost = (
            sum(side.wavefronts(element_bytes, banks) for side in both),
            sum(side.instructions + side.selects(element_bytes) for side in both),
        )
        if found is None or cost < found[0]:
            found = cost, basis, store, load
    return found[1:] if found else ((), Access((), (), (), 0), Access((), (), (), 0))


def accesses(basis: Sequence[int], source: Spread, target: Spread, widths: tuple[int, int]) -> tuple[Access, Access]:
    """Return how two layouts write and read a placement.

    Parameters
    ----------
    basis : sequence of int
        Where in the tensor each bit of the offset lies.
    source, target : Spread
    widths : tuple of int
        Binary logarithms of the elements in a vector, writing and reading; see :func:`vector_bits_of`.
    """
    span = Span(basis)
    found = []
    for side, storing, width in ((source, True, widths[0]), (target, False, widths[1])):
        registers, lanes, warps = (
            tuple(span.express(column) or 0 for column in columns)
            for columns in (side.registers, side.lanes, side.warps)
        )
        idle = (side.idle_lanes, side.idle_warps) if storing else (0, 0)
        found.append(Access(registers, lanes, warps, width, *idle))
    return found[0], found[1]


def _around(
    prefix: Sequence[int],
    widths: tuple[int, int],
    source: Spread,
    target: Spread,
    dimension: int,
    element_bytes: int,
    banks: Banks,
) -> tuple[int, ...]:
    word, row = _word_bits(element_bytes, banks), min(_row_bits(element_bytes, banks), dimension)
    # A lane whose own offset lies within a vector would have its registers in another order than its neighbours, so
    # what lanes and warps differ in becomes bank and segment wherever there is a choice.
    movers = [*target.lanes, *source.lanes, *target.warps, *source.warps]
    units = [1 << bit for bit in range(dimension)]
    start = list(prefix)
    if len(start) < word:
        start += beyond(start, [*movers, *units])[: word - len(start)]
    touched = []
    for side, width in zip((source, target), widths, strict=True):
        lanes_now = side.lanes[: phase_lane_bits(width, element_bytes, banks)]
        touched.append(beyond([], [*lanes_now, *start[: max(word, width)]]))
    segment = avoiding(touched[0], touched[1], dimension, dimension - row, prefer=movers)
    return (*start, *beyond([*start, *segment], [*movers, *units]), *segment)


def vector_bits_of(basis: Sequence[int], side: Spread, most: int) -> int:
    """Return the binary logarithm of the elements in a row of a placement that a thread's registers hold.

    Parameters
    ----------
    basis : sequence of int
        Where in the tensor each bit of the offset lies.
    side : Spread
    most : int
        The largest answer.
    """
    held = Span(side.registers)
    width = 0
    while width < min(most, len(basis)) and basis[width] in held:
        width += 1
    return width


def vector_registers(access: Access) -> tuple[int, ...]:
    """Return which registers, as masks over ``access.registers``, lie 1, 2, 4, ... apart in one vector."""
    span = Span(access.registers)
    return tuple(span.express(1 << bit) or 0 for bit in range(access.vector_bits))
