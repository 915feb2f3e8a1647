"""Histories: what clients asked of a store, what they were told, and when.

A history is a list of operations with the times of their invocation and return, seen from outside; it says nothing of
how the store works.  Every protocol of this area can emit one, and :mod:`wavetank.protocols.consistency` judges it.
On disk a history is JSON Lines: a header with a version, then one operation a line.

Source: M. Herlihy, J. Wing, "Linearizability: A Correctness Condition for Concurrent Objects", TOPLAS 12(3), 1990.

Conventions
-----------
``read``
    ``result`` is what was read; a register or key never written holds the history's ``initial``.
``write``
    ``value`` is what was written.
``cas``
    ``value`` is ``[old, new]``; ``result`` is true, false, or None where nobody knows.
``append``
    ``value`` is appended to a string or a list; a ``read`` then returns all of it.
``transaction``
    ``value`` is a list of ``["read" | "write" | "append", key, value]``, ``result`` the same list with the reads
    filled in; ``result`` false says that it was aborted.
``acquire``, ``release``
    Of a mutex.
``enqueue``, ``dequeue``; ``push``, ``pop``
    Of a queue, of a stack; ``result`` is what came out, None when it was empty.
``add``, ``remove``; ``increment``
    Of a set; of a counter (``value`` is by how much).  A ``read`` returns the elements, or the count.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import itertools
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from wavetank.errors import BadFileError, BadValueError

FORMAT = "wavetank-history"
VERSION = 1
# A history is read into memory whole; beyond this it is no history that any checker could judge.
LARGEST_BYTES = 2**30
_LONGEST_LINE_BYTES = 2**24
# What a test of Jepsen or Maelstrom leaves in its folder, the most exact first.
STORED = ("history.edn", "history.edn.gz", "history.txt")


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operation of one client.

    Parameters
    ----------
    process : str
        The client; it does one operation at a time.
    action : str
        ``read``, ``write``, ``cas``, ``append``, ``transaction`` ...: see the module's conventions.
    key : str
        What it touches; empty for a store of a single object, and for transactions.
    value : object
        What the client gave.
    result : object
        What it was told.
    invoked : float
        Time of the call, in the history's clock.
    returned : float or None
        Time of the return; None when it never came back, so that it may or may not have happened, even later.
    """

    process: str
    action: str
    key: str = ""
    value: Any = None
    result: Any = None
    invoked: float
    returned: float | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Operations in the order of their invocation, and what is known beside them.

    Parameters
    ----------
    operations : tuple of Operation
        Where a process began one at the very time at which its last one returned, times are moved apart by the least
        that floats allow: one process does one thing after another.
    messages : tuple of (int, int)
        Pairs of operation numbers (from 0): a message sent after the first had returned reached the second's client
        before it was invoked, so that the first happened before the second.
    store : str
        Data type that the operations are of; empty to find out from the actions.
    initial : object
        What a register or key holds before the first write.
    clock : str
        ``seconds``, or ``events`` when only the order of events is known and times count events.
    rule : str
        Rule that the recorder's own checker asks of such a workload
        (:data:`~wavetank.protocols.consistency.rules.RULES`); empty where a consistency model is asked.
    final : tuple of int
        Operations that were marked as final: clients did nothing after them.
    notes : tuple of (str, str)
        What a reader of another format assumed; not written.

    Raises
    ------
    BadValueError
        If times are not finite or run backwards, a process does two things at once, or a message has no ends.
    """

    operations: tuple[Operation, ...]
    messages: tuple[tuple[int, int], ...] = ()
    store: str = ""
    initial: Any = None
    clock: Literal["seconds", "events"] = "seconds"
    rule: str = ""
    final: tuple[int, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        problem = _problem(self.operations)
        if problem is not None:
            number, says = problem
            raise BadValueError(says, given=_short(self.operations[number]), where=f"operation {number}")
        if _has_ties(self.operations):
            msgspec.structs.force_setattr(self, "operations", _without_ties(self.operations))
        for sender, receiver in self.messages:
            if not (0 <= sender < len(self.operations) and 0 <= receiver < len(self.operations)):
                raise BadValueError(
                    "A message joins operations that are not there.",
                    given=(sender, receiver),
                    allowed=f"0 to {len(self.operations) - 1}",
                    where="messages",
                )
            returned = self.operations[sender].returned
            if returned is None or returned >= self.operations[receiver].invoked:
                raise BadValueError(
                    "A message was received before it was sent.", given=(sender, receiver), where="messages"
                )

    def __len__(self) -> int:
        return len(self.operations)


class _Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: int
    store: str = ""
    initial: Any = None
    clock: Literal["seconds", "events"] = "seconds"
    messages: tuple[tuple[int, int], ...] = ()
    rule: str = ""
    final: tuple[int, ...] = ()


def _short(operation: Operation) -> str:
    text = msgspec.json.encode(operation).decode()
    return text if len(text) <= 160 else text[:157] + "..."


class _Order:
    """Looks at operations in turn: whether each can come behind those before it."""

    def __init__(self) -> None:
        self._busy_until: dict[str, float] = {}
        self._before = -math.inf

    def problem_of(self, operation: Operation) -> str | None:
        """Return why the next operation cannot be."""
        invoked, returned = operation.invoked, operation.returned
        if not math.isfinite(invoked) or (returned is not None and not math.isfinite(returned)):
            return "A time of an operation is not a finite number."
        if returned is not None and returned < invoked:
            return "An operation returned before it was invoked."
        if invoked < self._before:
            return "Operations are not in the order of their invocation."
        if invoked < self._busy_until.get(operation.process, -math.inf):
            return f"The process {operation.process!r} began this operation while another was under way."
        self._before = invoked
        # One that never came back holds nobody up: a client may have given up on it.
        if returned is not None:
            self._busy_until[operation.process] = returned
        return None


def _problem(operations: Iterable[Operation]) -> tuple[int, str] | None:
    """Return the first operation that cannot be, and why."""
    order = _Order()
    for number, operation in enumerate(operations):
        says = order.problem_of(operation)
        if says is not None:
            return number, says
    return None


def _has_ties(operations: Iterable[Operation]) -> bool:
    """Return whether a process began an operation at the very time at which its last one returned."""
    last: dict[str, float] = {}
    for operation in operations:
        if last.get(operation.process) == operation.invoked:
            return True
        if operation.returned is not None:
            last[operation.process] = operation.returned
    return False


def _without_ties(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return operations of which each began after the last one of its process had returned.

    Of one time the order of invocation is that of the operations; nothing else is put in an order that was not in one.
    """
    invoked_at: dict[float, list[int]] = {}
    returned_at: dict[float, list[int]] = {}
    follows: dict[int, int] = {}
    last: dict[str, int] = {}
    for number, operation in enumerate(operations):
        invoked_at.setdefault(operation.invoked, []).append(number)
        before = last.get(operation.process)
        if before is not None and operations[before].returned == operation.invoked:
            follows[number] = before
        if operation.returned is not None:
            returned_at.setdefault(operation.returned, []).append(number)
            last[operation.process] = number
    invoked, returned = [0.0] * len(operations), {number: 0.0 for each in returned_at.values() for number in each}
    now = -math.inf
    for time in sorted({*invoked_at, *returned_at}):
        now = max(time, math.nextafter(now, math.inf))
        followed = set()
        for number in invoked_at.get(time, ()):
            if number in follows:
                # It returned beside all that was invoked so far, and before all that is invoked from here on.
                returned[follows[number]] = now
                followed.add(follows[number])
                now = math.nextafter(now, math.inf)
            invoked[number] = now
        for number in returned_at.get(time, ()):
            if number not in followed:
                returned[number] = now
    return tuple(
        msgspec.structs.replace(operation, invoked=invoked[number], returned=returned.get(number))
        for number, operation in enumerate(operations)
    )


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
        return _read(path, keyed, names)


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


def _read(path: Path, keyed: bool | None, names: Mapping[str, str] | None) -> History:
    text = _text_of(path)
    first = text.lstrip("\ufeff \t\r\n")
    if not first:
        raise BadFileError("The file is empty.", where=str(path))
    if first.startswith('{"'):
        return _parse_lines(text, str(path))
    from wavetank.protocols.consistency.recordings import parse_recording

    return parse_recording(text, str(path), keyed=keyed, names=names)


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
    header = _Header(
        FORMAT, VERSION, store=history.store, initial=history.initial, clock=history.clock, messages=history.messages,
        rule=history.rule, final=history.final,
    )  # fmt: skip
    if operations is None:
        from wavetank.protocols.consistency.values import misfit

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
    problem_of = _Order().problem_of
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
            raise BadFileError(says, given=_short(one), where=where)
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


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise BadFileError("The file is too large.", allowed=f"up to {LARGEST_BYTES} bytes", where=str(path))
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        # A bomb unpacks to far more than its size, so the limit holds for what comes out.
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError("The file cannot be read.", given=str(error), where=str(path)) from error
    if len(content) > LARGEST_BYTES:
        raise BadFileError("The file is too large.", allowed=f"up to {LARGEST_BYTES} bytes unpacked", where=str(path))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        raise BadFileError("The file is not UTF-8 text.", where=f"{path}, line {line}, column {column}") from error


def _parse_lines(text: str, where: str) -> History:
    lines = text.lstrip("\ufeff").split("\n")
    header = _decoded(lines[0], 1, msgspec.json.Decoder(_Header), where)
    if header.format != FORMAT:
        raise BadFileError("The file is no history.", given=header.format, allowed=FORMAT, where=f"{where}, line 1")
    if header.version != VERSION:
        raise BadFileError(
            "The history is of a version that this Wavetank does not read.",
            given=header.version,
            allowed=str(VERSION),
            where=f"{where}, line 1",
            hint="update Wavetank, or write the history again",
        )
    decoder = msgspec.json.Decoder(Operation)
    at = [number for number, line in enumerate(lines[1:], start=2) if line.strip()]
    operations = tuple(_decoded(lines[number - 1], number, decoder, where) for number in at)
    problem = _problem(operations)
    if problem is not None:
        number, says = problem
        raise BadFileError(says, given=_short(operations[number]), where=f"{where}, line {at[number]}, column 1")
    try:
        history = History(
            operations=operations,
            messages=header.messages,
            store=header.store,
            initial=header.initial,
            clock=header.clock,
            rule=header.rule,
            final=header.final,
        )
    except BadValueError as error:
        raise BadFileError(error.problem, given=error.given, allowed=error.allowed, where=f"{where}, line 1") from error
    from wavetank.protocols.consistency.values import misfit

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
            "The line is not what a history's line must be.",
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
