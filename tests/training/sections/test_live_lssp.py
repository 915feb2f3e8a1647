"""Four processes that share long samples give what one gives, and short ones need no exchange."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.sections.test_lssp import GRADS, LAYER, SAMPLES, flat

from wavetank.errors import WavetankError
from wavetank.training.sections.live_lssp import encoded_on_ranks
from wavetank.training.sections.lssp import encoded


@pytest.mark.parametrize("threshold", [9.0, pytest.param(np.inf, marks=pytest.mark.slow)])
def test_four_processes_give_outputs_and_gradients_of_one(threshold):
    whole = flat(encoded(SAMPLES, GRADS, LAYER, 1, np.inf))
    found = flat(encoded_on_ranks(SAMPLES, GRADS, LAYER, 4, threshold))
    assert max(float(np.abs(a - b).max()) for a, b in zip(found, whole, strict=True)) < 1e-12


def test_what_a_process_cannot_compute_is_said():
    with pytest.raises(WavetankError, match="threshold"):
        encoded_on_ranks(SAMPLES, GRADS, LAYER, 2, -1.0)
