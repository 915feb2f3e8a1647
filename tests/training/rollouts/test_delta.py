"""Deltas of weights: exact for all that fits into 16 bits, of known size, and refused when damaged or lying."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.training.rollouts import delta
from wavetank.training.rollouts.delta import FORMATS, SIZED, bytes_per_element, decode, encode, gap_lengths

HEAD = 36


def words(*values):
    return np.array(values, dtype=np.uint16)


def changed(size, share, seed=0):
    draws = np.random.default_rng(seed)
    before = draws.integers(0, 2**16, size, dtype=np.uint16)
    after = before.copy()
    places = draws.choice(size, round(share * size), replace=False)
    after[places] ^= draws.integers(1, 2**16, places.size, dtype=np.uint16)
    return before, after


@given(st.data(), st.integers(0, 300), st.sampled_from(sorted(FORMATS)))
def test_what_is_decoded_is_what_was_encoded(data, size, form):
    before = data.draw(arrays(np.uint16, size))
    places = data.draw(st.sets(st.integers(0, size - 1))) if size else set()
    after = before.copy()
    for place in places:
        after[place] = data.draw(st.integers(0, 2**16 - 1))
    kept = before.copy()
    found = decode(encode(before, after, form), before)
    assert found.dtype == np.uint16
    assert found.tolist() == after.tolist()
    assert before.tolist() == kept.tolist()
    assert found is not before


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_far_places_and_all_weights_are_exact(form):
    before = np.zeros(3_000_000, dtype=np.uint16)
    after = before.copy()
    after[[0, 127, 128, 129, 16_700, 2_999_999]] = [1, 2, 3, 4, 5, 65_535]
    assert (decode(encode(before, after, form), before) == after).all()
    before, after = changed(10_000, 1.0)
    assert (decode(encode(before, after, form), before) == after).all()


def test_gaps_take_a_byte_for_seven_bits():
    gaps = np.array([0, 127, 128, 2**14 - 1, 2**14, 2**21, 2**28 - 1, 2**28, 2**32 - 1])
    assert gap_lengths(gaps).tolist() == [1, 1, 2, 2, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("share", [0.001, 0.02, 0.05, 0.3, 1.0])
def test_sizes_are_those_of_the_formulas(share):
    before, after = changed(400_000, share)
    for form in SIZED:
        found = (len(encode(before, after, form)) - HEAD) / before.size
        assert found == pytest.approx(bytes_per_element(form, share), rel=0.01)


def test_known_sizes_of_a_twentieth_changed():
    assert bytes_per_element("dense", 0.05) == 2
    assert bytes_per_element("coo", 0.05) == pytest.approx(0.3)
    assert bytes_per_element("bitmap", 0.05) == pytest.approx(0.225)
    # A gap of 128 or more has the probability 0.95 ** 128 = 0.0014.
    assert bytes_per_element("gap", 0.05) == pytest.approx(0.15007, abs=1e-5)
    # Index and value beat all weights below a third, a bit each beats them above a thirty-second.
    assert bytes_per_element("coo", 0.3333) < 2 < bytes_per_element("coo", 0.3334)
    assert bytes_per_element("bitmap", 0.0312) > bytes_per_element("coo", 0.0312)
    assert bytes_per_element("bitmap", 0.0313) < bytes_per_element("coo", 0.0313)
    assert bytes_per_element("gap", 0.0) == 0 and bytes_per_element("gap", 1.0) == 3


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_every_flipped_bit_and_every_cut_is_refused(form):
    before, after = changed(60, 0.2)
    stream = encode(before, after, form)
    for place in range(len(stream)):
        for bit in range(8):
            broken = bytearray(stream)
            broken[place] ^= 1 << bit
            with pytest.raises(BadFileError):
                decode(bytes(broken), before)
        with pytest.raises(BadFileError):
            decode(stream[:place], before)
    with pytest.raises(BadFileError):
        decode(stream + b"\0", before)


def test_a_delta_for_other_weights_is_refused_but_all_weights_are_not():
    before, after = changed(60, 0.2)
    other = before.copy()
    other[after == before] ^= 1
    for form in FORMATS:
        if form == "dense":
            assert (decode(encode(before, after, form), other) == after).all()
        else:
            with pytest.raises(BadFileError, match="other weights"):
                decode(encode(before, after, form), other)
        with pytest.raises(BadFileError, match="another number"):
            decode(encode(before, after, form), before[:-1])


def sealed(form, size, count, old, new, body):
    return delta._sealed(FORMATS[form], size, count, zlib.crc32(old.tobytes()), zlib.crc32(new.tobytes()), body)


@pytest.mark.parametrize(
    ("form", "count", "body"),
    [
        ("coo", 2, struct.pack("<IIHH", 3, 3, 1, 2)),  # a place twice
        ("coo", 2, struct.pack("<IIHH", 4, 3, 1, 2)),  # descending
        ("coo", 1, struct.pack("<IH", 8, 1)),  # outside
        ("coo", 2, struct.pack("<IH", 3, 1)),  # too few
        ("coo", 9, b""),  # more than there are
        ("bitmap", 1, b"\x01\x00" + struct.pack("<H", 1)),  # too many bits
        ("bitmap", 2, b"\x01" + struct.pack("<HH", 1, 2)),  # another count
        ("gap", 1, b"\x08" + struct.pack("<H", 1)),  # beyond the end
        ("gap", 1, b"\x80\x00" + struct.pack("<H", 1)),  # longer than it need be
        ("gap", 1, b"\x80" + struct.pack("<H", 1)),  # never ends
        ("gap", 1, b"\xff\xff\xff\xff\xff\x01" + struct.pack("<H", 1)),  # six bytes
        ("gap", 0, b"\x01"),  # a gap too many
        ("dense", 0, b"\0" * 15),
        ("dense", 0, b"\0" * 18),
        ("xor-zlib", 0, zlib.compress(b"\0" * 18)),
        ("xor-zlib", 0, zlib.compress(b"\0" * 14)),
        ("xor-zlib", 0, zlib.compress(b"\0" * 16) + b"more"),
        ("xor-zlib", 0, zlib.compress(b"\0" * 10**7)),  # a small stream that unpacks to much
        ("xor-zlib", 0, b"no zlib"),
        ("bitmap", 1, b"\x01" + struct.pack("<H", 7)),  # weights with another checksum
    ],
)
def test_streams_that_lie_with_the_right_checksum_are_refused(form, count, body):
    before = np.zeros(8, dtype=np.uint16)
    with pytest.raises(BadFileError, match="contradicts"):
        decode(sealed(form, 8, count, before, before, body), before)


def test_streams_of_unknown_versions_and_formats_are_refused():
    before = words(1, 2)
    stream = encode(before, before, "dense")
    with pytest.raises(BadFileError, match="another version"):
        decode(stream[:2] + b"\x09" + stream[3:], before)
    with pytest.raises(BadFileError, match="not known"):
        decode(delta._sealed(77, 2, 0, 0, 0, b""), before)
    with pytest.raises(BadFileError, match="no delta"):
        decode(b"PK" + stream[2:], before)


def test_input_that_is_no_weights_is_refused():
    with pytest.raises(BadValueError, match="16 bits"):
        encode(np.zeros(3), np.zeros(3))
    with pytest.raises(BadValueError, match="16 bits"):
        encode(np.zeros((2, 2), dtype=np.uint16), np.zeros((2, 2), dtype=np.uint16))
    with pytest.raises(BadValueError, match="as many"):
        encode(words(1), words(1, 2))
    with pytest.raises(UnknownNameError):
        encode(words(1), words(1), "cop")
    for form, share in (("coo", -0.1), ("gap", 1.1), ("bitmap", float("nan")), ("xor-zlib", 0.1)):
        with pytest.raises(BadValueError):
            bytes_per_element(form, share)
