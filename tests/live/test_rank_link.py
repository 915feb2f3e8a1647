"""Frames between a launcher and its ranks."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError
from wavetank.live.rank_link import FrameReader, encode_frame


@given(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63), st.text(), st.dictionaries(st.text(), st.floats()))),
    st.integers(1, 7),
)
def test_values_come_back_however_the_bytes_are_cut(values: list[Any], cut: int) -> None:
    stream = b"".join(encode_frame([value]) for value in values)
    reader = FrameReader()
    found = [value for i in range(0, len(stream), cut) for value in reader.feed(stream[i : i + cut])]
    assert repr(found) == repr([[value] for value in values])


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?", "c16"])
def test_arrays_come_back_with_dtype_and_shape_and_can_be_written(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    (found,) = FrameReader().feed(encode_frame(array[:, ::2]))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array[:, ::2])
    found[0, 0] = 1


@pytest.mark.parametrize("value", [object(), np.array([object()]), lambda: None])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises((BadValueError, TypeError)):
        encode_frame({"value": value})


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 1) + b"\xc1",
        struct.pack(">I", 3) + msgspec.msgpack.encode(msgspec.msgpack.Ext(9, b"")),
    ],
)
def test_bytes_that_are_no_frame_are_named_as_such(data: bytes) -> None:
    with pytest.raises(BadFileError, match="frame"):
        FrameReader().feed(data)


def test_an_array_of_objects_is_never_made() -> None:
    body = msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["|O", [1], b"12345678"])))
    with pytest.raises(BadFileError, match="no value"):
        FrameReader().feed(struct.pack(">I", len(body)) + body)
