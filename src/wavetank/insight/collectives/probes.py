"""Probes inside collective operations: counters in a file that others can read while the rank works, or stands still.

A rank writes its frames into memory that is mapped from a file, so that they can be read by another process of its
host, also of a rank that has been stopped or killed.  A frame is eighteen numbers of eight bytes; the newest frames
are kept.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.insight.collectives.interface import ABSENT, NEVER, Frames, joined

MAGIC = b"WTCCLP01"
_HEAD = struct.Struct("<8sqqq")
_HEAD_NUMBERS = _HEAD.size // 8
_LAUNCHED = _HEAD_NUMBERS - 1
_WIDTH = len(Frames._fields)
(_RANK, _COMM, _SEQ, _OP, _SIZE, _DTYPE, _ROOT, _ENTERED, _ENDED, _MOVED, _POLLED, _POSTED, _RECEIVED, _WAIT, _SEND,
 _RECV, _SENT_BYTES, _RECEIVED_BYTES) = range(_WIDTH)  # fmt: skip
_ROW = struct.Struct(f"={_WIDTH}q")
# Counters and times on the wire, at the begin of an operation.
_COUNTED = (0,) * (_WIDTH - _POSTED)
_MOST_FRAMES = 1 << 20


class Probe:
    """Counters of one rank.

    Parameters
    ----------
    path : Path
        The file; it is made anew.
    rank : int
    capacity : int
        Frames that are kept.
    offset_ns : int
        Added to the clock, so that ranks of one host have clocks of their own.
    """

    def __init__(self, path: Path, rank: int, *, capacity: int = 128, offset_ns: int = 0) -> None:
        if not 1 <= capacity <= _MOST_FRAMES:
            raise BadValueError("A probe keeps some frames.", given=capacity, allowed=f"1 to {_MOST_FRAMES}")
        size = _HEAD.size + 8 * _WIDTH * capacity
        # Whole from its first moment on, since others look for it.
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(_HEAD.pack(MAGIC, rank, capacity, 0) + bytes(size - _HEAD.size))
        part.replace(path)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self._numbers = memoryview(self._memory).cast("q")
        self._rank, self._capacity, self._offset_ns = rank, capacity, offset_ns
        self._at = _HEAD_NUMBERS
        self._begin_ns = 0

    def now_ns(self) -> int:
        """Return the rank's own clock."""
        return time.monotonic_ns() + self._offset_ns

    def launch(self, comm: int, seq: int, op: int, size: int, dtype: int, root: int = ABSENT) -> None:
        """Begin the frame of an operation that is about to be entered.

        Parameters
        ----------
        comm, seq, op, size, dtype, root : int
            As in :class:`~wavetank.insight.collectives.interface.Frames`.
        """
        numbers, launched = self._numbers, self._numbers[_LAUNCHED]
        at = self._at = _HEAD_NUMBERS + _WIDTH * (launched % self._capacity)
        # All at once: what a probe costs is little more than its calls.
        self._memory[8 * at : 8 * (at + _WIDTH)] = _ROW.pack(
            self._rank, comm, seq, op, size, dtype, root, NEVER, NEVER, NEVER, NEVER, *_COUNTED
        )
        numbers[_LAUNCHED] = launched + 1

    def enter(self) -> None:
        """Note that the operation begins."""
        now = self.now_ns()
        at = self._at
        self._begin_ns = now
        self._numbers[at + _MOVED] = self._numbers[at + _POLLED] = now
        self._numbers[at + _ENTERED] = now

    def looked(self) -> None:
        """Note that the loop that waits is alive."""
        self._numbers[self._at + _POLLED] = self.now_ns()

    def posted(self) -> int:
        """Note that sending of a chunk begins; return when."""
        now, at = self.now_ns(), self._at
        self._numbers[at + _POSTED] += 1
        self._numbers[at + _MOVED] = now
        return now

    def sent(self, since_ns: int, many: int) -> None:
        """Note that a chunk has been sent.

        Parameters
        ----------
        since_ns : int
            When sending began.
        many : int
            Bytes.
        """
        at = self._at
        self._numbers[at + _SEND] += self.now_ns() - since_ns
        self._numbers[at + _SENT_BYTES] += many

    def received(self, since_ns: int, many: int) -> None:
        """Note that a chunk has arrived.

        Parameters
        ----------
        since_ns : int
            When its first byte was there.
        many : int
            Bytes.
        """
        now, at = self.now_ns(), self._at
        self._numbers[at + _RECEIVED] += 1
        self._numbers[at + _RECV] += now - since_ns
        self._numbers[at + _RECEIVED_BYTES] += many
        self._numbers[at + _MOVED] = now

    def end(self) -> None:
        """Note that the operation has ended; what was neither sending nor receiving was waiting."""
        now, at = self.now_ns(), self._at
        busy = max(self._numbers[at + _SEND], self._numbers[at + _RECV])
        self._numbers[at + _WAIT] = max(now - self._begin_ns - busy, 0)
        self._numbers[at + _MOVED] = now
        self._numbers[at + _ENDED] = now

    def close(self) -> None:
        """Let go of the file; what it holds stays."""
        self._numbers.release()
        self._memory.close()


class NoProbe:
    """Counts nothing: what an operation costs without probes."""

    def launch(self, comm: int, seq: int, op: int, size: int, dtype: int, root: int = ABSENT) -> None:
        """Do nothing."""

    def enter(self) -> None:
        """Do nothing."""

    def looked(self) -> None:
        """Do nothing."""

    def posted(self) -> int:
        """Return 0."""
        return 0

    def now_ns(self) -> int:
        """Return 0."""
        return 0

    def sent(self, since_ns: int, many: int) -> None:
        """Do nothing."""

    def received(self, since_ns: int, many: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


def read_probe(path: Path) -> Frames:
    """Return the frames in a probe's file, the oldest first, while or after its rank writes them.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadFileError
        If it is no such file, or is cut off.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFileError("The frames of a rank cannot be read.", given=str(error), where=str(path)) from error
    if len(data) < _HEAD.size:
        raise BadFileError("The file is no file of a probe.", given=f"{len(data)} bytes", where=str(path))
    magic, _, capacity, launched = _HEAD.unpack_from(data)
    fits = 1 <= capacity <= _MOST_FRAMES and len(data) == _HEAD.size + 8 * _WIDTH * capacity
    if magic != MAGIC or not fits or launched < 0:
        raise BadFileError("The file is no file of a probe, or is cut off.", given=f"{len(data)} bytes",
                           where=str(path))  # fmt: skip
    table = np.frombuffer(data, "<i8", offset=_HEAD.size).reshape(capacity, _WIDTH).astype(np.int64)
    if launched > capacity:
        table = np.roll(table, -(launched % capacity), axis=0)
    else:
        table = table[:launched]
    return Frames(*(table[:, place].copy() for place in range(_WIDTH)))


def read_probes(paths: list[Path]) -> Frames:
    """Return the frames of several ranks.

    Parameters
    ----------
    paths : list of Path
    """
    return joined([read_probe(path) for path in paths])
