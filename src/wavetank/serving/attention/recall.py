"""How much of full attention the tokens of a step have: one definition, for what is learned and what is judged.

Full attention is computed in float64 with numpy's products, apart from the compiled code that it judges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.attention.interface import Cache, Floats, Ints

Doubles = NDArray[np.float64]


class Full(NamedTuple):
    """Full attention of one head of keys.

    Attributes
    ----------
    shares : float64 array (steps, group, tokens)
        What each token has of a query's attention; 1 in all.
    out : float64 array (steps, group, dim)
    """

    shares: Doubles
    out: Doubles


def full_attention(cache: Cache, head: int) -> Full:
    """Return full attention of one head of keys for all of its queries.

    Parameters
    ----------
    cache : Cache
    head : int
        Of keys.
    """
    group, dim = cache.group, cache.keys.shape[2]
    queries = cache.queries[:, head * group : (head + 1) * group].astype(np.float64).reshape(-1, dim)
    products = queries @ cache.keys[head].T.astype(np.float64) / np.sqrt(dim)
    products -= products.max(1, keepdims=True)
    shares = np.exp(products, out=products)
    shares /= shares.sum(1, keepdims=True)
    out = shares @ cache.values[head].astype(np.float64)
    steps = cache.queries.shape[0]
    return Full(shares.reshape(steps, group, -1), out.reshape(steps, group, dim))


def mass(shares: Doubles, tokens: Ints) -> float:
    """Return the share of attention that some tokens have, mean over the queries of a group.

    Parameters
    ----------
    shares : float64 array (group, tokens)
    tokens : int64 array
        None of them twice.
    """
    return float(shares[:, tokens].sum(1).mean())


def top_tokens(shares: Doubles, count: int) -> Ints:
    """Return a query's most important tokens, int64 (..., count); of equal ones any.

    Parameters
    ----------
    shares : float64 array (..., tokens)
    count : int
        At most all tokens.
    """
    return np.argpartition(shares, shares.shape[-1] - count, axis=-1)[..., shares.shape[-1] - count :]


def top_share(top: Ints, tokens: Ints) -> float:
    """Return which share of the most important tokens is among some tokens, mean over the queries of a group.

    Parameters
    ----------
    top : int64 array (group, count)
    tokens : int64 array
        Ascending.
    """
    places = np.minimum(np.searchsorted(tokens, top), tokens.size - 1)
    return float((tokens[places] == top).mean())


def block_recalls(
    cache: Cache, budget_share: float, lengths: tuple[int, ...], summary: str, combine: str, reach: float
) -> Doubles:
    """Return what share of attention the best blocks of each length have, (heads of keys, lengths).

    Blocks are chosen as a step would, from summaries in float32.

    Parameters
    ----------
    cache : Cache
        With queries.
    budget_share : float
        Tokens of a step, of those of the cache.
    lengths : tuple of int
        Tokens of a block.
    summary, combine, reach
        As for :class:`~wavetank.serving.attention.sparse_kv.SparseKV`.
    """
    from wavetank.serving.attention.sparse_kv import SparseKV

    tokens = cache.keys.shape[1]
    budget = min(max(round(budget_share * tokens), min(2 * max(lengths), tokens)), tokens)
    found = np.zeros((cache.keys.shape[0], len(lengths)))
    kept = [
        SparseKV(cache.keys, cache.values, budget, blocks=each, bits=32, summary=summary, combine=combine, reach=reach)
        for each in lengths
    ]
    chosen = [[each.selected(query) for query in cache.queries] for each in kept]
    for head in range(cache.keys.shape[0]):
        shares = full_attention(cache, head).shares
        for length in range(len(lengths)):
            masses = [mass(shares[step], of_step[head]) for step, of_step in enumerate(chosen[length])]
            found[head, length] = min(1.0, float(np.mean(masses)))
    return found


def dense(query: Floats, keys: Floats, values: Floats) -> Doubles:
    """Return attention of a group over some keys in float64, (group, dim).

    Parameters
    ----------
    query : float32 array (group, dim)
    keys, values : float32 array (tokens, dim)
    """
    products = query.astype(np.float64) @ keys.T.astype(np.float64) / np.sqrt(query.shape[1])
    shares = np.exp(products - products.max(1, keepdims=True))
    return np.asarray(shares @ values.astype(np.float64) / shares.sum(1, keepdims=True))
