"""The updates and solves by the register tile."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.kernels.solvers import cholesky, tiles
from wavetank.kernels.solvers.balance import StaticSplit, first_border
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.pair import opened
from wavetank.kernels.solvers.triangle import column_starts, triangle_blocks


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_memory_begins_with_a_cache_line() -> None:
    for entries in (1, 7, 1000):
        memory = tiles.aligned(entries)
        assert memory.size == entries
        assert memory.ctypes.data % 64 == 0


def test_blocks_of_whole_panels_fit_where_vectors_are_wide() -> None:
    assert not tiles.fits(7)
    assert tiles.fits(128) == tiles.ahead_of_blas()


@pytest.mark.parametrize("block", [16, 48, 128])
@pytest.mark.parametrize("blocks", [2, 5])
@pytest.mark.parametrize("repeats", [1, 3])
def test_an_update_subtracts_the_products_of_a_column(
    rng: np.random.Generator, block: int, blocks: int, repeats: int
) -> None:
    size, starts = block * block, column_starts(blocks)
    data = tiles.aligned(triangle_blocks(blocks) * size + tiles.overhang(block))
    data[:] = rng.standard_normal(data.size)
    before, room = data.copy(), tiles.scratch(block)
    waste = tiles.aligned(blocks * size)
    first, low, high = 1, min(2, blocks - 1), blocks

    def place(memory: np.ndarray, row: int, column: int) -> np.ndarray:
        at = (starts[column] + row) * size
        return memory[at : at + size].reshape(block, block)

    tiles.update(
        data.ctypes.data, starts, block, 0, first, high, low, high, repeats, waste.ctypes.data, room.ctypes.data
    )
    for column in range(blocks):
        for row in range(column, blocks):
            found, expected = place(data, row, column), place(before, row, column).copy()
            if column >= first and low <= row < high:
                expected -= place(before, row, 0) @ place(before, column, 0).T
            if row == column:
                found, expected = np.tril(found), np.tril(expected)
            assert np.allclose(found, expected, rtol=1e-12, atol=1e-12 * block)


@pytest.mark.parametrize("block", [16, 48, 128])
@pytest.mark.parametrize("rows", [1, 13, 14, 15, 200])
def test_a_solve_leaves_what_times_the_triangle_was_there(rng: np.random.Generator, block: int, rows: int) -> None:
    lower = rng.standard_normal((block, block)) / block + 2 * np.eye(block)
    memory = tiles.aligned(rows * block + tiles.overhang(block))
    memory[:] = rng.standard_normal(memory.size)
    after = memory[rows * block :].copy()
    c = memory[: rows * block].reshape(rows, block)
    expected = c.copy()
    tiles.solve_right(c, lower, tiles.scratch(block))
    assert np.allclose(c @ np.tril(lower).T, expected, rtol=1e-11, atol=1e-12)
    assert np.array_equal(memory[rows * block :], after)


@pytest.mark.skipif(not tiles.fits(32), reason="the tile is not used on this processor")
def test_the_factor_is_the_same_to_the_bit_however_rows_are_shared_out() -> None:
    g = np.random.default_rng(2).standard_normal((200, 200))
    a = g @ g.T + np.eye(200)
    a = (a + a.T) / 2
    factors = []
    for share, threads in ((1.0, 1), (0.7, 1), (0.3, 1), (0.5, 2)):
        with opened((CpuWorker(threads=threads), CpuWorker(threads=threads))) as pair:
            cholesky.factor(pair, a, 200, 32, 7, StaticSplit(share=share), first_border(share, 7))
            columns = [np.tril(pair.accelerator.column(k, k, 7)) for k in range(7)]
            factors.append(np.concatenate([column.ravel() for column in columns]))
    for other in factors[1:]:
        assert np.array_equal(factors[0], other)
