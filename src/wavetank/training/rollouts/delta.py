"""What changed of a model's weights, as bytes: exact, checked, and no larger than it must be.

From one step of reinforcement learning to the next most bf16 weights stay what they were, since a small step is
rounded away.  The changed ones are sent with their places.  Places as 32-bit numbers are the simplest form; a bit for
each weight is smaller as soon as a thirty-second of them changes; the gap to the last changed one takes a byte where
changes are neither rare nor frequent, and is the smallest of all below a fifth or so.

Values are sent as they are, not as differences, so that a receiver whose weights are those that the sender had gets
exactly what the sender has; a checksum of what it must have is part of the stream.

Source: W. Gao et al., arXiv 2605.06534 (index and value); gaps are the usual coding of sorted postings.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError, unknown_name

Words = NDArray[np.uint16]

DENSE, COO, BITMAP, GAP, XOR = "dense", "coo", "bitmap", "gap", "xor-zlib"
FORMATS = {DENSE: 0, COO: 1, BITMAP: 2, GAP: 3, XOR: 4}
SIZED = (DENSE, COO, BITMAP, GAP)
"""Formats whose size depends on the share of changed weights alone."""
VERSION = 1
MOST = 2**32
"""Elements that places of 32 bits can name."""

_MAGIC = b"Wd"
# Magic, version, format, elements, changed elements, and CRC-32 of weights before, weights after, and all of the stream
# but this number.
_HEAD = struct.Struct("<2sBBQQIII")
_GAP_BYTES = 5


def encode(before: Words, after: Words, form: str = GAP) -> bytes:
    """Return what makes ``after`` of ``before``.

    Parameters
    ----------
    before, after : uint16 array (n,)
        Weights in bf16, as they lie in memory; at most 2**32.
    form : str
        Of ``FORMATS``.

    Returns
    -------
    bytes

    Raises
    ------
    BadValueError
        If the arrays are no words of 16 bits of equal number.
    UnknownNameError
        If there is no such format.
    """
    if form not in FORMATS:
        raise unknown_name("format", form, list(FORMATS))
    old, new = _words("before", before), _words("after", after)
    if old.size != new.size or old.size > MOST:
        raise BadValueError("Weights before and after are as many.", given=f"{old.size} and {new.size}",
                            allowed=f"equal numbers, at most {MOST}")  # fmt: skip
    places = np.flatnonzero(old != new)
    if form == DENSE:
        body = new.astype("<u2").tobytes()
    elif form == XOR:
        body = zlib.compress((old ^ new).astype("<u2").tobytes(), 1)
    else:
        body = _places(places, old.size, form) + new[places].astype("<u2").tobytes()
    return _sealed(FORMATS[form], old.size, places.size, zlib.crc32(old.tobytes()), zlib.crc32(new.tobytes()), body)


def _sealed(kind: int, size: int, changed: int, old: int, new: int, body: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, VERSION, kind, size, changed, old, new, 0)
    return head[:-4] + struct.pack("<I", zlib.crc32(body, zlib.crc32(head[:-4]))) + body


def decode(stream: bytes, before: Words) -> Words:
    """Return the weights that a stream makes of ``before``.

    Parameters
    ----------
    stream : bytes
        As :func:`encode` made it.
    before : uint16 array (n,)
        The weights that the sender had before; a dense stream needs their number alone.

    Returns
    -------
    uint16 array (n,)
        A new one.

    Raises
    ------
    BadFileError
        If the stream is foreign, damaged, cut off, too long, made for other weights, or contradicts itself.
    """
    old = _words("before", before)
    if len(stream) < _HEAD.size or stream[:2] != _MAGIC:
        raise BadFileError("This is no delta of weights.", given=f"{len(stream)} bytes that begin {stream[:2]!r}",
                           allowed=f"{_HEAD.size} bytes or more that begin {_MAGIC!r}")  # fmt: skip
    _, version, kind, size, changed, crc_old, crc_new, crc = _HEAD.unpack_from(stream)
    if version != VERSION:
        raise BadFileError("The delta has another version of the format.", given=version, allowed=str(VERSION),
                           hint="use one version of Wavetank at both ends")  # fmt: skip
    body = memoryview(stream)[_HEAD.size :]
    if zlib.crc32(body, zlib.crc32(stream[: _HEAD.size - 4])) != crc:
        raise BadFileError("The delta is damaged or cut off: its checksum is another one.",
                           given=f"{len(stream)} bytes", hint="get it again, or all weights")  # fmt: skip
    form = next((name for name, each in FORMATS.items() if each == kind), None)
    if form is None:
        raise BadFileError(
            "The delta has a format that is not known.", given=kind, allowed=str(sorted(FORMATS.values()))
        )
    if size != old.size:
        raise BadFileError("The delta is for another number of weights.", given=size, allowed=str(old.size))
    if form != DENSE and zlib.crc32(old.tobytes()) != crc_old:
        raise BadFileError("The delta was made from other weights than these.", given=f"checksum {crc_old:08x}",
                           allowed=f"{zlib.crc32(old.tobytes()):08x}", hint="get all weights once")  # fmt: skip
    if changed > size:
        raise _contradiction(f"{changed} changed of {size}")
    new = _applied(form, body, old, changed)
    if zlib.crc32(new.tobytes()) != crc_new:
        raise _contradiction("weights with another checksum than the stream names")
    return new


def _applied(form: str, body: memoryview, old: Words, changed: int) -> Words:
    if form in (DENSE, XOR):
        plain: Any = body
        if form == XOR:
            # No more is unpacked than the weights have, whatever the stream claims.
            unpacker = zlib.decompressobj()
            try:
                plain = unpacker.decompress(body, 2 * old.size + 1)
            except zlib.error as error:
                raise _contradiction(str(error)) from error
            if (not unpacker.eof and old.size) or unpacker.unused_data:
                raise _contradiction("packed bytes that do not end with the weights")
        if len(plain) != 2 * old.size:
            raise _contradiction(f"{len(plain)} bytes of weights for {old.size}")
        words = np.frombuffer(plain, dtype="<u2").astype(np.uint16)
        return words if form == DENSE else old ^ words
    if len(body) < 2 * changed:
        raise _contradiction(f"{len(body)} bytes for {changed} changed weights")
    split = len(body) - 2 * changed
    places = _read_places(body[:split], old.size, changed, form)
    if places.size != changed or (changed and not (places[0] >= 0 and places[-1] < old.size)):
        raise _contradiction(f"{places.size} places for {changed} changed weights, or one outside")
    if changed > 1 and not (np.diff(places) > 0).all():
        raise _contradiction("places that do not ascend")
    new = old.copy()
    new[places] = np.frombuffer(body[split:], dtype="<u2")
    return new


def _contradiction(given: str) -> BadFileError:
    return BadFileError("The delta contradicts itself.", given=given, hint="get all weights, in the dense format")


def _words(name: str, values: Words) -> Words:
    array = np.asarray(values)
    if array.dtype != np.uint16 or array.ndim != 1:
        raise BadValueError("Weights are one array of words of 16 bits.", given=f"{array.dtype}, shape {array.shape}",
                            allowed="uint16, one dimension; view bf16 tensors so", where=name)  # fmt: skip
    return np.ascontiguousarray(array)


def _places(places: NDArray[np.int64], size: int, form: str) -> bytes:
    if form == COO:
        return places.astype("<u4").tobytes()
    if form == BITMAP:
        bits = np.zeros(size, dtype=bool)
        bits[places] = True
        return np.packbits(bits, bitorder="little").tobytes()
    gaps = np.diff(places, prepend=-1) - 1
    lengths = gap_lengths(gaps)
    ends = np.cumsum(lengths)
    found = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.uint8)
    for byte in range(_GAP_BYTES):
        rows = np.flatnonzero(lengths > byte)
        more = np.where(lengths[rows] > byte + 1, 128, 0)
        found[ends[rows] - lengths[rows] + byte] = (gaps[rows] >> (7 * byte)) & 127 | more
    return found.tobytes()


def gap_lengths(gaps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes the gaps between changed weights take, seven bits in each.

    Parameters
    ----------
    gaps : int64 array
        From 0 to 2**32 - 1.
    """
    found = np.ones(gaps.size, dtype=np.int64)
    for byte in range(1, _GAP_BYTES):
        found += gaps >= 1 << 7 * byte
    return found


def _read_places(body: memoryview, size: int, changed: int, form: str) -> NDArray[np.int64]:
    raw = np.frombuffer(body, dtype=np.uint8)
    if form == COO:
        if raw.size != 4 * changed:
            raise _contradiction(f"{raw.size} bytes of places for {changed} changed weights")
        return np.frombuffer(body, dtype="<u4").astype(np.int64)
    if form == BITMAP:
        if raw.size != -(-size // 8) or (size % 8 and raw[-1] >> size % 8):
            raise _contradiction(f"{raw.size} bytes of bits for {size} weights, or bits behind the last")
        return np.flatnonzero(np.unpackbits(raw, count=size, bitorder="little"))
    ends = np.flatnonzero(raw < 128)
    if ends.size != changed or (raw.size and (not changed or ends[-1] != raw.size - 1)):
        raise _contradiction(f"{ends.size} gaps for {changed} changed weights")
    if not changed:
        return np.zeros(0, dtype=np.int64)
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > _GAP_BYTES:
        raise _contradiction(f"a gap of {lengths.max()} bytes")
    if ((raw[ends] == 0) & (lengths > 1)).any():
        raise _contradiction("a gap that is longer than it need be")
    gaps = np.zeros(changed, dtype=np.int64)
    for byte in range(int(lengths.max())):
        rows = np.flatnonzero(lengths > byte)
        gaps[rows] |= (raw[ends[rows] - lengths[rows] + 1 + byte].astype(np.int64) & 127) << (7 * byte)
    # In floating point first: whole numbers could wrap around.
    if float(gaps.astype(np.float64).sum()) + changed > size:
        raise _contradiction("gaps beyond the last weight")
    return np.cumsum(gaps + 1) - 1


def bytes_per_element(form: str, share: float) -> float:
    """Return the expected bytes a weight of a delta whose changes are spread at random, without head.

    Parameters
    ----------
    form : str
        Of ``FORMATS``; what zlib makes of a delta has no formula.
    share : float
        Of weights that change.

    Raises
    ------
    BadValueError
        If the share is none, or the format has no formula.
    """
    if not 0 <= share <= 1:
        raise BadValueError("This is no share.", given=share, allowed="0 to 1", where="share")
    if form == DENSE:
        return 2.0
    if form == COO:
        return 6.0 * share
    if form == BITMAP:
        return 0.125 + 2.0 * share
    if form == GAP:
        # A gap of g or more has the probability (1 - share) ** g.
        rest = 0.0 if share == 1 else math.log1p(-share)
        more = sum(math.exp(rest * 2.0 ** (7 * byte)) for byte in range(1, _GAP_BYTES)) if share < 1 else 0.0
        return share * (3.0 + more)
    raise BadValueError("The size of this format has no formula.", given=form, allowed=list(SIZED))
