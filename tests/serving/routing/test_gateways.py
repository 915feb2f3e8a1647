"""The rules of gateways, on decisions worked out by hand from their documentation."""

from collections import Counter

import numpy as np
import pytest

from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.routing.gateways import CacheAware, KVCost, LoadAware, WeightedScorers
from wavetank.serving.routing.interface import Arrival
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import SharedPrefix, generate_requests

ALL = (CacheAware(), KVCost(), LoadAware(), WeightedScorers())


class TestCacheAware:
    def test_a_match_above_the_threshold_decides_while_the_load_is_even(self, workers, chosen):
        view = workers(3, running=[60, 10, 0], matched_tokens=[31.0, 0.0, 0.0])
        assert chosen(CacheAware(), view) == [0]

    def test_a_match_at_the_threshold_does_not(self, workers, chosen):
        # 30 of 100 tokens; then the least distinct text, which is the first worker's.
        view = workers(3, matched_tokens=[0.0, 30.0, 0.0])
        assert chosen(CacheAware(), view) == [0]
        assert chosen(CacheAware(cache_threshold=0.29), view) == [1]

    def test_without_a_match_text_is_spread_by_what_each_was_sent(self, workers, chosen):
        assert chosen(CacheAware(), workers(3), times=6) == [0, 1, 2, 0, 1, 2]

    def test_what_matched_adds_nothing_to_the_text_of_a_worker(self, workers, chosen):
        # The second worker is sent its matching prompt twice, and 40 distinct tokens each time.
        router, view = CacheAware(), workers(2, matched_tokens=[0.0, 60.0])
        state = router.initial_state(2)
        for expected in (0.0, 40.0), (0.0, 80.0):
            assert router.choose(view, Arrival(0.0, 100.0, np.nan), state, router.parameters()) == 1
            assert tuple(state) == expected

    @pytest.mark.parametrize(("longest", "shortest", "balances"), [(65, 0, True), (64, 0, False), (200, 133, True),
                                                                    (201, 136, False)])  # fmt: skip
    def test_the_load_is_uneven_by_difference_and_by_ratio_at_once(
        self, workers, chosen, longest, shortest, balances
    ):
        view = workers(3, waiting=[longest, longest, shortest], matched_tokens=[100.0, 0.0, 0.0])
        assert chosen(CacheAware(), view) == [2 if balances else 0]

    @pytest.mark.parametrize("field", ["running", "waiting", "sent_requests"])
    def test_all_requests_in_flight_are_load(self, workers, chosen, field):
        view = workers(2, **{field: [100, 0]}, matched_tokens=[100.0, 0.0])
        assert chosen(CacheAware(), view) == [1]


class TestKVCost:
    def test_the_example_of_the_documentation(self, workers, chosen):
        # Blocks to compute and blocks held: 8 + 10, 5 + 5, 2 + 9; the second of three has the least.
        view = workers(3, kv_tokens=[10.0, 5.0, 9.0], matched_tokens=[2.0, 5.0, 8.0])
        assert chosen(KVCost(), view, prompt_tokens=10.0) == [1]

    def test_the_weight_turns_it_towards_the_longest_match(self, workers, chosen):
        view = workers(3, kv_tokens=[10.0, 5.0, 9.0], matched_tokens=[2.0, 5.0, 8.0])
        assert chosen(KVCost(overlap_weight=2.0), view, prompt_tokens=10.0) == [2]
        assert chosen(KVCost(overlap_weight=0.0), view, prompt_tokens=10.0) == [1]

    @pytest.mark.parametrize("field", ["waiting_tokens", "sent_tokens"])
    def test_prompts_that_wait_are_computed_and_then_held(self, workers, chosen, field):
        # 100 tokens that wait weigh as much as 200 that are held.
        assert chosen(KVCost(), workers(2, kv_tokens=[0.0, 199.0], **{field: [100.0, 0.0]})) == [1]
        assert chosen(KVCost(), workers(2, kv_tokens=[0.0, 201.0], **{field: [100.0, 0.0]})) == [0]

    def test_equals_take_turns(self, workers, chosen):
        assert chosen(KVCost(), workers(3), times=4) == [0, 1, 2, 0]


class TestLoadAware:
    def test_a_whole_match_equals_a_load_above_the_mean_by_the_mean(self, workers, chosen):
        # Mean 4: the first scores 1 - beta, the second 0, the third beta.
        flight = {"running": [6, 3, 0], "waiting": [1, 0, 0], "sent_requests": [1, 1, 0]}
        view = workers(3, **flight, matched_tokens=[100.0, 0.0, 0.0])
        assert chosen(LoadAware(), view) == [2]
        assert chosen(LoadAware(beta=0.49), view) == [0]
        assert chosen(LoadAware(beta=0.51), view) == [2]

    def test_matches_count_as_a_share_of_the_prompt(self, workers, chosen):
        view = workers(2, running=[5, 4], matched_tokens=[30.0, 0.0])
        # The difference of the relative loads is 1 / 4.5.
        assert chosen(LoadAware(), view, prompt_tokens=100.0) == [0]
        assert chosen(LoadAware(), view, prompt_tokens=200.0) == [1]

    def test_without_load_a_mean_below_one_request_counts_as_one(self, workers, chosen):
        view = workers(4, running=[1, 0, 0, 0], matched_tokens=[100.0, 0.0, 0.0, 0.0])
        # 1 - 0.75 against 0.25: the first of equals.
        assert chosen(LoadAware(), view) == [0]
        assert chosen(LoadAware(beta=1.01), view) == [1]

    def test_a_hot_prefix_leaves_its_worker_when_the_others_idle(self, workers, chosen):
        # Session affinity and the longest match send all of them to the first one.
        view = workers(2, running=[40, 0], matched_tokens=[100.0, 0.0])
        assert chosen(LoadAware(), view) == [1]
        assert chosen(CacheAware(), view) == [0]


class TestWeightedScorers:
    def test_scores_add_up(self, workers, chosen):
        # First: 2 * 1 + 2 * 0.5 = 3; second: 2 * 0 + 2 * 1 + 3 * 0.4 = 3.2; third: 2 * 0.5 + 2 * 1 = 3.
        view = workers(3, waiting=[0, 4, 2], kv_tokens=[5e8, 0.0, 0.0], matched_tokens=[0.0, 40.0, 0.0])
        assert chosen(WeightedScorers(), view) == [1]
        assert chosen(WeightedScorers(prefix_weight=1.0, queue_weight=2.1), view) == [0]
        assert chosen(WeightedScorers(prefix_weight=0.0, cache_weight=2.1), view) == [2]

    def test_queues_count_by_rank_between_the_shortest_and_the_longest(self, workers, chosen):
        # 1,000 requests more weigh as much as one more, where these are the two ends.
        for longest in (1, 1000):
            view = workers(2, waiting=[longest, 0], matched_tokens=[60.0, 0.0])
            assert chosen(WeightedScorers(), view) == [1]
            assert chosen(WeightedScorers(prefix_weight=3.4), view) == [0]

    def test_what_was_sent_since_the_look_is_not_seen(self, workers, chosen):
        view = workers(2, sent_requests=[500, 0], sent_tokens=[1e6, 0.0], matched_tokens=[1.0, 0.0])
        assert chosen(WeightedScorers(), view, times=5) == [0] * 5

    def test_equals_are_drawn_evenly_and_repeatably(self, workers, chosen):
        drawn = chosen(WeightedScorers(), workers(4), times=4000)
        assert drawn == chosen(WeightedScorers(), workers(4), times=4000)
        assert drawn != chosen(WeightedScorers(seed=1), workers(4), times=4000)
        # Four standard deviations of a count of 4,000 draws with probability 1/4 are 110.
        assert all(abs(count - 1000) < 110 for count in Counter(drawn).values())
        assert set(drawn) == {0, 1, 2, 3}


@pytest.mark.parametrize("router", ALL, ids=lambda router: type(router).__name__)
def test_the_compiled_simulation_sends_every_request_where_the_readable_one_does(router):
    requests = generate_requests(
        rate_per_s=30.0, n_requests=150, seed=2, shared_prefix=SharedPrefix(share=0.8, groups=6, prefix_tokens=512)
    )
    cluster = Cluster(workers=3, max_running=8, prefix_caching=True, kv_capacity_tokens=40_000)
    ours, readable = simulate(requests, cluster, router), simulate_slowly(requests, cluster, router)
    assert ours.worker.tolist() == readable["worker"].tolist()
    assert len(set(ours.worker.tolist())) == 3


@pytest.mark.parametrize("router", ALL, ids=lambda router: type(router).__name__)
def test_they_find_more_prefixes_in_the_caches_than_a_router_that_does_not_look(router):
    requests = generate_requests(
        rate_per_s=20.0, n_requests=600, seed=4, shared_prefix=SharedPrefix(share=0.9, groups=32, prefix_tokens=1024)
    )
    cluster = Cluster(workers=8, prefix_caching=True, kv_capacity_tokens=60_000)
    hits = [simulate(requests, cluster, each).metrics()["prefix_hit_share"] for each in (router, FewestKVTokens())]
    assert hits[0] > 1.1 * hits[1] > 0
