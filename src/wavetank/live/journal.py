"""What clients asked and what they were answered, written down as it happens, so that a launcher need not keep it.

One line an event, over all runs of a folder: numbers of requests and times go on where the run before ended, so the
history of a cluster that was resumed begins where its data began.  An event is in the file before a node can see the
request; whatever happens to the launcher, no request is missing whose effect somebody may read later.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from wavetank.errors import BadFileError
from wavetank.sim.history import Operation

JOURNAL = "requests.jsonl"
# Between the last event of a run and the first of the next.
_BETWEEN_RUNS_S = 1.0


class _Asked(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    number: int
    at: float
    client: str
    action: str
    key: str
    value: Any


class _Answered(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    number: int
    at: float
    result: Any


_decoder = msgspec.json.Decoder(_Asked | _Answered)


def as_operation(command: Any) -> tuple[str, str, Any]:
    """Return action, key and value of a command ``(action, key, value)``; any other is the value of a ``command``."""
    if isinstance(command, tuple | list) and command and isinstance(command[0], str):
        key = command[1] if len(command) > 1 and isinstance(command[1], str) else ""
        rest = command[2:] if key else command[1:]
        return command[0], key, rest[0] if len(rest) == 1 else (list(rest) or None)
    return "command", "", command


class Journal:
    """The events of a folder's clients.

    Parameters
    ----------
    path : Path
        Of the file; what is in it stays.

    Attributes
    ----------
    next_number : int
        Of the first request of this run.
    base_s : float
        When this run begins, in seconds of the first one's clock.

    Raises
    ------
    BadFileError
        If the file cannot be opened or is no journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.next_number, self.base_s = 0, 0.0
        whole = 0
        try:
            if path.exists():
                last_s = 0.0
                for event, end in _events(path):
                    whole, last_s = end, max(last_s, event.at)
                    self.next_number = max(self.next_number, event.number + 1)
                self.base_s = last_s + _BETWEEN_RUNS_S if whole else 0.0
                # A launcher that was killed leaves half a line at most.
                os.truncate(path, whole)
            self._file = path.open("ab", buffering=0)
            self._end = whole
        except OSError as error:
            raise BadFileError("The journal cannot be opened.", given=error.strerror, where=str(path)) from error
        self._encoder = msgspec.json.Encoder(enc_hook=repr)

    def asked(self, number: int, at_s: float, client: str, command: Any) -> None:
        """Write down that a client asks, ``at_s`` seconds after this run began."""
        self._put(_Asked(number, self.base_s + at_s, client, *as_operation(command)))

    def answered(self, number: int, at_s: float, result: Any) -> None:
        """Write down that it was answered."""
        self._put(_Answered(number, self.base_s + at_s, result))

    def close(self) -> None:
        """Write nothing more."""
        self._file.close()

    def _put(self, event: _Asked | _Answered) -> None:
        try:
            line = self._encoder.encode(event) + b"\n"
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
            # Text that is no Unicode, keys that JSON has not: as Python writes them.
            line = self._encoder.encode(_writable(event)) + b"\n"
        try:
            # On a disk that is nearly full less is written than was given.
            view = memoryview(line)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            # Half a line would make the file worthless as soon as there is another line.
            with contextlib.suppress(OSError):
                os.truncate(self._file.fileno(), self._end)
            raise BadFileError("The journal cannot be written.", given=error.strerror, where=str(self.path)) from error
        self._end += len(line)


def _writable(event: _Asked | _Answered) -> _Asked | _Answered:
    if isinstance(event, _Answered):
        return msgspec.structs.replace(event, result=ascii(event.result))
    texts = {name: _as_unicode(getattr(event, name)) for name in ("client", "action", "key")}
    return msgspec.structs.replace(event, value=ascii(event.value), **texts)


def _as_unicode(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _events(path: Path) -> Iterator[tuple[_Asked | _Answered, int]]:
    """Yield the events of a file with the byte at which each ends; half a line at the end is left out."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                event = _decoder.decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise BadFileError("The journal is damaged.", given=str(error), where=f"{path}, byte {end}") from error
            end += len(line)
            yield event, end


def operations_of(path: Path) -> Iterator[Operation]:
    """Yield the operations of a journal in the order of their invocation; each client does one thing at a time.

    What is in memory is what was under way at one time, and the requests that were never answered.
    """
    open_numbers: set[int] = set()
    for event, _ in _events(path):
        if isinstance(event, _Asked):
            open_numbers.add(event.number)
        else:
            open_numbers.discard(event.number)
    lanes = Lanes()
    waiting: dict[int, _Asked] = {}
    answers: dict[int, _Answered] = {}
    for event, _ in _events(path):
        if isinstance(event, _Asked):
            waiting[event.number] = event
        elif event.number in waiting:
            answers[event.number] = event
        while waiting:
            number, asked = next(iter(waiting.items()))
            if number not in answers and number not in open_numbers:
                break
            del waiting[number]
            answered = answers.pop(number, None)
            returned = None if answered is None else answered.at
            yield Operation(
                process=lanes.name(asked.client, asked.at, returned),
                action=asked.action,
                key=asked.key,
                value=asked.value,
                result=None if answered is None else answered.result,
                invoked=asked.at,
                returned=returned,
            )


class Lanes:
    """Names for clients that ask before they were answered: each counts as several.

    What is in memory is what one client has under way at a time, not the requests that were never answered.
    """

    def __init__(self) -> None:
        # Client to its lanes that may still be used, with the time until which each is taken, and to how many it has.
        self._open: dict[str, dict[int, float]] = {}
        self._count: dict[str, int] = {}

    def name(self, client: str, invoked: float, returned: float | None) -> str:
        """Return who asks at a time and is answered at another one, None for never."""
        lanes = self._open.setdefault(client, {})
        lane = min((place for place, until in lanes.items() if until <= invoked), default=-1)
        if lane < 0:
            lane = self._count.get(client, 0)
            self._count[client] = lane + 1
        if returned is None:
            # Who never got an answer may still be under way and asks nothing more.
            lanes.pop(lane, None)
        else:
            lanes[lane] = returned
        return client if lane == 0 else f"{client}/{lane}"
