"""Simulated decay: the rate against a propagation, orbits before and after the onset, and whose noise it is."""

import numpy as np
import pytest
from tests.insight.orbits.made import history

from wavetank.errors import BadValueError
from wavetank.insight.orbits.decays import SEEN_NS, decaying, noise_of, sinking_m_per_day
from wavetank.insight.orbits.mechanics import MEAN_EARTH_KM, MU_KM, axis_km, propagated
from wavetank.workloads.tle import DAY_NS

DONORS = [history(events=[(100, 50.0)], records=400, noise_m=0.4, seed=seed) for seed in range(3)]


def test_a_round_orbit_sinks_as_a_propagation_with_drag_does():
    height, drag, day = 450.0, 1e-3, 86_400.0
    radius = (height + MEAN_EARTH_KM) * 1e3
    # Over the poles, where the atmosphere that turns with the Earth adds next to nothing.
    begin = [radius, 0, 0, 0, 0, np.sqrt(MU_KM * 1e9 / radius)]

    def axis(state):
        return 1 / (2 / np.linalg.norm(state[:3]) - state[3:] @ state[3:] / (MU_KM * 1e9))

    ends = [propagated(begin, day, each, step_s=60.0) for each in (0.0, drag)]
    # The orbit is not round once the Earth is flat: the density differs along it.
    assert axis(ends[0]) - axis(ends[1]) == pytest.approx(sinking_m_per_day(height, drag), rel=0.25)
    assert sinking_m_per_day(height, 2 * drag) == pytest.approx(2 * sinking_m_per_day(height, drag))


def test_an_orbit_is_held_until_its_onset_and_falls_from_then_on():
    made = decaying(4, DONORS, 60, noise=0.0)
    assert 0.5 < np.mean([each.events_ns.size == 1 for each in made]) < 0.85
    for each in made:
        of, axis = each.elements, axis_km(each.elements.mean_motion) * 1e3
        before = of.epoch_ns <= (each.events_ns[0] if each.events_ns.size else of.epoch_ns[-1])
        np.testing.assert_allclose(axis[before], axis[0], rtol=1e-13)
        if each.events_ns.size:
            assert (np.diff(axis[~before]) < 0).all() and of.epoch_ns[-1] <= each.events_ns[0] + SEEN_NS
            assert each.near_events()[~before].all() and not each.near_events()[before][:-9].any()
            assert np.array_equal(each.first_after(), ~before)
            # The first day falls at the rate of its height.
            days = (of.epoch_ns[~before][0] - each.events_ns[0]) / DAY_NS
            rate = sinking_m_per_day(float(axis[0]) / 1e3 - MEAN_EARTH_KM, float(of.drag[0]))
            assert 0.4 < (axis[0] - axis[~before][0]) / (rate * days) < 2.5


def test_records_are_hours_to_days_apart_or_a_day():
    gaps = np.concatenate([np.diff(each.elements.epoch_ns) for each in decaying(1, DONORS, 5)]) / DAY_NS
    assert gaps.min() < 0.3 and gaps.max() > 4 and gaps.min() > 0
    daily = decaying(1, DONORS, 5, regular=True)
    assert all((np.diff(each.elements.epoch_ns) == DAY_NS).all() for each in daily)


def test_noise_is_that_of_quiet_records_and_grows_with_the_setting():
    # A jump of a kilometre is no noise.
    donor = history(events=[(100, 1000.0)], records=400, noise_m=0.4)
    assert np.abs(noise_of(donor)[:, 0]).max() < 3 and len(noise_of(donor)) > 350
    one, ten = (
        np.concatenate([np.diff(axis_km(each.elements.mean_motion)[:50]) for each in decaying(2, DONORS, 9, noise=by)])
        for by in (1.0, 10.0)
    )
    assert np.std(ten) == pytest.approx(10 * np.std(one), rel=1e-3) and np.std(one) * 1e3 > 0.2


def test_a_seed_gives_the_same_satellites_and_short_donors_are_refused():
    one, again, other = decaying(1, DONORS, 2), decaying(1, DONORS, 2), decaying(2, DONORS, 2)
    assert np.array_equal(one[1].elements.mean_motion, again[1].elements.mean_motion)
    assert one[1].elements.mean_motion[0] != other[1].elements.mean_motion[0]
    with pytest.raises(BadValueError, match="quiet records"):
        decaying(1, [history(records=60)], 2)
