"""Dumps of torch's flight recorder as a window of frames: who called what, and what is still open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wavetank.errors import BadFileError
from wavetank.files import head_of
from wavetank.insight.collectives.interface import ABSENT, NEVER, Frames, Window
from wavetank.workloads.flight_recorder import Call, RecorderDump, looks_like_recorder, read_recorder

# By these operations ranks may send other amounts than their peers.
_UNEVEN = ("all_to_all", "gather", "scatter", "_v", "send", "recv")
# Calls have no times that could be compared: an open one counts as standing still.
_NOW_NS = 10**15


@dataclass(frozen=True, kw_only=True)
class RecorderJob:
    """Dumps of several ranks together.

    Parameters
    ----------
    window : Window
        A communicator for each process group; sequence numbers are one below the recorder's.
    names : tuple of str
        Of the groups.
    calls : dict
        What was called, as text, by rank, communicator and sequence number.
    dumped : tuple of int
        Ranks of which there is a dump.
    without_dump : tuple of int
        Members of groups of which there is none.
    left_out : int
        Calls between two ranks.
    """

    window: Window
    names: tuple[str, ...]
    calls: dict[tuple[int, int, int], str]
    dumped: tuple[int, ...]
    without_dump: tuple[int, ...]
    left_out: int


def read_job(path: Path) -> RecorderJob:
    """Return the dumps of a folder, or of one file.

    Parameters
    ----------
    path : Path
        Other files of a folder are passed over.

    Raises
    ------
    BadFileError
        If there is none, one is damaged, or two are of the same rank.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [each for each in files if each.is_file() and (each == path or looks_like_recorder(head_of(each)))]
    if not files:
        raise BadFileError("There is no flight-recorder dump in the folder.", given=str(path))
    return job_of([read_recorder(each) for each in files], str(path))


def job_of(dumps: Sequence[RecorderDump], where: str = "") -> RecorderJob:
    """Return dumps as one job.

    Parameters
    ----------
    dumps : sequence of RecorderDump
    where : str
        What errors call their place.

    Raises
    ------
    BadFileError
        If two are of the same rank, or they do not agree who is in a group.
    """
    ranks = [dump.rank for dump in dumps]
    if len(set(ranks)) != len(ranks):
        raise BadFileError("Two dumps are of the same rank.", given=str(sorted(ranks)), where=where or None)
    groups: dict[str, set[int]] = {}
    known: set[str] = set()
    for dump in dumps:
        for name, members in dump.groups.items():
            if dump.rank in members:
                if name in known and groups[name] != set(members):
                    raise BadFileError("Dumps do not agree who is in a process group.", given=name, where=where or None)
                known.add(name)
                groups[name] = set(members)
        for call in dump.calls:
            if not call.is_p2p and call.process_group[0] not in known:
                groups.setdefault(call.process_group[0], set()).add(dump.rank)
    _strays(dumps, groups, where)
    names = tuple(sorted(groups))
    number = {name: place for place, name in enumerate(names)}
    words: dict[str, int] = {}
    rows, calls = list[tuple[int, ...]](), dict[tuple[int, int, int], str]()
    left_out = 0
    for dump in sorted(dumps, key=lambda each: each.rank):
        for call in dump.calls:
            if call.is_p2p:
                left_out += 1
                continue
            comm, seq = number[call.process_group[0]], call.collective_seq_id - 1
            said = _said(call)
            calls[dump.rank, comm, seq] = said
            kind = words.setdefault(said, len(words))
            ended = 1 if call.done else NEVER
            rows.append((dump.rank, comm, seq, kind, 0, 0, ABSENT, 0, ended, 0, NEVER, 0, 0, 0, 0, 0, 0, 0))
    table = np.array(rows, np.int64).reshape(len(rows), len(Frames._fields))
    everybody = set(ranks).union(*groups.values())
    now_ns = np.full(max(everybody) + 1, NEVER)
    now_ns[ranks] = _NOW_NS
    members_of = tuple(np.array(sorted(groups[name]), np.int64) for name in names)
    return RecorderJob(
        window=Window(Frames(*(table[:, place].copy() for place in range(table.shape[1]))), members_of, now_ns),
        names=names, calls=calls, dumped=tuple(sorted(ranks)), without_dump=tuple(sorted(everybody - set(ranks))),
        left_out=left_out,
    )  # fmt: skip


def _strays(dumps: Sequence[RecorderDump], groups: dict[str, set[int]], where: str) -> None:
    for dump in dumps:
        for call in dump.calls:
            if not call.is_p2p and dump.rank not in groups[call.process_group[0]]:
                raise BadFileError(
                    "A rank called an operation of a process group without it.",
                    given=f"rank {dump.rank}, group {call.process_group[0]}",
                    where=where or None,
                )


def _said(call: Call) -> str:
    """Return what all ranks must have called alike, as text."""
    name = call.profiling_name.partition(":")[2] or call.profiling_name
    types = "/".join(dict.fromkeys((*call.input_dtypes, *call.output_dtypes)))
    if any(part in name for part in _UNEVEN) and "reduce_scatter" not in name and "all_gather" not in name:
        return f"{name}, {types}"
    return f"{name} of {call.input_sizes} to {call.output_sizes}, {types}"
