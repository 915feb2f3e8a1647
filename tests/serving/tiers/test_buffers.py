"""Real arrays: slices without copies, and pages that are packed and written elsewhere byte for byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.tiers.buffers import block, packed, scatter, sends, weight_slices
from wavetank.serving.tiers.sharding import moved_share

PAGES, LAYERS, PAGE, HEADS, WIDTH = 12, 3, 4, 8, 16


def test_every_degree_gives_the_dense_result_before_and_after_a_switch_from_views_of_one_buffer():
    draws = np.random.default_rng(0)
    first, second = (draws.normal(size=shape).astype(np.float32) for shape in ((64, 256), (256, 64)))
    inputs = draws.normal(size=(10, 64)).astype(np.float32)
    dense = np.maximum(inputs.astype(np.float64) @ first, 0) @ second.astype(np.float64)
    results = []
    for degree in (1, 2, 4, 8, 4, 1):
        slices = weight_slices(first, second, degree)
        assert all(np.shares_memory(a, first) and np.shares_memory(b, second) for a, b in slices)
        assert sum(a.nbytes + b.nbytes for a, b in slices) == first.nbytes + second.nbytes
        results.append(block(inputs, slices))
        assert np.abs(results[-1] - dense).max() <= 1e-5 * np.abs(dense).max()
    assert np.array_equal(results[0], results[-1]) and np.array_equal(results[2], results[4])


def test_matrices_that_do_not_divide_are_refused():
    with pytest.raises(BadValueError):
        weight_slices(np.ones((4, 6)), np.ones((6, 4)), 4)
    with pytest.raises(BadValueError):
        weight_slices(np.ones((4, 6)), np.ones((5, 4)), 2)


@given(before=st.sampled_from([1, 2, 4, 8]), after=st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None)
def test_what_all_ranks_send_is_what_the_formula_says(before, after):
    moved = sum(each.end - each.first for rank in range(max(before, after)) for each in sends(8, before, after, rank))
    assert moved / 8 == moved_share(before, after)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (16, 8), (0, 1), (6, 4)])
def test_degrees_that_do_not_nest_are_refused(before, after):
    with pytest.raises(BadValueError, match="nest"):
        sends(8, before, after, 0)


@given(tokens=st.integers(1, 30), first=st.integers(0, 3), heads=st.integers(1, 4), seed=st.integers(0, 99))
@settings(deadline=None)
def test_packing_and_scattering_give_back_every_byte_and_touch_no_other(tokens, first, heads, seed):
    draws = np.random.default_rng(seed)
    n = -(-tokens // PAGE)
    here, there = (draws.permutation(PAGES)[:n] for _ in range(2))
    pages = draws.integers(0, 1 << 16, (PAGES, LAYERS, 2, PAGE, HEADS, WIDTH)).astype(np.uint16)
    buffer = packed(pages, here, tokens, first, first + heads)
    assert buffer.flags.c_contiguous and buffer.nbytes == LAYERS * 2 * tokens * heads * WIDTH * 2
    target = np.zeros_like(pages)
    scatter(buffer, target, there, 2)
    assert np.array_equal(packed(target, there, tokens, 2, 2 + heads), buffer)
    assert np.count_nonzero(target) == np.count_nonzero(buffer)
