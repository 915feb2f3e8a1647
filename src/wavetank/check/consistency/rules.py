"""Rules for recorded workloads that are no single consistency model: bank, set, queue, counter, identifiers, log.

Test suites record such workloads and ask of each one property that even weak stores must keep: the accounts keep their
sum, what was acknowledged into a set is in the last read, what is enqueued comes out.  The rules here ask the same; a
model can still be asked by its name where the operations fit one of the objects.

Sources: K. Kingsbury, Jepsen (checkers set-full, queue, total-queue, counter, unique-ids, tests bank and kafka), and
Maelstrom (workloads broadcast, g-set, g-counter, pn-counter, unique-ids, kafka).

Differs from the sources:
1. The bank's sum is not in a history; all reads must agree on it.
2. An operation that failed did not happen, so that nobody may read it, of sets too.
3. Of the log, what a client misses between two polls is not judged: consumers are assigned anew in ways that a history
   does not always show.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from wavetank.check.consistency.engine import Judgement
from wavetank.check.consistency.objects import end_of, frozen
from wavetank.check.consistency.values import refuse_misfits
from wavetank.check.report import Outcome
from wavetank.sim.history import History, Operation

_MOST_SUMS = 100_000

_Found = tuple[Outcome, str, tuple[int, ...]]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Parameters
    ----------
    says : str
        What it asks, in a line.
    judge : callable
        From a history to outcome, one line and the operations to blame.
    """

    says: str
    judge: Callable[[History], _Found]


def judge_rule(history: History, name: str) -> Judgement:
    """Judge a history by one rule.

    Parameters
    ----------
    history : History
    name : str
        One of :data:`RULES`.

    Raises
    ------
    BadValueError
        If an operation has a value that the rule's workload cannot have.
    """
    refuse_misfits(history, name)
    outcome, says, blamed = RULES[name].judge(history)
    return Judgement(
        model=name, outcome=outcome, says=says, by="rule", cycle=blamed, culprit=blamed[0] if blamed else None
    )


def _of(history: History, *actions: str) -> list[tuple[int, Operation]]:
    return [(number, op) for number, op in enumerate(history.operations) if op.action in actions]


def _answered(history: History, action: str) -> list[tuple[int, Operation]]:
    return [(number, op) for number, op in _of(history, action) if op.returned is not None]


def _bank(history: History) -> _Found:
    total: Any = None
    first = -1
    for number, op in _answered(history, "read"):
        balances = op.result if isinstance(op.result, dict) else {}
        odd = [account for account, balance in balances.items() if not isinstance(balance, int | float)]
        if not balances or odd:
            return "violated", f"operation {number} read no balance of {', '.join(odd) or 'any account'}", (number,)
        below = [account for account, balance in balances.items() if balance < 0]
        if below:
            return "violated", f"operation {number} read a negative balance of {', '.join(below)}", (number,)
        found = sum(balances.values())
        if total is None:
            total, first = found, number
        elif found != total:
            says = f"operation {number} read accounts that sum to {found}, operation {first} to {total}"
            return "violated", says, (number, first)
    if total is None:
        return "undecided", "nobody read the accounts", ()
    return "holds", f"all reads sum to {total}", ()


def _set(history: History) -> _Found:
    reads = _answered(history, "read")
    adds: dict[Hashable, tuple[int, Operation]] = {}
    for number, op in _of(history, "add"):
        adds.setdefault(frozen(op.value), (number, op))
    if not reads:
        return "undecided", "nobody read the set", ()
    known = {value: op.returned for value, (_, op) in adds.items() if op.returned is not None}
    for number, op in reads:
        items = [frozen(item) for item in op.result or ()]
        if len(set(items)) < len(items):
            return "violated", f"operation {number} read an element twice", (number,)
        for item in items:
            if item not in adds:
                return "violated", f"operation {number} read {item!r}, which nobody added", (number,)
            known[item] = min(known.get(item, math.inf), end_of(op))
    number, last = max(reads, key=lambda one: one[1].invoked)
    there = {frozen(item) for item in last.result or ()}
    lost = [value for value, since in known.items() if value not in there and since < last.invoked]
    if lost:
        shown = ", ".join(map(repr, lost[:5])) + (" ..." if len(lost) > 5 else "")
        says = f"{len(lost)} elements are lost: the last read, operation {number}, lacks {shown}"
        return "violated", says, (number, adds[lost[0]][0])
    if not there and adds:
        return "undecided", "no read could show whether elements stay", ()
    return "holds", f"the last read has all {len(there)} elements that must be there", ()


def _came_out(history: History) -> list[tuple[int, Operation, Hashable]]:
    found = []
    for number, op in _of(history, "dequeue", "drain"):
        if op.returned is None or op.result is None:
            continue
        for item in op.result if op.action == "drain" else (op.result,):
            found.append((number, op, frozen(item)))
    return found


def _queue(history: History, *, total: bool = False) -> _Found:
    put = _of(history, "enqueue")
    attempted = Counter(frozen(op.value) for _, op in put)
    since: dict[Hashable, float] = {}
    for _, op in put:
        since.setdefault(frozen(op.value), op.invoked)
    out = Counter[Hashable]()
    again = 0
    for number, op, item in _came_out(history):
        if item not in attempted or since[item] > end_of(op):
            return "violated", f"operation {number} took {item!r} out, which nobody had put in", (number,)
        out[item] += 1
        if out[item] > attempted[item]:
            if not total:
                return "violated", f"operation {number} took {item!r} out once more than it was put in", (number,)
            again += 1
    if not total:
        return "holds", "everything that came out had been put in", ()
    sure = Counter(frozen(op.value) for _, op in put if op.returned is not None)
    lost = sure - out
    if lost:
        value = next(iter(lost))
        number = next(at for at, op in put if frozen(op.value) == value)
        says = f"{sum(lost.values())} elements never came out, the first {value!r} of operation {number}"
        return "violated", says, (number,)
    return "holds", f"everything put in came out{f'; {again} came out again' if again else ''}", ()


class _Sums:
    """Sums of what was added, by time."""

    def __init__(self, pairs: Iterable[tuple[float, Any]]) -> None:
        ordered = sorted(pairs, key=lambda pair: pair[0])
        self._times = [at for at, _ in ordered]
        self._sums = [0, *itertools.accumulate(amount for _, amount in ordered)]

    def before(self, time: float) -> Any:
        return self._sums[bisect.bisect_left(self._times, time)]

    def until(self, time: float) -> Any:
        return self._sums[bisect.bisect_right(self._times, time)]


def _amount(operation: Operation) -> Any:
    return 1 if operation.value is None else operation.value


def _counter(history: History) -> _Found:
    adds = [op for _, op in _of(history, "increment")]
    done = _Sums((op.returned, _amount(op)) for op in adds if op.returned is not None)
    bounds = []
    for sign in (min, max):
        begun = _Sums((op.invoked, sign(_amount(op), 0)) for op in adds)
        ended = _Sums((op.returned, sign(_amount(op), 0)) for op in adds if op.returned is not None)
        bounds.append((begun, ended))
    reads = _answered(history, "read")
    for number, op in reads:
        low, high = (
            done.before(op.invoked) + begun.until(end_of(op)) - ended.before(op.invoked) for begun, ended in bounds
        )
        if not low <= op.result <= high:
            return "violated", f"operation {number} read {op.result}, which is not from {low} to {high}", (number,)
    if not reads:
        return "undecided", "nobody read the counter", ()
    return "holds", "all reads lie between what was surely and what was possibly added", ()


def _final_counter(history: History) -> _Found:
    adds = [op for _, op in _of(history, "increment")]
    sums = {sum(_amount(op) for op in adds if op.returned is not None)}
    for op in adds:
        if op.returned is None:
            sums |= {each + _amount(op) for each in sums}
        if len(sums) > _MOST_SUMS:
            return "undecided", "memory: too many additions without an answer for all their sums", ()
    final = [(number, history.operations[number]) for number in history.final]
    reads = [(number, op) for number, op in final if op.action == "read" and op.returned is not None]
    if not reads:
        return "undecided", "no read is marked as final", ()
    for number, op in reads:
        if op.result not in sums:
            allowed = str(min(sums)) if len(sums) == 1 else f"a possible sum from {min(sums)} to {max(sums)}"
            return "violated", f"operation {number}, a final read, is {op.result}, not {allowed}", (number,)
    return "holds", f"all {len(reads)} final reads are possible sums of what was added", ()


def _unique(history: History) -> _Found:
    first: dict[Hashable, int] = {}
    for number, op in _answered(history, "generate"):
        other = first.setdefault(frozen(op.result), number)
        if other != number:
            return "violated", f"operations {other} and {number} both got {op.result!r}", (other, number)
    return "holds", f"{len(first)} identifiers, all different", ()


def _log(history: History) -> _Found:
    at: dict[tuple[str, int], Hashable] = {}
    place: dict[tuple[str, Hashable], int] = {}
    who: dict[tuple[str, Hashable], int] = {}
    failed: set[tuple[str, Hashable]] = set()
    sure: dict[tuple[str, Hashable], int] = {}
    polls: list[tuple[int, str, list[tuple[int, Hashable]]]] = []
    for number, op in _of(history, "log"):
        for step in op.value or ():
            if step[0] == "send":
                name = (str(step[1]), frozen(step[2]))
                who[name] = number
                if op.result is False:
                    failed.add(name)
        if not isinstance(op.result, list):
            continue
        for step in op.result:
            if step[0] == "send" and isinstance(step[2], list) and len(step[2]) == 2:
                offset, value = step[2]
                if isinstance(offset, int):
                    sure[str(step[1]), frozen(value)] = number
                    polls.append((-1 - number, str(step[1]), [(offset, frozen(value))]))
            elif step[0] == "poll" and len(step) > 1:
                for key, pairs in step[1].items():
                    polls.append((number, key, [(offset, frozen(value)) for offset, value in pairs]))
    seen: set[tuple[str, Hashable]] = set()
    highest: dict[str, int] = {}
    for origin, key, pairs in polls:
        number = origin if origin >= 0 else -1 - origin
        for (one, _), (two, _) in itertools.pairwise(pairs):
            if two <= one:
                return "violated", f"operation {number} polled offset {two} of {key} after {one}", (number,)
        for offset, value in pairs:
            if at.setdefault((key, offset), value) != value:
                says = f"offset {offset} of {key} is both {at[key, offset]!r} and {value!r}"
                return "violated", says, (number,)
            if place.setdefault((key, value), offset) != offset:
                says = f"{value!r} of {key} is at offsets {place[key, value]} and {offset}"
                return "violated", says, (number,)
            if origin >= 0:
                if (key, value) in failed:
                    return "violated", f"G1a: operation {number} polled {value!r}, whose send failed", (number,)
                if (key, value) not in who:
                    return "violated", f"operation {number} polled {value!r} of {key}, which nobody sent", (number,)
                seen.add((key, value))
                highest[key] = max(highest.get(key, -1), offset)
    known: dict[str, list[int]] = {}
    for key, offset in at:
        known.setdefault(key, []).append(offset)
    for offsets in known.values():
        offsets.sort()
    for name, number in sure.items():
        if name not in seen and place[name] < highest.get(name[0], -1):
            says = f"the message {name[1]!r} of {name[0]} at offset {place[name]} was never polled, later ones were"
            return "violated", says, (number,)
    for origin, key, pairs in polls:
        for (one, _), (two, _) in itertools.pairwise(pairs):
            if origin >= 0 and bisect.bisect_left(known[key], two) - bisect.bisect_right(known[key], one) > 0:
                return "violated", f"operation {origin} polled {key} at {one} and then {two}, skipping", (origin,)
    return "holds", "offsets are unique and grow, and nothing polled past was lost; gaps between polls: not checked", ()


RULES = {
    "bank": Rule("all reads of the accounts have one sum, and no balance is negative", _bank),
    "set-full": Rule("what was surely added is in the last read, and nothing else is read", _set),
    "queue": Rule("what comes out was put in, each as often at most; in any order", _queue),
    "total-queue": Rule(
        "after a drain all that was put in has come out, and nothing else", functools.partial(_queue, total=True)
    ),
    "counter": Rule("a read lies between what was surely and what was possibly added", _counter),
    "pn-counter": Rule("final reads are a possible sum of all additions", _final_counter),
    "unique-ids": Rule("no identifier is given out twice", _unique),
    "kafka": Rule("each offset has one message, polls go forward, and nothing polled past is lost", _log),
}
"""Rules by name."""
