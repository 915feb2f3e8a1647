"""What a sharder is given and what it answers.  All costs are computed from the answer, by the same rules for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError

Ints = npt.NDArray[np.int64]
MOST_RANKS = 1 << 20
MOST_ELEMENTS = 1 << 50


@dataclass(frozen=True)
class Tensor:
    """One parameter.

    Parameters
    ----------
    name : str
    shape : tuple of int
    block : int
        Elements, in the order of memory, that must stay on one rank; the last block of a tensor may be shorter.
        1: any element may be alone.
    """

    name: str
    shape: tuple[int, ...]
    block: int = 1

    def __post_init__(self) -> None:
        for extent in (*self.shape, self.block):
            if isinstance(extent, bool) or not isinstance(extent, int | np.integer) or extent < 1:
                raise BadValueError(
                    f"The tensor {self.name!r} has no such shape or block.",
                    given=f"{self.shape}, block {self.block}",
                    allowed="whole numbers, 1 or more",
                )
        if not self.shape or self.size > MOST_ELEMENTS:
            raise BadValueError(f"The tensor {self.name!r} has no such size.", given=self.shape,
                                allowed=f"1 to {MOST_ELEMENTS} elements, in one dimension or more")  # fmt: skip

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return -(-self.size // self.block)


class Footprint(NamedTuple):
    """What a sharder makes of one bucket.

    Parameters
    ----------
    slice_elements : int
        What every rank holds, padding included, in elements.
    elements : int
        What the parameters of the bucket have, in elements.
    blocks_cut : int
        Blocks that lie on more than one rank.
    copies : bool
        Whether gathered parameters are copied out of the buffer of the collective, and gradients into it.
    buffers : int
        How many buffers the bucket has, each with collectives of its own.
    """

    slice_elements: int
    elements: int
    blocks_cut: int
    copies: bool
    buffers: int = 1

    def padding(self, ranks: int) -> float:
        """Return the elements of the whole buffer that are no parameters, over those that are.

        Parameters
        ----------
        ranks : int
        """
        return self.slice_elements * ranks / self.elements - 1


class Sharder(Protocol):
    """Decides what each rank holds."""

    def shard(self, tensors: Sequence[Tensor], ranks: int) -> Footprint:
        """Return what becomes of one bucket.

        Parameters
        ----------
        tensors : sequence of Tensor
            In the order in which the model defines them.
        ranks : int
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Tensors in one buffer that is cut into equal slices, one a rank.

    Parameters
    ----------
    tensors : tuple of Tensor
    ranks : int
    slice_elements : int
        Elements of a slice.
    offsets : tuple of int
        Where each tensor begins in the buffer, in elements.

    Raises
    ------
    BadValueError
        If tensors overlap or leave the buffer.
    """

    tensors: tuple[Tensor, ...]
    ranks: int
    slice_elements: int
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        at = sorted((begin, begin + each.size) for begin, each in zip(self.offsets, self.tensors, strict=True))
        ends = [0, *(end for _, end in at)]
        if any(begin < end for (begin, _), end in zip(at, ends, strict=False)) or ends[-1] > self.elements:
            raise BadValueError("Tensors of a layout overlap or leave its buffer.", given=at,
                                allowed=f"apart, within 0 to {self.elements}")  # fmt: skip

    @property
    def elements(self) -> int:
        """Elements of the whole buffer."""
        return self.ranks * self.slice_elements

    @property
    def padding_elements(self) -> int:
        """Elements of the buffer that belong to no tensor."""
        return self.elements - sum(each.size for each in self.tensors)

    def blocks_cut(self) -> int:
        """Return how many blocks lie on more than one rank."""
        return sum(
            cut_blocks(each, np.arange(-(-begin // self.slice_elements), self.ranks + 1) * self.slice_elements - begin)
            for begin, each in zip(self.offsets, self.tensors, strict=True)
        )

    def held(self, tensor: int, rank: int) -> tuple[int, int]:
        """Return which elements of a tensor a rank holds, from and to; equal for none.

        Parameters
        ----------
        tensor : int
            Its place among the tensors.
        rank : int
        """
        begin, size = self.offsets[tensor], self.tensors[tensor].size
        low = min(max(rank * self.slice_elements - begin, 0), size)
        return low, min(max((rank + 1) * self.slice_elements - begin, low), size)

    def footprint(self) -> Footprint:
        """Return what the layout comes to; parameters are views of the buffer, which nothing copies."""
        return Footprint(self.slice_elements, self.elements - self.padding_elements, self.blocks_cut(), copies=False)


def cut_blocks(tensor: Tensor, cuts: Ints) -> int:
    """Return how many blocks of a tensor are cut.

    Parameters
    ----------
    tensor : Tensor
    cuts : int64 array
        Elements of the tensor before each cut; those that are not inside of it do not count.
    """
    inside = cuts[(cuts > 0) & (cuts < tensor.size)]
    return int(np.unique(inside[inside % tensor.block != 0] // tensor.block).size)


def check_ranks(ranks: int) -> None:
    """Refuse numbers that are none of ranks.

    Parameters
    ----------
    ranks : int
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int | np.integer) or not 1 <= ranks <= MOST_RANKS:
        raise BadValueError("There is no such number of ranks.", given=ranks, allowed=f"1 to {MOST_RANKS}")


def check_bucket(tensors: Sequence[Tensor], ranks: int) -> None:
    """Refuse buckets of nothing, with too many elements, and numbers that are none of ranks.

    Parameters
    ----------
    tensors : sequence of Tensor
    ranks : int
    """
    check_ranks(ranks)
    total = sum(each.size for each in tensors)
    if not 0 < total <= MOST_ELEMENTS:
        raise BadValueError("A bucket has tensors, and not more elements than fit.", given=f"{total} elements",
                            allowed=f"1 to {MOST_ELEMENTS}")  # fmt: skip
