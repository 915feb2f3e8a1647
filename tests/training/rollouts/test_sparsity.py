"""The small transformer: how many bf16 weights a step changes."""

import numpy as np
import pytest

from wavetank.errors import BadValueError

pytest.importorskip("torch")

from wavetank.training.rollouts.sparsity import trained


def test_a_larger_learning_rate_changes_more_and_a_small_one_nearly_nothing():
    shares = []
    for rate in (1e-7, 1e-5, 1e-3):
        before, after = trained(rate, 2, 1, 0)
        assert before.dtype == after.dtype == np.uint16
        assert before.size == after.size > 100_000
        shares.append(float((before != after).mean()))
    assert shares[0] < 0.02 < shares[1] < 0.5 < shares[2]


def test_equal_seeds_train_alike():
    assert all((one == other).all() for one, other in zip(trained(1e-4, 1, 1, 3), trained.__wrapped__(1e-4, 1, 1, 3),
                                                          strict=True))  # fmt: skip


def test_more_updates_of_a_step_change_more():
    before, after = trained(1e-6, 1, 1, 0)
    several = trained(1e-6, 1, 4, 0)
    assert (before == several[0]).all()
    assert (before != after).sum() < (several[0] != several[1]).sum()


@pytest.mark.parametrize("given", [(0.0, 1, 1), (float("nan"), 1, 1), (float("inf"), 1, 1), (1e-3, 0, 1), (1e-3, 1, 0)])
def test_what_is_no_training_is_refused(given):
    with pytest.raises(BadValueError):
        trained(*given, 0)
