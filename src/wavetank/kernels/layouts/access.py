"""How warps go through shared memory: by vectors of their own registers, or by matrices that a warp moves together.

A layout's columns say where each bit of the register, lane and warp number leads. As offsets of a memory, they
say which words the lanes of one phase touch, so what an access costs (instructions, rows of banks) follows from ranks.

Source: the shared memory rules of the CUDA programming guide, and "Linear Layouts", arXiv 2505.23819, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import Span, independent, rank

VECTORS, MATRICES, TRANSPOSED = "vectors", "matrices", "transposed matrices"


class Banks(NamedTuple):
    """The figures of a shared memory that decide about conflicts.

    Attributes
    ----------
    banks : int
        Each of which serves one word per wavefront.
    word_bytes : int
        Width of a bank.
    vector_bytes : int
        The most that one lane moves with one instruction.
    matrix_loads, matrix_stores : bool
        Whether a warp can move 8 x 8 matrices together (ldmatrix, stmatrix); see
        :mod:`wavetank.kernels.layouts.matrices`.
    """

    banks: int = 32
    word_bytes: int = 4
    vector_bytes: int = 16
    matrix_loads: bool = True
    matrix_stores: bool = True


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
    way : str
        ``vectors``, ``matrices`` or ``transposed matrices``.
    order : tuple of int
        Of matrices: registers, as masks, in the order in which the instruction takes them; see
        :mod:`wavetank.kernels.layouts.matrices`.
    rows : tuple of int
        Of matrices: where the three bits of a matrix's row lead.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    vector_bits: int
    idle_lanes: int = 0
    idle_warps: int = 0
    way: str = VECTORS
    order: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

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
        if self.way != VECTORS:
            return 0
        within = (1 << self.vector_bits) - 1
        lanes = (column for bit, column in enumerate(self.lanes) if not self.idle_lanes >> bit & 1)
        warps = (column for bit, column in enumerate(self.warps) if not self.idle_warps >> bit & 1)
        depends = rank(column & within for column in (*lanes, *warps))
        return max((element_bytes << len(self.registers)) // 4, 1) * depends * self.warps_at_work

    def phases(self, element_bytes: int, banks: Banks) -> int:
        """Return the phases of all instructions: as many wavefronts are taken when no two lanes conflict."""
        if self.way != VECTORS:
            # One matrix: eight rows of 16 bytes.
            return self.warps_at_work * (element_bytes << len(self.registers)) // 4
        at_once = phase_lane_bits(self.vector_bits, element_bytes, banks)
        return self.instructions << (len(self.lanes[at_once:]) - (self.idle_lanes >> at_once).bit_count())

    def wavefronts(self, element_bytes: int, banks: Banks) -> int:
        """Return the rows of banks that all instructions take, from the ranks of two maps.

        Without padding: words touched in one phase spread evenly over the banks they touch.
        """
        word, row = word_bits(element_bytes, banks), row_bits(element_bytes, banks)
        if self.way == VECTORS:
            at_once = phase_lane_bits(self.vector_bits, element_bytes, banks)
            busy = (column for bit, column in enumerate(self.lanes[:at_once]) if not self.idle_lanes >> bit & 1)
            touched = [1 << bit for bit in range(word, self.vector_bits)] + [column >> word << word for column in busy]
        else:
            touched = [*(1 << bit for bit in range(word, row - len(self.rows))), *self.rows]
        spread = rank(column & ((1 << row) - 1) for column in touched)
        return self.phases(element_bytes, banks) << (rank(touched) - spread)


def phase_lane_bits(vector_bits: int, element_bytes: int, banks: Banks) -> int:
    """Return the binary logarithm of the lanes that are served together: together they fill one row of banks."""
    a_lane = max(element_bytes << vector_bits, banks.word_bytes)
    return max(banks.banks * banks.word_bytes // a_lane, 1).bit_length() - 1


def word_bits(element_bytes: int, banks: Banks) -> int:
    """Return the binary logarithm of the elements in one word of a bank."""
    return max(banks.word_bytes // element_bytes, 1).bit_length() - 1


def row_bits(element_bytes: int, banks: Banks) -> int:
    """Return the binary logarithm of the elements in one row of banks."""
    return max(banks.banks * banks.word_bytes // element_bytes, 1).bit_length() - 1


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
    return access_of(span, source, widths[0], storing=True), access_of(span, target, widths[1], storing=False)


def access_of(placement: Span, side: Spread, width: int, *, storing: bool) -> Access:
    """Return how one layout goes through a placement.

    Parameters
    ----------
    placement : Span
        Of where in the tensor each bit of the offset lies.
    side : Spread
    width : int
        Binary logarithm of the elements in a vector.
    storing : bool
        Whether copies are left out.
    """
    registers, lanes, warps = (
        tuple(placement.express(column) or 0 for column in columns)
        for columns in (side.registers, side.lanes, side.warps)
    )
    return Access(registers, lanes, warps, width, *((side.idle_lanes, side.idle_warps) if storing else (0, 0)))


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


def at_once(access: Access, element_bytes: int, banks: Banks) -> frozenset[int]:
    """Return the offsets that warp 0 touches in the first phase of its first instruction."""
    if access.way == VECTORS:
        at_work = [column for bit, column in enumerate(access.lanes) if not access.idle_lanes >> bit & 1]
        idle = access.idle_lanes & ((1 << phase_lane_bits(access.vector_bits, element_bytes, banks)) - 1)
        lanes = at_work[: phase_lane_bits(access.vector_bits, element_bytes, banks) - idle.bit_count()]
        within = access.vector_bits
    else:
        lanes, within = list(access.rows), row_bits(element_bytes, banks) - len(access.rows)
    found = [0]
    for column in (*(1 << bit for bit in range(within)), *lanes):
        found += [offset ^ column for offset in found]
    return frozenset(found)
