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
from typing import Any, ClassVar

from wavetank.protocols.interfaces import Message, Node, Snapshot
from wavetank.settings import setting

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

    ``lacking`` tells the owner that what was offered cannot be completed here.
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

    def offer(self, payload: bytes, goods: tuple[bytes, ...] = ()) -> Offer:
        """Offer the token; only its owner, when idle, may."""
        self.serial += 1
        self.state, self.payload = OFFERED, payload
        return Offer(self.serial, payload, goods)

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
        """Return what must survive a crash."""
        return self.owner, self.state, self.serial, self.payload

    @classmethod
    def restored(cls, saved: tuple[bool, str, int, bytes]) -> LinkToken:
        """Return the end that was saved."""
        return cls(*saved)


class TokenEnd(Node):
    """One of two nodes that pass a token to and fro.

    Parameters
    ----------
    owner : bool
        Whether it begins with the token.
    transfers : int
        Offers after which the two ends keep still.
    reversals : bool
        Whether a timer reverses what is under way.
    """

    def __init__(self, owner: bool, transfers: int, reversals: bool) -> None:
        self.transfers = transfers
        self.reversals = reversals
        self.token = LinkToken(owner)

    def start(self) -> None:
        """Take up what was saved; settle what was under way."""
        saved = self.context.load("token")
        if saved is not None:
            self.token = LinkToken.restored(tuple(saved))
        self._timers()

    def receive(self, sender: int, message: Any) -> None:
        """Take a step of the protocol; what comes out of order changes nothing."""
        token = self.token
        answer: Message | None = None
        if isinstance(message, Offer):
            answer = token.offered(message)
        elif isinstance(message, Hold):
            answer = token.held(message)
        elif isinstance(message, Commit):
            answer, _ = token.committed(message)
        elif isinstance(message, Ack):
            token.acknowledged(message)
        elif isinstance(message, Reverse):
            answer = token.reversed(message)
        self._tell(answer)

    def timer(self, name: str) -> None:
        """Offer, say again, or reverse."""
        token = self.token
        if name == "offer" and token.owner and token.state == IDLE and token.serial < self.transfers:
            self._tell(token.offer(b""))
        elif name == "again":
            self._tell(token.again())
        elif name == "reverse":
            self._tell(token.reverse())

    def _tell(self, message: Message | None) -> None:
        self.context.save("token", self.token.saved())
        if message is not None:
            self.context.send(1 - self.context.id, message)
        self._timers()

    def _timers(self) -> None:
        token = self.token
        self._timer("offer", token.owner and token.state == IDLE and token.serial < self.transfers)
        self._timer("again", token.state != IDLE)
        self._timer("reverse", self.reversals and token.state in (OFFERED, HELD))

    def _timer(self, name: str, wanted: bool) -> None:
        if wanted:
            self.context.set_timer(name, {"offer": 2.0, "again": 4.0, "reverse": 9.0}[name])
        else:
            self.context.cancel_timer(name)


@dataclass(frozen=True, kw_only=True)
class TokenExchange:
    """Two nodes and one token.

    Parameters
    ----------
    transfers : int
        Offers, after which the two ends keep still.
    reversals : bool
        Whether transfers are also reversed.
    """

    messages: ClassVar[tuple[type[Message], ...]] = MESSAGES

    transfers: int = setting(2, low=0, high=1000, says="offers after which the ends keep still")
    reversals: bool = setting(True, says="whether transfers are also reversed")

    def node(self, index: int, size: int) -> Node:
        """Return one end; number 0 begins with the token."""
        return TokenEnd(index == 0, self.transfers, self.reversals)

    def bears(self, size: int) -> int:
        """Return 0: an end that lies is not foreseen."""
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return in words that the token is at both ends, or at none while both are idle."""
        ends = [node.token for node in snapshot.nodes if isinstance(node, TokenEnd)]
        owners = sum(end.owner for end in ends)
        if owners > 1:
            return "both ends own the token"
        if owners == 0 and all(end.state == IDLE for end in ends):
            return "no end owns the token, and none is under way"
        return ""
