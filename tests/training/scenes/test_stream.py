"""The format: what was packed is read, and whatever is not whole is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError
from wavetank.training.scenes.stream import Reader, opened, packed, sealed


@given(st.lists(st.integers(-(2**31), 2**31)))
def test_numbers_come_back(numbers):
    reader = Reader(packed(*numbers), 0)
    assert [reader.number(-(2**31), 2**31, "number") for _ in numbers] == numbers
    assert reader.rest() == b""


def test_small_numbers_are_short():
    assert [len(packed(each)) for each in (0, -64, 63, 64, -65, 8191)] == [1, 1, 1, 2, 2, 2]


def test_every_changed_byte_and_every_cut_is_noticed():
    stream = sealed(2, b"what a scene may say")
    assert opened(stream, 2, "a test").rest() == b"what a scene may say"
    for place in range(len(stream)):
        for change in (1, 0x80):
            damaged = bytearray(stream)
            damaged[place] ^= change
            with pytest.raises(BadFileError):
                opened(bytes(damaged), 2, "a test")
        with pytest.raises(BadFileError):
            opened(stream[:place], 2, "a test")
    with pytest.raises(BadFileError, match="damaged"):
        opened(stream + b"\0", 2, "a test")


def test_foreign_streams_other_versions_and_other_kinds_are_named():
    with pytest.raises(BadFileError, match="no stream of Wavetank"):
        opened(b"\x89PNG\r\n\x1a\n and more", 2, "a test")
    with pytest.raises(BadFileError, match="another version"):
        opened(b"Wt\x07" + sealed(2, b"")[3:], 2, "a test")
    with pytest.raises(BadFileError, match="another kind") as caught:
        opened(sealed(3, b""), 2, "a test")
    assert caught.value.allowed == "2: a test"


def test_what_is_out_of_range_or_missing_is_refused():
    with pytest.raises(BadFileError, match="impossible side"):
        Reader(packed(0), 0).number(1, 9, "side")
    with pytest.raises(BadFileError, match="ends too early"):
        Reader(b"\xff\xff", 0).number(0, 9, "side")
    with pytest.raises(BadFileError, match="impossible side"):
        Reader(b"\xff" * 9, 0).number(0, 9, "side")
    with pytest.raises(BadFileError, match="impossible step"):
        Reader(b"\0\0\xc0\x7f", 0).real(0.0, 1.0, "step")
    assert Reader(b"\0\0\0\x3f", 0).real(0.0, 1.0, "step") == 0.5
