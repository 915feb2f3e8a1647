"""Small replicated stores, each built to one consistency model: the engine must put them where they belong.

From the weakest: last writer wins by skewed clocks, FIFO broadcast, causal broadcast with vector clocks, total-order
broadcast by a sequencer with local reads, quorums with and without a write-back, and a primary that does everything.

Every store is an algorithm of :mod:`wavetank.sim.node`: it is simulated, explored, given faults and launched as any
other.  A client asks the replica beside it ``("read", key)`` or ``("write", key, value)``; a register that was never
written holds None.  Links may delay, reorder and repeat messages; a message that is lost is not sent again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.node import Message, Node, Snapshot, disagreement

_Tag = tuple[float, int]
_Tagged = tuple[_Tag, Any]

_NEVER: _Tagged = ((0, -1), None)


class _Replica(Node):
    """What all replicas share: they know reads and writes."""

    def request(self, number: int, command: Any) -> None:
        """Take a client's request."""
        if not isinstance(command, tuple | list) or [*command[:1], len(command)] not in (["read", 2], ["write", 3]):
            raise BadValueError(
                "The store does not know this command.", given=command, allowed='("read", key), ("write", key, value)'
            )
        if len(command) == 2:
            self.read(number, str(command[1]))
        else:
            self.write(number, str(command[1]), command[2])

    @abstractmethod
    def read(self, number: int, key: str) -> None:
        """Read a register, now or later, and reply."""

    @abstractmethod
    def write(self, number: int, key: str, value: Any) -> None:
        """Write a register, now or later, and reply."""


class _LocalReads(_Replica):
    """A replica that answers reads alone."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def read(self, number: int, key: str) -> None:
        self.context.reply(number, self.values.get(key))


class _Tagging(_Replica):
    """A replica of which the highest tag wins; a tag names one write of one replica."""

    def __init__(self) -> None:
        self.held: dict[str, _Tagged] = {}

    def read(self, number: int, key: str) -> None:
        self.context.reply(number, self.held.get(key, _NEVER)[1])

    def keep(self, key: str, tag: _Tag, value: Any) -> None:
        """Store what is newer than what is held."""
        if self.held.get(key, _NEVER)[0] < tag:
            self.held[key] = (tag, value)


@dataclass(frozen=True, kw_only=True)
class _Store:
    """What the algorithms share."""

    messages: ClassVar[tuple[type[Message], ...]]

    def max_faults(self, size: int) -> int:
        """Return how many replicas may crash: none, unless the store says otherwise."""
        return 0


def _replicas(snapshot: Snapshot) -> Iterator[tuple[int, Any]]:
    """Yield number and state of the replicas that are not Byzantine."""
    for index, outer in enumerate(snapshot.nodes):
        if index in snapshot.correct:
            yield index, getattr(outer, "inner", outer)


def _two_values_of_a_tag(snapshot: Snapshot) -> str:
    """Return two replicas that hold different values of one tag, or ""."""
    seen: dict[tuple[str, _Tag], tuple[int, Any]] = {}
    for index, node in _replicas(snapshot):
        for key, (tag, value) in node.held.items():
            # A tag of a Byzantine replica may name anything.
            other, known = seen.setdefault((key, tag), (index, value))
            if known != value and tag[1] in snapshot.correct:
                return f"nodes {other} and {index} hold {known!r} and {value!r} of {key} under the tag {tag}"
    return ""


# Last writer wins.


class Stamped(Message, frozen=True):
    """A write and the clock of its writer."""

    stamp: float
    key: str
    value: Any


class _LastWriterWins(_Tagging):
    def __init__(self, skew_rounds: float) -> None:
        super().__init__()
        self.skew_rounds = skew_rounds

    def write(self, number: int, key: str, value: Any) -> None:
        stamp = self.context.now + self.context.id * self.skew_rounds
        self.keep(key, (stamp, self.context.id), value)
        self.context.broadcast(Stamped(stamp, key, value))
        self.context.reply(number, None)

    def receive(self, sender: int, message: Any) -> None:
        self.keep(message.key, (message.stamp, sender), message.value)


@dataclass(frozen=True, kw_only=True)
class LastWriterWinsStore(_Store):
    """Writes are stamped by the replica's own clock; the highest stamp wins everywhere, at once where it is written.

    Parameters
    ----------
    skew_rounds : float
        By how much the clock of each replica is ahead of the one before it.

    References
    ----------
    Vogels 2009; the default of several Dynamo-style stores.
    """

    skew_rounds: float = setting(
        4.0, unit="rounds", says="Lead of each replica's clock over the clock of the replica before", low=0.0
    )
    messages: ClassVar[tuple[type[Message], ...]] = (Stamped,)

    def node(self, index: int, size: int) -> Node:
        """Return a new replica."""
        return _LastWriterWins(self.skew_rounds)

    def violation(self, snapshot: Snapshot) -> str:
        """Return two replicas with different values of one stamp."""
        return _two_values_of_a_tag(snapshot)


# FIFO broadcast.


class Numbered(Message, frozen=True):
    """A write and its number among those of its writer."""

    number: int
    key: str
    value: Any


class _Fifo(_LocalReads):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.applied = [0] * size
        self.early: dict[tuple[int, int], tuple[str, Any]] = {}

    def write(self, number: int, key: str, value: Any) -> None:
        me = self.context.id
        self.values[key] = value
        self.context.broadcast(Numbered(self.applied[me], key, value))
        self.applied[me] += 1
        self.context.reply(number, None)

    def receive(self, sender: int, message: Any) -> None:
        if message.number >= self.applied[sender]:
            self.early[sender, message.number] = (message.key, message.value)
        while (entry := self.early.pop((sender, self.applied[sender]), None)) is not None:
            self.values[entry[0]] = entry[1]
            self.applied[sender] += 1


@dataclass(frozen=True, kw_only=True)
class FifoStore(_Store):
    """Every replica applies the writes of each other replica in their order, whatever it has seen of third ones (PRAM).

    References
    ----------
    R. Lipton, J. Sandberg, "PRAM: A Scalable Shared Memory", Princeton CS-TR-180-88, 1988.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (Numbered,)

    def node(self, index: int, size: int) -> Node:
        """Return a new replica."""
        return _Fifo(size)

    def violation(self, snapshot: Snapshot) -> str:
        """Return a replica that applied writes which nobody made."""
        return _ahead_of_its_writer({index: node.applied for index, node in _replicas(snapshot)})


def _ahead_of_its_writer(applied: dict[int, list[int]]) -> str:
    for writer, own in applied.items():
        for index, counts in applied.items():
            if counts[writer] > own[writer]:
                return f"node {index} applied {counts[writer]} writes of node {writer}, which made {own[writer]}"
    return ""


# Causal broadcast.


class Caused(Message, frozen=True):
    """A write, its Lamport clock, and how many writes of each replica its writer had seen."""

    needs: tuple[int, ...]
    clock: int
    key: str
    value: Any


class _Causal(_Tagging):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.seen = [0] * size
        self.clock = 0
        self.waiting: list[tuple[int, Caused]] = []

    def write(self, number: int, key: str, value: Any) -> None:
        update = Caused(tuple(self.seen), self.clock + 1, key, value)
        self._apply(self.context.id, update)
        self.context.broadcast(update)
        self.context.reply(number, None)

    def receive(self, sender: int, message: Any) -> None:
        if len(message.needs) == len(self.seen) and (sender, message) not in self.waiting:
            self.waiting.append((sender, message))
        while (ready := next((each for each in self.waiting if self._is_ready(*each)), None)) is not None:
            self.waiting.remove(ready)
            self._apply(*ready)

    def _is_ready(self, sender: int, update: Caused) -> bool:
        # A write that comes twice is never ready again: its writer's count has passed it.
        return self.seen[sender] == update.needs[sender] and all(
            have >= need for have, need in zip(self.seen, update.needs, strict=True)
        )

    def _apply(self, sender: int, update: Caused) -> None:
        self.seen[sender] += 1
        self.clock = max(self.clock, update.clock)
        self.keep(update.key, (update.clock, sender), update.value)


@dataclass(frozen=True, kw_only=True)
class CausalStore(_Store):
    """A write waits at each replica until all that its writer had seen is there; Lamport stamps settle the rest.

    References
    ----------
    Ahamad et al. 1995; with the conflict rule of W. Lloyd et al., "Don't Settle for Eventual", SOSP 2011.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (Caused,)

    def node(self, index: int, size: int) -> Node:
        """Return a new replica."""
        return _Causal(size)

    def violation(self, snapshot: Snapshot) -> str:
        """Return writes that nobody made, or two replicas with different values of one stamp."""
        seen = {index: node.seen for index, node in _replicas(snapshot)}
        return _ahead_of_its_writer(seen) or _two_values_of_a_tag(snapshot)


# Total-order broadcast.


class Submitted(Message, frozen=True):
    """A write on its way to the sequencer."""

    number: int
    key: str
    value: Any


class Ordered(Message, frozen=True):
    """A write and its place in the order of all writes."""

    place: int
    writer: int
    number: int
    key: str
    value: Any


class _Sequencer(_LocalReads):
    def __init__(self) -> None:
        super().__init__()
        self.applied = 0
        self.early: dict[int, Ordered] = {}
        # Of the sequencer: which requests of which replica have a place.
        self.placed: set[tuple[int, int]] = set()

    def write(self, number: int, key: str, value: Any) -> None:
        submitted = Submitted(number, key, value)
        if self.context.id == 0:
            self.receive(0, submitted)
        else:
            self.context.send(0, submitted)

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, Submitted):
            if self.context.id == 0 and (sender, message.number) not in self.placed:
                ordered = Ordered(len(self.placed), sender, message.number, message.key, message.value)
                self.placed.add((sender, message.number))
                self.context.broadcast(ordered)
                self._apply(ordered)
        elif sender == 0:
            self._apply(message)

    def _apply(self, ordered: Ordered) -> None:
        if ordered.place >= self.applied:
            self.early[ordered.place] = ordered
        while (entry := self.early.pop(self.applied, None)) is not None:
            self.context.decide((entry.key, entry.value), entry.place)
            self.values[entry.key] = entry.value
            self.applied += 1
            if entry.writer == self.context.id:
                self.context.reply(entry.number, None)


@dataclass(frozen=True, kw_only=True)
class SequencerStore(_Store):
    """A sequencer numbers all writes; replicas apply them in that order; reads are local, writes wait for their turn.

    References
    ----------
    Attiya and Welch 1994: sequentially consistent, with fast reads.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (Submitted, Ordered)

    def node(self, index: int, size: int) -> Node:
        """Return a new replica; the first is the sequencer."""
        return _Sequencer()

    def violation(self, snapshot: Snapshot) -> str:
        """Return two replicas that applied different writes in one place."""
        return disagreement(snapshot)


# Quorums.


class Query(Message, frozen=True):
    """What do you hold?"""

    question: int
    key: str


class Held(Message, frozen=True):
    """What a replica holds."""

    question: int
    clock: int
    writer: int
    value: Any


class Keep(Message, frozen=True):
    """Hold this, unless you hold something newer."""

    question: int
    key: str
    clock: int
    writer: int
    value: Any


class Kept(Message, frozen=True):
    """It is held, or something newer is."""

    question: int


@dataclass
class _Call:
    """A client's request under way: it asks a majority what they hold, then has a majority hold something."""

    number: int
    key: str
    value: Any
    writes: bool
    # Replica to what it holds, in the first phase; to nothing in the second.
    answers: dict[int, _Tagged]
    # What the second phase stores; None in the first.
    stored: _Tagged | None = None


class _Quorum(_Tagging):
    """A replica that keeps what it holds across a crash."""

    def __init__(self, size: int, write_back: bool) -> None:
        super().__init__()
        self.majority = size // 2 + 1
        self.write_back = write_back
        self.highest = 0
        self.asked = 0
        self.calls: dict[int, _Call] = {}
        # Key to the newest tag with which this replica answered a client, for the invariant.
        self.answered: dict[str, _Tag] = {}

    def start(self) -> None:
        self.highest, self.asked = self.context.load("highest", 0), self.context.load("asked", 0)
        self.held = {key: self.context.load(f"held {key}") for key in self.context.load("keys", ())}

    def keep(self, key: str, tag: _Tag, value: Any) -> None:
        super().keep(key, tag, value)
        if self.held[key][0] == tag:
            self.context.save("keys", tuple(self.held))
            self.context.save(f"held {key}", self.held[key])

    def read(self, number: int, key: str) -> None:
        self._query(_Call(number, key, None, False, {}))

    def write(self, number: int, key: str, value: Any) -> None:
        self._query(_Call(number, key, value, True, {}))

    def _query(self, call: _Call) -> None:
        question = self._ask(call)
        self.context.broadcast(Query(question, call.key))
        self._heard(self.context.id, question, self.held.get(call.key, _NEVER))

    def _store(self, call: _Call, entry: _Tagged) -> None:
        call.stored, call.answers = entry, {}
        (clock, writer), value = entry
        question = self._ask(call)
        self.keep(call.key, (clock, writer), value)
        self.context.broadcast(Keep(question, call.key, int(clock), writer, value))
        self._heard(self.context.id, question, entry)

    def _ask(self, call: _Call) -> int:
        self.asked += 1
        # An answer to a question from before a crash must not count for another one.
        self.context.save("asked", self.asked)
        self.calls[self.asked] = call
        return self.asked

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, Query):
            (clock, writer), value = self.held.get(message.key, _NEVER)
            self.context.send(sender, Held(message.question, int(clock), writer, value))
        elif isinstance(message, Keep):
            self.keep(message.key, (message.clock, message.writer), message.value)
            self.context.send(sender, Kept(message.question))
        elif isinstance(message, Held):
            self._heard(sender, message.question, ((message.clock, message.writer), message.value))
        else:
            self._heard(sender, message.question, _NEVER)

    def _heard(self, sender: int, question: int, entry: _Tagged) -> None:
        call = self.calls.get(question)
        if call is None:
            return
        call.answers[sender] = entry
        if len(call.answers) < self.majority:
            return
        del self.calls[question]
        if call.stored is not None:
            self.answered[call.key] = max(self.answered.get(call.key, _NEVER[0]), call.stored[0])
            self.context.reply(call.number, None if call.writes else call.stored[1])
            return
        latest = max(call.answers.values(), key=lambda held: held[0])
        if call.writes:
            # Of this replica, so that two writes through it never get the same tag.
            self.highest = max(self.highest, int(latest[0][0])) + 1
            self.context.save("highest", self.highest)
            self._store(call, ((self.highest, self.context.id), call.value))
        elif self.write_back and latest != _NEVER:
            self._store(call, latest)
        else:
            self.context.reply(call.number, latest[1])


@dataclass(frozen=True, kw_only=True)
class QuorumStore(_Store):
    """Reads and writes ask a majority; a read writes back what it is about to return.

    Replicas keep what they hold across a crash.

    Parameters
    ----------
    write_back : bool
        Without it two reads may see a write and then not see it: regular, not linearizable.

    References
    ----------
    Attiya, Bar-Noy and Dolev 1995, with several writers (N. Lynch, A. Shvartsman, 1997).
    """

    write_back: bool = setting(True, says="Whether a read first stores its result at a majority")
    messages: ClassVar[tuple[type[Message], ...]] = (Query, Held, Keep, Kept)

    def node(self, index: int, size: int) -> Node:
        """Return a new replica."""
        return _Quorum(size, self.write_back)

    def max_faults(self, size: int) -> int:
        """Return how many replicas may crash: fewer than a half."""
        return (size - 1) // 2

    def violation(self, snapshot: Snapshot) -> str:
        """Return two values of one tag, or an answered operation that no majority has stored."""
        nodes = dict(_replicas(snapshot))
        # Nobody knows what a Byzantine replica holds.
        needed = len(snapshot.nodes) // 2 + 1 - (len(snapshot.nodes) - len(nodes))
        for index, node in nodes.items():
            for key, tag in node.answered.items():
                if sum(each.held.get(key, _NEVER)[0] >= tag for each in nodes.values()) < needed:
                    return f"node {index} answered with the tag {tag} of {key}, which no majority holds"
        return _two_values_of_a_tag(snapshot)


# A primary.


class Asked(Message, frozen=True):
    """A client's request on its way to the primary."""

    number: int
    writes: bool
    key: str
    value: Any


class Done(Message, frozen=True):
    """The primary's answer."""

    number: int
    result: Any


class _Primary(_LocalReads):
    def __init__(self) -> None:
        super().__init__()
        # Of the primary: replica and request to its result, so that a request that comes twice takes effect once.
        self.results: dict[tuple[int, int], Any] = {}

    def read(self, number: int, key: str) -> None:
        self._pass_on(Asked(number, False, key, None))

    def write(self, number: int, key: str, value: Any) -> None:
        self._pass_on(Asked(number, True, key, value))

    def _pass_on(self, asked: Asked) -> None:
        if self.context.id == 0:
            self._answered(Done(asked.number, self._execute(0, asked)))
        else:
            self.context.send(0, asked)

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, Asked):
            if self.context.id == 0:
                self.context.send(sender, Done(message.number, self._execute(sender, message)))
        elif sender == 0:
            self._answered(message)

    def _execute(self, sender: int, asked: Asked) -> Any:
        if (sender, asked.number) not in self.results:
            if asked.writes:
                self.values[asked.key] = asked.value
            result = None if asked.writes else self.values.get(asked.key)
            self.results[sender, asked.number] = result
            self.context.decide(result, asked.number)
        return self.results[sender, asked.number]

    def _answered(self, done: Done) -> None:
        self.context.decide(done.result, done.number)
        self.context.reply(done.number, done.result)


@dataclass(frozen=True, kw_only=True)
class PrimaryStore(_Store):
    """One replica executes everything: linearizable, and not available to clients that are cut off from it.

    References
    ----------
    N. Budhiraja et al., "The Primary-Backup Approach", 1993; without backups, so that its crash stops everything.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (Asked, Done)

    def node(self, index: int, size: int) -> Node:
        """Return a new replica; the first is the primary."""
        return _Primary()

    def violation(self, snapshot: Snapshot) -> str:
        """Return a request that was answered otherwise than the primary executed it."""
        return disagreement(snapshot)
