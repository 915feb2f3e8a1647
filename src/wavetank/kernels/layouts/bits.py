"""Vectors over the field of two elements, kept as whole numbers: addition is xor, a vector space is a list of ints.

Gaussian elimination on such lists is all that the algebra of layouts, the planner and the swizzle need.  Bit ``i`` of a
number is coordinate ``i``; spaces here have a dozen dimensions, so a Python int is one machine word and a dictionary
from leading bit to row is the fastest echelon form that needs no compiler.

Source: textbook linear algebra.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wavetank.errors import BadValueError


class Span:
    """The space that vectors span, in echelon form, remembering how each element is made of the vectors added.

    Parameters
    ----------
    vectors : iterable of int
        Added in this order; vectors that depend on earlier ones are counted but change nothing.
    """

    __slots__ = ("_added", "_rows")

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._rows: dict[int, tuple[int, int]] = {}
        self._added = 0
        for vector in vectors:
            self.add(vector)

    def __len__(self) -> int:
        """Return the dimension."""
        return len(self._rows)

    def __contains__(self, vector: int) -> bool:
        """Return whether the vector lies in the space."""
        rows = self._rows
        while vector:
            row = rows.get(vector.bit_length())
            if row is None:
                return False
            vector ^= row[0]
        return True

    def add(self, vector: int) -> bool:
        """Add a vector; return whether the space grew."""
        mask = 1 << self._added
        self._added += 1
        rows = self._rows
        while vector:
            lead = vector.bit_length()
            row = rows.get(lead)
            if row is None:
                rows[lead] = (vector, mask)
                return True
            vector ^= row[0]
            mask ^= row[1]
        return False

    def express(self, vector: int) -> int | None:
        """Return which of the vectors added sum to ``vector``, bit ``i`` for the i-th; None when none do.

        Only vectors that made the space grow are ever used, so what later ones could replace stays zero.
        """
        mask = 0
        rows = self._rows
        while vector:
            row = rows.get(vector.bit_length())
            if row is None:
                return None
            vector ^= row[0]
            mask ^= row[1]
        return mask


def rank(vectors: Iterable[int]) -> int:
    """Return the dimension of the space that the vectors span."""
    return len(_echelon(vectors))


def _echelon(vectors: Iterable[int]) -> dict[int, int]:
    """Return rows by their leading bits: a Span that does not remember how it came about, at half the time."""
    rows: dict[int, int] = {}
    for vector in vectors:
        while vector:
            lead = vector.bit_length()
            row = rows.get(lead)
            if row is None:
                rows[lead] = vector
                break
            vector ^= row
    return rows


def independent(vectors: Sequence[int]) -> list[int]:
    """Return the places of the vectors that do not depend on earlier ones."""
    span = Span()
    return [place for place, vector in enumerate(vectors) if span.add(vector)]


def intersection(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return a basis of the common part of two spaces; vectors of ``one`` that lie in both come first, in order."""
    first, second = [one[place] for place in independent(one)], Span(other)
    found, common = [], Span()
    for vector in first:
        if vector in second and common.add(vector):
            found.append(vector)
    both = Span(first)
    size = len(first)
    for vector in other:
        parts = both.express(vector)
        if parts is None:
            both.add(vector)
            first.append(vector)
            continue
        shared = combine(first[:size], parts & ((1 << size) - 1))
        if common.add(shared):
            found.append(shared)
    return found


def combine(vectors: Sequence[int], mask: int) -> int:
    """Return the sum of the vectors whose bit of ``mask`` is set."""
    total = 0
    while mask:
        low = mask & -mask
        total ^= vectors[low.bit_length() - 1]
        mask ^= low
    return total


def completion(vectors: Iterable[int], dimension: int) -> list[int]:
    """Return the unit vectors, low bits first, that complete the vectors' span to the whole space."""
    span = Span(vectors)
    return [1 << bit for bit in range(dimension) if span.add(1 << bit)]


def avoiding(
    one: Sequence[int], other: Sequence[int], dimension: int, count: int, prefer: Iterable[int] = ()
) -> list[int]:
    """Return ``count`` vectors whose span meets neither of two spaces outside zero.

    What lies outside both comes first, preferred vectors before unit vectors; then sums of one vector that only the
    first space has and one that only the second has, in the order given.  There are ``dimension - max(dim one, dim
    other)`` such vectors, and never more.

    Raises
    ------
    BadValueError
        When fewer than ``count`` exist.
    """
    units = (1 << bit for bit in range(dimension))
    found = beyond([*one, *other], [*prefer, *units])
    if len(found) < count:
        common = intersection(one, other)
        found += [a ^ b for a, b in zip(beyond(common, one), beyond(common, other), strict=False)]
    if len(found) < count:
        raise BadValueError(
            "No space of that dimension avoids both.", given=count, allowed=f"at most {len(found)}", where="count"
        )
    return found[:count]


def beyond(known: Iterable[int], vectors: Iterable[int]) -> list[int]:
    """Return the vectors that do not depend on the known ones and earlier vectors."""
    rows = _echelon(known)
    found = []
    for vector in vectors:
        rest = vector
        while rest:
            lead = rest.bit_length()
            row = rows.get(lead)
            if row is None:
                rows[lead] = rest
                found.append(vector)
                break
            rest ^= row
    return found


def log2_of(size: object, what: str) -> int:
    """Return the exponent of a power of two.

    Raises
    ------
    BadValueError
        For anything that is no power of two, with the nearest ones.
    """
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise BadValueError("A size must be a whole number.", given=size, where=what)
    number = size.__index__()
    if number < 1 or number & (number - 1):
        below = 1 << max(number.bit_length() - 1, 0) if number > 0 else 1
        raise BadValueError(
            "A size in a linear layout must be a power of two.",
            given=number,
            allowed="1, 2, 4, 8, ...",
            nearest=f"{below} or {2 * below}" if number > 1 else "1",
            where=what,
            hint="pad the tensor to the next power of two",
        )
    return number.bit_length() - 1
