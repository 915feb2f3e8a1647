"""File synchronisation with snapshots: what travels is a closed set, and one head moves by compare-and-set.

A device proposes a snapshot together with the head it was made from; the cloud moves its head only if that is still the
head.  Otherwise the device fetches the new head, merges, shows what both sides changed, and proposes again.  A reader
therefore only ever sees states that some device had, or that a merge made on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.filesync.device import CLOUD, Device, FileSyncSettings, Part, Wire
from wavetank.protocols.filesync.replica import Replica, SnapshotSync, graph_of
from wavetank.protocols.filesync.snapshots import NOTHING
from wavetank.protocols.filesync.tree import TreeError
from wavetank.settings import setting
from wavetank.sim.node import Message

_HEADS_KEPT = 64


class Propose(Message, frozen=True):
    """Move the head from ``expected`` to ``commit``; here is what you lack."""

    expected: bytes
    commit: bytes
    objects: tuple[bytes, ...]


class Moved(Message, frozen=True):
    """The head is, or was, this commit."""

    commit: bytes


class Refused(Message, frozen=True):
    """The head is another one, or (``lacking``) objects are missing."""

    commit: bytes
    lacking: bool


class Pull(Message, frozen=True):
    """Send the head to someone who has ``base``."""

    base: bytes


class Head(Message, frozen=True):
    """The head, and what someone with ``base`` lacks of it."""

    base: bytes
    commit: bytes
    objects: tuple[bytes, ...]


class Stir(Message, frozen=True):
    """The head moved: it is worth pulling."""


MESSAGES = (Propose, Moved, Refused, Pull, Head, Stir)


class CausalCloud(Wire):
    """The cloud's graph, and its head."""

    def __init__(self, engine: FileSyncSettings) -> None:
        super().__init__(engine)
        self.heads: list[bytes] = []

    def start(self) -> None:
        """Take up what was saved."""
        self.graph = graph_of(self.context)
        self.heads = list(self.context.load("heads", ()))

    @property
    def head(self) -> bytes:
        """Return the current head."""
        return self.heads[-1] if self.heads else NOTHING

    def arrived(self, sender: int, message: Any) -> None:
        """Move the head, or send it."""
        if isinstance(message, Propose):
            self._proposed(sender, message)
        elif isinstance(message, Pull):
            # Someone with a base unknown here gets everything.
            known = message.base if message.base in self.heads else NOTHING
            lacking = () if message.base == self.head else self.graph.missing(self.head, known)
            self.transmit(sender, Head(message.base, self.head, lacking))

    def _proposed(self, sender: int, proposal: Propose) -> None:
        if proposal.commit in self.heads:
            self.transmit(sender, Moved(proposal.commit))
            return
        if proposal.expected != self.head:
            self.transmit(sender, Refused(proposal.commit, False))
            return
        for content in proposal.objects:
            self.graph.put(content)
        if not self.graph.is_complete(proposal.commit):
            self.transmit(sender, Refused(proposal.commit, True))
            return
        self.heads.append(proposal.commit)
        if len(self.heads) > 2 * _HEADS_KEPT:
            del self.heads[:-_HEADS_KEPT]
            self.graph.retain(self.heads)
        self.context.save("heads", tuple(self.heads))
        self.transmit(sender, Moved(proposal.commit))
        for peer in self.context.peers:
            if peer != sender:
                self.transmit(peer, Stir())


class CausalDevice(Replica):
    """A device of :class:`CausalSnapshotSync`."""

    engine: CausalSnapshotSync

    def __init__(self, engine: CausalSnapshotSync) -> None:
        super().__init__(engine)
        # What was proposed and not answered; it is settled before anything else is asked for.
        self.proposed = NOTHING
        self.proposed_at = float("-inf")
        self.whole = False

    def start(self) -> None:
        """Take up what was saved, then look and pull."""
        self.proposed = self.context.load("proposed", NOTHING)
        super().start()
        self.context.set_timer("poll", self.engine.poll_rounds * (0.05 + 0.9 * self.context.rng.random()))

    def timer(self, name: str) -> None:
        """Pull now and then; the rest is the device's."""
        if name == "poll":
            self.context.set_timer("poll", self.engine.poll_rounds)
            self._pull()
        else:
            super().timer(name)

    def needed(self) -> list[bytes]:
        """See Replica."""
        return [*super().needed(), self.proposed]

    def _pull(self) -> None:
        if not self.incoming and not self.proposed:
            self.transmit(CLOUD, Pull(self.base))

    def exchange(self) -> None:
        """Propose the own head when it differs from the cloud's; the same one again until that is answered."""
        if not self.proposed:
            if self.head == self.base or self.incoming:
                return
            self._propose(self.head)
        elif self.context.now - self.proposed_at > self.engine.retry_rounds:
            self._propose(self.proposed)

    def _propose(self, commit: bytes) -> None:
        if commit != self.proposed:
            self.proposed = commit
            self.context.save("proposed", commit)
        self.proposed_at = self.context.now
        base = NOTHING if self.whole else self.base
        try:
            self.transmit(CLOUD, Propose(self.base, commit, self.graph.missing(commit, base)))
        except TreeError as error:
            self.notify("", error.problem)

    def arrived(self, sender: int, message: Any) -> None:
        """Take what the cloud says."""
        if isinstance(message, Stir):
            self._pull()
        elif isinstance(message, Moved) and message.commit == self.proposed:
            # What the cloud took may already have a successor here.
            self.base = message.commit
            self._answered(lacking=False)
            self.exchange()
        elif isinstance(message, Refused) and message.commit == self.proposed:
            self._answered(lacking=message.lacking)
            if message.lacking:
                self.exchange()
            else:
                self._pull()
        elif isinstance(message, Head) and message.base == self.base and message.commit != self.base:
            self._heard(message)

    def _answered(self, *, lacking: bool) -> None:
        self.proposed, self.whole = NOTHING, lacking
        self.context.save("proposed", NOTHING)
        self.remember()

    def _heard(self, message: Head) -> None:
        if self.incoming or self.proposed:
            return
        for content in message.objects:
            self.graph.put(content)
        if self.graph.is_complete(message.commit):
            self.incoming = message.commit
            self.remember()
            if self.look():
                self.scanned()


@dataclass(frozen=True, kw_only=True)
class CausalSnapshotSync(SnapshotSync):
    """Closed snapshots; the head moves by compare-and-set; what both sides changed stays visible."""

    messages: ClassVar[tuple[type[Message], ...]] = (*MESSAGES, Part)
    cloud: ClassVar[type[Wire]] = CausalCloud
    device: ClassVar[type[Device]] = CausalDevice

    poll_rounds: float = setting(10.0, unit="rounds", low=0.1, says="Time between two pulls")
