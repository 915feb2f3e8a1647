"""What may happen around the nodes of an explored instance, and what an algorithm says about its symmetry.

Every kind of misfortune has a bound, so that the number of states stays finite: of lost messages, of crashes and so on.
Without a clock (:mod:`~wavetank.check.explore.clock`) time is abstract: any timer that is set may run out next, however
long it was set for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.settings import check_parameters, setting
from wavetank.sim.faults import Behaviour, Fault, FaultyNode
from wavetank.sim.node import Message

CHANNELS = ("any-order", "fifo", "set")
TIMERS = ("any-time", "when-quiet", "never")
DRAWS = ("counted", "fresh")

# The bounded misfortunes, in the order of their counters in a state.
COUNTED = ("drops", "duplicates", "crashes", "recoveries", "timeouts")

UNLIMITED = -1


def check_settings(given: Any) -> None:
    """Refuse fields of a dataclass that are not what their declarations as settings allow.

    Parameters
    ----------
    given : dataclass instance
        Its fields are declared with :func:`~wavetank.settings.setting`; text in place of a number is converted.

    Raises
    ------
    BadValueError
    """
    kind = type(given)
    for item in dataclasses.fields(kind):
        try:
            checked = check_parameters(kind, {item.name: getattr(given, item.name)}, where=kind.__name__)
        except BadValueError as error:
            error.where = item.name
            raise
        object.__setattr__(given, item.name, checked[item.name])


def _bound(default: int | str, says: str) -> int | str:
    found: int | str = setting(default, says=says, choices=("unlimited",), low=0, high=100)
    return found


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The network, the timers and the bounds on what goes wrong.

    Parameters
    ----------
    channels : str
        ``any-order``: a message in transit arrives once, in any order.  ``fifo``: in the order sent, link by link.
        ``set``: what was sent stays in transit for ever and may arrive any number of times, as in many specifications.
    timers : str
        ``any-time``, ``when-quiet`` (only when no message is in transit: time-outs longer than any delay) or ``never``.
    draws : str
        ``counted``: how many random numbers a node drew is part of its state.  ``fresh``: every call of a handler draws
        the same numbers, which is exact where randomness only says how long timers are set and there is no clock.
    drops, duplicates, crashes, recoveries, timeouts : int or "unlimited"
        How often each may happen in one run of the system.  A crashed node loses everything but what it saved; what
        arrives while it is down is lost.
    """

    channels: str = setting("any-order", says="How messages travel", choices=CHANNELS)
    timers: str = setting("any-time", says="When timers can expire", choices=TIMERS)
    draws: str = setting("counted", says="Whether the number of random draws is part of a state", choices=DRAWS)
    drops: int | str = _bound(0, "Most messages that can be lost")
    duplicates: int | str = _bound(0, "Most messages that can arrive once more")
    crashes: int | str = _bound(0, "Most crashes of nodes")
    recoveries: int | str = _bound(0, "Most recoveries of crashed nodes")
    timeouts: int | str = _bound("unlimited", "Most timers that can expire")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.channels == "set" and self.duplicates:
            raise BadValueError(
                "With channels = set every message may arrive again anyway.", given=self.duplicates, where="duplicates"
            )
        if self.recoveries and not self.crashes:
            raise BadValueError("Only a node that crashed recovers.", given=self.recoveries, where="recoveries")

    def bounds(self) -> tuple[int, ...]:
        """Return the counters of the first state, in the order of :data:`COUNTED`; -1 is unlimited."""
        return tuple(
            UNLIMITED if value == "unlimited" else int(value)
            for value in (self.drops, self.duplicates, self.crashes, self.recoveries, self.timeouts)
        )


@dataclass(frozen=True, kw_only=True)
class Symmetry:
    """Which nodes of an algorithm are interchangeable, and where node ids are kept.

    An algorithm declares it as its attribute ``symmetry``.  Nodes with requests of their own are left out.

    Parameters
    ----------
    ids : mapping
        Class of a node or a message to (field to role).  The role ``ids`` says that every whole number from 0 inside
        the field is a node's id; ``keys``, that the keys of the dict are; ``index``, that a list or tuple has one item
        for each node, by id.
    saved : mapping
        The same for what is saved: key to role.
    decisions : str
        Role of decided values; empty when they hold no ids.
    fixed : tuple of int
        Nodes with a part of their own.
    """

    ids: Mapping[type, Mapping[str, str]]
    saved: Mapping[str, str] = field(default_factory=dict)
    decisions: str = ""
    fixed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        roles = [role for fields in (*self.ids.values(), self.saved, {"": self.decisions}) for role in fields.values()]
        for role in roles:
            if role not in ("ids", "keys", "index", ""):
                raise BadValueError("There is no such role of a field.", given=role, allowed=("ids", "keys", "index"))


@dataclass(frozen=True, kw_only=True)
class AnyOf(Fault):
    """A Byzantine node that may send any message of a menu to any node at any time, and does nothing else.

    Parameters
    ----------
    menu : tuple of Message
        What it may send.
    sends : int
        How many messages it sends at most; -1 for any number, which only ``channels = "set"`` keeps finite.
    """

    menu: tuple[Message, ...] = ()
    sends: int = 1
    byzantine: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.menu:
            raise BadValueError("A node that may send any of no messages is a silent one.", where="AnyOf, menu")
        if self.sends < UNLIMITED or self.sends == 0:
            raise BadValueError("It sends some messages.", given=self.sends, allowed="1 or more, or -1", where="sends")

    def behaviour(self, index: int, pool: dict[str, object]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Choosing(self.menu, self.sends)


# A timer of this name is a choice, not an obligation: it may run out, but need not.
CHOICE = "choice:"


class _Choosing(Behaviour):
    def __init__(self, menu: tuple[Message, ...], left: int) -> None:
        self.menu = menu
        self.left = left

    def start(self, node: FaultyNode) -> None:
        # The algorithm itself never starts; this node only chooses.
        node.down = True
        self._offer(node)

    def _offer(self, node: FaultyNode) -> None:
        for place in range(len(self.menu)):
            for to in node.context.peers:
                name = f"{CHOICE}{place}:{to}"
                if self.left:
                    node.set_fault_timer(self, name, 1)
                else:
                    node.cancel_fault_timer(self, name)

    def timer(self, node: FaultyNode, name: str) -> None:
        place, _, to = name.removeprefix(CHOICE).partition(":")
        self.left -= self.left > 0
        node.context.send(int(to), self.menu[int(place)])
        self._offer(node)
