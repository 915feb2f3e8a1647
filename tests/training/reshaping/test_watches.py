"""Rival watches: each finds a change in what it looks at, and each is misled by its own blind spot."""

from __future__ import annotations

import numpy as np
import pytest
from tests.training.reshaping.streams import observations

from wavetank.training.reshaping.telemetry import Noise
from wavetank.training.reshaping.watches import Peers, RawTime, RunLengths, Ruptures

NOISE = Noise(chunk=0.02, spikes=0.0, spike=0.0)
TIMED = [RawTime(), RunLengths(), pytest.param(Ruptures(), id="ruptures")]


def alarms(detector, seen, threshold=0.2):
    if isinstance(detector, Ruptures):
        pytest.importorskip("ruptures", reason="needs the library ruptures")
    watch = detector.start(threshold, 0.0)
    return [watch.step(each) for each in seen], watch


def even(steps, **more):
    """Steps whose lengths hardly vary."""
    return observations(steps, noise=NOISE, long=0.0, **more)


@pytest.mark.parametrize("detector", TIMED)
def test_a_lasting_rise_of_the_step_time_is_found_and_the_level_before_is_not_an_alarm(detector):
    found, watch = alarms(detector, even(120, slow=(0, 1, 2.0), begin=60))
    assert found[:60] == [None] * 60
    first = next(number for number, each in enumerate(found) if each)
    assert 60 < first < 75
    assert (found[first].replica, found[first].stage) == (-1, -1)
    assert found[first].excess > 0.2
    watch.reset()
    assert watch.step(even(1)[0]) is None


@pytest.mark.parametrize("detector", TIMED)
def test_a_threshold_above_the_rise_is_never_reached(detector):
    assert not any(alarms(detector, even(120, slow=(0, 1, 1.5), begin=60), threshold=3.0)[0])


@pytest.mark.parametrize("detector", TIMED)
def test_long_sequences_are_taken_for_a_slow_rank(detector):
    seen = [*even(60), *observations(60, seed=1, noise=NOISE, long=1.0)]
    assert any(alarms(detector, seen)[0])


@pytest.mark.parametrize("detector", TIMED)
def test_when_layers_move_the_level_is_learned_again(detector):
    seen = [*even(60), *even(60, seed=1, layers=(1, 1, 6))]
    assert seen[60].step_s > 1.3 * seen[0].step_s
    assert not any(alarms(detector, seen)[0])


def test_peers_find_the_group_that_computes_longer_than_others_of_its_stage():
    found, watch = alarms(Peers(), even(40, slow=(2, 0, 1.5), begin=20))
    assert found[:20] == [None] * 20
    first = next(each for each in found if each)
    assert (first.replica, first.stage) == (2, 0)
    assert first.excess == pytest.approx(0.5, abs=0.1)
    watch.reset()
    assert [watch.step(each) for each in even(4, slow=(2, 0, 1.5))] == [None] * 4


def test_peers_take_longer_sequences_of_a_replica_for_a_slow_group():
    seen = even(40)
    seen = [each._replace(busy_s=each.busy_s * np.array([[1.0], [1.4], [1.0]])) for each in seen]
    assert any(alarms(Peers(), seen)[0])


def test_peers_held_against_the_stages_of_their_replica_are_not_misled_by_lengths():
    seen = [*even(20), *even(20, slow=(1, 2, 1.3), seed=1)]
    seen = [each._replace(busy_s=each.busy_s * np.array([[1.0], [1.4], [1.0]])) for each in seen]
    found = alarms(Peers(by_replica=True), seen)[0]
    assert found[:20] == [None] * 20
    assert {(each.replica, each.stage) for each in found[25:]} == {(1, 2)}


@pytest.mark.parametrize("by_replica", [False, True])
def test_peers_go_on_with_the_replicas_that_are_left(by_replica):
    fewer = [each._replace(busy_s=each.busy_s[:2]) for each in even(20, slow=(1, 0, 2.0))]
    found = alarms(Peers(by_replica=by_replica), [*even(20), *fewer])[0]
    assert found[:24] == [None] * 24
    assert found[30] is not None and (found[30].replica, found[30].stage) == (1, 0)


@pytest.mark.parametrize("detector", [RawTime, RunLengths, Ruptures, Peers])
def test_a_threshold_that_is_given_is_the_only_one(detector):
    assert detector(threshold=0.07).thresholds == (0.07,)
    assert len(detector().thresholds) > 4


def test_ruptures_is_named_where_it_is_missing(monkeypatch):
    import sys

    from wavetank.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "ruptures", None)
    with pytest.raises(MissingExtraError, match="training"):
        Ruptures().start(0.1, 0.0)
