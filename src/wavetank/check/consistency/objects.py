"""Return-value functions (F): what each kind of object answers, and its operations in the form the search needs.

A sequential object is a function from state and operation to the next state; an operation with a result that the state
does not allow has none.  Registers and strings are so common that the compiled search knows them itself: their state is
a fingerprint of 128 bits.  All other objects give it a table of transitions, filled in only as far as the search gets.

Source: M. Herlihy, J. Wing, "Linearizability: A Correctness Condition for Concurrent Objects", TOPLAS 12(3), 1990.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.check.consistency.memory import knows, memory_of
from wavetank.errors import BadValueError, nearest_of, unknown_name
from wavetank.sim.compiled import compiled
from wavetank.sim.history import History, Operation
from wavetank.sim.streams import mix

# Kinds of encoded operations.
READ, WRITE, SWAP, NO_SWAP, MAY_SWAP, APPEND, TABLE = range(7)

# Fingerprint of all strings and lists that begin nothing that was read.
LOST = (0xA4093822299F31D0, 0x082EFA98EC4E6C89)

# Of a prefix: its fingerprint twice, while parts are joined, and its places in the memory of all.
_BYTES_A_PREFIX = 96
# Of a state beside what it holds: its places in a list and a dictionary.
_BYTES_A_STATE = 200

# A state before anything was written, of objects that the search knows itself.
_EMPTY = (0x243F6A8885A308D3, 0x13198A2E03707344)


class Encoded(NamedTuple):
    """Operations on one object as arrays, for compiled code.

    Parameters
    ----------
    kinds : int64 array (operations,)
    expected, left : uint64 array (operations, 2)
        Fingerprints: the state that an operation needs or compares with, and the state after it.
    codes : uint64 array
        All appended items, one after another.
    spans : int64 array (operations, 2)
        Where an operation's items begin and end in ``codes``.
    lengths : int64 array (operations,)
        Of a string or list read or put, its number of items; 0 for others.
    chains : int64 array (operations,)
        Of a read, where the prefixes of what it read begin in ``prefixes``.
    prefixes : uint64 array (any, 2)
        Fingerprints of all prefixes of the longest strings or lists that were read.
    alive : uint64 array (a power of two, 2)
        The same as a memory: what is in none of them can never be read, and is one state, ``LOST``.
    initial : uint64 array (3,)
        Fingerprint and length of the first state.
    """

    kinds: NDArray[np.int64]
    expected: NDArray[np.uint64]
    left: NDArray[np.uint64]
    codes: NDArray[np.uint64]
    spans: NDArray[np.int64]
    lengths: NDArray[np.int64]
    chains: NDArray[np.int64]
    prefixes: NDArray[np.uint64]
    alive: NDArray[np.uint64]
    initial: NDArray[np.uint64]


@dataclass(frozen=True)
class Sequential:
    """A sequential object.

    Parameters
    ----------
    name : str
    actions : tuple of str
        What it can do.
    initial : callable
        From the history's ``initial`` to the object's first state.
    step : callable
        ``step(state, operation)`` returns the next state, or None when the operation's result is impossible.  A result
        of None on an operation that never returned means that any will do.
    """

    name: str
    actions: tuple[str, ...]
    initial: Callable[[Any], Hashable]
    step: Callable[[Any, Operation], Hashable | None]
    # A read, write or compare-and-set of the whole, or an append: the search knows it itself.
    native: bool = False
    says: str = ""

    def pure(self, operation: Operation) -> bool:
        """Return whether the operation, with its result, changes no state in which it is possible."""
        action = operation.action
        if action == "cas":
            return operation.result is False or frozen(operation.value[0]) == frozen(operation.value[1])
        if action == "transaction":
            return operation.result is False or all(step[0] == "read" for step in operation.value)
        return action == "read" or (action in ("dequeue", "pop") and operation.result is None)


class OutOfMemoryError(Exception):
    """A search would need more than it may have."""


class Table:
    """States and transitions of an object, numbered as they are met.

    ``bytes`` is what states and transitions take, what is about to be allocated included; ``most_bytes`` is what they
    may.
    """

    def __init__(self, kind: Sequential, operations: Sequence[Operation], initial: Any) -> None:
        self.most_bytes = 2**62
        self._states_bytes = 0
        self._step = kind.step
        classes: dict[Hashable, int] = {}
        self.members: list[Operation] = []
        numbers = []
        for operation in operations:
            name = (operation.action, frozen(operation.value), frozen(operation.result), operation.returned is None)
            if name not in classes:
                classes[name] = len(classes)
                self.members.append(operation)
            numbers.append(classes[name])
        self.classes = np.array(numbers, np.int64)
        self.states: list[Any] = [kind.initial(initial)]
        self._numbers: dict[Any, int] = {self.states[0]: 0}
        # -1: impossible; -2: not known yet.
        self.next = np.full((1, max(1, len(self.members))), -2, np.int32)

    @property
    def bytes(self) -> int:
        """Bytes taken."""
        return self._states_bytes + self.next.nbytes

    def fill(self, state: int, member: int) -> None:
        """Find out what one class of operations does in one state."""
        found = self._step(self.states[state], self.members[member])
        if found is None:
            self.next[state, member] = -1
            return
        if found not in self._numbers:
            self._states_bytes += _BYTES_A_STATE + sys.getsizeof(found)
            full = len(self.states) == len(self.next)
            # While a larger table is filled the old one is still there.
            if self.bytes + (2 * self.next.nbytes if full else 0) > self.most_bytes:
                raise OutOfMemoryError
            self._numbers[found] = len(self.states)
            self.states.append(found)
            if full:
                self.next = np.concatenate([self.next, np.full_like(self.next, -2)])
        self.next[state, member] = self._numbers[found]


@compiled
def _absorb(first: int, second: int, codes: NDArray[np.uint64], begin: int, end: int) -> tuple[int, int]:
    """Return the fingerprint of a sequence with more items at its end."""
    for at in range(begin, end):
        first = mix(first * np.uint64(0x9E3779B97F4A7C15) + codes[at])
        second = mix((second ^ codes[at]) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(0x165667B19E3779F9))
    return first, second


@compiled
def _prefixes(codes: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """Return the fingerprints of all prefixes, the empty one first."""
    found = np.empty((length + 1, 2), np.uint64)
    first, second = np.uint64(_EMPTY[0]), np.uint64(_EMPTY[1])
    found[0, 0], found[0, 1] = first, second
    for at in range(length):
        first, second = _absorb(first, second, codes, at, at + 1)
        found[at + 1, 0], found[at + 1, 1] = first, second
    return found


def frozen(value: Any) -> Hashable:
    """Return a JSON value as something that can be a key; true and 1 stay different."""
    if isinstance(value, list | tuple):
        return tuple(frozen(part) for part in value)
    if isinstance(value, dict):
        return ("map", tuple(sorted((key, frozen(part)) for key, part in value.items())))
    return ("bool", value) if isinstance(value, bool) else value


def _register(state: Any, operation: Operation) -> Hashable | None:
    """One register: read, write, compare-and-set; its state is a tuple of one, for None is a value too."""
    action, result = operation.action, operation.result
    if action == "read":
        return state if operation.returned is None or frozen(result) == state[0] else None
    if action == "write":
        return (frozen(operation.value),)
    old, new = operation.value
    same = state[0] == frozen(old)
    if result is not None and bool(result) != same:
        return None
    return (frozen(new),) if same else state


def items_of(value: Any) -> tuple[Hashable, ...]:
    """Return what was read of a list; nil is the empty one, and what is no list has itself as its one element."""
    return _items(value) if value is None or isinstance(value, list | tuple) else (frozen(value),)


def steps_of(transaction: Operation) -> list[Any]:
    """Return the steps of a transaction: with what was read where it was answered, else as it was asked."""
    return transaction.result if isinstance(transaction.result, list) else transaction.value


def list_keys(operations: Sequence[Operation]) -> set[str]:
    """Return the keys of transactions that hold lists: appended to, or read as lists and never written whole.

    Parameters
    ----------
    operations : sequence of Operation
        Operations other than transactions have none.
    """
    touched: dict[str, set[str]] = {"append": set(), "write": set(), "read": set()}
    for op in operations:
        for action, key, value in steps_of(op) if op.action == "transaction" else ():
            if action != "read" or (isinstance(op.result, list) and isinstance(value, list | tuple)):
                touched[action].add(key)
    return touched["append"] | (touched["read"] - touched["write"])


def end_of(operation: Operation) -> float:
    """Return when an operation returned; infinity if it never did."""
    return math.inf if operation.returned is None else operation.returned


def by_key(operations: Sequence[Operation]) -> dict[str, list[int]]:
    """Return the numbers of the operations on each key."""
    found: dict[str, list[int]] = {}
    for number, operation in enumerate(operations):
        found.setdefault(operation.key, []).append(number)
    return found


def _items(value: Any) -> tuple[Hashable, ...]:
    """Return the elements of a list or set; nothing has none."""
    return () if value is None else tuple(frozen(part) for part in value)


def _string(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise BadValueError("A key-value store of strings holds strings.", given=value, hint="store=list or register")
    return value or ""


def _appendable(whole: Callable[[Any], Any], item: Callable[[Any], Any]) -> Callable[[Any, Operation], Hashable | None]:
    """Return the steps of a string or list: how a value is read as a whole, and as what is appended."""

    def step(state: Any, operation: Operation) -> Hashable | None:
        if operation.action == "read":
            return state if operation.returned is None or whole(operation.result) == state else None
        found: Hashable = state + item(operation.value) if operation.action == "append" else whole(operation.value)
        return found

    return step


def _mutex(state: Any, operation: Operation) -> Hashable | None:
    wants = operation.action == "release"
    return ("free" if wants else "held") if (state == "held") == wants else None


def _line(first: bool) -> Callable[[Any, Operation], Hashable | None]:
    """Return the steps of a queue or stack: whether the first item or the last is taken out."""

    def step(state: Any, operation: Operation) -> Hashable | None:
        if operation.action in ("enqueue", "push"):
            return (*state, frozen(operation.value))
        rest: Hashable = state[1:] if first else state[:-1]
        if operation.returned is None:
            return rest
        if not state:
            return state if operation.result is None else None
        return rest if state[0 if first else -1] == frozen(operation.result) else None

    return step


def _set(state: Any, operation: Operation) -> Hashable | None:
    if operation.action == "add":
        return state | {frozen(operation.value)}
    if operation.action == "remove":
        return state - {frozen(operation.value)}
    return state if operation.returned is None or frozenset(_items(operation.result)) == state else None


def _counter(state: Any, operation: Operation) -> Hashable | None:
    if operation.action == "increment":
        return state + (1 if operation.value is None else operation.value)
    return state if operation.returned is None or operation.result == state else None


def _multi_register(state: Any, operation: Operation) -> Hashable | None:
    """Registers by name, read and written together."""
    if operation.result is False:
        return state
    initial, held = state
    now = dict(held)
    known = operation.returned is not None and isinstance(operation.result, list)
    for action, key, value in operation.result if known else operation.value:
        if action == "read":
            seen = frozen(value)
            # A list that nobody appended to is empty, whatever registers hold at first; nothing is the empty list too.
            empty = key not in now and seen == ()
            if known and now.get(key, initial) != seen and not (empty or (seen is None and now.get(key) == ())):
                return None
        elif action == "write":
            now[key] = frozen(value)
        else:
            now[key] = (*items_of(now.get(key)), frozen(value))
    return (initial, tuple(sorted(now.items())))


OBJECTS = {
    each.name: each
    for each in (
        Sequential("register", ("read", "write", "cas"), lambda initial: (frozen(initial),), _register, native=True,
                   says="read, write and compare-and-set of a value"),
        Sequential("kv", ("read", "write", "append"), _string, _appendable(_string, _string), native=True,
                   says="strings that are read, put and appended to"),
        Sequential("list", ("read", "write", "append"), _items, _appendable(_items, lambda item: (frozen(item),)),
                   native=True,
                   says="lists that are read, put and appended to"),
        Sequential("mutex", ("acquire", "release"), lambda initial: "free", _mutex, says="held by one at a time"),
        Sequential("queue", ("enqueue", "dequeue"), lambda initial: (), _line(True), says="first in, first out"),
        Sequential("stack", ("push", "pop"), lambda initial: (), _line(False), says="last in, first out"),
        Sequential("set", ("read", "add", "remove"), lambda initial: frozenset(), _set, says="of distinct elements"),
        Sequential("counter", ("read", "increment"), lambda initial: initial or 0, _counter, says="a sum"),
        Sequential("multi-register", ("transaction",), lambda initial: (frozen(initial), ()), _multi_register,
                   says="registers or lists by name, touched together by transactions"),
    )
}  # fmt: skip


def object_of(history: History, given: str = "auto") -> Sequential:
    """Return the kind of object that a history's operations act on.

    Parameters
    ----------
    history : History
    given : str
        Name of an object of :data:`OBJECTS`.  ``auto``: the ``store`` of the history, or, where that is empty, the
        first object that has all actions of its operations.

    Raises
    ------
    UnknownNameError, BadValueError
        If there is no such kind, or no kind has all the history's actions.
    """
    named = given if given != "auto" else history.store
    if named and named not in OBJECTS:
        raise unknown_name("store", named, OBJECTS)
    actions = {operation.action for operation in history.operations}
    if named:
        kind = OBJECTS[named]
        if not actions <= set(kind.actions):
            raise BadValueError(
                f"The store {named!r} has no such operation.",
                given=", ".join(sorted(actions - set(kind.actions))),
                allowed=kind.actions,
                hint="leave the store out to find it from the operations",
            )
        return kind
    if actions <= {"read", "write", "append"} and _holds_lists(history):
        return OBJECTS["list"]
    for kind in OBJECTS.values():
        if actions <= set(kind.actions):
            return kind
    known = sorted({action for kind in OBJECTS.values() for action in kind.actions})
    odd = sorted(actions - set(known))
    raise BadValueError(
        "No store has all operations of this history.",
        given=", ".join(odd or sorted(actions)),
        allowed=known,
        nearest=nearest_of(odd[0], known) if odd else None,
    )


def _holds_lists(history: History) -> bool:
    """Return whether appends go to lists; a register may hold lists too."""
    operations = [operation for operation in history.operations if operation.action in ("read", "append")]
    if all(operation.action == "read" for operation in operations):
        return False
    return any(isinstance(op.result, list | tuple) or not isinstance(op.value, str | None) for op in operations)


def encode(
    kind: Sequential, operations: Sequence[Operation], initial: Any, memory_bytes: int = 2**62
) -> tuple[Encoded, Table | None]:
    """Return the operations of one object as arrays, and the table of one that the search does not know itself.

    Parameters
    ----------
    kind : Sequential
    operations : sequence of Operation
        All of one key.
    initial : object
        What the object holds before them.
    memory_bytes : int
        What the arrays may take.

    Raises
    ------
    OutOfMemoryError
    """
    n = len(operations)
    kinds = np.full(n, TABLE, np.int64)
    expected, left = np.zeros((n, 2), np.uint64), np.zeros((n, 2), np.uint64)
    spans = np.zeros((n, 2), np.int64)
    lengths, chains = np.zeros(n, np.int64), np.zeros(n, np.int64)
    if not kind.native:
        nothing, first = np.zeros((1, 2), np.uint64), np.zeros(3, np.uint64)
        table = Table(kind, operations, initial)
        return Encoded(kinds, expected, left, nothing[0], spans, lengths, chains, nothing, nothing, first), table
    values = _Fingerprints(kind.name)
    codes: list[NDArray[np.uint64]] = [np.zeros(1, np.uint64)]
    used = 1
    reads: dict[Any, list[int]] = {}
    initially = np.array([*values.of(initial), values.length(initial)], np.uint64)
    for at, operation in enumerate(operations):
        if operation.action == "read":
            kinds[at] = READ
            if kind.name == "register":
                expected[at] = values.of(operation.result)
            elif operation.returned is not None:
                sequence = values.sequence(operation.result)
                lengths[at] = len(sequence)
                reads.setdefault(sequence, []).append(at)
        elif operation.action == "write":
            kinds[at] = WRITE
            left[at] = values.of(operation.value)
            lengths[at] = values.length(operation.value)
        elif operation.action == "cas":
            old, new = operation.value
            kinds[at] = MAY_SWAP if operation.result is None else SWAP if operation.result else NO_SWAP
            expected[at], left[at] = values.of(old), values.of(new)
        else:
            kinds[at] = APPEND
            codes.append(values.codes(_string(operation.value) if kind.name == "kv" else (frozen(operation.value),)))
            spans[at] = used, used + len(codes[-1])
            used += len(codes[-1])
    prefixes = alive = np.zeros((1, 2), np.uint64)
    if kind.name != "register":
        prefixes = _chained(reads, values, chains, memory_bytes)
        returned = [at for same in reads.values() for at in same]
        expected[returned] = prefixes[chains[returned] + lengths[returned]]
        alive = memory_of(prefixes)
        for at in np.flatnonzero(kinds == WRITE).tolist():
            if not knows(alive, left[at, 0], left[at, 1]):
                left[at] = LOST
    joined = np.concatenate(codes)
    return Encoded(kinds, expected, left, joined, spans, lengths, chains, prefixes, alive, initially), None


def _chained(
    reads: dict[Any, list[int]], values: _Fingerprints, chains: NDArray[np.int64], memory_bytes: int
) -> NDArray[np.uint64]:
    """Return the prefixes of all sequences read, each sequence that begins another one inside that one's."""
    parts = [np.zeros((1, 2), np.uint64)]
    begin, longer = 1, None
    # What begins another sequence sorts right before those that it begins.
    for sequence in sorted(reads, key=lambda each: each if isinstance(each, str) else tuple(map(repr, each)))[::-1]:
        if longer is None or longer[: len(sequence)] != sequence:
            begin += len(parts[-1]) if longer is not None else 0
            longer = sequence
            if _BYTES_A_PREFIX * (begin + len(sequence)) > memory_bytes:
                raise OutOfMemoryError
            parts.append(_prefixes(values.codes(sequence), len(sequence)))
        chains[reads[sequence]] = begin
    return np.concatenate(parts)


class _Fingerprints:
    """Values as pairs of 64 bits: numbered as they come, or, of strings and lists, absorbed item by item."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[Hashable, tuple[int, int]] = {}
        self._items: dict[Hashable, int] = {}

    def codes(self, items: Sequence[Hashable]) -> NDArray[np.uint64]:
        if isinstance(items, str):
            return np.frombuffer(items.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
        return np.array([self._items.setdefault(item, len(self._items) + 1) for item in items], np.uint64)

    def sequence(self, value: Any) -> Any:
        return _string(value) if self._kind == "kv" else () if self._kind == "register" else _items(value)

    def length(self, value: Any) -> int:
        return len(self.sequence(value))

    def of(self, value: Any) -> tuple[int, int]:
        if self._kind == "register":
            return self._known.setdefault(frozen(value), (len(self._known) + 1, 0))
        items = self.sequence(value)
        if items not in self._known:
            one, two = _absorb(np.uint64(_EMPTY[0]), np.uint64(_EMPTY[1]), self.codes(items), 0, len(items))
            self._known[items] = (int(one), int(two))
        return self._known[items]
