"""Instructions by which a warp moves 8 x 8 matrices of 16-bit numbers between registers and shared memory.

Lane l of 32 gives where row l mod 8 of matrix l / 8 begins: 16 bytes in a row. Loading, lane t gets word t mod 4 of row
t / 4 of each matrix; transposed, it gets the 16-bit numbers of column t / 4 in rows 2 (t mod 4) and the next. Storing
is the same backwards. Which bits lead to the 16 bytes is fixed and all else is free, so an access can go this way when
its layout, from registers and lanes to offsets, is divisible on the left by the instruction's tile.

Source: ldmatrix and stmatrix in the manual of PTX; the division test is that of "Linear Layouts", arXiv 2505.23819,
section 5.

Differs from the source:

1. Registers are renamed freely, also to sums; of the registers left, the one that meets the fewest banks twice becomes
   the low bit of a transposed matrix's row.
2. One, two or four matrices an instruction follow from the registers that a lane has; matrices whose lanes hold copies
   of each other are loaded but not stored.
"""

from __future__ import annotations

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.access import MATRICES, TRANSPOSED, Access, Banks, Spread, row_bits
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import Span, beyond, combine, rank

ROWS, ROW_BYTES, WORD_BYTES, NUMBER_BYTES = 8, 16, 4, 2
LANES, MOST_MATRICES = 32, 4
_LANE_BITS = 5
# Which lane bits lead within a row, and which from row to row.
_INNER = {MATRICES: (0, 1), TRANSPOSED: (2, 3, 4)}
_OUTER = {MATRICES: (2, 3, 4), TRANSPOSED: (0, 1)}


def unit_bits(way: str, element_bytes: int) -> int | None:
    """Return the binary logarithm of a lane's elements that lie in a row in memory, or None for elements too large.

    Parameters
    ----------
    way : str
        ``matrices`` or ``transposed matrices``.
    element_bytes : int
    """
    size = WORD_BYTES if way == MATRICES else NUMBER_BYTES
    return (size // element_bytes).bit_length() - 1 if element_bytes <= size else None


def tile_of(way: str, element_bytes: int) -> Layout:
    """Return the part of the instruction that is fixed, from registers and lanes to offsets within 16 bytes.

    The lanes are those whose bits :func:`tile_order` names first.

    Raises
    ------
    BadValueError
        For elements that the instruction cannot move.
    """
    unit = unit_bits(way, element_bytes)
    if unit is None:
        raise BadValueError(
            "The instruction moves no elements of that size.",
            given=element_bytes,
            allowed="1, 2 or 4 bytes" if way == MATRICES else "1 or 2 bytes",
            where=way,
        )
    registers = Layout.identity(1 << unit, "register", "offset")
    return registers * Layout.identity(1 << len(_INNER[way]), "lane", "offset")


def tile_order(way: str) -> tuple[int, ...]:
    """Return the bits of a lane's number: those that the tile fixes, then the others."""
    return (*_INNER[way], *_OUTER[way])


def prefix_of(way: str, side: Spread, preferred: list[int], element_bytes: int) -> list[int] | None:
    """Return which tensor bits must lie within 16 bytes for one side to move matrices, or None when it cannot.

    Parameters
    ----------
    way : str
    side : Spread
    preferred : list of int
        Which of the side's registers to take first.
    element_bytes : int
    """
    unit = unit_bits(way, element_bytes)
    rows = 0 if way == MATRICES else 1
    if unit is None or len(side.lanes) != _LANE_BITS or len(side.registers) < unit + rows:
        return None
    inner = [side.lanes[bit] for bit in _INNER[way]]
    registers = beyond([], [*preferred, *side.registers])[:unit]
    found = [*registers, *inner]
    return found if rank(found) == len(found) else None


def rows_of(way: str, side: Spread, prefix: list[int]) -> list[int]:
    """Return the tensor bits by which the rows of one matrix differ, given what lies within a row."""
    lanes = [side.lanes[bit] for bit in _OUTER[way]]
    if way == MATRICES:
        return lanes
    return [*beyond([*prefix, *lanes], side.registers)[:1], *lanes]


def cheapest(
    access: Access, storing: bool, element_bytes: int, banks: Banks, *, conflicts: bool = True
) -> tuple[Access, tuple[int, int]]:
    """Return the access as it is, or by matrices where that takes fewer wavefronts, or as many and fewer instructions.

    Parameters
    ----------
    access : Access
        By vectors.
    storing : bool
    element_bytes : int
    banks : Banks
    conflicts : bool
        Whether ranks determine the conflicts; if not (padded memory), none are assumed.

    Returns
    -------
    access : Access
    cost : tuple of int
        Wavefronts, and instructions with selects.
    """
    found, cost = access, _cost(access, element_bytes, banks, conflicts)
    for way in (MATRICES, TRANSPOSED):
        other = by_matrices(access, way, storing, element_bytes, banks)
        if other is not None:
            other_cost = _cost(other, element_bytes, banks, conflicts)
            if other_cost < cost:
                found, cost = other, other_cost
    return found, cost


def by_matrices(access: Access, way: str, storing: bool, element_bytes: int, banks: Banks) -> Access | None:
    """Return the access by matrices, or None when the instruction does not fit.

    It fits when the low offsets are the tile's and nothing else touches them: what
    ``layout.divide_left(tile_of(way, element_bytes))`` asks, with registers renamed to that end.

    Parameters
    ----------
    access : Access
    way : str
        ``matrices`` or ``transposed matrices``.
    storing : bool
    element_bytes : int
    banks : Banks
    """
    if not (banks.matrix_stores if storing else banks.matrix_loads) or not _has_rows(banks):
        return None
    unit = unit_bits(way, element_bytes)
    if unit is None or len(access.lanes) != _LANE_BITS or (storing and access.idle_lanes):
        return None
    low = unit + len(_INNER[way])
    within = (1 << low) - 1
    if any(access.lanes[bit] != 1 << unit + place for place, bit in enumerate(_INNER[way])):
        return None
    lanes = tuple(access.lanes[bit] for bit in _OUTER[way])
    if any(column & within for column in (*lanes, *access.warps)):
        return None
    span = Span(access.registers)
    units = [span.express(1 << bit) for bit in range(unit)]
    if None in units:
        return None
    order = [mask for mask in units if mask is not None]
    others: list[int] = []
    for mask in beyond(order, [1 << bit for bit in range(len(access.registers))]):
        column = combine(access.registers, mask)
        if column & within >> unit << unit:
            return None
        others.append(mask ^ combine(order, column & within))
    rows = lanes
    if way == TRANSPOSED:
        if not others:
            return None
        # The row's low bit is a register: the first one with which the fewest rows meet.
        row = row_bits(element_bytes, banks)
        best = max(
            others, key=lambda mask: rank(c & ((1 << row) - 1) for c in (combine(access.registers, mask), *lanes))
        )
        others.remove(best)
        order.append(best)
        rows = (combine(access.registers, best), *lanes)
    moved = min(len(access.registers), (ROW_BYTES // element_bytes).bit_length() - 1)
    return access._replace(vector_bits=moved, way=way, order=(*order, *others), rows=rows)


def _has_rows(banks: Banks) -> bool:
    whole = banks.banks * banks.word_bytes == ROWS * ROW_BYTES
    return whole and banks.word_bytes == WORD_BYTES and banks.vector_bytes >= ROW_BYTES


def _cost(access: Access, element_bytes: int, banks: Banks, conflicts: bool) -> tuple[int, int]:
    wavefronts = access.wavefronts(element_bytes, banks) if conflicts else access.phases(element_bytes, banks)
    return wavefronts, access.instructions + access.selects(element_bytes)


def ways_of(banks: Banks, storing: bool) -> tuple[str, ...]:
    """Return the ways other than vectors that a machine has."""
    has = banks.matrix_stores if storing else banks.matrix_loads
    return (MATRICES, TRANSPOSED) if has and _has_rows(banks) else ()
