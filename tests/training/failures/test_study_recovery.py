"""Real processes, one of which is killed: all ways of going on end where they say they do."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.training.failures.interface import FROM_CHECKPOINT
from wavetank.training.failures.peers import Torchft
from wavetank.training.failures.recover import InStepRecovery
from wavetank.training.failures.rivals import CheckpointRestart, DropAndContinue

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.training.failures.study_recovery import TrainerRecovery
from wavetank.training.failures.tiny_model import BUCKETS, tiny_trainer

STUDY = TrainerRecovery(steps=5, strike=3, checkpoint_every=2, microbatches=4)


def figures(found: Any) -> dict[str, float]:
    return {metric: value for metric, value, _ in found.rows}


def test_every_bucket_may_be_struck() -> None:
    # The losses are summed in one of their own.
    assert len(tiny_trainer()._buckets) + 1 == BUCKETS


def test_recovery_in_the_step_does_nothing_twice_and_ends_as_if_nothing_had_happened() -> None:
    found = figures(STUDY.measure(InStepRecovery(), 0))
    assert found["difference"] < 1e-10
    assert found["steps_again"] == 0
    assert found["standstill_s"] > 0
    assert found["step_s"] > 0


def test_a_restart_does_steps_again_and_ends_as_if_nothing_had_happened() -> None:
    found = figures(STUDY.measure(CheckpointRestart(), 0))
    assert found["difference"] < 1e-10
    # Struck in the fourth step, with a checkpoint after the second.
    assert found["steps_again"] == 1
    assert found["standstill_s"] > 0


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="needs the library torchft")
def test_torchft_waits_for_its_heartbeat_and_leaves_the_step_out() -> None:
    found = figures(replace(STUDY, steps=6).measure(Torchft(heartbeat_s=1.0), 0))
    assert found["standstill_s"] > 0.5
    assert found["difference"] > 1e-6


def test_what_real_processes_cannot_do_is_refused() -> None:
    with pytest.raises(BadValueError, match="in the step or restart") as caught:
        STUDY.measure(DropAndContinue(), 0)
    assert FROM_CHECKPOINT in str(caught.value)
    with pytest.raises(BadValueError, match="after the end"):
        replace(STUDY, strike=5).check()
