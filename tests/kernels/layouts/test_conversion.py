"""The planner: the kind it chooses, that what it plans is right, minimal and told truly, and what it refuses."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.layouts.access import Banks
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import Span, combine
from wavetank.kernels.layouts.conversion import LinearLayouts, Shuffles
from wavetank.kernels.layouts.families import Blocked, MmaOperand, MmaResult, PaddedShared
from wavetank.kernels.layouts.rivals import PaddedRows
from wavetank.kernels.layouts.study_conversion import executed
from wavetank.kernels.layouts.warp_machine import WarpMachine

ROWS = Blocked(registers=(1, 4), lanes=(4, 8), warps=(4, 1), order=(1, 0))
COLUMNS = Blocked(registers=(4, 1), lanes=(8, 4), warps=(1, 4), order=(0, 1))


@st.composite
def pairs(draw, within_warp=False):
    """Return two layouts of one tensor on the same lanes and warps, with copies here and there."""
    lanes, warps = draw(st.integers(0, 5)), draw(st.integers(0, 2))
    registers = (draw(st.integers(0, 5)), draw(st.integers(0, 5)))
    bits = draw(st.integers(0, min(registers) + lanes + warps))

    def layout(count):
        size = count + lanes + warps
        columns = draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=size, max_size=size))
        return {"register": columns[:count], "lane": columns[count : count + lanes], "warp": columns[count + lanes :]}

    one, other = layout(registers[0]), layout(registers[1])
    if within_warp:
        other["warp"] = one["warp"]
    source, target = Layout(one, {"x": 1 << bits}), Layout(other, {"x": 1 << bits})
    span = Span(source.columns)
    assume(all(column in span for column in target.columns))
    return source, target


@settings(max_examples=200, deadline=None)
@given(pairs(), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["either", "common"]))
def test_every_plan_moves_every_element_and_costs_what_it_says(pair, element_bytes, vectors):
    plan = LinearLayouts(vectors=vectors).plan(*pair, element_bytes)
    right, counts = executed(WarpMachine(), plan)
    assert right
    assert counts == plan.counts()


@settings(max_examples=200, deadline=None)
@given(pairs(within_warp=True), st.sampled_from([1, 2, 4, 8]))
def test_what_stays_within_a_warp_is_planned_without_memory(pair, element_bytes):
    plan = LinearLayouts().plan(*pair, element_bytes)
    warp = Span((*pair[0].columns_of("register"), *pair[0].columns_of("lane")))
    local = all(column in warp for column in (*pair[1].columns_of("register"), *pair[1].columns_of("lane")))
    if not local:
        assert plan.kind == "shared memory"
    elif pair[0].is_injective and pair[1].is_injective:
        assert plan.kind != "shared memory"
    right, counts = executed(WarpMachine(), plan)
    assert right
    assert counts == plan.counts()


@st.composite
def within_one_warp(draw):
    bits = draw(st.integers(2, 7))
    lanes = draw(st.integers(1, min(5, bits)))

    def layout():
        columns = [1 << bit for bit in draw(st.permutations(range(bits)))]
        for _ in range(draw(st.integers(0, 5))):
            one, other = draw(st.integers(0, bits - 1)), draw(st.integers(0, bits - 1))
            if one != other:
                columns[one] ^= columns[other]
        return Layout({"register": columns[: bits - lanes], "lane": columns[bits - lanes :]}, {"x": 1 << bits})

    return layout(), layout()


@settings(max_examples=300, deadline=None)
@given(within_one_warp(), st.sampled_from([1, 2, 4]))
def test_shuffles_take_the_fewest_rounds_that_any_schedule_has(pair, element_bytes):
    source, target = pair
    plan = LinearLayouts().plan(source, target, element_bytes)
    if not isinstance(plan.step, Shuffles):
        return
    # A shuffle brings a lane one word from one other lane, so the lane that wants most words from others bounds it.
    wanted = [0]
    for lane in range(target.in_sizes["lane"]):
        start = combine(target.columns_of("lane"), lane)
        values = {start ^ int(each) for each in _sums(target.columns_of("register"))}
        words = 0
        for other in range(source.in_sizes["lane"]):
            if other != lane:
                base = combine(source.columns_of("lane"), other)
                shared = values & {base ^ int(each) for each in _sums(source.columns_of("register"))}
                words += -(-len(shared) * element_bytes // 4)
        wanted.append(words)
    assert plan.step.rounds == max(wanted)


def _sums(columns):
    return [combine(columns, mask) for mask in range(1 << len(columns))]


def test_equal_layouts_need_nothing():
    layout = ROWS.layout((64, 64))
    plan = LinearLayouts().plan(layout, layout, 2)
    assert plan.kind == "nothing"
    assert plan.counts().instructions == 0


def test_registers_that_change_places_cost_nothing():
    layout = ROWS.layout((64, 64))
    bases = {name: list(vectors) for name, vectors in layout.bases.items()}
    bases["register"].reverse()
    plan = LinearLayouts().plan(layout, Layout(bases, layout.out_sizes), 2)
    assert plan.kind == "registers"
    assert plan.counts().instructions == 0


def test_a_tile_is_transposed_within_a_warp_in_31_rounds():
    rows = Blocked(registers=(1, 1), lanes=(1, 32), warps=(1, 1), order=(1, 0)).layout((32, 32))
    columns = Blocked(registers=(1, 1), lanes=(32, 1), warps=(1, 1), order=(1, 0)).layout((32, 32))
    plan = LinearLayouts().plan(rows, columns, 4)
    assert plan.kind == "shuffles"
    # Each lane keeps the element on the diagonal.
    assert plan.counts().shuffles == 31


def test_an_accumulator_becomes_an_operand_without_moving():
    source = MmaResult(warps=(4, 1)).layout((64, 64))
    assert (
        LinearLayouts().plan(source, MmaOperand(operand=0, width=2, warps=(4, 1)).layout((64, 64)), 2).kind == "nothing"
    )
    narrow = LinearLayouts().plan(source, MmaOperand(operand=0, width=8, warps=(4, 1)).layout((64, 64)), 1)
    assert narrow.kind == "shuffles"


def test_across_warps_memory_is_used_and_has_no_conflicts():
    plan = LinearLayouts().plan(ROWS.layout((64, 64)), COLUMNS.layout((64, 64)), 4)
    assert plan.kind == "shared memory"
    counts = plan.counts()
    # 64 x 64 words, 32 a wavefront, once in and once out.
    assert counts.wavefronts == 2 * 64 * 64 // 32
    assert counts.memory_bytes == 64 * 64 * 4
    assert counts.moved_bytes == 2 * 64 * 64 * 4


def test_vectors_of_either_side_save_instructions():
    # Rows of four registers on one side, single elements on the other: nothing in common.
    source = ROWS.layout((32, 32))
    target = Blocked(registers=(1, 1), lanes=(32, 1), warps=(1, 4), order=(0, 1)).layout((32, 32))
    either = LinearLayouts(matrices=False).plan(source, target, 4).counts()
    common = LinearLayouts(vectors="common", matrices=False).plan(source, target, 4).counts()
    assert either.wavefronts == common.wavefronts
    # One side moves four at a time, the other one by one.
    assert sorted((either.stores, either.loads)) == [8, 32]
    assert (common.stores, common.loads) == (32, 32)
    assert either.instructions < common.instructions


def test_outputs_may_come_in_another_order():
    source = ROWS.layout((64, 32))
    target = COLUMNS.layout((64, 32)).transpose_outs(["dim1", "dim0"])
    plan = LinearLayouts().plan(source, target, 4)
    assert list(plan.target.out_sizes) == ["dim0", "dim1"]
    assert executed(WarpMachine(), plan)[0]


def test_padded_memory_is_counted_by_executing_it():
    plan = PaddedRows().plan(ROWS.layout((32, 32)), COLUMNS.layout((32, 32)), 4)
    with pytest.raises(WavetankError, match="not linear"):
        plan.counts()


def test_what_does_not_go_together_is_refused():
    planner, layout = LinearLayouts(), ROWS.layout((64, 64))
    with pytest.raises(BadValueError, match="different shapes") as caught:
        planner.plan(layout, COLUMNS.layout((64, 32)))
    assert caught.value.hint
    with pytest.raises(BadValueError, match="different numbers of warps"):
        planner.plan(layout, MmaResult(warps=(2, 1)).layout((64, 64)))
    with pytest.raises(BadValueError, match="registers, lanes and warps"):
        planner.plan(layout, PaddedShared().layout((64, 64)))
    for size in (0, 3, 32, 2.0):
        with pytest.raises(BadValueError, match="elements of that size"):
            planner.plan(layout, layout, size)
    with pytest.raises(BadValueError, match="power of two"):
        planner.plan(layout, COLUMNS.layout((64, 64)), 4, Banks(banks=31))


def test_a_source_that_lacks_an_element_is_refused():
    half = Layout({"register": [1], "lane": [2]}, {"x": 8})
    whole = Layout({"register": [1, 2], "lane": [4]}, {"x": 8})
    with pytest.raises(BadValueError, match="does not hold an element") as caught:
        LinearLayouts().plan(half, whole)
    assert caught.value.given == "element {'x': 4}"
    assert LinearLayouts().plan(whole, half).kind == "shuffles"
