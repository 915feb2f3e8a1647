"""Accesses to shared memory: phases, wavefronts by ranks, and what is touched at once."""

from wavetank.kernels.layouts.access import (
    MATRICES,
    Access,
    Banks,
    at_once,
    phase_lane_bits,
    spread_of,
    vector_registers,
)
from wavetank.kernels.layouts.algebra import Layout

ONE_EACH = Access(registers=(32,), lanes=(1, 2, 4, 8, 16), warps=(), vector_bits=0)
BY_COLUMNS = Access(registers=(1,), lanes=(32, 64, 128, 256, 512), warps=(), vector_bits=0)


def test_lanes_of_a_phase_fill_one_row_of_banks():
    assert [phase_lane_bits(bits, 4, Banks()) for bits in (0, 1, 2)] == [5, 4, 3]
    # Narrow elements take a word each.
    assert phase_lane_bits(0, 1, Banks()) == 5


def test_neighbours_do_not_conflict_and_columns_do():
    assert ONE_EACH.phases(4, Banks()) == ONE_EACH.wavefronts(4, Banks()) == 2
    assert BY_COLUMNS.phases(4, Banks()) == 2
    assert BY_COLUMNS.wavefronts(4, Banks()) == 2 * 32


def test_lanes_that_sit_out_take_no_phase():
    wide = Access(registers=(1, 2), lanes=(4, 8, 16, 32, 64), warps=(), vector_bits=2)
    assert wide.phases(4, Banks()) == 4
    assert wide._replace(idle_lanes=0b11000).phases(4, Banks()) == 1
    assert wide._replace(idle_lanes=0b00011).phases(4, Banks()) == 4


def test_rows_of_matrices_meet_when_they_lie_a_row_of_banks_apart():
    # Eight rows of 16 bytes: side by side, and 128 bytes apart.
    beside = Access((1,), (2, 4, 8, 16, 32), (), 1, way=MATRICES, order=(1,), rows=(8, 16, 32))
    apart = Access((1,), (2, 4, 64, 128, 256), (), 1, way=MATRICES, order=(1,), rows=(64, 128, 256))
    assert beside.wavefronts(2, Banks()) == beside.phases(2, Banks()) == 1
    assert apart.wavefronts(2, Banks()) == 8
    assert at_once(apart, 2, Banks()) == {row + place for row in range(0, 512, 64) for place in range(8)}


def test_what_is_touched_at_once():
    assert at_once(ONE_EACH, 4, Banks()) == set(range(32))
    assert at_once(BY_COLUMNS, 4, Banks()) == set(range(0, 1024, 32))
    wide = Access(registers=(1, 2), lanes=(4, 8, 16, 32, 64), warps=(), vector_bits=2)
    assert at_once(wide, 4, Banks()) == set(range(32))
    assert at_once(wide._replace(idle_lanes=0b00001), 4, Banks()) == {
        8 * row + place for row in range(4) for place in range(4)
    }


def test_copies_are_not_stored_twice():
    layout = Layout({"register": [1, 0], "lane": [2, 0, 4, 8, 1], "warp": [16, 16]}, {"x": 32})
    found = spread_of(layout)
    assert found.registers == (1,)
    assert found.kept == (0,)
    assert (found.idle_lanes, found.idle_warps) == (0b10010, 0b10)


def test_registers_of_a_vector_are_found_in_any_order():
    access = Access(registers=(4, 1, 2), lanes=(), warps=(), vector_bits=2)
    assert vector_registers(access) == (0b010, 0b100)


def test_registers_that_change_order_from_lane_to_lane_cost_selects():
    straight = Access(registers=(1, 2), lanes=(4, 8), warps=(), vector_bits=2)
    turned = Access(registers=(1, 2), lanes=(5, 8), warps=(), vector_bits=2)
    assert straight.selects(4) == 0
    assert turned.selects(4) == 4
