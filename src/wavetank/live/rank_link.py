"""What a launcher of ranks and its ranks say to each other: frames of plain values and arrays over a socket pair.

A frame is its length in four bytes and a MessagePack value; arrays of numbers travel as their dtype, shape and bytes.
Nothing is imported or executed when a frame is read.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np

from wavetank.errors import BadFileError, BadValueError

FRAME_LIMIT_BYTES = 1 << 30
_ARRAY = 1
_HEAD = struct.Struct(">I")


def _marked(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        parts = [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(parts))
    if isinstance(value, np.generic):
        return value.item()
    raise BadValueError(
        "Ranks exchange plain values and arrays of numbers.",
        given=type(value).__qualname__,
        allowed="numbers, text, bytes, None, lists, dicts, numpy arrays of numbers",
        hint="turn a tensor into an array with tensor.numpy()",
    )


def _unmarked(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise ValueError(f"unknown mark {code}")
    dtype, shape, content = msgspec.msgpack.decode(data)
    if np.dtype(dtype).kind not in "biufc":
        raise ValueError(f"array of {dtype}")
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape).copy()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_marked)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_unmarked)


def encode_frame(value: Any) -> bytes:
    """Return a value as a frame.

    Raises
    ------
    BadValueError
        If it holds what is neither plain nor an array of numbers, or is longer than ``FRAME_LIMIT_BYTES``.
    """
    body = _ENCODER.encode(value)
    if len(body) > FRAME_LIMIT_BYTES:
        raise BadValueError(
            "The value is too large for one frame.", given=f"{len(body)} bytes", allowed=f"{FRAME_LIMIT_BYTES} bytes"
        )
    return _HEAD.pack(len(body)) + body


class FrameReader:
    """Takes bytes as they come and gives the values of whole frames.

    Examples
    --------
    >>> reader = FrameReader()
    >>> frame = encode_frame({"loss": 2.5})
    >>> list(reader.feed(frame[:3])), list(reader.feed(frame[3:]))
    ([], [{'loss': 2.5}])
    """

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the values of the frames that ``data`` completes.

        Raises
        ------
        BadFileError
            If the bytes are no frames.
        """
        self._held += data
        found = []
        while len(self._held) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._held)
            if length > FRAME_LIMIT_BYTES:
                raise BadFileError("A frame is longer than a rank may send.", given=f"{length} bytes")
            if len(self._held) < _HEAD.size + length:
                break
            body = bytes(self._held[_HEAD.size : _HEAD.size + length])
            del self._held[: _HEAD.size + length]
            try:
                found.append(_DECODER.decode(body))
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
                raise BadFileError("A frame holds no value.", given=str(error)) from error
        return found
