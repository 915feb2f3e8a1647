"""Shape operators: a layout carried along holds what numpy's own operators would put there."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.layouts import shapes
from wavetank.kernels.layouts.families import Blocked, MmaResult
from wavetank.kernels.layouts.warp_machine import WarpMachine

MACHINE = WarpMachine()
LAYOUTS = [
    Blocked(registers=(1, 4), lanes=(8, 4), warps=(2, 2), order=(1, 0)).layout((32, 64)),
    MmaResult(warps=(2, 2)).layout((32, 64)),
]
TENSOR = np.arange(32 * 64).reshape(32, 64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(64, 32), (2048,), (4, 8, 64), (32, 2, 32), (2, 2, 2, 256)])
def test_reshaping_moves_no_element_to_another_thread(layout, shape):
    moved = shapes.reshape(layout, shape)
    assert np.array_equal(MACHINE.load(TENSOR, layout), MACHINE.load(TENSOR.reshape(shape), moved))
    assert shapes.reshape(moved, (32, 64)) == layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_transposing_moves_no_element_to_another_thread(layout):
    moved = shapes.transpose(layout, (1, 0))
    assert np.array_equal(MACHINE.load(TENSOR, layout), MACHINE.load(TENSOR.T, moved))
    assert shapes.transpose(moved, (1, 0)) == layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_thread_holds_both_of_a_joined_pair_and_they_split_again(layout):
    joined = shapes.join(layout)
    registers = MACHINE.load(np.stack([TENSOR, -TENSOR], axis=2), joined)
    assert np.array_equal(registers[..., 0::2], MACHINE.load(TENSOR, layout))
    assert np.array_equal(registers[..., 1::2], MACHINE.load(-TENSOR, layout))
    assert shapes.split(joined) == layout


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_expanded_dimension_broadcasts_and_reduces_away(layout, axis):
    expanded = shapes.expand_dims(layout, axis)
    wide = np.expand_dims(TENSOR, axis)
    assert np.array_equal(MACHINE.load(wide, expanded), MACHINE.load(TENSOR, layout))
    assert shapes.reduce(expanded, axis) == layout
    shape = (*TENSOR.shape[:axis], 4, *TENSOR.shape[axis:])
    stretched = shapes.broadcast(expanded, shape)
    found = MACHINE.load(np.broadcast_to(wide, shape).copy(), stretched)
    assert found.shape[2] == 4 * layout.in_sizes["register"]
    assert np.array_equal(found, np.tile(MACHINE.load(TENSOR, layout), 4))


def test_a_reduction_leaves_the_slice():
    layout = LAYOUTS[1]
    left = shapes.reduce(layout, 1)
    assert left.out_sizes == {"dim0": 32}
    assert left.bases["register"] == ((8,),)
    assert left.is_surjective


def test_shape_operators_refuse_what_makes_no_sense():
    layout = LAYOUTS[0]
    with pytest.raises(BadValueError, match="keeps the number"):
        shapes.reshape(layout, (32, 32))
    with pytest.raises(BadValueError, match="power of two"):
        shapes.reshape(layout, (3, 64))
    with pytest.raises(BadValueError, match="names every dimension once"):
        shapes.transpose(layout, (0, 0))
    with pytest.raises(BadValueError, match="size 2"):
        shapes.split(layout)
    with pytest.raises(BadValueError, match="different threads"):
        shapes.split(shapes.transpose(shapes.reshape(layout, (16, 2, 64)), (0, 2, 1)))
    with pytest.raises(BadValueError, match="size 1 can be broadcast"):
        shapes.broadcast(layout, (64, 64))
    with pytest.raises(BadValueError, match="no such place"):
        shapes.expand_dims(layout, 3)
    with pytest.raises(BadValueError, match="no such dimension"):
        shapes.reduce(layout, 2)
