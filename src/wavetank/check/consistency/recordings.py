"""Readers of histories that others recorded: Jepsen and Maelstrom, Knossos, Elle, Porcupine.

All formats are lists of events; an operation is an invocation and the event that ended it.  Their order in the file is
the order in which they happened, whatever their time stamps say.  The names of its functions show what kind of
workload it was, and some workloads bring the rule that their own checker asks
(:mod:`wavetank.check.consistency.rules`).

Sources: the documentation of github.com/jepsen-io/jepsen, github.com/jepsen-io/maelstrom, github.com/jepsen-io/elle,
github.com/jepsen-io/knossos, and the test data of github.com/anishathalye/porcupine.

What an ending means:

1. ``:ok``: it happened, and this is its result.
2. ``:fail`` in EDN: it did not happen and is left out.  In an etcd log a failed compare-and-set did happen and found
   another value, as Porcupine's model has it; a failed read was a time-out and is left out.
   In EDN a read of nil of a register learned nothing, as Knossos has it, and is left out as well; nil is the empty
   list or set where there are such.
3. ``:info``, or none: nobody knows, so that ``returned`` is None and the operation stays beside all that follows.
   Reads without an answer are left out: they constrain nothing.
4. Events of a process that is no number (``:nemesis``) are the tester's own and are left out.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from wavetank.check.consistency.edn import Map, Set, Source, Word, forms_of
from wavetank.check.consistency.objects import OBJECTS
from wavetank.check.consistency.rules import RULES
from wavetank.check.consistency.values import misfit
from wavetank.errors import BadFileError, nearest_of
from wavetank.sim.history import History, Operation

# Blanks or tabs: Porcupine's own readers take either.
_ETCD_LINE = re.compile(r"INFO\s+[\w.$-]+\s+-\s+(\S+)\s+:(invoke|ok|fail|info)\s+:(\w+)\s+(.*)")
_COLUMNS = re.compile(r"\s*(:?[\w./-]+)\s+:(invoke|ok|fail|info)\s+:([^\s,()\[\]{}\";]+)\s*(.*)")
_OTHER_KINDS = re.compile(r"[+-]?\d.*|[\[{\"].*|nil|true|false|None|True|False", re.DOTALL)
# Actions whose values may come with a key.
_KEYED = ("read", "write", "cas", "append", "add", "remove", "increment")
_PAIR = re.compile(r"\[(nil|-?\d+) (nil|-?\d+)\]\s*")

# Name of a function in a recording -> our action; None stands for those of the tester itself.
_ACTIONS = {
    "read": "read", "get": "read", "r": "read", "write": "write", "put": "write", "w": "write", "cas": "cas",
    "append": "append", "txn": "transaction", "transaction": "transaction", "acquire": "acquire", "lock": "acquire",
    "release": "release", "unlock": "release", "enqueue": "enqueue", "dequeue": "dequeue", "push": "push", "pop": "pop",
    "add": "add", "remove": "remove", "increment": "increment", "inc": "increment", "broadcast": "add",
    "drain": "drain", "generate": "generate", "transfer": "transfer", "send": "log", "poll": "log",
    "assign": "ignore", "subscribe": "ignore", "crash": "ignore", "debug-topic-partitions": "ignore",
    "topology": "ignore", "ignore": "ignore",
}  # fmt: skip
_NOT_CHECKED = {"echo": "an echo answers each client alone, so that there is nothing that clients could disagree on"}
_STEPS = {"read": "read", "r": "read", "write": "write", "w": "write", "append": "append"}
_TYPES = ("invoke", "ok", "fail", "info")
_NANOSECONDS_PER_S = 1e9
# Beyond it a stamp is none; nanoseconds since 1970 have nineteen digits.
_LATEST_NS = 10**24


class _Event:
    """One line of a recording."""

    __slots__ = ("action", "at", "final", "key", "process", "time_ns", "type", "value")

    def __init__(self, process: str, kind: str, action: str, key: str, value: Any, time_ns: int | None, at: int):
        # Few strings stand in millions of events.
        self.process, self.key = sys.intern(process), sys.intern(key)
        self.type, self.action = sys.intern(kind), action
        self.value, self.time_ns, self.at, self.final = value, time_ns, at, False


def parse_recording(
    text: str, where: str, *, keyed: bool | None = None, names: Mapping[str, str] | None = None
) -> History:
    """Read a history that another program recorded.

    Parameters
    ----------
    text : str
        Content of the file.
    where : str
        The file, for messages.
    keyed : bool, optional
        Whether values are ``[key value]``; None to find out.
    names : mapping, optional
        Name of a recorded function to the name of a known one, or to ``ignore``.

    Raises
    ------
    BadFileError
        With line and column.
    """
    source = Source(text.lstrip("\ufeff"), where)
    stripped = source.text.lstrip()
    if stripped[:1] in ("{", "[", "(", ";", "#"):
        events = list(_edn_events(source, names or {}))
    elif stripped.startswith("INFO"):
        return _paired(list(_etcd_events(source)), source, is_log=True)
    elif _COLUMNS.match(stripped.partition("\n")[0]):
        events = list(_column_events(source, names or {}))
    else:
        raise BadFileError(
            "The file is in no format of a history that is known here.",
            given=stripped[:40],
            allowed="JSON Lines of Wavetank, a Jepsen etcd log, history.edn or history.txt of Jepsen and Maelstrom, or "
            "EDN maps as Porcupine and Knossos use",
            where=f"{where}, line 1, column 1",
        )
    notes = []
    if any(event.key for event in events):
        keyed = False
    found = _are_keyed(events) if keyed is None else keyed
    if found:
        keys = _take_keys(events, source)
        how = "found from the values" if keyed is None else "as set"
        notes.append(
            ("values", f"pairs of key and value, {keys} keys ({how}); --set keyed=false reads them as one register")
        )
    return _paired(events, source, is_log=False, notes=notes)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and not isinstance(value, Set)
        and len(value) == 2
        and not isinstance(value[0], tuple | Map | None)
    )


def _are_keyed(events: Sequence[_Event]) -> bool:
    """Return whether every value is a pair with a scalar key, as Jepsen's independent tests and Maelstrom write."""
    with_values = [event for event in events if event.type in ("invoke", "ok") and event.action in _KEYED]
    # A compare-and-set of one register has a pair too; only what it reads and writes decides.
    return (
        any(event.action != "cas" for event in with_values)
        and all(_is_pair(event.value) for event in with_values)
        and all(isinstance(event.value[1], tuple) for event in with_values if event.action == "cas")
    )


def _take_keys(events: Sequence[_Event], source: Source) -> int:
    """Move the keys out of the values; return how many there are."""
    keys = set()
    for event in events:
        if event.action not in _KEYED or (event.type in ("fail", "info") and not _is_pair(event.value)):
            continue
        if not _is_pair(event.value):
            source.fail(
                "The value is not a pair of key and value.", event.at, given=repr(event.value)[:80],
                allowed="[key value]", hint="--set keyed=false",
            )  # fmt: skip
        event.key, event.value = sys.intern(_name(event.value[0])), event.value[1]
        keys.add(event.key)
    # An ending without a value ends what its process had begun.
    under_way: dict[str, str] = {}
    for event in events:
        if event.type == "invoke":
            under_way[event.process] = event.key
        elif event.action in _KEYED and not event.key:
            event.key = under_way.get(event.process, "")
    return len(keys)


def _name(key: Any) -> str:
    """Return a key's name; a string that looks like another kind of value is quoted."""
    if isinstance(key, str) and not isinstance(key, Word) and _OTHER_KINDS.fullmatch(key):
        return f'"{key}"'
    return str(_plain(key))


def _lines(source: Source, form: re.Pattern[str], problem: str, allowed: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield where each line begins that is not blank, and its parts."""
    at = 0
    for line in source.text.split("\n"):
        start, at = at, at + len(line) + 1
        if line.strip():
            match = form.fullmatch(line.rstrip("\r"))
            if match is None:
                source.fail(problem, start, given=line[:80], allowed=allowed)
            yield start, match


def _etcd_events(source: Source) -> Iterator[_Event]:
    allowed = "INFO  jepsen.util - PROCESS<tab>:invoke<tab>:read<tab>nil"
    for start, match in _lines(source, _ETCD_LINE, "The line is not an event of a Jepsen log.", allowed):
        process, kind, function, rest = match.groups()
        if process.startswith(":"):
            continue
        value: Any = None
        known = ("read", "write", "cas")
        if function not in known:
            source.fail(
                "The log has an operation that a register does not know.", start + match.start(3), given=function,
                allowed=known, nearest=nearest_of(function, known),
            )  # fmt: skip
        if kind in ("invoke", "ok") or (kind == "fail" and function == "cas" and rest.startswith("[")):
            value = _etcd_value(rest)
            if value is ... or (function == "cas") != isinstance(value, list):
                can_be = "[old new]" if function == "cas" else "nil or a whole number"
                source.fail("The value is not meaningful.", start + match.start(4), given=rest, allowed=can_be)
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


def _edn_events(source: Source, names: Mapping[str, str]) -> Iterator[_Event]:
    last = 0
    for form in forms_of(*source, spread=True):
        if not isinstance(form, Map):
            source.fail(
                "The file holds an item that is not an event.", last, given=repr(form)[:80],
                allowed="maps with :process, :type, :f and :value",
                where=f"{source.where}, {'after the event at ' if last else ''}{source.place(last)}",
            )  # fmt: skip
        last = form.at
        for needed in ("process", "type", "f"):
            if needed not in form:
                source.fail(f"An event has no :{needed}.", form.at, given=", ".join(f":{key}" for key in form))
        process, kind = form["process"], form["type"]
        if isinstance(process, Word) or process == "nemesis":
            # :nemesis, the tester who breaks things; it is no client.
            continue
        if kind not in _TYPES:
            source.fail(
                "An event is of a type that is not known.", form.at, given=str(kind), allowed=_TYPES,
                nearest=nearest_of(str(kind), _TYPES),
            )  # fmt: skip
        stamp = form.get("time")
        time_ns = round(stamp) if isinstance(stamp, int | float) and abs(stamp) < _LATEST_NS else None
        key, value = form.get("key"), form.get("value")
        action = _action(str(form["f"]), value, source, form.at, names)
        if action != "ignore":
            key = "" if key is None else str(key)
            event = _Event(str(process), str(kind), action, key, value, time_ns, form.at)
            event.final = form.get("final?") is True
            yield event


def _column_events(source: Source, names: Mapping[str, str]) -> Iterator[_Event]:
    """Read ``history.txt``: process, type, function, value and perhaps an error in columns."""
    allowed = "PROCESS<tab>:invoke<tab>:read<tab>nil"
    for start, match in _lines(source, _COLUMNS, "The line is not an event of a history.", allowed):
        process, kind, function, rest = match.groups()
        if not process.isdigit():
            continue
        forms = list(forms_of(rest, f"{source.where}, {source.place(start)}, in the value"))
        value = forms[0] if forms else None
        action = _action(function, value, source, start, names)
        if action != "ignore":
            yield _Event(process, kind, action, "", value, None, start)


def _action(function: str, value: Any, source: Source, at: int, names: Mapping[str, str]) -> str:
    function = names.get(function, function)
    if function in _NOT_CHECKED:
        source.fail(f"The workload is not checked: {_NOT_CHECKED[function]}.", at, given=f":f :{function}")
    if function not in _ACTIONS:
        source.fail(
            "An event's operation is not known.", at, given=function, allowed=sorted(_ACTIONS),
            nearest=nearest_of(function, _ACTIONS),
            hint=f"--set names={function}:read, with the known name that fits, or {function}:ignore",
        )  # fmt: skip
    return "log" if _ACTIONS[function] == "transaction" and _is_log(value) else _ACTIONS[function]


def _is_log(value: Any) -> bool:
    """Return whether a transaction is one of sends and polls."""
    return isinstance(value, tuple) and any(isinstance(step, tuple) and step and step[0] in ("send", "poll")
                                            for step in value)  # fmt: skip


def _paired(events: list[_Event], source: Source, *, is_log: bool, notes: Sequence[tuple[str, str]] = ()) -> History:
    rule = _rule(events)
    times, clock = _times(events)
    waiting: dict[str, int] = {}
    ended: dict[int, int] = {}
    for number, event in enumerate(events):
        if event.type == "invoke":
            waiting[event.process] = number
            continue
        began = waiting.pop(event.process, None)
        if began is None or events[began].action != event.action or events[began].key != event.key:
            problem = "that is not under way" if began is None else "as another one than it began"
            source.fail(f"An operation ends {problem}.", event.at, given=f"process {event.process}, {event.action}")
        ended[began] = number
    operations: list[Operation] = []
    final: list[int] = []
    # A register's nil may mean that nothing was learnt; of lists, sets and counts it is what was read.
    lines: list[int] = []
    keeps_nil = is_log or bool(rule) or any(event.action == "append" for event in events)
    for number, event in enumerate(events):
        if event.type != "invoke":
            continue
        end = events[ended[number]] if number in ended else None
        found = _operation(event, end, times[number], times[ended[number]] if end else None, is_log, keeps_nil)
        if found is ...:
            allowed = _ALLOWED.get(event.action, "a value that the operation can have")
            source.fail("The value is not meaningful.", event.at, given=repr(event.value)[:80], allowed=allowed)
        if found is not None:
            if event.final or (end is not None and end.final):
                final.append(len(operations))
            operations.append(found)
            lines.append((end if end is not None and end.type == "ok" else event).at)
    initial, why = _initial(events)
    if why and not rule:
        notes = [*notes, ("initial value", why)]
    if rule:
        says = RULES[rule].says
        notes = [*notes, ("workload", f"{rule}: {says}; --set models=NAME asks a consistency model instead")]
    history = History(
        operations=tuple(operations), initial=None if rule else initial, clock=clock,  # type: ignore[arg-type]
        store=_store(events, operations), rule="pn-counter" if rule == "counter" and final else rule,
        final=tuple(final), notes=tuple(notes),
    )  # fmt: skip
    odd = misfit(history)
    if odd is not None:
        source.fail(odd.says, lines[odd.number], given=odd.given, allowed=odd.allowed)
    return history


_ALLOWED = {
    "cas": "[old new]",
    "transaction": "a list of [:read key value], [:write key value] and [:append key value]",
    "log": "a list of [:send key value] and [:poll]",
}


def _rule(events: Sequence[_Event]) -> str:
    """Return the rule that the recorder's own checker asks of a workload, empty for registers and transactions.

    Additions to a counter and to a set have one name; what is read decides, and the additions are renamed.
    """
    actions = {event.action for event in events}
    if "transfer" in actions:
        return "bank"
    if "generate" in actions:
        return "unique-ids"
    if "log" in actions:
        return "kafka"
    if actions & {"enqueue", "dequeue", "drain"}:
        return "total-queue" if "drain" in actions else "queue"
    if "increment" not in actions and not actions & {"add", "remove"}:
        return ""
    read = [
        event.value for event in events if event.action == "read" and event.type == "ok" and event.value is not None
    ]
    if "increment" in actions or (read and all(type(value) is int for value in read)):
        for event in events:
            event.action = "increment" if event.action == "add" else event.action
        return "counter"
    return "" if "remove" in actions or any(event.key for event in events) else "set-full"


def _store(events: Sequence[_Event], operations: Sequence[Operation]) -> str:
    """Return the object where reads alone are left, for all else failed: what was tried shows what was read."""
    if any(operation.action != "read" for operation in operations):
        return ""
    tried = {event.action for event in events} - {"read", "write"}
    if any(isinstance(event.value, Set) for event in events if event.action == "read"):
        tried.add("add")
    elif any(isinstance(operation.result, list) for operation in operations) and tried <= {"append"}:
        return "list"
    return next((name for name in ("set", "counter", "kv") if tried and tried <= set(OBJECTS[name].actions)), "")


def _initial(events: Sequence[_Event]) -> tuple[Any, str]:
    """Return what registers or keys hold at first, and in words why where it is not nil.

    Formats do not say it.  What was read or swapped does: an operation that saw nil saw what nobody writes.
    """
    if any(event.action == "transaction" for event in events):
        steps = list(_all_steps(events))
        if not any(step[0] in ("read", "write") for step in steps) or any(step[0] == "append" for step in steps):
            return None, ""
        if any(step[0] == "read" and len(step) == 3 and step[2] is None for step in _all_steps(events, "ok")):
            return None, "nil, for a transaction read it"
        return 0, "0, as Knossos's multi-registers have it; nobody read nil"
    pairs = [event.value if event.action == "cas" else (event.value,) for event in events]
    held = [part for pair in pairs if isinstance(pair, tuple) for part in pair]
    if not any(isinstance(part, str) and not isinstance(part, Word) for part in held):
        return None, ""
    ended = [event for event in events if event.type == "ok"]
    found = [event.value for event in ended if event.action == "read"]
    swapped = [event.value[0] for event in ended if event.action == "cas" and isinstance(event.value, tuple)
               and event.value]  # fmt: skip
    if None in swapped or (None in found and "" not in [*found, *swapped]):
        return None, "nil, for it was read or swapped"
    return "", "the empty string, as stores of strings have it; nobody swapped nil"


def _all_steps(events: Iterable[_Event], *types: str) -> Iterator[Any]:
    for event in events:
        if event.action == "transaction" and isinstance(event.value, tuple) and (not types or event.type in types):
            yield from (step for step in event.value if isinstance(step, tuple) and step)


def _times(events: list[_Event]) -> tuple[list[float], str]:
    """Return times that agree with the order of the file: stamps where all have one, numbers of events otherwise.

    Stamps count from the first one in whole nanoseconds: seconds since 1970 as floats are too coarse for them.
    """
    stamps = [event.time_ns for event in events if event.time_ns is not None]
    if not events or len(stamps) < len(events):
        return [float(number) for number in range(len(events))], "events"
    times: list[float] = []
    last_ns, before = -1, -math.inf
    for stamp in stamps:
        # A later line is later, even if its stamp was taken a little before.
        last_ns = max(stamp - stamps[0], last_ns + 1)
        # Over months two nanoseconds may be one float.
        before = max(last_ns / _NANOSECONDS_PER_S, math.nextafter(before, math.inf))
        times.append(before)
    return times, "seconds"


def _operation(
    event: _Event, end: _Event | None, invoked: float, returned: float | None, is_log: bool, keeps_nil: bool
) -> Operation | Any:
    """Return the operation, None for one to leave out, Ellipsis for one that makes no sense."""
    ending = end.type if end is not None else "info"
    value, result = event.value, None
    if ending == "info":
        if event.action in ("read", "generate", "transfer"):
            return None
        returned = None
    elif ending == "fail":
        if (event.action == "cas" and is_log) or event.action in ("transaction", "log"):
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
    elif event.action == "log":
        # Keys of logs are names only, in sends and in polls alike.
        value = _plain(value, str) if isinstance(value, tuple) else ...
        result = _log_result(end) if ending == "ok" and end is not None else result
        if value is ... or result is ...:
            return ...
    elif ending == "ok" and end is not None and event.action in _ANSWERED:
        value, result = None, _plain(end.value)
        if event.action == "read" and result is None and not keeps_nil:
            return None
    else:
        value = _plain(value)
    return Operation(
        process=event.process, action=event.action, key=event.key, value=value, result=result,
        invoked=invoked, returned=returned,
    )  # fmt: skip


_ANSWERED = ("read", "dequeue", "pop", "drain", "generate")


def _log_result(end: _Event) -> Any:
    """Return the answers that sends and polls got, Ellipsis where they make no sense."""
    answers = _plain(end.value, str)
    if not isinstance(answers, list):
        return ...
    for step in answers:
        if not isinstance(step, list) or not step or step[0] not in ("send", "poll"):
            return ...
        if step[0] == "send" and len(step) != 3:
            return ...
        pairs = [pair for polled in step[1:2] for pair in _pairs(polled)] if step[0] == "poll" else []
        if ... in pairs or not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int)
                                   for pair in pairs):  # fmt: skip
            return ...
    return answers


def _pairs(polled: Any) -> list[Any]:
    if not isinstance(polled, dict) or not all(isinstance(each, list) for each in polled.values()):
        return [...]
    return [pair for each in polled.values() for pair in each]


def _steps(value: Any) -> Any:
    if not isinstance(value, tuple):
        return ...
    steps = []
    for step in value:
        if not isinstance(step, tuple) or len(step) != 3 or step[0] not in _STEPS:
            return ...
        steps.append([_STEPS[step[0]], _name(step[1]), _plain(step[2])])
    return steps


def _plain(value: Any, named: Callable[[Any], str] = _name) -> Any:
    """Return a value without the types of EDN; of a set the order is the same however it was written.

    Keys of maps become names; ``named`` says how, and by default keeps a number and a string of its digits apart.
    """
    if isinstance(value, Set):
        return sorted((_plain(part, named) for part in value), key=lambda part: (type(part).__name__, repr(part)))
    if isinstance(value, tuple):
        return [_plain(part, named) for part in value]
    if isinstance(value, Map):
        # In an order of their own as well: two maps of the same content are one value, inside sets too.
        plain = {named(key): _plain(part, named) for key, part in value.items()}
        return dict(sorted(plain.items()))
    return str(value) if isinstance(value, Word) else value
