"""Is there an order of operations that respects real time and that one copy of the object could have answered?

The search of Wing and Gong with Lowe's memory: take an operation that nothing unfinished precedes, apply it, go on;
come back when stuck, and never search again below a set of applied operations and a state that were met before.  Five
rules keep most searches from branching at all: an operation that never changes anything is applied as soon as allowed;
of operations that never returned and do the same, the oldest goes first; one that never returned and would change
nothing is left out; a state is given up from which the next read to return cannot see what it saw; and all strings that
begin nothing that was read are one state.  None of them loses an order that matters.

Sources: J. Wing, C. Gong, "Testing and Verifying Concurrent Objects", JPDC 17, 1993; G. Lowe, "Testing for
Linearizability", Concurrency and Computation 29(4), 2017; A. Horn, D. Kroening, "Faster Linearizability Checking via
P-compositionality", FORTE 2015.

Differs from the source:
1. The memory holds 128-bit fingerprints of (applied operations, state), not the sets themselves: 16 bytes an entry.
   Two of N entries collide by chance with probability below N^2 / 2^128.  Any order found is replayed on the values
   themselves before it is believed.
2. The five rules above.
3. Keys are checked one after another, and the longest good prefix is that of the key that fails first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wavetank.check.consistency.memory import knows, larger, remember, twins, zobrist
from wavetank.check.consistency.objects import (
    APPEND,
    LOST,
    MAY_SWAP,
    NO_SWAP,
    READ,
    TABLE,
    WRITE,
    OutOfMemoryError,
    Sequential,
    _absorb,
    encode,
    end_of,
    frozen,
)
from wavetank.check.report import Outcome
from wavetank.errors import WavetankError
from wavetank.sim.compiled import compiled
from wavetank.sim.history import Operation
from wavetank.sim.streams import mix

_HOLDS, _FAILS, _PAUSE, _FULL, _UNKNOWN_TRANSITION = range(5)
_STEPS_BETWEEN_LOOKS = 1 << 17
_BYTES_AN_OPERATION = 400
# How many entries the look ahead walks to the next return of a read.
_FARTHEST = 256

_LOST_0, _LOST_1 = np.uint64(LOST[0]), np.uint64(LOST[1])

# Cells of the search's integer registers.
_DEPTH, _CURSOR, _STEPS, _ENTRIES, _BLOCKED_AT, _BEST_DEPTH, _LEFT, _FRESH, _STATE, _MEMBER, _GIVEN_UP = range(11)


@dataclass(frozen=True, kw_only=True)
class Linearization:
    """What the search found for one object.

    Parameters
    ----------
    outcome : str
        ``holds``, ``violated`` or ``undecided``.
    order : tuple of int
        Operations in an order that explains them: all that returned if it holds, else those of the longest good prefix.
    culprit : int or None
        The operation whose return ends the longest good prefix.
    steps : int
        Operations tried.
    """

    outcome: Outcome
    order: tuple[int, ...]
    culprit: int | None = None
    steps: int = 0
    says: str = ""


class _Entries(NamedTuple):
    """Calls and returns in time order, as a list with its head at 0 and its end at the last place.

    Parameters
    ----------
    operation : int64 array (entries,)
        Of a call the operation, of a return -1 - operation.
    following, previous : int64 array (entries,)
        The neighbours of an entry that is in the list.
    call_of, return_of : int64 array (operations,)
        The entries of an operation; -1 for the return of one that never returned.
    """

    operation: NDArray[np.int64]
    following: NDArray[np.int64]
    previous: NDArray[np.int64]
    call_of: NDArray[np.int64]
    return_of: NDArray[np.int64]


@compiled
def _step(
    operation: int, first: int, second: int, kinds: NDArray[np.int64], expected: NDArray[np.uint64],
    left: NDArray[np.uint64], codes: NDArray[np.uint64], spans: NDArray[np.int64], alive: NDArray[np.uint64],
    classes: NDArray[np.int64], table: NDArray[np.int32],
) -> tuple[int, int, int]:  # fmt: skip
    """Return (0 impossible, 1 possible, 2 not in the table yet) and the next state."""
    kind = kinds[operation]
    if kind == TABLE:
        found = table[np.int64(first), classes[operation]]
        if found == -2:
            return 2, first, second
        if found == -1:
            return 0, first, second
        first = np.uint64(found)  # type: ignore[assignment]
        return 1, first, second
    if kind == WRITE:
        return 1, left[operation, 0], left[operation, 1]
    if kind == APPEND:
        if first == _LOST_0 and second == _LOST_1:
            return 1, first, second
        one, two = _absorb(first, second, codes, spans[operation, 0], spans[operation, 1])
        if not knows(alive, one, two):
            return 1, _LOST_0, _LOST_1  # type: ignore[return-value]
        return 1, one, two
    same = first == expected[operation, 0] and second == expected[operation, 1]
    if kind == READ:
        return (1 if same else 0), first, second
    if kind == NO_SWAP:
        return (0 if same else 1), first, second
    if same:
        return 1, left[operation, 0], left[operation, 1]
    return (1 if kind == MAY_SWAP else 0), first, second


@compiled
def _begins(
    one: int, two: int, length: int, read: int, lengths: NDArray[np.int64], chains: NDArray[np.int64],
    prefixes: NDArray[np.uint64],
) -> bool:  # fmt: skip
    """Return whether a string or list of this fingerprint and length begins what was read."""
    at = np.int64(length)
    if at > lengths[read]:
        return False
    at += chains[read]
    return prefixes[at, 0] == one and prefixes[at, 1] == two


@compiled
def _hopeless(
    chosen: int, one: int, two: int, length: int, entry_operation: NDArray[np.int64], following: NDArray[np.int64],
    kinds: NDArray[np.int64], expected: NDArray[np.uint64], left: NDArray[np.uint64], lengths: NDArray[np.int64],
    chains: NDArray[np.int64], prefixes: NDArray[np.uint64],
) -> int:  # fmt: skip
    """Return the next read to return if it can no longer see what it saw once the chosen operation is applied, or 0.

    It is named by the entry of its return; an entry is never 0.

    Whatever is applied before that read was invoked before it returned: the state must be, or become by appends, what
    was read, or one of those operations must write the beginning of it.
    """
    end = following.shape[0] - 1
    read = np.int64(-1)
    appends = False
    entry = following[0]
    walked = 0
    while entry != end and walked < _FARTHEST:
        name = entry_operation[entry]
        if name < 0:
            if kinds[-1 - name] == TABLE:
                return 0
            if kinds[-1 - name] == READ:
                read = -1 - name
                break
        elif name != chosen:
            appends |= kinds[name] == APPEND
        entry = following[entry]
        walked += 1
    if read < 0:
        return 0
    if one == expected[read, 0] and two == expected[read, 1]:
        return 0
    if appends and _begins(one, two, length, read, lengths, chains, prefixes):
        return 0
    entry = following[0]
    while True:
        name = entry_operation[entry]
        if name == -1 - read:
            return entry
        if name >= 0 and name != chosen and kinds[name] != READ and kinds[name] != APPEND:
            if left[name, 0] == expected[read, 0] and left[name, 1] == expected[read, 1]:
                return 0
            if appends and _begins(left[name, 0], left[name, 1], lengths[name], read, lengths, chains, prefixes):
                return 0
        entry = following[entry]


@compiled
def _search(
    entry_operation: NDArray[np.int64], following: NDArray[np.int64], previous: NDArray[np.int64],
    call_of: NDArray[np.int64], return_of: NDArray[np.int64], kinds: NDArray[np.int64], expected: NDArray[np.uint64],
    left: NDArray[np.uint64], codes: NDArray[np.uint64], spans: NDArray[np.int64], lengths: NDArray[np.int64],
    chains: NDArray[np.int64], prefixes: NDArray[np.uint64], alive: NDArray[np.uint64], twin: NDArray[np.int64],
    pure: NDArray[np.bool_], applied: NDArray[np.bool_], classes: NDArray[np.int64], table: NDArray[np.int32],
    names: NDArray[np.uint64], memory: NDArray[np.uint64], cells: NDArray[np.int64], now: NDArray[np.uint64],
    stack: NDArray[np.int64], forced: NDArray[np.bool_], before: NDArray[np.uint64], best: NDArray[np.int64],
) -> int:  # fmt: skip
    """Search until a verdict, a full memory, an unknown transition or enough steps for a look; then call again.

    The first arguments are the arrays of ``_Entries`` and ``Encoded``: arrays taken out of tuples in here would be
    counted as references in every step.
    """
    end = following.shape[0] - 1
    half = memory.shape[0] // 2
    steps = 0
    while True:
        if steps >= _STEPS_BETWEEN_LOOKS:
            cells[_STEPS] += steps
            return _PAUSE
        if cells[_ENTRIES] >= half:
            cells[_STEPS] += steps
            return _FULL
        chosen = np.int64(-1)
        one, two = now[0], now[1]
        is_forced: bool = False
        if cells[_FRESH] == 1:
            if cells[_LEFT] == 0:
                cells[_STEPS] += steps
                return _HOLDS
            entry = following[0]
            while entry_operation[entry] >= 0 and entry != end:
                operation = entry_operation[entry]
                if pure[operation]:
                    steps += 1
                    possible, one, two = _step(
                        operation, now[0], now[1], kinds, expected, left, codes, spans, alive, classes, table
                    )
                    if possible == 2:
                        cells[_STATE], cells[_MEMBER] = np.int64(now[0]), classes[operation]
                        cells[_STEPS] += steps
                        return _UNKNOWN_TRANSITION
                    if possible == 1:
                        chosen = operation
                        is_forced = True
                        break
                entry = following[entry]
            if chosen < 0:
                if entry > cells[_BLOCKED_AT]:
                    cells[_BLOCKED_AT] = entry
                    cells[_BEST_DEPTH] = cells[_DEPTH]
                    best[: cells[_DEPTH]] = stack[: cells[_DEPTH]]
                cells[_FRESH] = 0
                cells[_CURSOR] = following[0]
        if not is_forced:
            entry = cells[_CURSOR]
            while chosen < 0 and entry != end and entry_operation[entry] >= 0:
                operation = entry_operation[entry]
                if twin[operation] < 0 or applied[twin[operation]]:
                    steps += 1
                    possible, one, two = _step(
                        operation, now[0], now[1], kinds, expected, left, codes, spans, alive, classes, table
                    )
                    if possible == 2:
                        cells[_CURSOR] = entry
                        cells[_STATE], cells[_MEMBER] = np.int64(now[0]), classes[operation]
                        cells[_STEPS] += steps
                        return _UNKNOWN_TRANSITION
                    if possible == 1 and (return_of[operation] >= 0 or one != now[0] or two != now[1]):
                        chosen = operation
                        break
                entry = following[entry]
        backtrack: bool = bool(chosen < 0)
        length = now[4]
        if chosen >= 0 and not is_forced:
            kind = kinds[chosen]
            if kind == APPEND:
                length += np.uint64(spans[chosen, 1] - spans[chosen, 0])
            elif kind == WRITE:
                length = np.uint64(lengths[chosen])
            hopeless = _hopeless(
                chosen, one, two, length, entry_operation, following, kinds, expected, left, lengths, chains, prefixes
            )
            if hopeless > 0:
                cells[_GIVEN_UP] = max(cells[_GIVEN_UP], hopeless)
                cells[_CURSOR] = following[call_of[chosen]]
                continue
        if chosen >= 0:
            z0, z1 = now[2] ^ names[chosen, 0], now[3] ^ names[chosen, 1]
            key0 = z0 ^ mix(one + np.uint64(0x9E3779B97F4A7C15)) ^ mix(two)
            key1 = z1 ^ mix(one ^ np.uint64(0xD6E8FEB86659FD93)) ^ mix(two + np.uint64(0xA0761D6478BD642F))
            if remember(memory, key0, key1):
                cells[_ENTRIES] += 1
                depth = cells[_DEPTH]
                stack[depth] = chosen
                forced[depth] = is_forced
                before[depth, 0], before[depth, 1], before[depth, 2] = now[0], now[1], now[4]
                now[0], now[1], now[2], now[3], now[4] = one, two, z0, z1, length
                cells[_DEPTH] = depth + 1
                applied[chosen] = True
                call, back = call_of[chosen], return_of[chosen]
                following[previous[call]] = following[call]
                previous[following[call]] = previous[call]
                if back >= 0:
                    following[previous[back]] = following[back]
                    previous[following[back]] = previous[back]
                    cells[_LEFT] -= 1
                cells[_FRESH] = 1
            elif is_forced:
                backtrack = True
            else:
                cells[_CURSOR] = following[call_of[chosen]]
        if backtrack:
            resumed = False
            while cells[_DEPTH] > 0 and not resumed:
                depth = cells[_DEPTH] - 1
                cells[_DEPTH] = depth
                operation = stack[depth]
                applied[operation] = False
                call, back = call_of[operation], return_of[operation]
                if back >= 0:
                    following[previous[back]] = back
                    previous[following[back]] = back
                    cells[_LEFT] += 1
                following[previous[call]] = call
                previous[following[call]] = call
                now[0], now[1], now[4] = before[depth, 0], before[depth, 1], before[depth, 2]
                now[2] ^= names[operation, 0]
                now[3] ^= names[operation, 1]
                if not forced[depth]:
                    cells[_CURSOR] = following[call_of[operation]]
                    cells[_FRESH] = 0
                    resumed = True
            if not resumed:
                cells[_STEPS] += steps
                return _FAILS


def _entries(operations: Sequence[Operation]) -> _Entries:
    n = len(operations)
    invoked = np.fromiter((operation.invoked for operation in operations), np.float64, n)
    returned = np.fromiter(map(end_of, operations), np.float64, n)
    closed = np.flatnonzero(np.isfinite(returned))
    times = np.concatenate([invoked, returned[closed]])
    # At equal times calls come first: only what returned strictly before is ordered.
    is_return = np.concatenate([np.zeros(n, np.int64), np.ones(len(closed), np.int64)])
    names = np.concatenate([np.arange(n), -1 - closed])[np.lexsort((is_return, times))]
    m = len(names)
    following, previous = np.arange(1, m + 3), np.arange(-1, m + 1)
    following[m + 1] = m + 1
    call_of, return_of = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    call_of[names[names >= 0]] = 1 + np.flatnonzero(names >= 0)
    return_of[-1 - names[names < 0]] = 1 + np.flatnonzero(names < 0)
    return _Entries(np.concatenate([[-1], names, [-1]]), following, previous, call_of, return_of)


def linearize(
    kind: Sequential,
    operations: Sequence[Operation],
    initial: object = None,
    *,
    in_budget: Callable[[], bool] = lambda: True,
    memory_bytes: int = 2**30,
) -> Linearization:
    """Decide whether the operations on one object are linearizable.

    Parameters
    ----------
    kind : Sequential
        What the object is.
    operations : sequence of Operation
        In the order of their invocation.
    initial : object
        What it holds at first.
    in_budget : callable
        Asked now and then; False ends the search undecided.
    memory_bytes : int
        Size beyond which the memory is not grown, which ends the search undecided.
    """
    found, low, high = _run(kind, operations, initial, in_budget, memory_bytes)
    if found.outcome != "violated":
        return found
    # States given up early hide how far the prefix goes: not beyond the read for whose sake they were given up.
    returns = sorted({operation.returned for operation in operations if operation.returned is not None})
    while low < high:
        middle = (low + high) // 2
        cut = [known_at(operation, returns[middle]) for operation in operations if operation.invoked <= returns[middle]]
        tried, reached, given_up = _run(kind, cut, initial, in_budget, memory_bytes)
        if tried.outcome == "holds":
            low, found = middle + 1, replace(found, order=tried.order)
        elif tried.outcome == "violated":
            high = min(middle, given_up)
            if reached > low:
                low, found = reached, replace(found, order=tried.order)
        else:
            break
    culprit = next(at for at, operation in enumerate(operations) if operation.returned == returns[low])
    return replace(found, culprit=culprit)


def known_at(operation: Operation, time_s: float) -> Operation:
    """Return an operation as it was known at a time: one that had not returned may have any result.

    A compare-and-set keeps that it will succeed, for only then can anybody have seen it.
    """
    if operation.returned is None or operation.returned <= time_s:
        return operation
    swapped = True if operation.action == "cas" and operation.result is True else None
    return msgspec.structs.replace(operation, result=swapped, returned=None)


def _run(
    kind: Sequential,
    operations: Sequence[Operation],
    initial: object,
    in_budget: Callable[[], bool],
    memory_bytes: int,
) -> tuple[Linearization, int, int]:
    """Search once; return how many distinct times of return it surely passed, and may have passed, if it fails."""
    n = len(operations)
    # Charged before it is allocated: all arrays of one cell an operation, and its names of 128 bits.
    bits = max(10, n).bit_length()
    taken = _BYTES_AN_OPERATION * n + (32 << bits)
    nothing = Linearization(outcome="undecided", order=(), says=f"memory: {memory_bytes} bytes were not enough")
    try:
        if taken > memory_bytes:
            raise OutOfMemoryError
        coded, table = encode(kind, operations, initial, memory_bytes - taken)
    except OutOfMemoryError:
        return nothing, 0, 0
    taken += coded.codes.nbytes + coded.prefixes.nbytes + coded.alive.nbytes
    entries = _entries(operations)
    memory = np.zeros((1 << 12, 2), np.uint64)
    cells = np.zeros(11, np.int64)
    cells[_FRESH], cells[_LEFT], cells[_BLOCKED_AT] = 1, int(np.count_nonzero(entries.return_of >= 0)), -1
    now = np.array([*coded.initial[:2], 0, 0, coded.initial[2]], np.uint64)
    stack, best = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    forced, applied = np.zeros(n + 1, np.bool_), np.zeros(n + 1, np.bool_)
    before = np.zeros((n + 1, 3), np.uint64)
    # Of operations that never returned and do the same, the oldest goes first.
    twin = twins([None if op.returned is not None else (op.action, frozen(op.value), frozen(op.result))
                  for op in operations])  # fmt: skip
    pure = np.fromiter((op.returned is not None and kind.pure(op) for op in operations), np.bool_, n)
    no_classes, no_table = np.zeros(max(1, n), np.int64), np.zeros((1, 1), np.int32)
    while True:
        status = _search(
            *entries, *coded[:-1], twin, pure, applied, no_classes if table is None else table.classes,
            no_table if table is None else table.next, zobrist(bits), memory, cells, now, stack, forced, before, best,
        )  # fmt: skip
        if status == _UNKNOWN_TRANSITION and table is not None:
            table.most_bytes = memory_bytes - taken - memory.nbytes
            try:
                table.fill(int(cells[_STATE]), int(cells[_MEMBER]))
            except OutOfMemoryError:
                return nothing, 0, 0
        elif status in (_HOLDS, _FAILS):
            outcome: Outcome = "holds" if status == _HOLDS else "violated"
            order = tuple((stack[: cells[_DEPTH]] if status == _HOLDS else best[: cells[_BEST_DEPTH]]).tolist())
            _replay(kind, operations, order, initial)
            found = Linearization(outcome=outcome, order=order, steps=int(cells[_STEPS]))
            if status == _HOLDS:
                return found, 0, 0
            passed = _returns_before(int(cells[_BLOCKED_AT]), entries, operations)
            return found, passed, _returns_before(int(max(cells[_BLOCKED_AT], cells[_GIVEN_UP])), entries, operations)
        elif status == _FULL:
            # The old one is still there while the larger one, of twice its size, is filled.
            if 3 * memory.nbytes + taken + (table.bytes if table else 0) > memory_bytes:
                return nothing, 0, 0
            memory = larger(memory)
        if not in_budget():
            return replace(nothing, says="time: the budget ran out", steps=int(cells[_STEPS])), 0, 0


def _returns_before(entry: int, entries: _Entries, operations: Sequence[Operation]) -> int:
    """Return how many distinct times of return come before that of an entry."""
    last = end_of(operations[-1 - int(entries.operation[entry])])
    return len({operation.returned for operation in operations if end_of(operation) < last < np.inf})


def _replay(kind: Sequential, operations: Sequence[Operation], order: Sequence[int], initial: object) -> None:
    """Apply an order to the object itself; an impossible one would be two equal fingerprints of unequal states."""
    state = kind.initial(initial)
    for at in order:
        found = kind.step(state, operations[at])
        if found is None:
            raise WavetankError("The search gave an order that the object refuses: a collision of fingerprints.")
        state = found
