"""Operations that look at everything: attention and nearest neighbours, of parts that travel around a ring.

In each of P rounds a process works with the keys and values, or the points, of one other, and passes them on.  Parts of
attention are merged by the logarithm of their weights' sum; of neighbours the nearest are kept, and of equally far ones
those with the lower number.  Backward, gradients travel along with what they are of, and come home after P rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import Function

from wavetank.errors import BadValueError
from wavetank.kernels.block_attention import Partial, attend_block, block_gradients, merge, nothing
from wavetank.training.domains.exchange import Domain
from wavetank.training.domains.interface import Layout
from wavetank.training.domains.sharded import ShardTensor, handles

_PIECE = 128
# What numpy has, too.
_DTYPES = (torch.float64, torch.float32)


def _passed_on(domain: Domain, tensors: Sequence[torch.Tensor], shape: Sequence[int], what: str) -> list[torch.Tensor]:
    """What comes from the process behind, while these, all of one shape, go to the one ahead in one message."""
    ahead, behind = (domain.place + 1) % domain.size, (domain.place - 1) % domain.size
    joined = torch.stack(list(tensors))
    return list(domain.swap({ahead: joined}, {behind: shape}, joined, what)[behind])


def _heads(tensor: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor (..., tokens, dim) as (heads, tokens, dim)."""
    shape = tensor.shape
    return tensor.detach().reshape(shape[:-2].numel(), *shape[-2:]).numpy()


def _pieces(queries: np.ndarray) -> list[np.ndarray]:
    """Some queries at a time: their weights for all keys of a part are what takes memory."""
    return [queries[:, begin : begin + _PIECE] for begin in range(0, max(queries.shape[1], 1), _PIECE)]


class _RingAttention(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, domain: Domain, own: Layout,
        other: Layout, causal: bool,
    ) -> torch.Tensor:  # fmt: skip
        ctx.domain, ctx.own, ctx.other, ctx.causal = domain, own, other, causal
        mine = _heads(queries)
        held = [keys.detach(), values.detach()]
        found = [nothing(piece) for piece in _pieces(mine)]
        for each in range(domain.size):
            source = (domain.place - each) % domain.size
            ahead = _ahead(own, other, domain.place, source) if causal else None
            held_keys, held_values = map(_heads, held)
            found = [
                merge(one, attend_block(piece, held_keys, held_values, None if ahead is None else ahead + _PIECE * i))
                for i, (one, piece) in enumerate(zip(found, _pieces(mine), strict=True))
            ]
            if each < domain.size - 1:
                held = _passed_on(domain, held, _shape(held, other.sizes[(source - 1) % domain.size]), "ring")
        out = torch.from_numpy(np.concatenate([each.out for each in found], 1)).reshape(queries.shape).to(queries.dtype)
        log_sum = torch.from_numpy(np.concatenate([each.log_sum for each in found], 1))
        ctx.save_for_backward(queries, keys, values, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        domain, own, other = ctx.domain, ctx.own, ctx.other
        queries, keys, values, out, log_sum = ctx.saved_tensors
        mine, whole, given = _heads(queries), Partial(_heads(out), log_sum.numpy()), _heads(grad.contiguous())
        query_grad = np.zeros_like(mine)
        held = [keys.detach(), values.detach(), *(torch.zeros(each.shape, dtype=each.dtype) for each in (keys, values))]
        for each in range(domain.size):
            source = (domain.place - each) % domain.size
            ahead = _ahead(own, other, domain.place, source) if ctx.causal else None
            held_keys, held_values, key_grad, value_grad = map(_heads, held)
            for begin in range(0, mine.shape[1], _PIECE):
                some = slice(begin, begin + _PIECE)
                added = block_gradients(
                    mine[:, some], held_keys, held_values, Partial(whole.out[:, some], whole.log_sum[:, some]),
                    given[:, some], None if ahead is None else ahead + begin,
                )  # fmt: skip
                query_grad[:, some] += added[0]
                key_grad += added[1]
                value_grad += added[2]
            # Keys and values are home before the last round, their gradients after it.
            first = 0 if each < domain.size - 1 else 2
            if domain.size > 1:
                came = held[first:]
                held = held[:first] + _passed_on(
                    domain, came, _shape(came, other.sizes[(source - 1) % domain.size]), "ring"
                )
        return torch.from_numpy(query_grad).reshape(queries.shape), held[2], held[3], None, None, None, None


def _shape(tensors: Sequence[torch.Tensor], tokens: int) -> tuple[int, ...]:
    """That of some tensors at once, with another number of tokens."""
    return len(tensors), *tensors[0].shape[:-2], tokens, tensors[0].shape[-1]


def _ahead(own: Layout, other: Layout, place: int, source: int) -> int:
    return own.begins()[place] - other.begins()[source]


@handles("scaled_dot_product_attention")
def attention(
    function: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attend over all tokens, of which each process has some."""
    if not all(isinstance(each, ShardTensor) for each in (query, key, value)):
        return NotImplemented
    token = query.dim() - 2
    if (
        attn_mask is not None
        or dropout_p
        or enable_gqa
        or key.dim() != query.dim()
        or query.shape[:-2] != key.shape[:-2]
    ):
        return NotImplemented
    if query.axis < token and query.layout == key.layout == value.layout:
        return query.like(function(query.part, key.part, value.part, is_causal=is_causal, scale=scale))
    alike = key.layout == value.layout and key.shape == value.shape and query.dtype == key.dtype == value.dtype
    if not alike or query.axis != token or key.axis != token or query.dtype not in _DTYPES:
        return NotImplemented
    queries = query.part if scale is None else query.part * (scale * math.sqrt(query.shape[-1]))
    out = _RingAttention.apply(queries, key.part, value.part, query.domain, query.layout, key.layout, is_causal)
    return query.like(out)


class _Nearest(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, queries: torch.Tensor, points: torch.Tensor, domain: Domain, layout: Layout, k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        begins, held = layout.begins(), points.detach()
        best = np.zeros((queries.shape[0], 0), queries.detach().numpy().dtype)
        numbers = np.zeros((queries.shape[0], 0), np.int64)
        for each in range(domain.size):
            source = (domain.place - each) % domain.size
            far = squared_distances(queries.detach(), held).numpy()
            here = np.broadcast_to(np.arange(begins[source], begins[source + 1]), far.shape)
            best, numbers = np.concatenate([best, far], 1), np.concatenate([numbers, here], 1)
            order = np.lexsort((numbers, best), axis=1)[:, :k]
            best, numbers = np.take_along_axis(best, order, 1), np.take_along_axis(numbers, order, 1)
            if each < domain.size - 1:
                (held,) = _passed_on(domain, [held], _shape([held], layout.sizes[(source - 1) % domain.size]), "ring")
        ctx.domain, ctx.layout = domain, layout
        ctx.save_for_backward(queries, points, torch.from_numpy(numbers))
        found = torch.from_numpy(numbers)
        ctx.mark_non_differentiable(found)
        return torch.from_numpy(best), found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        queries, points, numbers = ctx.saved_tensors
        domain, layout = ctx.domain, ctx.layout
        begins, query_grad = layout.begins(), torch.zeros_like(queries)
        held = [points.detach(), torch.zeros_like(points)]
        for each in range(domain.size):
            source = (domain.place - each) % domain.size
            inside = (numbers >= begins[source]) & (numbers < begins[source + 1])
            row, column = inside.nonzero(as_tuple=True)
            at = numbers[row, column] - begins[source]
            added = 2 * grad[row, column][:, None] * (queries[row] - held[0][at])
            query_grad.index_add_(0, row, added)
            held[1].index_add_(0, at, -added)
            if domain.size > 1:
                held = _passed_on(domain, held, _shape(held, layout.sizes[(source - 1) % domain.size]), "ring")
        return query_grad, held[1], None, None, None


def squared_distances(queries: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return the squared distance of every query from every point.

    Coordinate by coordinate, so that a distance has the same last digit whichever block the point lies in.

    Parameters
    ----------
    queries, points : torch.Tensor
        (n, dim) and (m, dim).
    """
    found = queries.new_zeros(queries.shape[0], points.shape[0])
    for axis in range(queries.shape[1]):
        found += (queries[:, axis, None] - points[None, :, axis]) ** 2
    return found


def nearest(queries: ShardTensor, points: ShardTensor, k: int) -> tuple[ShardTensor, ShardTensor]:
    """Return squared distances and numbers of the nearest points of each query, the nearest first.

    Of equally far points the one with the lower number comes first.

    Parameters
    ----------
    queries, points : ShardTensor
        (n, dim) and (m, dim), cut along the first dimension.
    k : int
        1 to m.

    Raises
    ------
    BadValueError
        If the shapes do not go together, or there are fewer points.
    """
    right = queries.dim() == points.dim() == 2 and queries.axis == points.axis == 0
    if not right or queries.shape[1] != points.shape[1] or queries.dtype != points.dtype:
        raise BadValueError(
            "Queries and points are lists of places.", given=[(each.shape, each.dtype) for each in (queries, points)],
            allowed="(n, dim) and (m, dim) of one type, cut along the first dimension",
        )  # fmt: skip
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= points.shape[0]:
        raise BadValueError("There are not as many points.", given=k, allowed=f"1 to {points.shape[0]}", where="k")
    found, numbers = _Nearest.apply(queries.part, points.part, queries.domain, points.layout, k)
    return queries.like(found), queries.like(numbers)
