"""The wire of protobuf: fields of a message as (number, type, value), and back to the same bytes.

Source: Protocol Buffers, "Encoding" (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Sequence

from wavetank.errors import BadFileError

Field = tuple[int, int, int | bytes]
"""Number, type on the wire (0 varint, 1 and 5 fixed, 2 of some length), value."""

_MOST_VARINT_BYTES = 10


def varint(content: bytes, at: int, end: int, where: str) -> tuple[int, int]:
    """Return a number of 64 bits or fewer, and the place behind it.

    Parameters
    ----------
    content : bytes
    at, end : int
        Where it begins, and where the content ends.
    where : str
        For messages.

    Raises
    ------
    BadFileError
        If it is cut off or too long.
    """
    value = shift = 0
    for place in range(at, min(end, at + _MOST_VARINT_BYTES)):
        value |= (content[place] & 0x7F) << shift
        shift += 7
        if content[place] < 0x80 and value < 2**64:
            return value, place + 1
    raise BadFileError("A number of the trace is cut off or too long.", given=f"at byte {at}", where=where)


def encoded(value: int) -> bytes:
    """Return the bytes of a number from 0.

    Parameters
    ----------
    value : int
    """
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def fields_of(message: bytes, where: str) -> list[Field]:
    """Return the fields of a message, in their order.

    Parameters
    ----------
    message : bytes
    where : str
        For messages.

    Raises
    ------
    BadFileError
        If it is cut off, damaged, or no message.
    """
    at, found = 0, list[Field]()
    while at < len(message):
        key, at = varint(message, at, len(message), where)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, at = varint(message, at, len(message), where)
        else:
            if wire == 2:
                size, at = varint(message, at, len(message), where)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
            else:
                raise BadFileError("A field of the trace is of no type that protobuf has.", given=wire, where=where)
            value, at = message[at : at + size], at + size
        if number == 0 or at > len(message):
            raise BadFileError("A message of the trace is cut off or damaged.", given=f"field {number}", where=where)
        found.append((number, wire, value))
    return found


def message_of(fields: Sequence[Field]) -> bytes:
    """Return the message of some fields.

    Parameters
    ----------
    fields : sequence of tuple
        As of :func:`fields_of`.
    """
    found = bytearray()
    for number, wire, value in fields:
        found += encoded(number << 3 | wire)
        if isinstance(value, int):
            found += encoded(value)
        else:
            found += (encoded(len(value)) if wire == 2 else b"") + value
    return bytes(found)
