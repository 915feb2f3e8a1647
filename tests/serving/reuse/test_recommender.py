"""Shops and their prompts: growing histories, real films, and requests that name what is not there."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.reuse.interface import ENTRY, INSTRUCTIONS, ITEM, TASK
from wavetank.serving.reuse.recommender import Request, Shop, arrivals, generated_shop, movie_shop
from wavetank.workloads import datasets


def test_prompts_are_instructions_history_candidates_and_task() -> None:
    shop = generated_shop(0, items=200, users=12, learned=20, asked=30, candidates=15)
    assert (len(shop.learned), len(shop.asked)) == (20, 30)
    for request in shop.asked:
        prompt = shop.prompt(request)
        kinds = prompt.parts.kinds.tolist()
        assert kinds == [INSTRUCTIONS, *[ENTRY] * len(request.history), *[ITEM] * 15, TASK]
        assert prompt.parts.ends[-1] == len(prompt.ids) == prompt.tokens // 8
        assert len(set(request.candidates.tolist())) == 15
        start = prompt.parts.ends[len(request.history)]
        assert np.array_equal(prompt.ids[start : prompt.parts.ends[1 + len(request.history)]],
                              shop.items[request.candidates[0]])  # fmt: skip


def test_histories_grow_at_their_end_and_seeds_repeat() -> None:
    shop = generated_shop(0, items=200, users=3, learned=5, asked=10, candidates=5)
    last: dict[int, np.ndarray] = {}
    for request in (*shop.learned, *shop.asked):
        if request.user in last:
            before = last[request.user]
            assert np.array_equal(request.history[: len(before)], before)
            assert len(request.history) == len(before) + 1
        last[request.user] = request.history
    generated_shop.cache_clear()
    other = generated_shop(0, items=200, users=3, learned=5, asked=10, candidates=5)
    assert all(np.array_equal(a.candidates, b.candidates) for a, b in zip(shop.asked, other.asked, strict=True))


def test_no_candidates_and_more_than_there_are_items() -> None:
    none = generated_shop(0, items=20, users=3, learned=2, asked=2, candidates=0)
    assert none.prompt(none.asked[0]).parts.kinds.tolist().count(ITEM) == 0
    assert len(generated_shop(0, items=20, users=3, learned=2, asked=2, candidates=50).asked[0].candidates) == 20


@pytest.mark.parametrize("wrong", [Request(0, np.array([9]), np.array([0])), Request(0, np.array([0]), np.array([4])),
                                   Request(0, np.array([0]), np.array([-1]))])  # fmt: skip
def test_items_that_are_not_there_are_refused(wrong: Request) -> None:
    ids = [np.arange(3, dtype=np.uint32)] * 4
    with pytest.raises(BadValueError, match="not in the catalogue"):
        Shop(ids, ids, (ids[0], ids[1]), ids[0], ids[0], 1, [], [wrong])


def test_arrivals_are_the_same_at_every_rate_but_for_their_scale() -> None:
    slow, fast = arrivals(3, 2_000, 1.0), arrivals(3, 2_000, 4.0)
    assert np.allclose(slow / 4.0, fast)
    assert np.diff(fast).mean() == pytest.approx(0.25, rel=0.1)


def test_films_have_titles_genres_and_histories() -> None:
    if datasets.status("movielens-small").path is None:
        pytest.skip("needs the data set movielens-small")
    shop = movie_shop(0, learned=10, asked=10, candidates=20)
    assert len(shop.items) == 9_742
    for request in shop.asked:
        assert len(set(request.candidates.tolist())) == len(request.candidates) == 20
        assert len(request.history) >= 20
    prompt = shop.prompt(shop.asked[0])
    assert prompt.tokens == len(prompt.ids) == prompt.parts.ends[-1]
    assert 8 < np.mean([len(each) for each in shop.items]) < 20
