"""veScale-FSDP: one buffer with equal slices, in which every tensor lies in one piece and no cut falls into a block.

Padding stands between tensors alone, so that what is gathered needs no copy: a parameter is a view of the buffer.  For
a given order of tensors and a given slice the earliest possible place of each is the best one for all that follow, so
that one walk says whether a slice is long enough.  Longer slices are not always better, for cuts move with them: those
worth trying are tried from the shortest on.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.compiled import compiled
from wavetank.training.layouts.interface import Footprint, Ints, Layout, Tensor, check_bucket

ORDERS = ("default", "block", "size", "fill")
_MOST_UNIT = 1 << 30
_MOST_INT = 1 << 62
_MOST_TRIED = 1 << 27


def plan_layout(tensors: Sequence[Tensor], ranks: int, *, unit: int = 1, order: str = "default") -> Layout:
    """Return the layout with the shortest slices that cut no block, for one order of tensors.

    Parameters
    ----------
    tensors : sequence of Tensor
    ranks : int
        Slices of the buffer.
    unit : int
        Of which a slice has a whole number, in elements.
    order : str
        ``default`` keeps the order of the tensors, ``block`` and ``size`` put those with the largest first, ``fill``
        puts behind each tensor those that fit into the rest of its last block, ``best`` is the order of these four
        with the shortest slices.

    Returns
    -------
    Layout
        Its tensors are in the order of ``tensors``.

    Raises
    ------
    BadValueError
        For no tensors, another order, numbers out of range, and more lengths to try than take seconds.

    References
    ----------
    veScale-FSDP, arXiv 2602.22437, algorithm 1.
    """
    check_bucket(tensors, ranks)
    if isinstance(unit, bool) or not isinstance(unit, int | np.integer) or not 1 <= unit <= _MOST_UNIT:
        raise BadValueError("There is no such unit of a slice.", given=unit, allowed=f"1 to {_MOST_UNIT} elements")
    if order not in (*ORDERS, "best"):
        raise BadValueError("There is no such order of tensors.", given=order, allowed=(*ORDERS, "best"))
    found: Layout | None = None
    for each in ORDERS if order == "best" else (order,):
        layout = _planned(tensors, int(ranks), int(unit), each, found.slice_elements - 1 if found else None)
        found = layout or found
    if found is None:
        # One slice that holds everything is always a layout, and within the limit of the search.
        raise BadValueError("No slice holds these tensors.", given=f"{len(tensors)} tensors on {ranks} ranks")
    return found


def _planned(tensors: Sequence[Tensor], ranks: int, unit: int, order: str, most: int | None) -> Layout | None:
    keys = _ordered(tensors, order)
    sizes = np.array([tensors[i].size for i in keys], np.int64)
    blocks = np.minimum([tensors[i].block for i in keys], sizes)
    total = int(sizes.sum())
    limit = -(-total // unit) * unit if most is None else most
    at = np.zeros(sizes.size, np.int64)
    # A slice shorter than a block would cut it wherever it lies.
    low = _least_slice(sizes, blocks, ranks, max(-(-total // ranks), int(blocks.max())), total)
    # A tensor of more than two slices has two cuts inside, wherever it lies, and a slice must then be whole blocks.
    order_of_sizes = np.argsort(sizes, kind="stable")
    for place in range(sizes.size + 1):
        last = min(limit, (int(sizes[order_of_sizes[place]]) - 1) // 2 if place < sizes.size else limit)
        if last < low:
            continue
        step = math.lcm(unit, *{int(blocks[i]) for i in order_of_sizes[place:]})
        first = -(-low // step) * step
        if first <= last:
            tried = min(last, first + _MOST_TRIED * step)
            found = _first_slice(sizes, blocks, min(ranks, _MOST_INT // last), first, tried, step, total, at)
            if found:
                offsets = np.zeros(sizes.size, np.int64)
                offsets[keys] = at
                return Layout(
                    tensors=tuple(tensors), ranks=ranks, slice_elements=int(found), offsets=tuple(offsets.tolist())
                )
            if tried < last:
                raise BadValueError("Too many lengths of slices would be tried.", given=f"{first} to {last} by {step}",
                                    allowed=f"{_MOST_TRIED} lengths", hint="name a larger unit")  # fmt: skip
        low = last + 1
    return None


def _ordered(tensors: Sequence[Tensor], order: str) -> list[int]:
    places = range(len(tensors))
    if order == "default":
        return list(places)
    if order == "block":
        return sorted(places, key=lambda i: (-tensors[i].block, i))
    largest_first = sorted(places, key=lambda i: (-tensors[i].size, i))
    if order == "size":
        return largest_first
    cell = math.lcm(*(each.block for each in tensors if each.size > each.block))
    cell *= max(-(-each.size // cell) if each.size <= each.block else 1 for each in tensors)
    rows: list[list[int]] = []
    # Rows by what is left of their last cell, the smallest rest first.
    rests: list[tuple[int, int]] = []
    for i in largest_first:
        size = tensors[i].size
        at = bisect.bisect_left(rests, (size, -1)) if size < cell else len(rests)
        if at < len(rests):
            rest, row = rests.pop(at)
            rows[row].append(i)
            bisect.insort(rests, (rest - size, row))
        else:
            bisect.insort(rests, (-size % cell, len(rows)))
            rows.append([i])
    return [i for row in rows for i in row]


@compiled
def _least_slice(sizes, blocks, ranks, low, high):  # type: ignore[no-untyped-def]
    """Return the shortest slice if tensors could have gaps between their blocks: then longer ones are never worse."""
    while low < high:
        middle = (low + high) // 2
        if _holds_blocks(sizes, blocks, ranks, middle):
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _holds_blocks(sizes, blocks, ranks, length):  # type: ignore[no-untyped-def]
    used, at = 1, 0
    for i in range(sizes.size):
        block = blocks[i]
        here = min(sizes[i] // block, (length - at) // block)
        left = sizes[i] // block - here
        at += here * block
        if left > 0:
            each = length // block
            more = (left - 1) // each + 1
            used += more
            at = (left - (more - 1) * each) * block
        rest = sizes[i] % block
        if at + rest > length:
            used += 1
            at = 0
        at += rest
    return used <= ranks


@compiled
def _first_slice(sizes, blocks, ranks, first, last, step, total, at):  # type: ignore[no-untyped-def]
    slice_elements = first
    while slice_elements <= last:
        if _placed(sizes, blocks, slice_elements, ranks * slice_elements - total, at):
            return slice_elements
        slice_elements += step
    return 0


@compiled
def _placed(sizes, blocks, length, room, at):  # type: ignore[no-untyped-def]
    """Place every tensor as early as it can be; False as soon as there is more padding than room."""
    begin = 0
    for i in range(sizes.size):
        size, block = sizes[i], blocks[i]
        cut = (begin // length + 1) * length
        place = begin
        if begin + size > cut:
            # The first cut inside must lie between blocks.
            place = begin + (cut - begin) % block
            if place + size > cut + length and place < cut and length % block != 0:
                # The second one then does not: no place before this cut is one.
                place = cut
            if place == cut and size > length and length % block != 0:
                place = cut + length % block
                if place + size > cut + 2 * length:
                    return False
        room -= place - begin
        if room < 0:
            return False
        at[i] = place
        begin = place + size
    return True


def plan_buffers(tensors: Sequence[Tensor], ranks: int, *, unit: int = 1, order: str = "default") -> tuple[Layout, ...]:
    """Return layouts of several buffers: tensors whose blocks have little in common need not share one.

    Tensors with equal blocks begin with a buffer of their own.  Two are joined as long as that makes slices shorter, or
    no longer together; first those that gain most.

    Parameters
    ----------
    tensors, ranks, unit, order
        As for :func:`plan_layout`.

    Raises
    ------
    BadValueError
        As :func:`plan_layout`.
    """
    check_bucket(tensors, ranks)
    groups = [tuple(i for i, each in enumerate(tensors) if each.block == block)
              for block in dict.fromkeys(each.block for each in tensors)]  # fmt: skip
    known: dict[tuple[int, ...], Layout] = {}

    def planned(group: tuple[int, ...]) -> Layout:
        if group not in known:
            known[group] = plan_layout([tensors[i] for i in group], ranks, unit=unit, order=order)
        return known[group]

    while len(groups) > 1:
        pairs = [(one, other) for i, one in enumerate(groups) for other in groups[i + 1 :]]
        longer = [
            planned(tuple(sorted(one + other))).slice_elements
            - planned(one).slice_elements
            - planned(other).slice_elements
            for one, other in pairs
        ]
        if min(longer) > 0:
            break
        one, other = pairs[longer.index(min(longer))]
        groups = [*(each for each in groups if each not in (one, other)), tuple(sorted(one + other))]
    return tuple(planned(group) for group in sorted(groups))


@dataclass(frozen=True, kw_only=True)
class VescaleFsdp:
    """Plans the shortest slices that cut no block, and makes parameters views of the gathered buffer."""

    order: str = setting(
        "default", says="Order of tensors in the buffer; best: the shortest of the four",
        choices=(*ORDERS, "best"),
    )  # fmt: skip
    unit: int = setting(128, unit="elements", says="Of which a slice has a whole number", low=1, high=1 << 20)
    buffers: str = setting(
        "one", says="Buffers of a bucket: one, or some where blocks have little in common", choices=("one", "some")
    )

    def layout(self, tensors: Sequence[Tensor], ranks: int) -> Layout:
        """Return the planned layout.

        Parameters
        ----------
        tensors : sequence of Tensor
        ranks : int
        """
        return plan_layout(tensors, ranks, unit=self.unit, order=self.order)

    def shard(self, tensors: Sequence[Tensor], ranks: int) -> Footprint:
        """Return what the planned layout comes to.

        Parameters
        ----------
        tensors : sequence of Tensor
        ranks : int
        """
        if self.buffers == "one":
            return self.layout(tensors, ranks).footprint()
        parts = [each.footprint() for each in plan_buffers(tensors, ranks, unit=self.unit, order=self.order)]
        return Footprint(
            sum(each.slice_elements for each in parts), sum(each.elements for each in parts),
            sum(each.blocks_cut for each in parts), copies=False, buffers=len(parts),
        )  # fmt: skip


def units_by_rank(layout: Layout, tensor: int) -> Ints:
    """Return how many blocks of a tensor each rank holds, the ``local_units`` of its :class:`RaggedShard`.

    Parameters
    ----------
    layout : Layout
    tensor : int
        Its place among the tensors.

    Returns
    -------
    int64 array (ranks,)

    Raises
    ------
    BadValueError
        If a block of the tensor is cut.
    """
    block = layout.tensors[tensor].block
    ends = [layout.held(tensor, rank)[1] for rank in range(layout.ranks)]
    if any(end % block and end != layout.tensors[tensor].size for end in ends):
        raise BadValueError("A cut tensor has no whole blocks on its ranks.", given=layout.tensors[tensor].name)
    return np.diff([0, *(-(-end // block) for end in ends)]).astype(np.int64)
