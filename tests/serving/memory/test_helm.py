"""The controller: each layer by itself, with planted networks."""

import dataclasses

import numpy as np
import pytest
from tests.serving.memory.conftest import trace

from wavetank.serving.memory.che import best_share, mean_service_s
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.helm import OBSERVATIONS, Helm, HelmState, observe, share_of, shipped_network
from wavetank.serving.memory.interface import NodeReplay, run_policy
from wavetank.serving.memory.rivals import FixedSplit
from wavetank.serving.memory.traffic import KNOWN, UNSEEN, make_traffic, regime
from wavetank.study.learning import Network


def constant(action):
    return Network((np.zeros((OBSERVATIONS, 1)),), (np.array([action]),))


def view(**changes):
    calm = {"p99_s": 0.02, "rate_score": 0.0, "queue_s": 0.0}
    return NodeReplay(trace(requests=64), 0.5).serve()._replace(**{**calm, **changes})


def test_without_the_upper_layers_the_networks_share_is_what_is_asked_for():
    base = Helm(residual=False, burst=False)
    for action in (-1.0, 0.2, 1.0):
        decision = base.decide(view(), HelmState(network=constant(action)))
        assert decision == (share_of(action), True)
    network = shipped_network()
    assert base.decide(view(), HelmState(network=network)).share == share_of(float(network(observe(view()))[0]))


def test_a_burst_freezes_the_boundary_and_the_link_until_calm_windows_have_passed():
    helm, state = Helm(residual=False), HelmState(network=constant(1.0))
    assert helm.decide(view(rate_score=9.0), state) == (0.5, False)
    assert [helm.decide(view(), state).refill for _ in range(4)] == [False] * 4
    ramp = [helm.decide(view(), state) for _ in range(4)]
    assert [each.refill for each in ramp] == [True] * 4
    assert [round(each.share, 4) for each in ramp] == [0.505, 0.51, 0.515, share_of(1.0)]
    assert helm.decide(view(p99_s=0.5), state).refill is False


def test_a_boundary_that_is_slow_by_itself_is_not_held_for_ever():
    """Without a rise of the rate it is no burst: after some windows the boundary moves, and copies still wait."""
    helm, state = Helm(residual=False, patience_windows=3), HelmState(network=constant(1.0))
    late = view(p99_s=9.0)
    assert [helm.decide(late, state) for _ in range(3)] == [(0.5, False)] * 3
    assert [helm.decide(late, state) for _ in range(9)] == [(share_of(1.0), False)] * 9
    assert helm.decide(view(p99_s=9.0, rate_score=9.0), state) == (0.5, False), "a surge holds it whatever came before"
    assert helm.decide(late, state) == (0.5, False), "and the count begins again"


def test_after_a_jump_that_leaves_a_node_overloaded_the_boundary_still_reaches_the_other_end():
    """At the share of hot rows, users that come back rarely are more than the node can serve."""
    traffic = make_traffic((regime("hot-rows", 6400), regime("flat-users", 12_800)), Node(), 0, load=0.75)
    assert run_policy(traffic, Helm()).shares[-1] > 0.85
    assert run_policy(traffic, Helm(patience_windows=10_000)).shares[-1] < 0.3


@pytest.mark.parametrize("name", [*KNOWN, *UNSEEN])
def test_in_steady_traffic_the_boundary_is_as_good_as_the_best_fixed_one(name):
    """Within 2 % of the least time, by the known popularities; short histories: within 4 %."""
    settings = {**KNOWN, **UNSEEN}[name]
    shares = run_policy(trace(name, 16_000), Helm()).shares[120:]
    times = [mean_service_s(Node(), float(share), *settings) for share in np.round(shares, 3)]
    assert np.mean(times) / best_share(Node(), *settings)[1] - 1 < (0.04 if "short" in name else 0.02)


def switched(period, requests=51_200):
    kinds = ("hot-rows-2", "flat-users-2")
    return make_traffic(tuple(regime(kinds[i % 2], period) for i in range(requests // period)), Node(), 7, load=0.5)


def lost(traffic):
    """Return by how much a request takes longer than under the best fixed boundary of this very trace."""
    fixed = [run_policy(traffic, FixedSplit(share=share)) for share in (0.02, 0.26, 0.5, 0.62, 0.74, 0.86, 0.98)]
    moved = run_policy(traffic, Helm())
    return moved.service_s[40:].mean() / min(each.service_s[40:].mean() for each in fixed) - 1


def test_where_regimes_switch_slowly_it_beats_every_fixed_boundary():
    assert lost(switched(25_600)) < -0.1


def test_the_gain_goes_to_nothing_without_drift_and_with_drift_beyond_all_speed():
    """Regimes that alternate within a window are one steady mixture of both."""
    assert -0.005 < lost(trace("steady", 51_200)) < 0.02
    assert -0.005 < lost(switched(64)) < 0.05


def test_a_planted_slope_is_learned_from_probes_and_bounded():
    helm, state = Helm(burst=False, gain=1.0), HelmState(network=constant(0.0))
    share, asked = 0.5, 0.5
    for _ in range(60):
        # Time falls as the share grows: the correction must go up.
        asked = helm.decide(view(share=share, service_s=0.004 * float(np.exp(-0.05 * share))), state).share
        share = asked
    assert 0.52 < asked <= 0.5 + helm.largest_residual + helm.dither
    still = HelmState(network=constant(0.0))
    first = helm.decide(view(), still).share
    assert abs(first - 0.5) == pytest.approx(helm.dither)


def test_observations_are_finite_whatever_happens():
    wild = view(p99_s=1e6, queue_s=1e9, busy_share=1e5)
    assert np.all(np.isfinite(observe(wild))) and len(observe(wild)) == OBSERVATIONS
    assert np.all(np.isfinite(observe(view(row_hits=1.0))))


def test_few_missed_look_ups_are__from_fewer():
    few, fewer = (observe(view(row_hits=share))[0] for share in (0.98, 0.995))
    many, fewer_of_many = (observe(view(row_hits=share))[0] for share in (0.6, 0.9))
    assert fewer - few == pytest.approx(fewer_of_many - many) == pytest.approx(0.301, abs=1e-3)
    assert dataclasses.is_dataclass(Helm)
