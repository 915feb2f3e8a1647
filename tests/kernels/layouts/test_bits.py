"""Linear algebra over two elements, on whole numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.bits import (
    Span,
    avoiding,
    beyond,
    combine,
    completion,
    independent,
    intersection,
    log2_of,
    rank,
)

vectors = st.lists(st.integers(0, 63), max_size=8)


def elements(basis):
    return {combine(basis, mask) for mask in range(1 << len(basis))}


@given(vectors)
def test_the_rank_is_the_logarithm_of_the_number_of_sums(found):
    assert 1 << rank(found) == len(elements(found))
    assert rank(found) == len(independent(found))


@given(vectors, st.integers(0, 63))
def test_what_lies_in_a_span_is_told_as_a_sum_of_what_was_added(found, vector):
    span = Span(found)
    mask = span.express(vector)
    assert (vector in span) == (mask is not None) == (vector in elements(found))
    if mask is not None:
        assert combine(found, mask) == vector


@given(vectors, vectors)
def test_the_intersection_is_what_both_spaces_hold(one, other):
    found = intersection(one, other)
    assert elements(found) == elements(one) & elements(other)
    assert rank(found) == len(found)


def test_the_intersection_keeps_given_vectors_where_it_can():
    assert intersection([1, 4, 2], [6, 4, 1]) == [1, 4, 2]


@given(vectors)
def test_a_completion_spans_the_rest(found):
    rest = completion(found, 6)
    assert rank([*found, *rest]) == 6
    assert len(rest) == 6 - rank(found)


def test_what_lies_beyond_a_space_keeps_its_order():
    assert beyond([1, 2], [3, 4, 5, 8]) == [4, 8]


@given(vectors, vectors)
def test_a_space_that_avoids_two_others_is_as_large_as_the_larger_leaves_room_for(one, other):
    count = 6 - max(rank(one), rank(other))
    found = avoiding(one, other, 6, count)
    assert rank(found) == count
    assert elements(found) & elements(one) == {0}
    assert elements(found) & elements(other) == {0}
    with pytest.raises(BadValueError, match="avoids both"):
        avoiding(one, other, 6, count + 1)


@pytest.mark.parametrize(("size", "nearest"), [(12, "8 or 16"), (0, "1"), (-4, "1"), (3, "2 or 4")])
def test_sizes_that_are_no_powers_of_two_are_refused_with_the_nearest(size, nearest):
    with pytest.raises(BadValueError, match="power of two") as caught:
        log2_of(size, "dimension 0")
    assert caught.value.nearest == nearest
    assert caught.value.where == "dimension 0"


@pytest.mark.parametrize("size", [2.0, "8", None, True])
def test_sizes_that_are_no_whole_numbers_are_refused(size):
    with pytest.raises(BadValueError, match="whole number"):
        log2_of(size, "dimension 0")
