"""Both simulators agree to the picosecond where workers fail, recover, drain, stop, join and are scaled."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.simulator.test_reference import (
    PS,
    agree,
    arrival_routers,
    clusters,
    pool_routers,
    see_the_same,
    traces,
)

from wavetank.serving.simulator.changes import ACTIONS, OUTCOMES, Change, Churn
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import ServingRun, simulate
from wavetank.workloads import RequestTrace


@st.composite
def churns(draw: Any, requests: RequestTrace, cluster: Cluster, router: Any) -> Churn:
    """Draw changes, at any time and at the very moments at which something happens in a run without any."""
    plain = simulate(requests, cluster, router)
    first_s = float(requests.arrival_s[0])
    moments = np.concatenate([plain.first_token_s, plain.finish_s, requests.arrival_s])
    moments_s = np.unique(moments[~np.isnan(moments)] - first_s).tolist()
    ticks_s = [cluster.refresh_s * number for number in range(1, 4)]
    times_s = st.one_of(
        st.sampled_from(moments_s), st.sampled_from([0.0, 0.0011, 0.05, *ticks_s]), st.floats(0, moments_s[-1] + 0.1)
    )
    changes = draw(
        st.lists(
            st.builds(
                Change, time_s=times_s, worker=st.integers(0, cluster.workers - 1), action=st.sampled_from(ACTIONS)
            ),
            max_size=8,
        )
    )
    if draw(st.booleans()):
        # All at once.
        time_s = draw(times_s)
        changes += [Change(time_s=time_s, worker=w, action="fail") for w in range(cluster.workers)]
    high = draw(st.sampled_from([0.0, 0.0, 1.0, 2.5]))
    groups = cluster.workers // cluster.group_size
    return Churn(
        changes=tuple(changes),
        time_to_failure_s=draw(st.sampled_from([0.0, 0.0, 0.05, 1.0])),
        repair_s=draw(st.sampled_from([0.001, 0.02, 0.5])),
        restarts_s=tuple(draw(st.lists(times_s, max_size=1))),
        restart_at_once=draw(st.integers(1, 3)),
        drain_s=draw(st.sampled_from([0.0, 0.01, 0.3])),
        start_s=draw(st.sampled_from([0.001, 0.013, 0.2])),
        scale_high=high,
        scale_low=draw(st.sampled_from([0.0, high / 2])),
        scale_every_s=draw(st.sampled_from([0.01, 0.037])),
        least_workers=draw(st.integers(1, cluster.workers)),
        first_workers=cluster.group_size * draw(st.integers(0, groups)),
        streams=draw(st.sampled_from(["lost", "recomputed"])),
        tries=draw(st.integers(1, 4)),
        wait_s=draw(st.sampled_from([0.0, 0.0005, 0.05, 5.0])),
        seed=draw(st.integers(0, 3)),
    )


def agree_on_ends(requests: RequestTrace, cluster: Cluster, router: Any) -> ServingRun:
    """Compare all that both say of a run, and that every request ends exactly once."""
    run = simulate(requests, cluster, router)
    slow = simulate_slowly(requests, cluster, router)
    assert run.outcome.tolist() == slow["outcome"].tolist()
    assert run.sends.tolist() == slow["sends"].tolist()
    assert run.refused_connections == slow["refused_connections"][0]
    assert run.up_s == pytest.approx(slow["up_ps"][0] / PS, abs=1e-12)
    agree(requests, cluster, router)
    finished = run.outcome == OUTCOMES.index("finished")
    assert np.array_equal(finished, ~np.isnan(run.finish_s))
    assert not np.isnan(run.first_token_s[run.outcome == OUTCOMES.index("lost")]).any()
    assert np.isnan(run.first_token_s[run.outcome >= OUTCOMES.index("failed")]).all()
    assert (run.sends[finished] >= 1).all()
    assert (run.sends <= cluster.churn.tries).all()
    return run


@given(traces(), clusters(), arrival_routers, st.sampled_from([1, 1, 3]), st.sampled_from([0, 0, 2]), st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_both_agree_behind_routers_that_place_at_arrival(requests, cluster, router, routers, max_waiting, data):
    cluster = dataclasses.replace(cluster, routers=routers, max_waiting=max_waiting)
    churn = data.draw(churns(requests, cluster, router))
    agree_on_ends(requests, dataclasses.replace(cluster, churn=churn), router)


@given(traces(), clusters(), pool_routers, st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_both_agree_behind_routers_with_a_pool(requests, cluster, router, data):
    churn = data.draw(churns(requests, cluster, router))
    agree_on_ends(requests, dataclasses.replace(cluster, churn=churn), router)


@given(traces(), clusters(), st.one_of(arrival_routers, pool_routers), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_both_show_the_same_before_every_decision(requests, cluster, router, data):
    churn = data.draw(churns(requests, cluster, router))
    see_the_same(requests, dataclasses.replace(cluster, churn=churn), router)


@pytest.mark.slow
@given(traces(), clusters(), st.one_of(arrival_routers, pool_routers), st.data())
@settings(max_examples=3000, deadline=None)
def test_both_agree_on_many_more_cases(requests, cluster, router, data):
    churn = data.draw(churns(requests, cluster, router))
    agree_on_ends(requests, dataclasses.replace(cluster, churn=churn), router)
