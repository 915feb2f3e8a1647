"""Sums, means and norms of cut tensors: of parts first, then of all, weighted by what each part holds.

Means and variances are taken in two passes: the squares are those of what is left after the mean of the whole was taken
off, so that nothing cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from wavetank.training.domains.exchange import Domain, copied_together, shared_total, total
from wavetank.training.domains.sharded import ShardTensor, aligned, handles


def _dims(dim: Any, count: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(count))
    return sorted(each % count for each in ([dim] if isinstance(dim, int) else dim))


@handles("sum", "mean")
def reduced(function: Any, x: ShardTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Add up over dimensions, or take the mean; over the cut one, the result is whole in every process."""
    dims = _dims(dim, x.dim())
    if x.axis not in dims:
        axis = x.axis if keepdim else x.axis - sum(each < x.axis for each in dims)
        part = function(x.part, dims, keepdim, dtype=dtype)
        return ShardTensor(part, x.domain, axis, x.layout.sizes)
    found = total(x.part.sum(dims, keepdim, dtype=dtype), x.domain)
    count = torch.Size([x.shape[each] for each in dims]).numel()
    return found / count if function.__name__ == "mean" else found


@handles("mse_loss")
def mse_loss(function: Any, x: Any, target: Any, *arguments: Any, reduction: str = "mean", **keywords: Any) -> Any:
    """Return the mean squared difference, in every process."""
    first = x if isinstance(x, ShardTensor) else target
    sides = [aligned(x, first), aligned(target, first)]
    if (
        # One that is stretched over the other has more numbers than it.
        tuple(x.shape) != tuple(target.shape)
        or reduction not in ("mean", "sum")
        or arguments
        or any(keywords.values())
        or any(s is NotImplemented for s in sides)
    ):
        return NotImplemented
    found = total(((sides[0] - sides[1]) ** 2).sum(), first.domain)
    return found / first.shape.numel() if reduction == "mean" else found


class _Normalised(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, part: torch.Tensor, domain: Domain, dims: Any, count: int, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean = domain.all_reduce(part.sum(dims, keepdim=True)) / count
        found = part - mean
        variance = domain.all_reduce((found * found).sum(dims, keepdim=True)) / count
        inverse = 1 / torch.sqrt(variance + eps)
        found *= inverse
        ctx.domain, ctx.dims, ctx.count = domain, dims, count
        ctx.save_for_backward(found, inverse)
        ctx.mark_non_differentiable(mean, variance)
        return found, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        found, inverse = ctx.saved_tensors
        sums = torch.stack([grad.sum(ctx.dims, keepdim=True), (grad * found).sum(ctx.dims, keepdim=True)])
        mean, along = ctx.domain.all_reduce(sums) / ctx.count
        back = grad - mean
        back -= found * along
        back *= inverse
        return back, None, None, None, None


def normalised(
    part: torch.Tensor, domain: Domain, dims: Sequence[int], count: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a part of the whole that has mean 0 and variance 1, and the mean and variance that it had.

    Parameters
    ----------
    part : torch.Tensor
    domain : Domain
    dims : sequence of int
        Over which the mean goes, the cut one among them.
    count : int
        Numbers of the whole that a mean is of.
    eps : float
        Added to the variance.
    """
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _Normalised.apply(part, domain, list(dims), count, eps)
    return found


@handles("layer_norm")
def layer_norm(
    function: Any, x: ShardTensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Normalise over the last dimensions, of which one may be cut."""
    domain, first = x.domain, x.dim() - len(normalized_shape)
    if x.axis < first:
        shared = copied_together((weight, bias), domain)
        return x.like(function(x.part, normalized_shape, *shared, eps))
    if tuple(x.shape[first:]) != tuple(normalized_shape):
        return NotImplemented
    dims = list(range(first, x.dim()))
    found, _, _ = normalised(x.part, domain, dims, torch.Size(normalized_shape).numel(), eps)
    if weight is not None:
        found = found * aligned(weight, x)
    return x.like(found if bias is None else found + aligned(bias, x))


def _scaled(found: torch.Tensor, weight: Any, bias: Any, domain: Domain, channel: Sequence[int]) -> torch.Tensor:
    """Normalised numbers, times a weight and with a bias of their channel."""
    scale, shift = copied_together((weight, bias), domain)
    scaled = found if scale is None else found * scale.view(channel)
    return scaled if shift is None else scaled + shift.view(channel)


@handles("batch_norm")
def batch_norm(
    function: Any, x: ShardTensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Normalise each channel over all samples and places of the whole; running figures are those of the whole."""
    domain = x.domain
    if x.axis == 1:
        return NotImplemented
    channel = [1, -1, *[1] * (x.dim() - 2)]
    if training:
        dims = [each for each in range(x.dim()) if each != 1]
        count = x.shape.numel() // x.shape[1]
        found, mean, variance = normalised(x.part, domain, dims, count, eps)
        if running_mean is not None:
            with torch.no_grad():
                running_mean.mul_(1 - momentum).add_(momentum * mean.flatten())
                running_var.mul_(1 - momentum).add_(momentum * variance.flatten() * (count / max(count - 1, 1)))
    else:
        found = (x.part - running_mean.view(channel)) / torch.sqrt(running_var.view(channel) + eps)
    return x.like(_scaled(found, weight, bias, domain, channel))


@handles("group_norm")
def group_norm(
    function: Any, x: ShardTensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise groups of channels over all places of the whole."""
    domain, shape = x.domain, x.part.shape
    if x.axis == 1:
        return NotImplemented
    if x.axis == 0:
        shared = copied_together((weight, bias), domain)
        return x.like(function(x.part, num_groups, *shared, eps))
    grouped = x.part.reshape(shape[0], num_groups, shape[1] // num_groups, *shape[2:])
    count = x.shape[1:].numel() // num_groups
    found = normalised(grouped, domain, list(range(2, grouped.dim())), count, eps)[0].reshape(shape)
    channel = [1, -1, *[1] * (x.dim() - 2)]
    return x.like(_scaled(found, weight, bias, domain, channel))


@handles("softmax")
def softmax(function: Any, x: ShardTensor, dim: int, *arguments: Any, **keywords: Any) -> Any:
    """Return shares along a dimension; along the cut one, of the whole."""
    if dim % x.dim() != x.axis:
        return x.like(function(x.part, dim, *arguments, **keywords))
    if arguments or any(value not in (None, 3) for value in keywords.values()):
        return NotImplemented
    axis = x.axis
    top = x.part.detach()
    least = top.new_full((*top.shape[:axis], 1, *top.shape[axis + 1 :]), -torch.inf)
    top = x.domain.all_reduce(torch.cat([top, least], axis).amax(axis, keepdim=True), largest=True)
    weights = torch.exp(x.part - top)
    return x.like(weights / shared_total(weights.sum(axis, keepdim=True), x.domain))
