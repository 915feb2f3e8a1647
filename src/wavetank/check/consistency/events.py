"""Events: operations and transactions in one form, with who saw whose writes.

An event reads some keys and writes some keys.  What a read saw names the writes it depends on wherever values are
unlike each other; where they are alike the candidates are listed and the engine tries them.

Source: K. Kingsbury, P. Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 14(3), 2020.

Differs from the source:
1. Single operations are events too, so that isolation levels and session guarantees are judged in one form.
2. Version orders are only what a read of a list shows, or what the model forces; the rest is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavetank.check.consistency.objects import Sequential, by_key, end_of, frozen, items_of, list_keys, steps_of
from wavetank.check.consistency.zones import INITIAL, NEVER, NONE, sources
from wavetank.sim.history import History, Operation


@dataclass
class Read:
    """What one event read of one key.

    Parameters
    ----------
    key : str
    chain : tuple of int
        Events whose writes it saw, oldest first; of a register the last writer alone, empty for the initial value.
    anchor : int
        Other visible writes of the key must come before this event; -1 where there can be none.
    choices : tuple of int
        Events that may have written the value, -1 for the initial value, where that is not known.
    step : int
        Place in its transaction.
    """

    key: str
    chain: tuple[int, ...] = ()
    anchor: int = -1
    choices: tuple[int, ...] = ()
    step: int = 0


@dataclass
class Event:
    """One operation or transaction.

    Parameters
    ----------
    number : int
        Of the operation in the history.
    process : str
    invoked, returned : float
        ``returned`` is infinite for one that never came back.
    reads : list of Read
    writes : dict
        Key to the step of its last write.
    quiet : bool
        Whether no write of what it read was under way beside it, those included that never returned.
    """

    number: int
    process: str
    invoked: float
    returned: float
    reads: list[Read] = field(default_factory=list)
    writes: dict[str, int] = field(default_factory=dict)
    quiet: bool = True


@dataclass
class Events:
    """A history as events.

    Parameters
    ----------
    events : list of Event
        In the order of invocation.
    anomalies : list of (str, int, str)
        What no order can mend: its name (``thin-air``, ``internal``, ``duplicate-elements``, ``G0``, ``G1a``,
        ``G1b``), the operation, and what was found.
    ambiguous : list of (int, int)
        Event and read whose source is not known.
    unclear : list of (int, int)
        The same of compare-and-sets of which nobody knows whether they found their value: that matters only where
        somebody saw what they wrote.
    messages : list of (int, int)
        Events of which the first sent a message to the second's process, beside the store.
    """

    events: list[Event]
    anomalies: list[tuple[str, int, str]] = field(default_factory=list)
    ambiguous: list[tuple[int, int]] = field(default_factory=list)
    unclear: list[tuple[int, int]] = field(default_factory=list)
    messages: list[tuple[int, int]] = field(default_factory=list)


def events_of(history: History, kind: Sequential) -> Events | None:
    """Return the history as events, or None for an object whose results do not show what was seen.

    Parameters
    ----------
    history : History
    kind : Sequential
        ``register``, ``kv``, ``list`` or ``multi-register``.
    """
    found = None
    if kind.name == "multi-register":
        found = _Transactions(history).found
        if any(what == "ambiguous" for what, _, _ in found.anomalies):
            return None
    elif kind.name in ("register", "kv", "list"):
        found = _from_operations(history, kind)
    if found is not None:
        event_of = {event.number: at for at, event in enumerate(found.events)}
        found.messages = [
            (event_of[one], event_of[two]) for one, two in history.messages if one in event_of and two in event_of
        ]
    return found


def mark_noisy(history: History, events: Sequence[Event]) -> None:
    """Mark the reads that had a write of their key under way beside them.

    Parameters
    ----------
    history : History
    events : sequence of Event
        Of that history; changed.
    """
    writes: dict[str, list[tuple[float, float, int]]] = {}
    for number, operation in enumerate(history.operations):
        steps = operation.value if operation.action == "transaction" else [(operation.action, operation.key)]
        if operation.result is not False:
            for key in {step[1] for step in steps if step[0] != "read"}:
                writes.setdefault(key, []).append((operation.invoked, end_of(operation), number))
    for event in events:
        event.quiet = bool(event.writes) or not any(
            invoked <= event.returned and returned >= event.invoked and number != event.number
            for read in event.reads
            for invoked, returned, number in writes.get(read.key, ())
        )


def _from_operations(history: History, kind: Sequential) -> Events | None:
    operations = history.operations
    event_of: dict[int, int] = {}
    found = Events([])
    chains: dict[int, tuple[tuple[int, ...], int]] = {}
    choices: dict[int, tuple[int, ...]] = {}
    seen: set[int] = set()
    for numbers in by_key(operations).values():
        known = sources(kind, [operations[number] for number in numbers], history.initial)
        if known is None:
            if kind.name != "register":
                return None
            _guess(operations, numbers, history.initial, choices, seen, found)
            continue
        for at, number in enumerate(numbers):
            operation = operations[number]
            if operation.action not in ("read", "cas") or (operation.returned is None and operation.action == "read"):
                continue
            chain: list[int] = []
            up = known.parent[at]
            if up in (NONE, NEVER):
                if operation.returned is not None:
                    found.anomalies.append(("thin-air", number, "it saw what nobody wrote"))
                continue
            while up >= 0:
                chain.append(numbers[up])
                if kind.name == "register" or known.parent[up] == NONE:
                    break
                up = known.parent[up]
            chain.reverse()
            rooted = kind.name == "register" or (bool(chain) and operations[chain[0]].action == "write")
            chains[number] = (tuple(chain), chain[0] if rooted and chain else -1)
            if operation.returned is not None:
                seen.update(chain)
    _keep_seen_of_open(operations, chains, seen)
    for number, operation in enumerate(operations):
        if operation.returned is None and number not in seen:
            continue
        event_of[number] = len(found.events)
        event = Event(number, operation.process, operation.invoked, end_of(operation))
        if operation.action != "read" and not (operation.action == "cas" and operation.result is False):
            event.writes[operation.key] = 0
        found.events.append(event)
    for number, at in event_of.items():
        event, operation = found.events[at], operations[number]
        if number in choices:
            options = tuple(event_of[one] if one >= 0 else INITIAL for one in choices[number])
            unclear = operation.action == "cas" and operation.result is None
            (found.unclear if unclear else found.ambiguous).append((at, len(event.reads)))
            event.reads.append(Read(operation.key, choices=options))
        elif number in chains:
            chain_of, anchor = chains[number]
            event.reads.append(
                Read(operation.key, tuple(event_of[one] for one in chain_of), event_of[anchor] if anchor >= 0 else -1)
            )
    return found


def _keep_seen_of_open(
    operations: Sequence[Operation], chains: dict[int, tuple[tuple[int, ...], int]], seen: set[int]
) -> None:
    """Add what open operations that were seen have themselves seen."""
    front = list(seen)
    while front:
        number = front.pop()
        if operations[number].returned is None and number in chains:
            fresh = [one for one in chains[number][0] if one not in seen]
            seen.update(fresh)
            front += fresh


def _guess(
    operations: Sequence[Operation],
    numbers: Sequence[int],
    initial: Any,
    choices: dict[int, tuple[int, ...]],
    seen: set[int],
    found: Events,
) -> None:
    """List for each read of a register who may have written what it saw."""
    writers: dict[Hashable, list[int]] = {frozen(initial): [INITIAL]}
    for number in numbers:
        operation = operations[number]
        if operation.action == "write":
            writers.setdefault(frozen(operation.value), []).append(number)
        elif operation.action == "cas" and operation.result is not False:
            writers.setdefault(frozen(operation.value[1]), []).append(number)
    asked: dict[int, list[int]] = {}
    for number in numbers:
        operation = operations[number]
        if operation.action == "write" or (operation.action == "read" and operation.returned is None):
            continue
        value = frozen(operation.result if operation.action == "read" else operation.value[0])
        if operation.action == "cas" and operation.result is False:
            # It found any value but the one it asked for.
            options = [one for held, those in writers.items() if held != value for one in those]
        else:
            options = list(writers.get(value, ()))
        asked[number] = [one for one in options if one != number]
    _leave_out_impossible(operations, asked)
    for number, options in asked.items():
        if not options:
            if operations[number].returned is not None:
                found.anomalies.append(("thin-air", number, "it saw what nobody wrote"))
            continue
        # The latest first: most stores are not very stale.
        options.sort(key=lambda one: -math.inf if one < 0 else operations[one].invoked, reverse=True)
        choices[number] = tuple(options)
        seen.update(one for one in options if one >= 0)


def _leave_out_impossible(operations: Sequence[Operation], asked: dict[int, list[int]]) -> None:
    """Leave out open compare-and-sets that nothing can have fed: they did not happen, and nobody saw them."""
    never = [number for number, options in asked.items() if not options and operations[number].returned is None]
    for number in never:
        for other, options in asked.items():
            if number in options:
                options.remove(number)
                if not options and operations[other].returned is None:
                    never.append(other)


class _Transactions:
    """Transactions as events: what each appended or wrote, and whose values it read."""

    def __init__(self, history: History) -> None:
        self.found = Events([])
        self.initial = frozen(history.initial)
        self.lists = list_keys(history.operations)
        # Of each value its writers: number, and whether it is the last that the transaction gave the key.
        self.writers: dict[tuple[str, Hashable], list[tuple[int, bool]]] = {}
        self.own: dict[tuple[int, str], list[Hashable]] = {}
        steps = [steps_of(operation) for operation in history.operations]
        for number, mine in enumerate(steps):
            if any(step[0] == "write" and step[1] in self.lists for step in mine):
                # What a list holds that was written whole has several writers, or none that is known.
                self.found.anomalies.append(("ambiguous", number, "it wrote a list whole"))
                return
            last = {step[1]: at for at, step in enumerate(mine) if step[0] != "read"}
            for at, (action, key, value) in enumerate(mine):
                if action != "read":
                    self.writers.setdefault((key, frozen(value)), []).append((number, last[key] == at))
                    self.own.setdefault((number, key), []).append(frozen(value))
        seen = {
            writer
            for operation, mine in zip(history.operations, steps, strict=True)
            if operation.returned is not None and operation.result is not False
            for action, key, value in mine
            if action == "read"
            for item in (items_of(value) if key in self.lists else (frozen(value),))
            for writer, _ in self.writers.get((key, item), ())
        }
        self.event_of: dict[int, int] = {}
        for number, operation in enumerate(history.operations):
            if operation.result is False or (operation.returned is None and number not in seen):
                continue
            self.event_of[number] = len(self.found.events)
            event = Event(number, operation.process, operation.invoked, end_of(operation))
            event.writes = {step[1]: at for at, step in enumerate(steps[number]) if step[0] != "read"}
            self.found.events.append(event)
        for number, at in self.event_of.items():
            if history.operations[number].returned is not None:
                self._read(number, self.found.events[at], steps[number])

    def _report(self, what: str, number: int, says: str) -> None:
        self.found.anomalies.append((what, number, says))

    def _read(self, number: int, event: Event, steps: list[Any]) -> None:
        """Add what a transaction read of others, or what is wrong with it."""
        own: dict[str, list[Any]] = {}
        written: dict[str, Any] = {}
        for step, (action, key, value) in enumerate(steps):
            if action == "append":
                own.setdefault(key, []).append(frozen(value))
            elif action == "write":
                written[key] = value
            elif key in written:
                if frozen(value) != frozen(written[key]):
                    self._report("internal", number, f"it wrote {written[key]!r} to {key} and then read {value!r}")
            elif key not in self.lists:
                self._read_register(number, event, key, value, step)
            else:
                items, mine = list(items_of(value)), own.get(key, [])
                if mine and items[-len(mine) :] != mine:
                    self._report("internal", number, f"it appended {mine!r} to {key} and then read {items!r}")
                    continue
                chain = self._chain(number, key, items[: len(items) - len(mine)])
                if chain is not None:
                    event.reads.append(Read(key, chain, -1, step=step))

    def _chain(self, number: int, key: str, items: list[Hashable]) -> tuple[int, ...] | None:
        """Return the events that appended what was read, or None, and what is wrong with it among the anomalies."""
        if len(set(items)) != len(items) and all(len(self.writers.get((key, item), ())) < 2 for item in items):
            self._report("duplicate-elements", number, f"it read an element of {key} twice")
            return None
        chain: list[int] = []
        # How much of what the last one of the chain appended was read.
        so_far = 0
        for item in items:
            who = self.writers.get((key, item), [])
            if len(who) != 1:
                what, says = ("ambiguous", "several appended") if who else ("thin-air", "nobody appended")
                self._report(what, number, f"it read {item!r} of {key}, which {says}")
                return None
            writer = who[0][0]
            if writer not in self.event_of:
                self._report("G1a", number, f"it read {item!r} of {key} from an aborted transaction")
                return None
            if writer == number:
                self._report("internal", number, f"it read {item!r} of {key} before appending it")
                return None
            one, appended = self.event_of[writer], self.own[writer, key]
            if chain and chain[-1] == one:
                torn = appended[so_far : so_far + 1] != [item]
                so_far += 1
            else:
                torn = one in chain or appended[0] != item or so_far != self._appended(chain, key)
                so_far = 1
                if one not in chain:
                    chain.append(one)
            if torn:
                self._report("G0", number, f"it read appends of one transaction to {key} torn apart")
        if so_far < self._appended(chain, key):
            self._report("G1b", number, f"it read {key} in the middle of a transaction")
        return tuple(chain)

    def _appended(self, chain: list[int], key: str) -> int:
        """Return how many elements the last event of a chain appended."""
        return len(self.own[self.found.events[chain[-1]].number, key]) if chain else 0

    def _read_register(self, number: int, event: Event, key: str, value: Any, step: int) -> None:
        who = [one for one in self.writers.get((key, frozen(value)), ()) if one[0] != number]
        committed = [one for one in who if one[0] in self.event_of]
        options = [self.event_of[writer] for writer, is_last in committed if is_last]
        if frozen(value) == self.initial:
            options.append(INITIAL)
        if len(options) == 1:
            chain = tuple(one for one in options if one >= 0)
            event.reads.append(Read(key, chain, chain[0] if chain else -1, step=step))
        elif options:
            self.found.ambiguous.append((self.event_of[number], len(event.reads)))
            event.reads.append(Read(key, choices=tuple(reversed(options)), step=step))
        elif committed:
            self._report("G1b", number, f"it read {value!r} of {key}, which was overwritten inside")
        elif who:
            self._report("G1a", number, f"it read {value!r} of {key} from an aborted transaction")
        else:
            self._report("thin-air", number, f"it read {value!r} of {key}, which nobody wrote")
