"""What the rivals see, and what each of them cannot see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.insight.collectives.test_ccl_d import JOB, steps, stuck
from tests.insight.collectives.windows import row, window

from wavetank.errors import BadValueError
from wavetank.insight.collectives.interface import Verdict
from wavetank.insight.collectives.job_model import Planted, drawn_fault, simulated
from wavetank.insight.collectives.rivals import DurationThreshold, RandomRank, ReceiveWaits, Timestamps

ALL = (DurationThreshold(), Timestamps(), ReceiveWaits())
LATE = Planted(fault="S1", ranks=(13,), late=(13,), extra_s=0.2)


def seen_of(planted, clocks_s=0.0, seed=0):
    turns = 3 if planted.fault.startswith("H") else 8
    return simulated(JOB, planted, np.random.default_rng(seed), iterations=turns, clocks_s=clocks_s)


@pytest.mark.parametrize("rival", ALL)
def test_all_of_them_name_who_has_not_come(rival):
    rows = [row(0, ended=None), row(1, ended=None), row(3, ended=None)]
    verdict = rival.find(window(rows))
    assert (verdict.fault, verdict.ranks) == ("H1", (2,))
    machine = drawn_machine()
    assert rival.find(seen_of(machine)).ranks == machine.ranks


def drawn_machine():
    for seed in range(50):
        planted = drawn_fault(JOB, "H1", np.random.default_rng(seed))
        if len(planted.ranks) == 4 and planted.kind == JOB.group_ops:
            return planted
    raise LookupError


@pytest.mark.parametrize("rival", ALL)
def test_none_of_them_compares_what_was_called(rival):
    assert rival.find(stuck(r1={"size": 512})).fault == "H3"


def test_durations_name_a_victim_and_never_the_late_rank():
    verdict = DurationThreshold(theta=1.2).find(steps(r3=(7.0, 0.1, 0.1), r2=(5.0, 0.1, 0.1)))
    assert verdict == Verdict()
    longer = DurationThreshold(theta=1.2).find(steps(**{f"r{rank}": (2.0, 0.1, 0.1) for rank in range(5)}))
    assert (longer.fault, longer.ranks) == ("S2", (5,))


def test_timestamps_find_a_late_rank_while_clocks_agree():
    found = Timestamps().find(seen_of(LATE))
    assert (found.fault, found.ranks) == ("S1", (13,))
    assert Timestamps().find(seen_of(LATE, clocks_s=1.0)).ranks != (13,)


def test_receive_waits_find_late_ranks_and_slow_links_but_not_both():
    assert ReceiveWaits().find(seen_of(LATE, clocks_s=1.0)).ranks == (13,)
    slow = Planted(fault="S2", ranks=(9,), slow=9, link=True, kind=JOB.group_ops, factor=6.0)
    verdict = ReceiveWaits().find(seen_of(slow, clocks_s=1.0))
    assert (verdict.fault, verdict.ranks, verdict.link) == ("S2", (9,), (9, 13))
    both = replace(slow, fault="S3", ranks=(9, 13), late=(13,), extra_s=0.2)
    assert ReceiveWaits().find(seen_of(both)).fault == "S2"


def test_healthy_windows_leave_durations_and_waits_silent():
    for seed in range(12):
        planted = drawn_fault(JOB, "", np.random.default_rng(seed))
        assert ReceiveWaits().find(seen_of(planted, 1.0, seed)) == Verdict()
        assert DurationThreshold().find(seen_of(planted, 1.0, seed)) == Verdict()


def test_chance_is_the_same_for_the_same_window_and_follows_hangs():
    seen = seen_of(LATE)
    shifted = seen.shifted(np.arange(JOB.ranks) * 10**9)
    assert RandomRank().find(seen) == RandomRank().find(shifted) != RandomRank(seed=1).find(seen)
    assert RandomRank().find(stuck()).fault.startswith("H") and RandomRank().find(seen).fault.startswith("S")


def test_an_empty_window_says_nothing():
    for rival in ALL:
        assert rival.find(window([], ranks=4)) == Verdict()


@pytest.mark.parametrize("kind", [DurationThreshold, Timestamps, ReceiveWaits, RandomRank])
def test_settings_out_of_range_are_refused(kind):
    with pytest.raises(BadValueError):
        kind(hang_s=float("inf"))
