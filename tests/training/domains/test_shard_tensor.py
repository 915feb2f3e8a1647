"""A step of an ordinary network on parts is the step of one process."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains.ways import outcome

from wavetank.training.domains.shard_tensor import DomainParallel


@pytest.mark.parametrize("sizes", [(4, 12), (12, 0, 4)])
def test_loss_output_and_gradients_are_those_of_one_process_and_nothing_is_gathered(sizes):
    worst, parts = outcome(DomainParallel(), sizes)
    assert worst < 1e-12
    assert [each["fallbacks"] for each in parts] == [0] * len(sizes)
    assert all(each["halo_bytes"] > 0 for each in parts if each["out"].size)
