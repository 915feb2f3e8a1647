"""Rankings by a small decoder that was trained to rank: what is left of them when parts of prompts are reused.

A catalogue of about a hundred items, each with a name, words of its taste and words of its own; a user likes items of
two tastes.  The truth is planted: an item is liked the more, the more of the user's history is of its taste, and by a
standing of its own.  The decoder learns, behind ``which?``, the distribution over the candidates' names that this
gives, from prompts drawn at random; its ranking of unseen prompts is read off the logits of these names.  So it has to
read the history, and there is a ranking to be lost.  Whether it does is seen where another user's history stands in the
prompt (``top10_other_user``), which is also what is left of a ranking that knows the candidates alone.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.decoder import DecoderConfig, DecoderWeights, forward
from wavetank.serving.reuse.interface import ENTRY, INSTRUCTIONS, ITEM, TASK, Parts
from wavetank.serving.reuse.rcllm import Again
from wavetank.serving.reuse.selective import Pool, prefill
from wavetank.sim.rng import stream

Ints = NDArray[np.int64]

_ITEMS, _TASTES, _WORDS = 96, 8, 4
ITEM_TOKENS, CANDIDATES, ENTRIES = 8, 24, 8
_LEAD, _LIKED, _WHICH = 6, 6, 7
_FIRST_WORD = 8
_FIRST_NAME = _FIRST_WORD + _TASTES * _WORDS
# How much a history and an item's own standing weigh in the truth.
_HISTORY, _STANDING = 6.0, 1.0
_SIZES: dict[str, Any] = {"vocabulary": _FIRST_NAME + _ITEMS, "layers": 3, "width": 48, "heads": 4, "head_width": 12,
                          "key_heads": 2, "hidden": 96, "window": 512}  # fmt: skip
_BATCH, _RATE = 8, 3e-3
# Of a text of a generated shop, in the mean.
_SHOP_TOKENS = 120


class Asked(NamedTuple):
    """A prompt whose answer is planted.

    Attributes
    ----------
    tokens : int64 array (tokens,)
    parts : Parts
    names : int64 array (candidates,)
        Tokens of the candidates' names, in their order.
    liked : float64 array (candidates,)
        How likely each is the next, 1 together.
    """

    tokens: Ints
    parts: Parts
    names: Ints
    liked: NDArray[np.float64]


class Store:
    """The catalogue: texts, tastes and standings, the same in every run."""

    def __init__(self) -> None:
        draws = stream(0, "ranking catalogue")
        self.tastes = np.arange(_ITEMS) % _TASTES
        self.standing = draws.normal(0.0, _STANDING, _ITEMS)
        words = _FIRST_WORD + self.tastes[:, None] * _WORDS + draws.integers(0, _WORDS, (_ITEMS, 3))
        own = _FIRST_WORD + draws.integers(0, _TASTES * _WORDS, (_ITEMS, ITEM_TOKENS - 4))
        self.texts = np.concatenate([_FIRST_NAME + np.arange(_ITEMS)[:, None], words, own], 1)
        liked = np.full((_ITEMS, 1), _LIKED)
        self.entries = np.concatenate([liked, self.texts[:, :2]], 1)

    def asked(self, draws: np.random.Generator, candidates: int = CANDIDATES, entries: int = ENTRIES) -> Asked:
        """Return a prompt of a new user.

        Parameters
        ----------
        draws : numpy.random.Generator
        candidates, entries : int
        """
        likes = draws.choice(_TASTES, 2, replace=False)
        shares = np.where(np.isin(self.tastes, likes), 1.0, 0.05)
        history = draws.choice(_ITEMS, entries, replace=False, p=shares / shares.sum())
        shown = draws.choice(_ITEMS, candidates, replace=False)
        of = np.bincount(self.tastes[history], minlength=_TASTES) / max(entries, 1)
        score = _HISTORY * of[self.tastes[shown]] + self.standing[shown]
        liked = np.exp(score - score.max(initial=0.0))
        pieces = [np.arange(_LEAD), *self.entries[history], *self.texts[shown], np.array([_WHICH])]
        kinds = [INSTRUCTIONS, *[ENTRY] * entries, *[ITEM] * candidates, TASK]
        ends = np.cumsum([len(each) for each in pieces])
        return Asked(np.concatenate(pieces), Parts(ends, np.array(kinds)), self.texts[shown, 0],
                     liked / max(liked.sum(), 1e-300))  # fmt: skip


@functools.cache
def ranker(steps: int, seed: int = 0) -> DecoderWeights:
    """Return a decoder that was trained to rank, made once a process.

    Parameters
    ----------
    steps : int
        Of AdamW, eight prompts each.
    seed : int
        Draws weights and prompts; no prompt of :func:`figures` is among them.

    Raises
    ------
    MissingExtraError
        If torch is not installed.
    """
    weights = DecoderWeights.made(DecoderConfig(**_SIZES), seed)
    import torch

    store, draws, before = Store(), stream(seed, "ranking lessons"), torch.get_num_threads()
    tensors = {name: each.clone().requires_grad_(True) for name, each in weights.tensors.items()}
    learning = DecoderWeights(weights.config, tensors)
    optimizer = torch.optim.AdamW(tensors.values(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    torch.set_num_threads(1)
    try:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = _RATE * min((step + 1) / max(0.1 * steps, 1.0), 1.1 * (1.0 - step / steps))
            lessons = [store.asked(draws) for _ in range(_BATCH)]
            tokens = torch.from_numpy(np.stack([each.tokens for each in lessons]))
            got = forward(learning, tokens, np.arange(tokens.shape[1])).logits[:, -1]
            names = torch.from_numpy(np.stack([each.names for each in lessons]))
            wanted = torch.from_numpy(np.stack([each.liked for each in lessons])).to(got)
            loss = -(wanted * got.gather(1, names).log_softmax(-1)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(tensors.values()), 1.0)
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    return DecoderWeights(weights.config, {name: each.detach() for name, each in tensors.items()})


def scaled(again: Again) -> Again:
    """Return a rule for items that are a fifteenth as long as those of a shop: as large a part of each comes first.

    Parameters
    ----------
    again : Again
    """
    first = min(again.first, max(1, round(again.first * ITEM_TOKENS / _SHOP_TOKENS)))
    return Again(again.share, first, again.most)


@functools.lru_cache(maxsize=2)
def _pool(weights: DecoderWeights) -> Pool:
    store = Store()
    return Pool(weights, [*store.texts, *store.entries])


def figures(weights: DecoderWeights, again: Again | None, *, prompts: int, seed: int) -> dict[str, float]:
    """Return how rankings with reused parts compare with those of a full prefill, and with the truth.

    Parameters
    ----------
    weights : DecoderWeights
    again : Again, optional
        Which kept tokens are computed again; a full prefill when it is left out.
    prompts : int
    seed : int
        Draws prompts.
    """
    import torch

    store, draws, others = Store(), stream(seed, "ranking prompts"), stream(seed, "ranking others")
    overlaps, divergences, trues, computed, strangers = [], [], [], [], []
    with torch.no_grad():
        for _ in range(prompts):
            asked = store.asked(draws)
            full = forward(weights, asked.tokens, np.arange(len(asked.tokens))).logits[-1]
            ours, new = full, len(asked.tokens)
            if again is not None:
                found = prefill(weights, asked.tokens, asked.parts, _pool(weights), again)
                ours, new = found.logits, len(found.computed)
            theirs, mine = (each[asked.names].double().log_softmax(-1).numpy() for each in (full, ours))
            best = [set(_best(each)) for each in (mine, theirs, asked.liked)]
            overlaps.append(len(best[0] & best[1]) / len(best[1]))
            trues.append(len(best[0] & best[2]) / len(best[2]))
            divergences.append(float((np.exp(theirs) * (theirs - mine)).sum()))
            computed.append(new / len(asked.tokens))
            history = slice(_LEAD, int(asked.parts.ends[ENTRIES]))
            swapped = asked.tokens.copy()
            swapped[history] = store.asked(others).tokens[history]
            other = forward(weights, swapped, np.arange(len(swapped))).logits[-1][asked.names].double().numpy()
            strangers.append(len(set(_best(other)) & best[1]) / len(best[1]))
    return {
        "top10_overlap": float(np.mean(overlaps)), "top10_true": float(np.mean(trues)),
        "ranking_kl_nats": float(np.mean(divergences)), "ranking_computed_share": float(np.mean(computed)),
        "top10_other_user": float(np.mean(strangers)),
    }  # fmt: skip


def _best(scores: NDArray[np.float64]) -> list[int]:
    found: list[int] = np.argsort(-scores, kind="stable")[:10].tolist()
    return found
