"""What torch has: gloo's sums, and matrices of low rank, which are exact where gradients are of low rank."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.interface import Task

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.training.compression.live import sum_on_ranks
from wavetank.training.compression.peers import GlooSum, PowerSgd, _matrices


def test_gloo_sums_the_same_numbers():
    given = [np.random.default_rng(i).normal(size=3000).astype(np.float32) for i in range(2)]
    (sums, sent, _), _ = sum_on_ranks(GlooSum(), given, Task(size=2, shape=(30, 100), bound=0.01))
    assert np.allclose(sums, np.sum(given, axis=0), rtol=1e-6, atol=1e-6)
    assert sent == [given[0].nbytes]


def test_the_hook_sends_few_numbers_and_is_right_where_all_gradients_are_of_its_rank():
    draws = np.random.default_rng(0)
    left, right = draws.normal(size=(200, 2)), draws.normal(size=(2, 100))
    given = [((i + 1) * left @ right).astype(np.float32).reshape(-1) for i in range(2)]
    task = Task(size=2, shape=(200, 100), bound=0.01)
    (sums, sent, _), (other, _, _) = sum_on_ranks(PowerSgd(matrix_rank=2), given, task, repeats=2)
    assert np.array_equal(sums, other)
    assert np.allclose(sums, np.sum(given, axis=0), rtol=1e-3, atol=1e-3)
    assert sent == [4 * 2 * (200 + 100)]
    # Of full rank it is not.
    noise = [np.random.default_rng(i).normal(size=20_000).astype(np.float32) for i in range(2)]
    (sums, _, _), _ = sum_on_ranks(PowerSgd(matrix_rank=2), noise, task)
    assert np.linalg.norm(sums - np.sum(noise, axis=0)) > 0.5 * np.linalg.norm(np.sum(noise, axis=0))


def test_numbers_become_matrices_and_a_rest():
    numbers = np.arange(2 * 512 * 512 + 5, dtype=np.float32)
    found = _matrices(numbers, Task(size=2, shape=(numbers.size,), bound=1.0))
    assert [each.shape for each in found] == [(512, 512), (512, 512), (5,)]
    assert np.array_equal(np.concatenate([each.reshape(-1) for each in found]), numbers)
    grid = _matrices(numbers[:60], Task(size=2, shape=(3, 4, 5), bound=1.0))
    assert [each.shape for each in grid] == [(12, 5)]
    with pytest.raises(BadValueError):
        PowerSgd(matrix_rank=0)
