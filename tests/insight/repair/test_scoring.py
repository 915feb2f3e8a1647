"""Accounting: what is destructive, what is a case, risk by hand."""

import numpy as np
import pytest
from tests.insight.repair.made import small

from wavetank.errors import BadValueError
from wavetank.insight.repair.interface import Decisions, Episodes, cuts_of
from wavetank.insight.repair.scoring import harmful, risk, rolled_back, scored, trigger_of


def hand_made():
    present = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]], np.bool_)
    return Episodes(np.zeros((4, 5, 9)), np.ones((4, 5), np.bool_), present, np.array([0, 0, 0, 1], np.bool_))


def test_an_action_is_destructive_unless_it_repairs_a_fault_that_is_there():
    cases = hand_made()
    assert harmful(cases, np.array([0, 0, 1, 2])).tolist() == [False, True, False, True]
    decisions = Decisions(np.array([0, 0, 1, 2]), np.array([1, 1, 0, 1], np.bool_), np.array([4.0, 3.0, 2.0, 1.0]))
    score = scored(cases, decisions)
    assert score[:4] == (4, 3, 1, 2)
    # Risk at coverages 1/4, 2/4, 3/4 and 1: 0, 1/2, 1/3, 1/2.
    assert score.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert risk(cases, decisions, 0.5) == pytest.approx(0.5)
    assert risk(cases, decisions, 0.0) == 0.0


def test_decisions_without_a_best_action_are_refused():
    for action in (np.array([0, 1]), np.array([0, 1, 2, 3]), np.array([-1, 0, 0, 0])):
        with pytest.raises(BadValueError, match="best action"):
            harmful(hand_made(), action)


def test_somebody_looks_at_three_broken_windows_or_at_surprise():
    healthy = small().learning.healthy
    trigger = trigger_of(healthy, cuts_of(healthy))
    cases = hand_made()
    cases.slo_ok[0, :3] = False
    cases.slo_ok[1, 1:3] = False
    cases.readings[2] = 9.0
    assert trigger.cases(cases).tolist() == [True, False, True, False]
    cases.readings[2] = np.nan
    assert trigger.surprises(cases)[2] == 0.0


def test_one_healthy_episode_in_a_hundred_is_too_surprising():
    healthy = small().learning.healthy
    trigger = trigger_of(healthy, cuts_of(healthy))
    assert np.mean(trigger.surprises(healthy) > trigger.limit) == pytest.approx(0.01, abs=0.002)


def test_actions_that_do_not_halve_what_is_broken_are_taken_back_if_they_can_be():
    before, after = hand_made(), hand_made()
    before.slo_ok[:, :4] = False
    after.slo_ok[:3, 0] = False
    after.slo_ok[0, :3] = False
    after.slo_ok[1, :5] = False
    # Three of five windows after four; all five, by a restart; one of five; none.
    action = np.array([0, 1, 2, 2])
    assert rolled_back(before, after, action, 5).tolist() == [True, False, False, False]
    # Of the first window alone three are broken.
    assert rolled_back(before, after, action, 1).tolist() == [True, False, True, False]
    assert rolled_back(before, after, np.array([0, 0, 2, 2]), 5).tolist() == [True, True, False, False]
    for windows in (0, 6):
        with pytest.raises(BadValueError, match="windows after"):
            rolled_back(before, after, action, windows)
