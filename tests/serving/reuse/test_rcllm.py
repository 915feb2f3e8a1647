"""Parts of prompts found in any order, counted by hand; pools and their room."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.serving.reuse import rcllm
from wavetank.serving.reuse.interface import ENTRY, INSTRUCTIONS, ITEM, TASK, Parts, Prompt, Served
from wavetank.serving.reuse.rcllm import Again, PartPools, RcLLM, parts_of
from wavetank.serving.reuse.recommender import generated_shop
from wavetank.serving.reuse.rivals import RadixCache


def made(*pieces: tuple[int, int, int]) -> Prompt:
    """Return a prompt of parts, each a kind, a first id and a length."""
    ids = np.concatenate([np.arange(first, first + size) for _, first, size in pieces]).astype(np.uint32)
    ends = np.cumsum([size for _, _, size in pieces])
    return Prompt(ids, len(ids), 0, Parts(ends, np.array([kind for kind, _, _ in pieces])))


LEAD, ASK = (INSTRUCTIONS, 0, 10), (TASK, 900, 5)
ITEMS = [(ITEM, 100 * each, 40) for each in range(1, 5)]


def test_items_in_another_order_are_all_found_where_a_prefix_ends_with_the_instructions() -> None:
    one, other = made(LEAD, *ITEMS, ASK), made(LEAD, *ITEMS[::-1], ASK)
    rule = RcLLM(share=0.1, first=8, first_share=1.0)
    ours, prefix = (each.cache(budget_tokens=None, unit=1) for each in (rule, RadixCache()))
    assert ours.serve(one) == Served(0, 0, 175, 0)
    prefix.serve(one)
    assert prefix.serve(other).reused == 10
    # Of each item 8 and a tenth of 32 together, and the instructions.
    again = 4 * 8 + 13 + 10
    assert ours.serve(other) == Served(170 - again, again, 5, 170 - again)


def test_everything_again_is_no_reuse_and_nothing_again_is_full_reuse() -> None:
    for rule, again in ((RcLLM(share=1.0, first=0), 170), (RcLLM(share=0.0, first=0), 10)):
        cache = rule.cache(budget_tokens=None, unit=1)
        cache.serve(made(LEAD, *ITEMS, ASK))
        assert cache.serve(made(LEAD, *ITEMS, ASK)).recomputed == again


def test_a_colliding_key_is_never_taken_for_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rcllm, "keys_of", lambda ids, ends, chained=False: np.zeros(len(ends), np.uint64))
    cache = RcLLM(share=0.0, first=0).cache(budget_tokens=None, unit=1)
    cache.serve(made(LEAD, *ITEMS[:2], ASK))
    assert cache.serve(made(LEAD, *ITEMS[2:], ASK)).reused == 0
    assert cache.serve(made(LEAD, *ITEMS[:2], ASK)).reused == 80
    assert cache.store.counts().collisions > 0


def test_no_room_no_candidates_no_history_and_an_item_named_twice() -> None:
    nothing = RcLLM().cache(budget_tokens=0, unit=1)
    for _ in range(2):
        assert nothing.serve(made(LEAD, *ITEMS, ASK)) == Served(0, 0, 175, 0)
    cache = RcLLM(share=0.0, first=0).cache(budget_tokens=None, unit=1)
    assert cache.serve(made(LEAD, ASK)) == Served(0, 0, 15, 0)
    assert cache.serve(made(LEAD, ITEMS[0], ITEMS[0], ASK)).computed == 85
    assert cache.serve(made(LEAD, ITEMS[0], ITEMS[0], ASK)).reused == 80
    assert cache.serve(Prompt(np.zeros(0, np.uint32), 0, 0)) == Served(0, 0, 0, 0)


def test_a_prompt_without_parts_is_one_part() -> None:
    prompt = Prompt(np.arange(50, dtype=np.uint32), 50, 0)
    assert parts_of(prompt).ends.tolist() == [50]
    cache = RcLLM(share=0.0, first=4, first_share=1.0).cache(budget_tokens=None, unit=1)
    assert cache.serve(prompt).computed == 50
    assert cache.serve(prompt) == Served(46, 4, 0, 0)
    assert cache.serve(prompt._replace(ids=prompt.ids[1:], tokens=49)).computed == 49


def test_pools_keep_within_the_room_and_everything_where_there_is_no_limit() -> None:
    shop = generated_shop(1, items=60, users=10, learned=30, asked=1, candidates=8)
    rule, lengths = PartPools(replicas=0.05), np.array([len(each) for each in shop.items]) * 8
    found = rule.pools(shop, workers=4, node_tokens=3_000, seed=0)
    entries = int(found.entries.sum()) * 16
    assert 0 < entries <= 750
    for worker in range(4):
        own = (found.items.home == worker) | found.items.everywhere
        assert entries + lengths[own].sum() <= 3_000
    # The most frequent entries are those that are kept.
    often = np.bincount(np.concatenate([each.history for each in shop.learned]), minlength=120)
    assert often[found.entries].min() >= often[~found.entries].max()
    whole = rule.pools(shop, workers=4, node_tokens=0, seed=0)
    assert whole.items.everywhere.all()
    assert whole.entries.all()
    small = rule.pools(shop, workers=4, node_tokens=10, seed=0)
    assert (small.items.home == -1).all()
    assert not small.items.everywhere.any()


def test_settings_outside_their_range_are_refused() -> None:
    for more in ({"share": 1.5}, {"first": -1}, {"slack": float("nan")}, {"placement": "metis"}):
        with pytest.raises(WavetankError):
            RcLLM(**more)
    assert Again(0.5, 3).count(np.array([10, 2])) == 5 + 4
    # An eighth at most: 2 of 10 and 1 of 2 first ones, of the other nine the half.
    assert Again(0.5, 3, 0.125).count(np.array([10, 2])) == 3 + 5
    assert RcLLM().again().firsts(np.array([13, 120, 400])).tolist() == [2, 15, 16]
    assert RcLLM(entry_room=0.0).pools(
        generated_shop(1, items=60, users=10, learned=30, asked=1, candidates=8), workers=2, node_tokens=500, seed=0
    ).entries.sum() == 0  # fmt: skip
    assert ENTRY != ITEM


def test_a_last_id_that_stands_for_fewer_tokens_is_not_computed_again_more_than_once() -> None:
    cache = RcLLM().cache(budget_tokens=None, unit=16)
    prompt = Prompt(np.array([1], np.uint32), 1, 0)
    assert cache.serve(prompt) == Served(0, 0, 1, 0)
    assert cache.serve(prompt) == Served(0, 1, 0, 0)
