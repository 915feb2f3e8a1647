"""The old ways: what they plan, what they cover, and that the linear planner never needs more wavefronts."""

import pytest

from wavetank.kernels.layouts.conversion import LinearLayouts, UnsupportedPairError
from wavetank.kernels.layouts.families import Blocked, MmaOperand, MmaResult, Slice
from wavetank.kernels.layouts.rivals import PaddedRows, PairRules, UnswizzledShared, XorSwizzle, classic_swizzle
from wavetank.kernels.layouts.study_conversion import KINDS, executed, pairs_of
from wavetank.kernels.layouts.warp_machine import WarpMachine

ROWS = Blocked(registers=(1, 4), lanes=(4, 8), warps=(4, 1), order=(1, 0))
COLUMNS = Blocked(registers=(4, 1), lanes=(8, 4), warps=(1, 4), order=(0, 1))
MACHINE = WarpMachine(shared_bytes=1 << 24)


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [
        ((128, 64), (8, 1, 8)),
        ((64, 256), (8, 1, 8)),
        ((128, 32), (8, 2, 4)),
        ((32, 128), (8, 1, 8)),
        ((32, 32), (8, 2, 4)),
        ((16, 16), (8, 4, 2)),
    ],
)
def test_the_classic_swizzle_has_tritons_numbers(shape, numbers):
    found = classic_swizzle(shape, 8, 2)
    assert (found.vector, found.per_phase, found.max_phase) == numbers


@pytest.mark.parametrize("kind", KINDS)
def test_the_linear_planner_never_needs_more_wavefronts(kind):
    for pair in pairs_of(kind, 32, 10, 1):
        right, ours = executed(MACHINE, LinearLayouts().plan(*pair))
        assert right
        assert executed(MACHINE, LinearLayouts(vectors="common").plan(*pair))[0]
        for rival in (UnswizzledShared(), PaddedRows(), XorSwizzle()):
            plan = rival.plan(*pair)
            right, theirs = executed(MACHINE, plan)
            assert right
            if plan.step.padding is None:
                assert theirs == plan.counts()
            assert ours.wavefronts <= theirs.wavefronts


def test_pair_rules_cover_pairs_of_plain_families_only():
    rules, result = PairRules(), MmaResult(warps=(2, 2))
    rows, columns = ROWS.layout((64, 64)), COLUMNS.layout((64, 64))
    assert rules.plan(rows, rows, 4).kind == "nothing"
    assert rules.plan(rows, columns, 4).step.padding is not None
    assert rules.plan(result.layout((64, 64)), rows, 2).kind == "shared memory"
    operand = MmaOperand(operand=0, width=2, warps=(2, 2)).layout((64, 64))
    assert rules.plan(rows, operand, 2).step.padding is None
    sliced = Slice(parent=ROWS, axis=0).layout((64,))
    assert rules.plan(sliced, Slice(parent=COLUMNS, axis=0).layout((64,)), 4).kind == "shared memory"
    refused = [
        (operand, rows),
        (rows, MmaOperand(operand=0, width=8, warps=(2, 2)).layout((64, 64))),
        (rows.reshape_outs({"dim0": 64, "dim1": 64}), columns),
        (Slice(parent=result, axis=0).layout((64,)), sliced),
    ]
    for source, target in refused:
        with pytest.raises(UnsupportedPairError) as caught:
            rules.plan(source, target, 2)
        assert caught.value.hint == "the linear planner converts any pair"


def test_padding_keeps_vectors_aligned():
    plan = PaddedRows().plan(ROWS.layout((64, 64)), COLUMNS.layout((64, 64)), 4)
    assert (plan.step.padding.interval, plan.step.padding.padding) == (64, 4)
    assert plan.step.store.vector_bits == 2
    assert executed(MACHINE, plan)[0]


def test_a_tensor_of_one_dimension_has_no_rows_to_swizzle():
    plan = XorSwizzle().plan(Slice(parent=ROWS, axis=0).layout((64,)), Slice(parent=COLUMNS, axis=0).layout((64,)), 4)
    assert plan.step.memory.is_invertible
    assert executed(MACHINE, plan)[0]
