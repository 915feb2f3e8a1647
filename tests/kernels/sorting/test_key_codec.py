"""Codes order like the keys they stand for, and lead back to them bit for bit."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.kernels.sorting.key_codec import codec_for, decode, decoded, encode, encoded, identity

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
)  # fmt: skip


def bits(keys):
    return keys.view(f"u{keys.itemsize}")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "float16"])
def test_every_short_key_has_a_code_of_its_own_and_comes_back(dtype):
    width = 8 * np.dtype(dtype).itemsize
    keys = np.arange(1 << width).astype(f"u{width // 8}").view(dtype)
    codes = encoded(keys)
    assert codes.dtype == np.dtype(f"u{width // 8}")
    assert np.array_equal(np.sort(codes), np.arange(1 << width))
    assert np.array_equal(bits(decoded(codes, dtype)), bits(keys))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_smallest_signed_key_has_code_zero_and_the_largest_the_largest(dtype):
    limits = np.iinfo(dtype)
    codes = encoded(np.array([limits.min, -1, 0, limits.max], dtype))
    largest = np.iinfo(codes.dtype).max
    assert codes.tolist() == [0, largest // 2, largest // 2 + 1, largest]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint64"])
def test_unsigned_keys_are_their_own_codes(dtype):
    keys = np.array([0, 1, 1, 0], dtype)
    assert encoded(keys).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_ordered_from_minus_infinity_over_both_zeros_to_nans(dtype):
    tiny, huge = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    keys = np.array([-np.inf, -huge, -1, -tiny, -0.0, 0.0, tiny, 1, huge, np.inf, np.nan, -np.nan], dtype)
    codes = encoded(keys)
    assert codes[0] == 0
    assert (np.diff(codes.astype(object)) > 0).all()
    assert np.array_equal(bits(decoded(codes, dtype)), bits(keys))


@given(st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, st.integers(0, 40))))
@settings(max_examples=150, deadline=None)
def test_codes_compare_as_their_keys_do_and_come_back(keys):
    codes = encoded(keys)
    assert np.array_equal(bits(decoded(codes, keys.dtype)), bits(keys))
    ordered = np.argsort(codes, kind="stable")
    np.testing.assert_array_equal(keys[ordered], np.sort(keys, kind="stable"))
    assert (codes[1:][keys[1:] < keys[:-1]] < codes[:-1][keys[1:] < keys[:-1]]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_and_plain_mapping_agree(dtype):
    codec = codec_for(dtype)
    width = 8 * np.dtype(dtype).itemsize
    for number in (0, 1, (1 << width - 1) - 1, 1 << width - 1, (1 << width) - 1):
        raw = np.uint64(number)
        with np.errstate(over="ignore"):
            code = encode.py_func(raw, codec)
            assert decode.py_func(code, codec) == raw
        assert encode(raw, codec) == code
        assert decode(code, codec) == raw


def test_the_identity_leaves_codes_of_any_type_as_they_are():
    plain = identity(codec_for(np.float32))
    for number in (0, 1, 1 << 31, (1 << 32) - 1):
        assert encode(np.uint64(number), plain) == decode(np.uint64(number), plain) == number


@given(st.integers(0, (1 << 64) - 1))
def test_any_64_bits_come_back_from_the_compiled_mapping(number):
    for dtype in (np.uint64, np.int64, np.float64):
        codec = codec_for(dtype)
        assert int(decode(np.uint64(encode(np.uint64(number), codec)), codec)) == number


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_minus_zero_comes_directly_before_zero(dtype):
    codes = encoded(np.array([-0.0, 0.0], dtype))
    assert codes[0] + 1 == codes[1]
