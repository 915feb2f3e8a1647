"""The store equals a dictionary in the order of use, even where keys collide; what is held stays."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.reuse.blocks import BlockStore
from wavetank.serving.reuse.segments import content_ends, fixed_ends, keys_of


class Plain:
    """What the store is, as a dictionary of the ids themselves (of all before, too, in a chain)."""

    def __init__(self, budget: int, chained: bool) -> None:
        self.budget, self.chained = budget, chained
        self.kept: OrderedDict[Any, int] = OrderedDict()

    def serve(self, tokens: list[int], ends: list[int]) -> tuple[list[bool], int]:
        starts = [0, *ends][: len(ends)]
        names = [(*tokens[:e], s) if self.chained else tuple(tokens[s:e])
                 for s, e in zip(starts, ends, strict=True)]  # fmt: skip
        if self.chained:
            names = [(tuple(ends[: n + 1]), name) for n, name in enumerate(names)]
        found: list[bool] = []
        for name in names:
            found.append(name in self.kept and not (self.chained and found and not found[-1]))
        call: set[Any] = set()

        def use(which: list[Any]) -> None:
            for name in reversed(which) if self.chained else which:
                if name in self.kept:
                    self.kept.move_to_end(name)
                    call.add(name)

        use([name for name, there in zip(names, found, strict=True) if there])
        refused = 0
        for name, there, length in zip(names, found, np.diff(ends, prepend=0).tolist(), strict=True):
            if there or (name in self.kept and not (self.chained and refused)):
                continue
            fits = length <= self.budget and not (self.chained and refused)
            while fits and sum(self.kept.values()) + length > self.budget:
                oldest = next(iter(self.kept))
                fits = oldest not in call
                if fits:
                    del self.kept[oldest]
            refused += not fits
            if fits:
                self.kept[name] = length
                call.add(name)
        if self.chained:
            use(names)
        return found, refused


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32), chained=st.booleans(), budget=st.integers(0, 60), vocabulary=st.integers(1, 3),
    size=st.integers(0, 4), keys=st.sampled_from([1, 3, 2**63]),
)  # fmt: skip
def test_it_is_a_dictionary_in_the_order_of_use(
    seed: int, chained: bool, budget: int, vocabulary: int, size: int, keys: int
) -> None:
    draws = np.random.default_rng(seed)
    store, plain = BlockStore(budget_tokens=budget, chained=chained), Plain(budget, chained)
    for _ in range(12):
        tokens = draws.integers(0, vocabulary, int(draws.integers(0, 25)), dtype=np.uint32)
        ends = fixed_ends(len(tokens), size) if size else content_ends(tokens, bits=1, least=1, most=5)
        # With few keys nearly all collide.
        named = keys_of(tokens, ends, chained=chained) % np.uint64(keys)
        rows = store.find(tokens, ends, named)
        there = (rows >= 0).tolist()
        refused = store.add(tokens, ends, named, rows)
        assert (there, refused) == plain.serve(tokens.tolist(), ends.tolist())
        counts = store.counts()
        assert (counts.blocks, counts.tokens) == (len(plain.kept), sum(plain.kept.values()))


def put(store: BlockStore, tokens: list[int], size: int = 2, *, one_key: bool = False, owner: int = 0) -> np.ndarray:
    ids = np.array(tokens, np.uint32)
    ends = fixed_ends(len(ids), size)
    keys = np.zeros(len(ends), np.uint64) if one_key else keys_of(ids, ends, chained=store.chained)
    rows = store.find(ids, ends, keys)
    store.add(ids, ends, keys, rows, owner=owner)
    return rows


def there(store: BlockStore, tokens: list[int], size: int = 2, *, one_key: bool = False) -> list[bool]:
    ids = np.array(tokens, np.uint32)
    ends = fixed_ends(len(ids), size)
    keys = np.zeros(len(ends), np.uint64) if one_key else keys_of(ids, ends, chained=store.chained)
    return (store.find(ids, ends, keys) >= 0).tolist()


def test_a_chained_block_is_found_behind_its_own_prefix_only() -> None:
    store = BlockStore(chained=True)
    put(store, [1, 2, 3, 4])
    assert there(store, [1, 2, 3, 4]) == [True, True]
    assert there(store, [9, 9, 3, 4]) == [False, False]
    free = BlockStore()
    put(free, [1, 2, 3, 4])
    assert there(free, [9, 9, 3, 4]) == [False, True]


def test_a_row_that_is_used_again_is_no_parent_of_what_stood_behind_the_old_block() -> None:
    store = BlockStore(budget_tokens=4, chained=True)
    rows = put(store, [1, 2, 3, 4], one_key=True)
    store.hold(rows[1:])
    again = put(store, [7, 8], one_key=True)
    assert again[0] == rows[0]  # the first block had to go, its row has another now
    assert there(store, [7, 8, 3, 4], one_key=True) == [True, False]
    assert there(store, [1, 2, 3, 4], one_key=True) == [False, False]


def test_held_blocks_stay_and_released_ones_go_the_last_of_a_chain_first() -> None:
    store = BlockStore(budget_tokens=4, chained=True)
    rows = put(store, [1, 2, 3, 4])
    store.hold(rows)
    store.hold(rows)
    assert put(store, [5, 6]).tolist() == [-1]
    store.release(rows)
    assert put(store, [5, 6]).tolist() == [-1]
    store.release(rows)
    put(store, [5, 6])
    assert there(store, [1, 2, 3, 4]) == [True, False]
    with pytest.raises(BadValueError, match="not held"):
        store.release(rows[:1])
    with pytest.raises(BadValueError, match="no such block"):
        store.hold(np.array([10_000]))


def test_what_a_block_was_put_in_with_is_kept() -> None:
    store = BlockStore()
    rows = put(store, [1, 2, 3, 4, 5], owner=7)
    assert store.positions(rows).tolist() == [0, 2, 4]
    assert store.owners(rows).tolist() == [7, 7, 7]


def test_counts_say_what_went_and_what_collided() -> None:
    store = BlockStore(budget_tokens=2)
    put(store, [1, 2], one_key=True)
    put(store, [3, 4], one_key=True)
    counts = store.counts()
    assert (counts.blocks, counts.tokens, counts.evicted) == (1, 2, 1)
    assert counts.collisions >= 1


def test_tables_grow_and_holes_are_closed() -> None:
    store = BlockStore(budget_tokens=50_000)
    draws = np.random.default_rng(0)
    for _ in range(60):
        put(store, draws.integers(0, 2**32, 5_000, dtype=np.uint32).tolist(), 16)
    last = draws.integers(0, 2**32, 5_000, dtype=np.uint32).tolist()
    put(store, last, 16)
    assert all(there(store, last, 16))
    assert store.counts().tokens <= 50_000
    assert len(store._state.arena) <= 2 * 55_000


def test_a_budget_below_nothing_is_refused() -> None:
    with pytest.raises(BadValueError, match="room"):
        BlockStore(budget_tokens=-1)
