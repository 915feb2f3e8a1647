"""Rules of reuse that serving engines have: none, blocks of a prefix, single tokens of it, blocks wherever they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetank.serving.reuse.blocks import BlockStore
from wavetank.serving.reuse.cuts import content_units, prefix_units, segment_units
from wavetank.serving.reuse.interface import Cache, Prompt, Served, Workload
from wavetank.serving.reuse.segments import check_lengths, content_ends, fixed_ends, keys_of
from wavetank.serving.simulator.reuse import GivenUnits, ReuseRule, no_units
from wavetank.settings import check_ranges, setting


def served(prompt: Prompt, found: int, *, recomputed: int = 0, moved: int = 0) -> Served:
    """Return the counts of a prompt of which a number of tokens was found.

    Parameters
    ----------
    prompt : Prompt
    found : int
        Tokens; a last id that stands for fewer than others may have been counted whole.
    recomputed : int
        Of these, how many are computed again.  The last token of a prompt always is: the answer follows from it.
    moved : int
        Of those found and not computed again, how many stood elsewhere.
    """
    found = min(found, prompt.tokens)
    recomputed = max(recomputed, found - max(prompt.tokens - 1, 0))
    return Served(found - recomputed, recomputed, prompt.tokens - found, min(moved, found - recomputed))


@dataclass(frozen=True, slots=True)
class _Nothing:
    def serve(self, prompt: Prompt) -> Served:
        return Served(0, 0, prompt.tokens)


@dataclass(frozen=True, kw_only=True)
class NoReuse:
    """Every prompt is computed whole."""

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return what keeps nothing.

        Parameters
        ----------
        budget_tokens, unit : int
            Of no effect.
        """
        return _Nothing()

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        return GivenUnits(given=no_units(len(workload.prompts)))


class _FixedBlocks:
    """A store of blocks of one length; whether it keeps a last block that is not full, too."""

    def __init__(
        self, *, ids: int, unit: int, budget_tokens: int | None, chained: bool, partial: bool = False
    ) -> None:
        self.ids, self.unit, self.chained, self.partial = ids, unit, chained, partial
        # The store counts ids; a last one that stands for fewer tokens takes the room of a whole one.
        budget = None if budget_tokens is None else budget_tokens // unit
        self.store = BlockStore(budget_tokens=budget, chained=chained)

    def serve(self, prompt: Prompt) -> Served:
        ends = fixed_ends(len(prompt.ids), self.ids)
        if not self.partial:
            ends = ends[: prompt.tokens // self.unit // self.ids]
        keys = keys_of(prompt.ids, ends, chained=self.chained)
        rows = self.store.find(prompt.ids, ends, keys)
        found = int(np.diff(ends, prepend=0)[rows >= 0].sum()) * self.unit
        known = np.flatnonzero(rows >= 0)
        lengths = np.diff(ends, prepend=0)[known]
        elsewhere = self.store.positions(rows[known]) != ends[known] - lengths
        moved = int(lengths[elsewhere].sum()) * self.unit
        self.store.add(prompt.ids, ends, keys, rows)
        return served(prompt, found, moved=moved)


@dataclass(frozen=True, kw_only=True)
class BlockPrefix:
    """Full blocks of a prefix, each found by a hash that it shares with no other prefix; as vLLM does."""

    block: int = setting(16, unit="tokens", says="Tokens of a block", low=1, high=1 << 20)

    def __post_init__(self) -> None:
        check_ranges(self)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return _FixedBlocks(ids=max(1, self.block // unit), unit=unit, budget_tokens=budget_tokens, chained=True)

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        return GivenUnits(given=prefix_units(workload, max(1, self.block // workload.unit), shared=shared))


@dataclass(frozen=True, kw_only=True)
class RadixCache:
    """The longest prefix that was ever seen, token by token; as SGLang's tree finds it."""

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return _FixedBlocks(ids=1, unit=unit, budget_tokens=budget_tokens, chained=True, partial=True)

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        return GivenUnits(given=prefix_units(workload, 1, shared=shared))


@dataclass(frozen=True, kw_only=True)
class FixedContent:
    """Full blocks at fixed places, found by their content alone, wherever they stood."""

    block: int = setting(512, unit="tokens", says="Tokens of a block", low=1, high=1 << 20)

    def __post_init__(self) -> None:
        check_ranges(self)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return _FixedBlocks(ids=max(1, self.block // unit), unit=unit, budget_tokens=budget_tokens, chained=False)

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        return GivenUnits(given=content_units(workload, max(1, self.block // workload.unit), shared=shared))


class _Segments:
    """A prefix, token by token, and segments of what is behind it."""

    def __init__(self, rule: ContentSegments, *, budget_tokens: int | None, unit: int) -> None:
        self.rule, self.unit = rule, unit
        # The two evict on their own, so that each may hold tokens that the other has given up: half of the room each.
        budget = None if budget_tokens is None else budget_tokens // unit // 2
        self.prefixes = BlockStore(budget_tokens=budget, chained=True)
        self.segments = BlockStore(budget_tokens=budget)

    def serve(self, prompt: Prompt) -> Served:
        rule, ids = self.rule, prompt.ids
        ones = fixed_ends(len(ids), 1)
        keys = keys_of(ids, ones, chained=True)
        rows = self.prefixes.find(ids, ones, keys)
        prefix = int(np.count_nonzero(rows >= 0))
        self.prefixes.add(ids, ones, keys, rows)
        least = max(1, rule.least // self.unit)
        ends = content_ends(ids, bits=min(rule.bits, least), least=least, most=max(least, rule.most // self.unit))
        keys = keys_of(ids, ends)
        rows = self.segments.find(ids, ends, keys)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        beyond = np.maximum(ends - np.maximum(starts, prefix), 0)
        # The first segment holds what all tokens look at, whatever they are about: only where it stood before.
        moved = (rows >= 0) & (starts > 0) & (beyond > 0)
        self.segments.add(ids, ends, keys, rows)
        again = int(np.minimum(beyond[moved], rule.again // self.unit).sum()) * self.unit
        behind = int(beyond[moved].sum()) * self.unit
        return served(prompt, prefix * self.unit + behind, recomputed=again, moved=behind - again)


@dataclass(frozen=True, kw_only=True)
class ContentSegments:
    """The longest prefix first, then segments that their own tokens cut, found wherever they stood."""

    bits: int = setting(7, says="Bits of the rolling hash that are zero at a cut: one token in 2**bits", low=0, high=20)
    least: int = setting(32, unit="tokens", says="Fewest of a segment", low=1, high=1 << 20)
    most: int = setting(512, unit="tokens", says="Most of a segment", low=1, high=1 << 20)
    again: int = setting(0, unit="tokens", says="First tokens of a moved segment that are computed again", low=0,
                         high=1 << 20)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)
        check_lengths(bits=self.bits, least=self.least, most=self.most)

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return _Segments(self, budget_tokens=budget_tokens, unit=unit)

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        units = segment_units(workload, bits=self.bits, least=self.least, most=self.most, shared=shared)
        return GivenUnits(given=units, how=ReuseRule(again_tokens=self.again))
