"""Amortized reliable broadcast: a sender chains its broadcasts, and a vote for one vouches for all before it.

Every broadcast is echoed, with a signature, by a small committee only.  Committees differ from broadcast to broadcast,
so signers add up: once a quorum of nodes has signed a link or one that follows it, no other chain can get a quorum
there, and the link is delivered.  While a stream lasts, each broadcast thus costs its payload and a few short messages,
and completes an earlier one.  A quorum of signatures is a proof that anyone can check, so who falls behind asks for it.

The paper's abstract states: multi-shot, sampled committees, no erasure codes, O(n|m|) for a broadcast, one more round
for each, O(1) rounds on an optimistic path, n > 3f.  Committees cut from permutations add up as fast as they can,
without a coupon collector's wait.  To ask everyone leaves the class of protocols in which committees alone speak, for
which the paper shows that full asynchrony defeats them; ``turns_to = "committee"`` stays in it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    HASH_BYTES,
    LAST_NUMBER,
    BroadcastProtocol,
    Placed,
    Sizes,
    SourceNode,
    broken_order,
    digest_of,
    intersecting_quorum,
    most_faults,
)
from wavetank.protocols.digraphs.signing import SCHEMES, scheme
from wavetank.settings import setting
from wavetank.sim.node import Message, Snapshot
from wavetank.sim.rng import Draws, stream_key

DRAWS = ("rotation", "hash")
TURNS = ("everyone", "committee")
_ROOT = bytes(HASH_BYTES)
_PLACE = struct.Struct(">IQ")


class Link(Placed, frozen=True):
    """One broadcast: the payload, and the head of the chain before it; signed by the source."""

    parent: bytes
    payload: bytes
    everyone: bool
    signature: bytes


class Echo(Placed, frozen=True):
    """A node holds the chain of ``source`` up to this head and signs it; it has delivered the first ``delivered``."""

    head: bytes
    delivered: int
    signature: bytes


class Ask(Message, frozen=True):
    """A source whose stream pauses asks everyone to echo its chain up to that number."""

    number: int


class Pull(Message, frozen=True):
    """A node has delivered no more than that, and hears that others have."""

    source: int
    delivered: int


class Vote(Message, frozen=True):
    """A signature as part of a proof."""

    signer: int
    number: int
    signature: bytes


class Proof(Message, frozen=True):
    """Digests of payloads from number ``first`` on, and signatures of a quorum for that chain."""

    source: int
    first: int
    digests: tuple[bytes, ...]
    votes: tuple[Vote, ...]


class Fetch(Message, frozen=True):
    """A node lacks these links."""

    source: int
    numbers: tuple[int, ...]


class Exposure(Placed, frozen=True):
    """Two links of one number, both signed by the source: it equivocates."""

    head: bytes
    signature: bytes
    other_head: bytes
    other_signature: bytes


def head_of(source: int, number: int, digest: bytes, parent: bytes) -> bytes:
    """Return the head of a chain: it names the payload and, through its parent, all before it."""
    return digest_of(_PLACE.pack(source, number) + digest + parent)


def _head_of(link: Link) -> bytes:
    return head_of(link.source, link.number, digest_of(link.payload), link.parent)


def link_content(source: int, number: int, head: bytes) -> bytes:
    """Return what a source signs."""
    return b"link" + _PLACE.pack(source, number) + head


def echo_content(source: int, number: int, head: bytes) -> bytes:
    """Return what a voter signs."""
    return b"echo" + _PLACE.pack(source, number) + head


@lru_cache(maxsize=4096)
def _permutation(size: int, source: int, epoch: int) -> tuple[int, ...]:
    return tuple(Draws(stream_key(epoch, "committees", source)).shuffled(range(size)))


@lru_cache(maxsize=4096)
def _sample(size: int, seats: int, seed: bytes) -> frozenset[int]:
    return frozenset(Draws(int.from_bytes(seed[:8], "little")).sample(range(size), seats))


def committee(size: int, seats: int, source: int, number: int, parent: bytes, draw: str = "rotation") -> frozenset[int]:
    """Return who echoes a link; everyone computes the same.

    Parameters
    ----------
    size, seats : int
        Nodes, and how many of them.
    source, number : int
        Of the link.
    parent : bytes
        Head of the chain before it; only ``hash`` uses it.
    draw : str
        ``rotation`` or ``hash``.
    """
    if seats >= size:
        return frozenset(range(size))
    if draw == "hash":
        return _sample(size, seats, head_of(source, number, b"committee", parent))
    # Links take consecutive seats of an endless row of permutations.
    begin = (number - 1) * seats
    places = (divmod(place, size) for place in range(begin, begin + seats))
    return frozenset(_permutation(size, source, epoch)[place] for epoch, place in places)


@dataclass(slots=True)
class Stream:
    """What a node knows of one source.

    Attributes
    ----------
    delivered, locked, held : int
        Links delivered; links a quorum vouches for; links whose payloads are here, without a gap.
    heads, digests : dict of int to bytes
        Of the chain this node is on.
    links : dict of int to Link
        The links of that chain.
    spare : dict of int to list of Link
        Links that do not fit (yet).
    echoes : dict of int to dict of int to tuple
        Number to signer to its heads and signatures, two at most.
    top : list of int
        For each node the highest link of this chain that it signed.
    ahead : int
        How many of them are above ``locked``.
    claims, acknowledged : list of int
        For each node the highest number it spoke of, and how many it says it delivered.
    echoed, asked : int
        Highest number signed by this node, and for which the source asked.
    exposed : bool
        Whether the source was caught with two chains.
    proof : Proof or None
        What proves the lock, when it was not counted here.
    wants : dict of int to int
        Peers that wait for a proof, and what they have delivered.
    served : dict of int to tuple
        What was delivered here, and there, when a peer was last sent a proof.
    fetched : dict of int to int
        Number to the peers that have fetched the link here, as bits: each may once.
    pulled, mark : int
        What was delivered when proof was last asked for, and when the timer was set; -1 for never.
    heard : int
        Highest of the claims.
    """

    top: list[int]
    claims: list[int]
    acknowledged: list[int]
    delivered: int = 0
    locked: int = 0
    held: int = 0
    heads: dict[int, bytes] = field(default_factory=lambda: {0: _ROOT})
    digests: dict[int, bytes] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    spare: dict[int, list[Link]] = field(default_factory=dict)
    echoes: dict[int, dict[int, tuple[tuple[bytes, bytes], ...]]] = field(default_factory=dict)
    echoed: int = 0
    asked: int = 0
    exposed: bool = False
    proof: Proof | None = None
    wants: dict[int, int] = field(default_factory=dict)
    served: dict[int, tuple[int, int]] = field(default_factory=dict)
    fetched: dict[int, int] = field(default_factory=dict)
    pulled: int = -1
    mark: int = -1
    ahead: int = 0
    heard: int = 0

    def claim(self, node: int, number: int) -> None:
        """Note that a node spoke of a link."""
        if number > self.claims[node]:
            self.claims[node] = number
            if number > self.heard:
                self.heard = number

    def sign(self, node: int, number: int) -> None:
        """Note that a node signed a link of this chain."""
        if number > self.top[node]:
            self.ahead += self.top[node] <= self.locked < number
            self.top[node] = number

    def lock(self, number: int) -> None:
        """Note that a quorum vouches for a link."""
        self.locked = number
        self.ahead = sum(each > number for each in self.top)

    def vouched(self, voters: int) -> int:
        """Return the highest link that ``voters`` nodes signed, or signed a successor of."""
        return sorted(self.top, reverse=True)[voters - 1]


class AmortizedNode(SourceNode):
    """A participant."""

    def __init__(self, parameters: Amortized, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes))
        self.parameters = parameters
        self.faults = most_faults(size)
        self.quorum = parameters.quorum or intersecting_quorum(size)
        self.seats = parameters.seats(size)
        self.patience = parameters.patience(size)
        self.scheme = scheme(parameters.signatures, parameters.key_seed)
        self.streams: dict[int, Stream] = {}

    # As a source.

    def has_room(self) -> bool:
        """Return whether the window has room for another link."""
        stream = self._stream(self.context.id)
        # Someone who has this node's key may have led the others along another chain: then there is nothing to add to.
        return self.number - stream.delivered < self.parameters.window and stream.held == self.number

    def send_payload(self, payload: bytes) -> None:
        """Add a link to this node's chain and send it to everyone."""
        me = self.context.id
        stream = self._stream(me)
        quiet = self.number - 1 == stream.delivered
        parent = stream.heads[self.number - 1]
        head = head_of(me, self.number, digest_of(payload), parent)
        link = Link(
            source=me,
            number=self.number,
            parent=parent,
            payload=payload,
            everyone=quiet and self.parameters.optimistic and self._turns_to_everyone,
            signature=self.scheme.sign(me, link_content(me, self.number, head)),
        )
        self.send_all(link)
        if self._turns_to_everyone:
            self.context.set_timer("pause", self.parameters.pause_rounds)
        self._on_link(me, link)

    @property
    def _turns_to_everyone(self) -> bool:
        return self.parameters.turns_to == "everyone"

    # As a receiver.

    def _stream(self, source: int) -> Stream:
        stream = self.streams.get(source)
        if stream is None:
            size = self.context.size
            stream = self.streams[source] = Stream([0] * size, [0] * size, [0] * size)
        return stream

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        source = sender if isinstance(message, Ask) else message.source
        if 0 <= source < self.context.size:
            _HANDLERS[type(message)](self, sender, message)

    def _on_link(self, sender: int, link: Link) -> None:
        source, number = link.source, link.number
        stream = self._stream(source)
        if sender == source:
            stream.claim(source, number)
            self._watch(source, stream)
        if not stream.delivered < number <= stream.delivered + self.parameters.window:
            return
        head = _head_of(link)
        if stream.heads.get(number) == head:
            if number in stream.links:
                return
        elif not self.scheme.verify(source, link_content(source, number, head), link.signature):
            self.context.record("rejected")
            return
        spare = stream.spare.setdefault(number, [])
        # Of the link that a quorum signed one is enough, with whatever signature; others must differ.
        if stream.heads.get(number) == head:
            if any(_head_of(each) == head for each in spare):
                return
        elif link in spare:
            return
        known = [*spare, *([stream.links[number]] if number in stream.links else [])]
        if known and not stream.exposed:
            self._expose(stream, link, head, known[0])
        # A third link of one number says nothing new, unless it is the one that a quorum signed.
        if stream.heads.get(number) == head:
            spare.insert(0, link)
        elif len(known) < 2:
            spare.append(link)
        self._extend(source, stream)

    def _expose(self, stream: Stream, link: Link, head: bytes, other: Link) -> None:
        other_head = _head_of(other)
        if head == other_head or not self.scheme.verify(
            link.source, link_content(link.source, link.number, head), link.signature
        ):
            return
        stream.exposed = True
        self.send_all(Exposure(link.source, link.number, head, link.signature, other_head, other.signature))

    def _on_exposure(self, sender: int, message: Exposure) -> None:
        source, number = message.source, message.number
        stream = self._stream(source)
        if (
            not stream.exposed
            and 0 < number <= LAST_NUMBER
            and message.head != message.other_head
            and self.scheme.verify(source, link_content(source, number, message.head), message.signature)
            and self.scheme.verify(source, link_content(source, number, message.other_head), message.other_signature)
        ):
            stream.exposed = True
            self.send_all(message)

    def _extend(self, source: int, stream: Stream) -> None:
        """Take up the links that follow, and echo."""
        while True:
            number = stream.held + 1
            head = stream.heads.get(number)
            link = self._next_link(source, stream, number, head)
            if link is None:
                break
            if head is None:
                digest = digest_of(link.payload)
                head = stream.heads[number] = head_of(source, number, digest, link.parent)
                stream.digests[number] = digest
            stream.spare[number].remove(link)
            stream.links[number] = link
            stream.held = number
            self._count_votes(stream, number, head)
            if link.everyone and self._turns_to_everyone:
                stream.asked = max(stream.asked, number)
            self._echo(source, stream)
        self._advance(source, stream)

    def _next_link(self, source: int, stream: Stream, number: int, head: bytes | None) -> Link | None:
        for link in stream.spare.get(number, ()):
            if head is None:
                # Of a source with two chains only what a quorum signed is taken up.
                if not stream.exposed and link.parent == stream.heads[number - 1]:
                    return link
            elif _head_of(link) == head:
                return link
        return None

    def _echo(self, source: int, stream: Stream) -> None:
        """Sign the newest link when it is this node's turn; never two chains.

        Also when it is delivered here already: what others sent to this node alone, the rest cannot count.
        """
        number = stream.held
        if number <= stream.echoed or stream.exposed:
            return
        me = self.context.id
        if stream.asked < number and me not in committee(
            self.context.size, self.seats, source, number, stream.heads[number - 1], self.parameters.draw
        ):
            return
        stream.echoed = number
        head = stream.heads[number]
        signature = self.scheme.sign(me, echo_content(source, number, head))
        self.send_all(Echo(source, number, head, stream.delivered, signature))
        stream.echoes.setdefault(number, {})[me] = ((head, signature),)
        stream.sign(me, number)
        # It counts towards f+1: a node that delivers on this signature may have sent nothing to others.
        stream.claim(me, number)

    def _on_ask(self, sender: int, message: Ask) -> None:
        stream = self._stream(sender)
        if message.number > stream.asked and self._turns_to_everyone:
            stream.asked = message.number
            if stream.held >= message.number:
                # A vote for the newest link vouches for the one that was asked about.
                stream.asked = stream.held
                self._echo(sender, stream)
                self._advance(sender, stream)
            self._fetch_asked(sender, stream)

    def _fetch_asked(self, source: int, stream: Stream) -> None:
        """Get links that the source asks about and that came too early for the window."""
        lacking = range(stream.held + 1, min(stream.asked, stream.delivered + self.parameters.window) + 1)
        if lacking and source != self.context.id:
            self.send(source, Fetch(source, tuple(lacking)))

    def _on_echo(self, sender: int, echo: Echo) -> None:
        source, number = echo.source, echo.number
        stream = self._stream(source)
        stream.claim(sender, number)
        if echo.delivered > stream.acknowledged[sender]:
            stream.acknowledged[sender] = echo.delivered
        if stream.locked < number <= stream.delivered + 2 * self.parameters.window:
            voters = stream.echoes.setdefault(number, {})
            known = voters.get(sender, ())
            # A correct node signs one head, or a second one after a proof; more need not be remembered.
            if len(known) < 2 and all(head != echo.head for head, _ in known):
                if not self.scheme.verify(sender, echo_content(source, number, echo.head), echo.signature):
                    self.context.record("rejected")
                    return
                voters[sender] = (*known, (echo.head, echo.signature))
                if stream.heads.get(number) == echo.head:
                    stream.sign(sender, number)
                    self._advance(source, stream)
        self._watch(source, stream)

    def _count_votes(self, stream: Stream, number: int, head: bytes) -> None:
        for signer, signed in stream.echoes.get(number, {}).items():
            if any(each == head for each, _ in signed):
                stream.sign(signer, number)

    def _advance(self, source: int, stream: Stream) -> None:
        """Lock what a quorum vouches for, and deliver it in order."""
        if stream.ahead >= self.quorum:
            stream.lock(stream.vouched(self.quorum))
            stream.proof = None
        before = stream.delivered
        while stream.delivered < min(stream.locked, stream.held):
            stream.delivered += 1
            number = stream.delivered
            self.deliver((source, number), stream.links[number].payload)
        if stream.delivered == before:
            return
        stream.acknowledged[self.context.id] = stream.delivered
        self._forget(stream, before)
        for peer in sorted(stream.wants):
            self._answer(source, stream, peer)
        self._watch(source, stream)
        self._fetch_asked(source, stream)
        if source == self.context.id:
            self.send_waiting()

    def _forget(self, stream: Stream, before: int) -> None:
        for number in [number for number in stream.echoes if number < stream.locked]:
            del stream.echoes[number]
        for number in range(before + 1, stream.delivered + 1):
            stream.spare.pop(number, None)
        # Everyone has these, or has had its time.
        gone = max(min(stream.acknowledged), stream.delivered - self.parameters.history)
        for number in [number for number in stream.links if number <= gone]:
            del stream.links[number], stream.digests[number], stream.heads[number - 1]
            stream.fetched.pop(number, None)

    # Falling behind and catching up.

    def _behind(self, stream: Stream) -> bool:
        """Return whether f+1 nodes, so a correct one, speak of links that are not delivered here."""
        return sorted(stream.claims, reverse=True)[self.faults] > stream.delivered

    def _watch(self, source: int, stream: Stream) -> None:
        if stream.mark < 0 and stream.pulled != stream.delivered < stream.heard:
            stream.mark = stream.delivered
            self.context.set_timer(f"behind:{source}", self.patience)

    def timer(self, name: str) -> None:
        """Ask everyone to echo, or ask for proof."""
        kind, _, rest = name.partition(":")
        if kind == "pause":
            if self._stream(self.context.id).delivered < self.number:
                ask = Ask(self.number)
                self.send_all(ask)
                self._on_ask(self.context.id, ask)
            return
        source = int(rest)
        stream = self._stream(source)
        waited_in_vain = stream.mark == stream.delivered
        stream.mark = -1
        if not waited_in_vain:
            self._watch(source, stream)
        elif self._behind(stream):
            stream.pulled = stream.delivered
            pull = Pull(source, stream.delivered)
            if self._turns_to_everyone:
                self.send_all(pull)
            else:
                for peer in self._newest_committee(source, stream):
                    self.send(peer, pull)

    def _newest_committee(self, source: int, stream: Stream) -> Sequence[int]:
        number = max(stream.held, 1)
        parent = stream.heads[number - 1]
        found = committee(self.context.size, self.seats, source, number, parent, self.parameters.draw)
        return sorted(found - {self.context.id})

    def _on_pull(self, sender: int, message: Pull) -> None:
        stream = self._stream(message.source)
        stream.acknowledged[sender] = max(stream.acknowledged[sender], message.delivered)
        stream.wants[sender] = message.delivered
        self._answer(message.source, stream, sender)

    def _answer(self, source: int, stream: Stream, peer: int) -> None:
        """Send a proof to a peer that waits for it, once there is one; never the same twice."""
        theirs = max(stream.wants[peer], stream.acknowledged[peer])
        if stream.delivered <= theirs or theirs not in stream.heads:
            return
        del stream.wants[peer]
        if stream.served.get(peer) == (stream.delivered, theirs):
            return
        stream.served[peer] = (stream.delivered, theirs)
        self.send(peer, self._proof(source, stream, theirs + 1))

    def _proof(self, source: int, stream: Stream, first: int) -> Proof:
        given = stream.proof
        if given is not None:
            before = tuple(stream.digests[number] for number in range(first, given.first))
            return Proof(source, first, before + given.digests[max(first - given.first, 0) :], given.votes)
        signers = sorted((top, node) for node, top in enumerate(stream.top) if top >= stream.locked)[: self.quorum]
        votes = []
        for top, node in signers:
            head = stream.heads[top]
            signature = next(signature for each, signature in stream.echoes[top][node] if each == head)
            votes.append(Vote(node, top, signature))
        last = max(vote.number for vote in votes)
        return Proof(source, first, tuple(stream.digests[number] for number in range(first, last + 1)), tuple(votes))

    def _on_proof(self, sender: int, proof: Proof) -> None:
        source = proof.source
        stream = self._stream(source)
        head = stream.heads.get(proof.first - 1)
        if head is None or not 0 < proof.first <= stream.delivered + 1:
            return
        chain = {}
        for number, digest in enumerate(proof.digests, proof.first):
            chain[number] = head = head_of(source, number, digest, head)
        locked = self._proved(source, proof, chain)
        if locked <= stream.delivered or any(
            stream.heads.get(number, chain[number]) != chain[number]
            for number in range(proof.first, stream.delivered + 1)
        ):
            return
        if locked > stream.locked:
            self._follow(stream, proof, chain, locked)
        self._extend(source, stream)
        lacking = range(stream.held + 1, min(stream.locked, stream.delivered + self.parameters.window) + 1)
        if lacking:
            self.send(sender, Fetch(source, tuple(lacking)))
        self._watch(source, stream)

    def _proved(self, source: int, proof: Proof, chain: dict[int, bytes]) -> int:
        """Return the highest link that a proof locks; 0 for a proof that is none."""
        size = self.context.size
        signers = {vote.signer: vote for vote in proof.votes if 0 <= vote.signer < size and vote.number in chain}
        if len(signers) < self.quorum or len(signers) != len(proof.votes):
            return 0
        for signer, vote in signers.items():
            if not self.scheme.verify(signer, echo_content(source, vote.number, chain[vote.number]), vote.signature):
                self.context.record("rejected")
                return 0
        return sorted((vote.number for vote in proof.votes), reverse=True)[self.quorum - 1]

    def _follow(self, stream: Stream, proof: Proof, chain: dict[int, bytes], locked: int) -> None:
        """Take a proved chain for this node's own, as far as it is locked; what conflicts with it can never be."""
        numbers = range(stream.delivered + 1, locked + 1)
        conflict = next((each for each in numbers if stream.heads.get(each, chain[each]) != chain[each]), None)
        if conflict is not None:
            for number in [number for number in stream.heads if number >= conflict]:
                del stream.heads[number], stream.digests[number]
                link = stream.links.pop(number, None)
                if link is not None and len(stream.spare.setdefault(number, [])) < 2:
                    stream.spare[number].append(link)
            stream.held = min(stream.held, conflict - 1)
            stream.top = [0] * len(stream.top)
        for number in numbers:
            stream.heads[number] = chain[number]
            stream.digests[number] = proof.digests[number - proof.first]
        if conflict is not None:
            for number, head in stream.heads.items():
                self._count_votes(stream, number, head)
        stream.lock(locked)
        stream.proof = proof

    def _on_fetch(self, sender: int, message: Fetch) -> None:
        stream = self._stream(message.source)
        for number in message.numbers[: self.parameters.window]:
            # Others' links only as far as a quorum signed them.
            if number not in stream.links or (number > stream.delivered and message.source != self.context.id):
                continue
            fetched = stream.fetched.get(number, 0)
            if not fetched >> sender & 1:
                stream.fetched[number] = fetched | 1 << sender
                self.send(sender, stream.links[number])


_HANDLERS: dict[type[Message], Any] = {
    Link: AmortizedNode._on_link,
    Echo: AmortizedNode._on_echo,
    Ask: AmortizedNode._on_ask,
    Pull: AmortizedNode._on_pull,
    Proof: AmortizedNode._on_proof,
    Fetch: AmortizedNode._on_fetch,
    Exposure: AmortizedNode._on_exposure,
}


@dataclass(frozen=True, kw_only=True)
class Amortized(BroadcastProtocol):
    """Reliable broadcast of streams: committees echo, and votes add up along the sender's chain.

    Parameters
    ----------
    committee : int
        Nodes that echo each link; 0 for the logarithm of their number to base 2, rounded up.  All nodes make the
        all-to-all form.
    draw : str
        How committees are drawn: ``rotation`` through random permutations, or ``hash`` of the link before.
    turns_to : str
        Whom a pausing source, and a node that is behind, ask: ``everyone``, or the newest ``committee`` alone, which
        full asynchrony defeats.
    patience_rounds : float
        How long a node waits for progress before it asks for proof; 0 for twice the time in which all nodes have been
        in a committee, and the pause.
    quorum : int
        Votes that lock; 0 for the right number.  Less is unsafe, and there to show that.

    References
    ----------
    Hu, Yao and Li, arXiv 2605.10372, 2026.
    """

    system: ClassVar[str] = "amortized-brb"
    messages: ClassVar[tuple[type[Message], ...]] = tuple(_HANDLERS)
    participant: ClassVar[type[AmortizedNode]] = AmortizedNode

    committee: int = setting(0, unit="nodes", low=0, says="Nodes that echo each link; 0 for log2 n")
    draw: str = setting("rotation", choices=DRAWS, says="How committees are drawn")
    optimistic: bool = setting(True, says="Whether all nodes are asked to echo when no link is in flight")
    turns_to: str = setting(
        "everyone", choices=TURNS, says="Which nodes are asked by a pausing source and by a node that is behind"
    )
    window: int = setting(128, unit="links", low=1, says="Links per source in flight")
    history: int = setting(1024, unit="links", low=1, says="Delivered links that are kept for other nodes")
    pause_rounds: float = setting(4.0, unit="rounds", low=0.5, says="Silence after which a source asks all nodes")
    patience_rounds: float = setting(
        0.0, unit="rounds", low=0.0, says="Wait before a node asks for proof; 0 chooses by the number of nodes"
    )
    quorum: int = setting(0, low=0, says="Votes that lock a link; 0 for the right number")
    signatures: str = setting("keyed-hash", choices=SCHEMES, says="Strength of signatures")
    key_seed: int = setting(0, low=0, says="Seed of the keys")

    def seats(self, size: int) -> int:
        """Return how many nodes echo each link."""
        return min(self.committee or max(math.ceil(math.log2(size)), 1), size)

    def patience(self, size: int) -> float:
        """Return how long a node waits for progress, in rounds."""
        return self.patience_rounds or 2 * math.ceil(size / self.seats(size)) + self.pause_rounds + 4

    def violation(self, snapshot: Snapshot) -> str:
        """Return a broken agreement or order, in words, or ""."""
        return super().violation(snapshot) or broken_order(snapshot)
