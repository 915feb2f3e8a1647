"""Parameters are views of the buffer that is gathered; memory is given away in between."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

import torch

from wavetank.errors import WavetankError
from wavetank.live.rank_process import GroupBrokenError
from wavetank.live.ranks import run_ranks
from wavetank.training.layouts.buffer import Bucket, finished
from wavetank.training.layouts.interface import Tensor
from wavetank.training.layouts.vescale import plan_layout

TENSORS = (Tensor("a", (4, 3), 3), Tensor("b", (5,), 2))


def whole():
    return [torch.arange(12.0, dtype=torch.float64).view(4, 3), torch.arange(5.0, dtype=torch.float64) + 100]


def test_parameters_alias_the_buffer_and_its_memory_comes_and_goes():
    bucket = Bucket(plan_layout(TENSORS, 1), 0, None)
    bucket.fill(whole())
    assert bucket.full.untyped_storage().nbytes() == 0
    for _ in range(2):
        parameters = bucket.gather()
        base = bucket.full.data_ptr()
        for parameter, offset in zip(parameters, bucket.layout.offsets, strict=True):
            assert parameter.data_ptr() == base + 8 * offset
        assert all(torch.equal(one, other) for one, other in zip(parameters, whole(), strict=True))
        bucket.release()
        assert bucket.full.untyped_storage().nbytes() == 0
    assert bucket.gather()[0] is parameters[0]


def test_gradients_of_microbatches_are_added():
    bucket = Bucket(plan_layout(TENSORS, 1), 0, None)
    for _ in range(3):
        bucket.add_gradients(whole())
    assert torch.equal(bucket.part(bucket.summed, 1), 3 * whole()[1])


def in_ranks(rank, ordered):
    """Gather in a rank, and sum gradients that differ by rank; return what is wrong."""
    bucket = Bucket(plan_layout(TENSORS, rank.size), rank.number, rank.group, ordered=ordered)
    bucket.fill(whole())
    parameters = bucket.gather()
    wrong = [] if all(torch.equal(a, b) for a, b in zip(parameters, whole(), strict=True)) else ["gathered"]
    base = bucket.full.data_ptr()
    if any(p.data_ptr() != base + 8 * o for p, o in zip(parameters, bucket.layout.offsets, strict=True)):
        wrong.append("copied")
    bucket.release()
    bucket.add_gradients([each * (rank.number + 1) for each in whole()])
    factor = sum(range(1, rank.size + 1))
    for tensor, each in enumerate(whole()):
        start, end = bucket.layout.held(tensor, rank.number)
        if not torch.equal(bucket.part(bucket.summed, tensor), factor * each.reshape(-1)[start:end]):
            wrong.append(f"sum of {tensor}")
    return wrong


@pytest.mark.parametrize("ordered", [True, False])
def test_three_processes_gather_in_place_and_scatter_sums(ordered):
    assert run_ranks(in_ranks, 3, arguments={"ordered": ordered}) == [[], [], []]


def test_a_broken_group_is_said_in_one_line():
    def wait():
        raise RuntimeError("Connection closed by peer\nmany lines")

    with pytest.raises(GroupBrokenError, match="gone or late") as caught:
        finished(wait)
    assert isinstance(caught.value, WavetankError)
    assert "many lines" not in str(caught.value)
