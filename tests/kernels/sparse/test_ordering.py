"""The estimate of misses, and the order of columns that it chooses."""

import numpy as np
import pytest

from wavetank.kernels.sparse.ordering import choose_order, hottest_first, misses
from wavetank.workloads import matrices


def test_neighbouring_columns_share_a_line_and_scattered_ones_do_not():
    near, far = misses(np.arange(80_000), None, 8)
    assert near == far == pytest.approx(1 / 8, rel=0.01)
    assert misses(np.arange(80_000) * 8, None, 8) == (1, 1)
    assert misses(np.arange(80_000) % 64, None, 8) == (0, 0)


def test_the_hottest_column_comes_first_unused_ones_are_left_out_and_ranks_undo_the_order():
    columns = np.array([3, 3, 3, 1, 1, 0])
    order, ranks = hottest_first(columns, 5)
    assert order.tolist() == [3, 1, 0]
    assert ranks[order].tolist() == [0, 1, 2]


def test_columns_of_a_shuffled_graph_are_reordered_and_of_a_band_are_not():
    graph = matrices.rmat(18, edge_factor=8)
    chosen = choose_order(graph.indices, 1 << 18, 8)
    assert chosen.columns is not None
    assert chosen.gather
    band = matrices.banded(1 << 17, half_width=3)
    assert choose_order(band.indices, 1 << 17, 8) == (False, None, None)


def test_uniform_columns_are_gathered_as_they_are():
    matrix = matrices.uniform_random(1 << 17, per_row=8)
    assert choose_order(matrix.indices, 1 << 17, 8) == (True, None, None)


def test_an_order_can_be_asked_for():
    columns = np.array([1, 1, 0])
    assert choose_order(columns, 2, 8, "hottest-first").columns.tolist() == [1, 0]
    assert choose_order(columns, 2, 8, "given").columns is None
    assert choose_order(columns[:0], 2, 8, "hottest-first") == (False, None, None)
