"""Votes of ranks, and what they are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.live.membership import Membership


def test_nobody_is_told_anything_before_all_who_live_have_voted() -> None:
    group = Membership(3)
    group.vote(0, True, 0.0)
    group.vote(2, True, 0.1)
    assert group.decide() is None
    group.vote(1, True, 0.2)
    decision = group.decide()
    assert decision is not None
    assert decision.commit
    assert (decision.epoch, decision.members, decision.lost) == (0, (0, 1, 2), ())


def test_one_bad_vote_undoes_the_work_of_all_and_begins_an_epoch() -> None:
    group = Membership(2)
    group.vote(0, True, 0.0)
    group.vote(1, False, 0.0)
    decision = group.decide()
    assert decision is not None
    assert not decision.commit
    assert (decision.epoch, decision.members) == (1, (0, 1))


def test_work_counts_when_all_survivors_have_it_whole_although_one_is_gone() -> None:
    group = Membership(3)
    for rank in range(3):
        group.vote(rank, True, 0.0)
    group.lose(1)
    decision = group.decide()
    assert decision is not None
    assert decision.commit
    assert (decision.epoch, decision.members, decision.lost) == (1, (0, 2), (1,))


def test_a_rank_is_overdue_only_after_the_patience_since_the_first_vote_and_only_without_a_vote() -> None:
    group = Membership(3, patience_s=2.0)
    assert group.overdue(1e9) == ()
    group.vote(1, False, 10.0)
    group.vote(0, True, 11.5)
    assert group.overdue(11.9) == ()
    assert group.overdue(12.0) == (2,)
    group.lose(2)
    assert group.overdue(13.0) == ()
    decision = group.decide()
    assert decision is not None
    assert decision.lost == (2,)
    assert group.overdue(1e9) == ()


def test_who_is_gone_has_no_vote() -> None:
    group = Membership(2)
    group.lose(1)
    group.vote(1, False, 0.0)
    group.vote(0, True, 0.0)
    decision = group.decide()
    assert decision is not None
    assert decision.commit


def test_a_job_without_ranks_is_refused() -> None:
    with pytest.raises(BadValueError, match="at least one rank"):
        Membership(0)


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["well", "bad", "lost"])), max_size=40))
def test_members_only_shrink_and_epochs_only_rise(size: int, steps: list[tuple[int, str]]) -> None:
    group = Membership(size)
    members, epoch, gone = set(range(size)), 0, set()
    votes: dict[int, bool] = {}
    for rank, what in steps:
        if rank >= size:
            continue
        if what == "lost":
            group.lose(rank)
            gone.add(rank)
            votes.pop(rank, None)
        else:
            group.vote(rank, what == "well", 0.0)
            if rank in members - gone:
                votes[rank] = what == "well"
        decision = group.decide()
        complete = bool(members - gone) and votes.keys() == members - gone
        assert (decision is not None) == complete
        if decision is not None:
            assert decision.commit == all(votes.values())
            assert set(decision.members) == members - gone
            assert set(decision.lost) == members & gone
            assert decision.epoch == epoch + (bool(members & gone) or not decision.commit)
            members, epoch, votes = set(decision.members), decision.epoch, {}
