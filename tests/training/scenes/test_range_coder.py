"""The range coder: what goes in comes out, and its bytes are those of the entropy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.training.scenes.range_coder import (
    TOTAL,
    decode_counted,
    decode_interval,
    decode_target,
    encode_counted,
    encode_interval,
    finish,
    new_state,
    reading_state,
)


def code(intervals):
    """Encode (low, count, total) triples, and decode them again by their totals."""
    state, out = new_state(), np.zeros(64 + 8 * len(intervals), np.uint8)
    for low, count, total in intervals:
        encode_interval(state, out, low, count, total)
    data = out[: finish(state, out)].copy()
    state = reading_state(data)
    for low, count, total in intervals:
        assert low <= decode_target(state, total) < low + count
        decode_interval(state, data, low, count, total)
    return data


@st.composite
def triples(draw):
    total = draw(st.integers(1, TOTAL))
    low = draw(st.integers(0, total - 1))
    return low, draw(st.integers(1, total - low)), total


@given(st.lists(triples(), max_size=60))
@settings(max_examples=200, deadline=None)
def test_every_sequence_of_intervals_comes_back(intervals):
    data = code(intervals)
    needed = sum(np.log2(total / count) for _, count, total in intervals) / 8
    assert len(data) <= needed + 1 + 1e-6 * len(intervals)


def test_an_interval_across_a_border_of_bytes_loses_nothing():
    # Just below and just above one half in turn: the leading bytes stay open until the end.
    half = TOTAL // 2
    for last in (0, 1):
        intervals = [(half - 1, 2, TOTAL)] + [(half - 1, 2, TOTAL)] * 40 + [(half - 1 + last, 1, TOTAL)]
        needed = sum(np.log2(total / count) for _, count, total in intervals) / 8
        assert len(code(intervals)) <= needed + 1 + 1e-6 * len(intervals)


@pytest.mark.parametrize("low", [0, TOTAL // 2 - 1, TOTAL // 2, TOTAL - 1])
def test_rare_symbols_at_the_borders_of_the_interval_come_back(low):
    # The same narrow interval again and again, on both sides of the middle: where carries would run.
    code([(low, 1, TOTAL)] * 200)
    code([(TOTAL // 2 - 1, 2, TOTAL)] * 200)


@pytest.mark.parametrize("alphabet", [1, 2, 40, 3000])
def test_counts_that_follow_the_data_come_near_to_its_entropy(alphabet):
    rng = np.random.default_rng(alphabet)
    symbols = np.minimum(rng.geometric(0.2, 12_000) - 1, alphabet - 1).astype(np.int64)
    data = encode_counted(symbols, alphabet)
    assert (decode_counted(data, symbols.size, alphabet) == symbols).all()
    share = np.bincount(symbols) / symbols.size
    share = share[share > 0]
    entropy = -float((share * np.log2(share)).sum()) * symbols.size / 8
    assert entropy - 40 <= len(data) <= 1.02 * entropy + 16 + 0.01 * alphabet


def test_nothing_is_no_bytes_and_zeros_behind_are_left_out():
    assert encode_counted(np.zeros(0, np.int64), 5).size == 0
    assert encode_counted(np.zeros(10_000, np.int64), 1).size == 0
    found = encode_counted(np.array([3, 1, 2], np.int64), 4)
    assert found.size == 0 or found[-1] != 0
