"""CCL-D's decisions, one by one, and on simulated jobs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.insight.collectives.windows import S, row, window

from wavetank.errors import BadValueError
from wavetank.insight.collectives.ccl_d import CclD, by_operation, lower_quantiles, medians, of_operations, transfers
from wavetank.insight.collectives.interface import FAULTS, Verdict, Window
from wavetank.insight.collectives.job_model import Job, Planted, drawn_fault, simulated

JOB = Job(group=4, replicas=6, stages=2)


def stuck(**changes):
    """Return four ranks inside an operation; changes by rank."""
    return window([row(rank, ended=None, **changes.get(f"r{rank}", {})) for rank in range(4)])


def test_who_has_not_entered_is_named():
    rows = [row(0, ended=None), row(1, ended=None), row(3, ended=None), row(2, entered=None, ended=None)]
    assert CclD().find(window(rows)) == Verdict(fault="H1", ranks=(2,), comm=0, seq=0)


@pytest.mark.parametrize("change", [{"size": 512}, {"op": 1}, {"dtype": 2}, {"root": 0}])
def test_the_minority_that_calls_something_else_is_named(change):
    verdict = CclD().find(stuck(r1=change))
    assert (verdict.fault, verdict.ranks, verdict.sure) == ("H2", (1,), True)


def test_two_halves_that_contradict_each_other_leave_it_open():
    verdict = CclD().find(stuck(r1={"size": 512}, r2={"size": 512}))
    assert (verdict.fault, verdict.ranks, verdict.sure) == ("H2", (0, 1, 2, 3), False)


def test_the_rank_that_looks_no_more_stands_still():
    looks = {f"r{rank}": {"polled": 999.9} for rank in (0, 1, 3)}
    verdict = CclD().find(stuck(**looks, r2={"polled": 1.5}))
    assert (verdict.fault, verdict.ranks, verdict.link) == ("H3", (2,), ())


def test_a_chunk_that_was_posted_and_has_not_arrived_marks_the_link():
    counts = {f"r{rank}": {"polled": 999.9, "posted": 3, "received": 3} for rank in (0, 2, 3)}
    verdict = CclD().find(stuck(**counts, r1={"polled": 999.9, "posted": 4, "received": 3}))
    assert (verdict.fault, verdict.ranks, verdict.link) == ("H3", (1,), (1, 2))


def test_a_rank_whose_frame_is_lost_is_on_no_stuck_link():
    # Rank 2 has left operation 5 behind, and its frame of it is gone; row -1 is none of its.
    counts = {"posted": 3, "received": 3, "polled": 999.9}
    rows = [row(rank, seq=5, ended=None, **counts) for rank in (0, 1)]
    rows += [row(3, seq=5, ended=None, posted=9, received=0, polled=999.9), row(2, seq=6, ended=None, **counts)]
    verdict = CclD().find(window(rows))
    # What rank 3 posted has not all arrived at rank 0.
    assert (verdict.fault, verdict.link) == ("H3", (3, 0))


def test_without_looks_a_rank_between_two_stuck_links_is_named():
    # Rank 1 has posted a chunk that rank 2 lacks, and rank 2 one that rank 3 lacks.
    verdict = CclD(polls=False).find(
        stuck(r0={"posted": 3, "received": 3}, r1={"posted": 4, "received": 3}, r2={"posted": 4, "received": 3},
              r3={"posted": 3, "received": 3})
    )  # fmt: skip
    assert (verdict.fault, verdict.ranks, verdict.link) == ("H3", (2,), ())


def test_an_order_of_operations_that_differs_is_a_mismatch_of_the_minority():
    members = ((0, 1, 2, 3), (0, 1, 2, 3))
    rows = [*(row(rank, comm=0, ended=None) for rank in (0, 1, 3)), row(2, comm=1, ended=None)]
    verdict = CclD().find(window(rows, members))
    assert (verdict.fault, verdict.ranks, verdict.sure) == ("H2", (2,), True)


def test_the_culprit_of_two_blocked_communicators_is_named_and_not_its_victims():
    # Ranks 0 to 3 wait for rank 4 in a ring of theirs; all others wait for them in the whole job.
    members = ((0, 1, 2, 3, 4), tuple(range(9)))
    rows = [*(row(rank, ended=None) for rank in range(4)), *(row(rank, comm=1, ended=None) for rank in range(5, 9))]
    assert CclD().find(window(rows, members)) == Verdict(fault="H1", ranks=(4,), comm=0, seq=0)


def test_a_pause_below_the_limit_is_no_hang():
    assert CclD().find(window([row(rank, ended=None) for rank in range(3)], now=241.0)) == Verdict()


def steps(**of):
    """Return eight operations of six ranks; of each rank how late it enters and how long its transfers take, in s."""
    rows = []
    for rank in range(6):
        late, out, into = of.get(f"r{rank}", (0.0, 0.1, 0.1))
        for seq in range(8):
            rows.append(row(rank, seq, entered=10.0 * seq + 1 + late, ended=10.0 * seq + 9, send_ns=int(out * S),
                            recv_ns=int(into * S)))  # fmt: skip
    return window(rows, members=(tuple(range(6)),), now=100.0)


def test_slowness_is_told_by_entry_and_by_transfer():
    find = CclD().find
    assert find(steps()) == Verdict()
    assert find(steps(r3=(2.0, 0.1, 0.1))) == Verdict(fault="S1", ranks=(3,), comm=0)
    assert find(steps(r3=(0.0, 0.5, 0.1), r4=(0.0, 0.1, 0.5))) == Verdict(fault="S2", ranks=(3,), link=(3, 4), comm=0)
    rank = steps(r2=(0.0, 0.5, 0.1), r3=(0.0, 0.5, 0.5), r4=(0.0, 0.1, 0.5))
    assert find(rank) == Verdict(fault="S2", ranks=(3,), comm=0)
    both = find(steps(r1=(2.0, 0.1, 0.1), r3=(0.0, 0.5, 0.1)))
    assert (both.fault, both.ranks) == ("S3", (1, 3))


def test_the_threshold_is_a_ratio():
    seen = steps(r3=(0.0, 0.25, 0.1))
    assert CclD(theta=2.6).find(seen) == Verdict() and CclD(theta=2.4).find(seen).fault == "S2"


def test_few_operations_say_nothing_of_slowness():
    seen = steps(r3=(2.0, 0.5, 0.1))
    few = window([row(0)], members=(tuple(range(6)),))
    few = type(few)(seen.frames.chosen(seen.frames.seq < 4), few.members, few.now_ns)
    assert CclD().find(few) == Verdict() and CclD(least_ops=4).find(few).fault == "S3"


def test_who_waited_elsewhere_is_late_and_no_cause():
    # Rank 3 of the large ring waits in a pair for rank 6 before each operation of the ring.
    rows = []
    for seq in range(8):
        at = 20.0 * seq
        for rank in range(6):
            begin = at + (6.0 if rank == 3 else 1.0)
            rows.append(row(rank, seq, comm=0, entered=begin, ended=at + 9))
        rows.append(row(3, seq, comm=1, entered=at + 10, ended=at + 25.9))
        rows.append(row(6, seq, comm=1, entered=at + 25.8, ended=at + 25.9))
    found = CclD().find(window(rows, members=(tuple(range(6)), (3, 6))))
    assert 3 not in found.ranks


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_of_each_class_are_named_whatever_the_clocks(fault):
    for seed in range(6):
        draws = np.random.default_rng([FAULTS.index(fault), seed])
        planted = drawn_fault(JOB, fault, draws)
        seen = simulated(JOB, planted, draws, iterations=3 if fault.startswith("H") else 8)
        verdict = CclD().find(seen)
        assert (verdict.fault, verdict.ranks) == (fault, planted.ranks)
        if fault in ("H3", "S2") and planted.link:
            assert verdict.link[:1] == planted.ranks
        for shift in (1, 10**6, 10**15):
            offsets = draws.integers(-shift, shift, JOB.ranks)
            assert CclD().find(seen.shifted(offsets)) == verdict


def test_healthy_windows_raise_no_alarm():
    for seed in range(40):
        draws = np.random.default_rng(seed)
        planted = drawn_fault(JOB, "", draws)
        seen = simulated(JOB, planted, draws, iterations=int(draws.integers(1, 9)))
        assert CclD().find(seen) == Verdict(), planted


def test_weak_slowness_is_below_the_threshold_and_seen_by_a_lower_one():
    draws = np.random.default_rng(3)
    planted = Planted(fault="S2", ranks=(9,), slow=9, link=True, kind=JOB.group_ops, factor=2.0)
    seen = simulated(JOB, planted, draws, iterations=8)
    assert CclD().find(seen) == Verdict() and CclD(theta=1.6).find(seen).ranks == (9,)


def test_medians_leave_out_what_is_not_known():
    values = np.array([3.0, 1.0, 2.0, np.nan, 8.0, 4.0])
    group = np.array([0, 0, 0, 0, 2, 2])
    found = medians(group, values, 4)
    assert found[0] == 2 and found[2] == 6 and np.isnan(found[[1, 3]]).all()
    assert medians(group, values, 3, "lower")[2] == 4 and medians(group, values, 3, "upper")[2] == 8
    assert by_operation(group, values)[[0, 4]].tolist() == [2, 6] and by_operation(group[:0], values[:0]).size == 0


def test_lower_quantiles_are_reached_by_all_but_a_share():
    values = np.array([5.0, 1.0, 4.0, 3.0, 2.0, np.nan, 7.0])
    group = np.array([0, 0, 0, 0, 0, 0, 1])
    assert lower_quantiles(group, values, 2, 0.2).tolist() == [1, 7]
    assert lower_quantiles(group, values, 2, 0.5).tolist() == [3, 7]
    assert np.isnan(lower_quantiles(group, values, 3, 0)[2])


def test_rings_of_three_in_which_lengths_alone_make_somebody_late_are_healthy():
    job = Job(replicas=3)
    for seed in range(30):
        draws = np.random.default_rng(seed)
        seen = simulated(job, Planted(), draws, iterations=int(draws.integers(1, 9)))
        assert CclD().find(seen) == Verdict()


def test_transfers_of_small_messages_or_of_few_operations_say_nothing():
    slot, moved = np.array([0] * 5 + [1] * 5 + [2] * 4), np.array([100] * 5 + [99] * 5 + [100] * 4)
    took = np.array([400, 100, 300, 200, 500] * 2 + [100] * 4)
    found = transfers(slot, moved, took, 3, 100, 5)
    assert found[0] == 1 and np.isnan(found[1:]).all()


def test_operations_have_numbers_of_their_own():
    rows = window([row(0, 7), row(0, 9), row(1, 7), row(1, 7, comm=1)], members=((0, 1), (0, 1))).frames
    numbers = of_operations(rows)
    assert numbers[0] == numbers[2] and len(set(numbers.tolist())) == 3
    far = of_operations(window([row(0, 0), row(1, 2**60), row(1, 0)], ((0, 1),)).frames)
    assert far[0] != far[1] and far.max() < 3
    assert of_operations(rows.chosen(np.zeros(4, bool))).size == 0


def test_settings_out_of_range_are_refused():
    for wrong in ({"theta": 1.0}, {"hang_s": 0.0}, {"least_ops": 0}, {"theta": float("nan")}):
        with pytest.raises(BadValueError):
            CclD(**wrong)


def test_a_window_without_frames_is_healthy():
    assert CclD().find(window([], ranks=4)) == Verdict()


def test_a_link_that_is_seen_slow_where_it_arrives_alone_is_its_sender_s():
    """The receiver was named, and the sender's usual times were shown as evidence."""
    job = Job(group=8, replicas=8, stages=2)
    planted = Planted(fault="S2", ranks=(13,), slow=13, link=True, kind=job.group_ops, factor=8.0)
    window = simulated(job, planted, np.random.default_rng(3), iterations=8)
    assert CclD().find(window).ranks == (13,)
    frames = window.frames
    sends = np.where(frames.rank == 13, frames.send_ns // 8, frames.send_ns)
    found = CclD().find(Window(frames._replace(send_ns=sends), window.members, window.now_ns, window.trees))
    ring = next(each for each in window.members[16:32] if 13 in each).tolist()
    assert (found.fault, found.ranks, found.link) == ("S2", (13,), (13, ring[ring.index(13) + 1]))
