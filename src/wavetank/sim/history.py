"""Histories: what clients asked of a store, what the store answered, and when.

A history is a list of operations with the times of their invocation and return, seen from outside; it does
not say how the store works.  Every protocol can emit one, :mod:`wavetank.check.consistency` judges it, and
:mod:`wavetank.check.consistency.files` reads and writes it.

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

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from wavetank.errors import BadValueError


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
        The store's answer.
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
        (:data:`~wavetank.check.consistency.rules.RULES`); empty where a consistency model is asked.
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
        problem = first_problem(self.operations)
        if problem is not None:
            number, says = problem
            raise BadValueError(says, given=brief(self.operations[number]), where=f"operation {number}")
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


def brief(operation: Operation) -> str:
    """Return an operation as JSON, cut to 160 characters: for messages."""
    text = msgspec.json.encode(operation).decode()
    return text if len(text) <= 160 else text[:157] + "..."


class Order:
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


def first_problem(operations: Iterable[Operation]) -> tuple[int, str] | None:
    """Return the first operation that cannot be, and why."""
    order = Order()
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
