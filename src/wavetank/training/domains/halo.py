"""Operations that look at windows: convolutions and pooling, of parts with strips of their neighbours beside them.

Each process fetches the inputs that its outputs look at and that it has not, from as many neighbours as hold them: a
strip may reach over a part of one row, or over an empty one.  Zeros, or whatever the operation pads with, stand at the
ends of the whole alone.  Backward, what was computed on a neighbour's strip goes back to it and is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from wavetank.training.domains.exchange import copied_together, fetch
from wavetank.training.domains.interface import Windows, windows
from wavetank.training.domains.sharded import ShardTensor, handles


def _each(value: Any, count: int) -> list[int]:
    if isinstance(value, int):
        return [value] * count
    values = list(value)
    return values * count if len(values) == 1 else values


def _with_strips(x: ShardTensor, plan: Windows, filling: float) -> torch.Tensor:
    """The part and what it needs of others, filled at the ends of the whole."""
    padding = plan.padding[x.domain.place]
    return fetch(x.part, x.domain, x.layout, plan.wanted, padding=padding, filling=filling)


def _nothing(part: torch.Tensor, shape: Sequence[int], others: Sequence[Any]) -> torch.Tensor:
    """A result without numbers that still hangs on all it came from: backward, every process has to take part."""
    hangs = part.sum() * 0
    for each in others:
        if each is not None:
            hangs = hangs + each.sum() * 0
    return part.new_zeros(tuple(shape)) + hangs


def _window_count(length: int, reach: int, stride: int, padding: int) -> int:
    return (length + padding - reach) // stride + 1


@handles("conv1d", "conv2d", "conv3d")
def convolution(
    function: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve; windows of any size, stride, dilation and padding."""
    spatial = int(function.__name__[4])
    if not isinstance(x, ShardTensor) or x.dim() != spatial + 2 or x.axis == 1:
        return NotImplemented
    shared = copied_together((weight, bias), x.domain)
    if x.axis == 0:
        if x.part.shape[0]:
            return x.like(function(x.part, *shared, stride, padding, dilation, groups))
        padding = 0 if isinstance(padding, str) else padding
    strides, dilations = _each(stride, spatial), _each(dilation, spatial)
    kernel, at = list(weight.shape[2:]), x.axis - 2
    reaches = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if isinstance(padding, str):
        if padding == "same" and any(each != 1 for each in strides):
            return NotImplemented
        sides = [((r - 1) // 2, r - 1 - (r - 1) // 2) if padding == "same" else (0, 0) for r in reaches]
    else:
        sides = [(each, each) for each in _each(padding, spatial)]
    counts = [_window_count(n, r, s, sum(p)) for n, r, s, p in zip(x.shape[2:], reaches, strides, sides, strict=True)]
    if x.axis == 0:
        return x.like(_nothing(x.part, (0, weight.shape[0], *counts), shared))
    plan = windows(x.layout.sizes, window=kernel[at], stride=strides[at], padding=sides[at], dilation=dilations[at])
    part = _with_strips(x, plan, 0.0)
    place = x.domain.place
    if not plan.sizes[place]:
        counts[at] = 0
        found = _nothing(part, (x.shape[0], weight.shape[0], *counts), shared)
    else:
        uneven = [0, 0] * spatial
        for each in range(spatial):
            if each != at and sides[each][0] != sides[each][1]:
                uneven[2 * (spatial - 1 - each)] = 0
                uneven[2 * (spatial - 1 - each) + 1] = sides[each][1] - sides[each][0]
        if any(uneven):
            part = functional.pad(part, uneven)
        plain = [0 if each == at else sides[each][0] for each in range(spatial)]
        found = function(part, *shared, strides, plain, dilations, groups)
    return ShardTensor(found, x.domain, x.axis, plan.sizes)


@handles("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    function: Any, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Take the largest of each window."""
    if ceil_mode or return_indices:
        return NotImplemented
    return _pooled(function, x, kernel_size, stride, padding, dilation, -torch.inf)


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(
    function: Any, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Any:  # fmt: skip
    """Take the mean of each window."""
    if ceil_mode or divisor_override is not None or (not count_include_pad and any(_each(padding, 1))):
        return NotImplemented
    return _pooled(function, x, kernel_size, stride, padding, None, 0.0)


def _pooled(function: Any, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, filling: float) -> Any:
    spatial = x.dim() - 2
    if f"{spatial}d" not in function.__name__ or x.axis < 2:
        return NotImplemented
    at, kernel, pads = x.axis - 2, _each(kernel_size, spatial), _each(padding, spatial)
    strides = kernel if stride is None or stride == [] else _each(stride, spatial)
    dilations = _each(1 if dilation is None else dilation, spatial)
    plan = windows(
        x.layout.sizes, window=kernel[at], stride=strides[at], padding=(pads[at], pads[at]), dilation=dilations[at]
    )
    part = _with_strips(x, plan, filling)
    if plan.sizes[x.domain.place]:
        plain = [0 if each == at else pads[each] for each in range(spatial)]
        more = () if dilation is None else (dilations,)
        found = function(part, kernel, strides, plain, *more)
    else:
        counts = [
            0 if each == at else
            _window_count(
                x.shape[2 + each], dilations[each] * (kernel[each] - 1) + 1, strides[each], 2 * pads[each]
            )
            for each in range(spatial)
        ]  # fmt: skip
        found = _nothing(part, (*x.shape[:2], *counts), ())
    return ShardTensor(found, x.domain, x.axis, plan.sizes)
