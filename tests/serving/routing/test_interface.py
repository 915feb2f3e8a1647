"""What routers see, and what makes a router."""

import dataclasses

import numpy as np
import pytest
from numba import typeof
from numba.core.registry import CPUDispatcher

from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.routing.interface import (
    ACTIVE_TYPE,
    ARRIVAL_TYPE,
    CHOOSE_SIGNATURE,
    PLACE_SIGNATURE,
    POOL_TYPE,
    WORKERS_TYPE,
    Arrival,
    ArrivalRouter,
    PoolRouter,
    WorkersView,
    choose_function,
    place_function,
)
from wavetank.serving.routing.one_step_optimum import OneStepOptimum
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


def test_functions_are_compiled_once_for_the_declared_signature():
    for function, signature in ((_last, CHOOSE_SIGNATURE), (_all_on_last, PLACE_SIGNATURE)):
        assert isinstance(function, CPUDispatcher)
        assert function.nopython_signatures == [signature]


def test_a_compiled_function_can_be_called_from_python_as_well():
    view = WorkersView(*(np.zeros(4, dtype.dtype.name) for dtype in WORKERS_TYPE.types))
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
