"""The controller: each layer by itself, with planted networks."""

import dataclasses

import numpy as np
import pytest
from tests.serving.memory.conftest import trace

from wavetank.serving.memory.helm import OBSERVATIONS, Helm, HelmState, observe, share_of, shipped_network
from wavetank.serving.memory.interface import NodeReplay
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
    assert dataclasses.is_dataclass(Helm)
