"""Which part of which weight goes from which trainer to which server, when both cut the model differently.

A trainer with tensor and pipeline parallelism holds a range of some weights; a server with another tensor parallelism
needs another range of all of them.  Both ranges lie along the same axis of a weight, so that what a server needs of it
is the intersections with what trainers hold: each element is sent once to each server that needs it, by one that has
it, and nobody gathers a whole weight.

Source: W. Gao et al., arXiv 2605.06534: ranges of shards are part of the keys in a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Shards = Mapping[tuple[int, str], NDArray[Any]]
"""What ranks hold: arrays by rank and name."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight of a model.

    Parameters
    ----------
    name : str
    shape : tuple of int
    layer : int
        In which it lies.
    axis : int
        Along which tensor parallelism cuts it; -1: every rank holds all of it.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    axis: int

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1 or self.layer < 0 or not -1 <= self.axis < len(self.shape):
            raise BadValueError("This is no weight.", given=f"shape {self.shape}, layer {self.layer}, axis {self.axis}",
                                allowed="numbers from 1, a layer from 0, an axis or -1", where=self.name)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a model is cut: rank ``stage * tensor + t`` holds part t of the layers of a stage.

    Parameters
    ----------
    tensor, stages : int
    layers : int
        Of the model; the first stages have one more where they do not divide.
    """

    tensor: int
    layers: int
    stages: int = 1

    def __post_init__(self) -> None:
        if min(self.tensor, self.stages) < 1 or self.layers < self.stages:
            raise BadValueError("A model cannot be cut so.", given=(self.tensor, self.stages, self.layers),
                                allowed="1 or more of each, and a layer for every stage")  # fmt: skip

    @property
    def ranks(self) -> int:
        """How many ranks hold the model together."""
        return self.tensor * self.stages

    def stage(self, layer: int) -> int:
        """Return the stage of a layer."""
        least, more = divmod(self.layers, self.stages)
        first = more * (least + 1)
        return layer // (least + 1) if layer < first else more + (layer - first) // least

    def bounds(self, weight: Weight, part: int) -> tuple[int, int]:
        """Return first and end of what a part holds along the weight's axis; of an uncut one, all of its first axis."""
        size = weight.shape[max(weight.axis, 0)]
        if weight.axis < 0:
            return 0, size
        return part * size // self.tensor, (part + 1) * size // self.tensor


class Transfer(NamedTuple):
    """Something that one rank sends to another.

    Attributes
    ----------
    weight : Weight
    source, target : int
        Ranks.
    begin, end : int
        Range along the weight's axis, in the whole weight.
    """

    weight: Weight
    source: int
    target: int
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """How many numbers are sent."""
        rest = int(np.prod(self.weight.shape)) // self.weight.shape[max(self.weight.axis, 0)]
        return (self.end - self.begin) * rest


def plan(weights: Sequence[Weight], source: Cut, target: Cut) -> tuple[Transfer, ...]:
    """Return who sends what to whom: every element that a target needs, once.

    Parameters
    ----------
    weights : sequence of Weight
        Each name once.
    source, target : Cut

    Raises
    ------
    BadValueError
        If a name stands twice, or a layer is in no stage.
    """
    if len({each.name for each in weights}) != len(weights):
        raise BadValueError("A weight stands twice.", given=sorted(each.name for each in weights))
    found = []
    for weight in weights:
        for cut in (source, target):
            if weight.layer >= cut.layers:
                raise BadValueError("A weight lies in no layer of the model.", given=weight.layer,
                                    allowed=f"0 to {cut.layers - 1}", where=weight.name)  # fmt: skip
        there, here = source.stage(weight.layer) * source.tensor, target.stage(weight.layer) * target.tensor
        for part in range(target.tensor):
            if weight.axis < 0:
                # All ranks of the stage have it: they share the targets.
                found.append(Transfer(weight, there + part % source.tensor, here + part, 0, weight.shape[0]))
                continue
            low, high = target.bounds(weight, part)
            for other in range(source.tensor):
                begin, end = source.bounds(weight, other)
                begin, end = max(begin, low), min(end, high)
                if begin < end:
                    found.append(Transfer(weight, there + other, here + part, begin, end))
    return tuple(found)


def cut_up(
    arrays: Mapping[str, NDArray[Any]], weights: Sequence[Weight], cut: Cut
) -> dict[tuple[int, str], NDArray[Any]]:
    """Return what every rank holds of whole arrays.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        By name, of the weights' shapes.
    weights : sequence of Weight
    cut : Cut

    Raises
    ------
    BadValueError
        If an array has another shape.
    """
    found = {}
    for weight in weights:
        if arrays[weight.name].shape != weight.shape:
            raise BadValueError("The array has another shape than the weight.", given=arrays[weight.name].shape,
                                allowed=str(weight.shape), where=weight.name)  # fmt: skip
        for part in range(cut.tensor):
            rank = cut.stage(weight.layer) * cut.tensor + part
            found[rank, weight.name] = _along(arrays[weight.name], weight, *cut.bounds(weight, part)).copy()
    return found


def piece(shards: Shards, cut: Cut, transfer: Transfer) -> NDArray[Any]:
    """Return what a transfer sends, as it lies in the shard of its source.

    Parameters
    ----------
    shards : mapping
        By rank and name, of the source.
    cut : Cut
        Of the source.
    transfer : Transfer
    """
    first, _ = cut.bounds(transfer.weight, transfer.source % cut.tensor)
    held = shards[transfer.source, transfer.weight.name]
    return _along(held, transfer.weight, transfer.begin - first, transfer.end - first)


def put(shards: Shards, cut: Cut, transfer: Transfer, values: NDArray[Any]) -> None:
    """Write what a transfer brought into the shard of its target.

    Parameters
    ----------
    shards : mapping
        By rank and name, of the target.
    cut : Cut
        Of the target.
    transfer : Transfer
    values : ndarray
        Of the piece's shape.
    """
    first, _ = cut.bounds(transfer.weight, transfer.target % cut.tensor)
    held = shards[transfer.target, transfer.weight.name]
    _along(held, transfer.weight, transfer.begin - first, transfer.end - first)[...] = values


def _along(array: NDArray[Any], weight: Weight, begin: int, end: int) -> NDArray[Any]:
    place: list[Any] = [slice(None)] * array.ndim
    place[max(weight.axis, 0)] = slice(begin, end)
    return array[tuple(place)]


def gathered_elements(weights: Sequence[Weight], target: Cut) -> int:
    """Return what is sent where every target gets all weights and cuts out its own: the simple way.

    Parameters
    ----------
    weights : sequence of Weight
    target : Cut
    """
    return target.ranks * sum(int(np.prod(each.shape)) for each in weights)
