"""The study: recall by hand at a threshold, splits that hold satellites out, and a detector that knows the truth."""

import math

import numpy as np
import pytest
from tests.insight.orbits.made import history

from wavetank.insight.orbits import study
from wavetank.insight.orbits.interface import SATELLITES
from wavetank.insight.orbits.study import OrbitEvents, judged
from wavetank.workloads.tle import DAY_NS

EVENTS = [(60, 30.0), (150, -20.0), (240, 25.0), (300, 30.0)]


class Given:
    """A detector with given scores, which notes what it may learn from."""

    alarm_at = 0.5

    def __init__(self, scores):
        self.scores, self.seen = scores, []

    def fitted(self, histories, usable, seed):
        self.seen.append([(each.name, own.copy()) for each, own in zip(histories, usable, strict=True)])
        return lambda history: self.scores(history)


def truth(of):
    return of.near_events().astype(float)


@pytest.fixture
def satellites(monkeypatch):
    made = {
        name: history(events=EVENTS, records=400, seed=at, name=name) for at, name in enumerate(SATELLITES["low"])
    }  # fmt: skip
    monkeypatch.setattr(study, "history", made.__getitem__)
    return made


def test_recall_at_equal_false_alarms_by_hand():
    of = history(events=[(50, 1.0), (80, 1.0)], records=100)
    scores = np.zeros(100)
    scores[[50, 80]] = 3.0, 1.0
    # Two false alarms, one of them long: records within three days are one.
    scores[[10, 12, 30]] = 2.0, 2.0, 1.5
    years = 99 / 365.25
    for allowed, recall, false in ((0.0, 0.5, 0), (1.0, 0.5, 1), (2.0, 1.0, 2)):
        score, _ = judged([of], [scores], allowed / years)
        assert (score.recall, score.false_alarms) == (recall, false)


def test_scores_of_nothing_find_nothing():
    of = history(events=[(50, 1.0)], records=100)
    score, threshold = judged([of], [np.full(100, np.nan)], 1.0)
    assert (score.recall, threshold) == (0.0, math.inf)


def test_no_satellite_is_scored_by_what_it_taught(satellites):
    given = Given(truth)
    OrbitEvents().measure(given, 3)
    learned = [{name for name, _ in each} for each in given.seen]
    assert len(learned) == 2 and learned[0] | learned[1] == set(satellites) and not learned[0] & learned[1]
    assert {len(each) for each in learned} == {3, 4}
    other = Given(truth)
    OrbitEvents().measure(other, 4)
    assert [{name for name, _ in each} for each in other.seen] != learned


def test_windows_are_held_out_in_blocks_of_25(satellites):
    given = Given(truth)
    OrbitEvents(split="window").measure(given, 1)
    for each in given.seen:
        assert {name for name, _ in each} == set(satellites)
        for _, own in each:
            assert all(len(set(own[at : at + 25].tolist())) == 1 for at in range(0, 400, 25))
            assert 0 < own.mean() < 1
    assert len(OrbitEvents(split="window").notes()) == len(OrbitEvents().notes()) + 1


def figures(found):
    return {(name, tuple(at.items())): value for name, value, at in found.rows}


def test_one_who_knows_finds_all_and_one_who_does_not_finds_none(satellites):
    got = figures(OrbitEvents().measure(Given(truth), 0))
    assert got["recall", ()] == 1.0 and got["false_alarms_per_year", ()] == 0.0
    assert got["recall", (("satellite", "TOPEX"),)] == 1.0 and got["recall", (("allowed_per_year", 0.3),)] == 1.0
    assert (got["shipped_recall", ()], got["shipped_precision", ()]) == (1.0, 1.0)
    lost = figures(OrbitEvents().measure(Given(lambda of: np.where(truth(of) > 0, np.nan, 1.0)), 0))
    assert lost["recall", ()] == 0.0 and lost["shipped_precision", ()] == 0.0
    assert ("time_to_locate_d", ()) not in lost


def test_decaying_satellites_are_simulated_with_the_noise_of_real_ones(satellites):
    settings = OrbitEvents(orbits="decaying", noise=3.0)
    made = settings.histories(5)
    assert len(made) == 40 and any(each.events_ns.size for each in made) and "simulated" in settings.notes()[-1]
    got = figures(settings.measure(Given(truth), 5))
    assert got["recall", ()] == 1.0 and got["false_alarms_per_year", ()] == 0.0
    assert not any(at and at[0][0] == "satellite" for _, at in got)
    # Found until twenty days after the onset, not three.
    tardy = Given(lambda of: (of.first_after() & ~of.first_after(10 * DAY_NS)) * 1.0)
    late = figures(settings.measure(tardy, 5))
    assert late["recall", ()] > 0.7 and late["false_alarms_per_year", ()] == 0.0
