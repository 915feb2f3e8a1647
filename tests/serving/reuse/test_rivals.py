"""Known answers of each rule, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.reuse.interface import Prompt, Served
from wavetank.serving.reuse.rivals import BlockPrefix, ContentSegments, FixedContent, NoReuse, RadixCache, served

WHOLE = np.random.default_rng(0).integers(0, 50_000, 4_000, dtype=np.uint32)


def prompt(ids: np.ndarray) -> Prompt:
    return Prompt(ids, len(ids), 0)


def reuse(rule: object, *prompts: np.ndarray, budget: int | None = None) -> int:
    cache = rule.cache(budget_tokens=budget, unit=1)  # type: ignore[attr-defined]
    return [cache.serve(prompt(each)) for each in prompts][-1].reused


@pytest.mark.parametrize("at", [0, 1, 777, 3_999])
def test_after_an_insertion_prefixes_end_there_and_blocks_of_a_prefix_at_the_block_before(at: int) -> None:
    changed = np.insert(WHOLE, at, np.uint32(60_000))
    assert reuse(RadixCache(), WHOLE, changed) == at
    assert reuse(BlockPrefix(), WHOLE, changed) == at // 16 * 16
    assert reuse(FixedContent(block=100), WHOLE, changed) == at // 100 * 100
    assert reuse(NoReuse(), WHOLE, changed) == 0


def test_the_same_prompt_is_reused_but_for_its_last_token() -> None:
    assert reuse(RadixCache(), WHOLE, WHOLE) == len(WHOLE) - 1
    assert reuse(ContentSegments(), WHOLE, WHOLE) == len(WHOLE) - 1
    assert reuse(BlockPrefix(), WHOLE[:40], WHOLE[:40]) == 32
    assert reuse(BlockPrefix(block=8), WHOLE[:40], WHOLE[:40]) == 39


def test_blocks_of_one_content_are_found_at_other_places_and_prefixes_are_not() -> None:
    turned = np.concatenate([WHOLE[512:1024], WHOLE[:512]])
    assert reuse(FixedContent(), WHOLE[:1024], turned) == 1023
    assert reuse(RadixCache(), WHOLE[:1024], turned) == 0


def test_segments_cost_what_changed_and_a_little_wherever_it_is() -> None:
    for at in (40, 1_000, 2_500):
        changed = np.insert(WHOLE, at, np.uint32(60_000))
        assert len(changed) - reuse(ContentSegments(), WHOLE, changed) <= 2 * 512
        assert reuse(ContentSegments(), WHOLE, changed) >= at


def test_the_first_segment_is_taken_where_it_stood_only() -> None:
    moved = np.concatenate([np.arange(60_000, 60_400, dtype=np.uint32), WHOLE])
    first = np.concatenate([WHOLE, WHOLE])
    # Before the prompt there was nothing: its own first segment is not reused elsewhere, later ones are.
    assert 0 < reuse(ContentSegments(), WHOLE, moved) < len(WHOLE)
    assert reuse(ContentSegments(), WHOLE, first) > len(WHOLE)


def test_first_tokens_of_moved_segments_are_computed_again_and_of_the_prefix_none() -> None:
    changed = np.insert(WHOLE, 1_000, np.uint32(60_000))
    cache = ContentSegments(again=16).cache(budget_tokens=None, unit=1)
    cache.serve(prompt(WHOLE))
    again = cache.serve(prompt(changed))
    free = ContentSegments().cache(budget_tokens=None, unit=1)
    free.serve(prompt(WHOLE))
    without = free.serve(prompt(changed))
    assert again.recomputed > 0
    assert again.recomputed % 16 == 0
    assert again.reused + again.recomputed == without.reused
    everything = ContentSegments(again=512).cache(budget_tokens=None, unit=1)
    everything.serve(prompt(WHOLE))
    assert everything.serve(prompt(changed)).reused == 1_000


def test_a_small_cache_forgets_what_was_used_longest_ago() -> None:
    one, two, three = WHOLE[:1_000], WHOLE[1_000:2_000], WHOLE[2_000:3_000]
    assert reuse(RadixCache(), one, two, one, budget=2_000) == 999
    assert reuse(RadixCache(), one, two, three, one, budget=2_000) == 0
    assert reuse(RadixCache(), one, two, three, two, budget=2_000) == 999
    assert reuse(RadixCache(), one, one, budget=300) == 300
    assert reuse(RadixCache(), one, one, budget=0) == 0


def test_prefixes_and_segments_together_keep_no_more_than_the_budget() -> None:
    cache = ContentSegments().cache(budget_tokens=2_000, unit=1)
    for start in range(0, 4_000, 500):
        cache.serve(prompt(WHOLE[start : start + 1_000]))
        stores = (cache.prefixes, cache.segments)  # type: ignore[attr-defined]
        assert sum(store.counts().tokens for store in stores) <= 2_000


def test_ids_that_stand_for_blocks_are_counted_by_their_tokens() -> None:
    ids = np.arange(5, dtype=np.uint32)
    for rule, wanted in ((RadixCache(), 2_099), (BlockPrefix(), 2_048), (FixedContent(), 2_048)):
        cache = rule.cache(budget_tokens=None, unit=512)
        cache.serve(Prompt(ids, 2_100, 0))
        assert cache.serve(Prompt(ids, 2_100, 0)).reused == wanted


def test_what_is_found_is_never_more_than_the_prompt() -> None:
    assert served(Prompt(WHOLE[:2], 600, 0), 1_024) == Served(599, 1, 0)
    assert served(Prompt(WHOLE[:2], 600, 0), 512, recomputed=100) == Served(412, 100, 88)


@pytest.mark.parametrize("settings", [{"least": 3}, {"most": 31}, {"bits": 0, "least": 0}])
def test_segments_that_there_cannot_be_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(BadValueError):
        ContentSegments(**settings)
