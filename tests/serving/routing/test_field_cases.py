"""Traffic that people met in the field: what it is, and which router it defeats."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.platforms import RooflineStepTime
from wavetank.serving.routing import field_cases
from wavetank.serving.routing.baselines import FewestKVTokens, FewestRequests, RoundRobin
from wavetank.serving.routing.cache_aware import CacheAware
from wavetank.serving.routing.field_cases import AGENTS, TURNS, requests_of
from wavetank.serving.routing.gateways import KVCost, LoadAware, WeightedScorers
from wavetank.serving.routing.hashing import BoundedHash, SessionAffinity
from wavetank.serving.routing.prefill_aware import LMetric
from wavetank.serving.routing.traffic import Traffic
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate

STEP = RooflineStepTime(device="H200-SXM", model="Qwen3-30B-A3B")


def blocks_of(trace, row):
    return trace.block_ids[trace.block_offsets[row] : trace.block_offsets[row + 1]].tolist()


@pytest.mark.parametrize("case", field_cases.NAMES)
def test_seeds_are_repeatable_and_differ_and_longer_ones_begin_alike(case):
    made = [requests_of(case, n=200, rate_per_s=5.0, seed=seed) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert {len(trace) for trace in made} == {200}


@pytest.mark.parametrize("case", ["long-contexts", "hot-prefix"])
def test_the_rate_is_the_one_that_was_asked_for(case):
    trace = requests_of(case, n=20_000, rate_per_s=30.0, seed=1)
    # Bursts of coefficient 3: the error of the mean of 20,000 gaps is 2 %.
    assert trace.rate_per_s == pytest.approx(30.0, rel=0.08)


def test_a_case_is_generated_traffic_and_brings_its_own_requests():
    study = Traffic(case="hot-prefix", requests=50)
    past, served = study.split(0)
    assert study.made
    assert (served.name, len(served), past != served) == ("hot-prefix", 50, True)
    with pytest.raises(BadValueError, match="brings its own requests"):
        Traffic(case="agents", trace="azure-conv-2023").split(0)


class TestAgents:
    @pytest.fixture
    def trace(self):
        return requests_of("agents", n=AGENTS * TURNS, rate_per_s=1.0, seed=0)

    def run(self, trace, router, workers=2):
        cluster = Cluster(workers=workers, step_time=STEP, kv_capacity_tokens=320_000, prefix_caching=True)
        return simulate(trace, cluster, router)

    def test_every_turn_begins_with_the_turn_before_it_in_its_session(self, trace):
        assert len(trace) == 448
        for row in range(AGENTS, len(trace)):
            before, after = blocks_of(trace, row - AGENTS), blocks_of(trace, row)
            assert trace.session[row] == trace.session[row - AGENTS]
            assert after[: len(before)] == before and len(after) > len(before)
        assert len({blocks_of(trace, row)[0] for row in range(AGENTS)}) == AGENTS

    def test_nothing_is_in_flight_when_a_turn_arrives(self, trace):
        run = self.run(trace, RoundRobin())
        assert (run.finish_s[:-1] < trace.arrival_s[1:]).all()

    @pytest.mark.parametrize("router", [VLLMDefault(), LoadAware(), CacheAware(), LMetric()],
                             ids=lambda router: type(router).__name__)  # fmt: skip
    def test_the_first_of_equals_has_all_of_448_requests(self, trace, router):
        run = self.run(trace, router)
        assert np.bincount(run.worker, minlength=2).tolist() == [448, 0]
        # One cache cannot hold what all sessions said: by the time a session is back its blocks are gone.
        assert run.metrics()["prefix_hit_share"] < 0.4

    @pytest.mark.parametrize("router", [KVCost(kv_events=True), SessionAffinity(), WeightedScorers(),
                                        BoundedHash(key="session", load_factor=1.5)],
                             ids=lambda router: type(router).__name__)  # fmt: skip
    def test_who_breaks_ties_otherwise_uses_both_and_finds_the_prefixes(self, trace, router):
        run = self.run(trace, router)
        counts = np.bincount(run.worker, minlength=2)
        assert counts.min() > 448 / 4
        assert run.metrics()["prefix_hit_share"] > 0.6


class TestLongContexts:
    def test_counts_look_even_while_one_cache_is_full(self):
        trace = requests_of("long-contexts", n=3000, rate_per_s=16.0, seed=1)
        long = trace.prompt_tokens > 10_000
        assert long.mean() == pytest.approx(1 / 30, abs=0.01)
        cluster = Cluster(workers=4, step_time=STEP, kv_capacity_tokens=150_000, max_running=64)
        counted, weighed = (simulate(trace, cluster, router) for router in (FewestRequests(), FewestKVTokens()))
        spread = np.bincount(counted.worker, minlength=4) / len(trace)
        assert spread.max() - spread.min() < 0.12
        assert counted.metrics()["ttft_p99_s"] > 1.5 * weighed.metrics()["ttft_p99_s"]


class TestHotPrefix:
    @pytest.fixture
    def trace(self):
        return requests_of("hot-prefix", n=2000, rate_per_s=25.0, seed=1)

    def test_more_than_half_begin_alike_and_the_others_share_nothing(self, trace):
        first = trace.block_ids[trace.block_offsets[:-1]]
        values, counts = np.unique(first, return_counts=True)
        assert counts.max() / len(trace) == pytest.approx(0.6, abs=0.05)
        assert sorted(counts)[-2] == 1
        hot = np.flatnonzero(first == values[counts.argmax()])
        depth = field_cases.HOT_TOKENS // field_cases.BLOCK_TOKENS
        assert blocks_of(trace, hot[0])[:depth] == blocks_of(trace, hot[1])[:depth]
        assert not set(blocks_of(trace, hot[0])[depth:]) & set(blocks_of(trace, hot[1])[depth:])

    def test_a_router_that_only_follows_the_prefix_queues_it_on_one_worker(self, trace):
        cluster = Cluster(workers=4, step_time=STEP, kv_capacity_tokens=400_000, prefix_caching=True, max_running=32)
        followed, weighed = (simulate(trace, cluster, router) for router in (BoundedHash(load_factor=1e6), LoadAware()))
        assert np.bincount(followed.worker, minlength=4).max() > 0.6 * len(trace)
        assert np.bincount(weighed.worker, minlength=4).max() < 0.4 * len(trace)
        assert followed.metrics()["ttft_p99_s"] > 2 * weighed.metrics()["ttft_p99_s"]
        # Both find the hot prefix again.
        assert weighed.metrics()["prefix_hit_share"] > 0.5 * followed.metrics()["prefix_hit_share"] > 0.2


def test_a_case_that_does_not_exist_is_named_with_the_nearest_one():
    with pytest.raises(UnknownNameError, match="hot-prefix"):
        requests_of("hot-prefx", n=10, rate_per_s=1.0, seed=0)
