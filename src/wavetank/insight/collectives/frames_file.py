"""Probing frames in a file of JSON lines: a first line about the job, then one for each frame.

The first line has ``format``, ``members`` of the communicators, ``trees`` among them, and each rank's own clock
``now_ns``.  A time that is none is null.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.insight.collectives.interface import NEVER, OPERATIONS, Frames, Window, by_rank

FORMAT = "wavetank-collective-frames-1"
_LONGEST_BYTES = 1 << 30
_Time = Annotated[int, msgspec.Meta(gt=-(2**61), lt=2**61)] | None
_Number = Annotated[int, msgspec.Meta(ge=-1, lt=2**61)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**61)]


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    members: list[list[_Count]]
    now_ns: list[_Time]
    trees: list[_Count] = []


class _Frame(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    rank: _Count
    comm: _Count
    seq: _Count
    op: str
    size: _Count
    dtype: _Number = 0
    root: _Number = -1
    entered_ns: _Time = None
    ended_ns: _Time = None
    moved_ns: _Time = None
    polled_ns: _Time = None
    posted: _Count = 0
    received: _Count = 0
    wait_ns: _Count = 0
    send_ns: _Count = 0
    recv_ns: _Count = 0
    sent_bytes: _Count = 0
    received_bytes: _Count = 0


_JOB = msgspec.json.Decoder(_Job)
_FRAME = msgspec.json.Decoder(_Frame)
_TIMES = ("entered_ns", "ended_ns", "moved_ns", "polled_ns")


def write_frames(path: Path, window: Window) -> None:
    """Write a window.

    Parameters
    ----------
    path : Path
    window : Window
    """

    def time_of(value: int) -> int | None:
        return None if value == NEVER else value

    job = _Job(
        format=FORMAT,
        members=[each.tolist() for each in window.members],
        now_ns=[time_of(each) for each in window.now_ns.tolist()],
        trees=sorted(window.trees),
    )
    lines = [msgspec.json.encode(job)]
    for row in zip(*(column.tolist() for column in window.frames), strict=True):
        given = dict(zip(Frames._fields, row, strict=True))
        fields: dict[str, Any] = {name: time_of(value) if name in _TIMES else value for name, value in given.items()}
        lines.append(msgspec.json.encode(_Frame(**{**fields, "op": OPERATIONS[given["op"]]})))
    path.write_bytes(b"\n".join(lines) + b"\n")


def looks_like_frames(head: bytes) -> bool:
    """Return whether the first bytes begin such a file.

    Parameters
    ----------
    head : bytes
    """
    first = head.split(b"\n", 1)[0]
    return FORMAT.encode() in first and first.lstrip().startswith(b"{")


def read_frames(path: Path) -> Window:
    """Return the window of a file.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadFileError
        If a line is none of the format, or frames contradict the communicators.
    """
    try:
        if path.stat().st_size > _LONGEST_BYTES:
            raise BadFileError("The file of frames is too long.", allowed=f"{_LONGEST_BYTES} bytes", where=str(path))
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadFileError("The file of frames cannot be read.", given=str(error), where=str(path)) from error
    read, frames = 0, list[_Frame]()
    try:
        job = _JOB.decode(lines[0])
        if job.format != FORMAT:
            raise ValueError(f"format {job.format!r}")
        for line in lines[1:]:
            read += 1
            if line.strip():
                frames.append(_FRAME.decode(line))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFileError("A line holds no probing frame.", given=str(error)[:300], where=f"{path}, line {read + 1}"
                           ) from error  # fmt: skip
    window = Window(
        by_rank(_columns(frames)), tuple(np.array(each, np.int64) for each in job.members), _times(job.now_ns),
        frozenset(job.trees),
    )  # fmt: skip
    try:
        window.check()
    except BadValueError as error:
        raise BadFileError(error.problem, given=error.given, where=str(path)) from error
    return window


def _columns(frames: list[_Frame]) -> Frames:
    columns = []
    for name in Frames._fields:
        values = [getattr(each, name) for each in frames]
        if name == "op":
            values = [OPERATIONS.index(each) if each in OPERATIONS else OPERATIONS.index("other") for each in values]
        columns.append(_times(values) if name in _TIMES else np.array(values, np.int64))
    return Frames(*columns)


def _times(values: list[int | None]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([NEVER if each is None else each for each in values], np.int64)
