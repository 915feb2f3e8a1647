"""Routers in plain Python do what compiled ones do, and fail as Python does."""

import dataclasses
import gc
import itertools

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.routing import python_routers
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import FewestKVTokens, FewestRequests, RandomWorker, RoundRobin
from wavetank.serving.routing.power_of_two import PowerOfTwo
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.routing.python_routers import compiled_policy
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.simulate import _view, simulate
from wavetank.workloads import RequestTrace, SharedPrefix, generate_requests

REQUESTS = generate_requests(rate_per_s=60.0, n_requests=150, seed=5, shared_prefix=SharedPrefix(share=0.6, groups=4))
LAYOUTS = {
    "replicas": Cluster(workers=4),
    "group": Cluster(workers=4, group_size=4, max_running=8, prefix_caching=True),
    "groups": Cluster(workers=4, group_size=2, max_running=8, kv_capacity_tokens=20_000, refresh_s=0.0),
}
ROUTERS = (
    RoundRobin(), RandomWorker(seed=2), FewestRequests(), FewestKVTokens(), PowerOfTwo(seed=3), VLLMDefault(),
    PrefixAffinity(), BalanceRoute(horizon_steps=0), BalanceRoute(), BalanceRoute(termination="oracle"),
    BalanceRoute(termination="logistic"),
)  # fmt: skip


def in_python(router):
    """Return the same router with its function as plain Python."""
    name = "place" if isinstance(router, BalanceRoute) else "choose"
    plain = staticmethod(getattr(router, name).py_func)
    kind = type(f"Python{type(router).__name__}", (type(router),), {name: plain})
    return kind(**{field.name: getattr(router, field.name) for field in dataclasses.fields(router)})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("router", ROUTERS, ids=lambda r: f"{type(r).__name__}-{getattr(r, 'termination', '')}")
def test_the_same_rule_in_python_gives_the_same_run(router, layout):
    fast = simulate(REQUESTS, LAYOUTS[layout], router)
    slow = simulate(REQUESTS, LAYOUTS[layout], in_python(router))
    for field in dataclasses.fields(fast):
        one, other = (np.asarray(getattr(run, field.name)) for run in (fast, slow))
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), field.name


class Plain:
    """A router that sends everything to worker 0; tests replace what it does."""

    def initial_state(self, workers):
        return np.zeros(1)

    def parameters(self):
        return np.array([1.5, 2.5])


class Chooser(Plain):
    def __init__(self, choose):
        self.choose = choose


class Placer(Plain):
    def __init__(self, place):
        self.place = place


def trace(n=20):
    return RequestTrace(arrival_s=np.arange(n) * 0.01, prompt_tokens=[50] * n, output_tokens=[5] * n)


def place_all(worker):
    def place(view, pool, active, state, parameters, placed):
        placed[:] = worker
        return placed.size

    return place


def test_it_is_given_its_own_parameters_state_and_the_request():
    seen = []

    def choose(view, arrival, state, parameters):
        state[0] += 1
        seen.append((float(state[0]), parameters.tolist(), arrival.prompt_tokens, round(arrival.time_s, 6)))
        return 0

    simulate(trace(3), Cluster(), Chooser(choose))
    assert seen == [(1.0, [1.5, 2.5], 50.0, 0.0), (2.0, [1.5, 2.5], 50.0, 0.01), (3.0, [1.5, 2.5], 50.0, 0.02)]


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("make, layout", [(Chooser, "split"), *itertools.product([Chooser, Placer], LAYOUTS)])
def test_what_it_raises_comes_out_as_it_was_raised_and_leaves_nothing_behind(make, layout):
    calls = []

    def fail(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise BrokenError("in the third decision")
        if make is Placer:
            arguments[-1][:] = 0
        return 0

    cluster = LAYOUTS.get(layout) or DisaggregatedCluster()
    with pytest.raises(BrokenError, match="third decision"):
        simulate(trace(), cluster, make(fail))
    assert len(calls) == 3
    assert python_routers._open == {}
    assert (simulate(trace(), cluster, RoundRobin()).finish_s > 0).all()


@pytest.mark.parametrize("worker", [-1, 4, 10**6])
def test_a_worker_that_does_not_exist_is_an_error(worker):
    with pytest.raises(WavetankError) as error:
        simulate(trace(), Cluster(workers=4), Chooser(lambda *_: worker))
    assert "worker that does not exist" in str(error.value)
    assert "0 to 3" in str(error.value)
    assert "Chooser" in str(error.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("worker", [-2, 4, 10**6])
def test_so_is_a_placement_on_one(worker, layout):
    with pytest.raises(WavetankError) as error:
        simulate(trace(), LAYOUTS[layout], Placer(place_all(worker)))
    assert "worker that does not exist" in str(error.value)
    assert "0 to 3" in str(error.value)


@pytest.mark.parametrize("refresh_s", [0.0, 0.1])
@pytest.mark.parametrize("group_size", [1, 4])
def test_a_router_that_never_places_anything_ends_in_an_error_instead_of_a_loop(group_size, refresh_s):
    cluster = Cluster(workers=4, group_size=group_size, refresh_s=refresh_s)
    with pytest.raises(WavetankError, match="places nothing although every worker is idle"):
        simulate(trace(), cluster, Placer(lambda *_: 0))


@pytest.mark.parametrize("group_size", [1, 4])
def test_a_backlog_that_old_signals_let_through_too_slowly_ends_at_the_longest_time(group_size):
    # Of four workers with one slot each, a router that looks every 600 s fills at most four slots a look.
    requests = trace(80_000)
    cluster = Cluster(workers=4, group_size=group_size, max_running=1, refresh_s=600.0)
    with pytest.raises(BadValueError, match="not served in the longest time") as error:
        simulate(requests, cluster, BalanceRoute())
    assert "refresh_s" in str(error.value)


@pytest.mark.parametrize("group_size", [1, 4])
def test_one_that_places_late_is_waited_for(group_size):
    def late(view, pool, active, state, parameters, placed):
        placed[pool.waited_steps > 500] = 1
        return 0

    cluster = Cluster(workers=4, group_size=group_size, refresh_s=0.01)
    run = simulate(trace(), cluster, Placer(late))
    assert (run.ttft_s > 4).all()
    assert set(run.worker.tolist()) == {1}


def test_more_requests_than_slots_may_be_placed_and_wait_at_the_worker():
    cluster = Cluster(workers=4, group_size=4, max_running=1)
    run = simulate(trace(), cluster, Placer(place_all(2)))
    assert set(run.worker.tolist()) == {2}
    assert (np.diff(run.finish_s) > 0).all()


def test_a_worker_with_too_many_does_not_hide_the_free_slots_of_another():
    # Worker 0 gets two requests at once for its one slot; the third must still be offered to the router.
    def place(view, pool, active, state, parameters, placed):
        placed[:] = 0 if state[0] == 0 else 1
        state[0] = 1
        return placed.size

    requests = RequestTrace(arrival_s=[0, 0, 1e-3], prompt_tokens=[50] * 3, output_tokens=[200] * 3)
    run = simulate(requests, Cluster(workers=2, group_size=2, max_running=1, refresh_s=0.0), Placer(place))
    assert run.worker.tolist() == [0, 0, 1]
    assert run.ttft_s[2] < 0.1


def test_what_it_was_shown_can_be_kept():
    kept = []

    def place(view, pool, active, state, parameters, placed):
        kept.append(pool)
        placed[:] = 0
        return placed.size

    simulate(trace(), Cluster(workers=2, group_size=2), Placer(place))
    gc.collect()
    junk = [np.full(512, 7.0) for _ in range(100)]
    assert sum(pool.prompt_tokens.size for pool in kept) == 20
    assert all((pool.prompt_tokens == 50.0).all() for pool in kept)
    assert len(junk) == 100


def test_two_simulations_within_each_other_do_not_mix():
    inner = []

    def choose(view, arrival, state, parameters):
        if not inner:
            inner.append(simulate(trace(5), Cluster(workers=3), Chooser(lambda *_: 2)).worker.tolist())
        return 1

    assert simulate(trace(), Cluster(workers=2), Chooser(choose)).worker.tolist() == [1] * 20
    assert inner == [[2] * 5]


def test_a_compiled_router_goes_through_no_shim():
    with compiled_policy(RoundRobin(), _view(Cluster())) as (function, parameters):
        assert function is RoundRobin.choose
        assert parameters.tolist() == []
        assert python_routers._open == {}
    with compiled_policy(Chooser(lambda *_: 0), _view(Cluster())) as (function, parameters):
        assert len(python_routers._open) == 1
        assert parameters.tolist()[1:] == [1.5, 2.5]
    assert python_routers._open == {}
