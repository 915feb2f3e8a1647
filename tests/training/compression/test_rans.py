"""Coding by entropy: every stream comes back, within 1 % of its entropy; packed numbers take their width."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.training.compression import rans


def coded(values, shift=0, bits=14):
    """Encode and decode, with everything that a frame would carry; return what comes back and the words' bytes."""
    codes, escapes = np.empty(values.size, np.uint16), np.empty(values.size, np.uint32)
    counts, many = rans.histogram(values, shift, codes, escapes)
    shares = rans.frequencies(counts, bits)
    room = np.empty(values.size + rans.LANES, np.uint32)
    at, states = rans.encode(codes, shares, bits, room)
    words = np.concatenate([room[at:], np.zeros(rans.PADDING, np.uint32)])
    packed = np.empty(rans.packed_words(values.size, shift), np.uint32)
    if shift:
        rans.pack(values, 0, shift, True, packed)
    out = np.empty(values.size, np.int32)
    plain = not shift and not many
    taken = rans.decode(words, states, rans.decoding_table(shares, bits, plain), bits, out)
    assert taken == words.size - rans.PADDING
    assert np.all(states == 1 << 31)
    if not plain:
        assert rans.completed(out, shift, packed, escapes[:many]) == many
    return out, 4 * taken


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 64, 1001])
@pytest.mark.parametrize("shift", [0, 3])
def test_every_length_comes_back(count, shift):
    values = np.random.default_rng(count).integers(-300, 300, count).astype(np.int32)
    assert np.array_equal(coded(values, shift)[0], values)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=60), st.sampled_from([0, 1, 7, 21]))
def test_extreme_integers_come_back_by_way_of_escapes(numbers, shift):
    values = np.array(numbers, np.int32)
    assert np.array_equal(coded(values, shift)[0], values)


@pytest.mark.parametrize(("spread", "bits"), [(0.2, 12), (0.2, 14), (1.0, 12), (8.0, 12), (8.0, 14), (60.0, 14)])
def test_the_words_are_within_one_per_cent_of_the_entropy(spread, bits):
    values = np.rint(np.random.default_rng(0).laplace(0, spread, 1 << 20)).astype(np.int32)
    _, counts = np.unique(values, return_counts=True)
    shares = counts / values.size
    entropy_bytes = -float((counts * np.log2(shares)).sum()) / 8
    out, n_bytes = coded(values, bits=bits)
    assert np.array_equal(out, values)
    assert entropy_bytes - 32 <= n_bytes < 1.01 * entropy_bytes + 64


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300).filter(any), st.sampled_from([12, 14]))
def test_shares_are_a_whole_and_none_that_occurs_is_left_out(counts, bits):
    counts = np.array(counts, np.int64)
    shares = rans.frequencies(counts, bits)
    assert shares.sum() == 1 << bits
    assert np.array_equal(shares > 0, counts > 0)


def test_a_histogram_counts_codes_and_names_escapes():
    values = np.array([0, -1, 1, 5000, 0], np.int32)
    codes, escapes = np.empty(5, np.uint16), np.empty(5, np.uint32)
    counts, many = rans.histogram(values, 0, codes, escapes)
    assert codes.tolist() == [0, 1, 2, rans.ESCAPE, 0]
    assert many == 1
    assert escapes[0] == 10_000
    assert counts[:3].tolist() == [2, 1, 1]
    assert counts[rans.ESCAPE] == 1


def test_too_few_words_are_noticed():
    values = np.random.default_rng(0).integers(-300, 300, 1000).astype(np.int32)
    codes, escapes = np.empty(1000, np.uint16), np.empty(1000, np.uint32)
    counts, _ = rans.histogram(values, 0, codes, escapes)
    shares = rans.frequencies(counts, 14)
    room = np.empty(1004, np.uint32)
    at, states = rans.encode(codes, shares, 14, room)
    table = rans.decoding_table(shares, 14, True)
    cut = np.concatenate([room[at:-20], np.zeros(rans.PADDING, np.uint32)])
    assert rans.decode(cut, states, table, 14, np.empty(1000, np.int32)) == -1


def test_too_few_escapes_are_noticed():
    codes = np.full(3, rans.ESCAPE, np.int32)
    assert rans.completed(codes, 0, np.zeros(1, np.uint32), np.zeros(2, np.uint32)) == -1


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=100), st.integers(0, 31))
def test_blocks_have_the_width_of_their_largest_number_and_come_back(numbers, shift):
    values = np.array(numbers, np.int32) >> np.int32(shift)
    widths = np.empty(-(-values.size // rans.BLOCK), np.uint8)
    words = rans.block_widths(values, widths)
    natural = [2 * each if each >= 0 else -2 * each - 1 for each in values.tolist()]
    assert widths.tolist() == [max(natural[i : i + 32]).bit_length() for i in range(0, len(natural), 32)]
    assert words == widths.sum(dtype=int)
    packed = np.empty(words, np.uint32)
    rans.pack_blocks(values, widths, packed)
    # The bits of a block follow one another, lowest first.
    at = 0
    for block, width in enumerate(widths.tolist()):
        number = int.from_bytes(packed[at : at + width].tobytes(), "little")
        at += width
        own = natural[block * 32 : block * 32 + 32]
        assert number == sum(each << width * i for i, each in enumerate(own))
    out = np.empty(values.size, np.int32)
    rans.unpack_blocks(packed, widths, out)
    assert np.array_equal(out, values)


@given(st.integers(1, 32), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_packed_numbers_come_back_at_every_width(width, count, seed):
    draws = np.random.default_rng(seed)
    base = -int(draws.integers(0, 2 ** (width - 1) + 1)) if width < 32 else -(2**31)
    values = (draws.integers(0, 2**width, count) + base).astype(np.int32)
    packed = np.empty(rans.packed_words(count, width), np.uint32)
    rans.pack(values, base, width, False, packed)
    out = np.empty(count, np.int32)
    rans.unpack(packed, base, width, out)
    assert np.array_equal(out, values)
    assert 4 * packed.size <= count * width / 8 + 8
