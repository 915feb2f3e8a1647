"""Prompts executed on the reference decoder with the rows that a rule of reuse has for them.

Where a rule says that a row comes from an earlier prompt, it is taken from what that prompt left in its cache, right
or not, and turned by the distance; everything else is computed in one call that attends to these rows.  So errors go
on from prompt to prompt as they would in a server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.decoder import Cache, DecoderWeights, blank, forward, joined, moved, taken
from wavetank.serving.reuse.interface import Prompt
from wavetank.serving.reuse.irminsul import AGAIN, COMPUTED, KEPT, MOVED, Irminsul, Placement, SegmentCache

Ints = NDArray[np.int64]


class Executed(NamedTuple):
    """A prompt whose rows are there.

    Attributes
    ----------
    cache : Cache
        Of all tokens, row by row in the order of the prompt.
    logits : torch.Tensor (vocabulary,)
        What follows the prompt.
    computed : int
        Tokens that were computed, those computed again included.
    """

    cache: Cache
    logits: Any
    computed: int


def execute(
    weights: DecoderWeights, prompts: Sequence[Ints], rule: Irminsul | None, *, share: float = 0.0, turned: bool = True
) -> list[Executed]:
    """Serve prompts one after another.

    Parameters
    ----------
    weights : DecoderWeights
    prompts : sequence of int64 array (tokens,)
    rule : Irminsul, optional
        Everything is computed when it is left out.
    share : float
        Of moved tokens, those that differ most in the second layer, which are computed again, as CacheBlend does.
    turned : bool
        Whether rotary keys of moved rows are turned.
    """
    placing = None if rule is None else SegmentCache(rule, budget_tokens=None, unit=1)
    done: list[Executed] = []
    for tokens in prompts:
        count = len(tokens)
        place = _nothing(count) if placing is None else placing.place(Prompt(tokens.astype(np.uint32), count, 0))
        rows = _rows(weights, done, place, turned=turned)
        if share:
            place = _blended(weights, tokens, place, rows, share)
            rows = _rows(weights, done, place, turned=turned)
        new = np.union1d(np.flatnonzero((place.kinds == COMPUTED) | (place.kinds == AGAIN)), [count - 1])
        kept = taken(rows, rows.positions != count - 1)
        got = forward(weights, tokens[new], new, kept)
        done.append(Executed(taken(got.cache, np.argsort(got.cache.positions)), got.logits[-1], len(new)))
    return done


def _nothing(count: int) -> Placement:
    return Placement(np.zeros(count, np.int64), np.full(count, -1, np.int64), np.full(count, -1, np.int64))


def _rows(weights: DecoderWeights, done: Sequence[Executed], place: Placement, *, turned: bool) -> Cache:
    """Return the rows that are reused, each at its new position."""
    parts, reused = [blank(weights.config, 0)], (place.kinds == KEPT) | (place.kinds == MOVED)
    for owner in np.unique(place.owners[reused]).tolist():
        here = np.flatnonzero(reused & (place.owners == owner))
        rows = taken(done[owner].cache, place.positions[here])
        parts.append(moved(weights.config, rows, here) if turned else rows._replace(positions=here))
    return joined(parts)


def _blended(weights: DecoderWeights, tokens: Ints, place: Placement, rows: Cache, share: float) -> Placement:
    """Return a placement that computes those moved tokens again whose second layer differs most from a full pass."""
    moving = np.flatnonzero(place.kinds == MOVED)
    if not len(moving):
        return place
    first = weights.first(2)
    count = len(tokens)
    prefix = taken(rows, place.kinds[rows.positions] == KEPT)
    new = np.setdiff1d(np.arange(count), prefix.positions)
    true = forward(first, tokens[new], new, prefix._replace(layers=prefix.layers[:2])).cache
    true = taken(true, np.argsort(true.positions))
    had = taken(rows, np.argsort(rows.positions))
    had = taken(had, np.isin(had.positions, moving))
    differs = (true.layers[-1].still[..., moving, :] - had.layers[1].still).square().sum(-1)
    while differs.ndim > 1:
        differs = differs.sum(0)
    worst = np.argsort(-differs.numpy(), kind="stable")[: math.ceil(share * len(moving))]
    kinds = place.kinds.copy()
    kinds[moving[worst]] = AGAIN
    return place._replace(kinds=kinds)


class Agreement(NamedTuple):
    """How close answers with reused rows are to those without.

    Attributes
    ----------
    top1 : float
        Share of tokens for which the likeliest next one is the same.
    top10 : float
        Share of the ten likeliest next ones that are the same, mean.
    kl_nats : float
        Kullback-Leibler divergence of what is predicted from what would be, mean.
    loss_nats : float
        By how much the true next token is less likely, mean of logarithms; may be negative.
    """

    top1: float
    top10: float
    kl_nats: float
    loss_nats: float


def agreement(weights: DecoderWeights, ours: Executed, full: Executed, following: Ints) -> Agreement:
    """Compare what is predicted along a true continuation.

    Parameters
    ----------
    weights : DecoderWeights
    ours, full : Executed
        Of one prompt.
    following : int64 array (tokens,)
        What follows the prompt.
    """
    logs = [_predicted(weights, each, following) for each in (ours, full)]
    got, true = (each.log_softmax(-1) for each in logs)
    best = [each.topk(10, -1).indices for each in (got, true)]
    same = (best[0][:, :, None] == best[1][:, None, :]).any(-1).double().mean()
    wanted = np.arange(len(following)), following
    return Agreement(
        float((best[0][:, 0] == best[1][:, 0]).double().mean()), float(same),
        float((true.exp() * (true - got)).sum(-1).mean()), float((true[wanted] - got[wanted]).mean()),
    )  # fmt: skip


def _predicted(weights: DecoderWeights, done: Executed, following: Ints) -> Any:
    import torch

    start = len(done.cache.positions)
    got = forward(weights, following[:-1], np.arange(start, start + len(following) - 1), done.cache)
    return torch.cat([done.logits[None], got.logits]).double()
