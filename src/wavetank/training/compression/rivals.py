"""Other ways to send less: nothing, a cast, quantising at every hop, and whole lossy compressors.

All of them exchange parts in as many rounds as ours and have their messages cut into frames as ours are, so that codecs
and links overlap for all.  What lossy compressors decode is added in single precision.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, missing_extra
from wavetank.settings import check_ranges, setting
from wavetank.training.compression.frames import RANS, BadFrameError, decode_frame, encode_frame
from wavetank.training.compression.interface import Floats, Message, Rounds, Task, Work
from wavetank.training.compression.quantise import differences, quantised, restored, step_of, summed
from wavetank.training.compression.ring import direct, ring

_BLOCK = 256
_LEVELS = 127
# Compressors of grids have their own rules for very small ones.
_SMALL = 64
_SEAL = struct.Struct("<II")


class _Floats:
    """Sums numbers in single precision."""

    lossless: ClassVar[bool] = False

    def rounds(self, values: Floats, place: int, task: Task, work: Work) -> Rounds:
        """Run one rank's part of a ring.

        Parameters
        ----------
        values, place, task, work
            As for :func:`~wavetank.training.compression.ring.ring`.
        """
        return ring(self, values, place, task, work)  # type: ignore[arg-type]

    def begin(self, values: Floats, place: int, task: Task, work: Work) -> Generator[Message, bytes, Floats]:
        """Return a copy."""
        yield from ()
        return values.copy()

    def end(self, total: Floats, task: Task, work: Work) -> Floats:
        """Return the total as it is."""
        return total


@dataclass(frozen=True, kw_only=True)
class PlainRing(_Floats):
    """Sends numbers as they are."""

    lossless: ClassVar[bool] = True

    def encode(self, part: Floats, at: slice, task: Task, work: Work, *, last: bool) -> bytes:
        """Return the bytes of a part."""
        return part.tobytes()

    def decode(self, data: bytes, at: slice, task: Task, work: Work, *, when: str) -> Floats:
        """Return the numbers of bytes."""
        return _numbers(data, np.dtype(np.float32), at.stop - at.start)


@dataclass(frozen=True, kw_only=True)
class Bfloat16(_Floats):
    """Casts what is sent to bfloat16: half of the bytes, eight bits of mantissa, at every hop."""

    def encode(self, part: Floats, at: slice, task: Task, work: Work, *, last: bool) -> bytes:
        """Return the upper halves of a part's numbers, rounded to the nearest, of two the even one."""
        work.did("cast", part.size)
        bits = part.view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
        # Rounding up the mantissa of a nan would make a number of it.
        return np.where(np.isnan(part), np.uint16(0x7FC0), rounded).astype("<u2").tobytes()

    def decode(self, data: bytes, at: slice, task: Task, work: Work, *, when: str) -> Floats:
        """Return the numbers of upper halves."""
        halves = _numbers(data, np.dtype("<u2"), at.stop - at.start)
        work.did("cast", halves.size, when)
        return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True, kw_only=True)
class QuantisedHops(_Floats):
    """Quantises, codes, decodes and restores at every hop, by the bound that others quantise by once."""

    def encode(self, part: Floats, at: slice, task: Task, work: Work, *, last: bool) -> bytes:
        """Return a part's integers, less their neighbours, by entropy."""
        for kind in ("quantise", "rans-encode"):
            work.did(kind, part.size)
        integers = quantised(part, _bound(task))
        return encode_frame(differences(integers, task.rows(at)), RANS, task.key)

    def decode(self, data: bytes, at: slice, task: Task, work: Work, *, when: str) -> Floats:
        """Return the numbers of a part."""
        integers, took = decode_frame(data, at.stop - at.start, task.key)
        if integers.size != at.stop - at.start or took != len(data):
            raise BadFrameError("A message has another number of integers.", given=integers.size)
        for kind in ("rans-decode", "restore"):
            work.did(kind, integers.size, when)
        return restored(summed(integers, task.rows(at)), _bound(task))


@dataclass(frozen=True, kw_only=True)
class EightBitHops(_Floats):
    """Sends 8 bits of each number at every hop, with a scale for each 256: quantising without coding by entropy."""

    def encode(self, part: Floats, at: slice, task: Task, work: Work, *, last: bool) -> bytes:
        """Return scales and integers of a part."""
        work.did("quantise", part.size)
        padded = np.zeros(-(-part.size // _BLOCK) * _BLOCK, np.float32)
        padded[: part.size] = part
        blocks = padded.reshape(-1, _BLOCK)
        scales = np.abs(blocks).max(axis=1) / np.float32(_LEVELS) if blocks.size else np.zeros(0, np.float32)
        if not np.all(np.isfinite(scales)):
            raise BadValueError("What is not finite cannot be quantised.", given="nan or infinity",
                                allowed="finite numbers")  # fmt: skip
        some = np.where(scales > 0, scales, np.float32(1))
        integers = np.clip(np.rint(blocks / some[:, None]), -_LEVELS, _LEVELS).astype(np.int8)
        return scales.astype("<f4").tobytes() + integers.reshape(-1)[: part.size].tobytes()

    def decode(self, data: bytes, at: slice, task: Task, work: Work, *, when: str) -> Floats:
        """Return the numbers of scales and integers."""
        count = at.stop - at.start
        blocks = -(-count // _BLOCK)
        if len(data) != 4 * blocks + count:
            raise BadFrameError("A message has another number of integers.", given=f"{len(data)} bytes")
        work.did("restore", count, when)
        scales = np.frombuffer(data, "<f4", blocks)
        return np.frombuffer(data, np.int8, count, 4 * blocks) * np.repeat(scales, _BLOCK)[:count]


@dataclass(frozen=True, kw_only=True)
class LossyCompressor(_Floats):
    """A whole compressor around each message: at every hop of a ring, or at the ends of a direct exchange.

    At the ends a number is compressed twice, itself and in the sum, with a bound so much smaller that the sum stays
    within the same error as when every rank's number is quantised once.
    """

    library: str = setting("sz3", says="The compressor", choices=("sz3", "zfp"))
    where: str = setting("ends", says="Where numbers are compressed", choices=("ends", "hops"))

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.library not in CODECS or self.where not in ("ends", "hops"):
            raise BadValueError("There is no such compressor.", given=(self.library, self.where), allowed=CODECS)

    def rounds(self, values: Floats, place: int, task: Task, work: Work) -> Rounds:
        """Run one rank's part of a direct exchange, or of a ring.

        Parameters
        ----------
        values, place, task, work
            As for :func:`~wavetank.training.compression.ring.ring`.

        Raises
        ------
        BadValueError
            For numbers that are not finite.
        MissingExtraError
            If the library is not there.
        """
        return (direct if self.where == "ends" else ring)(self, values, place, task, work)

    def encode(self, part: Floats, at: slice, task: Task, work: Work, *, last: bool) -> bytes:
        """Return a part as the library writes it."""
        work.did(f"{self.library.removesuffix('3')}-encode", part.size)
        if not np.all(np.isfinite(part)):
            raise BadValueError("What is not finite cannot be quantised.", given="nan or infinity",
                                allowed="finite numbers")  # fmt: skip
        if part.size < _SMALL:
            return _sealed(part.tobytes(), task)
        bound = _bound(task)
        if self.where == "ends":
            bound *= task.size / (task.size + 1)
        return _sealed(CODECS[self.library][0](np.ascontiguousarray(part.reshape(task.rows(at))), bound), task)

    def decode(self, data: bytes, at: slice, task: Task, work: Work, *, when: str) -> Floats:
        """Return the part that the library reads."""
        count, data = at.stop - at.start, _opened(data, task)
        work.did(f"{self.library.removesuffix('3')}-decode", count, when)
        if count < _SMALL:
            return _numbers(data, np.dtype(np.float32), count)
        found = CODECS[self.library][1](data, task.rows(at))
        if found.size != count:
            raise BadFrameError("A message has another number of numbers.", given=found.size, allowed=str(count))
        return found.reshape(-1)


def _sealed(data: bytes, task: Task) -> bytes:
    # Libraries do not notice all damage, and make room for whatever a header says.
    return _SEAL.pack(len(data), zlib.crc32(data, task.key)) + data


def _opened(data: bytes, task: Task) -> bytes:
    body = data[_SEAL.size :]
    if len(data) < _SEAL.size or _SEAL.unpack_from(data) != (len(body), zlib.crc32(body, task.key)):
        raise BadFrameError("A message is damaged, or belongs to another task.", given=f"{len(data)} bytes")
    return body


def _bound(task: Task) -> float:
    step_of(task.bound)
    return task.bound


def _numbers(data: bytes, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    if len(data) != dtype.itemsize * count:
        raise BadFrameError("A message has another number of numbers.", given=f"{len(data)} bytes",
                            allowed=f"{dtype.itemsize * count} bytes")  # fmt: skip
    return np.frombuffer(data, dtype)


def sz3_encode(part: Floats, bound: float) -> bytes:
    """Return numbers as SZ3 writes them.

    Parameters
    ----------
    part : float32 array
        Of one to three dimensions.
    bound : float
        Largest error.
    """
    sz = _library("pysz")
    config = sz.szConfig()
    config.errorBoundMode = sz.szErrorBoundMode.ABS
    config.absErrorBound = bound
    compressed, _ = sz.sz.compress(part, config)
    return bytes(compressed.tobytes())


def sz3_decode(data: bytes, shape: tuple[int, ...]) -> Floats:
    """Return the numbers that SZ3 has written.

    Parameters
    ----------
    data : bytes
    shape : tuple of int
    """
    found, _ = _library("pysz").sz.decompress(np.frombuffer(data, np.uint8), np.float32, shape)
    return np.asarray(found, np.float32)


def zfp_encode(part: Floats, bound: float) -> bytes:
    """Return numbers as zfp writes them in its mode of fixed accuracy.

    Parameters
    ----------
    part : float32 array
        Of one to four dimensions.
    bound : float
        Largest error.
    """
    return bytes(_library("zfpy").compress_numpy(part, tolerance=bound))


def zfp_decode(data: bytes, shape: tuple[int, ...]) -> Floats:
    """Return the numbers that zfp has written; their shape is in the data.

    Parameters
    ----------
    data : bytes
    shape : tuple of int
    """
    return np.asarray(_library("zfpy").decompress_numpy(data), np.float32)


CODECS: dict[str, tuple[Callable[[Floats, float], bytes], Callable[[bytes, tuple[int, ...]], Floats]]] = {
    "sz3": (sz3_encode, sz3_decode),
    "zfp": (zfp_encode, zfp_decode),
}


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_extra(name, "codecs", needed_for="A lossy compressor") from error
