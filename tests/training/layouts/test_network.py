"""The network learns its rule, and is the same for equal seeds."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

import torch

from wavetank.errors import BadValueError
from wavetank.training.layouts.network import batch, initial, stages, train, trainer


def test_the_loss_falls():
    losses, _ = train(None, "adamw", 30, 2)
    assert losses[-1] < 0.6 * losses[0]


def test_shapes_seeds_and_blocks_are_as_said():
    for stage, values in zip(stages(4), initial(0), strict=True):
        for tensor, value in zip(stage.tensors, values, strict=True):
            assert tuple(value.shape) == tensor.shape
            assert tensor.block <= tensor.size
    assert all(torch.equal(a, b) for a, b in zip(initial(3)[1], initial(3)[1], strict=True))
    assert not torch.equal(initial(3)[0][0], initial(4)[0][0])
    words, following = batch(5)
    assert np.array_equal(following.numpy(), (3 * words.numpy() + 1) % 23)
    assert stages(1)[0].tensors[0].block == 12


def test_another_optimiser_is_refused():
    with pytest.raises(BadValueError, match="no such optimiser"):
        trainer("lion")
