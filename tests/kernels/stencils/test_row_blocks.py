"""The generated inner loops: which form a pattern gets, and what a block writes."""

import numpy as np
import pytest
from numba import njit

from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.row_blocks import STEP_BYTES, blocks, call_block, form_of, move_bytes

SLANTED = Stencil.box(2, np.outer([1, 2, 3, 4, 5], [2, -1, 3, 1, 7]).ravel() / 50)


def kind_of(pattern):
    return form_of(pattern, np.float32).key.split()[0]


def test_boxes_that_are_a_column_times_a_row_are_factored():
    assert {kind_of(Stencil.box(radius)) for radius in range(1, 5)} == {"factors"}
    assert kind_of(SLANTED) == "factors"
    assert kind_of(Stencil.box(1, range(1, 10))) == "terms"
    assert kind_of(Stencil.box(1, [0] * 9)) == "terms"


def test_a_box_is_factored_only_where_its_weights_are_a_product_to_a_few_roundings():
    weights = np.outer([1, 2, 3, 4, 5], [2, -1, 3, 1, 7]) / 50
    weights[2, 3] *= 1 + 1e-13
    assert kind_of(Stencil.box(2, weights.ravel())) == "terms"


def test_small_weights_beside_large_ones_keep_a_box_from_being_factored():
    small = np.full((3, 3), 1000.0)
    small[1, 1] = 1e20
    cross = np.zeros((3, 3))
    cross[1], cross[:, 1] = 1e-16, 1e-16
    cross[1, 1] = 1
    for weights in (small, cross, np.outer([1, 1e-12, 1], [1, 1, 1]), np.full((3, 3), 1e30)):
        assert kind_of(Stencil.box(1, weights.ravel())) == "terms"
    assert kind_of(Stencil.box(1, np.outer([1, 0, 1e-6], [1, 2, 0]).ravel())) == "factors"


def test_other_patterns_are_added_term_by_term():
    assert kind_of(Stencil.identity()) == "terms"
    assert kind_of(Stencil(((0, 1), (3, 0)), (1.0, 2.0))) == "terms"


@pytest.mark.parametrize("pattern", [Stencil.star(3), Stencil.box(2), SLANTED, Stencil.box(1, range(9))])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_form_holds_the_weights_in_the_grids_type(pattern, dtype):
    form = form_of(pattern, dtype)
    assert form.coefficients.dtype == dtype
    kind, item, radius, _, _ = form.key.split()
    assert (int(item), int(radius)) == (np.dtype(dtype).itemsize, pattern.radius)
    if kind == "factors":
        column, row = np.split(form.coefficients.astype(float), 2)
        assert np.allclose(np.outer(column, row), pattern.matrix(), rtol=1e-6)
    assert form.flops_per_point <= pattern.flops_per_point


def test_fewer_operations_are_needed_than_terms():
    assert form_of(Stencil.box(4), np.float32).flops_per_point == 34


@njit
def run_block(address, outs, ins, weights, start, stop):
    call_block(address, outs.ctypes.data, ins.ctypes.data, outs.ctypes.data, weights.ctypes.data, start, stop)


@pytest.mark.parametrize("pattern", [Stencil.star(1), Stencil.box(2), SLANTED], ids=["terms", "mirrored", "factors"])
def test_a_block_computes_rows_from_the_addresses_it_is_given(pattern):
    form, radius, width = form_of(pattern, np.float32), pattern.radius, 64
    margin = 48
    rng = np.random.default_rng(0)
    cells = rng.random((form.rows + 2 * radius, width + 2 * margin)).astype(np.float32)
    found = np.full((form.rows, width + 2 * margin), -1, np.float32)
    item = cells.itemsize
    ins = np.array([row.ctypes.data + margin * item for row in cells], np.int64)
    outs = np.array([row.ctypes.data + margin * item for row in found], np.int64)
    several = blocks(form.key, form.rows)[0]
    run_block(several, outs, ins, form.coefficients, 0, (width - 1) * item)
    expected = reference_sweep(cells, pattern)[radius : radius + form.rows]
    assert np.allclose(found[:, margin : margin + width], expected[:, margin : margin + width], rtol=1e-5)
    assert (found[:, :margin] == -1).all()
    assert (found[:, margin + width + STEP_BYTES // item :] == -1).all()
    run_block(several, outs + 8 * item, ins, form.coefficients, 0, 0)
    assert np.allclose(found[:, margin : margin + width], expected[:, margin : margin + width], rtol=1e-5)


def test_bytes_are_moved():
    @njit
    def run(target, source, count):
        move_bytes(target.ctypes.data, source.ctypes.data, count)

    source, target = np.arange(40, dtype=np.uint8), np.zeros(40, np.uint8)
    run(target, source, 33)
    assert np.array_equal(target[:33], source[:33])
    assert not target[33:].any()
