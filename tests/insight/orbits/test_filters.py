"""Filters: Bayes by hand, the chain's own distribution, Kalman's formula, and states that a model explains."""

from dataclasses import replace

import numpy as np
import pytest
from tests.insight.orbits.made import record, written

from wavetank.insight.orbits import filters
from wavetank.insight.orbits.filters import (
    DECAY,
    STATION,
    TRANSITIONS,
    decay_scale,
    filtered,
    labels_of,
    prior,
    transitions,
)
from wavetank.insight.orbits.mechanics import propagated
from wavetank.workloads.tle import read_tle


def test_bayes_and_the_transition_by_hand():
    np.testing.assert_allclose(filters._weighed(np.array([0.5, 0.5]), np.log([3.0, 1.0])), [0.75, 0.25])
    np.testing.assert_allclose(filters._weighed(np.array([0.5, 0.5]), np.array([-1e6, -1e6])), [0.5, 0.5])
    means, spreads = np.zeros((3, 6)), np.repeat(np.eye(6)[None], 3, axis=0)
    _, _, now = filters._mix(means, spreads, np.array([1.0, 0.0, 0.0]), TRANSITIONS)
    np.testing.assert_allclose(now, [0.97, 0.015, 0.015])


def still(height):
    """Where probabilities drift without evidence."""
    now = prior(height)
    for _ in range(2000):
        now = now @ transitions(height)
    return now


def test_without_evidence_a_high_orbit_stays_below_the_label_of_decay_and_a_low_one_does_not():
    np.testing.assert_allclose(still(550.0), [10 / 17, 2 / 17, 5 / 17], atol=1e-9)
    assert still(550.0)[DECAY] < 0.3
    # A gap in the data alone makes labels below 350 km.
    assert still(250.0)[DECAY] == pytest.approx(0.638, abs=1e-3)
    assert labels_of(still(250.0)[None])[0] == DECAY and labels_of(still(550.0)[None])[0] == STATION


def test_priors_transitions_and_noise_follow_the_height():
    np.testing.assert_allclose(prior(800), [0.90, 0.05, 0.05])
    np.testing.assert_allclose(prior(150), [0.05, 0.05, 0.90])
    for height in (150.0, 300.0, 420.0, 900.0):
        np.testing.assert_allclose(transitions(height).sum(axis=1), 1.0)
        assert prior(height).sum() == pytest.approx(1.0)
    assert (decay_scale(550), decay_scale(900), decay_scale(100), decay_scale(275)) == (1.0, 1.0, 20.0, 4.0)


def test_the_update_is_kalmans():
    draws = np.random.default_rng(4)
    root = draws.normal(size=(6, 6)) * [1e3, 1e3, 1e3, 1, 1, 1]
    spread = root.T @ root
    mean, seen = draws.normal(size=6) * 1e3, draws.normal(size=6) * 1e3
    noise = np.diag([1e6] * 3 + [1.0] * 3)
    gain = spread @ np.linalg.inv(spread + noise)
    new, left, logarithm, distance = filters._update(mean, spread, seen, np.array([1000.0, 1.0]))
    np.testing.assert_allclose(new, mean + gain @ (seen - mean), rtol=1e-8, atol=1e-6)
    np.testing.assert_allclose(left, spread - gain @ spread, rtol=1e-6, atol=1e-6 * np.abs(spread).max() * 1e-3)
    off = seen - mean
    squared = off @ np.linalg.solve(spread + noise, off)
    assert distance == pytest.approx(squared, rel=1e-8)
    density = -0.5 * squared - 0.5 * np.linalg.slogdet(2 * np.pi * (spread + noise))[1]
    assert logarithm == pytest.approx(density, rel=1e-10)


def test_the_prediction_is_that_of_all_sigma_points_in_short_steps():
    mean = np.array([7.2e6, 0, 0, 0, 1000.0, 7400.0])
    spread = np.diag([1e6] * 3 + [1.0] * 3)
    seconds, drag, period = 40_000.0, 1e-4, 6000.0
    fine = propagated(mean, seconds, drag / filters.AREA_TO_MASS, step_s=period / filters._STEPS)
    rough = propagated(mean, seconds, drag / filters.AREA_TO_MASS, step_s=period / filters._COARSE_STEPS)
    near = mean + np.array([300.0, 0, 0, 0, 0.2, 0])
    found, found_spread = filters._predict(near, spread, seconds, drag, period, fine, rough)
    scale = np.sqrt(6e-4)
    points = [near, *(near + side * scale * root for root in np.linalg.cholesky(spread).T for side in (1, -1))]
    moved = np.array([propagated(each, seconds, drag / filters.AREA_TO_MASS, step_s=100.0) for each in points])
    weights = np.full(13, 0.5 / 6e-4)
    weights[0] = (6e-4 - 6) / 6e-4
    mean_there = moved[0] + weights[1:] @ (moved[1:] - moved[0])
    weights[0] += 1 - 1e-4 + 2
    off = moved - mean_there
    spread_there = (weights[:, None] * off).T @ off
    assert np.linalg.norm(found[:3] - mean_there[:3]) < 150
    np.testing.assert_allclose(np.sqrt(np.diag(found_spread)), np.sqrt(np.diag(spread_there)), rtol=0.03)


def recorded(folder, days=30, jump=None, slower=0.05):
    """Records of an orbit as SGP4's own elements say, all of one set, or of another from a day on."""
    from sgp4.api import Satrec

    slow, fast = (Satrec.twoline2rv(*record(motion=motion)) for motion in (14.2, 14.2 - slower))
    records = []
    for day in range(days):
        later = 0 if jump is None else max(day - jump, 0)
        node, perigee, anomaly = (
            np.degrees(begin + 1440 * ((day - later) * getattr(slow, rate) + later * getattr(fast, rate))) % 360
            for begin, rate in ((slow.nodeo, "nodedot"), (slow.argpo, "argpdot"), (slow.mo, "mdot"))
        )
        records.append(record(epoch=f"24{day + 1:03d}.50000000", motion=14.2 if not later else 14.2 - slower, node=node,
                              perigee=perigee, anomaly=anomaly, drag=" 00000-0", rate=" .00000000"))  # fmt: skip
    (of,) = read_tle(written(folder, "made.tle", records)).values()
    return of


def test_probabilities_sum_to_one_and_one_model_is_always_sure(tmp_path):
    of = recorded(tmp_path)
    found = filtered(of)
    np.testing.assert_allclose(found.probability.sum(axis=1), 1.0)
    assert np.isnan(found.surprise[0]) and np.isfinite(found.surprise[1:]).all()
    alone = filtered(of, (STATION,))
    assert (alone.probability == 1).all()


def test_a_quiet_orbit_is_station_keeping_and_a_jump_is_a_surprise(tmp_path):
    quiet = filtered(recorded(tmp_path))
    assert (labels_of(quiet.probability) == STATION).all()
    jumped = recorded(tmp_path, jump=15)
    found = filtered(jumped, (STATION,))
    assert np.nanargmax(found.surprise) in (16, 17) and np.nanmax(found.surprise) > 20 * np.nanmax(quiet.surprise)
    # The model with the widest noise of position takes it: a burn of this size is labelled as decay.
    assert (labels_of(filtered(jumped).probability)[16:18] == DECAY).any()


def test_what_is_known_of_a_day_ahead_stays_wide_so_that_small_jumps_are_hidden(tmp_path):
    """The transform's own curvature, at a noise of 1 km and 1 m/s, keeps the filter from learning the axis."""
    small = filtered(recorded(tmp_path, jump=15, slower=0.004), (STATION,))
    # 1.3 km of the axis, 180 km along the orbit after a day, are not even an alarm.
    assert np.nanmax(small.surprise) < 22.458


def test_a_filter_begins_anew_after_a_long_gap(tmp_path):
    of = recorded(tmp_path, days=30)
    keep = np.r_[0:10, 25:30]
    cut = replace(of, **{name: getattr(of, name)[keep] for name in
                         ("epoch_ns", "mean_motion", "eccentricity", "inclination_deg", "node_deg", "perigee_deg",
                          "anomaly_deg", "drag", "motion_rate")}, lines=tuple(of.lines[at] for at in keep))  # fmt: skip
    found = filtered(cut)
    assert np.flatnonzero(np.isnan(found.surprise)).tolist() == [0, 10]
    np.testing.assert_allclose(found.probability[10], prior(800.0))
