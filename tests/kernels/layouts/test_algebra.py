"""The algebra of layouts: known answers, laws, Triton's opinion, and what is refused."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.kernels.layouts.algebra import Layout

identity, zeros = Layout.identity, Layout.zeros


@st.composite
def layouts(draw, bits=5, most=7):
    count = draw(st.integers(0, most))
    columns = draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=count, max_size=count))
    cut = draw(st.integers(0, count))
    flat = Layout({"a": columns[:cut], "b": columns[cut:]}, {"x": 1 << bits})
    return flat.reshape_outs({"x": 4, "y": 1 << (bits - 2)})


@st.composite
def invertible(draw, bits=6):
    order = draw(st.permutations(range(bits)))
    columns = [1 << bit for bit in order]
    for _ in range(8):
        one, other = draw(st.integers(0, bits - 1)), draw(st.integers(0, bits - 1))
        if one != other:
            columns[one] ^= columns[other]
    return Layout({"a": columns[:2], "b": columns[2:]}, {"x": 1 << bits}).reshape_outs({"x": 8, "y": 8})


# -- known answers --


def test_an_identity_has_the_powers_of_two():
    assert identity(32, "in", "out").bases == {"in": ((1,), (2,), (4,), (8,), (16,))}
    assert identity(1, "in", "out") == Layout({"in": []}, ["out"])


def test_a_product_on_the_same_dimensions_stacks():
    both = identity(16, "in", "out") * identity(32, "in", "out")
    assert both.bases["in"] == tuple((1 << bit,) for bit in range(9))
    broadcast = identity(8, "in", "out") * zeros(16, "in", "out")
    assert broadcast.bases["in"] == ((1,), (2,), (4,), (0,), (0,), (0,), (0,))


def test_a_product_on_other_dimensions_stands_beside():
    both = identity(4, "in1", "out1") * identity(2, "in2", "out2")
    assert both.bases == {"in1": ((1, 0), (2, 0)), "in2": ((0, 1),)}
    overlapping = identity(4, "in", "out1") * identity(8, "in", "out2")
    assert overlapping.bases == {"in": ((1, 0), (2, 0), (0, 1), (0, 2), (0, 4))}
    assert Layout.empty() * overlapping == overlapping == overlapping * Layout.empty()


def test_the_composition_of_the_dossier():
    inner = Layout({"in1": [(1, 1), (0, 1)], "in2": [(1, 0), (1, 2)]}, ["out1", "out2"])
    outer = Layout({"out1": [(2, 2), (1, 0)], "out2": [(1, 1), (2, 1)]}, ["out3", "out4"])
    found = inner.compose(outer)
    assert found == Layout({"in1": [(3, 3), (1, 1)], "in2": [(2, 2), (0, 3)]}, {"out3": 4, "out4": 4})
    assert not found.is_surjective


def test_inverse_and_composition_of_the_dossier():
    first = Layout({"in1": [2, 1, 4]}, ["out"])
    second = Layout({"in2": [4, 1, 2]}, ["out"])
    found = first.invert_and_compose(second)
    assert found.bases == {"in1": ((4,), (2,), (1,))}
    assert found.compose(second) == first
    third = Layout({"in2": [0, 2, 1, 4]}, ["out"])
    found = first.invert_and_compose(third)
    assert found == Layout({"in1": [2, 4, 8]}, {"in2": 16})
    assert not found.is_surjective
    assert found.compose(third) == first


def test_copies_in_the_second_layout_are_left_at_zero():
    first = Layout({"in": [1, 2, 4]}, ["out"])
    assert first.invert_and_compose(Layout({"at": [0, 4, 1, 2]}, ["out"])).bases == {"in": ((4,), (8,), (2,))}
    assert first.invert_and_compose(Layout({"at": [4, 1, 2, 0]}, ["out"])).bases == {"in": ((2,), (4,), (1,))}
    wide = Layout({"in1": [1, 2], "in2": [0]}, ["out"])
    other = Layout({"in3": [2, 1], "in4": [0]}, ["out"])
    assert wide.invert_and_compose(other).bases == {"in1": ((2, 0), (1, 0)), "in2": ((0, 0),)}


def test_one_place_of_a_layout():
    layout = Layout({"in1": [(4, 2), (2, 1), (1, 0)], "in2": [(1, 2), (2, 1)]}, {"out1": 8, "out2": 4})
    assert layout.apply() == {"out1": 0, "out2": 0}
    assert layout.apply(in1=1) == {"out1": 4, "out2": 2}
    assert layout.apply(in2=1) == {"out1": 1, "out2": 2}
    assert layout.apply(in1=5, in2=3) == {"out1": 4 ^ 1 ^ 1 ^ 2, "out2": 2 ^ 2 ^ 1}


def test_transposed_dimensions():
    layout = identity(4, "in1", "out1") * identity(2, "in2", "out2")
    assert layout.transpose_outs(["out2", "out1"]).bases == {"in1": ((0, 1), (0, 2)), "in2": ((1, 0),)}
    assert list(layout.transpose_ins(["in2", "in1"]).in_sizes) == ["in2", "in1"]


def test_reshaped_dimensions():
    layout = Layout({"in1": [1, 4, 8], "in2": [2]}, ["out"])
    assert layout.reshape_ins({"in3": 2, "in4": 8}).bases == {"in3": ((1,),), "in4": ((4,), (8,), (2,))}
    layout = Layout({"in1": [1, 4, 8], "in2": [3]}, ["out"])
    found = layout.reshape_outs({"out2": 2, "out3": 8})
    assert found.bases == {"in1": ((1, 0), (0, 2), (0, 4)), "in2": ((1, 1),)}


def test_parts_of_a_layout():
    layout = Layout({"in1": [(1, 0), (0, 1), (2, 0)], "in2": [(0, 1)]}, ["out1", "out2"])
    assert layout.sublayout(["in2", "in1"], ["out1"]).bases == {"in1": ((1,), (0,), (2,)), "in2": ((0,),)}
    assert layout.sublayout(["in1"], []).bases == {"in1": ((), (), ())}
    assert layout.sublayout([], []) == Layout.empty()
    other = Layout({"in1": [(0, 1), (0, 2)], "in2": [(1, 1)]}, ["out1", "out2"])
    assert other.sublayout_is_zero(["in1"], ["out1"])
    assert not other.sublayout_is_zero(["in1"], ["out2"])


def test_bits_that_do_not_matter():
    copies = Layout({"register": [1, 0, 2, 3], "lane": [4]}, ["out"])
    assert copies.without_broadcast().bases == {"register": ((1,), (2,)), "lane": ((4,),)}


def test_a_quotient_needs_a_dimension_that_keeps_to_itself():
    sizes = {"dim1": 4, "dim2": 8, "dim3": 4}
    free = Layout(
        {"dim1": [(1, 0, 2), (2, 0, 1)], "dim2": [(0, 1, 0), (0, 2, 0), (0, 4, 0)], "dim3": [(0, 0, 1), (0, 0, 2)]},
        sizes,
    )
    found = free.quotient(["dim2"])
    assert found is not None
    assert found.bases == {"dim1": ((1, 2), (2, 1)), "dim3": ((0, 1), (0, 2))}
    bound = Layout(
        {"dim1": [(1, 0, 2), (2, 0, 1)], "dim2": [(0, 1, 0), (0, 2, 0), (0, 4, 0)], "dim3": [(0, 1, 1), (0, 0, 2)]},
        sizes,
    )
    assert bound.quotient(["dim2"]) is None
    assert Layout.empty().quotient(["dim1"]) is None
    every = identity(8, "a", "a") * identity(2, "b", "b") * identity(4, "c", "c")
    rest = every.quotient(["a", "c"])
    assert rest == identity(2, "b", "b")


def test_division_by_a_tile():
    whole, tile = identity(8, "in", "out"), identity(4, "in", "out")
    assert whole.divide_left(tile) == identity(2, "in", "out")
    assert whole.divide_left(whole) == identity(1, "in", "out")
    assert tile.divide_left(whole) is None
    assert whole.divide_left(Layout({"in": [1, 2], "extra": [0]}, ["out"])) is None
    product = Layout({"in2": [(0, 1), (1, 0)], "in1": [(2, 0), (0, 2)]}, ["out1", "out2"])
    part = Layout({"in2": [(0, 1), (1, 0)]}, ["out1", "out2"])
    rest = Layout({"in2": [], "in1": [(1, 0), (0, 1)]}, ["out1", "out2"])
    assert part * rest == product
    assert product.divide_left(part) == rest


def test_a_fragment_fits_where_its_bits_come_first():
    fragment = identity(4, "register", "dim1") * identity(8, "lane", "dim1")
    fitting = fragment * identity(4, "register", "dim0")
    assert fitting.divide_left(fragment) is not None
    swapped = identity(8, "lane", "dim1") * identity(4, "register", "dim1")
    assert swapped.divide_left(fragment) is None


def test_the_swizzle_of_the_paper():
    swizzle = Layout({"t": [(1, 1), (2, 2)], "w": [(0, 1), (0, 2)]}, ["row", "column"])
    for t in range(4):
        for w in range(4):
            assert swizzle.apply(t=t, w=w) == {"row": t, "column": w ^ t}


# -- laws --


@given(layouts())
def test_a_layout_is_linear_and_its_rank_counts_its_outputs(layout):
    table = layout.table()
    places = np.arange(table.size)
    other = (places * 37) % table.size
    assert np.array_equal(table[places ^ other], table[places] ^ table[other])
    assert 1 << layout.rank == len(set(table.tolist()))


@given(invertible())
def test_a_layout_and_its_inverse_are_the_identity(layout):
    assert layout.compose(layout.invert()).is_identity()
    assert layout.invert().compose(layout).is_identity()
    assert layout.invert().invert() == layout


@given(layouts())
def test_reshaping_there_and_back_changes_nothing(layout):
    assert layout.reshape_outs({"p": 2, "q": 16}).reshape_outs(layout.out_sizes) == layout
    assert layout.reshape_ins({"all": 1 << layout.in_bits}).reshape_ins(layout.in_sizes) == layout
    assert layout.transpose_outs(["y", "x"]).transpose_outs(["x", "y"]) == layout


@given(layouts(bits=6), invertible())
def test_the_way_between_two_layouts_leads_to_the_same_element(one, other):
    one = one.reshape_outs(other.out_sizes)
    other = other * zeros(2, "b", "y")
    assert one.invert_and_compose(other).compose(other) == one


@given(layouts(bits=4), layouts(bits=4))
def test_division_undoes_the_product(tile, rest):
    assert (tile * rest).divide_left(tile) == rest


@given(layouts())
def test_a_layout_survives_pickling(layout):
    found = pickle.loads(pickle.dumps(layout))
    assert found == layout
    assert hash(found) == hash(layout)


@given(layouts(), layouts())
def test_triton_agrees(triton_layouts, one, other):
    def theirs(layout):
        bases = [(name, [list(basis) for basis in vectors]) for name, vectors in layout.bases.items()]
        return triton_layouts.from_bases(bases, list(layout.out_sizes), list(layout.out_sizes.values()), False)

    def mine(layout):
        return Layout(dict(layout.bases), dict(layout.out_dims))

    a, b = theirs(one), theirs(other)
    assert mine(a * b) == one * other
    assert (a.is_surjective(), a.is_injective()) == (one.is_surjective, one.is_injective)
    if other.is_surjective:
        assert mine(b.pseudoinvert()) == other.pseudo_invert()
        # Which of several places holds an element is a choice; that it holds it is none. Triton before 3.8 sets a
        # dimension aside that is alike in both layouts, and aborts the process where the others are not surjective.
        if one.bases["a"] != other.bases["a"] and one.bases["b"] != other.bases["b"]:
            assert mine(a.invert_and_compose(b)).compose(other) == one


# -- what is refused --


def test_a_basis_out_of_range_is_refused():
    with pytest.raises(BadValueError, match="outside dimension 'out'") as caught:
        Layout({"in": [1, 4]}, {"out": 4})
    assert caught.value.given == 4
    assert caught.value.where == "basis 2 of 'in'"
    with pytest.raises(BadValueError, match="whole number from 0"):
        Layout({"in": [-1]}, {"out": 4})
    with pytest.raises(BadValueError, match="one coordinate for every output"):
        Layout({"in": [(1, 2)]}, {"out": 4})


def test_sizes_must_be_powers_of_two():
    with pytest.raises(BadValueError, match="power of two") as caught:
        Layout({"in": [1]}, {"out": 3})
    assert caught.value.hint == "pad the tensor to the next power of two"
    with pytest.raises(BadValueError, match="power of two"):
        identity(0, "in", "out")


def test_outputs_left_out_must_be_meant():
    with pytest.raises(BadValueError, match="leaves elements out"):
        Layout({"in": [1, 4]}, ["out"])
    assert not Layout({"in": [1, 4]}, {"out": 8}).is_surjective


def test_what_is_not_one_to_one_has_no_inverse():
    with pytest.raises(BadValueError, match="one to one"):
        zeros(4, "in", "out").invert()
    with pytest.raises(BadValueError, match="does not hold every element"):
        Layout({"in": [1]}, {"out": 4}).pseudo_invert()
    with pytest.raises(BadValueError, match="does not hold an element") as caught:
        identity(4, "in", "out").invert_and_compose(Layout({"in": [1]}, {"out": 4}))
    assert caught.value.given == {"out": 2}


def test_layouts_of_different_tensors_do_not_go_together():
    with pytest.raises(BadValueError, match="different shapes"):
        identity(4, "in", "out").invert_and_compose(identity(8, "in", "out"))
    with pytest.raises(BadValueError, match="not the inputs"):
        identity(4, "in", "out").compose(identity(4, "other", "out"))
    with pytest.raises(BadValueError, match="larger than"):
        identity(8, "in", "out").compose(identity(4, "out", "x"))
    with pytest.raises(BadValueError, match="in contradiction"):
        (identity(2, "a", "x") * identity(2, "b", "y")) * (identity(2, "b", "y") * identity(2, "a", "x"))


def test_layouts_too_large_to_list_or_hold_are_refused():
    with pytest.raises(BadValueError, match="too many places"):
        identity(1 << 29, "in", "out").table()
    with pytest.raises(BadValueError, match="outputs are too many"):
        Layout({}, {"x": 1 << 40, "y": 1 << 40})


def test_unknown_dimensions_and_places_are_named():
    layout = identity(4, "register", "out")
    with pytest.raises(UnknownNameError) as caught:
        layout.apply(registr=1)
    assert caught.value.nearest == "register"
    with pytest.raises(BadValueError, match="does not exist"):
        layout.apply(register=4)
    with pytest.raises(UnknownNameError):
        layout.sublayout(["lane"], ["out"])
    with pytest.raises(BadValueError, match="named once"):
        layout.transpose_outs(["out", "out"])
    with pytest.raises(BadValueError, match="keeps the number"):
        layout.reshape_outs({"out": 8})
    with pytest.raises(BadValueError, match="different names"):
        Layout({"in": [(1, 1)]}, ["x", "x"])
