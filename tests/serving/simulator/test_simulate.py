"""What the simulator says, against figures worked out by hand; its invariants; its refusals."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadTraceError, BadValueError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving import simulate as simulate_of_the_area
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import FewestKVTokens, FewestRequests, RandomWorker, RoundRobin
from wavetank.serving.routing.power_of_two import PowerOfTwo
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import LONGEST_TRACE_S, check_that_all_fit, simulate
from wavetank.workloads import RequestTrace, SharedPrefix, generate_requests

# A step of R decodes on C tokens with P prompt tokens in S pairs takes 1 ms + 100 us R + 1 us C + 10 us P + 2 us S.
STEP = FittedStepTime(
    overhead_s=1e-3, per_request_s=1e-4, per_context_token_s=1e-6, per_prefill_token_s=1e-5, per_prefill_pair_s=2e-6
)
FLAT = FittedStepTime(overhead_s=1e-3)
ALL_ROUTERS = (
    RoundRobin(), RandomWorker(), FewestRequests(), FewestKVTokens(), PowerOfTwo(), VLLMDefault(), PrefixAffinity(),
    BalanceRoute(horizon_steps=0), BalanceRoute(), BalanceRoute(termination="oracle"),
)  # fmt: skip


def us(*times_s):
    """Return times in whole microseconds."""
    return np.round(np.concatenate([np.atleast_1d(t) for t in times_s]) * 1e6, 6).tolist()


def trace(*rows, **blocks):
    """Make a trace of (arrival in s, prompt, output) rows."""
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return RequestTrace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs, **blocks)


def cluster(**given):
    defaults = {"workers": 1, "step_time": STEP, "max_running": 8, "max_batched_tokens": 512, "kv_watermark": 0.0}
    return Cluster(**{**defaults, **given})


def decode_us(steps, requests, context):
    """Return the time of decode steps in closed form: k (a + b R + c C) + c R k (k - 1) / 2."""
    return steps * (1000 + 100 * requests + context) + requests * steps * (steps - 1) / 2


class TestOneWorker:
    def test_one_request_alone(self):
        run = simulate(trace((2.0, 10, 5)), cluster(), RoundRobin())
        # Prompt: 10 tokens, 55 pairs.  Then four steps on 10, 11, 12 and 13 tokens.
        assert us(run.ttft_s) == [1000 + 100 + 110]
        assert us(run.e2e_s) == [1210 + 1110 + 1111 + 1112 + 1113]
        assert us(run.tpot_s) == [4446 / 4]
        assert run.steps == 5
        assert run.worker.tolist() == run.preemptions.tolist() == run.matched_tokens.tolist() == [0]

    def test_a_request_of_one_token_ends_with_its_prompt(self):
        run = simulate(trace((0.0, 10, 1)), cluster(), RoundRobin())
        assert us(run.first_token_s, run.finish_s) == [1210, 1210]
        assert np.isnan(run.tpot_s).all()
        assert run.steps == 1

    @pytest.mark.parametrize("outputs", [2, 3, 17, 5000])
    @pytest.mark.parametrize("requests", [1, 3, 8])
    def test_decode_steps_take_what_the_closed_form_says(self, requests, outputs):
        run = simulate(trace(*[(0.0, 40, outputs)] * requests), cluster(kv_capacity_tokens=10**6), RoundRobin())
        prompt_us = 1000 + 10 * 40 * requests + 2 * requests * 40 * 41 / 2
        expected_us = prompt_us + decode_us(outputs - 1, requests, 40 * requests)
        assert us(run.finish_s) == [expected_us] * requests
        assert run.steps == outputs

    def test_prompts_longer_than_the_token_budget_are_computed_in_chunks(self):
        run = simulate(trace((0.0, 10, 2)), cluster(max_batched_tokens=4, max_running=4), RoundRobin())
        # Chunks of 4, 4 and 2 tokens with 10, 4 * 4 + 10 and 2 * 8 + 3 pairs.
        chunks_us = [1000 + 40 + 20, 1000 + 40 + 52, 1000 + 20 + 38]
        assert us(run.first_token_s) == [sum(chunks_us)]
        assert us(run.finish_s) == [sum(chunks_us) + 1110]

    def test_a_chunk_that_ends_leaves_the_rest_of_the_budget_to_the_next_prompt(self):
        run = simulate(trace((0.0, 5, 1), (0.0, 4, 1)), cluster(max_batched_tokens=6, max_running=6), RoundRobin())
        # 5 and 1 of 4 tokens: 15 + 1 pairs; then 3 tokens behind 1: 3 + 6 pairs.
        assert us(run.finish_s) == [1000 + 60 + 32, 1092 + 1000 + 30 + 18]

    def test_an_arrival_within_a_phase_joins_at_the_next_boundary_and_shares_the_step(self):
        run = simulate(trace((0.0, 10, 4), (1.5e-3, 6, 2)), cluster(), RoundRobin())
        # Boundaries at 1210 and 2320 us; the second prompt (6 tokens, 21 pairs) runs beside a decode on 11 tokens.
        shared_us = 1000 + 100 + 11 + 60 + 42
        both_us = 1000 + 200 + 12 + 6
        assert us(run.first_token_s) == [1210, 2320 + shared_us]
        assert us(run.finish_s) == [2320 + shared_us + both_us] * 2

    def test_an_arrival_at_a_boundary_is_in_the_step_that_begins_there(self):
        run = simulate(trace((0.0, 10, 4), (1210e-6, 6, 1)), cluster(), RoundRobin())
        assert us(run.first_token_s)[1] == 1210 + 1000 + 100 + 10 + 60 + 42

    def test_a_full_batch_makes_a_request_wait_for_a_slot(self):
        run = simulate(trace((0.0, 4, 3), (0.0, 4, 1)), cluster(step_time=FLAT, max_running=1), RoundRobin())
        assert us(run.finish_s) == [3000, 4000]

    def test_decoding_requests_take_the_token_budget_first(self):
        # Budget 3: two decode, so that the third prompt of 2 tokens takes two steps.
        rows = (0.0, 1, 9), (0.0, 1, 9), (0.5e-3, 2, 1)
        run = simulate(trace(*rows), cluster(step_time=FLAT, max_batched_tokens=3, max_running=3), RoundRobin())
        assert us(run.first_token_s) == [1000, 1000, 3000]

    def test_every_step_takes_the_synchronisation_time_more(self):
        run = simulate(trace((0.0, 4, 3)), cluster(step_time=FLAT, sync_s=5e-4), RoundRobin())
        assert us(run.finish_s) == [4500]


class TestKVCache:
    def test_when_the_cache_is_full_the_request_admitted_last_gives_way_and_recomputes(self):
        run = simulate(trace((0.0, 8, 8), (0.0, 8, 8)), cluster(kv_capacity_tokens=20), RoundRobin())
        # 16 tokens are held after the prompts, 18 and 20 after two decode steps; a third has no room.  The second
        # request then has 3 tokens out; the first goes on alone from 10 tokens for five steps.
        prompts_us = 1000 + 160 + 2 * 72
        together_us = decode_us(2, 2, 16)
        alone_us = decode_us(5, 1, 10)
        first_us = prompts_us + together_us + alone_us
        # It recomputes 8 + 3 tokens, which yields its fourth, and takes four more steps from 11 tokens.
        again_us = 1000 + 110 + 2 * 66 + decode_us(4, 1, 11)
        assert run.preemptions.tolist() == [0, 1]
        assert us(run.first_token_s) == [prompts_us, prompts_us]
        assert us(run.finish_s) == [first_us, first_us + again_us]

    def test_one_token_of_cache_more_lets_both_take_one_step_more_only_if_both_find_room(self):
        both = trace((0.0, 8, 8), (0.0, 8, 8))
        caches = [cluster(kv_capacity_tokens=tokens, step_time=FLAT) for tokens in (20, 21, 22)]
        finish_us = [us(simulate(both, given, RoundRobin()).finish_s) for given in caches]
        # A step needs two tokens: the second request recomputes as its 4th token at 20 and 21, as its 5th at 22.
        assert finish_us == [[8000, 13_000], [8000, 13_000], [8000, 12_000]]

    def test_in_a_group_which_is_stepped_the_cache_is_filled_to_the_last_token_as_well(self):
        def first(view, arrival, state, parameters):
            return 0

        kind = type("First", (RoundRobin,), {"choose": staticmethod(first)})
        given = cluster(workers=2, group_size=2, kv_capacity_tokens=20, step_time=FLAT)
        run = simulate(trace((0.0, 8, 8), (0.0, 8, 8)), given, kind())
        assert us(run.finish_s) == [8000, 13_000]
        assert run.preemptions.tolist() == [0, 1]

    def test_a_cache_for_both_preempts_nobody(self):
        run = simulate(trace((0.0, 8, 8), (0.0, 8, 8)), cluster(kv_capacity_tokens=30), RoundRobin())
        assert run.preemptions.tolist() == [0, 0]
        run = simulate(trace((0.0, 8, 8), (0.0, 8, 8)), cluster(kv_capacity_tokens=29), RoundRobin())
        assert run.preemptions.tolist() == [0, 1]

    def test_a_prompt_is_admitted_only_when_its_tokens_have_room(self):
        run = simulate(trace((0.0, 8, 2), (0.0, 13, 1)), cluster(kv_capacity_tokens=20, step_time=FLAT), RoundRobin())
        assert us(run.first_token_s) == [1000, 3000]

    def test_the_watermark_is_left_free_beside_others_and_does_not_hold_for_one_alone(self):
        rows = (0.0, 8, 2), (0.0, 8, 1)
        for watermark, second_us in ((0.0, 1000), (0.2, 1000), (0.3, 3000)):
            # 16 of 20 tokens: below 20 and 16, not below 14.
            given = cluster(kv_capacity_tokens=20, step_time=FLAT, kv_watermark=watermark)
            assert us(simulate(trace(*rows), given, RoundRobin()).first_token_s) == [1000, second_us]
        alone = simulate(trace((0.0, 18, 2)), cluster(kv_capacity_tokens=20, kv_watermark=0.5), RoundRobin())
        assert np.isfinite(alone.finish_s).all()

    def test_a_request_that_fills_the_cache_to_the_last_token_is_served(self):
        # The keys of the last token are never computed: 12 prompt tokens and 7 of 8 output tokens.
        given = cluster(kv_capacity_tokens=19)
        run = simulate(trace((0.0, 12, 8)), given, RoundRobin())
        assert run.preemptions.tolist() == [0]
        slow = simulate_slowly(trace((0.0, 12, 8)), given, RoundRobin())
        assert us(run.finish_s) == us(slow["finish_ps"] / 1e12)
        with pytest.raises(BadValueError, match="kv_capacity_tokens >= 19"):
            simulate(trace((0.0, 12, 8)), cluster(kv_capacity_tokens=18), RoundRobin())


# Two prompts of three blocks, the first two alike.
BLOCKS = {"block_ids": [0, 1, 2, 0, 1, 3], "block_offsets": [0, 3, 6], "block_tokens": 4}


class TestPrefixCaching:
    def test_whole_blocks_of_an_earlier_prompt_are_not_computed_again(self):
        run = simulate(
            trace((0.0, 10, 1), (1.0, 10, 1), **BLOCKS), cluster(prefix_caching=True), RoundRobin()
        )  # fmt: skip
        assert run.matched_tokens.tolist() == [0, 8]
        # Two tokens behind eight: 2 * 8 + 3 pairs.
        assert us(run.ttft_s) == [1210, 1000 + 20 + 38]
        assert run.metrics()["prefix_hit_share"] == 8 / 20

    def test_the_last_token_is_always_computed(self):
        blocks = {"block_ids": [0, 1, 0, 1], "block_offsets": [0, 2, 4], "block_tokens": 4}
        run = simulate(trace((0.0, 8, 1), (1.0, 8, 1), **blocks), cluster(prefix_caching=True), RoundRobin())
        assert run.matched_tokens.tolist() == [0, 4]

    def test_a_partial_last_block_is_not_shared(self):
        blocks = {"block_ids": [0, 1, 0, 1], "block_offsets": [0, 2, 4], "block_tokens": 4}
        run = simulate(trace((0.0, 7, 1), (1.0, 7, 1), **blocks), cluster(prefix_caching=True), RoundRobin())
        assert run.matched_tokens.tolist() == [0, 4]

    def test_another_worker_has_not_got_it(self):
        run = simulate(
            trace((0.0, 10, 1), (1.0, 10, 1), **BLOCKS), cluster(workers=2, prefix_caching=True), RoundRobin()
        )
        assert run.matched_tokens.tolist() == [0, 0]

    def test_without_caching_nothing_matches(self):
        run = simulate(trace((0.0, 10, 1), (1.0, 10, 1), **BLOCKS), cluster(), RoundRobin())
        assert run.matched_tokens.tolist() == [0, 0]
        assert us(run.ttft_s) == [1210, 1210]

    def test_the_least_recently_used_blocks_give_way_from_their_ends(self):
        # Prompts of three blocks each; the cache takes five, so that the second prompt pushes the end of the first out.
        blocks = {
            "block_ids": [0, 1, 2, 3, 4, 5, 0, 1, 2],
            "block_offsets": [0, 3, 6, 9],
            "block_tokens": 4,
        }
        rows = (0.0, 12, 1), (1.0, 12, 1), (2.0, 12, 1)
        for capacity, hit in ((24, 8), (20, 8), (16, 4), (13, 0)):
            given = cluster(prefix_caching=True, kv_capacity_tokens=capacity)
            assert simulate(trace(*rows, **blocks), given, RoundRobin()).matched_tokens.tolist() == [0, 0, hit]

    def test_blocks_that_running_requests_share_are_held_once(self):
        # Each alone holds 9 to 12 tokens; with two shared blocks both fit into 14 tokens, without they do not.
        blocks = {"block_ids": [0, 1, 2, 0, 1, 3], "block_offsets": [0, 3, 6], "block_tokens": 4}
        rows = (0.0, 9, 3), (1e-3, 9, 3)
        shared = simulate(
            trace(*rows, **blocks), cluster(prefix_caching=True, kv_capacity_tokens=14, step_time=FLAT), RoundRobin()
        )
        apart = simulate(trace(*rows), cluster(kv_capacity_tokens=14, step_time=FLAT), RoundRobin())
        assert us(shared.first_token_s) == [1000, 2000]
        assert us(apart.first_token_s) == [1000, 4000]


class TestGroups:
    ROWS = (0.0, 10, 3), (0.0, 4, 3)

    def test_a_step_of_a_group_lasts_as_long_as_its_slowest_worker_and_the_synchronisation(self):
        run = simulate(trace(*self.ROWS), cluster(workers=2, group_size=2, sync_s=3e-4), RoundRobin())
        # Own steps: 1210, 1110, 1111 us of the first worker; 1060, 1104, 1105 us of the second.
        assert us(run.first_token_s) == [1510, 1510]
        assert us(run.finish_s) == [1510 + 1410 + 1411] * 2
        assert run.steps == 3

    def test_imbalance_is_workers_times_largest_minus_sum_of_the_context_a_step_reads(self):
        run = simulate(trace(*self.ROWS), cluster(workers=2, group_size=2, sync_s=3e-4), RoundRobin())
        # The prompts' step reads none; then 2 * 10 - 14 and 2 * 11 - 16.
        assert run.imbalance_tokens == pytest.approx((0 + 6 + 6) / 3)

    def test_idle_share_is_the_wait_for_the_slowest_worker_and_the_synchronisation(self):
        run = simulate(trace(*self.ROWS), cluster(workers=2, group_size=2, sync_s=3e-4), RoundRobin())
        assert us(run.lock_s, run.work_s) == [2 * (1510 + 1410 + 1411), 3431 + 1060 + 1104 + 1105]
        assert run.idle_share == pytest.approx(1 - (3431 + 3269) / 8662)

    def test_idle_share_means_the_same_for_lone_workers_and_for_groups(self):
        # Both workers do the same all the time, so that no barrier costs anything; gaps and synchronisation do.
        rows = [(t, 10, 3) for t in (0.0, 0.0, 0.0045, 0.0045, 0.0103, 0.0103)]
        runs = [
            simulate(trace(*rows), cluster(workers=2, group_size=size, sync_s=3e-4), RoundRobin()) for size in (1, 2)
        ]
        # Three rounds of 1210, 1110 and 1111 us, counted from 1030 to 10,300 us; a step's synchronisation ends it.
        own_us = (1210 - 1030) + 1110 + 1111 + (1210 + 1110 + 1111)
        for run in runs:
            assert us(run.lock_s, run.work_s) == [2 * (10_300 - 1030), 2 * own_us]
            assert run.idle_share == pytest.approx(1 - own_us / 9270)

    def test_steps_that_compute_a_prompt_are_counted_and_their_time(self):
        # The prompt of 10 tokens, then one of 4 beside a decode, then four decode steps.
        rows = (0.0, 10, 6), (1e-6, 4, 1)
        for size in (1, 2):
            given = cluster(workers=2 if size == 2 else 1, group_size=size, sync_s=3e-4)
            run = simulate(trace(*rows), given, RoundRobin())
            assert run.prefill_steps == 2
            assert run.steps == 6
            assert run.metrics()["prefill_steps"] == 2
            # In a group the second prompt is computed beside the decode of the other worker, which takes 1110 us.
            second_us = 1110 if size == 2 else 1000 + 100 + 10 + 40 + 20
            assert us(run.mixed_s) == [size * (1210 + second_us + 600)]
            assert run.mixed_share == run.metrics()["mixed_share"] == pytest.approx(run.mixed_s / run.lock_s)

    def test_chunks_of_one_prompt_are_as_many_prefill_steps(self):
        run = simulate(trace((0.0, 10, 2)), cluster(max_batched_tokens=4, max_running=4), RoundRobin())
        assert (run.prefill_steps, run.steps) == (3, 4)

    def test_a_worker_without_requests_waits_too(self):
        run = simulate(trace((0.0, 10, 3)), cluster(workers=4, group_size=4), RoundRobin())
        assert run.idle_share == pytest.approx(0.75)
        assert run.imbalance_tokens == pytest.approx((3 * 10 + 3 * 11) / 3)

    def test_groups_step_on_their_own(self):
        run = simulate(trace(*self.ROWS), cluster(workers=2, group_size=1), RoundRobin())
        assert us(run.finish_s) == [1210 + 1110 + 1111, 1060 + 1104 + 1105]
        assert math.isnan(run.imbalance_tokens)

    def test_an_arrival_waits_for_the_barrier_of_its_group(self):
        run = simulate(trace((0.0, 10, 5), (0.2e-3, 1, 1)), cluster(workers=2, group_size=2), RoundRobin())
        # The second worker is idle, but its group steps until 1210 us; then the first decodes for 1110 us.
        assert us(run.first_token_s) == [1210, 1210 + 1110]


class TestDisaggregation:
    def split(self, **given):
        return DisaggregatedCluster(
            prefill=cluster(), decode=cluster(), kv_bytes_per_token=1.0, link_bytes_per_s=1e5,
            transfer_latency_s=2e-3, **given,
        )  # fmt: skip

    def test_a_prompts_cache_travels_before_its_second_token(self):
        run = simulate(trace((0.0, 10, 5)), self.split(), RoundRobin())
        assert us(run.first_token_s) == [1210]
        # 2 ms + 10 * 10 us, then four decode steps on 10 to 13 tokens.
        assert us(run.finish_s) == [1210 + 2000 + 100 + decode_us(4, 1, 10)]

    def test_a_request_of_one_token_never_travels(self):
        run = simulate(trace((0.0, 10, 1), (0.0, 10, 2)), self.split(), RoundRobin())
        both_us = 1000 + 200 + 2 * 110
        assert us(run.finish_s) == [both_us, both_us + 2100 + 1110]

    def test_when_no_request_decodes_the_decode_workers_are_not_needed(self):
        run = simulate(trace((0.0, 10, 1), (1.0, 10, 1)), self.split(), RoundRobin())
        assert us(run.e2e_s) == [1210, 1210]

    def test_prompts_do_not_delay_decoding(self):
        rows = [(0.0, 10, 50)] + [(0.01 + 0.001 * i, 400, 1) for i in range(20)]
        split = simulate(trace(*rows), self.split(), RoundRobin())
        mixed = simulate(trace(*rows), cluster(), RoundRobin())
        assert us(split.e2e_s)[0] == us(simulate(trace(rows[0]), self.split(), RoundRobin()).e2e_s)[0]
        assert mixed.e2e_s[0] > 2 * split.e2e_s[0]

    def test_each_pool_has_a_router_of_its_own(self):
        both = DisaggregatedCluster(prefill=cluster(workers=2), decode=cluster(workers=3, group_size=3))
        rows = [(0.001 * i, 10, 5) for i in range(6)]

        class Last(RoundRobin):
            @staticmethod
            def choose(view, arrival, state, parameters):
                return view.running.size - 1

        run = simulate(trace(*rows), both, RoundRobin(), decode_router=Last())
        # Decode workers have the numbers after the prefill workers'.
        assert run.worker.tolist() == [2 + 2] * 6
        run = simulate(trace(*rows), both, RoundRobin())
        assert run.worker.tolist() == [2, 3, 4, 2, 3, 4]

    def test_a_request_of_one_token_is_said_to_have_run_on_its_prefill_worker(self):
        both = DisaggregatedCluster(prefill=cluster(workers=2), decode=cluster(workers=3))
        run = simulate(trace((0.0, 10, 1), (0.0, 10, 1), (0.0, 10, 2)), both, RoundRobin())
        assert run.worker.tolist() == [0, 1, 2]

    def test_worker_time_is_that_of_the_decode_workers_over_the_window_of_the_run(self):
        both = DisaggregatedCluster(prefill=cluster(), decode=cluster(workers=3), transfer_latency_s=0.0)
        rows = [(0.0, 10, 5), (1.0, 10, 1), (2.0, 10, 5), (3.0, 10, 5)]
        run = simulate(trace(*rows), both, RoundRobin())
        assert run.window_s == pytest.approx((0.3, 3.0))
        assert run.lock_s == pytest.approx(3 * 2.7)
        # Only the third request decodes within it.
        assert us(run.work_s) == [decode_us(4, 1, 10)]
        assert run.prefill_steps == 4
        assert run.mixed_s == 0

    def test_decode_workers_that_nothing_reaches_are_idle(self):
        both = DisaggregatedCluster(prefill=cluster(workers=2), decode=cluster(workers=3))
        run = simulate(trace((0.0, 10, 1), (1.0, 10, 1)), both, RoundRobin(), probes=4)
        assert run.idle_share == 1.0
        assert run.probe_tokens.tolist() == [[0.0] * 3] * 4
        assert run.probe_s.tolist() == [0.2, 0.4, 0.6, 0.8]

    def test_preemptions_in_the_decode_pool_are_counted(self):
        both = DisaggregatedCluster(prefill=cluster(), decode=cluster(kv_capacity_tokens=20), transfer_latency_s=0.0)
        run = simulate(trace((0.0, 8, 8), (0.0, 8, 8)), both, RoundRobin())
        assert run.preemptions.tolist() == [0, 1]


class TestMetrics:
    """Two independent workers, steps of a second; arrivals at 0 and 10 s, so that figures count from 1 to 10 s."""

    SECONDS = cluster(workers=2, step_time=FittedStepTime(overhead_s=1.0))

    def test_the_window_goes_from_a_tenth_of_the_trace_to_the_last_arrival(self):
        run = simulate(trace((0.0, 5, 3), (10.0, 5, 2)), self.SECONDS, RoundRobin())
        assert run.window_s == (1.0, 10.0)
        found = run.metrics(slo_ttft_s=1.0, slo_tpot_s=1.0)
        # Only the first request finishes in it, only the second arrives in it.
        assert found["throughput_tokens_per_s"] == pytest.approx(3 / 9)
        assert found["requests_per_s"] == found["goodput_per_s"] == pytest.approx(1 / 9)
        assert found["ttft_p50_s"] == found["ttft_mean_s"] == found["tpot_p99_s"] == pytest.approx(1.0)
        assert found["e2e_p95_s"] == pytest.approx(2.0)

    def test_idle_share_of_independent_replicas_is_their_time_without_requests_in_the_window(self):
        run = simulate(trace((0.0, 5, 3), (10.0, 5, 2)), self.SECONDS, RoundRobin())
        # Of 2 * 9 s the first worker works from 1 to 3 s.
        assert run.idle_share == pytest.approx(1 - 2 / 18)
        assert run.metrics()["idle_share"] == run.idle_share

    def test_a_phase_that_spans_the_window_counts_with_what_lies_inside(self):
        run = simulate(trace((0.0, 5, 50), (0.0, 5, 2), (10.0, 5, 2)), self.SECONDS, RoundRobin())
        # One worker from 1 to 10 s, the other until 2 s.
        assert run.idle_share == pytest.approx(1 - 10 / 18)

    def test_synchronisation_at_the_edges_of_the_window_is_no_work(self):
        slow = dataclasses.replace(self.SECONDS, sync_s=0.5)
        # Every 1.5 s a second of work begins: 50 of them on the first worker, three on the second.
        for last_s, first_s, second_s in ((12.4, 7 + 0.4, 2), (13.3, 8, 2), (18.0, 0.7 + 10, 0.7 + 1)):
            run = simulate(trace((0.0, 5, 50), (0.0, 5, 3), (last_s, 5, 1)), slow, RoundRobin())
            assert run.window_s == pytest.approx((last_s / 10, last_s))
            assert run.work_s == pytest.approx(first_s + second_s)

    def test_a_backlog_that_arrives_at_once_is_counted_whole(self):
        run = simulate(trace((3.0, 5, 3), (3.0, 5, 2)), self.SECONDS, RoundRobin())
        assert run.window_s == (3.0, 6.0)
        found = run.metrics()
        assert found["throughput_tokens_per_s"] == pytest.approx(5 / 3)
        assert found["idle_share"] == pytest.approx(1 / 6)
        assert found["ttft_p99_s"] == pytest.approx(1.0)

    def test_when_nothing_finishes_in_the_window_the_whole_run_is_counted(self):
        run = simulate(trace((0.0, 5, 30), (10.0, 5, 2)), self.SECONDS, RoundRobin())
        assert run.window_s == (0.0, 30.0)
        found = run.metrics()
        assert found["requests_per_s"] == pytest.approx(2 / 30)
        # 30 and 2 s of two workers' 30 s, a second of prompt each; nothing is counted over another time.
        assert found["idle_share"] == run.idle_share == pytest.approx(1 - 32 / 60)
        assert found["mixed_share"] == pytest.approx(2 / 60)
        group = simulate(
            trace((0.0, 5, 30), (10.0, 5, 2)), dataclasses.replace(self.SECONDS, group_size=2), RoundRobin()
        )
        assert group.window_s == (0.0, 30.0)
        assert group.lock_s == 60.0
        # Context 5 to 33 alone, less the other's 5 in the step from 11 s on.
        assert group.imbalance_tokens == pytest.approx((sum(range(5, 34)) - 5) / 30)

    def test_goodput_counts_requests_within_both_objectives(self):
        rows = [(0.0, 5, 2), (1.0, 5, 2), (1.0, 5, 2), (1.0, 5, 2), (20.0, 5, 2)]
        run = simulate(trace(*rows), dataclasses.replace(self.SECONDS, workers=1, max_running=1), RoundRobin())
        # One slot: first tokens at 1, 3, 5 and 7 s; the last request is out of the window (2 to 20 s).
        assert run.window_s == (2.0, 20.0)
        assert us(run.ttft_s / 1e6) == [1, 2, 4, 6, 1]
        for ttft_s, tpot_s, good in ((10.0, 1.0, 4), (4.0, 1.0, 3), (3.9, 1.0, 2), (10.0, 0.9, 0)):
            found = run.metrics(slo_ttft_s=ttft_s, slo_tpot_s=tpot_s)
            assert found["goodput_per_s"] == pytest.approx(good / 18)

    def test_requests_of_one_token_have_no_time_per_output_token_and_can_be_good(self):
        run = simulate(trace((0.0, 5, 1), (10.0, 5, 1), (11.0, 5, 1)), self.SECONDS, RoundRobin())
        found = run.metrics(slo_tpot_s=0.0)
        assert all(math.isnan(found[f"tpot_{name}_s"]) for name in ("mean", "p50", "p95", "p99"))
        assert found["goodput_per_s"] == pytest.approx(1 / (11 - 1.1))

    def test_quantiles_leave_requests_of_one_token_out(self):
        rows = [(0.0, 5, 2), (9.0, 5, 1), (10.0, 5, 3)]
        found = simulate(trace(*rows), self.SECONDS, RoundRobin()).metrics()
        assert found["tpot_p50_s"] == pytest.approx(1.0)

    def test_shares_count_the_whole_run(self):
        run = simulate(trace((0.0, 8, 8), (0.0, 8, 8)), cluster(kv_capacity_tokens=20), RoundRobin())
        assert run.metrics()["preempted_share"] == 0.5

    def test_makespan_is_from_the_first_arrival_to_the_last_token(self):
        run = simulate(trace((4.0, 5, 3), (10.0, 5, 2)), self.SECONDS, RoundRobin())
        assert run.makespan_s == pytest.approx(8.0)

    def test_a_lone_request_has_figures(self):
        found = simulate(trace((0.0, 5, 2)), self.SECONDS, RoundRobin()).metrics()
        assert found["throughput_tokens_per_s"] == pytest.approx(1.0)
        assert all(np.isfinite(value) for name, value in found.items() if name != "imbalance_tokens")


class TestProbes:
    def test_probes_are_evenly_spaced_within_the_trace_and_read_the_context(self):
        run = simulate(
            trace((5.0, 10, 100), (9.0, 10, 1)),
            cluster(workers=2, step_time=FittedStepTime(overhead_s=0.25)), RoundRobin(), probes=3,
        )  # fmt: skip
        assert run.probe_s.tolist() == [6.0, 7.0, 8.0]
        # The prompt ends at 5.25 s; every 0.25 s adds a token, and the step that ends with the probe is done.
        assert run.probe_tokens.tolist() == [[13.0, 0.0], [17.0, 0.0], [21.0, 0.0]]
        assert run.probe_running.tolist() == [[1, 0]] * 3

    @pytest.mark.parametrize("router", [FewestKVTokens(), BalanceRoute(), BalanceRoute(termination="oracle")])
    @pytest.mark.parametrize("group_size", [1, 2])
    @pytest.mark.parametrize("rate_per_s", [4.0, 40.0])
    def test_looking_changes_nothing(self, router, group_size, rate_per_s):
        requests = generate_requests(rate_per_s=rate_per_s, n_requests=200, seed=1)
        given = Cluster(workers=2, group_size=group_size, kv_capacity_tokens=20_000)
        runs = [simulate(requests, given, router, probes=probes) for probes in (0, 997)]
        assert np.array_equal(runs[0].finish_s, runs[1].finish_s)
        assert runs[0].refreshes == runs[1].refreshes
        assert runs[0].decisions == runs[1].decisions
        assert runs[1].probe_tokens.shape == (997, 2)

    def test_no_probe_sees_more_tokens_than_the_cache_takes(self):
        requests = generate_requests(rate_per_s=100.0, n_requests=300, seed=1)
        run = simulate(requests, Cluster(workers=2, kv_capacity_tokens=13_000), FewestKVTokens(), probes=200)
        assert run.preemptions.sum() > 0
        assert 10_000 < run.probe_tokens.max() <= 13_000


class Watching:
    """Round robin that looks at every view it is given."""

    def __init__(self):
        self.most_tokens, self.most_running = 0.0, 0

    def initial_state(self, workers):
        return np.zeros(1)

    def parameters(self):
        return np.zeros(0)

    def choose(self, view, arrival, state, parameters):
        self.most_tokens = max(self.most_tokens, view.kv_tokens.max())
        self.most_running = max(self.most_running, view.running.max())
        state[0] += 1
        return int(state[0]) % view.running.size


@st.composite
def busy_traces(draw):
    return generate_requests(
        rate_per_s=draw(st.sampled_from([5.0, 50.0, 500.0])),
        n_requests=draw(st.integers(1, 150)),
        lengths=draw(st.sampled_from(["conv", "code", ("fixed", 300, 20)])),
        seed=draw(st.integers(0, 1000)),
        shared_prefix=draw(st.none() | st.just(SharedPrefix(share=0.7, groups=3))),
    )


busy_clusters = st.builds(
    lambda groups, size, **more: Cluster(workers=groups * size, group_size=size, **more),
    groups=st.integers(1, 3),
    size=st.sampled_from([1, 1, 3]),
    kv_capacity_tokens=st.sampled_from([21_000, 30_000, 400_000]),
    max_running=st.sampled_from([2, 16, 128]),
    prefix_caching=st.booleans(),
    refresh_s=st.sampled_from([0.0, 0.1]),
)


class TestInvariants:
    @given(busy_traces(), busy_clusters, st.sampled_from(ALL_ROUTERS))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_every_request_is_served_once_in_order_of_time(self, requests, given_cluster, router):
        run = simulate(requests, given_cluster, router)
        assert (run.first_token_s > requests.arrival_s).all()
        assert (run.finish_s >= run.first_token_s).all()
        assert ((run.finish_s == run.first_token_s) == (requests.output_tokens == 1))[run.preemptions == 0].all()
        assert ((run.worker >= 0) & (run.worker < given_cluster.workers)).all()
        assert (run.matched_tokens < requests.prompt_tokens).all()
        assert run.output_tokens is requests.output_tokens
        if given_cluster.workers > given_cluster.group_size == 1:
            assert 0 <= run.idle_share <= 1
        # A step gives a request one token at most.
        assert run.steps >= requests.output_tokens.max()

    @given(busy_traces(), busy_clusters, st.sampled_from([r for r in ALL_ROUTERS if hasattr(r, "choose")]))
    @settings(max_examples=40, deadline=None, derandomize=True)
    def test_a_worker_gives_first_tokens_in_order_of_arrival(self, requests, given_cluster, router):
        run = simulate(requests, given_cluster, router)
        for worker in range(given_cluster.workers):
            assert (np.diff(run.first_token_s[run.worker == worker]) >= 0).all()

    @given(busy_traces(), busy_clusters)
    @settings(max_examples=40, deadline=None, derandomize=True)
    def test_no_worker_ever_holds_more_than_its_cache_or_runs_more_than_its_slots(self, requests, given_cluster):
        watching = Watching()
        simulate(requests, dataclasses.replace(given_cluster, refresh_s=0.0), watching)
        assert watching.most_tokens <= given_cluster.kv_capacity_tokens
        assert watching.most_running <= given_cluster.max_running

    @pytest.mark.parametrize("router", ALL_ROUTERS, ids=lambda r: type(r).__name__)
    def test_equal_inputs_give_equal_runs(self, router):
        requests = generate_requests(rate_per_s=50.0, n_requests=200, seed=7)
        given_cluster = Cluster(workers=4, group_size=2, kv_capacity_tokens=20_000)
        runs = [simulate(requests, given_cluster, router, probes=5) for _ in range(2)]
        for field in dataclasses.fields(runs[0]):
            first, second = (np.asarray(getattr(run, field.name)) for run in runs)
            assert np.array_equal(first, second, equal_nan=first.dtype.kind == "f"), field.name

    @pytest.mark.parametrize("router", ALL_ROUTERS, ids=lambda r: type(r).__name__)
    @pytest.mark.parametrize("group_size", [1, 4])
    def test_a_later_start_shifts_everything_and_changes_nothing(self, router, group_size):
        at_zero = trace(*[(0.007 * i, 100 + 37 * (i % 11), 5 + i % 23) for i in range(120)])
        # By whole refresh intervals: routers look at the clock's multiples of them.
        later = dataclasses.replace(at_zero, arrival_s=at_zero.arrival_s + 64.0)
        given_cluster = cluster(workers=4, group_size=group_size, kv_capacity_tokens=2000, refresh_s=0.125)
        first, second = (simulate(requests, given_cluster, router, probes=9) for requests in (at_zero, later))
        assert us(second.finish_s - 64.0) == us(first.finish_s)
        assert np.array_equal(first.probe_tokens, second.probe_tokens)
        assert second.idle_share == pytest.approx(first.idle_share)
        assert second.metrics()["requests_per_s"] == pytest.approx(first.metrics()["requests_per_s"])

    @pytest.mark.parametrize("router", [r for r in ALL_ROUTERS if hasattr(r, "choose")], ids=lambda r: type(r).__name__)
    @pytest.mark.parametrize("group_size", [1, 4])
    def test_when_all_times_double_all_times_double(self, router, group_size):
        requests = trace(*[(0.007 * i, 100 + 37 * (i % 11), 5 + i % 23) for i in range(120)])
        slower = dataclasses.replace(requests, arrival_s=2 * requests.arrival_s)
        step = FittedStepTime(**{f.name: 2 * getattr(STEP, f.name) for f in dataclasses.fields(STEP)})
        given_cluster = cluster(workers=4, group_size=group_size, kv_capacity_tokens=2000, refresh_s=0.1, sync_s=1e-4)
        twice = dataclasses.replace(given_cluster, step_time=step, refresh_s=0.2, sync_s=2e-4, prefix_memory_s=600.0)
        first, second = simulate(requests, given_cluster, router), simulate(slower, twice, router)
        assert us(second.finish_s) == us(2 * first.finish_s)
        assert second.worker.tolist() == first.worker.tolist()

    def test_a_lone_worker_serves_alike_behind_every_router_that_places_at_arrival(self):
        requests = generate_requests(rate_per_s=5.0, n_requests=100, seed=3)
        finish_s = [simulate(requests, Cluster(workers=1), r).finish_s for r in ALL_ROUTERS if hasattr(r, "choose")]
        assert all(np.array_equal(found, finish_s[0]) for found in finish_s)

    def test_fresher_signals_are_looked_at_more_often(self):
        requests = generate_requests(rate_per_s=50.0, n_requests=200, seed=3)
        looks = [simulate(requests, Cluster(refresh_s=s), FewestRequests()).refreshes for s in (0.0, 0.1, 3600.0)]
        assert looks[0] == 201
        assert looks[2] == 1
        assert looks[0] > looks[1] > looks[2]

    def test_the_area_offers_the_same_function(self):
        assert simulate_of_the_area is simulate


class TestRefusedRequests:
    """A worker with one slot and a queue of one; steps of a second."""

    GIVEN = cluster(step_time=FittedStepTime(overhead_s=1.0), max_running=1, max_waiting=1)

    def test_a_full_queue_refuses_and_takes_again_when_there_is_room(self):
        rows = [(0.0, 5, 3), (0.5, 5, 1), (0.6, 5, 1), (3.5, 5, 1)]
        run = simulate(trace(*rows), self.GIVEN, RoundRobin())
        assert run.worker.tolist() == [0, 0, -1, 0]
        assert run.finish_s.tolist()[:2] == [3.0, 4.0]
        assert np.isnan([run.first_token_s[2], run.finish_s[2], run.ttft_s[2]]).all()
        assert run.finish_s[3] == 5.0
        assert run.makespan_s == 5.0
        found = run.metrics()
        assert found["refused_share"] == 0.25
        # From 0.35 to 3.5 s only the first finishes, and nobody but it, refused ones neither, counts as done.
        assert found["requests_per_s"] == pytest.approx(1 / 3.15)
        assert found["ttft_p99_s"] == pytest.approx(3.485, rel=0.01)
        assert run.idle_share == pytest.approx(0.0)

    def test_latencies_are_those_of_requests_that_were_served(self):
        run = simulate(trace(*[(0.0, 5, 2)] * 10), self.GIVEN, RoundRobin())
        found = run.metrics()
        assert found["refused_share"] == pytest.approx(0.9)
        assert run.window_s == (0.0, 2.0)
        assert (found["ttft_mean_s"], found["tpot_mean_s"], found["e2e_mean_s"]) == (1.0, 1.0, 2.0)
        assert found["prefix_hit_share"] == 0

    def test_without_a_limit_nobody_is_refused(self):
        run = simulate(trace(*[(0.0, 5, 2)] * 10), dataclasses.replace(self.GIVEN, max_waiting=0), RoundRobin())
        assert run.metrics()["refused_share"] == 0

    def test_where_requests_wait_elsewhere_a_limit_is_refused(self):
        with pytest.raises(BadValueError, match="keeps a pool"):
            simulate(trace((0.0, 5, 1)), self.GIVEN, BalanceRoute())
        for both in (DisaggregatedCluster(prefill=self.GIVEN), DisaggregatedCluster(decode=self.GIVEN)):
            with pytest.raises(BadValueError, match="split phases"):
                simulate(trace((0.0, 5, 1)), both, RoundRobin())


class TestPoolsOfReplicas:
    """Several domains and always fresh signals: the router decides at arrivals and completions, at nothing else."""

    class Noting:
        reads_active = False

        def __init__(self, declines=0):
            self.declines, self.asked_s = declines, []

        def initial_state(self, workers):
            return np.zeros(1)

        def parameters(self):
            return np.zeros(0)

        def place(self, view, pool, active, state, parameters, placed):
            self.asked_s.append(round(float(pool.waited_s[0]), 9))
            state[0] += 1
            if state[0] > self.declines:
                room = view.slots - view.running - view.waiting - view.sent_requests
                placed[0] = int(np.argmax(room))
            return 1

    def given(self, **more):
        return cluster(workers=2, step_time=FittedStepTime(overhead_s=0.25), max_running=1, refresh_s=0.0, **more)

    def test_what_waits_is_placed_at_the_moment_at_which_a_slot_is_free(self):
        noting = self.Noting()
        run = simulate(trace((0.0, 5, 10), (0.0, 5, 4), (0.1, 5, 1)), self.given(), noting)
        assert run.first_token_s.tolist() == [0.25, 0.25, 1.25]
        # Twice at 0 s; at 0.1 s there is no slot to place anything in; then at the completion at 1 s.
        assert noting.asked_s == [0.0, 0.0, 0.9]
        assert run.decisions == 3

    def test_a_router_that_leaves_everybody_idle_is_asked_again_a_millisecond_later(self):
        noting = self.Noting(declines=3)
        run = simulate(trace((0.0, 5, 1)), self.given(), noting)
        assert noting.asked_s == [0.0, 0.001, 0.002, 0.003]
        assert run.finish_s.tolist() == [0.253]

    def test_while_others_run_it_is_asked_when_one_of_them_completes(self):
        noting = self.Noting(declines=1)
        run = simulate(trace((0.0, 5, 4), (0.5, 5, 1)), self.given(), noting)
        # The first is declined at 0 s and placed a millisecond later.
        assert noting.asked_s == [0.0, 0.001, 0.0]
        assert run.first_token_s.tolist() == [0.251, 0.75]

    def test_service_beyond_the_longest_time_is_refused(self):
        slow = dataclasses.replace(self.given(), step_time=FittedStepTime(overhead_s=1e4))
        with pytest.raises(BadValueError, match="longest time"):
            simulate(trace(*[(0.0, 10, 300)] * 4), slow, self.Noting())


class TestSignalAge:
    """Arrivals every 30 ms; what the router is shown at each."""

    class Noting(Watching):
        def __init__(self):
            self.seen = []

        def choose(self, view, arrival, state, parameters):
            self.seen.append(
                (
                    float(view.age_s[0]),
                    int(view.running.sum()),
                    int(view.sent_requests.sum()),
                    float(view.sent_tokens.sum()),
                )
            )
            return 0

    def seen(self, refresh_s):
        noting = self.Noting()
        rows = [(0.03 * i, 10, 1000) for i in range(5)]
        simulate(trace(*rows), cluster(workers=2, refresh_s=refresh_s, kv_capacity_tokens=10**5), noting)
        return noting.seen

    def test_fresh_signals_have_no_age_and_nothing_on_its_way(self):
        assert self.seen(0.0) == [(0.0, n, 0, 0.0) for n in range(5)]

    def test_old_signals_show_what_was_sent_since_apart(self):
        assert self.seen(0.1) == [
            (0.0, 0, 0, 0.0),
            (0.03, 0, 1, 10.0),
            (0.06, 0, 2, 20.0),
            (0.09, 0, 3, 30.0),
            (pytest.approx(0.02), 4, 0, 0.0),
        ]


class TestRefusals:
    def test_a_request_that_fits_no_cache_is_named_with_its_sizes(self):
        with pytest.raises(BadValueError) as error:
            simulate(trace((0.0, 10, 1), (0.0, 1500, 502)), cluster(kv_capacity_tokens=2000), RoundRobin())
        for part in ("row 2:", "1,500 prompt", "502 output", "cache of 2,000", "kv_capacity_tokens >= 2,001"):
            assert part in str(error.value)

    def test_where_the_phases_are_split_it_is_named_by_its_place_in_the_trace(self):
        both = DisaggregatedCluster(prefill=cluster(), decode=cluster(kv_capacity_tokens=2000))
        # Only one of them reaches the decode workers.
        rows = (0.0, 5, 1), (0.0, 5, 1), (0.0, 1500, 502)
        for refused in (
            lambda: simulate(trace(*rows), both, RoundRobin()),
            lambda: check_that_all_fit(trace(*rows), both),
        ):
            with pytest.raises(BadValueError, match="row 3: 1,500 prompt"):
                refused()

    def test_the_trace_that_is_checked_may_be_a_part_of_the_users(self):
        rows = trace((0.0, 5, 1), (0.0, 1500, 502))
        with pytest.raises(BadValueError, match="row 102: 1,500 prompt"):
            check_that_all_fit(rows, cluster(kv_capacity_tokens=2000), first_row=101)
        check_that_all_fit(rows, cluster(kv_capacity_tokens=2001), first_row=101)

    def test_expected_lengths_must_be_one_a_request(self):
        with pytest.raises(BadValueError, match=r"\(2,\)"):
            simulate(trace((0.0, 10, 1)), cluster(), RoundRobin(), expected_output_tokens=np.ones(2))

    def test_an_empty_trace_cannot_be_made(self):
        with pytest.raises(BadTraceError, match="at least one request"):
            RequestTrace(arrival_s=[], prompt_tokens=[], output_tokens=[])

    def test_a_trace_that_is_too_long_is_refused(self):
        with pytest.raises(BadValueError, match="trace is too long"):
            simulate(trace((0.0, 10, 1), (LONGEST_TRACE_S * 1.01, 10, 1)), cluster(), RoundRobin())

    def test_a_request_of_more_tokens_than_can_be_counted_is_refused(self):
        with pytest.raises(BadValueError, match="row 1: 3,000,000,000 prompt"):
            simulate(trace((0.0, 3_000_000_000, 1)), cluster(kv_capacity_tokens=10**12), RoundRobin())

    @pytest.mark.parametrize("probes", [-1, 10**12])
    def test_probes_that_cannot_be_are_refused(self, probes):
        with pytest.raises(BadValueError, match="so often"):
            simulate(trace((0.0, 10, 1)), cluster(), RoundRobin(), probes=probes)

    @pytest.mark.parametrize("group_size", [1, 2])
    @pytest.mark.parametrize("router", [RoundRobin(), BalanceRoute()])
    def test_service_beyond_the_longest_time_is_refused_and_not_reported_as_done(self, router, group_size):
        slow = cluster(
            workers=2, group_size=group_size, step_time=FittedStepTime(overhead_s=1e4), max_running=1, refresh_s=1000.0
        )
        with pytest.raises(BadValueError, match="longest time"):
            simulate(trace(*[(0.0, 10, 300)] * 4), slow, router)

    @pytest.mark.parametrize("given", [RoundRobin, object(), None, "round-robin"])
    def test_what_is_no_router_is_refused(self, given):
        with pytest.raises(BadValueError, match="not a router"):
            simulate(trace((0.0, 10, 1)), cluster(), given)
        if given is not None:
            with pytest.raises(BadValueError, match="not a router"):
                simulate(trace((0.0, 10, 1)), DisaggregatedCluster(), RoundRobin(), decode_router=given)


def test_the_known_answers_hold_for_the_readable_simulator_too():
    rows = (0.0, 8, 8), (0.0, 8, 8)
    slow = simulate_slowly(trace(*rows), cluster(kv_capacity_tokens=20, step_time=FLAT), RoundRobin())
    assert slow["finish_ps"].tolist() == [8_000_000_000, 13_000_000_000]
    assert slow["preemptions"].tolist() == [0, 1]
