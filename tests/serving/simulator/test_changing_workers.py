"""Mechanism of changing workers: states, whom a request is sent to, what the autoscaler decides."""

import itertools

import numpy as np
import pytest
from numba import njit

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator import changing_workers
from wavetank.serving.simulator.changes import ACTIONS, DRAINING, FAILED, OFF, UP, Change, Churn, changes_of
from wavetank.serving.simulator.changing_workers import UP_PS, make_fates
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import rules_of, simulate
from wavetank.serving.simulator.tables import NEVER, make_tables
from wavetank.workloads import RequestTrace


@njit
def change_workers(t, rules, f, waiting, now_ps):
    changing_workers.change_workers(t, rules, f, waiting, now_ps)


@njit
def next_change_ps(f):
    return changing_workers.next_change_ps(f)


def made(churn, workers=1, group_size=1, n=8):
    cluster = Cluster(
        workers=workers, group_size=group_size, step_time=FittedStepTime(overhead_s=1e-3), churn=churn
    )  # fmt: skip
    rules = rules_of(cluster, block_tokens=0, caching=False, probes=0)
    t = make_tables(n, rules, cluster.uniform, router_blocks=0, max_blocks=0)
    return t, rules, make_fates(churn, cluster, changes_of(churn, cluster, 0, 10**14), n, 0, 0)


# Every other pair leaves a worker as it is.
BECOMES = {
    ("fail", UP): FAILED, ("fail", DRAINING): FAILED, ("stop", UP): OFF, ("stop", DRAINING): OFF,
    ("recover", FAILED): UP, ("drain", UP): DRAINING, ("join", DRAINING): UP, ("join", OFF): UP,
}  # fmt: skip


@pytest.mark.parametrize(("action", "state"), list(itertools.product(ACTIONS, (UP, DRAINING, FAILED, OFF))))
def test_each_action_has_its_effect_on_a_worker_of_each_state(action, state):
    t, rules, f = made(Churn(changes=(Change(time_s=5.0, action=action),)))
    f.state[0] = state
    assert next_change_ps(f) == 5 * 10**12
    change_workers(t, rules, f, 0, 5 * 10**12)
    becomes = BECOMES.get((action, state), state)
    assert f.state[0] == becomes
    assert f.sums[UP_PS] == (5 * 10**12 if state == UP and becomes != UP else 0)
    assert next_change_ps(f) == NEVER


@pytest.mark.parametrize(
    ("flying", "states", "starts", "drains"),
    [
        # Bounds of 2 and 10 requests per worker.
        ([10, 10, 0, 0], [UP, UP, OFF, OFF], [], []),
        ([11, 10, 0, 0], [UP, UP, OFF, OFF], [2], []),
        ([35, 10, 0, 0], [UP, UP, OFF, OFF], [2, 3], []),
        # One that has failed is none to be started, and one that drains still has its requests.
        ([25, 0, 6, 0], [UP, FAILED, DRAINING, OFF], [3], []),
        ([2, 2, 2, 0], [UP, UP, UP, OFF], [], []),
        ([3, 1, 1, 0], [UP, UP, UP, OFF], [], [2]),
        ([1, 0, 0, 0], [UP, OFF, OFF, OFF], [], []),
    ],
)
def test_the_autoscaler_starts_what_it_needs_and_drains_one_that_has_least(flying, states, starts, drains):
    churn = Churn(scale_low=2.0, scale_high=10.0, scale_every_s=1.0, start_s=7.0)
    t, rules, f = made(churn, workers=4)
    f.state[:], t.domains["active"] = states, flying
    assert next_change_ps(f) == 10**12
    change_workers(t, rules, f, 0, 10**12)
    assert np.flatnonzero(f.due_ps < NEVER).tolist() == starts
    assert (f.due_ps[starts] == 8 * 10**12).all()
    assert [d for d in range(4) if f.state[d] == DRAINING and states[d] == UP] == drains
    assert next_change_ps(f) == 2 * 10**12
    change_workers(t, rules, f, 0, 8 * 10**12)
    assert (f.state[starts] == UP).all()


def test_the_autoscaler_counts_what_waits_and_turns_a_drained_worker_off():
    t, rules, f = made(Churn(scale_high=10.0, scale_every_s=1.0), workers=3)
    f.state[:] = UP, DRAINING, OFF
    change_workers(t, rules, f, 11, 10**12)
    assert f.state.tolist() == [UP, OFF, OFF]
    # Being off, it may be started again, and is the first that is.
    assert np.flatnonzero(f.due_ps < NEVER).tolist() == [1]


def test_the_autoscaler_leaves_the_least_number_of_workers():
    churn = Churn(scale_low=2.0, scale_high=10.0, scale_every_s=1.0, least_workers=3)
    t, rules, f = made(churn, workers=8, group_size=2)
    for look in range(1, 5):
        change_workers(t, rules, f, 0, look * 10**12)
    # Three workers are two groups of two.
    assert (f.state == UP).sum() == 2


def test_a_request_finds_the_only_worker_that_is_left_among_seventy():
    fails = tuple(Change(time_s=0.011, worker=w, action="fail") for w in range(69))
    cluster = Cluster(workers=70, step_time=FittedStepTime(overhead_s=1e-3), churn=Churn(changes=fails))
    requests = RequestTrace(arrival_s=[0.0, 0.012], prompt_tokens=[5, 5], output_tokens=[2, 2])
    run = simulate(requests, cluster, RoundRobin())
    assert run.worker.tolist() == [0, 69]
    # The view shows all of them; each refuses once.
    assert run.refused_connections == 69
