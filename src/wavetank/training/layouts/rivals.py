"""How others cut parameters: by equal rows (FSDP2), by element (FSDP1), on a grid of whole blocks (Megatron-FSDP)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wavetank.settings import setting
from wavetank.training.layouts.interface import Footprint, Layout, Tensor, check_bucket


@dataclass(frozen=True, kw_only=True)
class Fsdp2:
    """Cuts each tensor along one dimension into equal parts, padded where ranks do not divide it.

    A sharder has ``shard(tensors, ranks) -> Footprint``, see :mod:`wavetank.training.layouts.interface`.
    """

    dimensions: str = setting(
        "best", says="Dimension that is cut: the first, or that with the least padding", choices=("first", "best")
    )
    experts: str = setting(
        "given", says="Fused experts: as given, or as one matrix with the rows of all below each other",
        choices=("given", "flat"),
    )  # fmt: skip

    def shard(self, tensors: Sequence[Tensor], ranks: int) -> Footprint:
        """Return what equal parts come to; other dimensions than the first are cut where ranks divide them.

        Parameters
        ----------
        tensors : sequence of Tensor
        ranks : int
        """
        check_bucket(tensors, ranks)
        held = cut = 0
        for each in tensors:
            if self.experts == "flat" and len(each.shape) > 2:
                each = replace(each, shape=(each.size // each.shape[-1], each.shape[-1]))
            padded = -(-each.shape[0] // ranks) * (each.size // each.shape[0])
            dimension = 0
            if self.dimensions == "best" and padded * ranks > each.size:
                even = [i for i in range(1, len(each.shape)) if each.shape[i] % ranks == 0]
                if even:
                    dimension, padded = even[0], each.size // ranks
            held += padded
            cut += _cut_along(each, dimension, ranks)
        return Footprint(held, sum(each.size for each in tensors), cut, copies=ranks > 1)


def _cut_along(tensor: Tensor, dimension: int, ranks: int) -> int:
    """Return how many blocks are cut by equal parts of one dimension: there is a cut at every multiple of a part."""
    part = -(-tensor.shape[dimension] // ranks) * math.prod(tensor.shape[dimension + 1 :])
    size, block = tensor.size, tensor.block
    if part >= block:
        return (size - 1) // part - (size - 1) // math.lcm(part, block)
    # Shorter parts cut every block, but perhaps not the rest at the end.
    rest = size % block
    return size // block + (rest > 0 and ((size - rest) // part + 1) * part < size)


@dataclass(frozen=True, kw_only=True)
class Fsdp1:
    """Puts all tensors of a bucket behind each other and cuts them into equal slices, wherever the cuts fall."""

    unit: int = setting(1, unit="elements", says="Of which a slice has a whole number", low=1, high=1 << 20)

    def layout(self, tensors: Sequence[Tensor], ranks: int) -> Layout:
        """Return the layout without regard for blocks.

        Parameters
        ----------
        tensors : sequence of Tensor
        ranks : int
        """
        check_bucket(tensors, ranks)
        ends = np.cumsum([each.size for each in tensors]).tolist()
        length = -(-int(ends[-1]) // (ranks * self.unit)) * self.unit
        return Layout(
            tensors=tuple(tensors), ranks=ranks, slice_elements=length, offsets=(0, *(int(end) for end in ends[:-1]))
        )

    def shard(self, tensors: Sequence[Tensor], ranks: int) -> Footprint:
        """Return what the layout comes to.

        Parameters
        ----------
        tensors : sequence of Tensor
        ranks : int
        """
        return self.layout(tensors, ranks).footprint()


@dataclass(frozen=True, kw_only=True)
class GridPadding:
    """Begins every tensor on a grid of whole blocks, fills the rests with small tensors, and pads to ranks grids.

    Tensors share one grid, the least common multiple of their blocks, or have a buffer for each size of block,
    whichever is shorter.
    """

    def shard(self, tensors: Sequence[Tensor], ranks: int) -> Footprint:
        """Return what the grid comes to; no block is cut.

        Parameters
        ----------
        tensors : sequence of Tensor
        ranks : int
        """
        check_bucket(tensors, ranks)
        together = _on_grid(tensors, ranks)
        by_block = [[each for each in tensors if each.block == block] for block in {each.block for each in tensors}]
        apart = sum(_on_grid(of, ranks) for of in by_block)
        held, buffers = min((together, 1), (apart, len(by_block)))
        return Footprint(held, sum(each.size for each in tensors), 0, copies=False, buffers=buffers)


def _on_grid(tensors: Sequence[Tensor], ranks: int) -> int:
    """Return the elements of a slice: a whole number of cells, of whole blocks, in which a tensor of one block fits."""
    grid = math.lcm(*(each.block for each in tensors if each.size > each.block))
    grid *= max(-(-each.size // grid) if each.size <= each.block else 1 for each in tensors)
    cells, gaps = 0, []
    for size in sorted((each.size for each in tensors), reverse=True):
        if size >= grid:
            cells += -(-size // grid)
            gaps.append(-size % grid)
            continue
        gap = min((g for g in gaps if g >= size), default=-1)
        if gap < 0:
            cells += 1
            gaps.append(grid - size)
        else:
            gaps[gaps.index(gap)] -= size
    return -(-cells // ranks) * grid
