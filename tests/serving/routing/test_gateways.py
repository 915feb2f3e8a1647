"""The rules of gateways, on decisions worked out by hand from their documentation."""

from collections import Counter

import numpy as np
import pytest

from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.routing.cache_aware import CacheAware
from wavetank.serving.routing.gateways import KVCost, LoadAware, WeightedScorers
from wavetank.serving.routing.interface import Arrival
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import SharedPrefix, generate_requests

ALL = (CacheAware(), KVCost(), LoadAware(), WeightedScorers())


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

    def test_of_a_waiting_prompt_only_what_was_not_matched_is_to_be_computed(self, workers):
        """The first is sent 1,000 tokens of which it has 900, the second 300 of which it has none."""
        router = KVCost()
        state, parameters = router.initial_state(2), router.parameters()

        def choose(prompt, **view):
            return int(router.choose(workers(2, **view), Arrival(0.0, prompt, np.nan), state, parameters))

        assert choose(1000.0, kv_tokens=[0.0, 500.0], matched_tokens=[900.0, 0.0]) == 0
        assert choose(300.0, takes=[0, 1]) == 1
        # To compute and held: 100 + 1000 on the first, 300 + 300 + what the second holds besides.
        waiting = [1000.0, 300.0]
        assert choose(10.0, waiting_tokens=waiting, kv_tokens=[0.0, 499.0], takes=[1, 1]) == 1
        state = router.initial_state(2)
        assert choose(1000.0, kv_tokens=[0.0, 500.0], matched_tokens=[900.0, 0.0]) == 0
        assert choose(300.0, takes=[0, 1]) == 1
        assert choose(10.0, waiting_tokens=waiting, kv_tokens=[0.0, 501.0]) == 0

    def test_what_no_longer_waits_leaves_the_book_and_what_others_sent_counts_in_full(self, workers):
        router = KVCost()
        state, parameters = router.initial_state(2), router.parameters()

        def choose(prompt, **view):
            return int(router.choose(workers(2, **view), Arrival(0.0, prompt, np.nan), state, parameters))

        for matched in (950.0, 0.0):
            # Two prompts to the first: of one 50 tokens are new, of the other 1,000.
            assert choose(1000.0, matched_tokens=[matched, 0.0], takes=[1, 0]) == 0
        # The older one is computed: 1,000 wait, all of them new, and are held afterwards.
        assert choose(1.0, waiting_tokens=[1000.0, 0.0], kv_tokens=[0.0, 1999.0]) == 1
        assert choose(1.0, waiting_tokens=[1000.0, 0.0], kv_tokens=[0.0, 2003.0]) == 0
        # 500 more that nobody here sent, and the one token from before: both are to be computed and held.
        assert choose(1.0, waiting_tokens=[1501.0, 0.0], kv_tokens=[0.0, 3001.0]) == 1
        assert choose(1.0, waiting_tokens=[0.0, 0.0], kv_tokens=[0.0, 1.0]) == 0

    def test_a_full_page_forgets_its_oldest_prompts(self, workers):
        """Of 600 waiting prompts of which nothing is new 512 are in the book; the 88 others count in full."""
        router = KVCost()
        state, parameters = router.initial_state(2), router.parameters()
        view = workers(2, matched_tokens=[10.0, 0.0], takes=[1, 0])
        for sent in range(600):
            now = view._replace(sent_tokens=np.array([10.0 * sent, 0.0]))
            assert router.choose(now, Arrival(0.0, 10.0, np.nan), state, parameters) == 0
        for held, expected in ((6000.0 + 880.0 - 1.0, 1), (6000.0 + 880.0 + 1.0, 0)):
            both = workers(2, waiting_tokens=[6000.0, 0.0], kv_tokens=[0.0, held])
            assert router.choose(both, Arrival(0.0, 1.0, np.nan), state.copy(), parameters) == expected

    def test_equals_are_drawn_evenly_and_repeatably(self, workers, chosen):
        drawn = chosen(KVCost(), workers(4), times=4000)
        assert drawn == chosen(KVCost(), workers(4), times=4000) != chosen(KVCost(seed=1), workers(4), times=4000)
        # Four standard deviations of a count of 4,000 draws with probability 1/4 are 110.
        assert all(abs(count - 1000) < 110 for count in Counter(drawn).values())

    def test_a_match_counts_in_part_and_never_more_than_there_is_to_compute(self, workers, chosen):
        view = workers(2, kv_tokens=[60.0, 0.0], matched_tokens=[100.0, 0.0])
        assert chosen(KVCost(), view) == [0]
        assert chosen(KVCost(overlap_credit=0.61), view) == [0]
        assert chosen(KVCost(overlap_credit=0.59), view) == [1]
        # 150 matched of a prompt of 100 leave nothing to compute, not less.
        assert chosen(KVCost(), workers(2, kv_tokens=[120.0, 0.0], matched_tokens=[150.0, 0.0])) == [1]

    def test_a_temperature_draws_by_costs_spread_over_one(self, workers, chosen):
        # Costs 100, 150 and 200, spread: 0, 0.5, 1; at temperature 0.5 the odds are 1 : e^-1 : e^-2.
        view = workers(3, kv_tokens=[0.0, 50.0, 100.0])
        odds = np.exp([0.0, -1.0, -2.0])
        for temperature, expected in ((0.5, odds / odds.sum()), (1e6, np.full(3, 1 / 3)), (1e-3, np.eye(3)[0])):
            drawn = Counter(chosen(KVCost(temperature=temperature), view, times=4000))
            # Four standard deviations are 0.032 at most.
            assert np.abs(np.array([drawn[w] / 4000 for w in range(3)]) - expected).max() < 0.032

    def test_at_a_temperature_equals_are_drawn_and_the_unfit_never(self, workers, chosen):
        drawn = Counter(chosen(KVCost(temperature=0.5), workers(4, takes=[0, 1, 1, 1]), times=300))
        assert set(drawn) == {1, 2, 3}
        drawn = Counter(
            chosen(KVCost(temperature=5.0), workers(4, kv_tokens=[0, 1, 2, 3], serves=[0, 1, 1, 1]), times=300)
        )
        assert set(drawn) == {1, 2, 3}

    def test_with_events_a_match_is_what_the_worker_has(self, workers, chosen):
        view = workers(2, matched_tokens=[90.0, 0.0], cached_tokens=[0.0, 60.0])
        assert chosen(KVCost(), view) == [0]
        assert chosen(KVCost(kv_events=True), view) == [1]
        assert KVCost(kv_events=True).reads_events and not KVCost().reads_events
        # A worker that says nothing is judged by what was sent to it.
        assert chosen(KVCost(kv_events=True), view._replace(cached_tokens=np.array([np.nan, 60.0]))) == [0]


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

    def test_the_mean_is_that_of_the_workers_that_may_have_the_request(self, workers, chosen):
        # Mean 3 of the first two: 1 - 1 / 3 against 1 / 3; with the third the mean would be 102.
        view = workers(3, running=[4, 2, 300], matched_tokens=[40.0, 0.0, 0.0], takes=[1, 1, 0])
        assert chosen(LoadAware(), view) == [1]
        assert chosen(LoadAware(), view._replace(takes=np.ones(3, np.int64))) == [0]


SAID = tuple(range(1, 11))


@pytest.fixture
def serve(workers):
    """Send arrivals to workers behind a router that keeps its state, each with a view of its own."""

    def make(n, router):
        state, parameters = router.initial_state(n), router.parameters()

        def send(blocks=(), prompt_tokens=1000.0, session=-1, adapter=-1, **view):
            blocks = np.array(blocks, np.int64)
            arrival = Arrival(0.0, prompt_tokens, np.nan, session=session, adapter=adapter, blocks=blocks)
            return int(router.choose(workers(n, **view), arrival, state, parameters))

        return send

    return make


class TestWeightedScorers:
    def test_scores_add_up(self, serve):
        # First: 2 * 1 + 2 * 0.5 = 3; second: 2 * 0 + 2 * 1 + 3 * 0.4 = 3.2; third: 2 * 0.5 + 2 * 1 = 3.
        for changed, goes in (({}, 1), ({"prefix_weight": 1.0, "queue_weight": 2.1}, 0),
                              ({"prefix_weight": 0.1, "cache_weight": 2.1}, 2)):  # fmt: skip
            send = serve(3, WeightedScorers(**changed))
            assert send(SAID[:4], waiting=[1, 0, 1]) == 1
            assert send(SAID, waiting=[0, 4, 2], kv_tokens=[5e8, 0.0, 0.0]) == goes

    def test_queues_count_by_rank_between_the_shortest_and_the_longest(self, serve):
        # 1,000 requests more weigh as much as one more, where these are the two ends.
        for longest in (1, 1000):
            for weight, goes in ((3.0, 1), (3.4, 0)):
                send = serve(2, WeightedScorers(prefix_weight=weight))
                assert send(SAID[:6], waiting=[0, 1]) == 0
                assert send(SAID, waiting=[longest, 0]) == goes

    def test_the_unfit_are_no_end_of_the_queues(self, serve):
        # With the third the first has rank 0.9, without it 0.
        for takes, goes in (([1, 1, 0], 1), ([1, 1, 1], 0)):
            send = serve(3, WeightedScorers())
            assert send(SAID[:6], waiting=[0, 1, 1]) == 0
            assert send(SAID, waiting=[1, 0, 10], takes=takes) == goes

    def test_what_was_sent_since_the_look_is_not_seen(self, serve):
        send = serve(2, WeightedScorers())
        assert send(SAID, waiting=[0, 1]) == 0
        assert {send(SAID, sent_requests=[500, 0], sent_tokens=[1e6, 0.0]) for _ in range(5)} == {0}

    def test_only_the_beginning_of_a_prompt_is_looked_up(self, serve):
        # 4,096 tokens are four blocks of 1,000; of them two match, which is half.
        for weight, goes in ((4.1, 0), (3.9, 1)):
            send = serve(2, WeightedScorers(prefix_weight=weight))
            assert send(SAID[:2], prompt_tokens=2000.0, waiting=[0, 1]) == 0
            assert send((*SAID[:2], *range(20, 28)), prompt_tokens=10_000.0, waiting=[1, 0]) == goes
        send = serve(2, WeightedScorers(max_prefix_tokens=1e6, prefix_weight=4.1))
        assert send(SAID[:2], prompt_tokens=2000.0, waiting=[0, 1]) == 0
        assert send((*SAID[:2], *range(20, 28)), prompt_tokens=10_000.0, waiting=[1, 0]) == 1

    def test_as_much_is_remembered_as_a_workers_cache_holds(self, serve):
        for capacity, goes in ((2000.0, 0), (1900.0, 1)):
            send = serve(2, WeightedScorers())
            assert send(SAID, waiting=[0, 1], kv_capacity_tokens=capacity) == 0
            assert send(range(20, 30), waiting=[0, 1], kv_capacity_tokens=capacity) == 0
            # Of the first prompt nine of ten blocks or all are left; the queue weighs as much as 0.95 of them.
            router = WeightedScorers(prefix_weight=2.0 / 0.95)
            send = serve(2, router)
            assert send(SAID, waiting=[0, 1], kv_capacity_tokens=capacity) == 0
            assert send(range(20, 30), waiting=[0, 1], kv_capacity_tokens=capacity) == 0
            assert send(SAID, waiting=[1, 0], kv_capacity_tokens=capacity) == goes

    def test_with_events_a_match_is_what_the_worker_has(self, serve):
        router = WeightedScorers(kv_events=True)
        send = serve(2, router)
        assert router.reads_events and not WeightedScorers().reads_events
        assert send(SAID, waiting=[0, 1], cached_tokens=[0.0, 600.0]) == 0
        assert send(SAID, waiting=[0, 1], cached_tokens=[0.0, 700.0]) == 1

    def test_a_loaded_adapter_counts_a_fifth_more_than_one_to_load(self, serve):
        router = WeightedScorers(lora_weight=1.0)
        assert router.reads_adapters and not WeightedScorers().reads_adapters
        for weight, goes in ((0.21, 0), (0.19, 1)):
            send = serve(2, WeightedScorers(lora_weight=1.0, queue_weight=weight))
            assert send(adapter=3, waiting=[0, 1], adapter_loaded=[0, 1]) == goes
            # Nobody asks for an adapter here.
            assert send(waiting=[0, 1], adapter_loaded=[0, 1]) == 0

    def test_a_session_goes_where_it_was_last(self, serve):
        send = serve(3, WeightedScorers(session_weight=3.0, sessions=10))
        assert send(session=4, waiting=[1, 0, 1]) == 1
        assert send(session=4, waiting=[0, 9, 9]) == 1
        assert send(session=5, waiting=[0, 9, 9]) == 0
        # The worker is known by its name.
        assert send(session=4, waiting=[0, 9, 9], identity=[0, 2, 1]) == 2
        # Session 14 has the cell of session 4, which is a new one afterwards.
        assert send(session=14, waiting=[0, 9, 9]) == 0
        assert send(session=4, waiting=[0, 9, 9]) == 0

    def test_of_a_waiting_prompt_only_what_was_not_matched_is_to_be_computed(self, workers):
        """The first is sent 1,000 tokens of which it has 900, the second 300 of which it has none."""
        router = KVCost()
        state, parameters = router.initial_state(2), router.parameters()

        def choose(prompt, **view):
            return int(router.choose(workers(2, **view), Arrival(0.0, prompt, np.nan), state, parameters))

        assert choose(1000.0, kv_tokens=[0.0, 500.0], matched_tokens=[900.0, 0.0]) == 0
        assert choose(300.0, takes=[0, 1]) == 1
        # To compute and held: 100 + 1000 on the first, 300 + 300 + what the second holds besides.
        waiting = [1000.0, 300.0]
        assert choose(10.0, waiting_tokens=waiting, kv_tokens=[0.0, 499.0], takes=[1, 1]) == 1
        state = router.initial_state(2)
        assert choose(1000.0, kv_tokens=[0.0, 500.0], matched_tokens=[900.0, 0.0]) == 0
        assert choose(300.0, takes=[0, 1]) == 1
        assert choose(10.0, waiting_tokens=waiting, kv_tokens=[0.0, 501.0]) == 0

    def test_what_no_longer_waits_leaves_the_book_and_what_others_sent_counts_in_full(self, workers):
        router = KVCost()
        state, parameters = router.initial_state(2), router.parameters()

        def choose(prompt, **view):
            return int(router.choose(workers(2, **view), Arrival(0.0, prompt, np.nan), state, parameters))

        for matched in (950.0, 0.0):
            # Two prompts to the first: of one 50 tokens are new, of the other 1,000.
            assert choose(1000.0, matched_tokens=[matched, 0.0], takes=[1, 0]) == 0
        # The older one is computed: 1,000 wait, all of them new, and are held afterwards.
        assert choose(1.0, waiting_tokens=[1000.0, 0.0], kv_tokens=[0.0, 1999.0]) == 1
        assert choose(1.0, waiting_tokens=[1000.0, 0.0], kv_tokens=[0.0, 2003.0]) == 0
        # 500 more that nobody here sent, and the one token from before: both are to be computed and held.
        assert choose(1.0, waiting_tokens=[1501.0, 0.0], kv_tokens=[0.0, 3001.0]) == 1
        assert choose(1.0, waiting_tokens=[0.0, 0.0], kv_tokens=[0.0, 1.0]) == 0

    def test_a_full_page_forgets_its_oldest_prompts(self, workers):
        """Of 600 waiting prompts of which nothing is new 512 are in the book; the 88 others count in full."""
        router = KVCost()
        state, parameters = router.initial_state(2), router.parameters()
        view = workers(2, matched_tokens=[10.0, 0.0], takes=[1, 0])
        for sent in range(600):
            now = view._replace(sent_tokens=np.array([10.0 * sent, 0.0]))
            assert router.choose(now, Arrival(0.0, 10.0, np.nan), state, parameters) == 0
        for held, expected in ((6000.0 + 880.0 - 1.0, 1), (6000.0 + 880.0 + 1.0, 0)):
            both = workers(2, waiting_tokens=[6000.0, 0.0], kv_tokens=[0.0, held])
            assert router.choose(both, Arrival(0.0, 1.0, np.nan), state.copy(), parameters) == expected

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
