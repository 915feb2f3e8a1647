"""Sharded training is training in one process: every optimiser, any number of ranks, checkpoints; it never hangs."""

import time

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

import torch

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.live.ranks import Fault, Ranks, run_ranks
from wavetank.training.layouts.checkpoints import MANIFEST
from wavetank.training.layouts.network import OPTIMIZERS, batch, initial, stages, train, trainer
from wavetank.training.layouts.optimizers import Sgd
from wavetank.training.layouts.trainer import ShardedTrainer


def plain(steps, make):
    """Train with torch alone: no buckets, no shards, one graph of the whole network."""
    weights = [torch.nn.Parameter(each) for stage in initial(0) for each in stage]
    optimizer, losses = make(weights), []
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for number in range(4 * step, 4 * step + 4):
            inner, rest = None, list(weights)
            for stage in stages():
                inner = stage.forward(rest[: len(stage.tensors)], inner, batch(number))
                rest = rest[len(stage.tensors) :]
            (inner / 4).backward()
            total += float(inner.detach()) / 4
        losses.append(total)
        optimizer.step()
    return losses, [each.detach().numpy() for each in weights]


def difference(one, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9)),
        ("adamw", lambda weights: torch.optim.AdamW(weights, lr=0.01, betas=(0.9, 0.99), weight_decay=0.01)),
    ],
)
def test_three_steps_of_two_processes_are_those_of_plain_torch(name, make):
    losses, weights = plain(3, make)
    for found in run_ranks(train, 2, arguments={"optimizer": name, "steps": 3, "microbatches": 4}):
        assert np.abs(np.array(found[0]) - losses).max() < 1e-10
        assert difference(found[1], weights) < 1e-10


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each != "muon")) for each in sorted(OPTIMIZERS)]
)
def test_four_processes_train_bit_for_bit_as_one(name):
    alone = train(None, name, 3, 4)
    assert alone[0][0] != alone[0][-1]
    for found in run_ranks(train, 4, arguments={"optimizer": name, "steps": 3, "microbatches": 4}):
        assert np.abs(np.array(found[0]) - alone[0]).max() < 1e-10
        if name == "adam8":
            assert all(np.array_equal(a, b) for a, b in zip(found[1], alone[1], strict=True))
        else:
            assert difference(found[1], alone[1]) < 1e-10


def test_several_microbatches_of_a_rank_are_added_in_their_order_too():
    alone = train(None, "adam8", 2, 12)
    for found in run_ranks(train, 3, arguments={"optimizer": "adam8", "steps": 2, "microbatches": 12}):
        assert all(np.array_equal(a, b) for a, b in zip(found[1], alone[1], strict=True))


def test_a_checkpoint_is_what_counts_after_a_step_that_failed(tmp_path):
    work, other = trainer("sgd"), trainer("sgd")
    work.step([0])
    work.save(tmp_path / "kept")
    other._batch = lambda number: (batch(number)[0], batch(number)[1][:3])
    with pytest.raises(ValueError, match="batch_size"):
        other.step([0])
    other._batch = batch
    other.load(tmp_path / "kept")
    assert other.step([1]) == work.step([1])
    assert difference(other.full_weights(), work.full_weights()) == 0


@pytest.mark.parametrize("name", ["adam8", pytest.param("muon", marks=pytest.mark.slow)])
def test_a_checkpoint_of_four_ranks_is_read_by_two_three_and_one(name, tmp_path):
    first, kept = {"optimizer": name, "steps": 2, "microbatches": 12}, str(tmp_path / "kept")
    run_ranks(train, 4, arguments=first | {"save": kept})
    whole = train(None, name, 4, 12)
    for ranks in (2, 3):
        for found in run_ranks(train, ranks, arguments=first | {"load": kept}):
            assert difference(found[1], whole[1]) < 1e-10
            assert np.abs(np.array(found[0]) - whole[0][2:]).max() < 1e-10
    assert difference(train(None, name, 2, 12, load=kept)[1], whole[1]) < 1e-10


def test_collectives_that_add_in_their_own_order_are_near():
    alone = train(None, "adamw", 2, 6)
    arguments = {"optimizer": "adamw", "steps": 2, "microbatches": 6, "ordered": False}
    assert difference(run_ranks(train, 3, arguments=arguments)[2][1], alone[1]) < 1e-10


def test_every_rank_names_a_gradient_that_is_no_number_and_none_changes_anything():
    with Ranks(train, 2, arguments={"optimizer": "sgd", "steps": 3, "microbatches": 2, "poison": 1}) as ranks:
        outcomes = ranks.wait(60)
    for outcome in outcomes:
        assert outcome.ended == "raised"
        assert "not finite" in outcome.value
        assert "step 2" in outcome.value
    work = trainer("adamw")
    work.step([0])
    before = [each.weights.copy() for each in work.parts]
    work._batch = lambda number: (batch(number)[0], batch(number)[1])
    work.parts[-1].weights[0] = np.inf
    before[-1][0] = np.inf
    with pytest.raises(WavetankError, match="is not finite"):
        work.step([1])
    assert all(np.array_equal(a, b.weights) for a, b in zip(before, work.parts, strict=True))
    assert work.steps_done == 1


@pytest.mark.parametrize("point", ["joining", "step"])
def test_a_rank_that_dies_ends_the_others_in_time(point):
    at = {"epoch": 0} if point == "joining" else {"step": 1}
    fault = Fault(rank=1, point=point, at=at)
    arguments = {"optimizer": "muon", "steps": 3, "microbatches": 3}
    began = time.monotonic()
    with Ranks(train, 3, arguments=arguments, faults=[fault], timeout_s=5.0, start_timeout_s=20.0) as ranks:
        outcomes = ranks.wait(60)
    assert time.monotonic() - began < 55
    assert outcomes[1].ended == "died"
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ended == "raised"
        assert "GroupBrokenError" in outcome.value


@pytest.mark.slow
def test_a_rank_that_never_comes_is_not_waited_for_long():
    fault = Fault(rank=0, point="joining", at={"epoch": 0}, kind="stop")
    with Ranks(train, 2, arguments={"optimizer": "sgd", "steps": 1, "microbatches": 2}, faults=[fault],
               timeout_s=3.0, start_timeout_s=12.0) as ranks:  # fmt: skip
        first = next(event for event in ranks.events(60) if event.kind == "raised")
    assert first.rank == 1
    assert first.at_s < 50
    assert "GroupBrokenError" in first.value


def test_a_death_while_saving_leaves_no_checkpoint(tmp_path):
    target = tmp_path / "kept"
    work = trainer("adam8")
    work.step([0])
    work.save(target)
    with pytest.raises(BadFileError, match="already"):
        work.save(target)
    (target / MANIFEST).unlink()
    with pytest.raises(BadFileError, match="cannot be read"):
        trainer("adam8").load(target)
    work.save(target)
    other = trainer("adam8", seed=1)
    other.load(target)
    assert other.steps_done == 1
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(other.parts, work.parts, strict=True))
    assert all(
        np.array_equal(a.state[kind], b.state[kind])
        for a, b in zip(other.parts, work.parts, strict=True)
        for kind in a.state
    )
    with pytest.raises(BadFileError, match="another optimiser"):
        trainer("sgd").load(target)


def test_microbatches_that_ranks_do_not_divide_are_refused():
    work = ShardedTrainer(stages(), Sgd(), batch, initial(0))
    with pytest.raises(BadValueError, match="as many microbatches"):
        work.step([])
    work.ranks = 2
    with pytest.raises(BadValueError, match="as many microbatches"):
        work.step([1])


def test_memory_of_weights_is_given_away_between_steps():
    work = trainer("sgd")
    work.step([0, 1])
    assert all(bucket.full.untyped_storage().nbytes() == 0 for bucket in work.buckets)
    assert all(bucket.gradients.untyped_storage().nbytes() == 0 for bucket in work.buckets)
