"""Gathers along an axis: what they fetch is what numpy's take_along_axis fetches, and what they cost is told truly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError, UnknownNameError, WavetankError
from wavetank.kernels.layouts.access import Banks
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import combine, completion
from wavetank.kernels.layouts.conversion import LinearLayouts
from wavetank.kernels.layouts.families import Blocked, MmaResult
from wavetank.kernels.layouts.gather import GatherWithin, _fullest, checked_gather, within_warp
from wavetank.kernels.layouts.rivals import PaddedRows, UnswizzledShared
from wavetank.kernels.layouts.warp_machine import WarpMachine

MACHINE = WarpMachine()
# A warp holds whole columns of 32: four registers, eight lanes.
COLUMNS = Blocked(registers=(4, 1), lanes=(8, 4), warps=(1, 4), order=(0, 1))


def gathered(planner, source, index, axis, element_bytes, seed=0):
    """Return the plan, whether what was gathered is right, and the counts."""
    rng = np.random.default_rng(seed)
    plan = planner.plan_gather(source, index, axis, element_bytes)
    tensor = rng.integers(0, 256, (*source.out_sizes.values(), element_bytes), np.uint8)
    tensor = tensor.view(f"V{element_bytes}")[..., 0]
    chosen = rng.integers(0, source.out_sizes[axis], tuple(index.out_sizes.values()))
    found, counts = MACHINE.run_gather(plan, MACHINE.load(tensor, source), MACHINE.load(chosen, index))
    wanted = np.take_along_axis(tensor, chosen, list(source.out_sizes).index(axis))
    return plan, np.array_equal(found, MACHINE.load(wanted, index)), counts


@st.composite
def gathers(draw, most_warp_bits=2):
    """Return a source and an index on the same lanes and warps, with copies here and there."""
    lanes, warps = draw(st.integers(0, 5)), draw(st.integers(0, most_warp_bits))
    sizes = [draw(st.integers(0, 3)), draw(st.integers(0, 4))]
    axis = draw(st.integers(0, 1))
    asked = [size if dim != axis else draw(st.integers(0, 3)) for dim, size in enumerate(sizes)]

    def layout(bits, whole):
        registers = draw(st.integers(0, 4))
        count = registers + lanes + warps
        columns = draw(st.lists(st.integers(0, (1 << sum(bits)) - 1), min_size=count, max_size=count))
        if whole:
            # What is not reached is given to further registers.
            more = completion(columns, sum(bits))
            columns = [*columns[:registers], *more, *columns[registers:]]
            registers += len(more)
        split = [(each & ((1 << bits[0]) - 1), each >> bits[0]) for each in columns]
        named = {"register": split[:registers], "lane": split[registers : registers + lanes]}
        return Layout(named | {"warp": split[registers + lanes :]}, {"x": 1 << bits[0], "y": 1 << bits[1]})

    return layout(sizes, True), layout(asked, draw(st.booleans())), "xy"[axis]


@settings(max_examples=250, deadline=None)
@given(gathers(), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 1000))
def test_every_gather_fetches_what_numpy_fetches(case, element_bytes, seed):
    plan, right, counts = gathered(LinearLayouts(), *case, element_bytes, seed)
    assert right
    if isinstance(plan.step, GatherWithin):
        assert counts == plan.counts()
    else:
        with pytest.raises(WavetankError, match="depend on the index"):
            plan.counts()
    for rival in (UnswizzledShared(), PaddedRows()):
        assert gathered(rival, *case, element_bytes, seed)[1]


@settings(max_examples=150, deadline=None)
@given(gathers(most_warp_bits=0))
def test_no_schedule_that_does_not_know_the_index_has_fewer_rounds(case):
    source, index, axis = case
    # One warp holds everything.
    step = within_warp(*checked_gather(source, index, axis, 4, Banks()), 4)
    # All registers that register 0 of the index may ask of one lane must be published by it.
    asked = {}
    for lane in range(1 << len(step.lanes)):
        for at in range(1 << len(step.axis)):
            found = combine(step.lanes, lane) ^ combine(step.axis, at)
            register, holder = found & ((1 << step.register_bits) - 1), found >> step.register_bits
            asked.setdefault(holder & ((1 << step.lane_bits) - 1), set()).add(register)
    assert 1 << step.round_bits == max(map(len, asked.values()))


def test_an_axis_within_a_thread_needs_no_shuffle():
    source = Blocked(registers=(8, 1), lanes=(1, 32), warps=(1, 4), order=(0, 1)).layout((8, 128))
    plan, right, counts = gathered(LinearLayouts(), source, source, "dim0", 4)
    assert (plan.kind, right) == ("registers", True)
    # Seven selects find one of eight registers, for each of eight results, in each warp.
    assert counts.selects == 7 * 8 * 4
    assert counts.instructions == counts.selects


def test_an_axis_along_lanes_takes_one_shuffle_for_each_register():
    source = Blocked(registers=(1, 4), lanes=(32, 1), warps=(1, 4), order=(0, 1)).layout((32, 16))
    plan, right, counts = gathered(LinearLayouts(), source, source, "dim0", 4)
    assert (plan.kind, right) == ("shuffles", True)
    assert counts.shuffles == counts.wavefronts == 4 * 4
    assert counts.selects == 0


def test_an_axis_along_lanes_and_registers_takes_a_round_for_each_register_of_a_lane():
    source = COLUMNS.layout((32, 16))
    plan, right, counts = gathered(LinearLayouts(), source, source, "dim0", 4)
    assert (plan.kind, right) == ("shuffles", True)
    # Each of eight lanes holds four rows of a column; four registers of the index, four warps.
    assert plan.step.round_bits == 2
    assert counts.shuffles == 4 * 4 * 4
    narrow, right, counts = gathered(LinearLayouts(), source, source, "dim0", 1)
    assert right
    # Four bytes travel in one word.
    assert (narrow.step.round_bits, narrow.step.packed_bits) == (2, 2)
    assert counts.shuffles == 4 * 4


def test_an_axis_across_warps_goes_through_memory():
    source = MmaResult(warps=(4, 1)).layout((64, 32))
    plan, right, counts = gathered(LinearLayouts(), source, source, "dim0", 4)
    assert (plan.kind, right) == ("shared memory", True)
    assert counts.loads == 4 * 16
    assert counts.memory_bytes == 64 * 32 * 4


def test_no_index_makes_lanes_meet_that_differ_outside_the_axis():
    # Each lane reads a column of its own; across warps rows are held by everybody else.
    source = Blocked(registers=(1, 1), lanes=(1, 32), warps=(4, 1), order=(1, 0)).layout((64, 32))
    for seed in range(5):
        _, right, counts = gathered(LinearLayouts(), source, source, "dim0", 4, seed)
        assert right
        # One wavefront a load; stores are vectors or rows of matrices of 128 bytes.
        assert counts.wavefronts == 4 * 16 + 64 * 32 * 4 // 128


def test_memory_is_never_expected_to_be_worse_than_rows():
    rng = np.random.default_rng(3)
    for _ in range(20):
        bits = [1 << int(each) for each in rng.permutation(11)]
        split = [(each & 31, each >> 5) for each in bits]
        source = Layout({"register": split[:4], "lane": split[4:9], "warp": split[9:]}, {"x": 32, "y": 64})
        for axis in "xy":
            plan, _, ours = gathered(LinearLayouts(), source, source, axis, 4)
            _, _, rows = gathered(UnswizzledShared(), source, source, axis, 4)
            # The same random index on both sides: expectation is not a promise, so a tenth is allowed.
            assert ours.wavefronts <= 1.1 * rows.wavefronts, plan.kind


def test_the_fullest_bin_is_expected_as_enumeration_has_it():
    for balls, bins in ((1, 4), (3, 2), (4, 4), (3, 5)):
        throws = np.indices((bins,) * balls).reshape(balls, -1)
        loads = np.stack([(throws == each).sum(axis=0) for each in range(bins)]).max(axis=0)
        assert _fullest(balls, bins, 1) == pytest.approx(loads.mean())
        pairs = np.maximum.outer(loads, loads)
        assert _fullest(balls, bins, 2) == pytest.approx(pairs.mean())


def test_inputs_stay_as_they_are_and_bad_ones_are_refused():
    source = COLUMNS.layout((32, 16))
    planner = LinearLayouts()
    plan = planner.plan_gather(source, source, "dim0", 4)
    registers = MACHINE.load(np.arange(512, dtype=np.float32).reshape(32, 16), source)
    index = np.zeros(registers.shape, np.int32)
    for each in (registers, index):
        each.flags.writeable = False
    MACHINE.run_gather(plan, registers, index)
    for bad, given_ in ((-1, -1), (32, 32)):
        wrong = index.copy()
        wrong[1, 2, 3] = bad
        with pytest.raises(BadValueError, match="out of the tensor") as caught:
            MACHINE.run_gather(plan, registers, wrong)
        assert caught.value.given == given_
        assert caught.value.where == "index of warp 1, lane 2, register 3"
    for wrong in (index.astype(np.float32), index[:2], index.astype(bool)):
        with pytest.raises(BadValueError, match="not that of the plan"):
            MACHINE.run_gather(plan, registers, wrong)
    with pytest.raises(BadValueError, match="not those of the plan"):
        MACHINE.run_gather(plan, registers.astype(np.float64), index)


def test_what_does_not_go_together_is_refused():
    planner, source = LinearLayouts(), COLUMNS.layout((32, 16))
    with pytest.raises(UnknownNameError, match="dim1"):
        planner.plan_gather(source, source, "dim2")
    with pytest.raises(BadValueError, match="shape of the tensor but along the axis"):
        planner.plan_gather(source, COLUMNS.layout((32, 8)), "dim0")
    with pytest.raises(BadValueError, match="different numbers of warps"):
        planner.plan_gather(source, MmaResult(warps=(1, 1)).layout((32, 16)), "dim0")
    with pytest.raises(BadValueError, match="elements of that size"):
        planner.plan_gather(source, source, "dim0", 3)
    half = Layout({"register": [1], "lane": [], "warp": []}, {"x": 8})
    with pytest.raises(BadValueError, match="any"):
        planner.plan_gather(half, half, "x")
    with pytest.raises(BadValueError, match="power of two"):
        planner.plan_gather(source, source, "dim0", 4, Banks(banks=3))
