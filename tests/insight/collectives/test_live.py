"""Real processes, real faults: each class is located from outside, and nothing is left behind."""

from __future__ import annotations

import os

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.collectives.ccl_d import CclD
from wavetank.insight.collectives.live import Strike, members_of, points_of, running, time_turns, watched, window_of
from wavetank.live.ranks import Ranks

FINDER = CclD(hang_s=1.0)


def test_a_rank_that_is_stopped_before_an_operation_is_named_whatever_the_clocks():
    found = watched(FINDER, Strike(fault="H1", rank=1))
    assert (found.verdict.fault, found.verdict.ranks, found.verdict.seq) == ("H1", (1,), 4)
    assert 1.0 <= found.delay_s < 10.0 and np.ptp(found.window.now_ns) == 9_000_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "strike",
    [
        Strike(fault="H2", rank=2, how="size"),
        Strike(fault="H2", rank=0, how="op"),
        Strike(fault="H3", rank=3),
        Strike(fault="S1", rank=2),
        Strike(fault="S2", rank=1),
        Strike(fault="S2", rank=1, how="throttle"),
        Strike(fault="S3", rank=0),
    ],
)
def test_the_other_classes_are_located(strike):
    found = watched(FINDER, strike)
    assert (found.verdict.fault, found.verdict.ranks) == (strike.fault, (strike.rank,))


@pytest.mark.slow
def test_no_process_is_left_and_a_stopped_rank_can_be_read():
    strike = Strike(fault="H3", rank=3)
    arguments = {"iterations": 6, "elements": 1 << 16, "compute_s": 0.01, "seed": 0, "offset_ns": 0}
    with running(strike, size=4, arguments=arguments) as (ranks, folder):
        pids = [ranks.pid(rank) for rank in range(4)]
        for _ in ranks.events(2.5):
            pass
        seen = window_of(folder, 4, 0)
    assert (seen.frames.rank == 3).any()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_pairs_the_ring_and_the_tree_are_communicators():
    assert members_of(4) == ([0, 1], [2, 3], [0, 1, 2, 3], [0, 1, 2, 3])


def test_hangs_are_planned_with_the_process_harness():
    (stop,) = points_of(Strike(fault="H3", rank=2, iteration=5))
    assert (stop.rank, stop.kind, stop.point, stop.at) == (2, "stop", "step", {"iteration": 5, "step": 2})
    assert points_of(Strike(fault="H1"))[0].point == "calling" and points_of(Strike(fault="S1")) == []


def test_strikes_and_sizes_that_are_none_are_refused():
    with pytest.raises(BadValueError):
        Strike(fault="H7")
    with pytest.raises(BadValueError), running(Strike(), size=3, arguments={}):
        pass


@pytest.mark.slow
def test_turns_with_and_without_probes_are_timed(tmp_path):
    with Ranks(time_turns, 2, arguments={"folder": str(tmp_path), "sizes": [1 << 20], "rounds": [4]}) as ranks:
        rows = ranks.values(60.0)
    assert np.shape(rows) == (2, 1, 4, 2) and np.array(rows).min() > 0
