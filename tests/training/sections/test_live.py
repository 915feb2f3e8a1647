"""Three processes, one for each section, give the gradient of the samples in turn."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.errors import BadValueError
from wavetank.training.sections.live import step_on_ranks
from wavetank.training.sections.tiny_sections import gradients, largest_difference, samples


@pytest.mark.parametrize("ahead", [1, 3])
def test_processes_that_take_samples_in_another_order_give_the_same_gradient(ahead):
    order = np.random.default_rng(ahead).permutation(14)
    found = step_on_ranks(5, 14, 0.6, order, ahead=ahead)
    wanted = gradients(samples(5, 14, 0.6), np.arange(14), 1)
    assert largest_difference(found.gradients, wanted) < 1e-12
    assert found.loss > 0
    assert found.student_s > 0


def test_texts_alone_leave_the_encoder_without_a_gradient():
    found = step_on_ranks(1, 3, 0.0, np.array([2, 0, 1]))
    assert np.abs(found.gradients[0]).max() == 0 < np.abs(found.gradients[2]).max()


def test_what_cannot_be_ordered_is_refused_before_processes_start():
    for order, ahead in ((np.arange(3), 1), (np.arange(4), 0)):
        with pytest.raises(BadValueError, match="comes once"):
            step_on_ranks(0, 4, 0.5, order, ahead=ahead)
