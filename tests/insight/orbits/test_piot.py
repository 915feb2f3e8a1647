"""The transformer: its inputs and physics by hand, no look ahead, and labels that it can learn."""

from dataclasses import replace

import numpy as np
import pytest
from tests.insight.orbits.made import elements, history

from wavetank.errors import BadValueError
from wavetank.insight.orbits import piot
from wavetank.insight.orbits.piot import Piot, innovations, inputs
from wavetank.workloads.tle import DAY_NS

torch = pytest.importorskip("torch")


def test_the_eleven_features():
    of = elements(records=4, noise_m=0, gaps_d=[1, 20, 0.5])
    found = inputs(of)
    assert found.shape == (4, 11)
    np.testing.assert_allclose(found[:, 0], [0, 24, 504, 516])
    # Gaps count up to ten days.
    np.testing.assert_allclose(found[:, 6], [0, 24, 240, 12])
    np.testing.assert_allclose(found[:, 5], 800.0)
    assert inputs(replace(of, drag=np.full(4, 5.0)))[0, 4] == 1.0


def test_physics_explains_an_orbit_that_nothing_disturbs():
    found = innovations(elements(records=300, noise_m=0.0, gaps_d=np.random.default_rng(1).uniform(0.1, 5, 299)))
    assert np.abs(found).max() < 1e-6


def test_what_drag_does_to_motion_and_shape_is_explained():
    of = elements(records=3, noise_m=0)
    faster = replace(of, motion_rate=np.full(3, 1e-4), mean_motion=of.mean_motion + 2e-4 * np.arange(3))
    found = innovations(faster)
    np.testing.assert_allclose(found[1:, 0], 0, atol=1e-12)
    # The eccentricity stayed, where it should have fallen.
    np.testing.assert_allclose(found[1:, 1], 2 / 3 * (1 - 1e-3) * 2e-4 / of.mean_motion[0], rtol=1e-3)


def test_a_jump_of_ten_metres_survives_single_precision():
    of = history(events=[(60, 10.0)], records=120, noise_m=0.2)
    scale = piot._Scale([of], [np.ones(120, bool)], times=True, running=False)
    at, _, off = scale.windows(of.elements)
    jump = off[at == 60][0]
    assert abs(jump[0]) > 20 * np.median(np.abs(off[..., 0]))


def test_windows_cover_every_record_and_stay_inside_one_satellite():
    for records in (30, 50, 60, 75, 130):
        of = history(records=records)
        scale = piot._Scale([of], [np.ones(records, bool)], times=True, running=True)
        at, seen, off = scale.windows(of.elements)
        assert set(at.ravel().tolist()) == set(range(records))
        assert seen.shape == (*at.shape, 11) and off.shape == (*at.shape, 8)
        # Time counts from a window's first record.
        assert (seen[:, 0, 0] == 0).all()


def test_without_times_both_features_of_time_are_blank():
    of = history(records=60)
    scale = piot._Scale([of], [np.ones(60, bool)], times=False, running=False)
    assert (scale.windows(of.elements)[1][:, :, piot.TIMES] == 0).all()


def test_a_record_does_not_see_the_records_after_it():
    network = piot._network(Piot(width=16, layers=1, heads=2)).eval()
    draws = torch.Generator().manual_seed(3)
    seen, off = torch.randn(2, 50, 11, generator=draws), torch.randn(2, 50, 8, generator=draws)
    with torch.no_grad():
        before = network(seen, off)
        seen[:, 30:], off[:, 30:] = 9.0, 9.0
        after = network(seen, off)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:, :30], other[:, :30])
    # Residual and noise of a record come before it is seen.
    assert torch.equal(before[1][:, 30], after[1][:, 30]) and not torch.equal(before[0][:, 30], after[0][:, 30])


def test_it_learns_true_times_of_other_satellites():
    events = [(at, 40.0) for at in range(20, 300, 35)]
    learned = [history(events=events, records=300, noise_m=1.0, seed=seed, name=str(seed)) for seed in range(3)]
    system = Piot(labels="true", noise="running", width=16, layers=1, heads=2, epochs=12, batch=8)
    scorer = system.fitted(learned, [np.ones(300, bool)] * 3, 0)
    fresh = history(events=[(100, 40.0), (200, 40.0)], records=300, noise_m=1.0, seed=9)
    scores = scorer(fresh)
    assert np.isnan(scores[0]) and np.isfinite(scores[1:]).all()
    best = set(np.argsort(np.nan_to_num(scores, nan=-np.inf))[-6:].tolist())
    assert {100, 200} <= best
    np.testing.assert_array_equal(scores, system.fitted(learned, [np.ones(300, bool)] * 3, 0)(fresh))


def test_weak_labels_are_those_of_rules_and_then_of_filters(monkeypatch):
    of = history(records=60)
    planted = np.tile([0.2, 0.7, 0.1], (60, 1))
    monkeypatch.setattr(piot, "filter_of", lambda history, models: type("F", (), {"probability": planted})())
    assert (piot._targets(of, "weak", 0) == 0).all() and (piot._targets(of, "weak", 1) == 1).all()
    late = replace(of, events_ns=of.elements.epoch_ns[10:11] - DAY_NS // 2)
    assert np.flatnonzero(piot._targets(late, "true", 0)).tolist() == [10, 11]


def test_settings_outside_their_range_are_refused():
    for made in (lambda: Piot(width=30, heads=4), lambda: Piot(epochs=0)):
        with pytest.raises(BadValueError):
            made()


def windows_of(of, **given):
    scale = piot._Scale([of], [np.ones(len(of.elements), bool)], running=False, **given)
    return scale.windows(of.elements)[1:]


def test_without_times_and_angles_nothing_says_how_far_records_are_apart():
    even = history(records=90, noise_m=2.0)
    gaps = np.random.default_rng(3).uniform(0.2, 1.8, 89)
    epochs = even.elements.epoch_ns[0] + np.round(np.concatenate(([0], np.cumsum(gaps / gaps.sum()))) * 89 * DAY_NS)
    uneven = replace(even, elements=replace(even.elements, epoch_ns=epochs.astype(np.int64), node_deg=np.arange(90.0)))
    for one, other in zip(*(windows_of(each, times=False, angles=False) for each in (even, uneven)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    known = [windows_of(each, times=True, angles=False)[0] for each in (even, uneven)]
    assert not np.allclose(*known)
    # What is a day apart anyway is the same with times and without, but for the clock itself.
    timed, untimed = (windows_of(even, times=each, angles=False) for each in (True, False))
    np.testing.assert_allclose(timed[1], untimed[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(timed[0][..., 1:6], untimed[0][..., 1:6])
