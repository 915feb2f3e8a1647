"""Raft: a leader orders the requests, a majority stores them, terms distinguish old leaders from new.

A node that hears no leader for a while asks for votes; a node votes once per term, and only for a log at least as
complete as its own, so a new leader has everything that was committed.  The leader's log overwrites what differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.consensus.store import Registers, check_command
from wavetank.settings import check_parameters, setting
from wavetank.sim.node import Message, Node, Snapshot, disagreement

_NOTHING = -1
# No run gets here; a server that lies must not bring the others to a number that cannot be sent.
_LAST_TERM = 2**62


class Entry(Message, frozen=True):
    """One place of the log: a request, or nothing (number -1) to begin a term."""

    term: int
    number: int
    origin: int
    command: Any


class AskVote(Message, frozen=True):
    """A candidate asks for a vote; it says how complete its log is."""

    term: int
    last_index: int
    last_term: int


class Vote(Message, frozen=True):
    """The answer to a candidate."""

    term: int
    granted: bool


class Append(Message, frozen=True):
    """Entries that follow a place of the log; without entries a sign of life."""

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int


class Appended(Message, frozen=True):
    """How far a follower's log agrees with the leader's, or where to look for that when it does not."""

    term: int
    success: bool
    index: int


class Forward(Message, frozen=True):
    """A client's request, on its way to the leader."""

    term: int
    number: int
    command: Any


class RaftNode(Node):
    """A server."""

    def __init__(self, parameters: Raft, size: int) -> None:
        self.parameters = parameters
        self.quorum = parameters.quorum or size // 2 + 1
        self.term = 0
        self.voted_for = _NOTHING
        # log[0] stands for the empty beginning.
        self.log: list[Entry] = [Entry(0, _NOTHING, _NOTHING, None)]
        self.role = "follower"
        self.leader = _NOTHING
        self.votes: set[int] = set()
        self.commit = 0
        self.applied = 0
        self.next_index: dict[int, int] = {}
        self.match_index: dict[int, int] = {}
        self.registers = Registers()
        self.waiting: dict[int, Any] = {}

    def start(self) -> None:
        """Read what was saved and wait for a leader."""
        load = self.context.load
        self.term = load("term", 0)
        self.voted_for = load("voted for", _NOTHING)
        self.log += [load(f"log {index}") for index in range(1, load("log length", 0) + 1)]
        self._wait_for_leader()

    def request(self, number: int, command: Any) -> None:
        """Take a client's request."""
        check_command(command)
        self.waiting[number] = command
        self._submit(number, command)
        if len(self.waiting) == 1:
            self.context.set_timer("retry", self.parameters.retry_rounds)

    def timer(self, name: str) -> None:
        """Ask for votes, give a sign of life, or ask the leader again."""
        if name == "election":
            self._stand()
        elif name == "heartbeat":
            if self.role == "leader":
                for peer in self.context.peers:
                    self._replicate(peer, heartbeat=True)
                self.context.set_timer("heartbeat", self.parameters.heartbeat_rounds)
        elif self.waiting:
            for number, command in self.waiting.items():
                self._submit(number, command)
            self.context.set_timer("retry", self.parameters.retry_rounds)

    def receive(self, sender: int, message: Any) -> None:
        """React to a message; a higher term ends the present one."""
        if message.term > _LAST_TERM:
            return
        if message.term > self.term:
            self._enter_term(message.term)
        _HANDLERS[type(message)](self, sender, message)

    # Elections.

    def _wait_for_leader(self) -> None:
        wait = self.parameters.election_rounds + self.context.rng.random() * self.parameters.jitter_rounds
        self.context.set_timer("election", wait)

    def _enter_term(self, term: int) -> None:
        if self.role == "leader":
            self.context.cancel_timer("heartbeat")
            self._wait_for_leader()
        self.role = "follower"
        self.leader = _NOTHING
        self._save_term(term, _NOTHING)

    def _save_term(self, term: int, voted_for: int) -> None:
        self.term, self.voted_for = term, voted_for
        self.context.save("term", term)
        self.context.save("voted for", voted_for)

    def _stand(self) -> None:
        self._save_term(self.term + 1, self.context.id)
        self.role = "candidate"
        self.leader = _NOTHING
        self.votes = {self.context.id}
        self.context.record("elections")
        self._wait_for_leader()
        last = len(self.log) - 1
        self.context.broadcast(AskVote(self.term, last, self.log[last].term))
        self._count_votes()

    def _on_ask_vote(self, sender: int, message: AskVote) -> None:
        last = len(self.log) - 1
        granted = (
            message.term == self.term
            and self.voted_for in (_NOTHING, sender)
            and (message.last_term, message.last_index) >= (self.log[last].term, last)
        )
        if granted:
            self._save_term(self.term, sender)
            self._wait_for_leader()
        self.context.send(sender, Vote(self.term, granted))

    def _on_vote(self, sender: int, message: Vote) -> None:
        if self.role == "candidate" and message.term == self.term and message.granted:
            self.votes.add(sender)
            self._count_votes()

    def _count_votes(self) -> None:
        if len(self.votes) < self.quorum:
            return
        self.role = "leader"
        self.leader = self.context.id
        self.context.record("leaders")
        self.context.cancel_timer("election")
        self.next_index = dict.fromkeys(self.context.peers, len(self.log))
        self.match_index = dict.fromkeys(self.context.peers, 0)
        # Entries of earlier terms are committed by one of this term.
        self._store((Entry(self.term, _NOTHING, self.context.id, None),))
        for number, command in self.waiting.items():
            self._store((Entry(self.term, number, self.context.id, command),))
        for peer in self.context.peers:
            self._replicate(peer)
        self.context.set_timer("heartbeat", self.parameters.heartbeat_rounds)
        self._advance()

    # The log.

    def _submit(self, number: int, command: Any) -> None:
        if self.role == "leader":
            self._order(number, self.context.id, command)
        elif self.leader != _NOTHING:
            self.context.send(self.leader, Forward(self.term, number, command))

    def _on_forward(self, sender: int, message: Forward) -> None:
        if self.role == "leader":
            self._order(message.number, sender, message.command)

    def _order(self, number: int, origin: int, command: Any) -> None:
        if any(entry.number == number for entry in self.log[self.applied + 1 :]):
            return
        self._store((Entry(self.term, number, origin, command),))
        for peer in self.context.peers:
            self._replicate(peer)
        self._advance()

    def _store(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            self.log.append(entry)
            self.context.save(f"log {len(self.log) - 1}", entry)
        self.context.save("log length", len(self.log) - 1)

    def _replicate(self, peer: int, *, heartbeat: bool = False) -> None:
        index = self.next_index[peer]
        entries = tuple(self.log[index : index + self.parameters.batch])
        if entries or heartbeat:
            self.context.send(peer, Append(self.term, index - 1, self.log[index - 1].term, entries, self.commit))
            self.next_index[peer] = index + len(entries)

    def _on_append(self, sender: int, message: Append) -> None:
        if message.term < self.term:
            self.context.send(sender, Appended(self.term, False, 0))
            return
        if self.role == "candidate":
            self.role = "follower"
        new_leader = self.leader != sender
        self.leader = sender
        self._wait_for_leader()
        if new_leader:
            for number, command in self.waiting.items():
                self._submit(number, command)
        previous = message.previous_index
        if previous < 0 or self._contradicts_what_is_committed(message):
            # No correct leader says this; Raft does not tolerate liars, but none of them stops this server.
            return
        if previous >= len(self.log) or self.log[previous].term != message.previous_term:
            index = len(self.log) - 1
            if previous <= index:
                # Look before the whole term that differs; what is committed agrees.
                differing = self.log[previous].term
                index = previous - 1
                while index > self.commit and self.log[index].term == differing:
                    index -= 1
            self.context.send(sender, Appended(self.term, False, index))
            return
        for place, entry in enumerate(message.entries, previous + 1):
            if place < len(self.log) and self.log[place].term != entry.term:
                del self.log[place:]
            if place >= len(self.log):
                self._store(message.entries[place - previous - 1 :])
                break
        agreed = previous + len(message.entries)
        if message.commit > self.commit:
            self.commit = max(self.commit, min(message.commit, agreed))
            self._apply()
        self.context.send(sender, Appended(self.term, True, agreed))

    def _contradicts_what_is_committed(self, message: Append) -> bool:
        first = message.previous_index + 1
        known = self.log[first : self.commit + 1]
        return any(old.term != new.term for old, new in zip(known, message.entries, strict=False))

    def _on_appended(self, sender: int, message: Appended) -> None:
        if self.role != "leader" or message.term < self.term or message.index >= len(self.log):
            return
        if not message.success:
            self.next_index[sender] = max(min(message.index + 1, self.next_index[sender]), 1)
            self._replicate(sender, heartbeat=True)
            return
        if message.index > self.match_index[sender]:
            self.match_index[sender] = message.index
            self.next_index[sender] = max(self.next_index[sender], message.index + 1)
            self._advance()
        if self.next_index[sender] < len(self.log):
            self._replicate(sender)

    def _advance(self) -> None:
        matched = sorted((*self.match_index.values(), len(self.log) - 1), reverse=True)
        agreed = matched[min(self.quorum, len(matched)) - 1]
        if agreed > self.commit and self.log[agreed].term == self.term:
            self.commit = agreed
            self._apply()

    def _apply(self) -> None:
        while self.applied < self.commit:
            self.applied += 1
            entry = self.log[self.applied]
            if entry.number == _NOTHING:
                continue
            self.context.decide((entry.number, entry.command), self.applied)
            result = self.registers.apply(entry.number, entry.command)
            if self.waiting.pop(entry.number, None) is not None or entry.origin == self.context.id:
                self.context.reply(entry.number, result)
        if not self.waiting:
            self.context.cancel_timer("retry")


_HANDLERS: dict[type[Message], Any] = {
    AskVote: RaftNode._on_ask_vote,
    Vote: RaftNode._on_vote,
    Append: RaftNode._on_append,
    Appended: RaftNode._on_appended,
    Forward: RaftNode._on_forward,
}


@dataclass(frozen=True, kw_only=True)
class Raft:
    """A replicated log led by one node a term.

    Parameters
    ----------
    quorum : int
        Votes, and copies, that are enough; 0 for a majority.  Less is unsafe, and there to show that.

    References
    ----------
    Ongaro and Ousterhout, USENIX ATC 2014.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (AskVote, Vote, Append, Appended, Forward)

    election_rounds: float = setting(20.0, unit="rounds", low=1.0, says="Least silence before an election")
    jitter_rounds: float = setting(20.0, unit="rounds", low=0.0, says="Random part of the silence before an election")
    heartbeat_rounds: float = setting(4.0, unit="rounds", low=0.1, says="Time between two heartbeats")
    retry_rounds: float = setting(40.0, unit="rounds", low=1.0, says="Wait before a request is sent on again")
    batch: int = setting(64, low=1, says="Most entries per message")
    quorum: int = setting(0, low=0, says="Votes that suffice; 0 for a majority")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where="system raft")

    def node(self, index: int, size: int) -> Node:
        """Return a new server."""
        return RaftNode(self, size)

    def max_faults(self, size: int) -> int:
        """Return how many servers may crash."""
        return (size - 1) // 2

    def violation(self, snapshot: Snapshot) -> str:
        """Return which of Raft's safety properties is broken.

        One leader a term; logs that agree on the term of a place agree on all up to it; a leader of the latest term
        has every entry that is committed; one command a place of the log is applied.
        """
        leaders: dict[int, int] = {}
        servers: list[tuple[int, RaftNode]] = []
        for index, outer in enumerate(snapshot.nodes):
            node = getattr(outer, "inner", outer)
            if not isinstance(node, RaftNode):
                continue
            if index in snapshot.correct:
                servers.append((index, node))
            if node.role == "leader" and not getattr(outer, "down", False):
                other = leaders.setdefault(node.term, index)
                if other != index:
                    return f"nodes {other} and {index} both lead term {node.term}"
        return _broken_logs(servers, leaders) or disagreement(snapshot)


def _broken_logs(servers: list[tuple[int, RaftNode]], leaders: dict[int, int]) -> str:
    """Return how log matching or leader completeness is broken, or ""."""
    for place, (index, one) in enumerate(servers):
        for other_index, other in servers[place + 1 :]:
            last = min(len(one.log), len(other.log)) - 1
            while one.log[last].term != other.log[last].term:
                last -= 1
            if one.log[: last + 1] != other.log[: last + 1]:
                return f"the logs of nodes {index} and {other_index} agree on the term of place {last}, but not before"
    latest = max([node.term for _, node in servers], default=0)
    nodes = dict(servers)
    leader = leaders.get(latest, _NOTHING)
    for index, node in servers if leader in nodes else ():
        if nodes[leader].log[: node.commit + 1] != node.log[: node.commit + 1]:
            return f"node {leader} leads term {latest} without what node {index} has committed"
    return ""
