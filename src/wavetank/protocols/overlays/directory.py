"""A directory of agents over an overlay: the control plane that all overlays share.

A record says at which endpoints a capability is offered.  ``publish`` finds the nodes responsible for its key and
stores it there, ``lookup`` asks its way towards them until one has it.  The asking node does all the work: it sends
one question after the other, waits, and goes around nodes that stay silent.  An overlay only says which nodes closer to
a key it knows, and how it keeps that knowledge fresh; timeouts, limits, workload and accounting are the same for all.

Differs from the source:
1. The source names neither constants nor simulator; periods, timeouts and redundancy are parameters here, equal for all
   overlays unless somebody sets them otherwise.
2. All lookups are iterative.
3. A node's identifier follows from its number, so messages name nodes by number; bytes are counted as if every contact
   took 26 (identifier, address, port), and every message 28 of headers.
4. Nodes that stayed silent are not taken from somebody else's word again for a while; a message of theirs, or an
   answer to a question that is put to them when nobody else is left, clears them.
5. A node that has not joined yet says so when it is asked, and is passed over like a silent one, but not suspected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.identifiers import identifiers, key_of, to_wire
from wavetank.settings import check_parameters, setting
from wavetank.sim.node import Message, Node, Snapshot

PURPOSES = ("join", "stabilize", "refresh", "publish", "lookup")
JOIN, STABILIZE, REFRESH, PUBLISH, LOOKUP = range(len(PURPOSES))

REASONS = (
    "not-joined", "no-contacts", "no-route", "owners-down", "not-found", "deadline", "too-many-lookups", "store-full",
    "record-too-large",
)  # fmt: skip

# Parts of a node's state that another may ask for; numbers from 0 on are rows of a routing table.
ALIVE, RIGHT, LEFT, LEAVES, FINGERS = -1, -2, -3, -4, -5

_HEADER_BYTES = 28 + 8
_KEY_BYTES = 20
_CONTACT_BYTES = 26
_GATES = 4

_FRESH, _ASKED, _ANSWERED, _SILENT, _DOUBTED = range(5)


class Find(Message, frozen=True):
    """Asks whom the other knows close to a key and, with ``fetch``, for the record itself."""

    rpc: int
    target: bytes
    fetch: bool
    purpose: int


class Nodes(Message, frozen=True):
    """The answer: contacts, best first; with ``done`` they are the nodes responsible for the key."""

    rpc: int
    contacts: tuple[int, ...]
    done: bool
    endpoints: tuple[str, ...]
    purpose: int


class Store(Message, frozen=True):
    """Asks to keep a record for ``ttl`` rounds."""

    rpc: int
    target: bytes
    endpoint: str
    ttl: float
    purpose: int


class Stored(Message, frozen=True):
    """The answer: empty, or why the record was refused."""

    rpc: int
    refused: str
    purpose: int


class Ask(Message, frozen=True):
    """Asks for a part of the other's state."""

    rpc: int
    part: int
    purpose: int


class State(Message, frozen=True):
    """The answer: nodes; -1 stands for none."""

    rpc: int
    part: int
    nodes: tuple[int, ...]
    purpose: int


class Outside(Message, frozen=True):
    """The answer of a node that has not joined, to a question or a request for its state: ask somebody else."""

    rpc: int
    purpose: int


class Notify(Message, frozen=True):
    """Says that the sender is there; nobody answers."""

    purpose: int


class Outcome(Message, frozen=True):
    """What a request came to.

    Parameters
    ----------
    status : str
        ``found``, ``published`` or ``failed``.
    reason : str
        One of :data:`REASONS`; empty unless it failed.
    endpoints : tuple of str
        Where the capability is offered, sorted.
    hops : int
        Nodes asked one after the other up to the one whose answer ended it.
    asked, timeouts : int
        Questions in all, and those that nobody answered in time.
    owners : tuple of int
        The nodes found responsible, closest first; those that stored the record, for a publication.
    trace : tuple
        ``(round, node, what happened)``, for a request that asked for it.
    """

    status: str
    reason: str = ""
    endpoints: tuple[str, ...] = ()
    hops: int = 0
    asked: int = 0
    timeouts: int = 0
    owners: tuple[int, ...] = ()
    trace: tuple[tuple[float, int, str], ...] = ()


@dataclass(slots=True)
class Lookup:
    """A search under way.

    Parameters
    ----------
    kind : int
        Its purpose, as an index of :data:`PURPOSES`.
    target : int
        What is looked for.
    number : int
        The request it answers, -1 for none.
    endpoint : str
        What to store at the end.
    detail : int
        What the overlay wants to know when it is over.
    """

    kind: int
    target: int
    wire: bytes
    fetch: bool
    began: float
    serial: int = 0
    number: int = -1
    endpoint: str = ""
    ttl: float = 0.0
    detail: int = -1
    traced: bool = False
    over: bool = False
    order: list[tuple[int, int]] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)
    owners: tuple[int, ...] | None = None
    flying: int = 0
    hops: int = 0
    asked: int = 0
    timeouts: int = 0
    stores: int = 0
    stored: list[int] = field(default_factory=list)
    refused: str = ""
    trace: list[tuple[float, int, str]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Directory(ABC):
    """Parameters that all overlays share.

    Parameters
    ----------
    bootstraps : int
        Nodes 0 to ``bootstraps - 1`` are known to those who join; four of them, drawn at random, are asked at once.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (
        Find, Nodes, Store, Stored, Ask, State, Outside, Notify, Outcome,
    )  # fmt: skip

    redundancy: int = setting(16, low=1, high=256, says="Number of successors or leaves, or size of a bucket")
    replicas: int = setting(4, low=1, high=64, says="Nodes that keep each record")
    parallel: int = setting(3, low=1, high=32, says="Queries of a lookup in flight at once, in Kademlia")
    stabilize_rounds: float = setting(10.0, unit="rounds", low=1.0, says="Time between two checks of the nearest nodes")
    refresh_rounds: float = setting(
        20.0, unit="rounds", low=1.0, says="Time between two refreshes of parts of the table"
    )
    republish_rounds: float = setting(
        40.0, unit="rounds", low=1.0, says="Time between two publications of a node's own agents"
    )
    ttl_rounds: float = setting(120.0, unit="rounds", low=1.0, says="Lifetime of a record")
    timeout_rounds: float = setting(2.0, unit="rounds", low=0.1, says="Time after which a query is given up")
    deadline_rounds: float = setting(60.0, unit="rounds", low=1.0, says="Time after which a lookup is given up")
    suspect_rounds: float = setting(
        20.0, unit="rounds", low=0.0, says="Time for which a silent node is believed in person only"
    )
    bootstraps: int = setting(65536, low=1, says="Nodes that joining nodes know")
    store_keys: int = setting(4096, low=1, says="Most keys that a node keeps for others")
    endpoints_per_key: int = setting(64, low=1, says="Most endpoints per key")
    record_bytes: int = setting(512, unit="bytes", low=1, high=8192, says="Largest endpoint of a record")
    lookups: int = setting(256, low=1, says="Lookups in flight at one node")
    salt: int = setting(0, says="Name of the network; identifiers follow from it")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where=f"system {type(self).__name__.lower()}")
        if self.ttl_rounds < self.republish_rounds:
            raise BadValueError(
                "Records end before they are published again.",
                given=self.ttl_rounds,
                allowed=f"ttl_rounds of at least republish_rounds, {self.republish_rounds:g}",
            )

    @abstractmethod
    def node(self, index: int, size: int) -> Node:
        """Return a new node."""

    def example_command(self, number: int) -> tuple[str, ...]:
        """Return what a client may ask: agents are published and looked up in turn."""
        key = f"agent-{number // 2}"
        return ("lookup", key) if number % 2 else ("publish", key, f"10.0.0.{number // 2 % 256}:7000")

    def max_faults(self, size: int) -> int:
        """Return how many nodes may crash at once without a record being lost."""
        return min(self.replicas, size) - 1

    def violation(self, snapshot: Snapshot) -> str:
        """Return which node holds more than its limits allow, or ""."""
        for index, outer in enumerate(snapshot.nodes):
            node = getattr(outer, "inner", outer)
            if not isinstance(node, DirectoryNode):
                continue
            if len(node.store) > self.store_keys:
                return f"node {index} keeps {len(node.store)} keys, allowed are {self.store_keys}"
            # The search of its own place is let through in any case.
            if sum(lookup.kind != JOIN for lookup in node.lookups.values()) > self.lookups:
                return f"node {index} has {len(node.lookups)} lookups under way, allowed are {self.lookups}"
        return ""


class DirectoryNode(Node, ABC):
    """A node of the directory; overlays say whom they know and how they keep it fresh.

    Attributes
    ----------
    joined : bool
        Whether it is part of the overlay.
    store : dict
        Key to endpoint to the round in which it ends.
    sent, sent_bytes : list of int
        Messages and bytes, by purpose.
    """

    # How many of the closest have to answer before a search ends without anybody being responsible; 0 for all known.
    convergence = 0
    parallel = 1
    # Whether a node is a member without joining.
    is_always_joined = False

    def __init__(self, parameters: Directory, index: int, size: int) -> None:
        self.parameters = parameters
        self.own = index
        self.size = size
        self.ids = identifiers(parameters.salt, size)
        self.id = self.ids[index]
        self.joined = self.is_always_joined
        self.store: dict[int, dict[str, float]] = {}
        self.waiting: dict[int, tuple[float, int, int, Lookup | None, int]] = {}
        self.lookups: dict[int, Lookup] = {}
        self.suspected: dict[int, float] = {}
        self.count = 0
        self.searches = 0
        # Searches that wait until this node is a member.
        self.held: list[Lookup] = []
        self.armed = False
        self.sent = [0] * len(PURPOSES)
        self.sent_bytes = [0] * len(PURPOSES)

    # What an overlay says.

    @abstractmethod
    def answer(self, target: int) -> tuple[tuple[int, ...], bool]:
        """Return contacts for a key, best first, and whether they are the nodes responsible for it."""

    @abstractmethod
    def rank(self, node: int, target: int) -> int:
        """Return how far a node is from a key; the lowest is asked first."""

    @abstractmethod
    def learn(self, node: int) -> None:
        """Take a node into the table if it belongs there."""

    @abstractmethod
    def forget(self, node: int) -> None:
        """Take a silent node out of the table."""

    @abstractmethod
    def known(self) -> set[int]:
        """Return the nodes in the table."""

    def stabilize(self) -> None:
        """Look at the nearest nodes; called once per period."""

    def refresh(self) -> None:
        """Look at one more part of the table; called once per period."""

    def heard(self, node: int) -> None:
        """Called for every message."""

    def notified(self, node: int, purpose: int) -> None:
        """Called when a node says that it is there."""

    def inherits(self, node: int, key: int) -> bool:
        """Return whether a newcomer should keep a key that this node keeps, and this node is to hand it over."""
        return False

    def hands_over(self, newcomer: int, others: Collection[int], distance: Callable[[int], int]) -> bool:
        """Return whether a newcomer is among the nodes at the least distance, and this one the first of the others."""
        near = sorted({self.own, newcomer, *others}, key=distance)[: self.parameters.replicas]
        return newcomer in near and next((other for other in near if other != newcomer), -1) == self.own

    def part(self, part: int, node: int) -> tuple[int, ...]:
        """Return what ``node`` asks for."""
        return ()

    def part_received(self, node: int, part: int, nodes: tuple[int, ...]) -> None:
        """Called with the answer to an :class:`Ask`."""

    def settled(self, lookup: Lookup) -> None:
        """Called when the search of a refresh is over and ``lookup.owners`` is known."""

    def welcomed(self) -> None:
        """Called when a member has answered the search of one's own identifier, before that is over."""

    def enters(self, lookup: Lookup) -> bool:
        """Take in what the search of one's own identifier has found; return whether that makes a member.

        An overlay that has to ask more calls :meth:`enter` itself.
        """
        return True

    # Lives.

    def start(self) -> None:
        """Arm the periods; join unless the table was given."""
        context = self.context
        # A new incarnation must not take answers meant for the last one.
        self.count = context.rng.below(2**40)
        every = self.parameters
        for name, period in (
            ("stabilize", every.stabilize_rounds),
            ("refresh", every.refresh_rounds),
            ("republish", every.republish_rounds),
        ):
            context.set_timer(name, 1.0 + context.rng.random() * (period - 1.0))
        if not self.joined:
            self._join()
        context.save("member", True)
        if self.is_always_joined:
            # What was published before a crash.
            self._republish()

    def _join(self) -> None:
        if self.joined:
            return
        late = [each for each in self.held if self.context.now - each.began >= self.parameters.deadline_rounds]
        self.held = [each for each in self.held if each not in late]
        for lookup in late:
            self._over(lookup, "not-joined")
        if self.own == 0 and not self.context.load("member", False):
            self.joined = True
            return
        self.context.set_timer("join", self.parameters.deadline_rounds)
        self._search(self._new(JOIN, self.id), first=self._gates())

    def _gates(self) -> tuple[int, ...]:
        """Return whom to ask for the way in."""
        if not self.context.load("member", False):
            # Until the overlay stands, only its founder knows the way in.
            return (0,)
        # Some are down, or outside themselves: one alone would let churn lock everyone out.
        known = min(self.parameters.bootstraps, self.size)
        gates = {self.context.rng.below(known) for _ in range(_GATES)}
        # A node that has only lost its place still knows members.
        gates.update(sorted(self.known(), key=lambda node: self.rank(node, self.id))[:_GATES])
        return tuple(sorted(gates - {self.own})) or ((self.own + 1) % self.size,)

    def request(self, number: int, command: Any) -> None:
        """Publish or look up: ``("publish", key, endpoint)``, ``("lookup", key)`` or ``("trace", key)``."""
        action, key, value = _checked(command)
        if action == "publish":
            if not isinstance(value, str) or len(value.encode()) > self.parameters.record_bytes:
                self.context.reply(number, Outcome("failed", "record-too-large"))
                return
            agents = dict(self.context.load("agents", ()))
            agents[key] = value
            self.context.save("agents", tuple(sorted(agents.items())))
            self.publish(key, value, number)
            return
        lookup = self._new(LOOKUP, key_of(key), number=number, fetch=True, traced=action == "trace")
        self._search(lookup)

    def publish(self, key: str, endpoint: str, number: int = -1) -> None:
        """Store a record at the nodes responsible for it."""
        lookup = self._new(PUBLISH, key_of(key), number=number, endpoint=endpoint, ttl=self.parameters.ttl_rounds)
        self._search(lookup)

    def timer(self, name: str) -> None:
        """Look after the table, the agents, and questions that nobody answered."""
        every = self.parameters
        if name == "timeouts":
            self._expire()
        elif name == "stabilize":
            self.context.set_timer(name, every.stabilize_rounds)
            now = self.context.now
            if self.suspected:
                self.suspected = {node: until for node, until in self.suspected.items() if until > now}
            if self.joined:
                self.stabilize()
        elif name == "refresh":
            self.context.set_timer(name, every.refresh_rounds)
            if self.joined:
                self.refresh()
        elif name == "republish":
            self.context.set_timer(name, every.republish_rounds)
            self._clean()
            if self.joined:
                self._republish()
        else:
            self._join()

    def _republish(self) -> None:
        for key, endpoint in self.context.load("agents", ()):
            self.publish(key, endpoint)

    def receive(self, sender: int, message: Any) -> None:
        """Answer a question, or take an answer in."""
        kind = type(message)
        if not 0 <= message.purpose < len(PURPOSES) or (kind in (Find, Store) and len(message.target) != _KEY_BYTES):
            # Over sockets anything may come in.
            return
        if self.suspected:
            self.suspected.pop(sender, None)
        self.heard(sender)
        if kind is Find:
            target = int.from_bytes(message.target, "big")
            endpoints = self._held(target) if message.fetch else ()
            if not self.joined and not endpoints:
                # A newcomer can neither let anybody in nor say what is around it.
                self._send(sender, Outside(message.rpc, message.purpose), message.purpose, _HEADER_BYTES)
                return
            contacts, done = self.answer(target) if not endpoints else ((), False)
            size = _HEADER_BYTES + _CONTACT_BYTES * len(contacts) + sum(map(len, endpoints))
            self._send(sender, Nodes(message.rpc, contacts, done, endpoints, message.purpose), message.purpose, size)
            if message.purpose == JOIN and self.store:
                self._hand_over(sender)
        elif kind is Notify:
            self.notified(sender, message.purpose)
            if message.purpose == JOIN and self.store:
                self._hand_over(sender)
        elif kind is Ask:
            if not self.joined:
                # An empty list would pass for all there is.
                self._send(sender, Outside(message.rpc, message.purpose), message.purpose, _HEADER_BYTES)
                return
            nodes = self.part(message.part, sender)
            size = _HEADER_BYTES + _CONTACT_BYTES * len(nodes)
            self._send(sender, State(message.rpc, message.part, nodes, message.purpose), message.purpose, size)
        elif kind is Store:
            refused = self.keep(int.from_bytes(message.target, "big"), message.endpoint, message.ttl)
            self._send(sender, Stored(message.rpc, refused, message.purpose), message.purpose, _HEADER_BYTES)
        else:
            self._answered(sender, message, kind)

    def _answered(self, sender: int, message: Any, kind: type) -> None:
        waiting = self.waiting.get(message.rpc)
        if waiting is None or waiting[1] != sender:
            return
        del self.waiting[message.rpc]
        lookup = waiting[3]
        if kind is State:
            if waiting[4] == message.part:
                self.part_received(sender, message.part, message.nodes)
        elif kind is Outside:
            self.forget(sender)
            if lookup is not None and not lookup.over and waiting[4] == LOOKUP:
                if lookup.traced:
                    lookup.trace.append((self.context.now, sender, "outside"))
                self._passed_over(lookup, sender)
        elif lookup is None or lookup.over:
            pass
        elif kind is Nodes:
            self._found(lookup, sender, message)
        elif kind is Stored:
            self._kept(lookup, sender, message.refused)

    # Questions and their timeouts.

    def ask(self, node: int, part: int, purpose: int) -> None:
        """Ask for a part of a node's state; :meth:`part_received` gets it, :meth:`forget` is called without it."""
        self._call(node, Ask(self.count + 1, part, purpose), purpose, _HEADER_BYTES, None, part)

    def notify(self, node: int, purpose: int) -> None:
        """Notify a node that this one is there."""
        self._send(node, Notify(purpose), purpose, _HEADER_BYTES)

    def _call(self, to: int, message: Message, purpose: int, size: int, lookup: Lookup | None, part: int) -> None:
        self.count += 1
        wait = self.parameters.timeout_rounds
        self.waiting[self.count] = (self.context.now + wait, to, purpose, lookup, part)
        if not self.armed:
            self.armed = True
            self.context.set_timer("timeouts", wait)
        self._send(to, message, purpose, size)

    def _send(self, to: int, message: Message, purpose: int, size: int) -> None:
        self.sent[purpose] += 1
        self.sent_bytes[purpose] += size
        self.context.send(to, message)

    def _expire(self) -> None:
        now = self.context.now
        self.armed = False
        # All questions wait equally long, so they run out in the order in which they were asked.
        late = dict(takewhile(lambda item: item[1][0] <= now, self.waiting.items()))
        for rpc in late:
            del self.waiting[rpc]
        for _, node, _, lookup, part in late.values():
            self.suspected[node] = now + self.parameters.suspect_rounds
            self.forget(node)
            if lookup is not None and not lookup.over:
                lookup.timeouts += 1
                if lookup.traced:
                    lookup.trace.append((now, node, "silent"))
                if part == LOOKUP:
                    self._passed_over(lookup, node)
                else:
                    self._kept(lookup, node, "owners-down")
        if self.waiting and not self.armed:
            self.armed = True
            first = next(iter(self.waiting.values()))[0]
            self.context.set_timer("timeouts", max(first - now, 1e-6))

    def _passed_over(self, lookup: Lookup, node: int) -> None:
        lookup.flying -= 1
        lookup.states[node] = _SILENT
        self._advance(lookup)

    # Searches.

    def look(self, kind: int, target: int, detail: int = -1) -> None:
        """Search the nodes responsible for an identifier; :meth:`settled` gets them."""
        self._search(self._new(kind, target, detail=detail))

    def _new(self, kind: int, target: int, *, fetch: bool = False, **fields: Any) -> Lookup:
        return Lookup(kind, target, to_wire(target), fetch, self.context.now, **fields)

    def _search(self, lookup: Lookup, first: Sequence[int] = ()) -> None:
        # Those held wait for this node to come in: they must not keep it out.
        if lookup.kind != JOIN and len(self.lookups) + len(self.held) >= self.parameters.lookups:
            self._over(lookup, "too-many-lookups")
            return
        if not self.joined and not first:
            # A newcomer asks as soon as it is a member.
            self.held.append(lookup)
            return
        self.searches += 1
        lookup.serial = self.searches
        self.lookups[lookup.serial] = lookup
        if first:
            self._merge(lookup, first, 1)
            # One after the other, a newcomer would wait through most of a short session for those that are down.
            for _, node in lookup.order:
                self._question(lookup, node)
        else:
            if lookup.fetch:
                endpoints = self._held(lookup.target)
                if endpoints:
                    self._over(lookup, "", endpoints)
                    return
            contacts, done = self.answer(lookup.target)
            if done:
                self._settle(lookup, contacts, 0)
                return
            self._merge(lookup, contacts, 1)
        if not lookup.order:
            self._over(lookup, "no-contacts")
            return
        self._advance(lookup)

    def _merge(self, lookup: Lookup, contacts: Iterable[int], depth: int) -> None:
        states, target, order = lookup.states, lookup.target, lookup.order
        for node in contacts:
            if node not in states and node != self.own and 0 <= node < self.size:
                states[node] = _DOUBTED if node in self.suspected else _FRESH
                lookup.depths[node] = depth
                insort(order, (self.rank(node, target), node))

    def _found(self, lookup: Lookup, sender: int, message: Nodes) -> None:
        lookup.flying -= 1
        lookup.states[sender] = _ANSWERED
        depth = lookup.depths[sender]
        if lookup.traced:
            said = "record" if message.endpoints else "owners" if message.done else f"{len(message.contacts)} contacts"
            lookup.trace.append((self.context.now, sender, said))
        if message.endpoints:
            lookup.hops = depth
            self._over(lookup, "", message.endpoints)
            return
        if lookup.kind == JOIN:
            self.learn(sender)
            if not self.joined:
                self.welcomed()
        if message.done and lookup.owners is None and message.contacts:
            self._settle(lookup, message.contacts, depth)
            return
        if lookup.owners is None:
            self._merge(lookup, message.contacts, depth + 1)
        self._advance(lookup)

    def _advance(self, lookup: Lookup) -> None:
        if lookup.stores:
            # A late answer: the record is on its way to those responsible.
            return
        if self.context.now - lookup.began >= self.parameters.deadline_rounds:
            self._over(lookup, "deadline")
            return
        if lookup.owners is not None:
            self._visit(lookup)
            return
        states = lookup.states
        width = self.convergence or len(lookup.order)
        wanted = self.parallel - lookup.flying
        pending = False
        for _, node in lookup.order:
            state = states[node]
            if state in (_SILENT, _DOUBTED):
                continue
            if state != _ANSWERED:
                pending = True
                if state == _FRESH:
                    if wanted <= 0:
                        break
                    wanted -= 1
                    self._question(lookup, node)
            width -= 1
            if not width:
                break
        if not pending:
            self._converged(lookup)

    def _converged(self, lookup: Lookup) -> None:
        """Everybody close has answered, and nobody claimed that the key is settled."""
        answered = _ANSWERED in lookup.states.values()
        if not (self.convergence and answered):
            if self.joined and self._again(lookup):
                return
            doubted = next((node for _, node in lookup.order if lookup.states[node] == _DOUBTED), -1)
            if doubted >= 0:
                # Nobody else is left, and it may have come back.
                self._question(lookup, doubted)
                return
        if not self.convergence:
            self._over(lookup, "no-route" if answered else "no-contacts")
            return
        live = [entry for entry in lookup.order if lookup.states[entry[1]] == _ANSWERED]
        if lookup.kind != JOIN and self.joined:
            insort(live, (self.rank(self.own, lookup.target), self.own))
        if not live:
            self._over(lookup, "no-contacts")
            return
        nodes = tuple(node for _, node in live[: self.convergence])
        self._settle(lookup, nodes, max((lookup.depths.get(node, 0) for node in nodes), default=0))

    def _again(self, lookup: Lookup) -> bool:
        """Go on from this node's own table, which the silent have left; return whether it names anybody new."""
        contacts, done = self.answer(lookup.target)
        if done and lookup.kind != JOIN:
            self._settle(lookup, contacts, 0)
            return True
        known = len(lookup.order)
        self._merge(lookup, contacts, 1)
        if len(lookup.order) == known:
            return False
        self._advance(lookup)
        return True

    def _question(self, lookup: Lookup, node: int) -> None:
        lookup.states[node] = _ASKED
        lookup.flying += 1
        lookup.asked += 1
        message = Find(self.count + 1, lookup.wire, lookup.fetch, lookup.kind)
        self._call(node, message, lookup.kind, _HEADER_BYTES + _KEY_BYTES, lookup, LOOKUP)

    def _settle(self, lookup: Lookup, owners: tuple[int, ...], depth: int) -> None:
        lookup.owners = owners = tuple(node for node in owners if 0 <= node < self.size)
        lookup.hops = depth
        if lookup.fetch:
            for node in owners:
                if node not in lookup.states:
                    doubted = _DOUBTED if node in self.suspected else _FRESH
                    lookup.states[node] = _ANSWERED if node == self.own else doubted
                    lookup.depths[node] = depth + 1
            self._visit(lookup)
        elif lookup.kind == PUBLISH:
            self._spread(lookup)
        else:
            self._over(lookup, "")

    def _visit(self, lookup: Lookup) -> None:
        """Ask those responsible for the record, one after the other."""
        if lookup.flying:
            return
        owners = lookup.owners or ()
        for wanted in (_FRESH, _DOUBTED):
            for node in owners:
                if lookup.states[node] == wanted:
                    self._question(lookup, node)
                    return
        silent = all(lookup.states[node] == _SILENT for node in owners)
        self._over(lookup, "owners-down" if silent else "not-found")

    def _spread(self, lookup: Lookup) -> None:
        keepers = (lookup.owners or ())[: self.parameters.replicas]
        if not keepers:
            self._over(lookup, "no-route")
            return
        lookup.stores = len(keepers)
        size = _HEADER_BYTES + _KEY_BYTES + 4 + len(lookup.endpoint)
        for node in keepers:
            if node == self.own:
                self._kept(lookup, node, self.keep(lookup.target, lookup.endpoint, lookup.ttl))
            else:
                message = Store(self.count + 1, lookup.wire, lookup.endpoint, lookup.ttl, PUBLISH)
                self._call(node, message, PUBLISH, size, lookup, PUBLISH)

    def _kept(self, lookup: Lookup, node: int, refused: str) -> None:
        lookup.stores -= 1
        if refused:
            lookup.refused = refused
        else:
            lookup.stored.append(node)
        if lookup.stores == 0:
            self._over(lookup, "" if lookup.stored else lookup.refused)

    def _over(self, lookup: Lookup, reason: str, endpoints: tuple[str, ...] = ()) -> None:
        lookup.over = True
        self.lookups.pop(lookup.serial, None)
        if lookup.kind == JOIN:
            self._joined(lookup, reason)
        elif lookup.kind == REFRESH and not reason:
            self.settled(lookup)
        if lookup.number >= 0:
            status = "failed" if reason else "found" if lookup.fetch else "published"
            owners = tuple(lookup.stored) if lookup.kind == PUBLISH else lookup.owners or ()
            counts = (lookup.hops, lookup.asked, lookup.timeouts)
            self.context.reply(lookup.number, Outcome(status, reason, endpoints, *counts, owners, tuple(lookup.trace)))

    def _joined(self, lookup: Lookup, reason: str) -> None:
        if self.joined:
            return
        if reason:
            self.context.set_timer("join", self.parameters.timeout_rounds)
            return
        if self.enters(lookup):
            self.enter()
        else:
            self.context.set_timer("join", 2 * self.parameters.timeout_rounds)

    def enter(self) -> None:
        """Become part of the overlay, and publish what this node offers."""
        self.context.cancel_timer("join")
        self.joined = True
        held, self.held = self.held, []
        for lookup in held:
            self._search(lookup)
        self._republish()

    # Records of others.

    def keep(self, key: int, endpoint: str, ttl: float) -> str:
        """Keep a record; return why not, or ""."""
        limits = self.parameters
        if len(endpoint.encode()) > limits.record_bytes:
            return "record-too-large"
        kept = self.store.get(key)
        if kept is None:
            if len(self.store) >= limits.store_keys:
                self._clean()
                if len(self.store) >= limits.store_keys:
                    return "store-full"
            kept = self.store[key] = {}
        elif endpoint not in kept and len(kept) >= limits.endpoints_per_key:
            kept = self.store[key] = self._live(key)
            if len(kept) >= limits.endpoints_per_key:
                return "store-full"
        kept[endpoint] = self.context.now + min(ttl, limits.ttl_rounds)
        return ""

    def _hand_over(self, newcomer: int) -> None:
        for key in self.store:
            for endpoint, until in self._live(key).items() if self.inherits(newcomer, key) else ():
                message = Store(self.count + 1, to_wire(key), endpoint, until - self.context.now, PUBLISH)
                size = _HEADER_BYTES + _KEY_BYTES + 4 + len(endpoint)
                self._call(newcomer, message, PUBLISH, size, None, PUBLISH)

    def _live(self, key: int) -> dict[str, float]:
        """Return the endpoints of a key whose time is not over, and when each ends."""
        kept, now = self.store.get(key), self.context.now
        return {endpoint: until for endpoint, until in kept.items() if until > now} if kept else {}

    def _held(self, key: int) -> tuple[str, ...]:
        return tuple(sorted(self._live(key)))

    def _clean(self) -> None:
        for key in list(self.store):
            kept = self._live(key)
            if kept:
                self.store[key] = kept
            else:
                del self.store[key]


def _checked(command: Any) -> tuple[str, str, Any]:
    if (
        not isinstance(command, tuple | list)
        or not 2 <= len(command) <= 3
        or command[0] not in ("publish", "lookup", "trace")
        or not isinstance(command[1], str)
    ):
        raise BadValueError(
            "A request to a directory is to publish or to look up.",
            given=command,
            allowed='("publish", key, endpoint), ("lookup", key) or ("trace", key)',
        )
    action, key, *rest = command
    return action, key, rest[0] if rest else None


def inner_node(node: Node) -> DirectoryNode:
    """Return the directory's node inside one that has faults.

    Raises
    ------
    BadValueError
        If there is none.
    """
    found = getattr(node, "inner", node)
    if not isinstance(found, DirectoryNode):
        raise BadValueError(
            "This is not a node of a directory.", given=type(found).__name__, allowed="an overlay's node"
        )
    return found
