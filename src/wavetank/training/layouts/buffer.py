"""A bucket of parameters as one buffer: collectives work in place on it, and the parameters are its views.

A rank always holds its slice of the weights and of the summed gradients.  The whole buffer has memory while the bucket
is gathered, at a fixed place of the views: they are made once.  Needs the extra ``torch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wavetank.live.rank_process import GroupBrokenError
from wavetank.training.layouts.interface import Layout

_BYTES = 8


class Bucket:
    """Weights and gradients of one bucket on one rank, in double precision.

    Parameters
    ----------
    layout : Layout
    rank : int
    group : torch process group, or None
        None where there is one rank.
    ordered : bool
        Whether gradients are added one by one in the order of microbatches, which gives the same sum bit for bit on any
        number of ranks; else as the collective adds them, with less memory.
    """

    def __init__(self, layout: Layout, rank: int, group: Any, *, ordered: bool = True) -> None:
        import torch

        self.layout, self.rank, self._group, self._ordered = layout, rank, group, ordered
        self.full = torch.zeros(layout.elements, dtype=torch.float64)
        self.gradients = torch.zeros(layout.elements, dtype=torch.float64)
        self.weights = torch.zeros(layout.slice_elements, dtype=torch.float64)
        self.summed = torch.zeros(layout.slice_elements, dtype=torch.float64)
        self.parameters = [torch.nn.Parameter(each) for each in self._views(self.full)]
        self._gradient_views = self._views(self.gradients)
        self._work: Any = None
        self.gathered = True
        self.release()
        _resize(self.gradients, 0)

    def _views(self, whole: Any) -> list[Any]:
        places = zip(self.layout.offsets, self.layout.tensors, strict=True)
        return [whole[begin : begin + each.size].view(each.shape) for begin, each in places]

    def fill(self, values: Sequence[Any]) -> None:
        """Take the own slice out of whole tensors.

        Parameters
        ----------
        values : sequence of torch.Tensor
            In the shapes of the layout's tensors.
        """
        for tensor, value in enumerate(values):
            start, end = self.layout.held(tensor, self.rank)
            self.part(self.weights, tensor)[:] = value.reshape(-1)[start:end]

    def part(self, own: Any, tensor: int) -> Any:
        """Return what the slice of this rank has of a tensor, as a view.

        Parameters
        ----------
        own : torch.Tensor
            ``weights`` or ``summed``.
        tensor : int
            Its place among the layout's.
        """
        start, end = self.layout.held(tensor, self.rank)
        at = self.layout.offsets[tensor] + start - self.rank * self.layout.slice_elements
        return own[at : at + end - start] if end > start else own[:0]

    def begin_gather(self) -> None:
        """Start gathering the weights, if that is not done or under way."""
        if self.gathered or self._work is not None:
            return
        _resize(self.full, self.layout.elements)
        # Not seen by autograd, which saw the views before their memory was given away.
        whole, length = self.full.data, self.layout.slice_elements
        own = whole[self.rank * length : (self.rank + 1) * length]
        own.copy_(self.weights)
        if self._group is not None:
            self._work = (self._group._allgather_base(whole, own), own)
        else:
            self.gathered = True

    def gather(self) -> list[Any]:
        """Return the parameters, whole.

        Raises
        ------
        GroupBrokenError
            If a rank is gone or late.
        """
        self.begin_gather()
        if self._work is not None:
            finished(self._work[0].wait)
            self._work, self.gathered = None, True
        return self.parameters

    def release(self) -> None:
        """Give the memory of the gathered weights away; the own slice is kept apart."""
        if self.gathered:
            _resize(self.full, 0)
            self.gathered = False

    def drop(self) -> None:
        """Forget what is gathered or under way, as a step leaves it that failed; the weights may change then.

        Raises
        ------
        GroupBrokenError
            If a rank is gone or late.
        """
        if self._work is not None:
            self.gather()
        self.release()

    def add_gradients(self, gradients: Sequence[Any]) -> None:
        """Sum the gradients of one microbatch over the ranks, and add the own slice to what is there.

        Parameters
        ----------
        gradients : sequence of torch.Tensor
            In the order of the parameters.

        Raises
        ------
        GroupBrokenError
            If a rank is gone or late.
        """
        import torch

        _resize(self.gradients, self.layout.elements)
        self.gradients.zero_()
        for view, each in zip(self._gradient_views, gradients, strict=True):
            view.copy_(each)
        if self._group is None:
            self.summed += self.gradients
        elif self._ordered:
            parts = torch.empty_like(self.gradients)
            finished(self._group.alltoall_base(parts, self.gradients, [], []).wait)
            # One by one: so they are added where one rank has all microbatches.
            for part in parts.view(self.layout.ranks, -1):
                self.summed += part
        else:
            total = torch.empty_like(self.summed)
            finished(self._group._reduce_scatter_base(total, self.gradients).wait)
            self.summed += total
        _resize(self.gradients, 0)


def _resize(tensor: Any, elements: int) -> None:
    tensor.untyped_storage().resize_(elements * _BYTES)


def finished(wait: Callable[[], object]) -> None:
    """Wait for a collective operation.

    Parameters
    ----------
    wait : callable

    Raises
    ------
    GroupBrokenError
        If a rank is gone or late.
    """
    try:
        wait()
    except RuntimeError as error:
        first = str(error).partition("\n")[0][:300]
        raise GroupBrokenError("A member of the group is gone or late.", given=first) from error
