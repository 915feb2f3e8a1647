"""Codecs of a field on their own: numbers in, bytes out, and back, within a bound.

What schemes of an all-reduce do to one rank's numbers, without the ranks: the same functions in the same order, and
beside them whole compressors of others and a plain copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.training.compression.frames import FRAME_BYTES, MODES, BadFrameError, decode_frame, encode_frame
from wavetank.training.compression.quantise import Floats, Ints, differences, quantised, restored, step_of, summed
from wavetank.training.compression.rivals import CODECS

_NUMBERS = FRAME_BYTES // 4


@dataclass(frozen=True, kw_only=True)
class FrameCodec:
    """Quantises, subtracts neighbours and writes frames of one mode."""

    mode: str = setting("rans", says="Mode of all frames", choices=MODES)
    predictor: str = setting("differences", says="What of neighbours is subtracted", choices=("differences", "none"))

    def __post_init__(self) -> None:
        if self.mode not in MODES or self.predictor not in ("differences", "none"):
            raise BadValueError("There is no such mode of frames.", given=(self.mode, self.predictor), allowed=MODES)

    def compress(self, values: Floats, bound: float) -> bytes:
        """Return numbers of a grid as frames.

        Parameters
        ----------
        values : float32 array
        bound : float
        """
        return self.encode(self.integers(values, bound))

    def decompress(self, data: bytes, shape: tuple[int, ...], bound: float) -> Floats:
        """Return the numbers of frames.

        Parameters
        ----------
        data : bytes
        shape : tuple of int
        bound : float

        Raises
        ------
        BadFrameError
            If they are damaged, or of another shape.
        """
        count = math.prod(shape)
        integers = self.decode(data, count)
        if integers.size != count:
            raise BadFrameError("The frames are of another shape.", given=f"{integers.size} integers",
                                allowed=f"{count} of {shape}")  # fmt: skip
        return restored(summed(integers, shape) if self.predictor == "differences" else integers, bound).reshape(shape)

    def integers(self, values: Floats, bound: float) -> Ints:
        """Return what is written.

        Parameters
        ----------
        values : float32 array
        bound : float
        """
        found = quantised(values, bound)
        return differences(found, values.shape) if self.predictor == "differences" else found

    def encode(self, integers: Ints) -> bytes:
        """Return integers as frames.

        Parameters
        ----------
        integers : int32 array (n,)
        """
        mode = MODES.index(self.mode)
        starts = range(0, max(integers.size, 1), _NUMBERS)
        return b"".join(encode_frame(integers[start : start + _NUMBERS], mode) for start in starts)

    def decode(self, data: bytes, most: int = 1 << 26) -> Ints:
        """Return the integers of frames.

        Parameters
        ----------
        data : bytes
        most : int
            Integers that may come in all.

        Raises
        ------
        BadFrameError
            If they are damaged, or hold more.
        """
        view, parts, at = memoryview(data), [], 0
        while at < len(view):
            integers, took = decode_frame(view[at:], most)
            most -= integers.size
            parts.append(integers)
            at += took
        if not parts:
            raise BadFrameError("There is no frame.", given="no bytes")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class WholeCompressor:
    """A lossy compressor of others, given the rows of all planes as one grid: fewer bytes than three dimensions."""

    library: str = setting("sz3", says="The compressor", choices=tuple(CODECS))

    def __post_init__(self) -> None:
        if self.library not in CODECS:
            raise BadValueError("There is no such compressor.", given=self.library, allowed=CODECS)

    def compress(self, values: Floats, bound: float) -> bytes:
        """Return numbers of a grid as the library writes them.

        Parameters
        ----------
        values : float32 array
        bound : float

        Raises
        ------
        BadValueError
            For a bound or a number that is not finite, and for no numbers.
        """
        step_of(bound)
        if not values.size or not np.all(np.isfinite(values)):
            raise BadValueError("A library compresses some numbers, all finite.", given=f"{values.size} numbers",
                                allowed="one or more, neither nan nor infinity")  # fmt: skip
        return CODECS[self.library][0](values.reshape(-1, values.shape[-1]), bound)

    def decompress(self, data: bytes, shape: tuple[int, ...], bound: float) -> Floats:
        """Return the numbers that the library has written.

        Parameters
        ----------
        data : bytes
        shape : tuple of int
        bound : float
        """
        return CODECS[self.library][1](data, (math.prod(shape[:-1]), shape[-1])).reshape(shape)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Copies the numbers: what memory allows."""

    def compress(self, values: Floats, bound: float) -> bytes:
        """Return the bytes of numbers.

        Parameters
        ----------
        values : float32 array
        bound : float
        """
        return values.tobytes()

    def decompress(self, data: bytes, shape: tuple[int, ...], bound: float) -> Floats:
        """Return a copy of the numbers of bytes.

        Parameters
        ----------
        data : bytes
        shape : tuple of int
        bound : float
        """
        return np.frombuffer(data, np.float32).reshape(shape).copy()
