"""The shortest slice of small buckets, found by trying everything: what a planner is held against."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from wavetank.errors import BadValueError
from wavetank.training.layouts.interface import Tensor, check_bucket

_MOST_ELEMENTS = 200
_MOST_TENSORS = 7


def shortest_slice(tensors: Sequence[Tensor], ranks: int, *, unit: int = 1, any_order: bool = False) -> int:
    """Return the elements of the shortest slice for which some places of all tensors cut no block.

    Parameters
    ----------
    tensors : sequence of Tensor
        At most 7 with 200 elements together.
    ranks : int
    unit : int
        Of which a slice has a whole number.
    any_order : bool
        Whether tensors may lie in any order; else in the given one.

    Raises
    ------
    BadValueError
        If there is more to try than takes a moment.
    """
    check_bucket(tensors, ranks)
    total = sum(each.size for each in tensors)
    if total > _MOST_ELEMENTS or len(tensors) > _MOST_TENSORS:
        raise BadValueError("Trying everything is for small buckets.", given=f"{len(tensors)} with {total} elements",
                            allowed=f"{_MOST_TENSORS} tensors and {_MOST_ELEMENTS} elements")  # fmt: skip
    orders = set(itertools.permutations((each.size, each.block) for each in tensors)) if any_order else {
        tuple((each.size, each.block) for each in tensors)
    }  # fmt: skip
    length = unit
    while not any(_fits(order, ranks, length) for order in orders):
        length += unit
    return length


def _fits(order: tuple[tuple[int, int], ...], ranks: int, length: int) -> bool:
    """Return whether any choice of places is one, from the set of all elements at which each tensor may begin."""
    may_begin = set(range(ranks * length + 1))
    for size, block in order:
        ends = {
            begin + size
            for begin in may_begin
            if begin + size <= ranks * length
            and all(
                (cut - begin) % block == 0 for cut in range(0, ranks * length, length) if begin < cut < begin + size
            )
        }
        if not ends:
            return False
        may_begin = {at for at in range(ranks * length + 1) if any(end <= at for end in ends)}
    return True
