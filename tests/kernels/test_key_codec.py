"""Codes that sort like keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.kernels.key_codec import codec_for, decode, decoded, encode, encoded, identity


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_codes_sort_like_keys_and_come_back_bit_for_bit(dtype):
    rng = np.random.default_rng(0)
    unsigned = f"u{np.dtype(dtype).itemsize}"
    top = 1 if dtype == "bool" else np.iinfo(unsigned).max
    keys = rng.integers(0, top, 5000, dtype=unsigned, endpoint=True).view(dtype)
    codes = encoded(keys)
    np.testing.assert_array_equal(decoded(codes, dtype).view(unsigned), keys.view(unsigned))
    known = ~np.isnan(keys.astype(np.float64)) if np.dtype(dtype).kind == "f" else np.ones(keys.size, bool)
    by_code = keys[known][np.argsort(codes[known], kind="stable")]
    assert (by_code[:-1] <= by_code[1:]).all()
    if not known.all():
        assert codes[~known].min() > codes[known].max()


@given(st.integers(0, 2**64 - 1))
def test_one_code_of_64_bits_round_trips(bits):
    for dtype in (np.uint64, np.int64, np.float64):
        codec = codec_for(dtype)
        assert int(decode(np.uint64(encode(np.uint64(bits), codec)), codec)) == bits


def test_the_identity_leaves_codes_alone():
    plain = identity(codec_for(np.int32))
    assert int(encode(np.uint64(0x80000001), plain)) == 0x80000001


def test_minus_zero_comes_before_zero():
    codes = encoded(np.array([-0.0, 0.0], np.float32))
    assert codes[0] + 1 == codes[1]
