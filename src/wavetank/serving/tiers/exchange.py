"""Ranks as processes that change a request's cache from one degree to another through shared memory.

A rank packs what it gives, waits until all have, and writes what it gets and what it keeps into pages of the new shape.
The buffers are the only memory that two ranks share.
"""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.tiers.buffers import heads_of, packed, scatter, sends

Ints = NDArray[np.int64]
WAIT_S = 60.0


class Exchange(NamedTuple):
    """One change of degree, as all ranks know it.

    Attributes
    ----------
    before, after : int
        Degrees; ranks are the GPUs of the larger group.
    heads, tokens : int
        KV heads of the model, tokens in the cache.
    pages, layers, page_tokens, width : int
        Pages of every rank, and their shape.
    table_before, table_after : ndarray of int64
        The request's pages on every rank.
    old, new : dict of int to str
        Names of the memories with the pages, by rank.
    buffers : dict of (int, int) to str
        Names of the memories between two ranks.
    """

    before: int
    after: int
    heads: int
    tokens: int
    pages: int
    layers: int
    page_tokens: int
    width: int
    table_before: Ints
    table_after: Ints
    old: dict[int, str]
    new: dict[int, str]
    buffers: dict[tuple[int, int], str]

    @property
    def ranks(self) -> int:
        """GPUs that take part."""
        return max(self.before, self.after)

    def shape(self, degree: int) -> tuple[int, ...]:
        """Return the shape of a rank's pages at a degree."""
        return (self.pages, self.layers, 2, self.page_tokens, self.heads // degree, self.width)

    def buffer_shape(self, heads: int) -> tuple[int, ...]:
        """Return the shape of a buffer for some heads."""
        return (self.layers, 2, self.tokens, heads, self.width)


def take_part(rank: int, exchange: Exchange, barrier: Any, sent_bytes: Any) -> None:
    """Do one rank's part of an exchange; the values have two bytes, as in bf16.

    Parameters
    ----------
    rank : int
    exchange : Exchange
    barrier : multiprocessing.Barrier
        Of all ranks.
    sent_bytes : multiprocessing.Array of int64
        One place for each rank.
    """
    memories: dict[str, SharedMemory] = {}

    def array(name: str, shape: tuple[int, ...]) -> NDArray[np.uint16]:
        memories.setdefault(name, SharedMemory(name))
        return np.ndarray(shape, np.uint16, memories[name].buf)

    before, after, heads = exchange.before, exchange.after, exchange.heads
    sent, mine, low = 0, None, 0
    if rank in exchange.old:
        mine = array(exchange.old[rank], exchange.shape(before))
        low, _ = heads_of(heads, before, rank * before // exchange.ranks)
        for each in sends(heads, before, after, rank):
            buffer = packed(mine, exchange.table_before, exchange.tokens, each.first - low, each.end - low)
            array(exchange.buffers[rank, each.to_rank], buffer.shape)[:] = buffer
            sent += buffer.nbytes
    sent_bytes[rank] = sent
    barrier.wait(WAIT_S)
    if rank in exchange.new:
        pages = array(exchange.new[rank], exchange.shape(after))
        first, end = heads_of(heads, after, rank * after // exchange.ranks)
        for other in range(exchange.ranks):
            for each in sends(heads, before, after, other):
                if each.to_rank == rank:
                    shape = exchange.buffer_shape(each.end - each.first)
                    got = array(exchange.buffers[other, rank], shape)
                    scatter(got, pages, exchange.table_after, each.first - first)
                    del got
        if mine is not None:
            begin, stop = max(low, first), min(low + heads // before, end)
            if begin < stop:
                kept = packed(mine, exchange.table_before, exchange.tokens, begin - low, stop - low)
                scatter(kept, pages, exchange.table_after, begin - first)
        del pages
    del mine
    for memory in memories.values():
        memory.close()
