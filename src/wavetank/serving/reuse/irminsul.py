"""Irminsul: what stands behind an edit is found by its content and moved, since a latent has no position.

A row of latent attention (MLA) is a latent that depends on no position and a small rotary key that does.  Where a
prompt comes back with a change in its middle, the exact prefix is used as it is, and behind it each segment that its
own tokens cut is taken from wherever it stood: its latents are referenced, its rotary keys turned by the distance
(:func:`wavetank.kernels.rotary.rotated`).  Deeper layers of such rows were computed behind other tokens, so that they
are close and not equal; the first tokens of each moved run are computed again, and the first segment of a prompt, to
which every token attends, is never moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.reuse.blocks import BlockStore
from wavetank.serving.reuse.cuts import segment_units
from wavetank.serving.reuse.interface import Cache, Prompt, Served, Workload
from wavetank.serving.reuse.rivals import served
from wavetank.serving.reuse.segments import check_lengths, content_ends, fixed_ends, keys_of
from wavetank.serving.simulator.reuse import GivenUnits, ReuseRule
from wavetank.settings import check_ranges, setting

Ints = NDArray[np.int64]

COMPUTED, KEPT, MOVED, AGAIN = range(4)


class Placement(NamedTuple):
    """Where the rows of a prompt come from.

    Attributes
    ----------
    kinds : int64 array (ids,)
        COMPUTED: not found; KEPT: of the exact prefix; MOVED: found elsewhere; AGAIN: found elsewhere and computed
        again.
    owners : int64 array (ids,)
        The prompt whose row it is, by its number in the order of service; -1 for computed ones.
    positions : int64 array (ids,)
        Where the row stands there; -1 for computed ones.
    """

    kinds: Ints
    owners: Ints
    positions: Ints


class SegmentCache:
    """A prefix, token by token, and segments of what is behind it, wherever they stood.

    Rows are kept with prefixes, as long as there is room.  Segments are names for them: one whose last row had to go
    has gone, and takes no room of its own.

    Parameters
    ----------
    rule : Irminsul
    budget_tokens : int, optional
        Rows that fit.
    unit : int
        Tokens of an id.
    """

    def __init__(self, rule: Irminsul, *, budget_tokens: int | None, unit: int) -> None:
        self.rule, self.unit, self.prompts = rule, unit, 0
        self.prefixes = BlockStore(budget_tokens=None if budget_tokens is None else budget_tokens // unit, chained=True)
        self.names = BlockStore()
        # Of each name: the prompt, the place in it, the row of the last token and the number of the block there.
        self._stands = np.full((0, 4), -1, np.int64)

    def place(self, prompt: Prompt) -> Placement:
        """Find the rows of a prompt, keep it, and return where they come from.

        Parameters
        ----------
        prompt : Prompt
        """
        rule, ids, count = self.rule, prompt.ids, len(prompt.ids)
        found = Placement(np.zeros(count, np.int64), np.full(count, -1, np.int64), np.full(count, -1, np.int64))
        ones = fixed_ends(count, 1)
        keys = keys_of(ids, ones, chained=True)
        rows = self.prefixes.find(ids, ones, keys)
        prefix = int(np.count_nonzero(rows >= 0))
        found.kinds[:prefix], found.positions[:prefix] = KEPT, np.arange(prefix)
        found.owners[:prefix] = self.prefixes.owners(rows[:prefix])
        least = max(1, rule.least // self.unit)
        ends = content_ends(ids, bits=min(rule.bits, least), least=least, most=max(least, rule.most // self.unit))
        segments = keys_of(ids, ends)
        names = self.names.find(ids, ends, segments)
        stands = np.full((len(names), 4), -1, np.int64)
        stands[names >= 0] = self._stands[names[names >= 0]]
        there = self.prefixes.serials(stands[:, 2])
        stands[(there < 0) | (there != stands[:, 3])] = -1
        self._move(found, ends, stands, prefix)
        self.prefixes.add(ids, ones, keys, rows, owner=self.prompts)
        self.names.add(ids, ends, segments, names)
        self._name(ends, names, stands, rows)
        self.prompts += 1
        return found

    def _name(self, ends: Ints, names: Ints, stands: Ints, rows: Ints) -> None:
        """Say of each segment that has no rows elsewhere that it has those of this prompt."""
        if len(names) and names.max() >= len(self._stands):
            more = np.full((int(names.max()) + 1, 4), -1, np.int64)
            self._stands = np.concatenate([self._stands, more])
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
        # A first segment is never moved: any other place is better.
        new = stands[:, 1] <= 0
        last = rows[ends - 1] if len(ends) else ends
        here = np.stack([np.full(len(ends), self.prompts), starts, last, self.prefixes.serials(last)], 1)
        # From the last to the first, so that of two in one prompt the first one stays; but for the very first.
        order = np.flatnonzero(new)[::-1]
        order = np.concatenate([order[starts[order] == 0], order[starts[order] > 0]])
        self._stands[names[order]] = here[order]

    def _move(self, found: Placement, ends: Ints, stands: Ints, prefix: int) -> None:
        again, start, run, left = -(-self.rule.again // self.unit), 0, (-1, 0), 0
        for end, (owner, place, _, _) in zip(ends.tolist(), stands.tolist(), strict=True):
            # Moved are neither the first segment, which others attend to, nor rows that were the first of their prompt.
            if end > prefix and start > 0 and place > 0:
                source = (owner, place - start)
                # Segments that stood one behind another are one run: what is before the second is what was before it.
                left = again if source != run else left
                run, first = source, max(start, prefix)
                stop = min(first + left, end)
                found.kinds[first:stop], found.kinds[stop:end] = AGAIN, MOVED
                found.owners[first:end], found.positions[first:end] = owner, np.arange(first, end) + source[1]
                left -= stop - first
            elif end > prefix:
                run = (-1, 0)
            start = end

    def serve(self, prompt: Prompt) -> Served:
        """Serve a prompt and keep it.

        Parameters
        ----------
        prompt : Prompt
        """
        kinds = self.place(prompt).kinds
        again, moved = (int(np.count_nonzero(kinds == each)) * self.unit for each in (AGAIN, MOVED))
        return served(prompt, int(np.count_nonzero(kinds)) * self.unit, recomputed=again, moved=moved)


@dataclass(frozen=True, kw_only=True)
class Irminsul:
    """The exact prefix first; behind it, segments cut by their content, moved by turning their rotary keys alone."""

    bits: int = setting(7, says="Bits of the rolling hash that are zero at a cut: one token in 2**bits", low=0, high=20)
    least: int = setting(32, unit="tokens", says="Fewest of a segment", low=1, high=1 << 20)
    most: int = setting(512, unit="tokens", says="Most of a segment", low=1, high=1 << 20)
    again: int = setting(4, unit="tokens", says="First tokens of each moved run that are computed again", low=0,
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
        return SegmentCache(self, budget_tokens=budget_tokens, unit=unit)

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload, shared
            As for :class:`~wavetank.serving.reuse.interface.SimulatedReuse`.
        """
        units = segment_units(workload, bits=self.bits, least=self.least, most=self.most, shared=shared)
        return GivenUnits(given=units, how=ReuseRule(again_tokens=self.again))
