"""Dumps of torch's flight recorder: what calls of collectives a rank had made when it was looked at.

A dump is JSON (``_dump_fr_trace_json``) or a pickle (``_dump_fr_trace``, what torch's watchdogs write); pickles are
read as plain data and never executed.  The rank is the number at the end of the file's name, as torch's own analyser
takes it.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from wavetank.errors import BadFileError
from wavetank.workloads.plain_pickle import LONGEST_BYTES, plain_pickle

_Count = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
_Sizes = list[list[_Count]]
_RANK = re.compile(r"(\d+)$")
_MOST_RANK = 1 << 24


class Call(msgspec.Struct, kw_only=True, frozen=True):
    """One recorded call.

    Parameters
    ----------
    record_id : int
        Its number among the calls of its rank.
    process_group : tuple of str
        Name and description.
    collective_seq_id : int
        Its number among the collectives of its group.
    profiling_name : str
        Backend and operation, as in ``nccl:all_reduce``.
    input_sizes, output_sizes : list of list of int
    input_dtypes, output_dtypes : list of str
    state : str
        ``scheduled``, ``started`` or ``completed``.
    retired : bool
        Whether the recorder knows that it is over.
    is_p2p : bool
    time_created_ns : int
        By the host's clock; 0 where it is not recorded.
    """

    record_id: _Count
    process_group: tuple[str, str]
    collective_seq_id: _Count
    profiling_name: str
    input_sizes: _Sizes = []
    output_sizes: _Sizes = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    state: str = "scheduled"
    retired: bool = False
    is_p2p: bool = False
    time_created_ns: _Count | None = 0

    @property
    def done(self) -> bool:
        """Whether it is over; on gloo the state stays as it was, and calls that are over are retired."""
        return self.state == "completed" or self.retired


class _Group(msgspec.Struct, frozen=True):
    ranks: str = "[]"


class _Dump(msgspec.Struct, frozen=True):
    entries: list[Call]
    version: str = ""
    pg_config: dict[str, _Group] = {}


@dataclass(frozen=True, kw_only=True)
class RecorderDump:
    """What one rank had recorded.

    Parameters
    ----------
    rank : int
    calls : tuple of Call
        By ``record_id``.
    groups : dict
        Ranks of each process group by its name, where the dump says them.
    version : str
    """

    rank: int
    calls: tuple[Call, ...]
    groups: dict[str, tuple[int, ...]]
    version: str


def looks_like_recorder(head: bytes) -> bool:
    """Return whether the first bytes begin a dump.

    Parameters
    ----------
    head : bytes
    """
    begins = head[:1] == b"{" or head[:1] == b"\x80" or head.lstrip()[:1] == b"{"
    return begins and (
        b"collective_seq_id" in head or (b"entries" in head and (b"pg_config" in head or b"comm_lib_version" in head))
    )


def rank_of(path: Path) -> int:
    """Return the rank that a file's name ends in.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadFileError
        If it ends in no number.
    """
    name = path.name.removesuffix(".gz")
    for ending in (".json", ".pickle", ".pkl"):
        name = name.removesuffix(ending)
    found = _RANK.search(name)
    if found is None or int(found.group(1)) >= _MOST_RANK:
        raise BadFileError("The name of a flight recorder's dump ends in its rank.", given=path.name,
                           hint="as in trace_0 or fr_0.json", where=str(path))  # fmt: skip
    return int(found.group(1))


def read_recorder(path: Path) -> RecorderDump:
    """Return a dump.

    Parameters
    ----------
    path : Path
        JSON or a pickle, plain or with gzip.

    Raises
    ------
    BadFileError
        If it is neither, holds anything but plain data, or a field is of another kind.
    """
    rank = rank_of(path)
    data = _content(path)
    try:
        if data[:1] == b"\x80":
            dump = msgspec.convert(_plain(plain_pickle(data, str(path))), _Dump)
        else:
            dump = msgspec.json.decode(data, type=_Dump)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, BadFileError):
            raise
        raise BadFileError("The file is no flight-recorder dump.", given=str(error)[:300], where=str(path)) from error
    groups = {}
    for name, group in dump.pg_config.items():
        ranks = _ranks(group.ranks, path)
        if ranks:
            groups[name] = ranks
    calls = tuple(sorted(dump.entries, key=lambda call: call.record_id))
    return RecorderDump(rank=rank, calls=calls, groups=groups, version=dump.version)


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("it holds no dump")
    return value


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                data = file.read(LONGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError("The dump cannot be read.", given=str(error), where=str(path)) from error
    if len(data) > LONGEST_BYTES:
        raise BadFileError("The dump is too long.", allowed=f"{LONGEST_BYTES} bytes", where=str(path))
    return data


def _ranks(text: str, path: Path) -> tuple[int, ...]:
    """Return the ranks of a group, which are written as a list in a text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    good = isinstance(found, list) and all(type(each) is int and 0 <= each < _MOST_RANK for each in found)
    if not good or len(set(found or [])) != len(found or []):
        raise BadFileError("The ranks of a process group are no list of numbers.", given=text[:100], where=str(path))
    return tuple(found or [])
