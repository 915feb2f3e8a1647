"""Prefill and decode workers that work at the same time: both simulators agree, and known answers by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.simulator.split_reference import simulate_split_slowly
from tests.serving.simulator.test_reference import (
    PS,
    Recorder,
    arrival_routers,
    clusters,
    pool_routers,
    ps,
    traces,
)

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import FewestKVTokens, RoundRobin
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace

# Without models: two pools drawn apart may have no model in common.
pools = clusters().map(lambda drawn: dataclasses.replace(drawn, models=None))
links = st.fixed_dictionaries(
    {
        "kv_bytes_per_token": st.sampled_from([1.0, 1000.0]),
        "link_bytes_per_s": st.sampled_from([1e4, 1e6, 1e9, 1e18]),
        "transfer_latency_s": st.sampled_from([0.0, 1e-3, 0.3]),
    }
)
decode_routers = st.one_of(arrival_routers, pool_routers)


class Watch:
    """Looks at every moment that the readable simulator comes to."""

    def __init__(self) -> None:
        self.moments = 0

    def __call__(self, prefill: Any, decode: Any) -> None:
        self.moments += 1
        for worker in (*prefill, *decode):
            assert 0 <= worker.held <= worker.cluster.kv_capacity_tokens
            assert worker.occupied <= worker.cluster.max_running
        # The KV tokens held are those of the requests that are there, no more and no fewer.
        for worker in prefill:
            there = worker.running + worker.kept
            alone = sum(r.prompt - worker.block_tokens * len(worker.units_of(r)) for r in there)
            shared = {block for r in there for block in worker.units_of(r)}
            assert worker.held == alone + worker.block_tokens * len(shared)
        for worker in decode:
            there = sum(r.prompt + r.generated - r.decodes for r in worker.running)
            assert worker.held == there + sum(r.prompt for r in worker.reserved)
        # No request is in two places but while its KV cache is on its way.
        kept = [r.number for worker in prefill for r in worker.kept]
        seen = [r.number for w in decode for r in (*w.line, *w.coming, *w.landed, *w.running, *w.queue)]
        coming = [r.number for w in decode for r in (*w.line, *w.coming)]
        assert len(set(kept)) == len(kept) and len(set(seen)) == len(seen)
        assert set(coming) <= set(kept)
        assert not set(kept) & (set(seen) - set(coming))


def agree(requests: RequestTrace, cluster: DisaggregatedCluster, router: Any, decode_router: Any) -> Watch:
    run = simulate(requests, cluster, router, decode_router=decode_router)
    watch = Watch()
    slow = simulate_split_slowly(requests, cluster, router, decode_router, watch=watch)
    assert ps(run.first_token_s).tolist() == slow["first_ps"].tolist()
    assert ps(run.finish_s).tolist() == slow["finish_ps"].tolist()
    assert run.worker.tolist() == slow["worker"].tolist()
    assert run.preemptions.tolist() == slow["preemptions"].tolist()
    assert run.matched_tokens.tolist() == slow["matched"].tolist()
    for name in ("steps", "decisions", "adapter_loads", "prefill_steps"):
        assert getattr(run, name) == slow[name][0], name
    handed = slow["began_ps"] >= 0
    assert (handed == (requests.output_tokens > 1)).all()
    assert ps(run.held_back_s)[handed].tolist() == (slow["began_ps"] - slow["first_ps"])[handed].tolist()
    assert ps(run.transfer_s)[handed].tolist() == (slow["landed_ps"] - slow["began_ps"])[handed].tolist()
    times_s = run.lock_s, run.work_s, run.mixed_s
    assert times_s == pytest.approx([slow[name][0] / PS for name in ("lock_ps", "work_ps", "mixed_ps")], abs=1e-12)
    if cluster.decode.group_size > 1 and slow["counted_steps"][0]:
        assert run.imbalance_tokens == pytest.approx(slow["imbalance_tokens"][0] / slow["counted_steps"][0])
    return watch


@given(traces(), pools, pools, links, arrival_routers, decode_routers)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_both_simulators_agree_and_neither_loses_requests_nor_tokens(
    requests, prefill, decode, link, router, decode_router
):
    agree(requests, DisaggregatedCluster(prefill=prefill, decode=decode, **link), router, decode_router)


@given(traces(), pools, pools, links, arrival_routers, decode_routers)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_both_show_routers_the_same(requests, prefill, decode, link, router, decode_router):
    cluster = DisaggregatedCluster(prefill=prefill, decode=decode, **link)
    shown = []
    for run in (lambda *r: simulate(requests, cluster, r[0], decode_router=r[1]),
                lambda *r: simulate_split_slowly(requests, cluster, *r)):  # fmt: skip
        both = Recorder(router), Recorder(decode_router)
        run(*both)
        shown.append([each.shown for each in both])
    for fast, slow in zip(*shown, strict=True):
        assert len(fast) == len(slow)
        for number, ((names, ours), (_, theirs)) in enumerate(zip(fast, slow, strict=True)):
            for name, one, other in zip(names, ours, theirs, strict=True):
                assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), (number, name, one, other)


STEP = FittedStepTime(
    overhead_s=1e-3, per_request_s=1e-4, per_context_token_s=1e-6, per_prefill_token_s=1e-5
)  # fmt: skip


def pool(**given: Any) -> Cluster:
    return Cluster(
        **{
            "workers": 1, "step_time": STEP, "refresh_s": 0.0, "max_running": 8, "max_batched_tokens": 64,
            "kv_capacity_tokens": 1000, "kv_watermark": 0.0, **given,
        }
    )  # fmt: skip


def split(prefill: Cluster, decode: Cluster, **given: Any) -> DisaggregatedCluster:
    """A token takes 10 us on the link, a transfer 2 ms to start."""
    link = {"kv_bytes_per_token": 1.0, "link_bytes_per_s": 1e5, "transfer_latency_s": 2e-3}
    return DisaggregatedCluster(prefill=prefill, decode=decode, **{**link, **given})


def trace(*rows: tuple[float, int, int]) -> RequestTrace:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return RequestTrace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)


def us(times_s: Any) -> list[int]:
    return [round(float(value) * 1e6) for value in np.atleast_1d(times_s)]


class TestKnownAnswers:
    def test_one_request(self):
        run = simulate(trace((0.0, 10, 3)), split(pool(), pool()), RoundRobin())
        # 1 ms + 10 * 10 us; 2 ms + 10 * 10 us; two steps of 1.1 ms on 10 and 11 tokens.
        assert us(run.first_token_s) == [1100]
        assert us(run.held_back_s) == [0]
        assert us(run.transfer_s) == [2100]
        assert us(run.finish_s) == [1100 + 2100 + 1110 + 1111]

    def test_a_full_decode_pool_holds_the_prompt_and_then_the_prefill_worker_back(self):
        # One at a time decodes; the prefill worker has room for two prompts, of which one waits to be handed over.
        cluster = split(pool(kv_capacity_tokens=20), pool(max_running=1), transfer_latency_s=0.0)
        run = simulate(trace((0.0, 10, 3), (0.0, 10, 3), (0.0, 10, 3), (0.0, 10, 1)), cluster, RoundRobin())
        # Two prompts take 1 ms + 20 * 10 us. The first cache arrives 100 us later, and the third prompt is computed.
        assert us(run.first_token_s)[:3] == [1200, 1200, 1300 + 1100]
        # The first decodes for 1110 + 1111 us from 1300 us on; then the second is handed over.
        first = 1300 + 1110 + 1111
        assert us(run.finish_s)[:2] == [first, first + 100 + 1110 + 1111]
        assert us(run.held_back_s[:3]) == [0, first - 1200, us(run.finish_s)[1] - 2400]
        # Until its cache has left, the fourth prompt waits.
        assert us(run.first_token_s)[3] == first + 100 + 1100

    def test_without_back_pressure_the_same_prompts_do_not_wait(self):
        cluster = split(pool(kv_capacity_tokens=20), pool(), transfer_latency_s=0.0)
        run = simulate(trace((0.0, 10, 3), (0.0, 10, 3), (0.0, 10, 3), (0.0, 10, 1)), cluster, RoundRobin())
        # The third follows the first as before; the fourth is computed when the second has left.
        assert us(run.first_token_s) == [1200, 1200, 2400, 3500]

    def test_transfers_of_one_sender_follow_each_other_on_its_link(self):
        rows = ((0.0, 10, 2), (0.0, 20, 2))
        run = simulate(trace(*rows), split(pool(), pool(workers=2)), RoundRobin())
        assert us(run.transfer_s) == [2000 + 100, 2000 + 300]
        # Of two senders they do not.
        run = simulate(trace(*rows), split(pool(workers=2), pool(workers=2)), RoundRobin())
        assert us(run.transfer_s) == [2000 + 100, 2000 + 200]

    def test_a_cache_waits_for_the_tokens_of_all_who_run(self):
        # The first holds 10 tokens and grows; the second needs 10, one more, and one for the first: 22 in all.
        for capacity, held_back in ((22, False), (21, True)):
            cluster = split(pool(), pool(kv_capacity_tokens=capacity), transfer_latency_s=0.0)
            run = simulate(trace((0.0, 10, 9), (0.0, 10, 2)), cluster, RoundRobin())
            assert (run.held_back_s[1] > 0) == held_back

    def test_a_decode_worker_that_preempts_takes_nobody_before_the_preempted_is_back(self):
        cluster = split(pool(), pool(kv_capacity_tokens=24), transfer_latency_s=0.0)
        run = simulate(trace((0.0, 10, 9), (0.0, 10, 9), (0.0, 5, 2)), cluster, RoundRobin())
        assert run.preemptions.tolist() == [0, 1, 0]
        assert run.finish_s[2] > run.finish_s[0]
        agree(trace((0.0, 10, 9), (0.0, 10, 9), (0.0, 5, 2)), cluster, RoundRobin(), RoundRobin())

    def test_who_waits_for_room_is_shown_as_waiting_and_kept_caches_as_held(self):
        seen: list[Any] = []

        class Look(RoundRobin):
            @staticmethod
            def choose(view, arrival, state, parameters):
                seen.append((view.kv_tokens[0], view.running[0], view.waiting[0], view.waiting_tokens[0]))
                return 0

        cluster = split(pool(), pool(max_running=1), transfer_latency_s=1.0)
        simulate(trace((0.0, 10, 3), (0.0, 20, 3), (0.5, 7, 3)), cluster, Look(), decode_router=FewestKVTokens())
        # The first two caches are still there, and nobody runs.
        assert seen[2] == (30.0, 0, 0, 0.0)
        seen.clear()
        simulate(trace((0.0, 10, 3), (0.0, 20, 3), (0.5, 7, 3)), cluster, RoundRobin(), decode_router=Look())
        # One is on its way, its tokens reserved; the other waits.
        assert seen[2] == (10.0, 1, 1, 20.0)

    def test_a_router_with_a_pool_leaves_prompts_at_their_prefill_workers_until_it_places_them(self):
        cluster = split(pool(), pool(workers=2, group_size=2, max_running=1), transfer_latency_s=0.0)
        run = simulate(trace(*[(0.0, 10, 3)] * 3), cluster, RoundRobin(), decode_router=BalanceRoute())
        assert (run.held_back_s > 0).tolist() == [False, False, True]
        # It is placed before the first step after a place has become free.
        assert us(run.first_token_s + run.held_back_s)[2] == us(run.finish_s)[:2][0]


class TestRefusals:
    def test_a_link_without_bandwidth(self):
        with pytest.raises(BadValueError, match="bandwidth"):
            split(pool(), pool(), link_bytes_per_s=0.0)

    def test_a_link_that_takes_longer_than_a_day(self):
        with pytest.raises(BadValueError, match="longer on the link"):
            simulate(trace((0.0, 10, 3)), split(pool(), pool(), link_bytes_per_s=1e-5), RoundRobin())

    def test_a_request_that_fits_no_decode_worker_is_named(self):
        with pytest.raises(BadValueError, match=r"row 2: 10 prompt \+ 12 output tokens"):
            simulate(trace((0.0, 5, 3), (0.0, 10, 12)), split(pool(), pool(kv_capacity_tokens=20)), RoundRobin())

    def test_a_prompt_that_fits_no_prefill_worker_is_named(self):
        with pytest.raises(BadValueError, match=r"row 1: 30 prompt \+ 1 output tokens"):
            simulate(trace((0.0, 30, 3)), split(pool(kv_capacity_tokens=20), pool()), RoundRobin())

    def test_a_pool_before_prefill_workers(self):
        with pytest.raises(BadValueError, match="keeps a pool"):
            simulate(trace((0.0, 10, 3)), split(pool(), pool()), BalanceRoute())

    @pytest.mark.parametrize("which", ["prefill", "decode"])
    def test_a_router_that_names_nobody_of_its_pool(self, which):
        class Lost(RoundRobin):
            @staticmethod
            def choose(view, arrival, state, parameters):
                return 7

        routers = (Lost(), RoundRobin()) if which == "prefill" else (RoundRobin(), Lost())
        with pytest.raises(Exception, match="does not exist") as raised:
            simulate(trace((0.0, 10, 3)), split(pool(workers=2), pool(workers=3)), routers[0], decode_router=routers[1])
        assert ("0 to 1" if which == "prefill" else "0 to 2") in str(raised.value)


@pytest.mark.slow
@given(traces(), pools, pools, links, arrival_routers, decode_routers)
@settings(max_examples=3000, deadline=None)
def test_both_simulators_agree_on_many_more_cases(requests, prefill, decode, link, router, decode_router):
    agree(requests, DisaggregatedCluster(prefill=prefill, decode=decode, **link), router, decode_router)
