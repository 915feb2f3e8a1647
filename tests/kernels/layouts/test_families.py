"""Families of layouts: known fragments, Triton's compiler's opinion, and what is refused."""

import itertools

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.families import (
    Blocked,
    MfmaOperand,
    MfmaResult,
    MmaOperand,
    MmaResult,
    PaddedShared,
    Slice,
    SwizzledShared,
    TileShared,
    WgmmaOperand,
    WgmmaResult,
)

ROWS = Blocked(registers=(1, 4), lanes=(8, 4), warps=(2, 2), order=(1, 0))
SHAPES = [(1, 8), (16, 16), (64, 32), (128, 128)]
WARPS = [(1, 1), (2, 2), (4, 1), (1, 4)]


def test_blocks_tile_along_their_order_and_registers_repeat():
    assert ROWS.layout((32, 64)).bases == {
        "register": ((0, 1), (0, 2), (0, 32), (16, 0)),
        "lane": ((0, 4), (0, 8), (1, 0), (2, 0), (4, 0)),
        "warp": ((0, 16), (8, 0)),
    }


def test_a_block_larger_than_the_tensor_holds_copies():
    found = ROWS.layout((4, 8))
    assert found.bases["lane"] == ((0, 4), (0, 0), (1, 0), (2, 0), (0, 0))
    assert found.bases["warp"] == ((0, 0), (0, 0))
    assert found.is_surjective


def test_an_accumulator_has_two_neighbours_in_a_lane_and_four_lanes_a_row():
    found = MmaResult(warps=(1, 1)).layout((16, 8))
    assert found.bases["register"] == ((0, 1), (8, 0))
    # The manual: groupID = lane / 4 is the row, 2 * (lane % 4) the column.
    for lane in range(32):
        assert found.apply(lane=lane) == {"dim0": lane // 4, "dim1": 2 * (lane % 4)}


def test_operands_are_shared_by_warps_along_their_inner_dimension():
    left = MmaOperand(operand=0, width=2, warps=(2, 2)).layout((64, 64))
    assert left.bases["warp"] == ((0, 0), (16, 0))
    right = MmaOperand(operand=1, width=2, warps=(2, 2)).layout((64, 64))
    assert right.bases["warp"] == ((0, 8), (0, 0))
    assert right.bases["lane"] == ((2, 0), (4, 0), (0, 1), (0, 2), (0, 4))


def test_fragments_of_64_lanes():
    found = MfmaResult(side=32, transposed=False, warps=(1, 1)).layout((32, 32))
    assert found.bases["lane"] == ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (4, 0))
    assert found.bases["register"] == ((1, 0), (2, 0), (8, 0), (16, 0))


def test_a_slice_drops_a_dimension_and_its_registers():
    found = Slice(parent=ROWS, axis=0).layout((64,))
    assert found.bases == {
        "register": ((1,), (2,), (32,)),
        "lane": ((4,), (8,), (0,), (0,), (0,)),
        "warp": ((16,), (0,)),
    }


def test_swizzled_memory_xors_columns_by_rows():
    found = SwizzledShared(vector=8, per_phase=2, max_phase=4, order=(1, 0)).layout((32, 32))
    for offset in range(0, 1024, 7):
        row, column = divmod(offset, 32)
        assert found.apply(offset=offset) == {"dim0": row, "dim1": column ^ 8 * (row // 2 % 4)}


def test_padded_memory_has_gaps():
    padded = PaddedShared(interval=32, padding=4)
    assert padded.places(np.array([0, 31, 32, 95])).tolist() == [0, 31, 36, 103]
    assert padded.layout((4, 32)).apply(offset=33) == {"dim0": 1, "dim1": 1}


def test_a_layout_remembers_its_family_until_it_is_changed():
    layout = ROWS.layout((32, 32))
    assert layout.origin == ROWS
    assert layout.reshape_outs({"dim0": 1024}).origin is None


def without_copies(bases):
    return bases | {name: tuple(filter(any, bases[name])) for name in bases.keys() & {"register"}}


@pytest.mark.parametrize("warps", WARPS)
def test_triton_gives_the_same_bases(triton_bases, warps):
    gluon = pytest.importorskip("triton.experimental.gluon.language._layouts")
    amd = pytest.importorskip("triton.experimental.gluon.language.amd")

    def same(theirs, ours, shape):
        # Registers that hold copies have bases of zeros, but blocks have them in Triton before 3.8 only.
        assert without_copies(triton_bases(theirs, shape)) == without_copies(ours.layout(shape).bases), (ours, shape)

    accumulator = gluon.NVMMADistributedLayout([2, 0], list(warps), [16, 8])
    for shape in SHAPES:
        for order, registers, lanes in itertools.product(((0, 1), (1, 0)), ((1, 4), (8, 1)), ((8, 4), (1, 32))):
            theirs = gluon.BlockedLayout(list(registers), list(lanes), list(warps), list(order))
            same(theirs, Blocked(registers=registers, lanes=lanes, warps=warps, order=order), shape)
        same(accumulator, MmaResult(warps=warps), shape)
        for operand, width in itertools.product((0, 1), (1, 2, 8)):
            theirs = gluon.DotOperandLayout(operand, accumulator, width)
            same(theirs, MmaOperand(operand=operand, width=width, warps=warps), shape)
        for axis in (0, 1):
            theirs = gluon.SliceLayout(axis, accumulator)
            same(theirs, Slice(parent=MmaResult(warps=warps), axis=axis), shape[:1])
        for side, transposed in itertools.product((16, 32), (False, True)):
            fragment = amd.AMDMFMALayout(3, [side, side, 256 // side], transposed, list(warps))
            same(fragment, MfmaResult(side=side, transposed=transposed, warps=warps), shape)
            for operand in (0, 1):
                theirs = gluon.DotOperandLayout(operand, fragment, 4)
                same(theirs, MfmaOperand(operand=operand, side=side, width=4, warps=warps), shape)
    for shape in ((64, 64), (128, 128)):
        if warps[0] == 4:
            for columns in (8, 64):
                group = gluon.NVMMADistributedLayout([3, 0], list(warps), [16, columns, 16])
                same(group, WgmmaResult(warps=warps, columns=columns), shape)
                same(gluon.DotOperandLayout(0, group, 2), WgmmaOperand(width=2, warps=warps), shape)
        for vector, phase, phases in itertools.product((1, 8), (1, 2), (1, 4)):
            theirs = gluon.SwizzledSharedLayout(vector, phase, phases, [1, 0])
            same(theirs, SwizzledShared(vector=vector, per_phase=phase, max_phase=phases, order=(1, 0)), shape)
        for width, transposed in itertools.product((32, 64, 128), (False, True)):
            theirs = gluon.NVMMASharedLayout(width, 16, 2, transposed=transposed)
            same(theirs, TileShared(swizzle_bytes=width, element_bytes=2, transposed=transposed), shape)


def test_what_makes_no_layout_is_refused():
    with pytest.raises(BadValueError, match="power of two") as caught:
        ROWS.layout((48, 64))
    assert caught.value.nearest == "32 or 64"
    with pytest.raises(BadValueError, match="another number of dimensions"):
        ROWS.layout((64,))
    with pytest.raises(BadValueError, match="names each dimension once"):
        Blocked(registers=(1, 1), lanes=(8, 4), warps=(1, 1), order=(0, 0)).layout((8, 8))
    with pytest.raises(BadValueError, match="power of two"):
        Blocked(registers=(1, 3), lanes=(8, 4), warps=(1, 1), order=(1, 0)).layout((8, 8))
    with pytest.raises(BadValueError, match="two operands"):
        MmaOperand(operand=2, width=2, warps=(1, 1)).layout((16, 16))
    with pytest.raises(BadValueError, match="no such instruction"):
        MfmaResult(side=8, transposed=False, warps=(1, 1)).layout((16, 16))
    with pytest.raises(BadValueError, match="at least 8 columns"):
        WgmmaResult(warps=(4, 1), columns=4).layout((64, 64))
    with pytest.raises(BadValueError, match="no such swizzle"):
        TileShared(swizzle_bytes=16, element_bytes=2).layout((64, 64))
    with pytest.raises(BadValueError, match="smaller than one tile"):
        TileShared(swizzle_bytes=128, element_bytes=2).layout((4, 64))
    with pytest.raises(BadValueError, match="no such dimension"):
        Slice(parent=ROWS, axis=2).layout((64,))
    with pytest.raises(BadValueError, match="order names each"):
        SwizzledShared(vector=1, per_phase=1, max_phase=1, order=(1,)).layout((8, 8))


def test_gaps_and_elements_that_cannot_be_are_refused():
    for numbers in ({"interval": 0}, {"interval": -4}, {"padding": -1}):
        with pytest.raises(BadValueError, match="Gaps come after"):
            PaddedShared(**numbers).layout((32, 32))
    for size in (0, 3, -2):
        with pytest.raises(BadValueError, match="elements of that size"):
            TileShared(swizzle_bytes=64, element_bytes=size).layout((32, 32))
