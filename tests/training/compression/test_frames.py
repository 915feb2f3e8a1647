"""Frames: what goes in comes out, any damage is an error, and modes are chosen by what they take."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.compression.frames import (
    BLOCKS,
    FIXED,
    HEAD_BYTES,
    MODES,
    RANS,
    RAW,
    BadFrameError,
    Speeds,
    choose,
    decode_frame,
    encode_frame,
    entropy_bits,
    estimates,
    left_out,
    sample_of,
)

DRAWS = np.random.default_rng(1)
FRAMES = {
    "empty": np.zeros(0, np.int32),
    "one": np.array([-7], np.int32),
    "constant": np.full(5000, 123456, np.int32),
    "zeros": np.zeros(70_000, np.int32),
    "random": DRAWS.integers(-(2**31), 2**31, 20_000).astype(np.int32),
    "skewed": np.rint(DRAWS.laplace(0, 1.2, 100_003)).astype(np.int32),
    "wide": np.rint(DRAWS.normal(0, 1e6, 40_001)).astype(np.int32),
    "extreme": np.array([-(2**31), 2**31 - 1, 0] * 500, np.int32),
    "outliers": np.where(DRAWS.random(50_000) < 0.01, DRAWS.integers(-(2**31), 2**31, 50_000), 0).astype(np.int32),
}


@pytest.mark.parametrize("mode", [RAW, FIXED, RANS, BLOCKS])
@pytest.mark.parametrize("name", FRAMES)
def test_what_goes_in_comes_out(name, mode):
    values = FRAMES[name]
    data = encode_frame(values, mode)
    out, took = decode_frame(data + b"more")
    assert took == len(data)
    assert out.dtype == np.int32
    assert np.array_equal(out, values)
    # No mode makes a frame longer than raw, but for its head.
    assert len(data) <= 4 * values.size + HEAD_BYTES + 8


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=80), st.sampled_from([RAW, FIXED, RANS, BLOCKS]))
def test_any_integers_come_out(numbers, mode):
    values = np.array(numbers, np.int32)
    assert np.array_equal(decode_frame(encode_frame(values, mode))[0], values)


def test_a_constant_frame_takes_its_head_alone_and_widths_are_the_least():
    assert len(encode_frame(FRAMES["constant"], FIXED)) == HEAD_BYTES
    values = np.array([1000, 1007] * 400, np.int32)
    # Three bits hold 0 to 7.
    assert len(encode_frame(values, FIXED)) <= HEAD_BYTES + 800 * 3 / 8 + 8
    assert len(encode_frame(values + np.int32([0, 1] * 400), FIXED)) > HEAD_BYTES + 800 * 3 / 8 + 8


def test_blocks_take_the_bits_of_their_largest_number_and_a_byte():
    values = np.zeros(96, np.int32)
    values[40] = -5
    # -5 becomes 9, which takes four bits; 32 of them are four words.
    assert len(encode_frame(values, BLOCKS)) == HEAD_BYTES + 3 + 4 * 4
    smooth = np.rint(np.random.default_rng(5).normal(0, 1, 1 << 16) * np.repeat([1, 1000], 1 << 15)).astype(np.int32)
    assert len(encode_frame(smooth, BLOCKS)) < 0.8 * len(encode_frame(smooth, FIXED))


def test_large_frames_are_within_one_per_cent_of_the_entropy_with_table_and_head():
    for spread in (1.0, 20.0, 3000.0):
        values = np.rint(np.random.default_rng(2).normal(0, spread, 1 << 20)).astype(np.int32)
        _, counts = np.unique(values, return_counts=True)
        entropy_bytes = values.size * entropy_bits(counts) / 8
        assert len(encode_frame(values, RANS)) < 1.01 * entropy_bytes + 200


@pytest.mark.parametrize("mode", [RAW, FIXED, RANS, BLOCKS])
def test_every_change_of_a_bit_and_every_cut_is_an_error(mode):
    data = encode_frame(np.rint(np.random.default_rng(3).normal(0, 5, 40)).astype(np.int32), mode)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(BadFrameError):
            decode_frame(bytes(damaged))
        with pytest.raises(BadFrameError):
            decode_frame(data[:place])


def with_sum(data):
    """Return a frame with a checksum that is right, whatever it holds."""
    head = bytes(data[: HEAD_BYTES - 4])
    return head + struct.pack("<I", zlib.crc32(bytes(data[HEAD_BYTES:]), zlib.crc32(head))) + bytes(data[HEAD_BYTES:])


@pytest.mark.parametrize("mode", [FIXED, RANS, BLOCKS])
def test_a_frame_made_up_with_a_right_checksum_is_an_error_or_integers_and_never_a_crash(mode):
    values = np.where(np.arange(300) % 9 == 0, 10**6, np.arange(300) % 5).astype(np.int32)
    data = encode_frame(values, mode)
    draws = np.random.default_rng(4)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(data)
        for place in draws.integers(2, len(data), draws.integers(1, 4)):
            damaged[place] = draws.integers(256)
        damaged[16:20] = struct.pack("<I", len(data) - HEAD_BYTES)
        try:
            out, _ = decode_frame(with_sum(damaged), most=4096)
        except BadFrameError:
            refused += 1
        else:
            assert out.dtype == np.int32
            assert out.size <= 4096
    assert refused > 30


@pytest.mark.parametrize("mode", [RAW, FIXED, RANS, BLOCKS])
def test_a_frame_of_a_writer_with_another_key_is_refused(mode):
    values = FRAMES["skewed"]
    data = encode_frame(values, mode, key=7)
    assert np.array_equal(decode_frame(data, key=7)[0], values)
    for key in (0, 8):
        with pytest.raises(BadFrameError, match="another task"):
            decode_frame(data, key=key)


def test_a_count_beyond_what_may_come_is_refused_before_room_is_made():
    with pytest.raises(BadFrameError, match="no frame"):
        decode_frame(encode_frame(np.zeros(1 << 20, np.int32), FIXED), most=1000)


def test_what_is_no_row_of_integers_or_no_mode_is_refused():
    for wrong in (np.zeros(3), np.zeros((2, 2), np.int32), np.zeros(3, np.int64)):
        with pytest.raises(BadValueError, match="32-bit"):
            encode_frame(wrong, RAW)
    with pytest.raises(BadValueError, match="mode"):
        encode_frame(np.zeros(3, np.int32), 4)


def test_a_slow_link_chooses_few_bytes_and_a_fast_one_no_codec():
    values = FRAMES["skewed"]
    assert choose(values, Speeds(link_bytes_per_s=1e6)) == RANS
    assert choose(values, Speeds(link_bytes_per_s=1e12)) == RAW
    # Between them packing is worth its time, which is a third of that of coding by entropy.
    between = Speeds(link_bytes_per_s=1e9, fixed_bytes_per_s=3e9, rans_bytes_per_s=3e8, frame_s=0.0)
    assert choose(values, between) == FIXED


def test_incompressible_and_tiny_frames_stay_raw():
    assert choose(FRAMES["random"], Speeds(link_bytes_per_s=1e7)) == RAW
    assert choose(FRAMES["one"], Speeds(link_bytes_per_s=1e7)) == RAW
    assert choose(FRAMES["empty"], Speeds()) == RAW


def test_estimated_sizes_are_those_of_frames_and_times_add_up():
    values = FRAMES["skewed"]
    speeds = Speeds(link_bytes_per_s=1e8, fixed_bytes_per_s=1e9, rans_bytes_per_s=5e8, frame_s=1e-5)
    found = estimates(values, speeds)
    for each in found:
        assert each.n_bytes + HEAD_BYTES == pytest.approx(len(encode_frame(values, each.mode)), rel=0.02)
    assert found[RAW].time_s == pytest.approx((4 * values.size + HEAD_BYTES) / 1e8)
    codec_s = 1e-5 + 4 * values.size / 5e8
    link_s = (found[RANS].n_bytes + HEAD_BYTES) / 1e8
    assert found[RANS].time_s == pytest.approx(codec_s + link_s)
    # Ten frames: while one travels the next is coded.
    assert estimates(values, speeds, 10)[RANS].time_s == pytest.approx(codec_s + link_s + 9 * max(codec_s, link_s))
    # Or a frame that stands for one of ten times its length.
    assert estimates(values, speeds, times=10)[RANS].time_s == pytest.approx(10 * (codec_s + link_s), rel=0.02)


def test_a_sample_has_64_kib_at_most_and_reaches_both_ends():
    values = np.arange(1 << 20, dtype=np.int32)
    sample = sample_of(values)
    assert sample.size == 16384
    assert sample[0] == 0
    assert sample[-1] == values[-1]
    assert sample_of(values[:100]).size == 100


def test_bits_are_left_out_of_wide_integers_alone():
    assert left_out(FRAMES["skewed"]) == 0
    assert left_out(FRAMES["outliers"]) == 0
    assert left_out(FRAMES["wide"]) > 5
    assert left_out(FRAMES["empty"]) == 0


def test_entropy_of_a_fair_coin_is_a_bit():
    assert entropy_bits(np.array([5, 5, 0])) == pytest.approx(1.0)
    assert entropy_bits(np.array([0, 0])) == 0.0


def test_speeds_of_nothing_are_refused():
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadValueError):
            Speeds(link_bytes_per_s=wrong)
    assert len(MODES) == 4
    assert Speeds().codec_s(RAW, 10**6) == 0.0
