"""Gradients by hand against differences, equal in every order, and passes that cannot be."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.sections.tiny_sections import (
    Encoder,
    Student,
    Teacher,
    gradients,
    largest_difference,
    samples,
)

GIVEN = samples(0, 12, 0.6)


def loss_of(encoder, student, sample):
    student.loss = 0.0
    image = encoder.forward(0, sample.patches) if len(sample.patches) else None
    student.step(sample.tokens, image, Teacher().forward(sample.tokens))
    return student.loss


def test_gradients_are_those_of_differences():
    sample = next(each for each in GIVEN if len(each.patches))
    found = gradients([sample], np.array([0]), 1)
    for place, name in enumerate(("first", "second", "inner", "outer")):
        for at in ((0, 0), (2, 5)):
            losses = []
            for change in (1e-5, -1e-5):
                encoder, student = Encoder(), Student()
                getattr(encoder if place < 2 else student, name)[at] += change
                losses.append(loss_of(encoder, student, sample))
            assert found[place][at] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-5, abs=1e-8)


def test_every_order_and_every_queue_gives_the_same_gradient():
    assert {bool(len(each.patches)) for each in GIVEN} == {True, False}
    in_turn = gradients(GIVEN, np.arange(12), 1)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(12)
        for ahead in (1, 3, 12):
            assert largest_difference(gradients(GIVEN, order, ahead), in_turn) < 1e-12
    # A sample less is another gradient.
    assert largest_difference(gradients(GIVEN[:11], np.arange(11), 1), in_turn) > 1e-3


def test_an_order_that_leaves_samples_out_and_an_encoder_behind_are_refused():
    for order, ahead in ((np.arange(11), 1), (np.arange(12), 0)):
        with pytest.raises(BadValueError, match="comes once"):
            gradients(GIVEN, order, ahead)
    with pytest.raises(BadValueError, match="forward pass"):
        Encoder().backward(0, np.zeros(12))
