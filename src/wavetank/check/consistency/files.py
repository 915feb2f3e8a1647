"""Histories on disk: JSON Lines of our own, and what Jepsen, Maelstrom, Porcupine and Elle leave.

The format is a header with a version, then one operation per line; :mod:`wavetank.check.consistency.recordings` reads
the other formats.  :mod:`wavetank.sim.history` says what an operation is.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from wavetank.check.consistency.recordings import parse_recording
from wavetank.check.consistency.values import misfit
from wavetank.errors import BadFileError, BadValueError
from wavetank.files import read_text
from wavetank.sim.history import History, Operation, Order, brief, first_problem

FORMAT = "wavetank-history"
VERSION = 1
# A history is read into memory whole; beyond this it is no history that any checker could judge.
LARGEST_BYTES = 2**30
_LONGEST_LINE_BYTES = 2**24
# What a test of Jepsen or Maelstrom leaves in its folder, the most exact first.
STORED = ("history.edn", "history.edn.gz", "history.txt")


class _Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: int
    store: str = ""
    initial: Any = None
    clock: Literal["seconds", "events"] = "seconds"
    messages: tuple[tuple[int, int], ...] = ()
    rule: str = ""
    final: tuple[int, ...] = ()


# Beside the operations.
_KEPT = _Header.__struct_fields__[2:]


def read_history(
    path: Path | str,
    *,
    keyed: bool | None = None,
    names: Mapping[str, str] | None = None,
) -> History:
    """Read a history from a file, gzip-compressed or not, or from a folder of Jepsen's or Maelstrom's store.

    Recognised by content, not by name: JSON Lines of this module, Jepsen's etcd logs, ``history.edn`` (maps or vectors
    of maps, with or without record tags), ``history.txt`` (process, type, function and value in columns).

    Parameters
    ----------
    path : Path or str
    keyed : bool, optional
        Whether values are ``[key value]``; None to find out.
    names : mapping, optional
        Name of a recorded function to the name of a known one, or to ``ignore``.

    Raises
    ------
    BadFileError
        If the file is missing, too large, in none of these formats or damaged; with line and column.
    """
    path = file_of(Path(path))
    with _without_collections():
        text = read_text(path, largest_bytes=LARGEST_BYTES)
        first = text.lstrip(" \t\r\n")
        if not first:
            raise BadFileError("The file is empty.", where=str(path))
        if first.startswith('{"'):
            return _parse_lines(text, str(path))
        return parse_recording(text, str(path), keyed=keyed, names=names)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the search for cycles of garbage away: a history makes none, and each search walks all of it again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def file_of(path: Path) -> Path:
    """Return the history in a folder of Jepsen's or Maelstrom's store, and any other path as it is."""
    for name in STORED:
        if path.is_dir() and (path / name).is_file():
            return path / name
    return path


def write_history(path: Path | str, history: History, operations: Iterable[Operation] | None = None) -> None:
    """Write a history as JSON Lines; compressed where the name ends in ``.gz``.

    Parameters
    ----------
    path : Path or str
        Replaced when all is written, and left as it was on an error.
    history : History
    operations : iterable of Operation, optional
        In place of the history's own: read one by one, for those that are more than memory holds.

    Raises
    ------
    BadFileError
        If the file cannot be written, or reading it would refuse it or give another history: for a value without a JSON
        form, one that its operation cannot have, a number that is not finite, a map whose keys are no strings.  Nothing
        is written then, and a file of that name stays as it was.
    """
    path = Path(path)
    header = _Header(FORMAT, VERSION, **{name: getattr(history, name) for name in _KEPT})
    if operations is None:
        odd = misfit(history)
        if odd is not None:
            raise BadFileError(odd.says, given=odd.given, allowed=odd.allowed, where=f"{path}, operation {odd.number}")
    lines = _lines_of(path, header, history.operations if operations is None else operations)
    packed = path.suffix == ".gz"
    try:
        if path.exists() and not path.is_file():
            # A pipe, or /dev/stdout: nothing can take its place.
            _write_lines(path, lines, packed=packed)
            return
        real = path.resolve()
        beside = real.with_name(f".{real.name}.{os.getpid()}.new")
        try:
            _write_lines(beside, lines, packed=packed)
            beside.replace(real)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise BadFileError("The history cannot be written.", given=str(error), where=str(path)) from error


def _write_lines(path: Path, lines: Iterable[bytes], *, packed: bool) -> None:
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | gzip.GzipFile = stack.enter_context(path.open("wb"))
        if packed:
            # Without name and time, so that equal histories are equal files.
            file = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
        for line in lines:
            file.write(line + b"\n")


def _lines_of(path: Path, header: _Header, operations: Iterable[Operation]) -> Iterator[bytes]:
    """Yield the lines of a history, each read again first: what is written can be read, and is the same."""
    size = 0
    problem_of = Order().problem_of
    pairs: Iterable[tuple[str, Any, type[_Header] | type[Operation]]] = itertools.chain(
        [("the header", header, _Header)],
        ((f"operation {number}", operation, Operation) for number, operation in enumerate(operations)),
    )
    encoder, decoders = msgspec.json.Encoder(), {kind: msgspec.json.Decoder(kind) for kind in (_Header, Operation)}
    for place, one, kind in pairs:
        where = f"{path}, {place}"
        try:
            line = encoder.encode(one)
            again = _decoded(line.decode("utf-8"), 1, decoders[kind], where)
        except RecursionError as error:
            raise BadFileError("A value of the history is nested too deeply.", where=where) from error
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise BadFileError("A value of the history has no JSON form.", given=str(error), where=where) from error
        for name in kind.__struct_fields__:
            given = getattr(one, name)
            if not _same(given, getattr(again, name)):
                raise BadFileError(
                    "The history would be read as another one.", given=f"{name} {given!r}"[:160],
                    allowed="what JSON has: text, finite numbers, true, false, nothing, lists, and maps with text as "
                    "keys", where=where,
                )  # fmt: skip
        says = problem_of(one) if kind is Operation else None
        if says is not None:
            raise BadFileError(says, given=brief(one), where=where)
        size += len(line) + 1
        if size > LARGEST_BYTES:
            raise BadFileError(
                "The history is too large to be read again.", given=f"{size:,} bytes and more",
                allowed=f"up to {LARGEST_BYTES:,} bytes", where=str(path),
            )  # fmt: skip
        yield line


def _same(one: Any, other: Any) -> bool:
    """Return whether a value came back; a tuple comes back as the list that it is to all readers."""
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
        )
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _parse_lines(text: str, where: str) -> History:
    lines = text.lstrip("\ufeff").split("\n")
    header = _decoded(lines[0], 1, msgspec.json.Decoder(_Header), where)
    if header.format != FORMAT:
        raise BadFileError("The file is not a history.", given=header.format, allowed=FORMAT, where=f"{where}, line 1")
    if header.version != VERSION:
        raise BadFileError(
            "The history is of a version that this Wavetank does not read.", given=header.version,
            allowed=str(VERSION), where=f"{where}, line 1", hint="update Wavetank, or write the history again",
        )  # fmt: skip
    decoder = msgspec.json.Decoder(Operation)
    at = [number for number, line in enumerate(lines[1:], start=2) if line.strip()]
    operations = tuple(_decoded(lines[number - 1], number, decoder, where) for number in at)
    problem = first_problem(operations)
    if problem is not None:
        number, says = problem
        raise BadFileError(says, given=brief(operations[number]), where=f"{where}, line {at[number]}, column 1")
    try:
        history = History(operations=operations, **{name: getattr(header, name) for name in _KEPT})
    except BadValueError as error:
        raise BadFileError(error.problem, given=error.given, allowed=error.allowed, where=f"{where}, line 1") from error
    odd = misfit(history)
    if odd is not None:
        raise BadFileError(
            odd.says, given=odd.given, allowed=odd.allowed, where=f"{where}, line {at[odd.number]}, column 1"
        )
    return history


def _decoded(line: str, number: int, decoder: msgspec.json.Decoder[Any], where: str) -> Any:
    if len(line) > _LONGEST_LINE_BYTES:
        raise BadFileError(
            "The line is too long.", allowed=f"up to {_LONGEST_LINE_BYTES} bytes", where=f"{where}, line {number}"
        )
    try:
        return decoder.decode(line)
    except RecursionError as error:
        raise BadFileError("The line is nested too deeply.", where=f"{where}, line {number}, column 1") from error
    except msgspec.DecodeError as error:
        raise BadFileError(
            "The line does not have the form of a history's line.",
            given=str(error),
            where=f"{where}, line {number}, column {_column(line, str(error))}",
            hint='an operation looks like {"process":"1","action":"write","value":3,"invoked":0.1,"returned":0.2}',
        ) from error


def _column(line: str, problem: str) -> int:
    """Return the column that msgspec's message is about: a byte it names, or the field at which its path points."""
    head, _, byte = problem.rpartition("(byte ")
    if head:
        return int(byte.rstrip(")")) + 1
    _, _, dotted = problem.rpartition("`$.")
    field = dotted.rstrip("`").split("[")[0].split(".")[0]
    return max(line.find(f'"{field}"'), 0) + 1 if field else 1
