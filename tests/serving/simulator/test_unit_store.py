"""The readable store: what it finds, keeps and drops, against counts made token by token."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.serving.simulator.reuse import Match, ReuseRule, Units
from wavetank.serving.simulator.unit_store import UnitStore


def test_blocks_of_one_length_are_kept_and_dropped_the_last_of_a_prompt_first() -> None:
    store = UnitStore.of_blocks(10)
    assert store.hold([4, 5, 6], []) == 30
    assert store.hold([4, 7], []) == 20
    assert (store.held_tokens, store.shared_tokens([4, 8])) == (40, 10)
    assert store.release([4, 5, 6]) == 30
    assert store.release([4, 7]) == 20
    assert (store.held_tokens, store.kept_tokens, store.there) == (0, 40, {4, 5, 6, 7})
    store.evict(20)
    # The first prompt was given up first, and its end before its beginning; what both have was used last.
    assert list(store.kept) == [7, 4]
    assert store.match(20, [4, 7], []) == (Match(10, 0, 0.0), 0)
    assert store.match(21, [4, 7], []) == (Match(20, 0, 0.0), 0)


def test_no_more_is_kept_than_the_rule_allows_however_much_room_there_is() -> None:
    store = UnitStore({0: 5, 1: 30}, ReuseRule(store_tokens=20))
    store.hold([0, 1], [])
    store.release([0, 1])
    store.evict(10_000)
    assert list(store.kept) == [0]


def token_by_token(rows: list[tuple[str, int, int]], again: int) -> int:
    """Count what is computed again of tokens (kind, source, place of it): the first ones of each run."""
    count, left, before = 0, 0, None
    for kind, source, place in rows:
        if kind != "moved":
            before = None
            continue
        left = left if before == (source, place - 1) else again
        before = (source, place)
        count, left = count + (left > 0), max(left - 1, 0)
    return count


@pytest.mark.parametrize("seed", range(20))
def test_moved_runs_are_those_of_a_count_token_by_token(seed: int) -> None:
    """One prompt is stored, in units of one token or more; another one has pieces of it behind something new."""
    draws = np.random.default_rng(seed)
    size = int(draws.integers(1, 4))
    stored = list(range(20))
    pieces = []
    for _ in range(4):
        start = int(draws.integers(0, 18))
        pieces += stored[start : start + int(draws.integers(1, 8))] + [-1] * int(draws.integers(0, 2))
    ids = [*stored, *range(20, 21 + len(pieces))]
    names = [*stored, -1, *pieces]
    units = Units(np.array(ids), np.array([0, 20, len(ids)]), np.full(len(ids), size), names=np.array(names))
    rule = ReuseRule(again_tokens=int(draws.integers(0, 9)))
    store = UnitStore.of_workers(units, rule, 1)(0)
    store.hold(ids[:20], names[:20])
    store.release(ids[:20])
    prompt = size * (1 + len(pieces)) + 1
    found, fetched = store.match(prompt, ids[20:], names[20:])
    rows = [("moved" if name >= 0 else "", 0, size * name + k) for name in pieces for k in range(size)]
    again = token_by_token(rows, rule.again_tokens)
    moved = sum(kind == "moved" for kind, _, _ in rows)
    assert (found, fetched) == (Match(moved - again, again, 0.0), 0)


def test_names_lead_to_a_unit_that_is_there_and_a_new_one_takes_the_name_of_one_that_is_gone() -> None:
    units = Units(np.array([0, 1, 2]), np.array([0, 1, 2, 3]), np.full(3, 10), names=np.array([7, 7, 7]))
    store = UnitStore.of_workers(units, ReuseRule(), 1)(0)
    for unit in (0, 1):
        store.hold([unit], [7])
        store.release([unit])
    assert store.named == {7: 0}
    assert store.match(15, [2], [7])[0].reused == 10
    store.evict(10)
    assert store.match(15, [2], [7])[0].reused == 0
    store.hold([2], [7])
    assert store.named == {7: 2}


def test_what_another_worker_had_at_the_refresh_is_fetched_and_counted_in_bytes() -> None:
    units = Units(np.array([0, 1, 2]), np.array([0, 3]), np.full(3, 10), free=np.array([False, False, True]))
    stores = [UnitStore.of_workers(units, ReuseRule(fetch=True, bytes_per_token=4.0), 2)(0)]
    store = stores[0]
    assert store.match(100, [0, 1, 2], []) == (Match(0, 0, 0.0), 0)
    store.known[1] = {1, 2}
    # A prefix unit behind one that nobody has is not found; a free one is.
    assert store.match(100, [0, 1, 2], []) == (Match(10, 0, 40.0), 10)
    store.known[1] = {0, 1, 2}
    assert store.match(100, [0, 1, 2], []) == (Match(30, 0, 120.0), 30)
    # The last token is computed whatever is there: of a prefix unit all of it, of a free one the last alone.
    assert store.match(30, [0, 1, 2], []) == (Match(29, 1, 120.0), 30)
    assert store.match(20, [0, 1], []) == (Match(10, 0, 40.0), 10)
    assert store.known_tokens(100, [0, 1, 2]) == 0
