"""Layouts in one line of text."""

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.kernels.layouts import families
from wavetank.kernels.layouts.describe import EXAMPLES, FAMILIES, layout_of


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_are_layouts(text):
    assert layout_of(text).is_surjective


def test_text_and_class_give_the_same_layout():
    assert layout_of("mfma-result(side=32, transposed=true, warps=2x2) 64x64") == families.MfmaResult(
        side=32, transposed=True, warps=(2, 2)
    ).layout((64, 64))
    inner = families.Slice(parent=families.MmaOperand(operand=1, width=4, warps=(2, 2)), axis=0)
    assert layout_of("slice(parent=mma-operand(operand=1, width=4, warps=2x2), axis=0) 64") == inner.layout((64,))


def test_every_family_but_padded_memory_has_a_name():
    kinds = {kind for kind in vars(families).values() if hasattr(kind, "layout") and kind is not families.Encoding}
    assert kinds - set(FAMILIES.values()) == {families.PaddedShared, families.Layout} - {families.Layout}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("32x32", "begins with its family"),
        ("mma-result(warps=2x2", "bracket is not closed"),
        ("mma-result(warps=2x2)", "shape of the tensor"),
        ("mma-result(warps=two) 32x32", "whole number"),
        ("mma-result() 32x32", "needs more numbers"),
        ("mfma-result(side=16x16, transposed=false, warps=1x1) 32x32", "one whole number"),
        ("mfma-result(side=16, transposed=no, warps=1x1) 32x32", "true or false"),
        ("mma-result(warps=2x2) 48x32", "power of two"),
    ],
)
def test_text_that_tells_no_layout_is_refused(text, problem):
    with pytest.raises(BadValueError, match=problem):
        layout_of(text)


def test_misspelt_names_get_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        layout_of("mma-reslt(warps=2x2) 32x32")
    assert caught.value.nearest == "mma-result"
    with pytest.raises(UnknownNameError) as caught:
        layout_of("mma-result(warp=2x2) 32x32")
    assert caught.value.nearest == "warps"
