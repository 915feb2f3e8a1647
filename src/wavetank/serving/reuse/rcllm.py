"""RcLLM: what a prompt of a recommender is put together from is kept part by part, wherever it stood.

Two pools.  Entries of users' histories are short and few of them make most of all histories: those that most of
earlier requests had are on every worker.  Texts of items are too many for one worker: each is computed once, alone,
and kept by one worker, beside others that are asked for together with it; the hottest are everywhere
(:mod:`wavetank.serving.reuse.placement`).  A request goes where its first token is predicted soonest
(:class:`wavetank.serving.routing.block_affinity.BlockAffinity`); what is kept elsewhere is fetched while earlier
layers are computed.  Kept keys are turned to where they stand now, and what matters is computed again with everything
before it in sight: the instructions, what is kept nowhere, the first tokens of each part, and of the others those whose
values differ most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import unknown_name
from wavetank.serving.reuse.blocks import BlockStore
from wavetank.serving.reuse.interface import INSTRUCTIONS, ITEM, TASK, Cache, Parts, Prompt, Served
from wavetank.serving.reuse.placement import RULES, Placement, place, together
from wavetank.serving.reuse.recommender import Shop
from wavetank.serving.reuse.rivals import served
from wavetank.serving.reuse.segments import keys_of
from wavetank.settings import check_ranges, setting

Ints = NDArray[np.int64]


class Again(NamedTuple):
    """Which kept tokens are computed again.

    Attributes
    ----------
    share : float
        Of those behind the first ones, the most different ones.
    first : int
        Tokens of each part, at most.
    most : float
        Of each part, at most, as a share.
    """

    share: float
    first: int
    most: float = 1.0

    def firsts(self, lengths: Ints) -> Ints:
        """Return how many first tokens of parts are computed again.

        Parameters
        ----------
        lengths : int64 array (parts,)
            Of the parts, in tokens.
        """
        return np.minimum(np.ceil(self.most * lengths).astype(np.int64), self.first)

    def count(self, lengths: Ints) -> int:
        """Return how many tokens of kept parts are computed again.

        Parameters
        ----------
        lengths : int64 array (parts,)
            Of the parts, in tokens.
        """
        first = int(self.firsts(lengths).sum())
        return first + math.ceil(self.share * (int(lengths.sum()) - first))


def parts_of(prompt: Prompt) -> Parts:
    """Return of what a prompt consists; one nameless part where nobody says.

    Parameters
    ----------
    prompt : Prompt
    """
    if prompt.parts is not None:
        return prompt.parts
    whole = [len(prompt.ids)] if len(prompt.ids) else []
    return Parts(np.array(whole, np.int64), np.full(len(whole), ITEM, np.int64))


class PartCache:
    """Parts of prompts, found by their content wherever they stood, the least recently used out first.

    Parameters
    ----------
    again : Again
    budget_tokens : int, optional
        Tokens that fit.
    unit : int
        Tokens of an id.
    chained : bool
        Whether a part is found only behind all that stood before it.
    """

    def __init__(self, again: Again, *, budget_tokens: int | None, unit: int, chained: bool = False) -> None:
        self.again, self.unit, self.chained = again, unit, chained
        self.store = BlockStore(budget_tokens=None if budget_tokens is None else budget_tokens // unit, chained=chained)

    def serve(self, prompt: Prompt) -> Served:
        """Serve a prompt and keep its parts, but for what is asked.

        Parameters
        ----------
        prompt : Prompt
        """
        parts = parts_of(prompt)
        kept = parts.kinds != TASK
        ends = parts.ends[: int(np.argmin(kept))] if not kept.all() else parts.ends
        ids = prompt.ids[: ends[-1]] if len(ends) else prompt.ids[:0]
        keys = keys_of(ids, ends, chained=self.chained)
        rows = self.store.find(ids, ends, keys)
        starts = ends - np.diff(ends, prepend=0)
        found = rows >= 0
        lengths = (ends - starts) * self.unit
        elsewhere = found & (self.store.positions(np.maximum(rows, 0)) != starts) if found.any() else found
        self.store.add(ids, ends, keys, rows)
        if self.chained:
            return served(prompt, int(lengths[found].sum()))
        lead = found & (parts.kinds[: len(ends)] == INSTRUCTIONS)
        # A last id that stands for fewer tokens than others has no more of them.
        again = min(int(lengths[lead].sum()) + self.again.count(lengths[found & ~lead]), prompt.tokens)
        return served(prompt, int(lengths[found].sum()), recomputed=again, moved=int(lengths[elsewhere].sum()))


class Pools(NamedTuple):
    """What workers keep.

    Attributes
    ----------
    entries : bool array (two of each item,)
        Entries of histories that every worker has.
    items : Placement
    """

    entries: NDArray[np.bool_]
    items: Placement


@dataclass(frozen=True, kw_only=True)
class PartPools:
    """Base of rules with pools of parts: how they are filled; all rules fill them alike."""

    replicas: float = setting(0.01, says="Hottest items that every worker has, as a share of all", low=0.0, high=1.0)
    entry_room: float = setting(0.25, says="Share of a worker's room for entries of histories", low=0.0, high=1.0)
    slack: float = setting(0.05, says="Heat that a worker may have above the mean, as a share of it", low=0.0,
                           high=100.0)  # fmt: skip
    placement: str = setting("balanced", says="balanced (greedy, refined), multilevel (as METIS), random",
                             choices=RULES)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.placement not in RULES:
            raise unknown_name("placement", self.placement, RULES)

    def again(self) -> Again:
        """Return which kept tokens are computed again: none."""
        return Again(0.0, 0)

    def pools(self, shop: Shop, *, workers: int, node_tokens: int, seed: int) -> Pools:
        """Return what workers keep, from the requests that may be learned from.

        Parameters
        ----------
        shop : Shop
        workers : int
        node_tokens : int
            Room of a worker; 0: no limit, every worker has everything.
        seed : int
            Of the random placement.
        """
        count = len(shop.items)
        if not node_tokens:
            return Pools(np.ones(2 * count, bool), Placement(np.full(count, -1, np.int64), np.ones(count, bool)))
        often = _counts([each.history for each in shop.learned], 2 * count)
        sizes = np.repeat([len(each) for each in shop.titles], 2) * shop.unit
        sizes += np.tile([len(each) for each in shop.marks], count) * shop.unit
        order = np.lexsort((np.arange(2 * count), -often))
        order = order[often[order] > 0]
        fits = np.cumsum(sizes[order]) <= int(self.entry_room * node_tokens)
        entries = np.zeros(2 * count, bool)
        entries[order[fits]] = True
        asked = [each.candidates for each in shop.learned]
        lengths = np.array([len(each) for each in shop.items], np.int64) * shop.unit
        items = place(
            together(count, asked), lengths, _counts(asked, count), workers=workers,
            room=node_tokens - int(sizes[entries].sum()), slack=self.slack, replicas=self.replicas,
            rule=self.placement, seed=seed,
        )  # fmt: skip
        return Pools(entries, items)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache of one worker that keeps what it served.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return PartCache(self.again(), budget_tokens=budget_tokens, unit=unit)


@dataclass(frozen=True, kw_only=True)
class RcLLM(PartPools):
    """Parts of prompts from two pools, moved, and computed again where it matters."""

    share: float = setting(0.15, says="Kept tokens that are computed again, those whose values differ most", low=0.0,
                           high=1.0)  # fmt: skip
    first: int = setting(16, unit="tokens", says="Most first tokens of each part that are computed again", low=0,
                         high=1 << 20)  # fmt: skip
    first_share: float = setting(0.125, says="Most of them as a share of a part, so that short ones are reused, too",
                                 low=0.0, high=1.0)  # fmt: skip

    def again(self) -> Again:
        """Return which kept tokens are computed again."""
        return Again(self.share, self.first, self.first_share)


def _counts(pieces: Sequence[Ints], count: int) -> Ints:
    return np.bincount(np.concatenate([np.zeros(0, np.int64), *pieces]), minlength=count).astype(np.int64)
