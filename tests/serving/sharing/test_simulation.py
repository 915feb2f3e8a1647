"""A scene from end to end."""

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.sharing.controllers import AgentAndCritic, GreedyMoves, Still
from wavetank.serving.sharing.interface import Move
from wavetank.serving.sharing.simulation import simulate_sharing
from wavetank.serving.sharing.traffic import make_scene

SCENE = make_scene(0, seconds=200.0, load=0.7)


class Watching:
    """Makes given moves and keeps what it saw."""

    def __init__(self, moves=()):
        self.moves, self.views = dict(moves), []

    def decide(self, view):
        self.views.append(view)
        return self.moves.get(len(self.views), [])


def test_no_service_is_lost_or_stands_twice():
    run = simulate_sharing(SCENE, AgentAndCritic(agent="random", critic="none").controller(1, SCENE))
    assert run.moves > 5
    for placement in run.placements:
        assert len(placement) == len(SCENE.services) and set(placement) <= set(range(len(SCENE.nodes)))


def test_radio_functions_alone_miss_nothing():
    calm = make_scene(0, seconds=200.0, load=0.0)
    run = simulate_sharing(calm, None)
    assert np.nanmin(run.met_share) == pytest.approx(1.0)


def test_a_deadline_is_met_or_missed_by_what_the_job_needs():
    """Without radio functions and with one request, it is in time where its work is less than its deadline."""
    requests = SCENE.requests
    for gpu_s, deadline_s, expected in ((0.5, 0.6, True), (0.5, 0.4, False)):
        one = replace(
            requests, arrival_s=np.array([5.0]), gpu_s=np.array([gpu_s]), cpu_s=np.array([0.1]),
            deadline_s=np.array([5.0 + deadline_s]), service=requests.service[:1],
        )  # fmt: skip
        nodes = tuple(replace(node, gpu=1.0, cpu=1.0) for node in SCENE.nodes)
        scene = replace(SCENE, requests=one, nodes=nodes, needs=np.zeros_like(SCENE.needs))
        assert simulate_sharing(scene, None).in_time.tolist() == [expected]


def test_a_service_that_moves_takes_nothing_meanwhile():
    ai = next(i for i, each in enumerate(SCENE.services) if not each.radio)
    name = SCENE.services[ai].name
    to = SCENE.nodes[(SCENE.placement[ai] + 1) % len(SCENE.nodes)].name
    slow = replace(SCENE, services=tuple(
        replace(each, downtime_s=60.0 if i == ai else each.downtime_s) for i, each in enumerate(SCENE.services)
    ))  # fmt: skip
    watching = Watching({2: [Move(service=name, to=to)]})
    run = simulate_sharing(slow, watching)
    own = slow.requests.service == ai
    # It stops at 40 s and is back at 100 s.
    stopped = own & (slow.requests.arrival_s >= 40) & (slow.requests.deadline_s < 100)
    assert stopped.any() and not run.in_time[stopped].any()
    after = own & (slow.requests.arrival_s >= 101)
    assert run.in_time[after].mean() > 0.5
    assert run.down_s[ai] == 60 and run.moves == 1
    assert [view.moving[ai] for view in watching.views[1:5]] == [False, True, True, False]


def test_a_radio_function_that_moves_misses_its_slots():
    to = SCENE.nodes[1 if SCENE.placement[0] != 1 else 2].name
    slow = replace(SCENE, services=(replace(SCENE.services[0], downtime_s=50.0, memory_gb=0.1), *SCENE.services[1:]))
    run = simulate_sharing(slow, Watching({1: [Move(service=SCENE.services[0].name, to=to)]}))
    assert run.met_share[0] <= 0.76 < 0.99 <= simulate_sharing(slow, None).met_share[0]


def test_moves_that_cannot_be_made_are_counted():
    wrong = [Move(service="nobody", to="node-0"), Move(service=SCENE.services[-1].name, to="mars")]
    run = simulate_sharing(SCENE, Watching({1: wrong}))
    assert run.refused == 2 and run.moves == 0 and len(set(run.placements)) == 1


def test_what_is_seen_is_what_was_sent():
    watching = Watching()
    simulate_sharing(SCENE, watching)
    last = watching.views[-1]
    busiest = int(np.argmax(SCENE.rates.mean(axis=0)))
    assert last.loads[busiest].rate_per_s == pytest.approx(SCENE.rates[100:180, busiest].mean(), rel=0.4)
    assert last.loads[busiest].gpu_s == pytest.approx(SCENE.means[busiest, 0], rel=0.3)
    assert all(0 <= load.fulfilled <= 1.0001 for view in watching.views for load in view.loads)


def test_runs_are_deterministic_and_rules_matter():
    controller = AgentAndCritic(critic="fluid")
    a, b = (simulate_sharing(SCENE, controller.controller(0, SCENE)) for _ in range(2))
    assert np.array_equal(a.in_time, b.in_time) and a.placements == b.placements
    found = {rule: simulate_sharing(SCENE, None, rule) for rule in ("closed-form", "equal", "earliest-deadline")}
    assert np.nanmean(found["equal"].met_share) < 0.95 < np.nanmean(found["closed-form"].met_share)
    assert found["closed-form"].in_time.mean() != found["earliest-deadline"].in_time.mean()


def test_moves_help_where_hot_services_change_and_not_where_nothing_does():
    hot = make_scene(5, seconds=400.0, load=0.8, hot_times=8.0)
    moved = simulate_sharing(hot, GreedyMoves().controller(0, hot)).by_service(hot, 60.0)
    still = simulate_sharing(hot, Still().controller(0, hot)).by_service(hot, 60.0)
    assert np.nanmean(moved) > np.nanmean(still)
    endless = make_scene(5, seconds=400.0, load=0.8, hot_times=8.0, downtime_times=1e6)
    assert simulate_sharing(endless, GreedyMoves().controller(0, endless)).moves == 0


def test_a_wrong_rule_and_no_time_are_refused():
    with pytest.raises(BadValueError):
        simulate_sharing(SCENE, None, "fair")
    with pytest.raises(BadValueError):
        simulate_sharing(SCENE, None, epoch_s=0.0)
