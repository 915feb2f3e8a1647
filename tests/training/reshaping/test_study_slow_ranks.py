"""The study: equal steps for all, planted changes, and who is misled by them."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.reshaping.step_watch import Alarm, StepWatch
from wavetank.training.reshaping.study_slow_ranks import SlowRanks
from wavetank.training.reshaping.watches import RawTime

# Needs no data set.
SMALL = {
    "stages": 3, "replicas": 2, "layers": 9, "share": 4, "lengths": "lognormal", "steps": 400, "faults": 1,
    "fault_steps": 30, "quiet_steps": 40, "rehearsal_steps": 120,
}  # fmt: skip
STUDY = SlowRanks(**SMALL)


def figures(system, study=STUDY, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


def test_step_watch_finds_all_and_is_never_misled():
    found = figures(StepWatch())
    assert found["false_alarms",] == 0 and found["missed_share",] == 0
    assert found["named_share",] == 1.0 and found["delay_steps",] <= 8
    assert found["step_mape",] < 0.05
    assert [found["missed_at", loss] for loss in (0.1, 0.25, 0.5)] == [0, 0, 0]


def test_the_same_threshold_on_raw_times_is_misled_by_lengths():
    found = figures(RawTime(threshold=0.05))
    assert found["false_alarms",] > 100
    assert found["threshold",] == 0.05 and "step_mape" not in {key[0] for key in found}


def test_equal_seeds_give_equal_figures():
    assert figures(RawTime()) == figures(RawTime()) != figures(RawTime(), seed=1)


def test_a_threshold_is_the_one_that_costs_least_in_rehearsals():
    def lost(threshold):
        runs = (
            (STUDY.healthy(RawTime(), threshold, 0, "rehearsal", 120), 400 / 120),
            (STUDY.faulty(RawTime(), threshold, 0, "rehearsal", 1), 1),
        )
        return sum(run.lost_s * weight for run, weight in runs)

    assert STUDY.chosen(RawTime(), 0) == min(RawTime().thresholds, key=lost)
    assert STUDY.chosen(StepWatch(), 0) == 0.0


class Never:
    thresholds = ()

    def start(self, threshold, send_s):
        return self

    def step(self, seen):
        return None

    def reset(self):
        raise AssertionError("nothing was found")


def test_what_is_not_found_costs_its_slowness_for_as_long_as_it_lasts():
    class Quiet(Never):
        def reset(self):
            pass

    short = SlowRanks(**{**SMALL, "lasting_steps": 30}).faulty(Quiet(), 0.0, 0, "run", 1)
    long = SlowRanks(**{**SMALL, "lasting_steps": 300}).faulty(Quiet(), 0.0, 0, "run", 1)
    assert long.lost_s == pytest.approx(10 * short.lost_s)
    assert short.lost_s > 0 and short.false_alarms == 0
    assert all(each == [-1] for each in short.delays.values())


def test_every_alarm_of_a_healthy_run_costs_a_validation():
    class Always(Never):
        def step(self, seen):
            return Alarm(0, 0, 1.0)

        def reset(self):
            pass

    run = STUDY.healthy(Always(), 0.0, 0, "run", 400)
    assert (run.false_alarms, run.steps, run.lost_s) == (400, 400, pytest.approx(1200.0))
    assert STUDY.healthy(Never(), 0.0, 0, "run", 400).lost_s == 0.0
    found = STUDY.faulty(Always(), 0.0, 0, "run", 1)
    assert sorted(found.delays) == [0.1, 0.25, 0.5] and all(each == [1] for each in found.delays.values())


def test_lengths_drift_change_and_layers_move():
    steps = [seen for seen, _ in STUDY.healthy_steps(0, "run", 400)]
    means = np.array([seen.squares.mean() for seen in steps]).reshape(4, 100)
    mixed, drifting, short, _ = means
    assert drifting[:50].mean() < drifting[50:].mean()
    assert short.mean() < 0.7 * mixed.mean()
    assert {s.layers for s in steps[:300]} == {(3, 3, 3)} and {s.layers for s in steps[300:]} == {(2, 3, 4)}


def test_the_square_of_pieces_sums_up_within_each_micro_batch():
    equal = SlowRanks(**{**SMALL, "lengths": "equal", "tokens": 1000, "longest": 400})
    seen, _ = equal.healthy_steps(0, "run", 400)[250]
    # Short documents of 50 tokens fill 1000 exactly: 20 of them.
    assert set(seen.squares.ravel()) == {20 * 2500.0}


def test_a_slow_group_slows_the_same_steps():
    for loss, (replica, stage), quiet, slow in STUDY.fault_runs(0, "run", 1):
        assert (len(quiet), len(slow)) == (40, 30)
        assert all(seen.step_s == whole_s for seen, whole_s in quiet)
        assert all(seen.step_s >= whole_s * (1 - 1e-12) for seen, whole_s in slow)
        ratio = np.mean([s.busy_s[replica, stage] / np.delete(s.busy_s[replica], stage).mean() for s, _ in slow])
        assert ratio == pytest.approx(1 / (1 - loss), rel=0.05)


def test_notes_data_and_layers_that_cannot_move():
    assert STUDY.data() == {}
    assert "lognormal" in STUDY.notes()[0]
    with pytest.raises(BadValueError, match="move"):
        SlowRanks(stages=8, layers=12).check()
