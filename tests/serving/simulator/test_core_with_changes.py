"""Known answers, worked out by hand, of runs in which workers fail, recover, drain, join and are scaled.

A step takes 1 ms whatever is in it, a prompt one step, and signals are refreshed every 10 ms unless stated otherwise.
"""

import dataclasses
import math

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import CentralQueue, FewestRequests, RoundRobin
from wavetank.serving.simulator.changes import OUTCOMES, Change, Churn
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace

STEP = FittedStepTime(overhead_s=1e-3)


def trace(arrival_s, output_tokens=20, **more):
    n = len(arrival_s)
    outputs = np.broadcast_to(output_tokens, n)
    return RequestTrace(arrival_s=arrival_s, prompt_tokens=[10] * n, output_tokens=outputs, **more)


def cluster(*changes, workers=2, refresh_s=0.01, churn=None, **more):
    given = tuple(Change(time_s=time_s, worker=worker, action=action) for time_s, worker, action in changes)
    return Cluster(
        workers=workers, step_time=STEP, refresh_s=refresh_s, max_running=8, max_batched_tokens=64,
        churn=Churn(changes=given, **(churn or {})), **more,
    )  # fmt: skip


def ends(run):
    return [OUTCOMES[outcome] for outcome in run.outcome]


def test_a_stream_that_had_begun_is_lost_with_its_worker_and_a_prompt_is_sent_to_another():
    # Worker 0 has a stream since 0 ms, and since 4.5 ms a request that waits for the next step; it fails at 4.7 ms.
    run = simulate(trace([0.0, 0.0, 0.0045]), cluster((0.0047, 0, "fail")), RoundRobin())
    assert ends(run) == ["lost", "finished", "finished"]
    assert run.sends.tolist() == [1, 1, 2]
    assert run.worker.tolist() == [0, 1, 1]
    # The stream's first token was out; the other one's prompt is in worker 1's step from 5 to 6 ms.
    assert run.first_token_s == pytest.approx([0.001, 0.001, 0.006])
    assert math.isnan(run.finish_s[0])
    assert run.finish_s[2] == pytest.approx(0.025)


def test_a_token_that_is_out_at_the_moment_of_the_failure_was_out():
    run = simulate(trace([0.0, 0.0], [1, 2]), cluster((0.001, 0, "fail"), (0.001, 1, "fail")), RoundRobin())
    # Steps end before workers fail: the first request is done, and the stream of the second has begun.
    assert ends(run) == ["finished", "lost"]


def test_a_stream_is_recomputed_elsewhere_from_prompt_and_tokens():
    churn = {"streams": "recomputed"}
    run = simulate(trace([0.0, 0.0]), cluster((0.0047, 0, "fail"), churn=churn), RoundRobin())
    assert ends(run) == ["finished", "finished"]
    # Four tokens were out at 4 ms; its prompt and they are computed from 5 to 6 ms, which gives the fifth: 15 are left.
    assert run.first_token_s[0] == pytest.approx(0.001)
    assert run.finish_s[0] == pytest.approx(0.021)
    assert run.sends.tolist() == [2, 1]
    metrics = run.metrics()
    assert (metrics["retried_share"], metrics["recovered_share"], metrics["availability"]) == (0.5, 0.5, 1.0)


def test_a_router_that_has_not_seen_a_failure_is_refused_and_the_next_worker_is_asked():
    # The views of 0 and of 10 ms show worker 0, which fails at 11 ms; that of 20 ms does not.
    changes = cluster((0.011, 0, "fail"), workers=3)
    run = simulate(trace([0.0, 0.012, 0.013, 0.014, 0.021, 0.022]), changes, RoundRobin())
    assert ends(run) == ["lost", *["finished"] * 5]
    # The turn of worker 0 comes once before it is seen to be gone; workers 1 and 2 have one request each then.
    assert run.worker.tolist() == [0, 1, 2, 1, 1, 2]
    assert run.refused_connections == 1
    assert run.sends.tolist() == [1] * 6


def test_a_view_that_is_always_fresh_shows_the_failure_of_its_moment():
    run = simulate(trace([0.012, 0.012]), cluster((0.0, 0, "fail"), refresh_s=0.0), RoundRobin())
    assert run.worker.tolist() == [1, 1]
    assert run.refused_connections == 0


def test_a_worker_that_drains_finishes_what_it_has_and_takes_nothing_new():
    run = simulate(trace([0.0, 0.0, 0.0211, 0.0212]), cluster((0.005, 0, "drain")), RoundRobin())
    assert ends(run) == ["finished"] * 4
    assert run.worker.tolist() == [0, 1, 1, 1]
    assert run.finish_s[0] == pytest.approx(0.020)


def test_a_worker_that_joins_again_while_it_drains_goes_on_as_it_was():
    changes = cluster((0.005, 0, "drain"), (0.006, 0, "join"))
    run = simulate(trace([0.0, 0.0, 0.0211]), changes, RoundRobin())
    assert run.worker.tolist() == [0, 1, 0]
    assert ends(run) == ["finished"] * 3


def test_a_worker_that_recovers_has_lost_its_prefix_cache():
    blocks = {"block_ids": [0, 0, 0], "block_offsets": [0, 1, 2, 3], "block_tokens": 4}
    requests = trace([0.0, 0.1, 0.2], 2, **blocks)
    kept = simulate(requests, cluster(workers=1, prefix_caching=True), RoundRobin())
    assert kept.matched_tokens.tolist() == [0, 4, 4]
    changes = cluster((0.15, 0, "fail"), (0.16, 0, "recover"), workers=1, prefix_caching=True)
    assert simulate(requests, changes, RoundRobin()).matched_tokens.tolist() == [0, 4, 0]


def test_a_request_that_no_worker_is_seen_to_take_waits_for_the_first_look_after_a_recovery():
    gone = ((0.001, 0, "fail"), (0.001, 1, "fail"), (0.033, 1, "recover"))
    at_once = simulate(trace([0.0, 0.015]), cluster(*gone), RoundRobin())
    assert ends(at_once) == ["lost", "failed"]
    waits = simulate(trace([0.0, 0.015]), cluster(*gone, churn={"wait_s": 1.0}), RoundRobin())
    # The view of 40 ms shows worker 1; its prompt takes until 41 ms.
    assert ends(waits) == ["lost", "finished"]
    assert waits.first_token_s[1] == pytest.approx(0.041)
    too_short = simulate(trace([0.0, 0.015]), cluster(*gone, churn={"wait_s": 0.02}), RoundRobin())
    assert ends(too_short) == ["lost", "failed"]
    assert too_short.ended_s == pytest.approx(0.035)


def test_a_request_is_sent_to_no_more_workers_than_its_tries():
    # Sent to worker 1, which fails before the prompt is done; then worker 0 is gone, and worker 2 fails, too.
    fails = tuple((0.0101 + 0.0001 * w, w, "fail") for w in range(3))
    for tries, outcome in ((1, "failed"), (2, "failed"), (3, "finished")):
        changes = cluster(*fails, workers=4, churn={"tries": tries})
        run = simulate(trace([0.0, 0.0100]), changes, FewestRequests())
        assert ends(run)[1] == outcome
        assert run.sends[1] == tries
        assert run.refused_connections == (tries > 1)


def test_a_group_fails_as_a_whole():
    changes = cluster((0.0047, 1, "fail"), workers=4, group_size=2)
    run = simulate(trace([0.0] * 4), changes, RoundRobin())
    assert ends(run) == ["lost", "lost", "finished", "finished"]


def test_requests_of_a_pool_wait_in_it_until_their_group_is_back():
    changes = cluster((0.0005, 0, "fail"), (0.1, 0, "recover"), group_size=2, churn={"wait_s": 1.0})
    run = simulate(trace([0.0, 0.05]), changes, BalanceRoute(horizon_steps=0))
    # The first prompt was in the step that broke off; both are placed at the first look after 100 ms.
    assert ends(run) == ["finished", "finished"]
    assert run.sends.tolist() == [2, 1]
    assert (run.first_token_s > 0.1).all()
    assert (run.first_token_s < 0.115).all()


def test_availability_counts_requests_and_the_share_of_time_counts_workers():
    # A tenth of 1 s is warm-up; worker 0 is gone from 0.4 to 0.7 s.
    requests = trace(np.linspace(0, 1, 101), 1)
    run = simulate(requests, cluster((0.4, 0, "fail"), (0.7, 0, "recover")), RoundRobin())
    metrics = run.metrics()
    assert metrics["up_share"] == pytest.approx(1 - 0.3 / 0.9 / 2)
    assert metrics["availability"] == (run.outcome == 0).mean()
    assert metrics["availability"] + metrics["lost_share"] + metrics["failed_share"] == pytest.approx(1)


def test_the_autoscaler_starts_workers_under_load_and_drains_them_afterwards():
    # From 0 to 0.5 s ten requests are in flight at a time, then one.
    busy = np.repeat(np.arange(0, 0.5, 0.05), 10)
    calm = np.arange(0.5, 2.0, 0.05)
    requests = trace(np.concatenate([busy, calm]), [*[45] * busy.size, *[45] * calm.size])
    scaled = cluster(
        workers=6,
        churn={"scale_high": 4.0, "scale_low": 2.0, "scale_every_s": 0.02, "start_s": 0.03, "first_workers": 1},
    )
    run = simulate(requests, scaled, FewestRequests())
    assert ends(run) == ["finished"] * len(requests)
    # Ten in flight need ceil(10 / 4) workers: no more start.
    assert set(run.worker[:100]) == {0, 1, 2}
    # At last one is left, whichever had least to do.
    assert len(set(run.worker[-10:])) == 1


def test_a_plain_run_says_nothing_of_ends():
    run = simulate(trace([0.0, 0.1]), dataclasses.replace(cluster(), churn=None), RoundRobin())
    assert run.outcome.size == run.sends.size == 0
    assert "availability" not in run.metrics()


def test_a_churn_without_changes_is_a_plain_run():
    rng = np.random.default_rng(5)
    requests = trace(np.cumsum(rng.exponential(0.004, 300)), rng.integers(1, 60, 300))
    for router in (FewestRequests(), CentralQueue(), BalanceRoute(horizon_steps=0)):
        for more in ({}, {"group_size": 2}):
            changing = cluster(**more)
            with_changes, plain = (
                simulate(requests, each, router) for each in (changing, dataclasses.replace(changing, churn=None))
            )
            assert np.array_equal(with_changes.finish_s, plain.finish_s)
            assert np.array_equal(with_changes.worker, plain.worker)
            assert (with_changes.steps, with_changes.decisions) == (plain.steps, plain.decisions)
            assert with_changes.metrics()["availability"] == 1.0


def test_unix_times_change_nothing_but_the_clock():
    changes = cluster((0.0047, 0, "fail"))
    run = simulate(trace([0.0, 0.0, 0.0045]), changes, RoundRobin())
    later = simulate(trace(np.array([0.0, 0.0, 0.0045]) + 1.7e9), changes, RoundRobin())
    assert later.outcome.tolist() == run.outcome.tolist()
    assert later.finish_s - 1.7e9 == pytest.approx(run.finish_s, abs=1e-6, nan_ok=True)


def test_a_router_that_ignores_what_the_view_shows_is_named():
    class Stubborn(RoundRobin):
        def choose(self, view, arrival, state, parameters):
            return 0

    changes = cluster((0.001, 0, "fail"))
    # Before the next look it cannot know; afterwards it could.
    assert ends(simulate(trace([0.0, 0.005]), changes, Stubborn())) == ["lost", "finished"]
    with pytest.raises(WavetankError, match="takes no requests"):
        simulate(trace([0.0, 0.015]), changes, Stubborn())


def test_split_phases_with_changes_are_refused():
    split = DisaggregatedCluster(prefill=cluster(), decode=dataclasses.replace(cluster(), churn=None))
    with pytest.raises(BadValueError, match="prefill and decode are apart"):
        simulate(trace([0.0]), split, RoundRobin())
