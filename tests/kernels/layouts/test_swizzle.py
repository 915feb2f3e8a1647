"""The placement in shared memory, held against every other placement of small tensors."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.kernels.layouts.access import (
    Banks,
    accesses,
    phase_lane_bits,
    spread_of,
    vector_bits_of,
)
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.bits import completion, rank
from wavetank.kernels.layouts.families import Blocked
from wavetank.kernels.layouts.swizzle import place

# A machine of 4 lanes and 4 banks, small enough to try every placement.
TINY = Banks(banks=4, word_bytes=4, vector_bytes=8)


@cache
def subspaces(dimension, size):
    """Return a basis of every subspace of that size, in echelon form."""
    if size == 0:
        return ((),)
    found = []
    for lead in range(size - 1, dimension):
        for rest in subspaces(lead, size - 1):
            leads = [vector.bit_length() - 1 for vector in rest]
            free = [bit for bit in range(lead) if bit not in leads]
            for mask in range(1 << len(free)):
                low = sum(1 << bit for place_, bit in enumerate(free) if mask >> place_ & 1)
                found.append((*rest, 1 << lead | low))
    return tuple(found)


def layout_of(columns, registers, lanes=2):
    return Layout(
        {
            "register": columns[:registers],
            "lane": columns[registers : registers + lanes],
            "warp": columns[registers + lanes :],
        },
        {"x": 1 << len(columns)},
    )


@st.composite
def bijections(draw, bits):
    columns = [1 << bit for bit in draw(st.permutations(range(bits)))]
    for _ in range(draw(st.integers(0, 6))):
        one, other = draw(st.integers(0, bits - 1)), draw(st.integers(0, bits - 1))
        if one != other:
            columns[one] ^= columns[other]
    return columns


def total(source, target, basis, element_bytes):
    widest = (TINY.vector_bytes // element_bytes).bit_length() - 1
    widths = vector_bits_of(basis, source, widest), vector_bits_of(basis, target, widest)
    both = accesses(basis, source, target, widths)
    return sum(side.wavefronts(element_bytes, TINY) for side in both)


def test_every_subspace_is_tried():
    # Gaussian binomial coefficients.
    assert [len(subspaces(6, size)) for size in range(7)] == [1, 63, 651, 1395, 651, 63, 1]
    assert all(rank(each) == 3 for each in subspaces(5, 3))


@pytest.mark.parametrize("common_only", [False, True])
@settings(max_examples=12, deadline=None)
@given(one=bijections(6), other=bijections(6), registers=st.integers(2, 4))
def test_no_placement_of_words_has_fewer_wavefronts(common_only, one, other, registers):
    source, target = spread_of(layout_of(one, registers)), spread_of(layout_of(other, registers))
    _, store, load = place(source, target, 6, 4, TINY, common_only=common_only)
    ours = store.wavefronts(4, TINY) + load.wavefronts(4, TINY)
    # Which elements share a bank is all that matters: the segment, and the order within a row is free.
    best = min(total(source, target, (*completion(segment, 6), *segment), 4) for segment in subspaces(6, 4))
    assert ours <= best


@settings(max_examples=8, deadline=None)
@given(one=bijections(5), other=bijections(5), registers=st.integers(1, 3))
def test_no_placement_of_half_words_has_fewer_wavefronts(one, other, registers):
    source, target = spread_of(layout_of(one, registers)), spread_of(layout_of(other, registers))
    _, store, load = place(source, target, 5, 2, TINY)
    ours = store.wavefronts(2, TINY) + load.wavefronts(2, TINY)
    # Two elements share a word, then four words are a row: every first vector, every segment that leaves it out.
    best = min(
        total(source, target, (first, *completion([first, *segment], 5), *segment), 2)
        for first in range(1, 32)
        for segment in subspaces(5, 2)
        if rank([first, *segment]) == 3
    )
    assert ours <= best


@settings(max_examples=150, deadline=None)
@given(one=bijections(10), other=bijections(10), size=st.sampled_from([1, 2, 4, 8, 16]), common=st.booleans())
def test_no_conflict_is_ever_left(one, other, size, common):
    source, target = spread_of(layout_of(one, 4, 5)), spread_of(layout_of(other, 4, 5))
    basis, *both = place(source, target, 10, size, common_only=common)
    assert rank(basis) == 10
    for side in both:
        phases = 1 << max(5 - phase_lane_bits(side.vector_bits, size, Banks()), 0)
        assert side.wavefronts(size, Banks()) == side.instructions * phases


def test_a_transposed_tile_has_conflicts_in_rows_and_none_in_the_placement():
    rows = Blocked(registers=(1, 1), lanes=(1, 32), warps=(1, 1), order=(1, 0)).layout((32, 32))
    columns = Blocked(registers=(1, 1), lanes=(32, 1), warps=(1, 1), order=(1, 0)).layout((32, 32))
    source, target = spread_of(rows), spread_of(columns)
    plain = [1 << bit for bit in (5, 6, 7, 8, 9, 0, 1, 2, 3, 4)]
    store, load = accesses(plain, source, target, (0, 0))
    assert store.wavefronts(4, Banks()) == store.instructions == 32
    assert load.instructions == 32
    assert load.wavefronts(4, Banks()) == 32 * 32
    basis, store, load = place(source, target, 10, 4, common_only=True)
    assert rank(basis) == 10
    assert store.wavefronts(4, Banks()) == load.wavefronts(4, Banks()) == 32
