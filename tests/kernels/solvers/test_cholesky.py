"""The factorisation on two devices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from wavetank.kernels.solvers import cholesky
from wavetank.kernels.solvers.balance import Load, RuntimeSplit, StaticSplit, first_border
from wavetank.kernels.solvers.cholesky import NotPositiveDefiniteError, Seen
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.pair import opened
from wavetank.kernels.solvers.torch_device import TorchDevice
from wavetank.kernels.solvers.triangle import blocks_of


def positive(size: int, seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).standard_normal((size, size))
    return a @ a.T + np.eye(size)


class Wandering:
    """A law that moves the border up and down, whatever the devices do."""

    share = 0.5

    def __init__(self, borders: list[int]) -> None:
        self.borders = iter(itertools.cycle(borders))

    def due(self, step: int) -> bool:
        return step > 0

    def border(self, load: Load) -> int:
        return next(self.borders)


def factored(a: np.ndarray, block: int, law: Any, share: float, devices: Any = None) -> tuple[Any, Any, Any]:
    """Return the factor that the solving device holds, the trace and the link."""
    size = len(a)
    n = blocks_of(size, block)
    with opened(devices or (CpuWorker(), CpuWorker())) as pair:
        trace = cholesky.factor(pair, a, size, block, n, law, first_border(share, n))
        solver = pair.host if trace.borders[0][1] == n else pair.accelerator
        lower = np.zeros((n * block, n * block))
        for j in range(n):
            lower[j * block :, j * block : (j + 1) * block] = np.asarray(solver.column(j, j, n))
    return np.tril(lower)[:size, :size], trace, pair.link


@pytest.mark.parametrize("size", [1, 7, 48, 61])
@pytest.mark.parametrize("block", [1, 4, 16, 64])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.5, 0.8, 1.0])
def test_the_factor_times_its_transpose_is_the_matrix(size: int, block: int, share: float) -> None:
    a = positive(size)
    lower, _, _ = factored(a, block, StaticSplit(share=share), share)
    assert np.abs(lower @ lower.T - a).max() <= 1e-12 * np.abs(a).max()
    assert np.allclose(lower, np.linalg.cholesky(a), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("borders", [[9, 3], [12, 7, 10], [14, 14, 4], [100, -5]])
def test_the_factor_stays_right_while_the_border_moves(borders: list[int]) -> None:
    a = positive(61)
    lower, trace, link = factored(a, 4, Wandering(borders), 0.5)
    assert len(trace.borders) > 2
    assert link.moved_bytes["rows"] > 0
    assert np.abs(lower @ lower.T - a).max() <= 1e-12 * np.abs(a).max()


def test_a_torch_device_factors_alike() -> None:
    pytest.importorskip("torch")
    a = positive(50)
    devices = (CpuWorker(repeats=2), TorchDevice(device="cpu"))
    lower, _, _ = factored(a, 8, Wandering([4, 2, 5]), 0.6, devices)
    assert np.abs(lower @ lower.T - a).max() <= 1e-12 * np.abs(a).max()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_the_columns_that_cross_the_link_are_the_hosts(share: float) -> None:
    block, n = 4, 12
    _, trace, link = factored(positive(46), block, StaticSplit(share=share), share)
    border = first_border(share, n)
    assert trace.borders == [(0, border)]
    # Of each of the host's columns the blocks above the border, and no column where a device works alone.
    expected = sum((border - k) * block * block * 8 for k in range(border)) if border < n else 0
    assert link.moved_bytes.get("diagonal", 0) + link.moved_bytes.get("column", 0) == expected
    assert "rows" not in link.moved_bytes


def test_rows_that_change_hands_are_counted_from_the_column_on() -> None:
    class Once(Wandering):
        def due(self, step: int) -> bool:
            return step == 2

    _, trace, link = factored(positive(40), 4, Once([7]), 0.5)
    assert trace.borders == [(0, 5), (2, 7)]
    # Rows 5 and 6, columns 2 to the diagonal: 4 and 5 blocks.
    assert link.moved_bytes["rows"] == 9 * 16 * 8


def test_the_accelerator_keeps_three_rows_and_the_host_its_own() -> None:
    _, trace, _ = factored(positive(40), 4, Wandering([100]), 0.5)
    assert trace.borders[1] == (1, 7)
    assert all(border <= 10 for _, border in trace.borders)
    _, trace, _ = factored(positive(40), 4, Wandering([-1]), 0.5)
    assert trace.borders[1] == (1, 2)


def test_a_device_alone_asks_no_law() -> None:
    for share in (0.0, 1.0):
        _, trace, link = factored(positive(40), 4, Wandering([3]), share)
        assert len(trace.borders) == 1
        assert link.moved_bytes == {}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("row", [0, 9, 30, 45])
def test_the_pivot_that_is_not_positive_is_named(share: float, row: int) -> None:
    a = np.eye(46) * 4.0
    a[row, row] = -3.0
    with pytest.raises(NotPositiveDefiniteError) as caught:
        factored(a, 4, StaticSplit(share=share), share)
    assert caught.value.given == f"pivot {row} (counted from 0) is -3"
    assert caught.value.where == f"row {row} of 46"


def test_a_singular_matrix_is_not_positive_definite() -> None:
    a = np.ones((20, 20))
    with pytest.raises(NotPositiveDefiniteError, match="positive definite") as caught:
        factored(a, 8, StaticSplit(share=0.5), 0.5)
    assert caught.value.given == "pivot 1 (counted from 0) is 0"


def test_what_was_seen_before_counts_half() -> None:
    seen = Seen()
    seen.add(4, 1.0, 8, 2.0)
    seen.fade()
    seen.add(1, 1.0, 1, 1.0)
    assert (seen.host_blocks, seen.host_s, seen.accelerator_blocks, seen.accelerator_s) == (3, 1.5, 5, 2.0)


def test_with_a_slow_host_the_runtime_law_takes_rows_from_it() -> None:
    devices = (CpuWorker(repeats=120), CpuWorker())
    _, trace, _ = factored(positive(640), 32, RuntimeSplit(share=0.1, every=1, ignore_rows=0), 0.1, devices)
    assert trace.borders[0][1] == 18
    assert min(border for _, border in trace.borders[1:4]) < 14


def test_the_accelerator_has_the_next_column_before_the_host_ends_this_one() -> None:
    order: list[tuple[str, int]] = []
    n, block = 10, 4
    with opened((CpuWorker(), CpuWorker())) as pair:
        host_factors, host_updates = pair.host.factor_diagonal, pair.host.update

        def factors(k: int) -> tuple[int, float]:
            order.append(("factor", k))
            return host_factors(k)

        def updates(k: int, first: int, last: int, low: int, high: int) -> None:
            order.append(("rest" if first == k + 2 else "next", k))
            host_updates(k, first, last, low, high)

        pair.host.factor_diagonal, pair.host.update = factors, updates
        cholesky.factor(pair, positive(40), 40, block, n, StaticSplit(share=0.5), 5)
    expected = [("factor", 0)]
    for k in range(4):
        expected += [("next", k), ("factor", k + 1)] + [("rest", k)] * (k < 3)
    assert order == expected


def test_operations_are_a_third_of_the_cube_and_two_squares() -> None:
    assert cholesky.flops(30) == pytest.approx(9000 + 1800)
