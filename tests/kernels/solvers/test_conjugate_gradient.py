"""Conjugate gradients on two devices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from wavetank.kernels.solvers import conjugate_gradient
from wavetank.kernels.solvers.balance import Load, RuntimeSplit, StaticSplit, first_border
from wavetank.kernels.solvers.cholesky import NotPositiveDefiniteError
from wavetank.kernels.solvers.conjugate_gradient import OWNERSHIPS, exchanged_bytes
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.pair import opened
from wavetank.kernels.solvers.torch_device import TorchDevice
from wavetank.kernels.solvers.triangle import blocks_of


def with_eigenvalues(values: Any, seed: int = 0) -> np.ndarray:
    values = np.asarray(values, float)
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((values.size, values.size)))
    a = (q * values) @ q.T
    return (a + a.T) / 2


class Wandering:
    """A law that moves the border up and down, whatever the devices do."""

    share = 0.5

    def __init__(self, borders: list[int]) -> None:
        self.borders = iter(itertools.cycle(borders))

    def due(self, step: int) -> bool:
        return step % 3 == 2

    def border(self, load: Load) -> int:
        return next(self.borders)


def solved(
    a: np.ndarray, b: np.ndarray, block: int = 4, share: float = 0.5, law: Any = None, ownership: str = "triangle",
    tolerance: float = 1e-6, limit: int = 10_000, refresh: int = 50, devices: Any = None, first: int = 0,
) -> tuple[Any, Any, Any]:  # fmt: skip
    with opened(devices or (CpuWorker(), CpuWorker())) as pair:
        system = conjugate_gradient.System(pair, a, block, blocks_of(len(a), block), share, first, ownership)
        found = conjugate_gradient.solve(system, b, law or StaticSplit(share=share), tolerance, limit, refresh)
    return found, system, pair


@pytest.mark.parametrize("size", [1, 7, 48, 61])
@pytest.mark.parametrize("block", [1, 4, 64])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_the_residual_is_small_for_every_split(size: int, block: int, share: float, ownership: str) -> None:
    a, b = with_eigenvalues(np.linspace(1, 50, size)), np.random.default_rng(1).standard_normal(size)
    found, _, _ = solved(a, b, block, share, ownership=ownership)
    assert found.converged
    assert np.linalg.norm(a @ found.x - b) <= 1e-6 * np.linalg.norm(b)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("borders", [[9, 3], [2, 12, 7], [15, 15, 1], [100, -5]])
def test_the_residual_is_small_while_the_border_moves(ownership: str, borders: list[int]) -> None:
    a, b = with_eigenvalues(np.geomspace(1, 500, 61)), np.ones(61)
    found, system, pair = solved(a, b, law=Wandering(borders), ownership=ownership)
    assert len(system.trace.borders) > 3
    assert pair.link.moved_bytes["rows"] > 0
    assert np.linalg.norm(a @ found.x - b) <= 1e-6 * np.linalg.norm(b)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_torch_device_solves_alike(ownership: str) -> None:
    pytest.importorskip("torch")
    a, b = with_eigenvalues(np.linspace(1, 90, 50)), np.ones(50)
    devices = (CpuWorker(threads=2), TorchDevice(device="cpu"))
    found, _, _ = solved(a, b, law=Wandering([9, 3, 5]), ownership=ownership, devices=devices)
    assert np.linalg.norm(a @ found.x - b) <= 1e-6 * np.linalg.norm(b)


def test_n_steps_are_enough_and_k_eigenvalues_take_k() -> None:
    b = np.random.default_rng(2).standard_normal(40)
    found, _, _ = solved(with_eigenvalues(np.linspace(1, 4, 40)), b)
    assert found.iterations <= 40
    for k in (1, 2, 3, 5):
        values = np.resize(np.arange(1, k + 1), 40)
        found, _, _ = solved(with_eigenvalues(values), b, tolerance=1e-9)
        assert found.iterations == k


def test_the_split_does_not_change_the_iterates_beyond_rounding() -> None:
    a, b = with_eigenvalues(np.linspace(1, 50, 61)), np.random.default_rng(1).standard_normal(61)
    for limit in (1, 5, 12):
        found = [
            solved(a, b, share=share, limit=limit, tolerance=0.0, ownership=ownership)[0].x
            for share in (0.0, 0.2, 0.5, 0.9, 1.0)
            for ownership in OWNERSHIPS
        ]
        assert max(np.abs(x - found[0]).max() for x in found) <= 1e-13 * np.abs(found[0]).max() * 100


@pytest.mark.parametrize(("ownership", "share"), list(itertools.product(OWNERSHIPS, (0.0, 0.25, 0.5, 0.75, 1.0))))
def test_an_iteration_moves_what_the_formula_says(ownership: str, share: float) -> None:
    size, block, n = 64, 4, 16
    a, b = with_eigenvalues(np.linspace(1, 50, size)), np.ones(size)
    short, _, one = solved(a, b, block, share, limit=3, tolerance=0.0, ownership=ownership)
    long, _, other = solved(a, b, block, share, limit=8, tolerance=0.0, ownership=ownership)

    def exchanged(pair: Any) -> int:
        return sum(pair.link.moved_bytes.get(purpose, 0) for purpose in ("direction", "product"))

    border = first_border(share, n)
    each = exchanged_bytes(n, block, border, ownership)
    assert (short.iterations, long.iterations) == (3, 8)
    assert exchanged(other) - exchanged(one) == 5 * each
    if 0 < border < n:
        # By whole rows, as in the source: every entry of the vector once.  By triangles: the host's twice.
        assert each == (8 * size if ownership == "rows" else 2 * 8 * border * block)
    else:
        assert each == 0


def test_the_residual_is_computed_afresh() -> None:
    a, b = with_eigenvalues(np.linspace(1, 50, 40)), np.ones(40)
    _, _, rare = solved(a, b, limit=20, tolerance=0.0, refresh=1000)
    _, _, often = solved(a, b, limit=20, tolerance=0.0, refresh=5)
    each = exchanged_bytes(10, 4, 5, "triangle") // 2
    assert rare.link.moved_bytes["direction"] == 20 * each
    assert often.link.moved_bytes["direction"] == 24 * each


def test_zero_is_solved_at_once() -> None:
    found, _, _ = solved(np.eye(9), np.zeros(9))
    assert (found.iterations, found.converged) == (0, True)
    assert not found.x.any()


def test_a_limit_ends_the_iteration_unconverged() -> None:
    found, _, _ = solved(with_eigenvalues(np.geomspace(1, 1e6, 60)), np.ones(60), limit=4)
    assert (found.iterations, found.converged) == (4, False)


def test_a_direction_of_negative_curvature_is_told() -> None:
    a = np.diag([1.0, 2.0, -5.0, 1.0])
    with pytest.raises(NotPositiveDefiniteError, match="positive definite") as caught:
        solved(a, np.ones(4), block=2)
    assert "iteration" in str(caught.value.given)


def test_an_accelerator_with_little_memory_gets_the_rows_that_fit() -> None:
    a, b = with_eigenvalues(np.linspace(1, 50, 40)), np.ones(40)
    found, system, pair = solved(a, b, share=1.0, first=6, law=Wandering([0, 8]))
    assert min(border for _, border in system.trace.borders) == 6
    assert pair.accelerator.data.size == (55 - 21) * 16
    assert found.converged


def test_with_a_slow_host_the_runtime_law_takes_rows_from_it() -> None:
    a, b = with_eigenvalues(np.linspace(1, 50, 600)), np.ones(600)
    devices = (CpuWorker(repeats=40), CpuWorker())
    _, system, _ = solved(a, b, block=20, share=0.1, law=RuntimeSplit(share=0.1), devices=devices)
    assert system.trace.borders[0][1] == 27
    assert system.trace.borders[-1][1] < 20


def test_a_product_reads_the_lower_triangle() -> None:
    assert conjugate_gradient.product_bytes(3) == 48
