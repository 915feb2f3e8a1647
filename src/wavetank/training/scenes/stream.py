"""The format of streams: a header with its version, a check of the whole, and numbers of few bytes.

``Wt``, version (one byte), checksum (CRC-32 of all that follows), kind (one byte), then what the kind says.  The
checksum is read before anything else is believed, so that a damaged, truncated or foreign stream is refused as such.
"""

from __future__ import annotations

import struct
import zlib

from wavetank.errors import BadFileError

MAGIC = b"Wt"
VERSION = 2
_HEAD = struct.Struct("<2sBIB")
# A number has at most 32 bits.
_LONGEST = 5


def sealed(kind: int, body: bytes) -> bytes:
    """Return a stream of a kind.

    Parameters
    ----------
    kind : int
        From 0 to 255.
    body : bytes
    """
    checksum = zlib.crc32(bytes([kind]) + body)
    return _HEAD.pack(MAGIC, VERSION, checksum, kind) + body


def opened(stream: bytes, kind: int, what: str) -> Reader:
    """Return a reader behind the head of a stream that is whole and of a kind.

    Parameters
    ----------
    stream : bytes
    kind : int
    what : str
        What streams of the kind are, for the message.

    Raises
    ------
    BadFileError
        If the stream is foreign, of another version or kind, damaged or cut off.
    """
    if len(stream) < _HEAD.size or stream[:2] != MAGIC:
        raise BadFileError(
            "This is no stream of Wavetank.", given=f"{len(stream)} bytes that begin with {stream[:2]!r}",
            allowed=f"{_HEAD.size} bytes or more that begin with {MAGIC!r}",
        )  # fmt: skip
    _, version, checksum, found = _HEAD.unpack_from(stream)
    if version != VERSION:
        raise BadFileError(
            "The stream has another version of the format.", given=version, allowed=str(VERSION),
            hint="decode it with the version of Wavetank that made it",
        )  # fmt: skip
    if zlib.crc32(stream[_HEAD.size - 1 :]) != checksum:
        raise BadFileError(
            "The stream is damaged or cut off: its checksum is another one.", given=f"{len(stream)} bytes",
            hint="get it again from where it was made",
        )  # fmt: skip
    if found != kind:
        raise BadFileError("The stream is of another kind.", given=found, allowed=f"{kind}: {what}")
    return Reader(stream, _HEAD.size)


def packed(*numbers: int) -> bytes:
    """Return whole numbers, signed ones too, in as few bytes as they need.

    Parameters
    ----------
    *numbers : int
        Of at most 31 bits and a sign.
    """
    found = bytearray()
    for number in numbers:
        # Signs in the lowest bit keep small negative numbers short.
        left = number * 2 if number >= 0 else -number * 2 - 1
        while left > 127:
            found.append(left & 127 | 128)
            left >>= 7
        found.append(left)
    return bytes(found)


class Reader:
    """Reads a stream from front to back.

    Parameters
    ----------
    stream : bytes
    place : int
        Of the first byte to read.
    """

    def __init__(self, stream: bytes, place: int) -> None:
        self._stream = stream
        self._place = place

    def take(self, size: int) -> bytes:
        """Return the next bytes.

        Parameters
        ----------
        size : int

        Raises
        ------
        BadFileError
            If the stream has fewer.
        """
        found = self._stream[self._place : self._place + size]
        if len(found) < size:
            raise BadFileError("The stream ends too early.", given=f"{len(self._stream)} bytes")
        self._place += size
        return found

    def number(self, low: int, high: int, what: str) -> int:
        """Return the next whole number.

        Parameters
        ----------
        low, high : int
            What is allowed.
        what : str
            What it is, for the message.

        Raises
        ------
        BadFileError
            If it is out of range or not there.
        """
        found = 0
        for place in range(_LONGEST):
            byte = self.take(1)[0]
            found |= (byte & 127) << 7 * place
            if byte < 128:
                break
        found = -(found + 1 >> 1) if found & 1 else found >> 1
        if not low <= found <= high:
            raise BadFileError(f"The stream has an impossible {what}.", given=found, allowed=f"{low} to {high}")
        return found

    def real(self, low: float, high: float, what: str) -> float:
        """Return the next float32.

        Parameters
        ----------
        low, high : float
        what : str

        Raises
        ------
        BadFileError
            If it is out of range, no number, or not there.
        """
        (found,) = struct.unpack("<f", self.take(4))
        if not low <= found <= high:
            raise BadFileError(f"The stream has an impossible {what}.", given=found, allowed=f"{low} to {high}")
        return float(found)

    def rest(self) -> bytes:
        """Return what is left."""
        found = self._stream[self._place :]
        self._place = len(self._stream)
        return found
