"""Other ways with the parts of a prompt: used as they are, or found only behind what stood before them."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.serving.reuse.interface import Cache
from wavetank.serving.reuse.rcllm import Again, PartCache, PartPools


@dataclass(frozen=True, kw_only=True)
class FullReuse(PartPools):
    """Parts from the same pools, moved and used as they are: nothing of them is computed again, as in Prompt Cache."""


@dataclass(frozen=True, kw_only=True)
class ChainedParts:
    """Parts with keys that are chained on everything before them, as a store of prefixes has them."""

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens, unit : int
            As for :class:`~wavetank.serving.reuse.interface.Reuse`.
        """
        return PartCache(Again(0.0, 0), budget_tokens=budget_tokens, unit=unit, chained=True)
