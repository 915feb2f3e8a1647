"""Beliefs about a flapping link: silence is late, a token claims little and is rarely wrong."""

from __future__ import annotations

import itertools

import pytest

from wavetank.protocols.filesync.flaps import beliefs_by_timeout, beliefs_by_token, flapping


def test_on_a_steady_link_nobody_is_wrong() -> None:
    link = [True] * 2000
    assert beliefs_by_timeout(link).wrong == 0
    token = beliefs_by_token(link)
    assert token.wrong == 0
    assert 0 < token.claimed < token.instants


def test_a_dead_link_is_believed_alive_for_as_long_as_the_timeout() -> None:
    link = [True] * 400 + [False] * 400
    # The last heartbeat left up to a round before the cut; 0.05 rounds an instant.
    wrong = beliefs_by_timeout(link).wrong
    assert 40 <= wrong <= 62
    assert beliefs_by_token(link).wrong <= 2


@pytest.mark.parametrize("period", [1.0, 5.0, 20.0])
def test_the_token_is_wrong_less_often_at_any_period(period: float) -> None:
    link = flapping(period, 1000, 3)
    assert beliefs_by_token(link).wrong_share < beliefs_by_timeout(link).wrong_share / 5


def test_a_link_flaps_with_its_period_and_from_its_seed() -> None:
    link = flapping(5.0, 5000, 1)
    changes = sum(one != other for one, other in itertools.pairwise(link))
    assert 5000 / changes == pytest.approx(5.0, rel=0.2)
    assert flapping(5.0, 100, 1) == flapping(5.0, 100, 1) != flapping(5.0, 100, 2)
