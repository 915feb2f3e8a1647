"""The small model: what it learns, and that its data depend on the microbatch alone."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the library torch")

from wavetank.training.failures.tiny_model import parameters_of, tiny_trainer, trained_alone  # noqa: E402


def test_the_loss_falls_towards_that_of_the_rule() -> None:
    trainer = tiny_trainer()
    losses = [trainer.step(range(4 * step, 4 * step + 4)).loss for step in range(40)]
    # Without a clue about the next of 17 words the loss is their logarithm.
    assert losses[0] == pytest.approx(np.log(17), abs=0.5)
    assert losses[-1] < 0.5 * losses[0]


def test_a_microbatch_is_the_same_whatever_was_computed_before() -> None:
    one, other = tiny_trainer(), tiny_trainer(quota="majors")
    torch.manual_seed(99)
    assert one.step([5, 7]).loss == pytest.approx(other.step([7, 5]).loss, abs=1e-14)
    assert np.abs(parameters_of(one) - parameters_of(other)).max() < 1e-12


def test_steps_alone_are_those_of_the_trainer() -> None:
    trainer = tiny_trainer()
    start = parameters_of(trainer)
    for step in range(2):
        trainer.step(range(3 * step, 3 * step + 3))
    assert np.array_equal(trained_alone(2, 3), parameters_of(trainer))
    assert np.abs(trained_alone(2, 3) - start).max() > 1e-3
