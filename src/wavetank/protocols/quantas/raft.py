"""Raft as QUANTAS runs it: a leader copies one request at a time, and a node that hears nothing stands for election.

There is no log: a request is committed when a majority has answered, and the leader announces it to all.  Nodes keep
what clients ask, pass it to the leader they know, and pass it on again when the leader changes.
:mod:`wavetank.protocols.consensus.raft` is the full protocol; this is the variant whose messages QUANTAS counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.protocols.quantas.rounds import geometric
from wavetank.protocols.quantas.series import BoxNode, QuantasAlgorithm, algorithm_nodes, running_count, running_total
from wavetank.settings import setting
from wavetank.sim.node import Message, Node
from wavetank.sim.simulation import Run

_FIRST_TIMEOUT, _FIRST_JITTER = 100, 5


class Ask(Message, frozen=True):
    """A client's request on its way to a leader; ``known`` is the leader it was passed to before, or -1."""

    key: int
    known: int


class Replicate(Message, frozen=True):
    """The leader's request to all."""

    term: int
    key: int


class Stored(Message, frozen=True):
    """The answer to :class:`Replicate`."""

    key: int


class Committed(Message, frozen=True):
    """The leader's announcement to all; rounds of start and end of the replication."""

    term: int
    key: int
    begun: float
    done: float


class Elect(Message, frozen=True):
    """A candidate asks for votes."""

    term: int


class Vote(Message, frozen=True):
    """A vote for the receiver."""


class QuantasRaftNode(BoxNode):
    """A server.

    Attributes
    ----------
    leader : int
        The leader it knows; -1 for none.
    confirmed : list of (float, float)
        Round and latency of every commit it heard of.
    """

    def __init__(self, algorithm: QuantasRaft, index: int, size: int) -> None:
        self.id = index
        self.quorum = size // 2 + 1
        self.algorithm = algorithm
        self.leader = 0
        self.term = 0
        self.votes: set[int] = set()
        self.answers: set[int] = set()
        self.known: set[int] = set()
        self.committed: set[int] = set()
        # What clients ask, with the leader it was passed to; what the leader will replicate.
        self.deferred: dict[int, int] = {}
        # Which of them are new since they were last looked through, and whether the leader is.
        self.fresh: list[int] = []
        self.moved = False
        self.pending: dict[int, None] = {}
        self.in_flight = -1
        self.begun = 0.0
        self.asked = 0
        self.size = size
        self.confirmed: list[tuple[float, float]] = []
        self.elections: list[float] = []
        # Since when the timeout counts, and its end once the jitter is drawn.
        self.heard = 0.0
        self.drawn_for = -1.0
        self.deadline = 0.0
        self.submit_at = 0.0

    def start(self) -> None:
        """Wait for a leader, and for clients."""
        self.drawn_for = 0.0
        self.deadline = _FIRST_TIMEOUT + float(self.context.rng.below(_FIRST_JITTER))
        self.context.set_timer("timeout", self.deadline)
        if self.algorithm.submit_rate > 0:
            self._await_client(0)

    def _await_client(self, less: int) -> None:
        context = self.context
        after = geometric(context.rng, 1 / self.algorithm.submit_rate) - less
        self.submit_at = context.now + after
        if after:
            context.set_timer("client", after)
        else:
            self._serve_client()

    def _serve_client(self) -> None:
        """Take a request of a client, and wait for the next one."""
        key = self._new_request()
        leader = self.leader
        waits = leader < 0 or leader == self.id or self.fresh or self.moved
        if waits or key in self.known or key in self.committed:
            self._ask(key)
            self._await_client(0)
        else:
            self.known.add(key)
            self.deferred[key] = leader
            self._await_client(0)
            self.context.send(leader, Ask(key, -1))

    def timer(self, name: str) -> None:
        """A client asks, or nothing was heard for too long."""
        context = self.context
        if name == "client":
            if context.now > self.submit_at:
                # This node stood still when the draw would have succeeded; tries begin again with this round.
                self._await_client(1)
            else:
                self._serve_client()
        else:
            self._look_at_clock()
        if self.fresh or self.moved:
            self._forward()

    def request(self, number: int, command: Any) -> None:
        """Take a request of a client; the command is the request's key."""
        self._ask(command)
        if self.fresh or self.moved:
            self._forward()

    def receive_all(self, box: Sequence[tuple[int, Any]]) -> None:
        """Handle all messages of a round, then pass on what waits."""
        context, me, known = self.context, self.id, self.known
        for sender, message in box:
            kind = type(message)
            if kind is Ask:
                # Most messages: a request that is known, or reaches a leader that has nothing else to take on.
                key = message.key
                if self.leader != me:
                    if key not in known:
                        known.add(key)
                        self.deferred[key] = message.known
                        self.fresh.append(key)
                elif self.deferred or self.fresh or self.moved:
                    self._ask(key, message.known)
                else:
                    if key not in known:
                        known.add(key)
                        if key not in self.committed:
                            self.pending[key] = None
                    if self.in_flight < 0:
                        self._replicate()
            elif kind is Stored:
                if message.key == self.in_flight and self.leader == me:
                    answers = self.answers
                    answers.add(sender)
                    if len(answers) >= self.quorum:
                        self._commit()
            elif kind is Replicate:
                term = message.term
                if self.term <= term:
                    self.term = term
                    if self.leader != sender:
                        self.leader = sender
                        self.moved = True
                        self.in_flight = -1
                    if self.votes:
                        self.votes = set()
                    self.heard = context.now
                key = message.key
                if key not in known:
                    known.add(key)
                    self.deferred[key] = -1
                    self.fresh.append(key)
                context.send(sender, Stored(key))
            elif kind is Committed:
                if message.term > self.term:
                    self.term = message.term
                key = message.key
                self.committed.add(key)
                self.deferred.pop(key, None)
                if self.pending:
                    self.pending.pop(key, None)
                self.confirmed.append((context.now, message.done - message.begun))
                context.decide(key, key)
            elif kind is Elect:
                self._vote(sender, message.term)
            elif self.leader != me:
                self.votes.add(sender)
                if len(self.votes) >= self.quorum:
                    self._lead()
        if self.fresh or self.moved:
            self._forward()

    def _new_request(self) -> int:
        self.asked += 1
        return (self.asked - 1) * self.size + self.id

    def _ask(self, key: int, known: int = -1) -> None:
        if key not in self.known:
            self.known.add(key)
            self.deferred[key] = known
            self.fresh.append(key)
        if self.leader == self.id:
            self._forward()
            self._replicate()

    def _forward(self) -> None:
        """Pass what clients asked to the leader, or take it on as the leader."""
        leader, deferred = self.leader, self.deferred
        if leader == self.id:
            for key in deferred:
                if key not in self.committed:
                    self.pending[key] = None
            deferred.clear()
        elif leader >= 0:
            committed = self.committed
            if self.moved:
                if not committed.isdisjoint(deferred):
                    for key in committed.intersection(deferred):
                        del deferred[key]
                if leader in deferred.values():
                    asks = [Ask(key, known) for key, known in deferred.items() if known != leader]
                else:
                    asks = list(map(Ask, deferred, deferred.values()))
                self.deferred = dict.fromkeys(deferred, leader)
                self._pass_on(leader, asks)
            else:
                for key in self.fresh:
                    known = deferred.get(key, leader)
                    if known == leader:
                        continue
                    if key in committed:
                        del deferred[key]
                    else:
                        self.context.send(leader, Ask(key, known))
                        deferred[key] = leader
        self.moved = False
        self.fresh.clear()

    def _pass_on(self, leader: int, asks: Sequence[Message]) -> None:
        send_all = getattr(self.context, "send_all", None)
        if send_all is not None:
            send_all(leader, asks)
        else:
            for ask in asks:
                self.context.send(leader, ask)

    def _replicate(self) -> None:
        """Send the next request to all, of this node itself when no client has one."""
        if self.in_flight >= 0:
            return
        if not self.pending:
            key = self._new_request()
            self.known.add(key)
            self.pending[key] = None
        for key in list(self.pending):
            del self.pending[key]
            if key in self.committed:
                continue
            self.in_flight = key
            self.begun = self.heard = self.context.now
            self.answers = set()
            self.context.broadcast(Replicate(self.term, key))
            return

    def _commit(self) -> None:
        key, now = self.in_flight, self.context.now
        self.confirmed.append((now, now - self.begun))
        self.context.decide(key, key)
        self.committed.add(key)
        self.deferred.pop(key, None)
        self.pending.pop(key, None)
        self.context.broadcast(Committed(self.term, key, self.begun, now))
        self.in_flight = -1
        self._replicate()

    def _put_back(self) -> None:
        """Give up the request in flight, to be the first one of the next term."""
        key = self.in_flight
        if key >= 0 and key not in self.committed:
            self.pending = {key: None, **self.pending}
        self.in_flight = -1

    def _vote(self, candidate: int, term: int) -> None:
        if term <= self.term:
            return
        self.term = term
        self.leader = -1
        self.votes = set()
        self._put_back()
        self.heard = self.context.now
        self.context.send(candidate, Vote())

    def _lead(self) -> None:
        self.heard = self.context.now
        self.leader = self.id
        self.moved = True
        self.votes = set()
        self._put_back()
        self.elections.append(self.context.now)
        self._forward()
        self._replicate()

    def _look_at_clock(self) -> None:
        """Stand for election when the timeout has passed; otherwise look again when it may have."""
        now = self.context.now
        if self.drawn_for != self.heard:
            earliest = self.heard + self.algorithm.timeout
            if now >= earliest:
                self._draw_deadline(earliest)
            else:
                self.context.set_timer("timeout", earliest - now)
                return
        if now >= self.deadline:
            self._put_back()
            self.leader = -1
            self.term += 1
            self.votes = set()
            self.heard = now
            self.context.broadcast(Elect(self.term))
            self._draw_deadline(now + self.algorithm.timeout)
        self.context.set_timer("timeout", max(self.deadline - now, 1))

    def _draw_deadline(self, earliest: float) -> None:
        self.drawn_for = self.heard
        jitter = self.algorithm.jitter
        self.deadline = earliest + (self.context.rng.below(jitter) if jitter > 0 else 0)


@dataclass(frozen=True, kw_only=True)
class QuantasRaft(QuantasAlgorithm):
    """The Raft variant of QUANTAS."""

    submit_rate: int = setting(20, unit="rounds", says="Mean time between requests at a node; 0: none", low=0)
    timeout: int = setting(100, unit="rounds", says="Silence before an election", low=1)
    jitter: int = setting(5, unit="rounds", says="Random part of the timeout, exclusive", low=0)
    where: ClassVar[str] = "raft"
    messages: ClassVar[tuple[type[Message], ...]] = (Ask, Replicate, Stored, Committed, Elect, Vote)

    def node(self, index: int, size: int) -> Node:
        """Return a new server."""
        return QuantasRaftNode(self, index, size)

    def max_faults(self, size: int) -> int:
        """Return how many servers may stand still: a leader needs the answers of a majority besides itself."""
        return max(size - 1 - (size // 2 + 1), 0)

    def example_command(self, number: int) -> int:
        """Return what a client may ask: the key of its request."""
        return number

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes after every round."""
        nodes = algorithm_nodes(run)
        commits = [entry for node in nodes for entry in node.confirmed]
        at = [when for when, _ in commits]
        count = running_count(at, rounds)
        elections = [when for node in nodes for when in node.elections]
        return {
            "latency": (running_total(at, [waited for _, waited in commits], rounds) / np.maximum(count, 1)).tolist(),
            "throughput": (count / run.size).tolist(),
            "leaderChanges": running_count(elections, rounds).astype(int).tolist(),
        }
