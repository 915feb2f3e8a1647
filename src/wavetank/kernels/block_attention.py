"""Attention block by block: partial results of any blocks of keys, merged to what all keys at once give.

A row of attention is a mean of values, weighted by exponentials.  Of a part of the keys it is enough to keep the mean
over them and the logarithm of the sum of their weights: two parts merge to the mean of their means, weighted by those
sums, in any order and without an exponential that overflows.  The backward pass needs that logarithm for all keys, and
no mean of a part.

References
----------
M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018; T. Dao and others, "FlashAttention", 2022.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Floats = NDArray[np.float64]


class Partial(NamedTuple):
    """Attention over a part of the keys.

    Attributes
    ----------
    out : float64 array (heads, queries, dim)
        Mean of the values; 0 where no key of the part may be seen.
    log_sum : float64 array (heads, queries)
        Logarithm of the sum of the weights; minus infinity where no key may be seen.
    """

    out: Floats
    log_sum: Floats


def nothing(queries: Floats) -> Partial:
    """Return attention over no keys, to which parts are merged.

    Parameters
    ----------
    queries : float64 array (heads, queries, dim)
    """
    return Partial(np.zeros(queries.shape), np.full(queries.shape[:2], -np.inf))


def attend_block(queries: Floats, keys: Floats, values: Floats, ahead: int | None = None) -> Partial:
    """Return attention of a block of queries over a block of keys.

    Parameters
    ----------
    queries : float64 array (heads, queries, dim)
    keys, values : float64 array (key heads, keys, dim)
        Each head of keys serves as many neighbouring heads of queries.
    ahead : int, optional
        How many tokens the first query stands after the first key; a query sees no later key.  All are seen when it is
        left out.

    Raises
    ------
    BadValueError
        If the shapes do not go together.
    """
    scores = _scores(queries, keys, values, ahead)
    top = scores.max(-1, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - safe[..., None])
    sums = weights.sum(-1)
    with np.errstate(divide="ignore"):
        log_sum = safe + np.log(sums)
    out = _by_heads(weights, keys) @ values[:, None] / np.where(sums > 0, sums, 1.0).reshape(*_grouped(sums, keys), 1)
    return Partial(out.reshape(queries.shape), log_sum)


def merge(one: Partial, other: Partial) -> Partial:
    """Return attention over the keys of both parts.

    Parameters
    ----------
    one, other : Partial
        Of the same queries, over keys of which none is in both.
    """
    log_sum = np.logaddexp(one.log_sum, other.log_sum)
    seen = np.where(np.isfinite(log_sum), log_sum, 0.0)
    first, second = (np.exp(each.log_sum - seen)[..., None] * each.out for each in (one, other))
    return Partial(first + second, log_sum)


def block_gradients(
    queries: Floats,
    keys: Floats,
    values: Floats,
    whole: Partial,
    out_grad: Floats,
    ahead: int | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Return what one block of keys adds to the gradients of its queries, keys and values.

    Parameters
    ----------
    queries, keys, values, ahead
        As for :func:`attend_block`.
    whole : Partial
        Attention of the queries over all of their keys.  A query that sees none of them has and gives no gradient.
    out_grad : float64 array (heads, queries, dim)
        Gradient of the output.
    """
    scale = 1.0 / math.sqrt(queries.shape[-1])
    # Where nothing is seen all scores are minus infinity: less 0 their weights are 0, less minus infinity they are nan.
    log_sum = np.where(np.isneginf(whole.log_sum), 0.0, whole.log_sum)
    weights = np.exp(_scores(queries, keys, values, ahead) - log_sum[..., None])
    given = out_grad.reshape(*_grouped(out_grad, keys))
    spread = _by_heads(weights, keys)
    own = (out_grad * whole.out).sum(-1).reshape(*_grouped(whole.log_sum, keys), 1)
    score_grad = spread * (given @ values[:, None].swapaxes(-1, -2) - own)
    query_grad = scale * (score_grad @ keys[:, None]).reshape(queries.shape)
    key_grad = scale * (score_grad.swapaxes(-1, -2) @ queries.reshape(*_grouped(queries, keys))).sum(1)
    value_grad = (spread.swapaxes(-1, -2) @ given).sum(1)
    return query_grad, key_grad, value_grad


def _scores(queries: Floats, keys: Floats, values: Floats, ahead: int | None) -> Floats:
    right = queries.ndim == keys.ndim == 3 and keys.shape == values.shape and keys.shape[2] == queries.shape[2] > 0
    if not right or keys.shape[0] < 1 or queries.shape[0] % keys.shape[0]:
        raise BadValueError(
            "Queries, keys and values do not go together.", given=(queries.shape, keys.shape, values.shape),
            allowed="(heads, queries, dim) and twice (key heads, keys, dim), heads a multiple of key heads",
        )  # fmt: skip
    heads, count, dim = queries.shape
    grouped = queries.reshape(*_grouped(queries, keys)) @ keys[:, None].swapaxes(-1, -2)
    scores: Floats = grouped.reshape(heads, count, keys.shape[1]) / math.sqrt(dim)
    if ahead is not None:
        hidden = np.arange(keys.shape[1]) > np.arange(count)[:, None] + ahead
        scores[:, hidden] = -np.inf
    return scores


def _grouped(array: Floats, keys: Floats) -> tuple[int, ...]:
    return keys.shape[0], array.shape[0] // keys.shape[0], *array.shape[1:]


def _by_heads(weights: Floats, keys: Floats) -> Floats:
    return weights.reshape(*_grouped(weights, keys))
