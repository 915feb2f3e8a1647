"""Blocks of a length of its own for each head, and summaries in 4 bits.

Heads differ: where important tokens stand alone, a long block hides them among others, and where they stand in runs, a
short one finds nothing more.  How much a head loses is measured on other text beforehand, as heads keep their ways;
then short blocks go where they gain most, and long ones pay for them.  A summary only ranks its block, so that 4 bits
a number are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.serving.attention import allocation
from wavetank.serving.attention.interface import Cache, Ints
from wavetank.serving.attention.recall import Doubles, block_recalls
from wavetank.serving.attention.sparse_kv import SparseKV
from wavetank.settings import check_ranges, setting


@dataclass(frozen=True, kw_only=True)
class ABSparse:
    """Learns the length of blocks of each head from a calibration, then keeps caches with them."""

    lengths: tuple[int, ...] = setting(
        (16, 32, 64, 128), unit="tokens", says="Lengths of blocks to choose from, ascending", low=1, high=4096
    )
    average: int = setting(
        32, unit="tokens", says="Summaries are as many as with blocks of this length", low=1, high=4096
    )
    summary: str = setting("box", says="What is kept of a block: greatest and least, or mean and distance",
                           choices=("box", "ball"))  # fmt: skip
    reach: float = setting(1.0, says="Of a ball, the share of its radius that counts", low=0, high=1)
    bits: int = setting(4, says="Bits a number of a summary", choices=(4, 32))
    combine: str = setting("sum", says="A block's score over the queries of a group", choices=("max", "sum"))
    search: str = setting("exact", says="How lengths are chosen", choices=("exact", "greedy"))
    threads: int | None = setting(None, says="Threads to use; None for all allowed threads", low=1, high=4096)

    def __post_init__(self) -> None:
        check_ranges(self)
        allocation.check_lengths(self.lengths, self.average)

    def recalls(self, calibration: Cache, budget_share: float) -> Doubles:
        """Return what share of attention each head finds with each length, (heads of keys, lengths).

        Parameters
        ----------
        calibration : Cache
            With queries.
        budget_share : float
            Tokens of a step, of those of the cache.
        """
        return block_recalls(calibration, budget_share, self.lengths, self.summary, self.combine, self.reach)

    def blocks(self, recalls: Doubles) -> Ints:
        """Return the length of the blocks of each head, int64 (heads of keys,).

        Parameters
        ----------
        recalls : float64 array (heads of keys, lengths)
            Shares of attention, from 0 to 1.

        Raises
        ------
        BadValueError
            If a length does not divide the longest, or recalls do not fit.
        """
        import numpy as np

        choose = allocation.greedy if self.search == "greedy" else allocation.exact
        return np.array(self.lengths, np.int64)[choose(recalls, self.lengths, self.average)]

    def build(self, cache: Cache, budget: int, calibration: Cache) -> SparseKV:
        """Return a cache with the lengths that the calibration asks for.

        Parameters
        ----------
        cache : Cache
        budget : int
            Tokens that a head of keys may read in a step.
        calibration : Cache
            Of the same heads, with queries.
        """
        blocks = self.blocks(self.recalls(calibration, budget / cache.keys.shape[1]))
        return SparseKV(
            cache.keys, cache.values, budget, blocks=blocks, summary=self.summary, bits=self.bits,
            combine=self.combine, reach=self.reach, threads=self.threads,
        )  # fmt: skip
