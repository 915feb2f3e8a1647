"""Keys and values of one layer that a step reads in part: each head in blocks of a length of its own.

Tokens can be appended.  A block gets its summary when it is whole; the tokens behind the last whole block, and the
first block, are always read.  The summaries of a tile in 4 bits are coded anew when a block is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wavetank.errors import BadValueError, unknown_name
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.machine.threads import allowed_threads, together
from wavetank.serving.attention.interface import Floats, Ints
from wavetank.serving.attention.kernels import TILE, sparse_step
from wavetank.serving.attention.summaries import (
    SUMMARIES,
    empty_tiles,
    numbers_of,
    query_weights,
    summarise,
    tiles_of,
)  # fmt: skip

_WHERE = "SparseKV"
# Of products of two such numbers the sums over all channels, queries and tokens are numbers of float32.
_LARGEST = 1e15
# What a block's summary takes of the time of one token that is read, for an even division among threads.
_TOKENS_A_SUMMARY = 0.3


def _floats(given: Any, name: str, where: str) -> Floats:
    """Return a contiguous float32 array whose numbers are finite and no larger than what float32 can multiply."""
    try:
        if np.iscomplexobj(given):
            raise TypeError("they are complex")
        with np.errstate(over="ignore"):
            found = np.ascontiguousarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise BadValueError(f"The {name} no array of numbers.", given=str(error), where=where) from error
    # Written so that nan fails too.
    if not (found.min(initial=0) >= -_LARGEST and found.max(initial=0) <= _LARGEST):
        raise BadValueError(
            f"The {name} not finite, or too large to be multiplied in float32.", where=where,
            allowed=f"-{_LARGEST:g} to {_LARGEST:g}",
        )  # fmt: skip
    return found


def check_cache(keys: object, values: object, where: str) -> tuple[Floats, Floats]:
    """Return keys and values as contiguous float32 arrays.

    Parameters
    ----------
    keys, values : array (key heads, tokens, dim)
    where : str
        For messages.

    Raises
    ------
    BadValueError
        If they do not go together, are empty, or hold what is no number from -1e15 to 1e15.
    """
    found = _floats(keys, "keys are", where), _floats(values, "values are", where)
    if found[0].ndim != 3 or found[0].shape != found[1].shape or 0 in found[0].shape:
        raise BadValueError(
            "Keys and values do not go together, or are empty.", given=(found[0].shape, found[1].shape),
            allowed="twice (key heads, tokens, dim), each 1 or more", where=where,
        )  # fmt: skip
    return found


def check_query(query: object, heads: int, dim: int, where: str) -> Floats:
    """Return a query as (key heads, group, dim).

    Parameters
    ----------
    query : array (heads, dim)
    heads, dim : int
        Of the keys.
    where : str

    Raises
    ------
    BadValueError
        If its heads are no multiple of the keys' heads, or it holds what is no number from -1e15 to 1e15.
    """
    found = _floats(query, "query's numbers are", where)
    if found.ndim != 2 or found.shape[1] != dim or found.shape[0] < heads or found.shape[0] % heads:
        raise BadValueError(
            "The query does not fit the keys.", given=found.shape,
            allowed=f"(heads, {dim}), heads a multiple of {heads}", where=where,
        )  # fmt: skip
    return found.reshape(heads, -1, dim)


class SparseKV:
    """Keys and values of one layer, of which a step reads ``budget`` tokens a head.

    Arrays of float32 that are contiguous are not copied before a token is appended.

    Parameters
    ----------
    keys, values : float32 array (key heads, tokens, dim)
    budget : int
        Tokens that a head may read in a step: at least twice the longest block, or all; all are read, as dense
        attention does, when it is the number of tokens.
    blocks : int or sequence of int
        Tokens of a block, for each head.
    summary : str
        ``box`` (the least and greatest number of each channel) or ``ball`` (mean and largest distance).
    bits : int
        Of a number of a summary: 4 or 32.
    combine : str
        What a block's score is over the queries of a group: their ``max`` or their ``sum``.
    reach : float
        Of a ball, the share of its radius that counts.
    threads : int, optional
        All allowed ones by default.

    Raises
    ------
    BadValueError, UnknownNameError
        If arrays do not fit, hold what is no number from -1e15 to 1e15, or a setting is out of range.
    """

    def __init__(
        self, keys: object, values: object, budget: int, *, blocks: int | Sequence[int] | Ints = 32,
        summary: str = "box", bits: int = 4, combine: str = "sum", reach: float = 1.0, threads: int | None = None,
    ) -> None:  # fmt: skip
        self._keys, self._values = check_cache(keys, values, _WHERE)
        self.heads, self.tokens, self.dim = self._keys.shape
        self._owned = False
        if summary not in SUMMARIES:
            raise unknown_name("summary", summary, SUMMARIES, where=_WHERE)
        if combine not in ("max", "sum"):
            raise unknown_name("way to combine queries", combine, ("max", "sum"), where=_WHERE)
        if bits not in (4, 32):
            raise BadValueError("A number of a summary has other bits.", given=bits, allowed="4 or 32", where=_WHERE)
        if not 0 <= reach <= 1:
            raise BadValueError("A share of a radius is from 0 to 1.", given=reach, where=_WHERE)
        given = np.asarray(blocks)
        lengths = np.full(self.heads, given) if given.ndim == 0 else given
        if (
            lengths.dtype.kind not in "iu"
            or lengths.shape != (self.heads,)
            or not 1 <= lengths.min() <= lengths.max() <= 2**31
        ):
            raise BadValueError(
                "Each head of keys has one length of a block.", given=blocks,
                allowed=f"{self.heads} whole numbers above 0", where=_WHERE,
            )  # fmt: skip
        least = min(2 * int(lengths.max()), self.tokens)
        if isinstance(budget, bool) or not hasattr(budget, "__index__") or not least <= budget <= self.tokens:
            raise BadValueError(
                "The budget is too small for the first and the last block, or larger than the cache.", given=budget,
                allowed=f"{least} to {self.tokens} tokens", where=_WHERE, hint="take a larger budget or shorter blocks",
            )  # fmt: skip
        self.budget, self.blocks = int(budget), lengths.astype(np.int64)
        self._all = self.budget == self.tokens
        self.summary, self.bits, self.combine, self.reach = summary, bits, combine, reach
        self._threads = allowed_threads(threads)
        self._lay_out()

    def _lay_out(self) -> None:
        """Summarise everything anew, with as much room as the keys have."""
        width = numbers_of(self.summary, self.dim)
        room = [-(-(self._keys.shape[1] // block) // TILE) for block in self.blocks.tolist()]
        self._first = np.concatenate(([0], np.cumsum(room)))[:-1].astype(np.int64)
        tiles, self._tiles = int(sum(room)), list(empty_tiles(width))
        for part in (0,) if self.bits == 32 else (1, 2, 3):
            self._tiles[part] = np.zeros((tiles, *self._tiles[part].shape[1:]), self._tiles[part].dtype)
        for head in range(self.heads):
            self._refresh(head, 0)
        self._divide()

    def _refresh(self, head: int, tile: int) -> None:
        """Summarise a head's whole blocks from a tile on."""
        block = int(self.blocks[head])
        keys = self._keys[head, tile * TILE * block : self.tokens]
        if keys.shape[0] < block:
            return
        found = tiles_of(summarise(self.summary, keys, block), self.bits)
        first = int(self._first[head]) + tile
        for whole, part in zip(self._tiles, found, strict=True):
            whole[first : first + part.shape[0]] = part

    def _divide(self) -> None:
        """Find how many blocks each head takes, and which thread computes which heads."""
        whole = self.tokens // self.blocks
        tail = self.tokens - whole * self.blocks
        limit = self.tokens if self._all else self.budget
        self._wanted = np.minimum((limit - tail) // self.blocks, whole) if limit < self.tokens else whole
        costs = (self._wanted * self.blocks + tail).astype(np.float64) + _TOKENS_A_SUMMARY * whole
        bins = longest_first(costs, np.zeros(self.heads), min(self._threads, self.heads))
        self._parts = [np.flatnonzero(bins == each) for each in range(min(self._threads, self.heads))]

    def attend(self, query: object) -> Floats:
        """Return attention over the best blocks, float32 (heads, dim).

        Parameters
        ----------
        query : float32 array (heads, dim)
            Neighbouring heads share a head of keys, and the blocks that are read.

        Raises
        ------
        BadValueError
            If it does not fit the keys, or holds what is no number from -1e15 to 1e15.
        """
        return self._step(query)[0]

    def _step(self, query: object) -> tuple[Floats, Ints]:
        """Return the answer to a query, and which blocks it is of: what two threads ask at a time has its own."""
        grouped = check_query(query, self.heads, self.dim, f"{_WHERE}.attend")
        scaled = grouped * np.float32(1 / np.sqrt(self.dim))
        out, picked = np.empty_like(scaled), np.zeros((self.heads, int(self._wanted.max()) + 1), np.int64)
        rest = (
            scaled, query_weights(self.summary, scaled, self.reach), self._keys, self._values, self.tokens,
            self.blocks, self._wanted, self._first, *self._tiles, self.combine == "sum", picked, out,
        )  # fmt: skip
        together(sparse_step, [(part, *rest) for part in self._parts], self._threads)
        return out.reshape(-1, self.dim), picked

    def selected(self, query: object) -> list[Ints]:
        """Return the tokens that :meth:`attend` reads for a query, ascending, for each head of keys.

        Parameters
        ----------
        query : float32 array (heads, dim)
        """
        picked = self._step(query)[1]
        found = []
        for head, block in enumerate(self.blocks.tolist()):
            chosen = picked[head, : self._wanted[head]]
            tail = np.arange(self.tokens // block * block, self.tokens)
            found.append(np.concatenate(((chosen[:, None] * block + np.arange(block)).ravel(), tail)))
        return found

    def append(self, key: object, value: object) -> None:
        """Add one token.

        Parameters
        ----------
        key, value : float32 array (key heads, dim)

        Raises
        ------
        BadValueError
            If they do not fit, or hold what is no number from -1e15 to 1e15; nothing is added then.
        """
        where = f"{_WHERE}.append"
        pair = _floats(key, "key's numbers are", where), _floats(value, "value's numbers are", where)
        for each in pair:
            if each.shape != (self.heads, self.dim):
                raise BadValueError(
                    "The token does not fit the cache.", given=each.shape, allowed=f"({self.heads}, {self.dim})",
                    where=where,
                )  # fmt: skip
        if not self._owned or self.tokens == self._keys.shape[1]:
            room = self.tokens + max(TILE, self.tokens // 8)
            for name in ("_keys", "_values"):
                larger = np.zeros((self.heads, room, self.dim), np.float32)
                larger[:, : self.tokens] = getattr(self, name)[:, : self.tokens]
                setattr(self, name, larger)
            self._owned = True
            self._lay_out()
        self._keys[:, self.tokens], self._values[:, self.tokens] = pair
        self.tokens += 1
        for head, block in enumerate(self.blocks.tolist()):
            if self.tokens % block == 0:
                self._refresh(head, (self.tokens // block - 1) // TILE)
        self._divide()

    @property
    def summary_bytes(self) -> int:
        """Bytes of the summaries with their scales and zeros, without room for tokens to come."""
        width = numbers_of(self.summary, self.dim)
        whole = self.tokens // self.blocks
        if self.bits == 32:
            return int(whole.sum()) * width * 4
        return int(((whole + 1) // 2).sum()) * width + int((-(-whole // TILE)).sum()) * width * 8

    @property
    def read_bytes(self) -> int:
        """Bytes that a step must read: keys and values of the blocks that it takes, and all summaries."""
        tail = self.tokens - self.tokens // self.blocks * self.blocks
        tokens = int((self._wanted * self.blocks + tail).sum())
        scored = 0 if (self._wanted == self.tokens // self.blocks).all() else self.summary_bytes
        return tokens * self.dim * 8 + scored
