"""Which values the operations of each kind of object, and of each rule, can have.

The search and the rules trust what they read: a count is added, a list is walked through.  Files say anything, so that
each action is checked once for the object or rule that a history is judged by.

Source: Jepsen, Maelstrom, Knossos and Elle, whose generators define the values of their workloads.

Differs from the source:
1. Registers, and elements of lists, sets and queues, may hold any value; only what is counted, walked through or
   compared and set has a form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wavetank.check.consistency.objects import object_of
from wavetank.errors import BadValueError
from wavetank.sim.history import History, Operation


class Misfit(NamedTuple):
    """An operation whose value or result cannot be.

    Parameters
    ----------
    number : int
        Of the operation in the history.
    says : str
        One line.
    given : str
        The value.
    allowed : str
    """

    number: int
    says: str
    given: str
    allowed: str


_Check = Callable[[Operation], tuple[Any, str] | None]
_ACTIONS = ("read", "write", "append")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _items(value: Any) -> bool:
    return value is None or isinstance(value, list | tuple)


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _value(fits: Callable[[Any], bool], allowed: str) -> _Check:
    return lambda op: None if fits(op.value) else (op.value, allowed)


def _result(fits: Callable[[Any], bool], allowed: str) -> _Check:
    """Return a check of what an operation answered; one that never returned answered nothing."""
    return lambda op: None if op.returned is None or fits(op.result) else (op.result, allowed)


def _swap(op: Operation) -> tuple[Any, str] | None:
    if not isinstance(op.value, list | tuple) or len(op.value) != 2:
        return op.value, "[old, new]"
    return None if op.result is None or isinstance(op.result, bool) else (op.result, "true, false, or nothing")


def _is_step(step: Any) -> bool:
    return (
        isinstance(step, list | tuple)
        and len(step) == 3
        and isinstance(step[0], str)
        and step[0] in _ACTIONS
        and isinstance(step[1], str)
    )


def _transaction(op: Operation) -> tuple[Any, str] | None:
    allowed = "a list of [read, key, value], [write, key, value] and [append, key, value]"
    if not isinstance(op.value, list | tuple) or not all(map(_is_step, op.value)):
        return op.value, allowed
    if op.result is None or op.result is False:
        return None
    if not isinstance(op.result, list) or not all(map(_is_step, op.result)):
        return op.result, f"{allowed}, or false"
    if [tuple(step[:2]) for step in op.result] != [tuple(step[:2]) for step in op.value]:
        return op.result, "the same actions and keys as its value"
    return None


def _log(op: Operation) -> tuple[Any, str] | None:
    for steps in (op.value, op.result if isinstance(op.result, list) else None):
        if not _items(steps) or not all(map(_is_log_step, steps or ())):
            return steps, "a list of [send, key, value] and [poll], answered by {key: [[offset, value], ...]}"
    return None if op.result in (None, True, False) or isinstance(op.result, list) else (op.result, "a list, or false")


def _is_log_step(step: Any) -> bool:
    if not isinstance(step, list | tuple) or not step:
        return False
    if step[0] == "send":
        return len(step) == 3
    return step[0] == "poll" and all(
        isinstance(polled, dict)
        and all(
            isinstance(pairs, list | tuple)
            and all(isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) is int for pair in pairs)
            for pairs in polled.values()
        )
        for polled in step[1:2]
    )


_LISTS = "a list, or nothing"
_STRINGS = "a string, or nothing"
_INCREMENT = _value(lambda value: value is None or _number(value), "a number, or nothing for 1")
_COUNTS: Mapping[str, _Check] = {"increment": _INCREMENT, "read": _result(_number, "a number")}
_ELEMENTS: Mapping[str, _Check] = {"read": _result(_items, _LISTS)}
_DRAINS: Mapping[str, _Check] = {"drain": _result(_items, _LISTS)}
_CHECKS: Mapping[str, Mapping[str, _Check]] = {
    "register": {"cas": _swap},
    "kv": {"read": _result(_text, _STRINGS), "write": _value(_text, _STRINGS), "append": _value(_text, _STRINGS)},
    "list": {"read": _result(_items, _LISTS), "write": _value(_items, _LISTS)},
    "set": _ELEMENTS, "counter": _COUNTS, "multi-register": {"transaction": _transaction},
    "set-full": _ELEMENTS, "queue": _DRAINS, "total-queue": _DRAINS, "pn-counter": _COUNTS, "kafka": {"log": _log},
}  # fmt: skip
"""Object or rule to action to what is wrong with an operation."""


def misfit(history: History, name: str = "") -> Misfit | None:
    """Return the first operation whose value or result its kind of object, or a rule, cannot have.

    Parameters
    ----------
    history : History
    name : str
        Object or rule; empty for the rule that the history names, or the object that fits its operations.
    """
    if not name:
        name = history.rule
    if not name:
        try:
            name = object_of(history).name
        except BadValueError:
            # Which store it is of may be said later.
            return None
    checks = _CHECKS.get(name, {})
    for number, op in enumerate(history.operations):
        wrong = checks[op.action](op) if op.action in checks else None
        if wrong is not None:
            given, allowed = wrong
            says = f"A {op.action} has a value that the {name} workload cannot have."
            return Misfit(number, says, repr(given)[:80], allowed)
    return None


def refuse_misfits(history: History, name: str) -> None:
    """Raise an error for the first operation whose value an object or rule cannot have.

    Raises
    ------
    BadValueError
        With the number of the operation.
    """
    odd = misfit(history, name)
    if odd is not None:
        raise BadValueError(odd.says, given=odd.given, allowed=odd.allowed, where=f"operation {odd.number}")
