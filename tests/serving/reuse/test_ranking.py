"""Planted rankings, and what a decoder makes of them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wavetank.serving.reuse.interface import ENTRY, ITEM  # noqa: E402
from wavetank.serving.reuse.ranking import Store, figures, ranker, scaled  # noqa: E402
from wavetank.serving.reuse.rcllm import Again  # noqa: E402
from wavetank.serving.reuse.study import KVReuse  # noqa: E402


def test_the_truth_follows_the_history_and_the_standing() -> None:
    store, draws = Store(), np.random.default_rng(0)
    for _ in range(20):
        asked = store.asked(draws)
        assert asked.liked.sum() == pytest.approx(1)
        kinds = asked.parts.kinds
        assert (np.count_nonzero(kinds == ENTRY), np.count_nonzero(kinds == ITEM)) == (8, 24)
        first = np.searchsorted(asked.parts.kinds == ITEM, True)
        starts = asked.parts.ends[np.flatnonzero(kinds == ITEM) - 1]
        assert np.array_equal(asked.tokens[starts], asked.names)
        assert first >= 0
        # Of two candidates of one taste the one of higher standing is liked more.
        items = asked.names - asked.names.min() + asked.names.min() - store.texts[0, 0]
        for taste in range(8):
            mine = np.flatnonzero(store.tastes[items] == taste)
            order = mine[np.argsort(store.standing[items[mine]])]
            assert (np.diff(asked.liked[order]) >= 0).all()


def test_training_learns_to_rank_and_gives_its_threads_back() -> None:
    before = torch.get_num_threads()
    raw, some = ranker(0), ranker(4)
    assert torch.get_num_threads() == before
    assert not torch.equal(raw.tensors["head"], some.tensors["head"])
    full = figures(raw, None, prompts=1, seed=0)
    assert full["top10_overlap"] == full["ranking_computed_share"] == 1.0
    # Another user's history changes a ranking, with weights as they are drawn, too.
    assert 0.0 <= figures(raw, None, prompts=4, seed=0)["top10_other_user"] < 1.0
    again = figures(raw, Again(0.2, 1), prompts=1, seed=0)
    assert 0.0 < again["ranking_kl_nats"] < figures(raw, Again(0.0, 0), prompts=1, seed=0)["ranking_kl_nats"]


def test_first_tokens_are_as_large_a_part_of_shorter_texts() -> None:
    assert scaled(Again(0.15, 16)) == Again(0.15, 1)
    assert scaled(Again(0.15, 0)) == Again(0.15, 0)
    assert scaled(Again(0.15, 60)).first == 4


@pytest.mark.slow
def test_the_decoder_of_the_study_reads_the_history() -> None:
    trained, store, draws = ranker(KVReuse(workload="recommender").ranking_steps), Store(), np.random.default_rng(0)
    found = [figures(trained, None, prompts=12, seed=seed) for seed in range(2)]
    alone = []
    for _ in range(50):
        asked = store.asked(draws)
        standing = store.standing[asked.names - store.texts[0, 0]]
        alone.append(len({*np.argsort(-standing)[:10]} & {*np.argsort(-asked.liked)[:10]}) / 10)
    # Knowing the candidates alone is worth seven of ten already: only what is above that was read off the history.
    assert np.mean(alone) == pytest.approx(0.7, abs=0.05)
    assert np.mean([each["top10_true"] for each in found]) > np.mean(alone) + 0.12
    assert np.mean([each["top10_other_user"] for each in found]) < 0.7
