"""What else is done: at its best in rehearsals, and known answers of the formulas."""

from __future__ import annotations

import math

import pytest
from tests.training.failures.jobs import STEP_S, Bench

from wavetank.platforms.checkpoints import daly_time_ratio, young_interval_s
from wavetank.training.failures.interface import FROM_CHECKPOINT, LEAVE_OUT, REPLACE, SKIP_STEP, Loss
from wavetank.training.failures.rivals import (
    CheckpointRestart,
    DropAndContinue,
    HotSpares,
    ReplicaRestart,
)

LOSS = Loss(replicas=3, spares=0, steps_since_checkpoint=7)


def test_youngs_interval_and_dalys_time_are_those_of_their_formulas() -> None:
    assert young_interval_s(8.0, 100.0) == 40.0
    assert daly_time_ratio(10.0, 0.0, 0.0, 1e9) == pytest.approx(1.0)
    assert daly_time_ratio(10.0, 2.0, 0.0, 1e9) == pytest.approx(1.2)
    assert daly_time_ratio(100.0, 0.0, 100.0, 100.0) == pytest.approx(math.e * (math.e - 1))


def test_dalys_time_is_least_near_youngs_interval() -> None:
    times = {each: daly_time_ratio(each, 8.0, 50.0, 1e4) for each in range(100, 1000, 5)}
    assert min(times, key=times.__getitem__) == pytest.approx(young_interval_s(8.0, 1e4), rel=0.03)


@pytest.mark.parametrize("best", [1, 3, 7])
def test_the_interval_is_the_one_that_is_best_in_rehearsals(best: int) -> None:
    bench = Bench(lambda recovery, plan: -abs(plan.checkpoint_every - best))
    assert CheckpointRestart().plan(bench).checkpoint_every == best
    assert all(plan.keeps_batch and not plan.snapshots for plan in bench.asked)
    # Young's own interval is among those tried: checkpoints of 1 s, a failure every 100 s.
    assert round(math.sqrt(200) / STEP_S) in {plan.checkpoint_every for plan in bench.asked}
    assert CheckpointRestart(checkpoint_every=12).plan(bench).checkpoint_every == 12


def test_without_failures_long_intervals_are_tried() -> None:
    bench = Bench(lambda recovery, plan: plan.checkpoint_every, mtbf_s=math.inf)
    assert CheckpointRestart().plan(bench).checkpoint_every >= 1e6


def test_spares_are_as_many_as_pay_in_rehearsals_and_can_be_given() -> None:
    bench = Bench(lambda recovery, plan: -abs(plan.spares - 2))
    assert HotSpares().plan(bench).spares == 2
    assert HotSpares(spares=5).plan(bench).spares == 5


def test_answers() -> None:
    assert CheckpointRestart().answer(LOSS) == HotSpares().answer(LOSS) == FROM_CHECKPOINT
    assert HotSpares().answer(LOSS._replace(spares=1)) == REPLACE
    assert DropAndContinue().answer(LOSS) == LEAVE_OUT
    assert ReplicaRestart().answer(LOSS) == SKIP_STEP


def test_a_batch_shrinks_where_nobody_computes_what_was_lost() -> None:
    assert not DropAndContinue().plan(Bench()).keeps_batch
    assert ReplicaRestart().plan(Bench()).rejoins
    assert DropAndContinue(checkpoint_every=3).plan(Bench()).checkpoint_every == 3
