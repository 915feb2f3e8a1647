"""Optimisers are those of torch, whatever is cut, as long as no block is."""

import numpy as np
import pytest

from wavetank.training.layouts.interface import Tensor
from wavetank.training.layouts.optimizers import Adam8, AdamW, Muon, Part, Sgd, orthogonal, roots

TENSOR = Tensor("a", (10, 6), 12)


def states(optimizer, size, tensor=TENSOR):
    lengths = {"element": size, "block": -(-size // tensor.block), "matrix": tensor.size}
    return {kind: np.zeros(lengths[grain], dtype) for kind, (dtype, grain) in optimizer.kinds(tensor).items()}


def run(optimizer, cuts, gradients):
    """Update parts of a tensor apart, and return all weights."""
    weights = np.linspace(-1, 1, TENSOR.size)
    for start, end in zip([0, *cuts], [*cuts, TENSOR.size], strict=True):
        state = states(optimizer, end - start)
        for step, gradient in enumerate(gradients, 1):
            optimizer.update(Part(0, TENSOR, start, weights[start:end], gradient[start:end], state), step)
    return weights


@pytest.fixture
def gradients():
    draws = np.random.default_rng(0)
    return [draws.normal(size=TENSOR.size) * 10.0 ** draws.integers(-6, 3, TENSOR.size) for _ in range(20)]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_sgd_and_adamw_are_those_of_torch(name, gradients):
    torch = pytest.importorskip("torch", reason="needs the library torch")
    weight = torch.nn.Parameter(torch.linspace(-1, 1, TENSOR.size, dtype=torch.float64))
    if name == "sgd":
        ours, theirs = Sgd(), torch.optim.SGD([weight], lr=0.05, momentum=0.9)
    else:
        ours, theirs = AdamW(), torch.optim.AdamW([weight], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient.copy())
        theirs.step()
    assert np.abs(run(ours, [], gradients) - weight.detach().numpy()).max() < 1e-12


@pytest.mark.parametrize("optimizer", [Sgd(), AdamW(), Adam8()], ids=lambda each: type(each).__name__)
def test_parts_of_whole_blocks_are_updated_bit_for_bit_as_the_whole(optimizer, gradients):
    whole = run(optimizer, [], gradients)
    for cuts in ([12], [24, 48], [0, 12, 12, 36]):
        assert np.array_equal(run(optimizer, cuts, gradients), whole)


def test_a_cut_block_would_change_8_bit_adam(gradients):
    assert not np.array_equal(run(Adam8(), [6], gradients), run(Adam8(), [], gradients))


def test_8_bit_states_are_near_those_of_adam_and_never_make_a_longer_step():
    weights, state, other = np.zeros(60), states(Adam8(), 60), states(AdamW(), 60)
    draws = np.random.default_rng(1)
    plain = np.zeros(60)
    for step in range(1, 30):
        gradient = draws.normal(size=60)
        Adam8().update(Part(0, TENSOR, 0, weights, gradient, state), step)
        AdamW().update(Part(0, TENSOR, 0, plain, gradient, other), step)
    assert state["first"].dtype == np.int8
    assert state["root"].dtype == np.uint8
    second = (state["root"] * np.repeat(state["root scale"], 12)) ** 2
    assert (second >= other["second"] * (1 - 1e-9)).all()
    assert np.abs(weights - plain).max() < 0.05


def test_gradients_of_nothing_change_nothing_but_decay():
    weights = np.ones(60)
    Adam8().update(Part(0, TENSOR, 0, weights, np.zeros(60), states(Adam8(), 60)), 1)
    assert np.allclose(weights, 1 - 0.01 * 0.01)
    Adam8().update(Part(0, TENSOR, 0, np.zeros(0), np.zeros(0), states(Adam8(), 0)), 1)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
def test_newton_schulz_brings_singular_values_near_to_one_and_keeps_the_vectors(shape):
    matrix = np.random.default_rng(2).normal(size=shape)
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    found = orthogonal(matrix, 8)
    values = np.diag(left.T @ found @ right.T)
    assert np.all((values > 0.6) & (values < 1.3))
    assert np.abs(left @ np.diag(values) @ right - found).max() < 1e-8


def test_muon_takes_matrices_alone_and_leaves_the_rest_to_adamw():
    muon, bias = Muon(), Tensor("b", (6,))
    assert muon.whole(TENSOR)
    assert not muon.whole(bias)
    assert set(muon.kinds(bias)) == {"first", "second"}
    state = states(muon, 60)
    gradient = np.random.default_rng(3).normal(size=60)
    found = muon.direction(gradient, state, TENSOR)
    assert np.array_equal(state["matrix momentum"], gradient)
    wanted = 0.02 * np.sqrt(10 / 6) * orthogonal((1.95 * gradient).reshape(10, 6), 5)
    assert np.abs(found - wanted.reshape(-1)).max() < 1e-15
    weights = np.ones(6)
    muon.update(Part(0, bias, 0, weights, np.ones(6), states(AdamW(), 6, bias)), 1)
    assert np.all(weights < 1)


def test_roots_go_to_the_rank_with_least_to_do():
    matrices = [Tensor(str(i), (side, side)) for i, side in enumerate((2, 8, 4, 4, 8))]
    assert roots(matrices, 2) == [0, 0, 0, 1, 1]
    assert roots([], 3) == []
