"""Other ways with rows behind an edit: turn whole keys, compute a share again, compute nothing but the change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wavetank.serving.reuse.energy import MODEL_ROW, grouped_row, model_layers
from wavetank.serving.reuse.interface import Cache, Prompt, Served, Workload
from wavetank.serving.reuse.irminsul import Irminsul, SegmentCache
from wavetank.serving.reuse.rivals import served
from wavetank.serving.simulator.reuse import GivenUnits, ReuseRule
from wavetank.settings import check_ranges, setting

# Layers that CacheBlend computes for all moved tokens, to see which of them differ.
LOOKED_AT = 2


@dataclass(frozen=True, kw_only=True)
class FullKeyRotation:
    """Segments as Irminsul's, in a model with grouped queries: all numbers of a key are turned, and rows are larger."""

    key_heads: int = setting(8, says="Heads of keys and values, of 128 numbers each", low=1, high=1_024)
    again: int = setting(4, unit="tokens", says="First tokens of each moved run that are computed again", low=0,
                         high=1 << 20)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache, in the same bytes: fewer rows fit.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`; tokens of latent rows.
        """
        row = grouped_row(self.key_heads)
        budget = None if budget_tokens is None else budget_tokens * MODEL_ROW.numbers // row.numbers
        return SegmentCache(Irminsul(again=self.again), budget_tokens=budget, unit=unit)

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        return Irminsul(again=self.again).policy(workload, shared=shared)


@dataclass(frozen=True, kw_only=True)
class UnturnedRows:
    """Irminsul without its rotation: rotary keys of moved rows say still where they stood."""

    again: int = setting(4, unit="tokens", says="First tokens of each moved run that are computed again", low=0,
                         high=1 << 20)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return SegmentCache(Irminsul(again=self.again), budget_tokens=budget_tokens, unit=unit)


class _Blend:
    def __init__(self, share: float, *, budget_tokens: int | None, unit: int) -> None:
        self.share, self.inner = share, SegmentCache(Irminsul(again=0), budget_tokens=budget_tokens, unit=unit)

    def serve(self, prompt: Prompt) -> Served:
        found = self.inner.serve(prompt)
        again = math.ceil(self.share * found.moved)
        return found._replace(
            reused=found.reused - again, recomputed=found.recomputed + again, moved=found.moved - again
        )


@dataclass(frozen=True, kw_only=True)
class CacheBlend:
    """Segments as Irminsul's; moved tokens whose values differ most in the second layer are computed again."""

    share: float = setting(0.15, says="Moved tokens that are computed again, as a share", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return _Blend(self.share, budget_tokens=budget_tokens, unit=unit)

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        The layers that are computed for all moved tokens count as as many tokens that are computed again.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        looked = LOOKED_AT / model_layers()
        how = ReuseRule(again_share=self.share + (1.0 - self.share) * looked)
        return replace(Irminsul(again=0).policy(workload, shared=shared), how=how)


class _Grams:
    """All runs of some ids that ever were, by a hash of 64 bits."""

    def __init__(self, ids: int, unit: int) -> None:
        self.ids, self.unit, self.seen = ids, unit, set[int]()

    def serve(self, prompt: Prompt) -> Served:
        mixed = prompt.ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        count = max(len(mixed) - self.ids + 1, 0)
        grams = np.zeros(count, np.uint64)
        for step in range(self.ids if count else 0):
            grams = grams * np.uint64(0x94D049BB133111EB) + mixed[step : step + count]
        names = grams.tolist()
        known = np.fromiter((each in self.seen for each in names), bool, count)
        covered = np.zeros(len(mixed) + 1, np.int64)
        np.add.at(covered, np.flatnonzero(known), 1)
        np.add.at(covered, np.flatnonzero(known) + self.ids, -1)
        self.seen.update(names)
        return served(prompt, int(np.count_nonzero(np.cumsum(covered[:-1]))) * self.unit)


@dataclass(frozen=True, kw_only=True)
class IdealRecompute:
    """A bound: every token of a run that ever stood anywhere is exact and costs nothing to move."""

    least: int = setting(32, unit="tokens", says="Shortest run that counts", low=1, high=1 << 12)

    def __post_init__(self) -> None:
        check_ranges(self)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache without a limit.

        Parameters
        ----------
        budget_tokens : int, optional
            Of no effect: a bound.
        unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return _Grams(max(1, self.least // unit), unit)
