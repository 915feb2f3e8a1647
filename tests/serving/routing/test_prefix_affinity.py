"""Where the prompt's beginning is, unless that worker is overloaded."""

import pytest

from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import SharedPrefix, generate_requests


def test_the_worker_with_the_longest_match_is_taken_among_equal_loads(workers, chosen):
    view = workers(4, kv_tokens=1000.0, matched_tokens=[0.0, 40.0, 90.0, 60.0])
    assert chosen(PrefixAffinity(), view) == [2]


def test_without_a_match_the_lightest_worker_is_taken(workers, chosen):
    assert chosen(PrefixAffinity(), workers(3, kv_tokens=[300.0, 100.0, 200.0])) == [1]


@pytest.mark.parametrize("field", ["kv_tokens", "waiting_tokens", "sent_tokens"])
def test_held_waiting_and_sent_tokens_are_load(workers, chosen, field):
    assert chosen(PrefixAffinity(), workers(3, **{field: [300.0, 100.0, 200.0]})) == [1]


def test_a_full_match_is_worth_a_load_that_differs_by_one_over_beta_means(workers, chosen):
    # Mean with the new request: (1200 + 600 + 0 + 100) / 3 = 633.3; scores 1 - 0.5 * 0.895 against 0.5 for no load.
    view = workers(3, kv_tokens=[1200.0, 600.0, 0.0], matched_tokens=[100.0, 0.0, 0.0])
    assert chosen(PrefixAffinity(beta=0.5, load_cap=10.0), view) == [0]
    assert chosen(PrefixAffinity(beta=0.6, load_cap=10.0), view) == [2]


def test_a_worker_above_the_cap_is_avoided_whatever_it_holds(workers, chosen):
    # Mean 633.3: 1200 is 1.89 times it.
    view = workers(3, kv_tokens=[1200.0, 600.0, 0.0], matched_tokens=[100.0, 0.0, 0.0])
    assert chosen(PrefixAffinity(beta=0.0, load_cap=1.9), view) == [0]
    assert chosen(PrefixAffinity(beta=0.0, load_cap=1.88), view) == [1]


def test_the_mean_is_that_of_the_workers_that_may_have_the_request(workers, chosen):
    """Four of six drain: were they counted, both others would be over the cap and the match would decide."""
    loads = [900.0, 300.0, 0.0, 0.0, 0.0, 0.0]
    view = workers(6, kv_tokens=loads, matched_tokens=[100.0] + [0.0] * 5, takes=[1, 1, 0, 0, 0, 0])
    # Mean of the two with the new request: 650, of which 900 is 1.38.
    assert chosen(PrefixAffinity(beta=0.0, load_cap=1.3), view) == [1]
    assert chosen(PrefixAffinity(beta=0.0, load_cap=1.4), view) == [0]


def test_without_a_weight_of_load_and_without_a_match_the_first_worker_is_taken(workers, chosen):
    assert chosen(PrefixAffinity(beta=0.0, load_cap=5.0), workers(3, kv_tokens=[2.0, 1.0, 0.0])) == [0]


def test_an_empty_cluster_is_no_special_case(workers, chosen):
    assert chosen(PrefixAffinity(), workers(3)) == [0]


def test_it_finds_more_prefixes_in_the_caches_than_a_router_that_does_not_look():
    requests = generate_requests(
        rate_per_s=20.0, n_requests=600, seed=4, shared_prefix=SharedPrefix(share=0.9, groups=32, prefix_tokens=1024)
    )
    cluster = Cluster(workers=8, prefix_caching=True, kv_capacity_tokens=60_000)
    hits = [
        simulate(requests, cluster, router).metrics()["prefix_hit_share"]
        for router in (PrefixAffinity(), FewestKVTokens())
    ]
    assert hits[0] > 1.1 * hits[1] > 0
