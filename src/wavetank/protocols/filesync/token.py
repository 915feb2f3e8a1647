"""A token between two ends of a link that neither loses nor doubles it, and whose whereabouts both can settle.

The owner offers the token with what goes along, the other end holds, the owner commits, which gives the token up, and
the other end, now its owner, acknowledges.  Until it commits the owner may reverse; the holder may ask it to.  Every
message states a transfer and a state, so sending it again after a cut or a restart is how both ends compare notes.

Source: P. Borrill, "Why iCloud Fails: The Category Mistake of Cloud Synchronization", arXiv 2602.19433, 2026, for
bilateral, reversible, conserving transactions; J. Gray, "Notes on Data Base Operating Systems", 1978, for what a
participant may do while it is in doubt.

Differs from the source:

1. The paper argues for such transactions and gives no protocol; states and messages are ours.
2. A holder that wants to reverse asks, and stays bound until it is answered: the other way round a cut could leave no
   owner.
3. There is no message for comparing: the message that belongs to the state is sent again.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.sim.node import Message

IDLE, OFFERED, HELD, COMMITTED = "idle", "offered", "held", "committed"


class Offer(Message, frozen=True):
    """The owner offers the token; ``payload`` names what goes along, ``goods`` is it."""

    serial: int
    payload: bytes
    goods: tuple[bytes, ...] = ()


class Hold(Message, frozen=True):
    """What was offered is here and safe; it will be taken when it is committed."""

    serial: int


class Commit(Message, frozen=True):
    """The token is yours."""

    serial: int


class Ack(Message, frozen=True):
    """The token was taken."""

    serial: int


class Reverse(Message, frozen=True):
    """From the owner: the offer is void.  From the other end: please take it back.

    ``lacking`` informs the owner that what was offered cannot be completed here.
    """

    serial: int
    lacking: bool = False


class Ask(Message, frozen=True):
    """The end without the token has something to send."""

    serial: int


MESSAGES = (Offer, Hold, Commit, Ack, Reverse, Ask)


@dataclass
class LinkToken:
    """One end of the token protocol.

    Parameters
    ----------
    owner : bool
        Whether the token is at this end.
    state : str
        ``idle``, ``offered`` (by this end), ``held`` (at this end), ``committed`` (by this end, not acknowledged).
    serial : int
        Number of the latest transfer this end knows of.
    payload : bytes
        What is, or was last, under way.
    """

    owner: bool
    state: str = IDLE
    serial: int = 0
    payload: bytes = b""

    def offer(self, payload: bytes) -> Offer:
        """Offer the token; only its owner, when idle, may."""
        self.serial += 1
        self.state, self.payload = OFFERED, payload
        return Offer(self.serial, payload)

    def reverse(self) -> Reverse | None:
        """Take an offer back, or ask for that at the other end; None when there is nothing to reverse."""
        if self.state == OFFERED:
            self.state = IDLE
            return Reverse(self.serial)
        return Reverse(self.serial) if self.state == HELD else None

    def again(self) -> Message | None:
        """Return the message that states where this end is; None when it is idle."""
        if self.state == OFFERED:
            return Offer(self.serial, self.payload)
        if self.state == HELD:
            return Hold(self.serial)
        return Commit(self.serial) if self.state == COMMITTED else None

    def offered(self, message: Offer) -> Message | None:
        """Hold what is offered; return the answer."""
        if message.serial == self.serial:
            if self.state == HELD:
                return Hold(self.serial)
            return Ack(self.serial) if self.owner else None
        if message.serial < self.serial or self.owner or self.state != IDLE:
            return None
        self.serial, self.state, self.payload = message.serial, HELD, message.payload
        return Hold(self.serial)

    def held(self, message: Hold) -> Message | None:
        """Commit, which gives the token up; return the answer."""
        if message.serial == self.serial:
            if self.state == OFFERED:
                self.state, self.owner = COMMITTED, False
            if self.state == COMMITTED:
                return Commit(self.serial)
        # A transfer that is over, or was reversed, is not to be waited for.
        return Reverse(message.serial) if message.serial <= self.serial else None

    def committed(self, message: Commit) -> tuple[Message | None, bool]:
        """Take the token; return the answer, and whether it came just now."""
        if message.serial == self.serial and self.state == HELD:
            self.state, self.owner = IDLE, True
            return Ack(self.serial), True
        return (Ack(message.serial) if message.serial <= self.serial else None), False

    def acknowledged(self, message: Ack) -> bool:
        """End a transfer; return whether it ended just now."""
        if message.serial != self.serial or self.state != COMMITTED:
            return False
        self.state = IDLE
        return True

    def reversed(self, message: Reverse) -> Message | None:
        """Take an offer back when asked to, or learn that it was; return the answer."""
        if message.serial != self.serial:
            return None
        if self.state == OFFERED:
            self.state = IDLE
            return Reverse(self.serial)
        if self.state == HELD:
            self.state = IDLE
            return None
        return Commit(self.serial) if self.state == COMMITTED else None

    def saved(self) -> tuple[bool, str, int, bytes]:
        """Return what must survive a crash: the arguments of an equal end."""
        return self.owner, self.state, self.serial, self.payload
