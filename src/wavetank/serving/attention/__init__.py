"""Which keys and values a step of decoding need read, when it may read a few hundredths of them.

A cache keeps a short summary of each block of neighbouring tokens.  A step scores all summaries against its query,
takes the best blocks, and computes attention over their tokens alone.  What differs is how long blocks are, for each
head, what a summary holds, and in how many bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.serving.attention.ab_sparse import ABSparse
    from wavetank.serving.attention.sparse_kv import SparseKV

__getattr__, __dir__, __all__ = lazy_names(__name__)
