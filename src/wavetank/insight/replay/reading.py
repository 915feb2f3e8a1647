"""Traces of a job: one Chakra file, or the files of a folder, one a rank."""

from __future__ import annotations

import re
from pathlib import Path

from wavetank.errors import BadFileError, BadTraceError
from wavetank.files import head_of
from wavetank.workloads.chakra import ExecutionTrace, read_trace_file
from wavetank.workloads.chakra_writing import as_json

ENDINGS = (".et", ".json")
_NUMBER = re.compile(r"(\d+)(?=\.(?:et|json)(?:\.gz)?$)")
_MOST_RANKS = 1 << 16
_JSON_KEYS = (b'"workload_graph"', b'"nodes"')


def read_et(path: str | Path, *, unique: bool = True) -> tuple[ExecutionTrace, ...]:
    """Return the traces of ranks 0, 1, ...: of a file, or of a folder with one file a rank.

    The rank of a file is the number at the end of its name, before ``.et`` or ``.json``; where no file has one, they
    are taken in the order of their names.

    Parameters
    ----------
    path : str or Path
    unique : bool
        Whether nodes of one identity are refused.

    Raises
    ------
    BadFileError, BadTraceError
        If a file cannot be read, there is none, or the ranks are not those from 0 on, each once.
    """
    return tuple(read_trace_file(file, unique=unique) for file in files_of(Path(path)))


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files of ranks 0, 1, ...

    Parameters
    ----------
    path : Path
        A file, or a folder.

    Raises
    ------
    BadTraceError
        If the folder has no trace, or the ranks are not those from 0 on, each once.
    """
    if not path.is_dir():
        return (path,)
    try:
        there = sorted(each for each in path.iterdir() if each.is_file() and _named(each))
    except OSError as problem:
        raise BadFileError("The folder cannot be read.", given=str(problem), where=str(path)) from None
    found = [each for each in there if looks_like_chakra(each, head_of(each))]
    if not found:
        raise BadTraceError(
            "The folder has no Chakra trace.", given=str(path), allowed="files .et or .json, a rank each"
        )
    numbers = [match and int(match[1]) for match in (_NUMBER.search(each.name) for each in found)]
    if all(each is None for each in numbers):
        return tuple(found)
    wrong = [each.name for each, number in zip(found, numbers, strict=True) if number is None]
    ranks = sorted(each for each in numbers if each is not None)
    if wrong or len(ranks) > _MOST_RANKS or ranks != list(range(len(ranks))):
        raise BadTraceError(
            "The files of a folder are not those of ranks 0, 1, ..., each once.",
            given=", ".join(wrong[:3]) if wrong else f"{len(ranks)} files, ranks {_spans(ranks)}",
            allowed="a number from 0 on at the end of each name", where=str(path),
            hint="keep one job in a folder, and all of its ranks",
        )  # fmt: skip
    return tuple(file for _, file in sorted(zip(numbers, found, strict=True), key=lambda each: each[0] or 0))


def _named(file: Path) -> bool:
    return file.name.lower().removesuffix(".gz").endswith(ENDINGS)


def _spans(ranks: list[int]) -> str:
    missing = sorted(set(range(ranks[-1] + 1 if ranks[-1] < _MOST_RANKS else 0)) - set(ranks))
    said = f"{ranks[0]} to {ranks[-1]}"
    return f"{said} without {', '.join(map(str, missing[:3]))}" if missing else f"{said}, one of them twice"


def looks_like_chakra(path: Path, head: bytes) -> bool:
    """Return whether a file is a Chakra trace, by its name and its first bytes.

    Parameters
    ----------
    path : Path
    head : bytes
        The first of its bytes, unpacked.
    """
    if path.name.lower().removesuffix(".gz").endswith(".et"):
        # The head of a stream: the length of a message, whose first field is a version or an attribute.
        at = next((i for i, byte in enumerate(head[:10]) if byte < 0x80), 10)
        return head[:1] == b"\0" or head[at + 1 : at + 2] in (b"\x0a", b"\x12")
    begin = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not begin.startswith(b"{"):
        return False
    return _JSON_KEYS[0] in head or (_JSON_KEYS[1] in head and b'"schema"' in head and b'"ctrl_deps"' in head)


def write_et(path: str | Path, trace: ExecutionTrace) -> None:
    """Write a trace: the protobuf stream, or JSON where the name ends so.

    Parameters
    ----------
    path : str or Path
        Ends in ``.et`` or ``.json``.
    trace : ExecutionTrace

    Raises
    ------
    BadFileError
        If it cannot be written.
    """
    path = Path(path)
    content = as_json(trace).encode() if path.name.endswith(".json") and trace.form == "et" else trace.content()
    try:
        path.write_bytes(content)
    except OSError as problem:
        raise BadFileError("The trace cannot be written.", given=str(problem), where=str(path)) from None
