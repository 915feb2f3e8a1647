"""Readers of histories that others recorded: Jepsen's etcd logs, Porcupine's key-value tests, Knossos's EDN.

All three are lists of events; an operation is an invocation and the event that ended it.  Their order in the file is
the order in which they happened, whatever their time stamps say.

Sources: the test data of github.com/anishathalye/porcupine and github.com/jepsen-io/knossos.

What an ending means:

1. ``:ok``: it happened, and this is its result.
2. ``:fail`` in EDN: it did not happen and is left out.  In an etcd log a failed compare-and-set did happen and found
   another value, as Porcupine's model has it; a failed read was a time-out and is left out.
   In EDN a read of nil learned nothing, as Knossos has it, and is left out as well.
3. ``:info``, or none: nobody knows, so that ``returned`` is None.  Reads without an answer are left out: they constrain
   nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from wavetank.errors import BadFileError, nearest_of
from wavetank.protocols.consistency.edn import Map, Word, place, read_forms
from wavetank.protocols.history import History, Operation

_ETCD_LINE = re.compile(r"INFO +[\w.$-]+ +- +(\S+)\t:(invoke|ok|fail|info)\t:(\w+)\t(.*)")
_PAIR = re.compile(r"\[(nil|-?\d+) (nil|-?\d+)\]\s*")

# Name of a function in a recording -> our action; None stands for those of the tester itself.
_ACTIONS = {
    "read": "read", "get": "read", "r": "read", "write": "write", "put": "write", "w": "write", "cas": "cas",
    "append": "append", "txn": "transaction", "transaction": "transaction", "acquire": "acquire", "lock": "acquire",
    "release": "release", "unlock": "release", "enqueue": "enqueue", "dequeue": "dequeue", "push": "push", "pop": "pop",
    "add": "add", "remove": "remove", "increment": "increment", "inc": "increment",
}  # fmt: skip
_STEPS = {"read": "read", "r": "read", "write": "write", "w": "write", "append": "append"}
_TYPES = ("invoke", "ok", "fail", "info")
_NANOSECONDS_PER_S = 1e9


class _Event:
    """One line of a recording."""

    __slots__ = ("action", "at", "key", "process", "time_s", "type", "value")

    def __init__(self, process: str, kind: str, action: str, key: str, value: Any, time_s: float | None, at: int):
        self.process, self.type, self.action, self.key = process, kind, action, key
        self.value, self.time_s, self.at = value, time_s, at


def parse_recording(text: str, where: str) -> History:
    """Read a history in one of the three formats.

    Parameters
    ----------
    text : str
        Content of the file.
    where : str
        The file, for messages.

    Raises
    ------
    BadFileError
        With line and column.
    """
    text = text.lstrip("\ufeff")
    begins = text.lstrip()[:1]
    if begins in ("{", "[", "(", ";", "#"):
        return _paired(list(_edn_events(text, where)), text, where, is_log=False)
    if text.lstrip().startswith("INFO"):
        return _paired(list(_etcd_events(text, where)), text, where, is_log=True)
    raise BadFileError(
        "The file is in no format of a history that is known here.",
        given=text.lstrip()[:40],
        allowed="JSON Lines of Wavetank, a Jepsen etcd log, or EDN maps as Porcupine and Knossos use",
        where=f"{where}, line 1, column 1",
    )


def _etcd_events(text: str, where: str) -> Iterator[_Event]:
    at = 0
    for line in text.split("\n"):
        start, at = at, at + len(line) + 1
        if not line.strip():
            continue
        match = _ETCD_LINE.match(line)
        if match is None:
            raise BadFileError(
                "The line is no event of a Jepsen log.",
                given=line[:80],
                allowed="INFO  jepsen.util - PROCESS<tab>:invoke<tab>:read<tab>nil",
                where=f"{where}, {place(text, start)}",
            )
        process, kind, function, rest = match.groups()
        if process.startswith(":"):
            continue
        value: Any = None
        if function not in ("read", "write", "cas"):
            raise BadFileError(
                "The log has an operation that a register does not know.",
                given=function,
                allowed=("read", "write", "cas"),
                nearest=nearest_of(function, ("read", "write", "cas")),
                where=f"{where}, {place(text, start + match.start(3))}",
            )
        if kind in ("invoke", "ok") or (kind == "fail" and function == "cas" and rest.startswith("[")):
            value = _etcd_value(rest)
            if value is ... or (function == "cas") != isinstance(value, list):
                raise BadFileError(
                    "The value makes no sense.",
                    given=rest,
                    allowed="[old new]" if function == "cas" else "nil or a whole number",
                    where=f"{where}, {place(text, start + match.start(4))}",
                )
        elif kind == "fail" and function == "cas":
            # It failed for another reason than the value it found.
            kind = "info"
        yield _Event(process, kind, function, "", value, None, start)


def _etcd_value(text: str) -> Any:
    pair = _PAIR.fullmatch(text)
    if pair is not None:
        return [None if part == "nil" else int(part) for part in pair.groups()]
    text = text.strip()
    if text == "nil":
        return None
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else ...


def _edn_events(text: str, where: str) -> Iterator[_Event]:
    forms = read_forms(text, where)
    if len(forms) == 1 and isinstance(forms[0], tuple):
        forms = list(forms[0])
    last = 0
    for form in forms:
        if not isinstance(form, Map):
            raise BadFileError(
                "The file holds something that is no event.",
                given=repr(form)[:80],
                allowed="maps with :process, :type, :f and :value",
                where=f"{where}, after the event at {place(text, last)}" if last else f"{where}, {place(text, 0)}",
            )
        last = form.at
        for needed in ("process", "type", "f"):
            if needed not in form:
                raise BadFileError(
                    f"An event has no :{needed}.",
                    given=", ".join(f":{key}" for key in form),
                    where=f"{where}, {place(text, form.at)}",
                )
        process, kind, function = form["process"], form["type"], form["f"]
        if isinstance(process, Word):
            # :nemesis, the tester who breaks things; it is no client.
            continue
        if kind not in _TYPES:
            raise BadFileError(
                "An event is of a type that is not known.",
                given=str(kind),
                allowed=_TYPES,
                nearest=nearest_of(str(kind), _TYPES),
                where=f"{where}, {place(text, form.at)}",
            )
        if function not in _ACTIONS:
            raise BadFileError(
                "An event's operation is not known.",
                given=str(function),
                allowed=sorted(_ACTIONS),
                nearest=nearest_of(str(function), _ACTIONS),
                where=f"{where}, {place(text, form.at)}",
            )
        time_ns = form.get("time")
        time_s = time_ns / _NANOSECONDS_PER_S if isinstance(time_ns, int | float) else None
        key = form.get("key")
        yield _Event(
            str(process),
            str(kind),
            _ACTIONS[function],
            "" if key is None else str(key),
            form.get("value"),
            time_s,
            form.at,
        )


def _paired(events: list[_Event], text: str, where: str, *, is_log: bool) -> History:
    times, clock = _times(events)
    waiting: dict[str, int] = {}
    ended: dict[int, int] = {}
    for number, event in enumerate(events):
        if event.type == "invoke":
            waiting[event.process] = number
            continue
        began = waiting.pop(event.process, None)
        if began is None or events[began].action != event.action or events[began].key != event.key:
            raise BadFileError(
                "An operation ends that was not under way."
                if began is None
                else "An operation ends as another one than it began.",
                given=f"process {event.process}, {event.action}",
                where=f"{where}, {place(text, event.at)}",
            )
        ended[began] = number
    operations = []
    for number, event in enumerate(events):
        if event.type != "invoke":
            continue
        end = events[ended[number]] if number in ended else None
        found = _operation(event, end, times[number], times[ended[number]] if end else None, is_log)
        if found is ...:
            raise BadFileError(
                "The value makes no sense.",
                given=repr(event.value)[:80],
                allowed="[old new]" if event.action == "cas" else "a list of [:read key value] and [:write key value]",
                where=f"{where}, {place(text, event.at)}",
            )
        if found is not None:
            operations.append(found)
    # A key-value store of strings starts with empty ones, a register with nothing.
    strings = any(isinstance(event.value, str) and not isinstance(event.value, Word) for event in events)
    initial: Any = "" if strings else None
    if any(event.action == "transaction" for event in events):
        # Knossos's multi-registers start at 0; Elle's lists and registers at nothing.
        long_names = any(step[0] in ("read", "write") for step in _all_steps(events))
        initial = 0 if long_names else None
    return History(operations=tuple(operations), initial=initial, clock=clock)  # type: ignore[arg-type]


def _all_steps(events: Iterable[_Event]) -> Iterator[Any]:
    for event in events:
        if event.action == "transaction" and isinstance(event.value, tuple):
            yield from event.value


def _times(events: list[_Event]) -> tuple[list[float], str]:
    """Return times that agree with the order of the file: stamps where all have one, numbers of events otherwise."""
    if not events or any(event.time_s is None for event in events):
        return [float(number) for number in range(len(events))], "events"
    times, before = [], float("-inf")
    for event in events:
        # A later line is later, even if its stamp was taken a little before.
        before = max(float(event.time_s or 0.0), before + 1e-9)
        times.append(before)
    return times, "seconds"


def _operation(
    event: _Event, end: _Event | None, invoked: float, returned: float | None, is_log: bool
) -> Operation | Any:
    """Return the operation, None for one to leave out, Ellipsis for one that makes no sense."""
    ending = end.type if end is not None else "info"
    value, result = event.value, None
    if ending == "info":
        if event.action == "read":
            return None
        returned = None
    elif ending == "fail":
        if (event.action == "cas" and is_log) or event.action == "transaction":
            result = False
        else:
            return None
    if event.action == "cas":
        if not isinstance(value, list | tuple) or len(value) != 2:
            return ...
        value = [_plain(part) for part in value]
        result = True if ending == "ok" else result
    elif event.action == "transaction":
        value = _steps(value)
        if value is ...:
            return ...
        if ending == "ok" and end is not None:
            result = _steps(end.value)
            if result is ... or [step[:2] for step in result] != [step[:2] for step in value]:
                return ...
    elif ending == "ok" and end is not None and event.action in ("read", "dequeue", "pop"):
        value, result = None, _plain(end.value)
        if event.action == "read" and result is None and not is_log:
            return None
    else:
        value = _plain(value)
    return Operation(
        process=event.process, action=event.action, key=event.key, value=value, result=result,
        invoked=invoked, returned=returned,
    )  # fmt: skip


def _steps(value: Any) -> Any:
    if not isinstance(value, tuple):
        return ...
    steps = []
    for step in value:
        if not isinstance(step, tuple) or len(step) != 3 or step[0] not in _STEPS:
            return ...
        steps.append([_STEPS[step[0]], str(step[1]), _plain(step[2])])
    return steps


def _plain(value: Any) -> Any:
    """Return a value without the types of EDN."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Map):
        return {str(key): _plain(part) for key, part in value.items()}
    return str(value) if isinstance(value, Word) else value
