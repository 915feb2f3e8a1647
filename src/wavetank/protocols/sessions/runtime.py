"""Runs one role of a session: what it may send, what it does with what arrives.  No clock, no sockets.

The same object is simulated, tested on scripted schedules beside the generated Erlang, and put on sockets by
:mod:`wavetank.protocols.sessions.live`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wavetank.errors import BadValueError, nearest_of
from wavetank.protocols.sessions.machines import Machine, State, Transition
from wavetank.protocols.sessions.tags import NO_TAG, Tag, begun, joined, passes, relation, switched, voids

MOST_WAITING = 10_000


class Envelope(NamedTuple):
    """A message under way."""

    sender: str
    receiver: str
    label: str
    payload: tuple[Any, ...]
    tag: Tag


class SessionEvent(NamedTuple):
    """What a role did with a message: ``taken``, ``dropped`` or ``switched`` (the message is still to be taken)."""

    what: str
    sender: str
    label: str
    payload: tuple[Any, ...]
    tag: Tag


class RoleSession:
    """One role of one session.

    Parameters
    ----------
    machine : Machine
    drop_stale : bool
        The stale-message rule.

    Attributes
    ----------
    state : int
        Number of the machine's state.
    tag : Tag
        What the role knows of the mixes.
    waiting : list of Envelope
        Arrived, not taken yet, in the order of arrival.
    dropped : int
        How many stale messages were dropped.
    """

    __slots__ = ("drop_stale", "dropped", "machine", "state", "tag", "waiting")

    def __init__(self, machine: Machine, *, drop_stale: bool = True) -> None:
        self.machine, self.drop_stale = machine, drop_stale
        self.state = 0
        self.tag: Tag = NO_TAG
        self.waiting: list[Envelope] = []
        self.dropped = 0

    @property
    def role(self) -> str:
        """Return the role's name."""
        return self.machine.role

    @property
    def here(self) -> State:
        """Return the state the role is in."""
        return self.machine.states[self.state]

    @property
    def ended(self) -> bool:
        """Return whether the role may stop here."""
        return self.here.ends

    def offers(self) -> list[Transition]:
        """Return what the role may send now."""
        return [each for each in self.here.transitions if each.sends]

    def can_send(self, partner: str, label: str) -> bool:
        """Return whether the role may send this message now."""
        return any(each.sends and (each.partner, each.label) == (partner, label) for each in self.here.transitions)

    def send(self, partner: str, label: str, payload: tuple[Any, ...] = ()) -> tuple[Envelope, list[SessionEvent]]:
        """Send a message; returns it, and what happened to messages that had been waiting for this step.

        Raises
        ------
        BadValueError
            When the protocol does not allow it now.
        """
        for each in self.here.transitions:
            if each.sends and each.label == label and each.partner == partner:
                if each.settles is not None:
                    self.tag = begun(self.tag, *each.settles)
                self.state = each.target
                return Envelope(self.machine.role, partner, label, payload, self.tag), self._go_on()
        allowed = [f"{each.label} to {each.partner}" for each in self.offers()]
        raise BadValueError(
            f"{self.role!r} may not send this now.",
            given=f"{label} to {partner}",
            allowed=allowed or "nothing: it waits" if not self.ended or allowed else "nothing: it has ended",
            nearest=nearest_of(f"{label} to {partner}", allowed),
            where=f"protocol {self.machine.protocol}, state {self.state}",
        )

    def deliver(self, envelope: Envelope) -> list[SessionEvent]:
        """Hand over a message that arrived; returns what was done with it and with others that waited for it.

        Raises
        ------
        BadValueError
            When more messages wait than any protocol needs: the sender does not keep to it.
        """
        if len(self.waiting) >= MOST_WAITING:
            raise BadValueError(
                f"{self.role!r} holds more messages than it will take.",
                given=len(self.waiting),
                where=f"protocol {self.machine.protocol}, from {envelope.sender}",
            )
        self.waiting.append(envelope)
        return self._go_on()

    def _go_on(self) -> list[SessionEvent]:
        happened: list[SessionEvent] = []
        while self.waiting and self._one(happened):
            pass
        return happened

    def _one(self, happened: list[SessionEvent]) -> bool:
        """Do one thing with the first waiting message that something can be done with; per sender in order."""
        held: set[str] = set()
        for position, envelope in enumerate(self.waiting):
            sender, _, label, payload, theirs = envelope
            if sender in held:
                continue
            how, mix, turn = relation(self.tag, theirs)
            if how == "stale" and self.drop_stale:
                return self._drop(position, happened)
            if how == "overrides":
                self.tag = switched(self.tag, mix, turn)
                self.state = self.machine.aborts[mix]
                happened.append(SessionEvent("switched", sender, label, payload, theirs))
                return True
            for each in self.here.transitions:
                if (
                    not each.sends
                    and each.label == label
                    and each.partner == sender
                    and passes(self.tag, theirs, each.through)
                ):
                    del self.waiting[position]
                    self.tag = joined(self.tag, theirs)
                    self.state = each.target
                    happened.append(SessionEvent("taken", sender, label, payload, theirs))
                    return True
            if self.drop_stale and any(voids(other.tag, theirs) for other in self.waiting):
                return self._drop(position, happened)
            held.add(sender)
        return False

    def _drop(self, position: int, happened: list[SessionEvent]) -> bool:
        sender, _, label, payload, tag = self.waiting.pop(position)
        self.dropped += 1
        happened.append(SessionEvent("dropped", sender, label, payload, tag))
        return True
