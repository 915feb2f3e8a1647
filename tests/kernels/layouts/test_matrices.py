"""Matrix instructions: what they fix, when they fit, what a warp moves with them, and what that saves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.access import MATRICES, TRANSPOSED, VECTORS, Access, Banks
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import combine
from wavetank.kernels.layouts.conversion import LinearLayouts, ThroughShared, through_shared
from wavetank.kernels.layouts.families import Blocked, MmaOperand, MmaResult, PaddedShared, SwizzledShared
from wavetank.kernels.layouts.matrices import by_matrices, tile_of, tile_order, ways_of
from wavetank.kernels.layouts.rivals import PaddedRows, XorSwizzle
from wavetank.kernels.layouts.study_conversion import executed
from wavetank.kernels.layouts.warp_machine import WarpMachine

MACHINE = WarpMachine()
# Registers hold eight 16-bit numbers of a row, as global memory is read best.
ROWS = Blocked(registers=(1, 8), lanes=(8, 4), warps=(4, 1), order=(1, 0))


def ways(plan):
    assert isinstance(plan.step, ThroughShared)
    return plan.step.store.way, plan.step.load.way


def test_the_tiles_are_16_bytes():
    assert tile_of(MATRICES, 2).bases == {"register": ((1,),), "lane": ((2,), (4,))}
    assert tile_of(MATRICES, 1).bases == {"register": ((1,), (2,)), "lane": ((4,), (8,))}
    assert tile_of(MATRICES, 4).bases == {"register": (), "lane": ((1,), (2,))}
    assert tile_of(TRANSPOSED, 2).bases == {"register": (), "lane": ((1,), (2,), (4,))}
    assert tile_of(TRANSPOSED, 1).bases == {"register": ((1,),), "lane": ((2,), (4,), (8,))}
    assert tile_order(MATRICES) == (0, 1, 2, 3, 4)
    assert tile_order(TRANSPOSED) == (2, 3, 4, 0, 1)
    with pytest.raises(BadValueError, match="of that size"):
        tile_of(TRANSPOSED, 4)
    with pytest.raises(BadValueError, match="of that size"):
        tile_of(MATRICES, 8)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_two_and_four_matrices_travel_in_one_instruction(count):
    # A fragment of so many 8 x 8 matrices, one below the other, read from rows of eight.
    target = Layout(
        {
            "register": [(0, 1), *((8 << bit, 0) for bit in range(count.bit_length() - 1))],
            "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
            "warp": [],
        },
        {"dim0": 8 * count, "dim1": 8},
    )
    tensor = np.arange(64 * count, dtype=np.uint16).reshape(-1, 8)
    memory = PaddedShared(padding=0).layout(tensor.shape)
    plan = through_shared(target, target, 2, memory, None, Banks(matrix_stores=False))
    assert ways(plan) == (VECTORS, MATRICES)
    found, counts = MACHINE.run(plan, MACHINE.load(tensor, target))
    assert counts.loads == max(count // 4, 1)
    # As the manual has it: lane t gets numbers 2 (t mod 4) and the next of row t / 4, register by register of a matrix.
    for lane in range(32):
        for matrix in range(count):
            pair = found[0, lane, 2 * matrix : 2 * matrix + 2]
            assert pair.tolist() == tensor[8 * matrix + lane // 4, 2 * (lane % 4) :][:2].tolist()


def test_transposed_matrices_are_read_down_their_columns():
    # Two numbers of a column a lane, as the right operand of a product wants them, from rows in memory.
    target = MmaOperand(operand=1, width=2, warps=(1, 1)).layout((16, 8))
    tensor = np.arange(128, dtype=np.uint16).reshape(16, 8)
    plan = through_shared(target, target, 2, PaddedShared(padding=0).layout((16, 8)), None, Banks(matrix_stores=False))
    assert ways(plan) == (VECTORS, TRANSPOSED)
    found, counts = MACHINE.run(plan, MACHINE.load(tensor, target))
    assert (counts.loads, plan.step.load.wavefronts(2, Banks())) == (1, 2)
    for lane in range(32):
        for matrix in range(2):
            column = tensor[8 * matrix + 2 * (lane % 4) :, lane // 4][:2]
            assert found[0, lane, 2 * matrix : 2 * matrix + 2].tolist() == column.tolist()


@pytest.mark.parametrize(
    ("source", "target", "element_bytes", "expected"),
    [
        # Left operand from rows, and an accumulator to rows: 16 bytes of a row are both sides' unit.
        (ROWS, MmaOperand(operand=0, width=2, warps=(2, 2)), 2, (VECTORS, MATRICES)),
        (MmaResult(warps=(2, 2)), ROWS, 2, (MATRICES, VECTORS)),
        # Right operand from rows, across them.
        (ROWS, MmaOperand(operand=1, width=2, warps=(2, 2)), 2, (VECTORS, TRANSPOSED)),
    ],
)
def test_operands_are_loaded_and_results_stored_by_matrices(source, target, element_bytes, expected):
    # The tensor is so small that the two sides have hardly a register in common.
    pair = source.layout((32, 32)), target.layout((32, 32))
    plan, without = (LinearLayouts(matrices=each).plan(*pair, element_bytes) for each in (True, False))
    assert ways(plan) == expected
    assert ways(without) == (VECTORS, VECTORS)
    for each in (plan, without):
        right, counts = executed(MACHINE, each)
        assert right
        assert counts == each.counts()
    assert plan.counts().wavefronts <= without.counts().wavefronts
    assert plan.counts().instructions < without.counts().instructions


def test_a_transposed_operand_takes_a_quarter_of_the_loads():
    pair = ROWS.layout((64, 64)), MmaOperand(operand=1, width=2, warps=(2, 2)).layout((64, 64))
    plan, without = (LinearLayouts(matrices=each).plan(*pair, 2) for each in (True, False))
    assert TRANSPOSED in ways(plan)
    assert plan.counts().wavefronts == without.counts().wavefronts
    assert plan.counts().loads == 32
    assert plan.counts().stores + plan.counts().loads < without.counts().stores + without.counts().loads


def test_the_classic_swizzle_and_padding_load_operands_by_matrices_too():
    whole_rows = Blocked(registers=(1, 8), lanes=(4, 8), warps=(4, 1), order=(1, 0))
    pair = whole_rows.layout((64, 64)), MmaOperand(operand=0, width=2, warps=(2, 2)).layout((64, 64))
    for rival in (XorSwizzle(), PaddedRows()):
        plan = rival.plan(*pair, 2)
        assert ways(plan) == (VECTORS, MATRICES)
        right, counts = executed(MACHINE, plan)
        assert right
        # 64 x 64 numbers, 128 bytes a wavefront; two warps read each of them.
        assert counts.wavefronts == 64 + 2 * 64


@st.composite
def accesses_of_a_warp(draw, element_bytes):
    """Return an access that a tile fits, with its registers renamed at will, or nearly so."""
    way = draw(st.sampled_from([MATRICES, TRANSPOSED]))
    tile = tile_of(way, element_bytes)
    unit, inner = len(tile.columns_of("register")), len(tile.columns_of("lane"))
    low, more = unit + inner, draw(st.integers(1, 3))
    high = [1 << bit for bit in draw(st.permutations(range(low, low + 5 - inner + more)))]
    lanes = dict(zip(tile_order(way), [*tile.columns_of("lane"), *high[: 5 - inner]], strict=True))
    registers = [*tile.columns_of("register"), *high[5 - inner :]]
    for _ in range(draw(st.integers(0, 4))):
        one, other = draw(st.integers(0, len(registers) - 1)), draw(st.integers(0, len(registers) - 1))
        if one != other:
            registers[one] ^= registers[other]
    if draw(st.booleans()):
        at = draw(st.integers(0, 4))
        lanes[at] ^= 1 << draw(st.integers(0, low - 1))
    if draw(st.booleans()):
        registers[draw(st.integers(0, len(registers) - 1))] ^= 1 << draw(st.integers(0, low - 1))
    return Access(tuple(registers), tuple(lanes[bit] for bit in range(5)), (), 0), way, low


@pytest.mark.parametrize("element_bytes", [1, 2])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_tile_fits_when_the_layout_divides(element_bytes, data):
    access, way, low = data.draw(accesses_of_a_warp(element_bytes))
    found = by_matrices(access, way, False, element_bytes, Banks())
    tile = tile_of(way, element_bytes)
    size = 1 << (low + 8)

    def divides(order):
        registers = [combine(access.registers, mask) for mask in order]
        lanes = [access.lanes[bit] for bit in tile_order(way)]
        layout = Layout({"register": registers, "lane": lanes}, {"offset": size})
        return layout.divide_left(tile) is not None

    if found is not None:
        unit = len(tile.columns_of("register"))
        low_bit = [] if way == MATRICES else [combine(access.registers, found.order[unit])]
        assert divides(found.order)
        assert found.rows == (*low_bit, *(access.lanes[bit] for bit in tile_order(way)[2 + len(low_bit) :]))
    else:
        # No renaming by single swaps and sums of two helps either.
        count = len(access.registers)
        straight = [1 << bit for bit in range(count)]
        assert not divides(straight)
        for one in range(count):
            for other in range(count):
                if one != other:
                    assert not divides(
                        [mask ^ (1 << other) if bit == one else mask for bit, mask in enumerate(straight)]
                    )


def test_machines_without_the_instructions_do_not_get_them():
    pair = MmaResult(warps=(2, 2)).layout((64, 64)), ROWS.layout((64, 64))
    for banks in (Banks(matrix_stores=False), Banks(vector_bytes=8), Banks(banks=64)):
        assert ways(LinearLayouts().plan(*pair, 2, banks)) == (VECTORS, VECTORS)
    assert ways_of(Banks(), storing=True) == (MATRICES, TRANSPOSED)
    assert ways_of(Banks(matrix_stores=False), storing=True) == ()
    assert ways_of(Banks(word_bytes=8, banks=16), storing=False) == ()


def test_gaps_that_part_or_shift_16_bytes_rule_matrices_out():
    pair = ROWS.layout((64, 64)), MmaOperand(operand=0, width=2, warps=(2, 2)).layout((64, 64))
    memory = PaddedShared(padding=0).layout((64, 64))
    for interval, gap, way in ((64, 8, MATRICES), (64, 2, VECTORS), (4, 8, VECTORS)):
        plan = through_shared(*pair, 2, memory, PaddedShared(interval=interval, padding=gap), Banks())
        assert plan.step.load.way == way
        assert executed(MACHINE, plan)[0]


def test_a_swizzle_that_reaches_into_16_bytes_rules_matrices_out():
    pair = ROWS.layout((64, 64)), MmaOperand(operand=0, width=2, warps=(2, 2)).layout((64, 64))
    for vector, way in ((8, MATRICES), (4, VECTORS)):
        memory = SwizzledShared(vector=vector, per_phase=1, max_phase=8, order=(1, 0)).layout((64, 64))
        plan = through_shared(*pair, 2, memory, None, Banks())
        assert plan.step.load.way == way
        assert executed(MACHINE, plan)[0]
