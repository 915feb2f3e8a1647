"""Frames: some hundred thousand integers as bytes, in the mode that gets them to the other side soonest.

Three modes.  ``raw``: 32 bits each.  ``fixed``: all in the fewest bits that hold the range, so that equal ones take
none.  ``rans``: by entropy.  Which one is chosen for every frame, from its range and a sample of it, by what coding
takes and what the link takes (:func:`choose`).  A fourth one, ``blocks``, is a rival's and is not chosen: each 32
integers in the fewest bits that hold them.  A frame begins with 24 bytes: mark, mode, bits of the shares, bits
left out, bits of the packed; count of integers; base; bytes that follow; CRC-32 of all.  Any change of a frame is an
error, and so is a frame whose sum is right but which holds no integers (somebody else may have written it).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError
from wavetank.settings import check_ranges, setting
from wavetank.training.compression import rans

Ints = NDArray[np.int32]
MODES = ("raw", "fixed", "rans", "blocks")
RAW, FIXED, RANS, BLOCKS = range(4)
CHOICES = ("chosen", *MODES)

_HEAD = struct.Struct("<2s4BxxIiI")
_SUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _SUM.size
_MARK = b"wz"
# Of a frame, as in the source.
FRAME_BYTES = 4 << 20
SAMPLE = 16384
_RUNS = 16
# Finer shares cost a larger table, which pays where there are many codes.
_FEW_CODES, _BITS, _FINE_BITS = 256, 12, 14
_BITS_OF_STATES = 64 * rans.LANES
# Codes at most of what is widely spread; its lower bits are as good as random.
_WIDE = 1024


class BadFrameError(BadFileError):
    """Bytes that are no frame, or not the one that was sent."""


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """What the way of a frame takes: coding on both sides, and the link between.

    The defaults of codecs are what the study ``frame-codecs`` measured on one core; see docs/why/ncclz.md.
    """

    link_bytes_per_s: float = setting(1e9, unit="bytes/s", says="The link", low=1.0, high=1e15)
    fixed_bytes_per_s: float = setting(
        2.5e9, unit="bytes/s", says="Packing and unpacking numbers of one width, of four bytes each", low=1.0, high=1e15
    )
    rans_bytes_per_s: float = setting(
        0.84e9, unit="bytes/s", says="Coding and decoding by entropy, of four bytes each", low=1.0, high=1e15
    )
    frame_s: float = setting(20e-6, unit="s", says="What a coded frame takes besides, on both sides", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    def codec_s(self, mode: int, count: int) -> float:
        """Return what coding and decoding of a frame take, s.

        Parameters
        ----------
        mode : int
        count : int
            Integers.
        """
        if mode == RAW:
            return 0.0
        return self.frame_s + 4 * count / (self.fixed_bytes_per_s if mode == FIXED else self.rans_bytes_per_s)


class Estimate(NamedTuple):
    """What a mode is expected to take.

    Parameters
    ----------
    mode : int
    n_bytes : float
        Of the frame.
    time_s : float
        Of all frames of the message.
    """

    mode: int
    n_bytes: float
    time_s: float


def sample_of(values: Ints) -> Ints:
    """Return at most 64 KiB of a frame: runs of neighbours, evenly spread.

    Parameters
    ----------
    values : int32 array (n,)
    """
    if values.size <= SAMPLE:
        return values
    run = SAMPLE // _RUNS
    starts = np.linspace(0, values.size - run, _RUNS).astype(np.int64)
    return np.concatenate([values[start : start + run] for start in starts])


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """Return the entropy of a histogram, bits for each value.

    Parameters
    ----------
    counts : int64 array
    """
    some = counts[counts > 0]
    total = float(some.sum())
    return float(np.log2(total) - (some * np.log2(some)).sum() / total) if some.size else 0.0


def left_out(values: Ints) -> int:
    """Return how many of the lowest bits are packed as they are: none, unless integers are widely spread.

    Parameters
    ----------
    values : int32 array (n,)
        A sample.
    """
    if not values.size:
        return 0
    wide = values.astype(np.int64)
    natural = np.where(wide < 0, -2 * wide - 1, 2 * wide)
    # Of a hundred integers one or two may escape.
    usual = int(np.partition(natural, (natural.size - 1) * 63 // 64)[(natural.size - 1) * 63 // 64])
    return max(0, usual.bit_length() - _WIDE.bit_length() + 1)


def estimates(values: Ints, speeds: Speeds, frames: int = 1, times: float = 1.0) -> list[Estimate]:
    """Return what each mode is expected to take, raw first.

    Where several frames follow one another, one is coded while another travels: the slower of both counts.

    Parameters
    ----------
    values : int32 array (n,)
        One frame.
    speeds : Speeds
    frames : int
        Of the message.
    times : float
        How many times as long a frame really is, where this one stands for longer ones like it.
    """
    count = values.size
    width = _width(values)[1]
    sample = sample_of(values)
    shift = left_out(sample)
    codes, escapes = np.empty(sample.size, np.uint16), np.empty(sample.size, np.uint32)
    counts, many = rans.histogram(sample, shift, codes, escapes)
    used = int(np.count_nonzero(counts))
    bits = entropy_bits(counts) + shift + 32.0 * many / max(sample.size, 1)
    # A sample has not seen all codes.
    by_entropy = count * bits / 8 + 1.2 * used + _BITS_OF_STATES / 8
    sizes = (4.0 * count, count * width / 8 + 8, by_entropy)
    found = []
    for mode, n_bytes in enumerate(sizes):
        codec_s = speeds.codec_s(mode, int(count * times))
        link_s = (n_bytes * times + HEAD_BYTES) / speeds.link_bytes_per_s
        found.append(Estimate(mode, n_bytes, codec_s + link_s + (frames - 1) * max(codec_s, link_s)))
    return found


def choose(values: Ints, speeds: Speeds, frames: int = 1, times: float = 1.0) -> int:
    """Return the mode that is expected to take least time; of equals the simpler one.

    Parameters
    ----------
    values, speeds, frames, times
        As for :func:`estimates`.
    """
    return min(estimates(values, speeds, frames, times), key=lambda each: (each.time_s, each.mode)).mode


def encode_frame(values: Ints, mode: int, key: int = 0) -> bytes:
    """Return integers as a frame.

    Parameters
    ----------
    values : int32 array (n,)
        2^26 at most.
    mode : int
        One of :data:`MODES`; by entropy and of blocks it falls back to raw where it would be longer.
    key : int
        What a reader must have in common with the writer, 32 bits: the checksum begins with it.

    Raises
    ------
    BadValueError
        If there are too many, they are no 32-bit integers, or the mode is unknown.
    """
    if values.dtype != np.int32 or values.ndim != 1 or values.size > 1 << 26:
        raise BadValueError("A frame holds a row of 32-bit integers.", given=f"{values.dtype} {values.shape}",
                            allowed="int32, 2^26 at most")  # fmt: skip
    if mode not in range(len(MODES)):
        raise BadValueError("There is no such mode of a frame.", given=mode, allowed=MODES)
    values = np.ascontiguousarray(values)
    if mode == FIXED:
        base, width = _width(values)
        packed = np.empty(rans.packed_words(values.size, width) if width else 0, np.uint32)
        if width:
            rans.pack(values, base, width, False, packed)
        return _framed((FIXED, 0, 0, width, values.size, base), packed.tobytes(), key)
    if mode == BLOCKS:
        widths = np.empty(-(-values.size // rans.BLOCK), np.uint8)
        packed = np.empty(rans.block_widths(values, widths), np.uint32)
        rans.pack_blocks(values, widths, packed)
        if widths.nbytes + packed.nbytes < 4 * values.size:
            return _framed((BLOCKS, 0, 0, 0, values.size, 0), widths.tobytes() + packed.tobytes(), key)
    if mode == RANS and values.size:
        bits, shift, body = _by_entropy(values)
        if len(body) < 4 * values.size:
            return _framed((RANS, bits, shift, 0, values.size, 0), body, key)
    return _framed((RAW, 0, 0, 32, values.size, 0), values.tobytes(), key)


def decode_frame(data: bytes | memoryview, most: int = 1 << 26, key: int = 0) -> tuple[Ints, int]:
    """Return the integers of the frame at the begin of ``data``, and how many bytes it takes.

    Parameters
    ----------
    data : bytes
    most : int
        Integers that may come.
    key : int
        The writer's.

    Raises
    ------
    BadFrameError
        If it is cut off, damaged, of a writer with another key, or holds no integers.
    """
    view = memoryview(data)
    if len(view) < HEAD_BYTES:
        raise BadFrameError("A frame is cut off.", given=f"{len(view)} bytes", allowed=f"{HEAD_BYTES} or more")
    mark, mode, bits, shift, width, count, base, length = _HEAD.unpack_from(view)
    if mark != _MARK or mode >= len(MODES) or count > most or width > 32 or shift > 31:
        raise BadFrameError("These bytes are no frame.", given=bytes(view[: _HEAD.size]).hex(" "),
                            allowed=f"one of {most} integers at most")  # fmt: skip
    end = HEAD_BYTES + length
    if len(view) < end:
        raise BadFrameError("A frame is cut off.", given=f"{len(view)} bytes", allowed=f"{end} bytes")
    body = view[HEAD_BYTES:end]
    if zlib.crc32(body, zlib.crc32(view[: _HEAD.size], key)) != _SUM.unpack_from(view, _HEAD.size)[0]:
        raise BadFrameError("A frame is damaged, or belongs to another task.", given="another checksum",
                            hint="all ranks need the same task: size, shape, bound, levels and bucket")  # fmt: skip
    if mode == RAW:
        if length != 4 * count:
            raise BadFrameError("A raw frame has another length than its integers.", given=f"{length} bytes")
        return np.frombuffer(body, "<i4").astype(np.int32), end
    if mode == FIXED:
        words = rans.packed_words(count, width) if width else 0
        if length != 4 * words or not -(2**31) <= base <= 2**31 - 1:
            raise BadFrameError("A packed frame has another length than its integers.", given=f"{length} bytes")
        out = np.full(count, base, np.int32)
        if width:
            rans.unpack(np.frombuffer(body, "<u4"), base, width, out)
        return out, end
    if mode == BLOCKS:
        return _from_blocks(body, count), end
    return _from_entropy(body, count, bits, shift), end


def _framed(facts: tuple[int, int, int, int, int, int], body: bytes, key: int) -> bytes:
    head = _HEAD.pack(_MARK, *facts, len(body))
    return head + _SUM.pack(zlib.crc32(body, zlib.crc32(head, key))) + body


def _from_blocks(body: memoryview, count: int) -> Ints:
    blocks = -(-count // rans.BLOCK)
    widths = np.frombuffer(body[:blocks], np.uint8)
    if widths.size != blocks or np.any(widths > 32) or len(body) != blocks + 4 * int(widths.sum(dtype=np.int64)):
        raise BadFrameError("A frame of blocks has another length than its blocks.", given=f"{len(body)} bytes")
    out = np.empty(count, np.int32)
    rans.unpack_blocks(np.frombuffer(body, np.uint8, offset=blocks).view("<u4"), widths, out)
    return out


def _width(values: Ints) -> tuple[int, int]:
    """Return the least integer, and the fewest bits that hold what the others are above it."""
    if not values.size:
        return 0, 0
    low, high = int(values.min()), int(values.max())
    return low, (high - low).bit_length()


def _by_entropy(values: Ints) -> tuple[int, int, bytes]:
    """Return bits of the shares, bits left out, and the body: table, states, words, packed bits, escapes."""
    shift = left_out(sample_of(values))
    codes, escapes = np.empty(values.size, np.uint16), np.empty(values.size, np.uint32)
    counts, many = rans.histogram(values, shift, codes, escapes)
    used = np.flatnonzero(counts)
    bits = _BITS if used.size <= _FEW_CODES else _FINE_BITS
    shares = rans.frequencies(counts[: used[-1] + 1], bits)
    room = np.empty(values.size + rans.LANES, np.uint32)
    at, states = rans.encode(codes, shares, bits, room)
    packed = np.empty(rans.packed_words(values.size, shift) if shift else 0, np.uint32)
    if shift:
        rans.pack(values, 0, shift, True, packed)
    table = _table_bytes(shares)
    words = room[at:]
    counted = struct.pack("<IIIH", words.size, many, len(table), shares.size)
    parts = (states.tobytes(), words.tobytes(), packed.tobytes(), escapes[:many].tobytes())
    return bits, shift, b"".join((counted, table, *parts))


def _from_entropy(body: memoryview, count: int, bits: int, shift: int) -> Ints:
    counted = struct.Struct("<IIIH")
    if bits not in (_BITS, _FINE_BITS) or len(body) < counted.size or not count:
        raise BadFrameError("A frame by entropy has no table.", given=f"{len(body)} bytes, {bits} bits")
    n_words, many, table_bytes, symbols = counted.unpack_from(body)
    n_packed = rans.packed_words(count, shift) if shift else 0
    if len(body) != counted.size + table_bytes + 8 * rans.LANES + 4 * (n_words + n_packed + many):
        raise BadFrameError("A frame by entropy has another length than its parts.", given=f"{len(body)} bytes")
    at = counted.size + table_bytes
    shares = _shares_of(bytes(body[counted.size : at]), symbols)
    if shares.sum() != 1 << bits:
        raise BadFrameError("The shares of a frame are not a whole.", given=f"{shares.sum()} of {1 << bits}")
    states = np.frombuffer(body, "<u8", rans.LANES, at).astype(np.uint64)
    at += 8 * rans.LANES
    words = np.zeros(n_words + rans.PADDING, np.uint32)
    words[:n_words] = np.frombuffer(body, "<u4", n_words, at)
    at += 4 * n_words
    packed = np.frombuffer(body, "<u4", n_packed, at).astype(np.uint32)
    escapes = np.frombuffer(body, "<u4", many, at + 4 * n_packed).astype(np.uint32)
    out = np.empty(count, np.int32)
    plain = not shift and not many
    taken = rans.decode(words, states, rans.decoding_table(shares, bits, plain), bits, out)
    if taken != n_words or np.any(states != np.uint64(1 << 31)):
        raise BadFrameError("A frame by entropy does not end where it began.", given=f"{taken} of {n_words} words")
    if not plain and rans.completed(out, shift, packed, escapes) != many:
        raise BadFrameError("A frame has another number of escapes.", given=many)
    return out


def _table_bytes(shares: NDArray[np.int64]) -> bytes:
    """Return shares as bytes: one below 128, two for others, and after a 0 how many more follow it."""
    found = bytearray()
    i = 0
    values = shares.tolist()
    while i < len(values):
        share = values[i]
        if share == 0:
            end = i
            while end < len(values) and values[end] == 0 and end - i < 255:
                end += 1
            found += bytes((0, end - i - 1))
            i = end
            continue
        # 2^14 at most: its highest bits and 128 take the first byte.
        found += bytes((share,)) if share < 128 else bytes((128 | share >> 8, share & 255))
        i += 1
    return bytes(found)


def _shares_of(table: bytes, symbols: int) -> NDArray[np.int64]:
    shares: list[int] = []
    at = 0
    while at < len(table) and len(shares) <= rans.LARGEST_ALPHABET:
        first = table[at]
        if 0 < first < 128:
            shares.append(first)
            at += 1
            continue
        if at + 1 >= len(table):
            break
        if first == 0:
            shares += [0] * (table[at + 1] + 1)
        else:
            shares.append((first & 127) << 8 | table[at + 1])
        at += 2
    if at != len(table) or len(shares) != symbols or symbols > rans.LARGEST_ALPHABET:
        raise BadFrameError("The table of a frame is damaged.", given=f"{len(shares)} shares of {symbols}")
    return np.array(shares, np.int64)
