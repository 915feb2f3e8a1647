"""Restart policies: who is excluded, how long is waited, and when a human is called."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.incidents import Failed, Restart
from wavetank.insight.cluster.restart_policies import (
    AlwaysExclude,
    RestartAtOnce,
    RestartByHand,
    SuspectMemory,
    SuspectRestart,
)


def failed(chain: int, attempt: int, *suspects: int) -> Failed:
    return Failed(chain, attempt, suspects, 3)


def test_by_hand_is_one_restart_and_then_a_search() -> None:
    operator = RestartByHand().begin(63)
    assert operator.decide(failed(0, 0, 4)) == Restart(by_hand=True)
    assert operator.decide(failed(0, 1, 4)) == Restart(call=True)


def test_at_once_waits_for_nothing_the_first_time_and_stops_at_its_cap() -> None:
    operator = RestartAtOnce(tries=3).begin(63)
    answers = [operator.decide(failed(0, attempt, 4)) for attempt in range(4)]
    assert answers == [Restart(), Restart(wait_s=300.0), Restart(wait_s=300.0), Restart(call=True)]


def test_always_exclude_takes_out_whom_it_hears_first() -> None:
    operator = AlwaysExclude().begin(63)
    assert operator.decide(failed(0, 0, 9, 4)).exclude == (9,)
    assert operator.decide(failed(0, 1)).exclude == ()
    assert operator.decide(failed(0, 7, 9)) == Restart(call=True)


def test_a_suspect_is_out_when_named_twice_and_not_when_named_once() -> None:
    operator = SuspectRestart().begin(63)
    assert operator.decide(failed(0, 0, 9, 4)).exclude == ()
    assert operator.decide(failed(0, 1, 4)).exclude == (4,)
    # It is not excluded again in the same chain.
    assert operator.decide(failed(0, 2, 4)).exclude == ()


def test_one_who_was_to_blame_before_is_out_at_once() -> None:
    operator = SuspectRestart().begin(63)
    operator.decide(failed(0, 0, 4))
    operator.decide(failed(0, 1, 4))
    assert operator.decide(failed(1, 0, 4, 9)).exclude == (4,)


def test_blame_is_bayes_rule_with_the_counts_of_chains() -> None:
    policy = SuspectRestart()
    operator = policy.begin(63)
    assert isinstance(operator, SuspectMemory)
    operator.decide(failed(0, 0, 4))
    prior, wrongly = 0.33 / 63, 0.5 / 63
    assert operator.blame(4, 1) == pytest.approx(prior * 0.9 / (prior * 0.9 + (1 - prior) * wrongly))
    assert operator.blame(5, 1) == pytest.approx(prior * 0.1 / (prior * 0.1 + (1 - prior) * (1 - wrongly)))
    operator.decide(failed(0, 1, 4))
    operator.decide(failed(1, 0, 4))
    # Ten chains of the prior, one seen since the first; to blame in one of them.
    prior = (10 * 0.33 / 63 + 1) / 11
    operator.decide(failed(2, 0))
    prior = (10 * 0.33 / 63 + 2) / 12
    assert operator.blame(4, 1) == pytest.approx(prior * 0.1 / (prior * 0.1 + (1 - prior) * (1 - wrongly)))


def test_waits_double_and_a_human_is_called_when_nothing_new_is_known() -> None:
    operator = SuspectRestart(wait_s=100.0, longest_s=300.0, unchanged=4).begin(63)
    answers = [operator.decide(failed(0, attempt)) for attempt in range(5)]
    assert [each.wait_s for each in answers[:4]] == [0.0, 100.0, 200.0, 300.0]
    assert [each.call for each in answers] == [False] * 4 + [True]
    # A new suspect is worth a restart at once.
    operator = SuspectRestart(unchanged=2).begin(63)
    for attempt in range(2):
        operator.decide(failed(0, attempt, 7) if attempt else failed(0, 0))
    assert operator.decide(failed(0, 2, 7)) == Restart(exclude=(7,))


def test_a_chain_ends_at_its_cap_whatever_is_known() -> None:
    operator = SuspectRestart(tries=2).begin(63)
    for attempt in range(2):
        assert not operator.decide(failed(0, attempt, attempt)).call
    assert operator.decide(failed(0, 2, 2)).call


def test_memories_are_apart_and_settings_are_checked() -> None:
    policy = SuspectRestart()
    one, two = policy.begin(63), policy.begin(63)
    one.decide(failed(0, 0, 4))
    assert two.named == {} and one.named == {4: 1}
    with pytest.raises(BadValueError):
        SuspectRestart(odds=1.0)
    with pytest.raises(BadValueError):
        RestartAtOnce(wait_s=float("nan"))
