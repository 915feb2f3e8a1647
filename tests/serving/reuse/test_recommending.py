"""The recommender's figures: the same arrivals for all, and which system finds what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.reuse.moving_rivals import CacheBlend
from wavetank.serving.reuse.part_rivals import ChainedParts, FullReuse
from wavetank.serving.reuse.rcllm import RcLLM
from wavetank.serving.reuse.recommending import Field, figures, measured, ranked, rate
from wavetank.serving.reuse.rivals import NoReuse, RadixCache
from wavetank.serving.reuse.study import KVReuse

FIELD = Field(catalogue="generated", items=300, users=30, learned=30, asked=60, candidates=40, workers=4,
              node_tokens=40_000, link_bytes_per_s=12.5e9, load=0.7, scheduler="affinity")  # fmt: skip


def test_parts_are_found_where_prefixes_and_chained_keys_find_next_to_nothing() -> None:
    none, radix, chained, ours, full, blend = (
        figures(each, FIELD, 0)
        for each in (NoReuse(), RadixCache(), ChainedParts(), RcLLM(), FullReuse(), CacheBlend())
    )  # fmt: skip
    assert none["reused_share"] == 0
    assert radix["recovered_share"] <= 0
    assert chained["ttft_mean_s"] == pytest.approx(none["ttft_mean_s"], rel=0.2)
    assert radix["ttft_mean_s"] / ours["ttft_mean_s"] > 1.3
    assert ours["recovered_share"] > 0.5
    # Less computed again is faster, whatever the answer is worth.
    assert full["ttft_mean_s"] < blend["ttft_mean_s"] < ours["ttft_mean_s"]
    assert full["recomputed_tokens"] < blend["recomputed_tokens"] < ours["recomputed_tokens"]
    assert radix["transferred_tokens"] == 0 < ours["transferred_tokens"]


def test_the_best_scheduler_is_no_slower_than_any_of_them() -> None:
    each = {
        name: figures(RcLLM(), replace(FIELD, scheduler=name), 1)["ttft_mean_s"]
        for name in ("best", "affinity", "locality", "load", "turns")
    }  # fmt: skip
    assert each["best"] == min(each.values())
    assert each["locality"] > each["best"]


def test_loads_are_shares_of_what_is_served_without_a_cache_or_with_the_system() -> None:
    assert rate(replace(FIELD, load=0.35), 0, RcLLM()) == pytest.approx(rate(FIELD, 0, NoReuse()) / 2)
    assert rate(replace(FIELD, own=True), 0, NoReuse()) == pytest.approx(rate(FIELD, 0, NoReuse()), rel=0.01)
    assert rate(replace(FIELD, own=True), 0, RcLLM()) > 1.5 * rate(FIELD, 0, RcLLM())


def test_sweeps_have_places_and_the_rest_of_the_field() -> None:
    found = measured(RcLLM(), FIELD, 0, {"candidates": (0, 5), "link_bytes_per_s": (1e8,)})
    got = {(name, *at.items()): value for name, value, at in found.rows}
    assert got["ttft_mean_s", ("link_bytes_per_s", 1e8)] > got["ttft_mean_s",]
    # Over slow links nothing is fetched, and what is kept by the worker itself is still there.
    assert got["transferred_tokens", ("link_bytes_per_s", 1e8)] == 0
    none = figures(NoReuse(), FIELD, 0)
    assert got["ttft_mean_s", ("link_bytes_per_s", 1e8)] < none["ttft_mean_s"]
    assert got["transferred_tokens", ("candidates", 0.0)] == 0
    assert got["computed_tokens", ("candidates", 5.0)] < got["computed_tokens",]


def test_the_study_asks_recommenders_and_refuses_edits() -> None:
    study = KVReuse(
        workload="recommender", items=100, users=9, learned=10, asked=10, candidates=10, workers=2, rankings=0
    )
    study.check()
    found = {name: value for name, value, _ in study.measure(RcLLM(), 0).rows}
    assert found["reused_share"] > 0.3
    assert "top10_overlap" not in found
    assert any("modelled" in each for each in study.notes())
    with pytest.raises(BadValueError, match="edited"):
        KVReuse(workload="recommender", edit_tokens=3).check()
    assert KVReuse(workload="recommender", catalogue="movielens-small").data().keys() == {"movielens-small"}


def test_rankings_are_of_what_is_executed() -> None:
    pytest.importorskip("torch")
    assert ranked(RcLLM(), 0, steps=0, prompts=0) == {}
    assert ranked(RadixCache(), 0, steps=0, prompts=1)["top10_overlap"] == 1.0
    assert ranked(RcLLM(share=1.0), 0, steps=0, prompts=1)["ranking_kl_nats"] == pytest.approx(0, abs=1e-6)
    assert ranked(FullReuse(), 0, steps=0, prompts=1)["ranking_kl_nats"] > 0
    assert 0 < ranked(CacheBlend(), 0, steps=0, prompts=1)["ranking_computed_share"] < 1
