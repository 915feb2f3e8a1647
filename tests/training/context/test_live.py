"""Four processes that exchange blocks compute dense attention, forward and backward."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.context.test_attend import LENGTHS, arrays, assert_equal, dense

from wavetank.errors import BadValueError, WavetankError
from wavetank.training.context.fcp import distribute
from wavetank.training.context.live import attend_on_ranks


def test_four_processes_compute_dense_attention():
    q, k, v, grad = arrays(LENGTHS)
    assert distribute(np.array(LENGTHS), 4, block=4).edges[0].size > 20
    found = attend_on_ranks(q, k, v, np.array(LENGTHS), 4, block=4, out_grad=grad)
    assert_equal(found, dense(q, k, v, grad, LENGTHS))


def test_short_sequences_need_no_message_and_no_gradient():
    q, k, v, grad = arrays([5, 6, 7])
    found = attend_on_ranks(q, k, v, np.array([5, 6, 7]), 2, block=8)
    assert np.abs(found.out - dense(q, k, v, grad, [5, 6, 7])[0]).max() < 1e-12
    assert found.key_grad is None


def test_what_processes_cannot_compute_is_refused_before_and_within_them():
    q, k, v, _ = arrays([5, 6])
    with pytest.raises(BadValueError, match="other tokens"):
        attend_on_ranks(q, k, v, np.array([5, 7]), 2, block=8)
    with pytest.raises(WavetankError, match="go together"):
        attend_on_ranks(q, k[:, :, :2], v[:, :, :2], np.array([5, 6]), 2, block=8)
