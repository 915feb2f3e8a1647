"""Which elements of a tensor each rank holds, and how they get from one placement to another.

``RaggedShard`` gives ranks unequal numbers of units, none included: a tensor that a planner has laid out, or a matrix
that one rank holds alone.  Everything moves in one all-to-all: between two placements each pair of ranks shares one
interval at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.training.layouts.interface import Ints


@dataclass(frozen=True)
class RaggedShard:
    """Contiguous parts of whole units, not equally many on each rank.

    Parameters
    ----------
    local_units : tuple of int
        Of each rank: its units, or its share in them where there are some times as many.
    unit : int
        Elements of a unit, in the order of memory; the last unit of a tensor may be shorter.

    References
    ----------
    veScale-FSDP, arXiv 2602.22437, section on RaggedShard.
    """

    local_units: tuple[int, ...]
    unit: int = 1

    def __post_init__(self) -> None:
        wrong = [each for each in self.local_units if isinstance(each, bool) or not isinstance(each, int) or each < 0]
        if wrong or not sum(self.local_units):
            raise BadValueError("Ranks hold units, one of them some.", given=self.local_units,
                                allowed="whole numbers from 0, not all 0")  # fmt: skip
        if isinstance(self.unit, bool) or not isinstance(self.unit, int) or self.unit < 1:
            raise BadValueError("A unit has elements.", given=self.unit, allowed="1 or more")

    def bounds(self, size: int, ranks: int) -> Ints:
        """Return where the part of each rank begins, and the end, in elements.

        Parameters
        ----------
        size : int
            Elements of the tensor.
        ranks : int

        Raises
        ------
        BadValueError
            If it is for another number of ranks, or units cannot be shared like that.
        """
        _check(len(self.local_units) == ranks, "A placement is for one number of ranks.", len(self.local_units), ranks)
        units, shares = -(-size // self.unit), sum(self.local_units)
        _check(
            units % shares == 0, "The units of a tensor cannot be shared like that.", units, f"a multiple of {shares}"
        )
        ends = np.cumsum([0, *self.local_units]) * (units // shares) * self.unit
        return np.minimum(ends, size).astype(np.int64)


@dataclass(frozen=True)
class EvenShard:
    """As many rows on each rank, fewer on the last ones: what FSDP2 does.

    Parameters
    ----------
    row : int
        Elements of a row.
    """

    row: int = 1

    def bounds(self, size: int, ranks: int) -> Ints:
        """Return where the part of each rank begins, and the end, in elements.

        Parameters
        ----------
        size, ranks : int
        """
        each = -(-(size // self.row) // ranks) * self.row
        return np.minimum(np.arange(ranks + 1) * each, size).astype(np.int64)


@dataclass(frozen=True)
class Replicate:
    """Everything on every rank."""


@dataclass(frozen=True)
class Partial:
    """A summand of everything on every rank."""


Placement = RaggedShard | EvenShard | Replicate | Partial


def unit_of(shape: Sequence[int], dims: int = 1, rows: int = 1) -> int:
    """Return the elements of a unit of some rows along the first dimensions.

    Parameters
    ----------
    shape : sequence of int
    dims : int
        How many leading dimensions are shared out.
    rows : int
        Of a unit.
    """
    _check(1 <= dims <= len(shape), "There are no such leading dimensions.", dims, f"1 to {len(shape)}")
    return rows * math.prod(shape[dims:])


def unit_beside_shard(unit: int, stride: int) -> int:
    """Return the unit of a tensor that is also cut along a later dimension: whole units and whole strides.

    Parameters
    ----------
    unit : int
    stride : int
        Elements between two neighbours along that dimension.
    """
    return math.lcm(unit, stride)


def local_interval(placement: Placement, size: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return which elements a rank holds, from and to.

    Parameters
    ----------
    placement : placement
    size, rank, ranks : int
    """
    if isinstance(placement, Replicate | Partial):
        return 0, size
    bounds = placement.bounds(size, ranks)
    return int(bounds[rank]), int(bounds[rank + 1])


def redistribute(group: Any, rank: int, ranks: int, local: Any, size: int, source: Placement, target: Placement) -> Any:
    """Return what this rank holds of a tensor in another placement; all ranks of the group call it.

    Summands are added in the order of ranks, so that the sum is the same on every number of processes that have them.

    Parameters
    ----------
    group : torch process group
    rank, ranks : int
        This one, and how many.
    local : torch.Tensor, 1-d
        What it holds now.
    size : int
        Elements of the whole tensor.
    source, target : placement

    Raises
    ------
    BadValueError
        If the rank holds something else, or the target would be summands.
    """
    import torch

    _check(not isinstance(target, Partial), "Nothing is taken apart into summands.", "Partial", "another placement")
    intervals = [local_interval(source, size, each, ranks) for each in range(ranks)]
    wanted = [local_interval(target, size, each, ranks) for each in range(ranks)]
    begin, end = intervals[rank]
    _check(
        local.ndim == 1 and local.numel() == end - begin,
        "A rank holds something else.",
        tuple(local.shape),
        end - begin,
    )
    if isinstance(source, Replicate):
        return local[wanted[rank][0] : wanted[rank][1]].clone()
    sent = [_overlap(intervals[rank], each) for each in wanted]
    came = [_overlap(each, wanted[rank]) for each in intervals]
    output = local.new_empty(sum(high - low for low, high in came))
    content = torch.cat([local[low - begin : high - begin] for low, high in sent])
    if ranks == 1:
        output = content
    else:
        group.alltoall_base(output, content, [b - a for a, b in came], [b - a for a, b in sent]).wait()
    if isinstance(source, Partial):
        parts = output.view(ranks, -1)
        output = parts[0].clone()
        for part in parts[1:]:
            output += part
    return output


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (one[0], one[0])


def _check(good: bool, problem: str, given: object, allowed: object) -> None:
    if not good:
        raise BadValueError(problem, given=given, allowed=str(allowed))
