"""Rules: the paper's seven in their order, known answers of the robust line, planted jumps and quiet orbits."""

from dataclasses import replace

import numpy as np
import pytest
from tests.insight.orbits.made import elements, history

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.insight.orbits import interface
from wavetank.insight.orbits.interface import History
from wavetank.insight.orbits.mechanics import axis_km, motion_of
from wavetank.insight.orbits.rules import (
    BREAKUP,
    DECAY,
    MANOEUVRE,
    NORMAL,
    PaperRule,
    RobustElements,
    RobustRule,
    SinkingRule,
    changes_of,
    departures,
    rule_labels,
    running_median,
)
from wavetank.workloads.tle import DAY_NS


def two(heights_km=(800.0, 800.0), **changed):
    of = elements(records=2, noise_m=0)
    return replace(of, mean_motion=motion_of(6371.0 + np.array(heights_km)), **changed)


@pytest.mark.parametrize(
    ("of", "label"),
    [
        (two(), NORMAL),
        (two((252.0, 249.0)), BREAKUP),
        (two((390.0, 384.0)), DECAY),
        (two((410.0, 403.0)), NORMAL),
        (two((800.0, 811.0)), MANOEUVRE),
        (two((800.0, 789.0)), MANOEUVRE),
        (two(inclination_deg=np.array([98.0, 98.11])), MANOEUVRE),
        (two(eccentricity=np.array([0.001, 0.0111])), MANOEUVRE),
        (two(drag=np.array([6e-3, -6e-3])), MANOEUVRE),
        (two(drag=np.array([4e-3, -6e-3])), DECAY),
        (two(drag=np.array([1e-3, 6e-3])), DECAY),
        (two(drag=np.array([4e-3, 6e-3])), NORMAL),
        # The first rule that holds decides.
        (two((390.0, 384.0), inclination_deg=np.array([98.0, 99.0])), DECAY),
        (two((252.0, 240.0), inclination_deg=np.array([98.0, 99.0])), BREAKUP),
    ],
)
def test_the_seven_rules(of, label):
    assert rule_labels(of).tolist() == [NORMAL, label]


def test_running_medians_are_those_of_mirrored_windows():
    values = np.random.default_rng(2).normal(size=60)
    mirrored = np.concatenate((values[:7][::-1], values, values[-7:][::-1]))
    wanted = [np.median(mirrored[at : at + 15]) for at in range(60)]
    np.testing.assert_array_equal(running_median(values, 15), wanted)
    assert running_median(values[:3], 31).shape == (3,) and running_median(values[:0], 31).shape == (0,)


def test_a_departure_needs_both_the_noise_and_the_floor():
    values = np.zeros(99)
    values[50] = 2.9
    assert departures(values, 3.0, 31, 6.0)[50] < 1
    values[50] = 3.1
    assert departures(values, 3.0, 31, 6.0)[50] > 1
    noisy = np.where(np.arange(99) % 2, 2.0, 0.0)
    noisy[50] = 9.0
    # In its window are 16 values of 2 and more: the median is 2, and the median departure 0 or 2.
    assert departures(noisy, 8.0, 31, 1.0)[50] < 1 < departures(noisy, 6.0, 31, 1.0)[50]
    rough = np.tile([-2.0, -1.0, 0.0, 1.0, 2.0], 20)
    rough[50] = 5.0
    # Of such a window the median departure is 1.
    assert departures(rough, 0.1, 31, 6.0)[50] < 1 < departures(rough, 0.1, 31, 4.0)[50]


def test_a_jump_of_a_hundred_metres_in_noise_of_five_is_found_and_quiet_orbits_are_silent():
    found, years, alarms = 0, 0.0, 0
    for seed in range(100):
        of = history(events=[(200, 100.0)], records=400, noise_m=5.0, seed=seed)
        found += RobustRule().scores(of)[200] > 1
        quiet = RobustRule().scores(history(records=400, noise_m=5.0, seed=1000 + seed))
        alarms += int((np.nan_to_num(quiet) > 1).sum())
        years += 400 / 365.25
    assert found >= 99
    assert alarms / years < 1


def test_a_burn_across_the_plane_shows_in_the_inclination_alone():
    of = history(records=100, noise_m=0.5)
    tilted = replace(of.elements, inclination_deg=of.elements.inclination_deg + 0.02 * (np.arange(100) >= 60))
    of = replace(of, elements=tilted)
    assert RobustElements().scores(of)[60] > 1 and not (np.nan_to_num(RobustRule().scores(of)) > 1).any()


def test_twice_the_time_is_twice_the_turning_of_the_node():
    of = elements(records=3, noise_m=0)
    still = replace(of, node_deg=np.full(3, 50.0))
    slow = replace(still, epoch_ns=still.epoch_ns[0] + 2 * (still.epoch_ns - still.epoch_ns[0]))
    np.testing.assert_allclose(changes_of(slow)["node"], 2 * changes_of(still)["node"])
    # Where the node turns as J2 says, nothing is left, across 360 degrees too.
    np.testing.assert_allclose(changes_of(elements(records=400, noise_m=0))["node"], 0, atol=1e-6)


def test_settings_outside_their_range_are_refused():
    for made, bad in (
        (RobustRule, {"window": 1}),
        (RobustRule, {"times": float("nan")}),
        (RobustElements, {"shape": 0.0}),
    ):
        with pytest.raises(BadValueError):
            made(**bad)


def test_known_answers_of_the_eleven_satellites():
    """Counted by a script apart from this code: 672 events, 21 labels of the rules, 1,241 flags of the robust line."""
    try:
        found = {name: interface.history(name) for names in interface.SATELLITES.values() for name in names}
    except DataUnavailableError as error:
        pytest.skip(str(error))
    assert sum(each.events_ns.size for each in found.values()) == 672
    labels = np.concatenate([rule_labels(each.elements) for each in found.values()])
    assert ((labels == MANOEUVRE).sum(), (labels == DECAY).sum()) == (14, 7)
    recall, precision, flags = {}, {}, 0
    for name, of in found.items():
        flagged = np.nan_to_num(RobustRule().scores(of)) > 1
        times = of.elements.epoch_ns[flagged]
        hits = [((of.events_ns >= each - 3 * DAY_NS) & (of.events_ns <= each + DAY_NS)) for each in times.tolist()]
        recall[name] = round(float(np.any(hits, axis=0).mean()), 2)
        precision[name] = round(float(np.mean([each.any() for each in hits])), 2)
        assert of.near_events()[flagged].tolist() == [bool(each.any()) for each in hits]
        flags += times.size
    assert flags == 1241
    assert {name: (recall[name], precision[name]) for name in interface.SATELLITES["low"]} == {
        "CryoSat-2": (0.92, 0.90), "Jason-1": (0.40, 0.72), "Jason-2": (0.67, 0.93), "SARAL": (0.80, 0.90),
        "Sentinel-3A": (0.88, 0.93), "Sentinel-6A": (0.54, 1.00), "TOPEX": (0.44, 0.41),
    }  # fmt: skip
    assert PaperRule().fitted([], [], 0)(found["Jason-1"]).sum() <= 14


def test_the_line_for_decay_is_the_median_of_the_last_rates():
    of = History(name="a", elements=elements(records=120, sink_m=40.0, noise_m=0.5, gaps_d=[1, 3] * 59 + [2]),
                 events_ns=np.empty(0, np.int64))  # fmt: skip
    found = SinkingRule(window=5).scores(of)
    axis, days = axis_km(of.elements.mean_motion) * 1e3, of.elements.epoch_ns / DAY_NS
    rates = -np.diff(axis) / np.diff(days)
    medians = [np.median(rates[at - 5 : at]) for at in range(5, 120)]
    assert np.isnan(found[:5]).all()
    np.testing.assert_allclose(found[5:], medians / np.median(np.abs(medians)))
    assert np.isnan(SinkingRule().scores(History(name="b", elements=elements(records=9), events_ns=of.events_ns))).all()
