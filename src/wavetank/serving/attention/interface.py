"""What a way of attention is asked: take a cache, and answer queries over it within a budget of tokens."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Cache(NamedTuple):
    """Keys and values of one layer, and queries that come to them.

    Attributes
    ----------
    keys, values : float32 array (key heads, tokens, dim)
    queries : float32 array (steps, heads, dim)
        Neighbouring heads share a head of keys.
    """

    keys: Floats
    values: Floats
    queries: Floats

    @property
    def group(self) -> int:
        """Heads that share a head of keys."""
        return self.queries.shape[1] // self.keys.shape[0]


class Attention(Protocol):
    """A cache that is ready to be asked."""

    def attend(self, query: Floats) -> Floats:
        """Return the answer to one query, float32 (heads, dim).

        Parameters
        ----------
        query : float32 array (heads, dim)
        """
        ...

    def selected(self, query: Floats) -> list[Ints]:
        """Return the tokens that the answer is computed from, ascending, for each head of keys.

        Parameters
        ----------
        query : float32 array (heads, dim)
        """
        ...

    @property
    def summary_bytes(self) -> int:
        """Bytes kept beside keys and values."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes that a step must read at least: keys and values of the budget, and summaries."""
        ...


class SparseAttention(Protocol):
    """A rule: which tokens a query reads."""

    def build(self, cache: Cache, budget: int, calibration: Cache) -> Attention:
        """Return a cache that is ready.

        Parameters
        ----------
        cache : Cache
            Its queries are not to be looked at.
        budget : int
            Tokens that a head of keys may read in a step.
        calibration : Cache
            Another one of the same model, with queries to learn from.
        """
        ...
