"""Simulated jobs: what is planted shows where it must, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.collectives.interface import FAULTS, NEVER
from wavetank.insight.collectives.job_model import Job, Planted, drawn_fault, layout, simulated

QUIET = Job(group=4, replicas=6, stages=2, lengths=0.0, noise=0.0, congested=0.0)


def draws(seed=0):
    return np.random.default_rng(seed)


def test_every_rank_is_in_a_group_a_ring_and_the_whole():
    at = layout(QUIET)
    assert QUIET.ranks == 48 and len(at.members) == 12 + 8 + 1
    assert np.bincount(np.concatenate(at.members), minlength=48).tolist() == [3] * 48
    assert at.groups[1].tolist() == [4, 5, 6, 7] and at.rings[1].tolist() == [1, 5, 9, 13, 17, 21]
    assert at.replica[4] == 1 and at.replica[24] == 0


def test_a_healthy_job_ends_all_it_begins_and_takes_what_its_links_take():
    seen = simulated(QUIET, Planted(), draws(), iterations=2, clocks_s=0.0)
    seen.check()
    frames = seen.frames
    assert frames.done.all() and frames.rank.size == 48 * 8
    ring = (frames.comm >= 12) & (frames.comm < 20)
    assert (frames.send_ns[ring] == 10 * 60_000).all() and (frames.received[ring] == 10).all()
    took = frames.ended_ns[ring] - frames.entered_ns[ring] - frames.wait_ns[ring]
    assert np.allclose(took, 600_000, atol=2)


@pytest.mark.parametrize("kind", range(4))
def test_who_does_not_come_blocks_its_communicators(kind):
    planted = Planted(fault="H1", ranks=(13,), kind=kind)
    seen = simulated(QUIET, planted, draws(), iterations=2, hang_s=300.0)
    last = seen.frames.chosen((seen.frames.rank == 13) & seen.frames.entered)
    assert last.done.all() and last.rank.size == 4 + kind
    open_ranks = set(seen.frames.rank[seen.frames.entered & ~seen.frames.done].tolist())
    assert 13 not in open_ranks and open_ranks
    still = seen.now_ns[seen.frames.rank] - np.maximum(seen.frames.moved_ns, seen.frames.entered_ns)
    assert still[seen.frames.entered].min() >= 300 * 10**9 - 1


@pytest.mark.parametrize("changed", ["size", "op", "dtype", "root"])
def test_what_is_called_differs_in_one_way_at_the_culprit_alone(changed):
    seen = simulated(QUIET, Planted(fault="H2", ranks=(13,), kind=0, changed=changed), draws(), iterations=2)
    op = seen.frames.chosen((seen.frames.comm == 3) & (seen.frames.seq == 2))
    for name in ("size", "op", "dtype", "root"):
        column = getattr(op, name)
        other = op.rank[column != np.median(column)].tolist()
        assert other == ([13] if name == changed else [])
    assert not op.done.any()


def test_a_rank_that_stands_still_looks_no_more_and_one_at_a_broken_link_does():
    for link in (False, True):
        planted = Planted(fault="H3", ranks=(13,), kind=2, link=link)
        seen = simulated(QUIET, planted, draws(1), iterations=2)
        rows = (seen.frames.rank == 13) & ~seen.frames.done
        late = seen.now_ns[13] - seen.frames.polled_ns[rows]
        assert rows.sum() == 1 and bool((late > 10**9).all()) is not link


def test_slow_transfers_show_at_one_link_or_at_both_sides_of_a_rank():
    for link, out, into in ((True, {13}, {17}), (False, {9, 13}, {13, 17})):
        planted = Planted(fault="S2", ranks=(13,), slow=13, link=link, kind=2, factor=4.0)
        frames = simulated(QUIET, planted, draws(), iterations=1).frames
        ring = frames.chosen(frames.comm == 12 + 1)
        assert set(ring.rank[ring.send_ns > 1_000_000].tolist()) == out
        assert set(ring.rank[ring.recv_ns > 1_000_000].tolist()) == into


def test_a_late_rank_is_in_its_operations_for_the_shortest_time():
    planted = Planted(fault="S1", ranks=(13,), late=(13,), extra_s=0.05)
    frames = simulated(QUIET, planted, draws(), iterations=2).frames
    group = frames.chosen((frames.comm == 3) & (frames.seq == 3))
    took = group.ended_ns - group.entered_ns
    assert group.rank[np.argmin(took)] == 13 and np.sort(took)[1] - took.min() > 40_000_000


def test_a_checkpoint_holds_up_the_others_and_ends():
    paused = Planted(pause_s=100.0, paused=(0,))
    frames = simulated(QUIET, paused, draws(), iterations=2).frames
    took = frames.ended_ns - frames.entered_ns
    assert frames.done.all() and took.max() > 99 * 10**9
    within = simulated(QUIET, replace(paused, pausing=True), draws(), iterations=2)
    open_rows = within.frames.entered & ~within.frames.done
    still = within.now_ns[within.frames.rank] - within.frames.moved_ns
    assert open_rows.any() and still[open_rows].min() < 100 * 10**9


def test_equal_draws_give_equal_windows_and_other_clocks_other_times():
    planted = drawn_fault(QUIET, "S3", draws())
    one, two = (simulated(QUIET, planted, draws(5)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one.frames, two.frames, strict=True))
    assert np.ptp(one.now_ns) > 10**9
    assert (one.frames.entered_ns != NEVER).all()


def test_drawn_faults_are_of_their_class_and_cover_what_there_is():
    for fault in FAULTS:
        drawn = [drawn_fault(QUIET, fault, draws(seed)) for seed in range(60)]
        assert {each.fault for each in drawn} == {fault} and all(each.ranks for each in drawn)
        assert {len(each.ranks) for each in drawn} >= ({1, 4} if fault == "H1" else {1, 2} if fault == "S3" else {1})
        if fault in ("H3", "S2"):
            assert {each.link for each in drawn} == {False, True}
        if fault == "S2":
            assert all(3.3 <= each.factor <= 10 for each in drawn)
    healthy = [drawn_fault(QUIET, "", draws(seed)) for seed in range(60)]
    assert {bool(each.pause_s) for each in healthy} == {False, True} and max(each.pause_s for each in healthy) <= 240


def test_jobs_and_classes_that_are_none_are_refused():
    with pytest.raises(BadValueError):
        Job(replicas=1)
    with pytest.raises(BadValueError):
        drawn_fault(QUIET, "H9", draws())
