"""File synchronisation by bilateral transactions: snapshots that change hands with a token on every link.

Each link has one token, and only its owner may hand a snapshot over.  The hand-over is offered, held, committed and
acknowledged; until the commit it can be reversed, after it both ends know it happened.  So both ends of a link always
agree on the last snapshot they share, and a retry, a duplicate or a cut changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadFileError
from wavetank.protocols.filesync import token as moves
from wavetank.protocols.filesync.device import CLOUD, Device, FileSyncSettings, Part, Wire
from wavetank.protocols.filesync.replica import Replica, SnapshotSync, graph_of
from wavetank.protocols.filesync.snapshots import NOTHING, Graph, changed, merge
from wavetank.protocols.filesync.token import IDLE, LinkToken
from wavetank.protocols.filesync.tree import TreeError
from wavetank.sim.node import Message, Snapshot

_FORGET_EVERY = 16


class Link:
    """One end of a link: its token, and the snapshot both ends share.

    Parameters
    ----------
    node : Wire
        Whose end it is.
    peer : int
        The other end.
    graph : Graph
        Where objects are kept.

    Attributes
    ----------
    shared : bytes
        The snapshot that changed hands last; NOTHING at first.
    asked : bool
        Whether the other end wants the token.
    """

    def __init__(self, node: Wire, peer: int, graph: Graph) -> None:
        self.node = node
        self.peer = peer
        self.graph = graph
        self.retry_rounds = node.engine.retry_rounds
        context = node.context
        shared, saved = context.load(f"link {peer}", (NOTHING, (context.id != CLOUD, IDLE, 0, b"")))
        self.shared: bytes = shared
        self.token = LinkToken(*saved)
        self.asked = False
        self.whole = False
        self.spoke_at = float("-inf")
        self.asked_at = float("-inf")

    def _save(self) -> None:
        self.node.context.save(f"link {self.peer}", (self.shared, self.token.saved()))

    def _send(self, message: Message | None) -> None:
        self._save()
        if message is None:
            return
        self.spoke_at = self.node.context.now
        try:
            self.node.transmit(self.peer, message)
        except TreeError as error:
            self.node.notify("", error.problem)

    def hand_over(self, commit: bytes) -> None:
        """Begin to hand a snapshot over, when the token is here and idle."""
        if not (self.token.owner and self.token.state == IDLE):
            return
        self.asked = False
        self._send(self._with_goods(self.token.offer(commit)))

    def _with_goods(self, offer: moves.Offer) -> moves.Offer:
        lacking = self.graph.missing(offer.payload, NOTHING if self.whole else self.shared)
        return moves.Offer(offer.serial, offer.payload, lacking)

    def ask(self) -> None:
        """Ask for the token, now and then."""
        now = self.node.context.now
        if not self.token.owner and self.token.state == IDLE and now - self.asked_at > self.retry_rounds:
            self.asked_at = now
            self.node.transmit(self.peer, moves.Ask(self.token.serial))

    def again(self) -> None:
        """Say again where this end is, when the other end has been silent for long."""
        if self.token.state == IDLE or self.node.context.now - self.spoke_at <= self.retry_rounds:
            return
        message = self.token.again()
        self.node.context.record("retries")
        self._send(self._with_goods(message) if isinstance(message, moves.Offer) else message)

    def take(self, message: Any) -> bytes | None:
        """Take a step of the protocol; return the snapshot when one changed hands at this end just now.

        A snapshot that this end received differs from one it gave away by :attr:`token`: the receiver owns it.
        """
        token = self.token
        if isinstance(message, moves.Offer):
            self._offered(message)
        elif isinstance(message, moves.Hold):
            owned = token.owner
            answer = token.held(message)
            given = owned and not token.owner
            if given:
                self.shared, self.whole = token.payload, False
            self._send(answer)
            return token.payload if given else None
        elif isinstance(message, moves.Commit):
            answer, taken = token.committed(message)
            if taken:
                self.shared = token.payload
                self.asked_at = float("-inf")
            self._send(answer)
            return token.payload if taken else None
        elif isinstance(message, moves.Ack):
            token.acknowledged(message)
            self._save()
        elif isinstance(message, moves.Reverse):
            self.whole = self.whole or message.lacking
            self._send(token.reversed(message))
        elif isinstance(message, moves.Ask):
            self.asked = True
        return None

    def _offered(self, offer: moves.Offer) -> None:
        if offer.serial > self.token.serial and not self.token.owner and self.token.state == IDLE:
            for content in offer.goods:
                self.graph.put(content)
            if offer.payload and not self.graph.is_complete(offer.payload):
                # Never hold what is not whole: the owner takes it back and sends everything.
                self._send(moves.Reverse(offer.serial, lacking=True))
                return
        self._send(self.token.offered(offer))


class BilateralCloud(Wire):
    """The cloud: a link to every device, and a head into which it merges what it is handed."""

    def __init__(self, engine: FileSyncSettings) -> None:
        super().__init__(engine)
        self.head = NOTHING
        self.forgetting = 0
        self.links: dict[int, Link] = {}

    def start(self) -> None:
        """Take up what was saved."""
        self.graph = graph_of(self.context)
        self.head = self.context.load("head", NOTHING)
        self.links = {peer: Link(self, peer, self.graph) for peer in self.context.peers}
        self.context.set_timer("again", self.engine.retry_rounds / 2)

    def timer(self, name: str) -> None:
        """Say again what was not answered."""
        self.context.set_timer("again", self.engine.retry_rounds / 2)
        for link in self.links.values():
            link.again()
        self._offer()

    def arrived(self, sender: int, message: Any) -> None:
        """Take a step on the link; merge what arrived."""
        link = self.links[sender]
        before = link.shared
        commit = link.take(message)
        if commit is not None and link.token.owner:
            self._merge(before, commit, sender)
        self._offer()

    def _merge(self, base: bytes, commit: bytes, device: int) -> None:
        if commit in (base, self.head):
            return
        try:
            mine, theirs = self.graph.files(self.head), self.graph.files(commit)
            found = merge(self.graph.files(base), mine, theirs, device)
        except BadFileError as error:
            self.notify("", error.problem)
            return
        for path, says in found.notices:
            self.notify(path, says)
        if found.copies:
            self.context.record("conflict_copies", found.copies)
        if not changed(theirs, found.files):
            self.head = commit
        elif changed(mine, found.files):
            parents = tuple(each for each in (self.head, commit) if each)
            self.head = self.graph.commit(found.files, parents, CLOUD)
        self.context.save("head", self.head)
        self.forgetting += 1
        if self.forgetting % _FORGET_EVERY == 0:
            kept = [self.head, *(link.shared for link in self.links.values())]
            kept += [link.token.payload for link in self.links.values() if link.token.state != IDLE]
            self.graph.retain([each for each in kept if each])

    def _offer(self) -> None:
        for link in self.links.values():
            if link.asked or link.shared != self.head:
                link.hand_over(self.head)
            if link.shared != self.head:
                link.ask()


class BilateralDevice(Replica):
    """A device of :class:`BilateralSync`."""

    def start(self) -> None:
        """Take up what was saved."""
        super().start()
        self.link = Link(self, CLOUD, self.graph)

    def needed(self) -> list[bytes]:
        """See Replica."""
        under_way = [self.link.token.payload] if self.link.token.state != IDLE else []
        return [*super().needed(), self.link.shared, *under_way]

    def exchange(self) -> None:
        """Hand over the own head, once what came before is brought in; ask for the token where it is needed."""
        link = self.link
        link.again()
        news = self.head != self.base
        if link.asked or (news and not self.incoming):
            # While something waits to be brought in, the token goes back with what came last.
            link.hand_over(link.shared if self.incoming else self.head)
        if news and not self.incoming:
            link.ask()

    def arrived(self, sender: int, message: Any) -> None:
        """Take a step on the link; bring in what arrived."""
        commit = self.link.take(message)
        if commit is not None and self.link.token.owner:
            if commit not in (self.base, self.head):
                self.incoming = commit
            elif commit == self.head:
                self.base = self.head
            self.remember()
            if self.look():
                self.scanned()
        elif commit is not None:
            if not self.incoming:
                self.base = commit
            self.remember()
        self.exchange()


@dataclass(frozen=True, kw_only=True)
class BilateralSync(SnapshotSync):
    """Snapshots that change hands with a token on every link: offered, held, committed, acknowledged."""

    messages: ClassVar[tuple[type[Message], ...]] = (*moves.MESSAGES, Part)
    cloud: ClassVar[type[Wire]] = BilateralCloud
    device: ClassVar[type[Device]] = BilateralDevice
    believes_by: ClassVar[str] = "token"

    def violation(self, snapshot: Snapshot) -> str:
        """Return in words that a link's token is at both ends, or at none while both are idle."""
        for cloud in snapshot.nodes:
            for peer, link in cloud.links.items() if isinstance(cloud, BilateralCloud) else ():
                device = snapshot.nodes[peer]
                if not isinstance(device, BilateralDevice) or not hasattr(device, "link"):
                    continue
                ends = (link.token, device.link.token)
                owners = sum(end.owner for end in ends)
                if owners > 1 or (owners == 0 and all(end.state == IDLE for end in ends)):
                    return f"{owners} ends own the token of the link to device {peer}"
        return ""
