"""RcLLM's scheduler at its limits: infinite bandwidth, equal loads, and each weight alone."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.serving.routing.block_affinity import BlockAffinity
from wavetank.serving.routing.interface import Arrival, idle_workers


def sent(router: BlockAffinity, prompt: float = 1_000.0, **view: object) -> int:
    seen = idle_workers(len(view["matched_tokens"]), **view)
    return int(router.choose(seen, Arrival(0.0, prompt, 1.0), router.initial_state(2), router.parameters()))


def predicted(router: BlockAffinity, prompt: float, here: float, there: float, waits: float) -> float:
    new = prompt - there + router.again * there
    return waits * router.token_s + new * router.token_s + router.pair_s * new * (prompt - new / 2) + (
        there - here
    ) * router.fetch_s  # fmt: skip


def test_it_is_the_least_prediction() -> None:
    draws, router = np.random.default_rng(3), BlockAffinity(again=0.2)
    for _ in range(200):
        here, waits = draws.integers(0, 900, 5).astype(float), draws.integers(0, 600, 5).astype(float)
        there = np.full(5, 900.0)
        by_hand = [predicted(router, 1_000.0, a, 900.0, w) for a, w in zip(here, waits, strict=True)]
        got = sent(router, matched_tokens=here, cached_tokens=there, waiting_tokens=waits)
        assert by_hand[got] == pytest.approx(min(by_hand), rel=1e-12)


def test_with_infinite_bandwidth_it_is_least_loaded_and_with_equal_loads_best_locality() -> None:
    here, there = [900.0, 0.0, 300.0], [900.0] * 3
    free = BlockAffinity(fetch_s=0.0)
    assert sent(free, matched_tokens=here, cached_tokens=there, waiting_tokens=[20, 5, 10]) == 1
    assert sent(BlockAffinity(), matched_tokens=here, cached_tokens=there, waiting_tokens=[7, 7, 7]) == 0
    assert sent(BlockAffinity(), matched_tokens=[0.0, 500.0], waiting_tokens=[0, 499]) == 1


def test_each_weight_alone_is_pure_load_or_pure_locality_with_ties_to_the_lighter() -> None:
    here, waits = [900.0, 0.0, 900.0], [500, 0, 400]
    assert sent(BlockAffinity(locality=0.0), matched_tokens=here, waiting_tokens=waits) == 1
    assert sent(BlockAffinity(queue=0.0), matched_tokens=here, waiting_tokens=waits) == 2
    assert sent(BlockAffinity(), matched_tokens=[0.0, 0.0], waiting_tokens=[0, 0], kv_tokens=[9, 3]) == 1


def test_only_workers_that_take_the_request_are_named() -> None:
    assert sent(BlockAffinity(), matched_tokens=[900.0, 0.0], takes=[0, 1]) == 1
    assert sent(BlockAffinity(), matched_tokens=[900.0, 0.0], takes=[0, 0]) == 0
    with pytest.raises(WavetankError):
        BlockAffinity(again=1.5)


def test_a_launched_router_sends_each_request_where_the_simulated_one_does() -> None:
    pytest.importorskip("aiohttp")
    from wavetank.serving.proxy.decision_parity import decision_parity
    from wavetank.serving.proxy.study_parity import RouterParity

    study = RouterParity(requests=120, phases=1, shared_prefix=0.6, prefix_caching=True)
    trace = study.arriving("bursty", 0)
    found = decision_parity(trace, study.cluster, BlockAffinity())
    assert (found.sent_elsewhere, found.views_differ) == (0, 0)
    assert found.requests == len(trace)
    assert found.contended > 0
