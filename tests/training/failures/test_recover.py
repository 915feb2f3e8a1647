"""Recovery in the step: its plan, its answers, and what each part of it is worth."""

from __future__ import annotations

import pytest
from tests.training.failures.jobs import Bench, job

from wavetank.training.failures.failure_times import StepFailures
from wavetank.training.failures.interface import COMPUTE_ALL, COMPUTE_LOST, Loss
from wavetank.training.failures.recover import InStepRecovery
from wavetank.training.failures.simulate import simulate

LOSS = Loss(replicas=3, spares=0, steps_since_checkpoint=7)


def test_buckets_are_copied_only_if_they_are_put_back() -> None:
    plain = InStepRecovery().plan(Bench())
    assert (plain.snapshots, plain.keeps_batch, plain.rejoins, plain.spares) == (True, True, False, 0)
    assert not InStepRecovery(rollback=False).plan(Bench()).snapshots
    assert InStepRecovery(rejoins=True).plan(Bench()).rejoins
    assert InStepRecovery(checkpoint_every=9).plan(Bench()).checkpoint_every == 9


def test_without_copies_everything_is_computed_again() -> None:
    assert InStepRecovery().answer(LOSS) == COMPUTE_LOST
    assert InStepRecovery(rollback=False).answer(LOSS) == COMPUTE_ALL


def test_copies_save_what_survivors_had_computed() -> None:
    import numpy as np

    failures = StepFailures(1, np.array([0.5]))
    both = (InStepRecovery(), InStepRecovery(rollback=False))
    runs = [simulate(job(), failures, each, each.plan(Bench())) for each in both]
    # Each of three survivors had two microbatches.
    assert runs[1].time_s - runs[0].time_s == pytest.approx(2.0)
    assert runs[1].computed - runs[0].computed == 6
