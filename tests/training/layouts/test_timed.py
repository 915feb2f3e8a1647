"""Ragged shards and FSDP2 compute the same gradients while they are timed."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.errors import WavetankError
from wavetank.live.ranks import run_ranks
from wavetank.training.layouts.timed import layer_tensors, time_steps

SMALL = {"contender": "ragged", "layers": 2, "width": 16, "experts": [3, 2], "block_rows": 4, "rounds": 2, "seed": 1}


def test_both_take_turns_and_agree():
    for odd, even in run_ranks(time_steps, 2, arguments=SMALL):
        plain = {"ragged", "fsdp2", "fsdp2 sum", "fsdp2 sum ahead"}
        assert set(even["seconds"]) == plain
        forms = {f"fsdp2 {form} sum{ahead}" for form in ("columns", "flat") for ahead in ("", " ahead")}
        assert set(odd["seconds"]) == plain | forms
        for found in (odd, even):
            assert all(len(each) == 2 and min(each) > 0 for each in found["seconds"].values())
            assert found["difference"] < 1e-12
    assert [each.shape for each in layer_tensors(16, 3, 4)] == [(16, 16), (16,), (3, 16, 16)]
    assert layer_tensors(16, 3, 4)[2].block == 64


def in_rank(rank):
    """Return the difference of gradients, as it is and after a gradient of ours was changed."""
    import torch

    from wavetank.training.layouts import timed
    from wavetank.training.layouts.optimizers import Sgd
    from wavetank.training.layouts.trainer import ShardedTrainer, Stage

    rank.default_group()
    tensors = layer_tensors(8, 3, 2)
    initial = [[torch.ones(each.shape, dtype=torch.float64) / 100 for each in tensors] for _ in range(2)]
    stages = [Stage(tensors, timed._layer), Stage(tensors, timed._last)]
    own = torch.full((1, 8), rank.number + 1.0, dtype=torch.float64)
    ours = ShardedTrainer(stages, Sgd(), lambda _: own, initial, rank=rank.number, ranks=2, group=rank.group)
    model = timed._fsdp2(initial, 2)
    timed._fsdp2_step(model, own)
    timed._ragged_step(ours, rank.number)
    before = timed._difference(ours, model, rank)
    others = []
    for form in ("rows", "columns", "flat"):
        other = timed._fsdp2(initial, 2, form=form, mean=False, ahead=True)
        timed._fsdp2_step(other, own, 0.5)
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        wholes = [(a.grad.full_tensor().reshape(-1), b.grad.full_tensor().reshape(-1)) for a, b in pairs]
        others.append(max(float((a - b).abs().max()) for a, b in wholes))
    ours.buckets[0].summed[3] += 0.5
    return [before, timed._difference(ours, model, rank), float(ours.buckets[0].summed.abs().max()), max(others)]


def test_a_gradient_that_differs_is_seen_and_settings_of_fsdp2_compute_the_same():
    for before, after, largest, others in run_ranks(in_rank, 2):
        assert before < 1e-12 < largest
        assert after == pytest.approx(0.5)
        assert others < 1e-12


def test_another_contender_is_refused():
    with pytest.raises(WavetankError, match="no such contender"):
        run_ranks(time_steps, 1, arguments=SMALL | {"contender": "zero"})
