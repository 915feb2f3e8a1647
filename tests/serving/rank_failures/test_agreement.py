"""The agreement on masks, explored: a fault between any two steps, replacements, and a proposer that does not wait."""

from __future__ import annotations

import pytest

from wavetank.check.explore import Environment, explore
from wavetank.serving.rank_failures.agreement import (
    Agreement,
    Apply,
    Join,
    MaskAgreement,
    Propose,
    Ready,
    Refused,
    bits,
)


def around(crashes: int, recoveries: int = 0) -> Environment:
    return Environment(timers="when-quiet", channels="fifo", crashes=crashes, recoveries=recoveries)


@pytest.mark.parametrize(
    ("size", "crashes", "recoveries"),
    [(3, 1, 0), (2, 1, 1), (3, 2, 0), pytest.param(3, 1, 1, marks=pytest.mark.slow),
     pytest.param(2, 2, 2, marks=pytest.mark.slow)],
)  # fmt: skip
def test_no_epoch_has_two_masks_with_a_fault_between_any_two_steps(size: int, crashes: int, recoveries: int) -> None:
    found = explore(MaskAgreement(split=True), size, environment=around(crashes, recoveries))
    assert (found.outcome, found.violation) == ("holds", "")
    assert found.states > 1000


@pytest.mark.parametrize(
    ("size", "crashes", "recoveries"), [(3, 1, 0), (3, 2, 0), (2, 1, 1), pytest.param(3, 1, 1, marks=pytest.mark.slow)]
)
def test_survivors_go_on_when_faults_stop(size: int, crashes: int, recoveries: int) -> None:
    algorithm = MaskAgreement()
    found = explore(algorithm, size, environment=around(crashes, recoveries), eventually={"served": algorithm.served})
    assert (found.outcome, found.violation) == ("holds", "")


def test_a_proposer_that_does_not_wait_is_found_out() -> None:
    found = explore(MaskAgreement(split=True, patient=False), 3, environment=around(2))
    assert found.outcome == "violated"
    assert "applied" in found.violation


def test_a_mask_is_applied_after_all_have_left_their_steps_and_carries_what_they_hold() -> None:
    ranks = [Agreement(me, 1, 0b111, held=(me,)) for me in range(3)]
    ((to, proposal),) = ranks[0].lose(1, 1)
    assert (to, proposal) == (2, Propose(2, 0b101))
    assert ranks[0].epoch == 1 and not ranks[0].settled
    ((_, ready),) = ranks[2].receive(0, proposal)
    assert ready == Ready(2, (2,)) and not ranks[2].settled
    ((to, applied),) = ranks[0].receive(2, ready)
    assert (to, applied) == (2, Apply(2, 0b101, (0, 0), ((0,), (2,))))
    ranks[2].lose(1, 1)
    assert ranks[2].receive(0, applied) == []
    assert all((each.epoch, bits(each.mask), each.settled, each.needed) == (2, [0, 2], True, False)
               for each in (ranks[0], ranks[2]))  # fmt: skip
    assert ranks[2].holdings == {0: (0,), 2: (2,)}


def test_a_letter_of_a_join_that_comes_after_its_mask_changes_nothing() -> None:
    other = Agreement(2, 1, 0b111)
    other.lose(1, 1)
    other.receive(0, Propose(2, 0b111))
    other.receive(0, Apply(2, 0b111, (0, 1, 0), ((), (), ())))
    other.receive(1, Join(1))
    assert other.settled and not other.needed and other.gone == 0


def test_the_end_of_a_joining_rank_ends_its_proposal_too() -> None:
    first = Agreement(0, 1, 0b01)
    assert first.receive(1, Join(1)) == [(1, Propose(2, 0b11))]
    assert first.lose(1, 2) == []
    assert (first.epoch, first.mask, first.settled) == (3, 0b01, True)


def test_an_old_proposal_is_refused_and_the_proposer_takes_a_higher_epoch() -> None:
    second = Agreement(1, 1, 0b111)
    second.receive(2, Propose(5, 0b110))
    assert second.receive(0, Propose(3, 0b011)) == [(0, Refused(3, 5))]
    first = Agreement(0, 1, 0b111)
    first.lose(2, 1)
    ((_, again),) = first.receive(1, Refused(2, 5))
    assert again == Propose(6, 0b011)


def test_a_group_that_must_be_whole_waits_for_the_replacement() -> None:
    first = Agreement(0, 1, 0b11, whole=True)
    assert first.lose(1, 1) == [] and not first.needed
    assert first.receive(1, Join(1)) == [(1, Propose(2, 0b11))]
    assert MaskAgreement().max_faults(4) == 3


def test_answers_and_masks_of_another_proposal_count_for_nothing() -> None:
    first = Agreement(0, 1, 0b111)
    first.lose(1, 1)
    # Refused once, it proposes again: what was said to the first proposal is no answer to the second.
    first.receive(2, Refused(2, 5))
    assert first.receive(2, Ready(2)) == [] and first.epoch == 1
    assert first.receive(2, Ready(6))[0][1].epoch == 6 and first.epoch == 6
    other = Agreement(1, 1, 0b111)
    other.receive(2, Propose(5, 0b110))
    other.receive(0, Apply(3, 0b011, (0, 0), ((), ())))
    assert (other.epoch, other.mask, other.settled) == (1, 0b111, False)


def test_a_second_joiner_in_a_proposal_under_way_begins_it_again() -> None:
    first = Agreement(0, 1, 0b011)
    assert first.receive(2, Join(1)) == [(1, Propose(2, 0b111)), (2, Propose(2, 0b111))]
    assert first.receive(1, Ready(2)) == []
    # A later process in the place of one that was proposed has not answered.
    assert first.receive(2, Join(2)) == [(1, Propose(3, 0b111)), (2, Propose(3, 0b111))]
    assert first.receive(2, Ready(2)) == [] and first.epoch == 1
