"""The wire of protobuf, against bytes that were worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError
from wavetank.workloads.protobuf import encoded, fields_of, message_of, varint


def test_numbers_of_the_documentation():
    # 150 is 96 01 there.
    assert encoded(150) == b"\x96\x01"
    assert varint(b"\x00\x96\x01", 1, 3, "") == (150, 3)


@given(value=st.integers(0, 2**64 - 1))
def test_numbers_come_back(value):
    assert varint(encoded(value), 0, 10, "") == (value, len(encoded(value)))


def test_fields_of_every_type_come_back_as_they_were():
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x19" + bytes(8) + b"\x25" + bytes(4)
    fields = fields_of(message, "")
    assert fields == [(1, 0, 150), (2, 2, b"abc"), (3, 1, bytes(8)), (4, 5, bytes(4))]
    assert message_of(fields) == message


@pytest.mark.parametrize(
    "message", [b"\x08", b"\x12\x05abc", b"\x0b", b"\x00\x01", b"\x08" + b"\xff" * 10, b"\x19\x00"]
)
def test_what_is_cut_off_or_no_message_is_refused(message):
    with pytest.raises(BadFileError):
        fields_of(message, "a message")
