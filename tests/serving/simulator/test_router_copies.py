"""Copies of a router, among which requests are dealt."""

import dataclasses

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.baselines import CentralQueue, FewestRequests, RandomWorker, RoundRobin
from wavetank.serving.routing.cache_aware import CacheAware
from wavetank.serving.routing.gateways import KVCost, LoadAware, WeightedScorers
from wavetank.serving.routing.power_of_two import PowerOfTwo
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.adapters import Adapters
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.router_copies import states_of
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace, SharedPrefix, generate_requests

STEP = FittedStepTime(overhead_s=1e-2, per_request_s=1e-3, per_prefill_token_s=2e-5)
LOOK_AT_SENT = (FewestRequests(), VLLMDefault(), PrefixAffinity(), CacheAware(), KVCost(), LoadAware(),
                WeightedScorers(), RandomWorker(), PowerOfTwo(), RoundRobin())  # fmt: skip


def traffic(n=200, **more):
    shared = SharedPrefix(share=0.8, groups=5, prefix_tokens=512)
    return generate_requests(rate_per_s=60.0, n_requests=n, seed=2, shared_prefix=shared, **more)


def cluster(**given):
    plain = {"workers": 4, "step_time": STEP, "max_running": 8, "refresh_s": 0.5, "prefix_caching": True}
    return Cluster(**{**plain, "kv_capacity_tokens": 60_000, **given})


@pytest.mark.parametrize("router", LOOK_AT_SENT, ids=lambda router: type(router).__name__)
@pytest.mark.parametrize("routers", [1, 3])
def test_the_compiled_simulation_deals_and_decides_as_the_readable_one(router, routers):
    given = cluster(routers=routers)
    ours, readable = simulate(traffic(), given, router), simulate_slowly(traffic(), given, router)
    assert ours.worker.tolist() == readable["worker"].tolist()
    assert np.round(ours.finish_s * 1e12).astype(np.int64).tolist() == readable["finish_ps"].tolist()


def test_adapters_that_a_copy_sent_are_known_to_it_alone():
    trace = traffic()
    names = tuple("abcdef")
    trace = RequestTrace(**{**trace._columns(), "adapter": np.arange(len(trace)) % 6, "adapter_names": names})
    adapters = Adapters(slots=3, load_s=(0.05,) * 6)
    router = WeightedScorers(lora_weight=1.0)
    for routers in (1, 3):
        given = cluster(routers=routers, adapters=adapters)
        ours, readable = simulate(trace, given, router), simulate_slowly(trace, given, router)
        assert ours.worker.tolist() == readable["worker"].tolist()


class Spy:
    """A router that sends in turn and writes down what it saw."""

    def __init__(self):
        self.seen = []

    def initial_state(self, workers):
        return np.zeros(1)

    def parameters(self):
        return np.zeros(0)

    def choose(self, view, arrival, state, parameters):
        self.seen.append((arrival.time_s, int(state[0]), view.sent_requests.tolist(), view.sent_tokens.tolist()))
        state[0] += 1
        return int(state[0]) % view.running.size


def test_each_copy_has_its_own_state_and_sees_only_what_it_sent_itself():
    spy = Spy()
    simulate(traffic(300), cluster(routers=4, refresh_s=1e5), spy)
    counts = [count for _, count, _, _ in spy.seen]
    # Four streams of decisions, each counting from zero, interleaved.
    lengths = sorted(np.bincount(np.array(counts)).tolist(), reverse=True)
    assert lengths[0] == 4 and sum(lengths) == 300
    for _, count, requests, _ in spy.seen:
        # Of its decisions so far every one is among what was sent, and nothing else is.
        assert sum(requests) == count
    assert 50 < max(counts) + 1 < 110


def test_a_refresh_shows_every_copy_all_that_the_others_sent():
    spy = Spy()
    simulate(traffic(300), cluster(routers=4, refresh_s=0.2), spy)
    assert all(sum(requests) <= 30 for _, _, requests, _ in spy.seen)
    assert any(sum(requests) == 0 and count > 5 for _, count, requests, _ in spy.seen)


def test_copies_draw_from_streams_of_their_own():
    states = states_of(RandomWorker(seed=7), cluster(routers=3))
    assert states.shape == (3, 2)
    assert len({tuple(row) for row in states.tolist()}) == 3
    assert states[0].tolist() == RandomWorker(seed=7).initial_state(4).tolist()
    # Without one all begin alike.
    assert len({tuple(row) for row in states_of(FewestRequests(), cluster(routers=3)).tolist()}) == 1


def test_copies_that_take_the_first_of_equals_send_bursts_to_the_same_worker():
    step = FittedStepTime(overhead_s=5e-3, per_request_s=1e-4, per_prefill_token_s=2e-5)
    given = {"step_time": step, "max_running": 64, "refresh_s": 1.0, "kv_capacity_tokens": 400_000, "workers": 8}
    tails = {}
    for router in (VLLMDefault(), PowerOfTwo()):
        for routers in (1, 8):
            run = simulate(traffic(3000).at_rate(150.0), cluster(routers=routers, **given), router)
            tails[type(router).__name__, routers] = run.metrics()["ttft_p99_s"]
    assert tails["VLLMDefault", 8] > 2 * tails["VLLMDefault", 1]
    # Two draws scatter what the copies do not know of each other.
    assert tails["PowerOfTwo", 8] < tails["VLLMDefault", 8]


def test_one_copy_is_as_it_was_and_a_pool_has_no_copies():
    trace = traffic()
    plain = cluster()
    assert dataclasses.replace(plain, routers=1) == plain
    with pytest.raises(BadValueError, match="has no copies"):
        simulate(trace, cluster(routers=2), CentralQueue())
