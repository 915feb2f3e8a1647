"""What routers see, and what makes a router."""

import dataclasses

import numpy as np
import pytest
from numba import typeof
from numba.core.registry import CPUDispatcher

from wavetank.errors import UnknownNameError
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import (
    CentralQueue,
    FewestKVTokens,
    FewestRequests,
    RandomWorker,
    RoundRobin,
)
from wavetank.serving.routing.cache_aware import CacheAware
from wavetank.serving.routing.gateways import KVCost, LoadAware, WeightedScorers
from wavetank.serving.routing.interface import (
    ACTIVE_TYPE,
    ARRIVAL_TYPE,
    CHOOSE_SIGNATURE,
    PLACE_SIGNATURE,
    POOL_TYPE,
    SIMULATED_CHOOSE_SIGNATURE,
    SIMULATED_PLACE_SIGNATURE,
    WORKERS_TYPE,
    ActiveView,
    Arrival,
    ArrivalRouter,
    PoolRouter,
    choose_function,
    idle_workers,
    place_function,
    waiting_requests,
)
from wavetank.serving.routing.one_step_optimum import OneStepOptimum
from wavetank.serving.routing.power_of_two import PowerOfTwo
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import _pool_views, _view, simulate
from wavetank.workloads import generate_requests


def test_what_the_simulator_shows_has_the_declared_types():
    cluster = Cluster(workers=3)
    assert typeof(_view(cluster)) == WORKERS_TYPE
    assert typeof(Arrival(0.0, 1.0, float("nan"))) == ARRIVAL_TYPE
    pool, active, _ = _pool_views(cluster, BalanceRoute())
    assert typeof(pool) == POOL_TYPE
    assert typeof(active) == ACTIVE_TYPE


def test_only_a_router_that_asks_for_it_is_shown_running_requests():
    cluster = Cluster(workers=3, max_running=10, max_batched_tokens=64)
    assert _pool_views(cluster, BalanceRoute())[1].worker.size == 0
    assert _pool_views(cluster, BalanceRoute(termination="oracle"))[1].worker.size == 30


def test_a_router_is_known_by_its_function():
    assert isinstance(RoundRobin(), ArrivalRouter)
    assert not isinstance(RoundRobin(), PoolRouter)
    for router in (BalanceRoute(), OneStepOptimum()):
        assert isinstance(router, PoolRouter)
        assert not isinstance(router, ArrivalRouter)
    assert not isinstance(Cluster(), ArrivalRouter | PoolRouter)


@choose_function
def _last(view, arrival, state, parameters):
    return view.running.size - 1 - np.int64(parameters[0])


@place_function
def _all_on_last(view, pool, active, state, parameters, placed):
    placed[:] = view.running.size - 1
    return placed.size


@dataclasses.dataclass(frozen=True)
class Last:
    from_the_end: int = 0
    choose = staticmethod(_last)

    def initial_state(self, workers):
        return np.zeros(0)

    def parameters(self):
        return np.array([float(self.from_the_end)])


@dataclasses.dataclass(frozen=True)
class AllOnLast(Last):
    place = staticmethod(_all_on_last)
    choose = None


def test_functions_are_compiled_for_python_and_for_the_simulator_and_for_nothing_else():
    for function, signatures in (
        (_last, [CHOOSE_SIGNATURE, SIMULATED_CHOOSE_SIGNATURE]),
        (_all_on_last, [PLACE_SIGNATURE, SIMULATED_PLACE_SIGNATURE]),
    ):
        assert isinstance(function, CPUDispatcher)
        assert function.nopython_signatures == signatures


def test_a_compiled_function_can_be_called_from_python_as_well():
    view = idle_workers(4)
    assert _last(view, Arrival(0.0, 1.0, 1.0), np.zeros(0), np.array([1.0])) == 2
    assert _last.py_func(view, Arrival(0.0, 1.0, 1.0), np.zeros(0), np.array([1.0])) == 2


@pytest.mark.parametrize("group_size", [1, 4])
def test_a_users_own_compiled_router_runs_in_the_simulator(group_size):
    requests = generate_requests(rate_per_s=20.0, n_requests=50, seed=1)
    cluster = Cluster(workers=4, group_size=group_size)
    assert set(simulate(requests, cluster, Last(from_the_end=1)).worker.tolist()) == {2}


def test_a_view_cannot_be_replaced_only_read():
    with pytest.raises(AttributeError):
        _view(Cluster()).running = np.zeros(1)


def test_made_views_have_the_declared_types_and_refuse_fields_that_do_not_exist():
    view = idle_workers(3, running=[1, 2, 3], speed=0.5)
    assert typeof(view) == WORKERS_TYPE
    assert view.running.tolist() == [1, 2, 3]
    assert view.speed.tolist() == [0.5] * 3
    assert view.identity.tolist() == [0, 1, 2]
    pool = waiting_requests([10, 20], 3, tier=1, serves=[[1, 0, 1], [0, 1, 1]])
    assert typeof(pool) == POOL_TYPE
    assert pool.serves.tolist() == [[1, 0, 1], [0, 1, 1]]
    assert pool.tier.tolist() == [1, 1]
    assert pool.session.tolist() == [-1, -1]
    assert np.isinf(pool.deadline_s).all()
    with pytest.raises(UnknownNameError):
        idle_workers(3, runing=1)
    with pytest.raises(UnknownNameError):
        waiting_requests([1], 3, blocks=[1])


ARRIVAL_ROUTERS = (
    RoundRobin(), RandomWorker(), FewestRequests(), FewestKVTokens(), PowerOfTwo(), VLLMDefault(), PrefixAffinity(),
    CacheAware(), KVCost(), LoadAware(), WeightedScorers(),
)  # fmt: skip


@pytest.mark.parametrize("router", ARRIVAL_ROUTERS, ids=lambda router: type(router).__name__)
def test_no_router_chooses_a_worker_that_does_not_take_or_serve(router):
    # The worker that is not fit is the best one in every other respect.
    for unfit in ({"takes": [1, 0, 1, 0]}, {"serves": [1, 0, 1, 0]}, {"takes": [1, 0, 1, 1], "serves": [1, 1, 1, 0]}):
        loads = [3, 0, 2, 0]
        view = idle_workers(4, running=loads, waiting=loads, kv_tokens=loads, matched_tokens=[0, 90, 0, 90], **unfit)
        state, parameters = router.initial_state(4), router.parameters()
        chosen = {int(router.choose(view, Arrival(0.0, 100.0, np.nan), state, parameters)) for _ in range(40)}
        assert chosen <= {0, 2}


@pytest.mark.parametrize("router", (*ARRIVAL_ROUTERS, WeightedScorers(kv_events=True)), ids=lambda r: type(r).__name__)
def test_prompts_and_caches_of_no_tokens_are_no_special_case(router):
    for none in ({"kv_capacity_tokens": 0.0}, {"cached_tokens": 0.0}, {}):
        view = idle_workers(3, takes=[0, 1, 1], **none)
        for prompt_tokens, blocks in ((0.0, np.zeros(0, np.int64)), (0.0, np.array([5, 6])), (10.0, np.array([5]))):
            state = router.initial_state(3)
            arrival = Arrival(0.0, prompt_tokens, np.nan, blocks=blocks)
            chosen = {int(router.choose(view, arrival, state, router.parameters())) for _ in range(5)}
            assert chosen <= {1, 2}
            assert np.isfinite(state).all()


@pytest.mark.parametrize("router", [BalanceRoute(), BalanceRoute(patience_steps=0), CentralQueue(), OneStepOptimum()])
@pytest.mark.parametrize("waited_steps", [0, 1000])
def test_no_router_with_a_pool_places_where_a_request_is_not_served(router, waited_steps):
    serves = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]]
    view = idle_workers(4, takes=[1, 1, 1, 0], slots=3, kv_tokens=[5, 900, 5, 0])
    pool = waiting_requests([50, 40, 50, 60, 50], 4, waited_steps=waited_steps, serves=serves)
    nobody = ActiveView(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    placed = np.full(5, -1)
    router.place(view, pool, nobody, router.initial_state(4), router.parameters(), placed)
    assert placed[4] == -1
    for request in range(4):
        assert placed[request] >= 0
        assert placed[request] != 3
        assert serves[request][placed[request]]


def test_a_draw_among_fit_workers_is_even():
    view = idle_workers(5, takes=[1, 0, 1, 0, 1])
    router = RandomWorker(seed=3)
    state = router.initial_state(5)
    draws = [int(router.choose(view, Arrival(0.0, 1.0, np.nan), state, router.parameters())) for _ in range(6000)]
    counts = np.bincount(draws, minlength=5)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert (np.abs(counts[[0, 2, 4]] - 2000) < 150).all()
