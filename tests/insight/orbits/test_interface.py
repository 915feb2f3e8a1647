"""Histories: which records find an event, and which come right after one."""

import numpy as np
from tests.insight.orbits.made import elements, history

from wavetank.insight.orbits.interface import History
from wavetank.workloads.tle import DAY_NS


def test_an_alarm_finds_what_is_at_most_three_days_before_or_one_day_after():
    of = elements(records=12, noise_m=0)
    event = int(of.epoch_ns[5])
    at = History(name="a", elements=of, events_ns=np.array([event]))
    assert np.flatnonzero(at.near_events()).tolist() == [4, 5, 6, 7, 8]
    later = History(name="a", elements=of, events_ns=np.array([event + 1]))
    assert np.flatnonzero(later.near_events()).tolist() == [5, 6, 7, 8]


def test_what_is_learned_are_the_records_of_the_two_days_after():
    of = history(events=[(50, 10.0)], records=100)
    assert np.flatnonzero(of.first_after()).tolist() == [50, 51]
    assert np.flatnonzero(of.first_after(DAY_NS)).tolist() == [50]
    at = History(name="a", elements=of.elements, events_ns=of.elements.epoch_ns[50:51])
    # A record of the moment itself is not after it.
    assert np.flatnonzero(at.first_after()).tolist() == [50, 51] or np.flatnonzero(at.first_after()).tolist() == [51]


def test_days_and_the_kind_of_orbit():
    assert history(records=100).days == 99.0 and history().low
    assert not history(height_km=35_790).low
