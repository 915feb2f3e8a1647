"""The token is at exactly one end whenever both are at rest, whatever the link and the ends do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.check.explore.environment import Environment
from wavetank.check.explore.explorer import explore
from wavetank.protocols.filesync.token import (
    COMMITTED,
    HELD,
    IDLE,
    MESSAGES,
    OFFERED,
    Ack,
    Commit,
    Hold,
    LinkToken,
    Offer,
    Reverse,
)
from wavetank.sim.events import simulate
from wavetank.sim.network import Links, Network, Topology
from wavetank.sim.node import Message, Node, Snapshot


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
            self.token = LinkToken(*saved)
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
        self._say(answer)

    def timer(self, name: str) -> None:
        """Offer, say again, or reverse."""
        token = self.token
        if name == "offer" and token.owner and token.state == IDLE and token.serial < self.transfers:
            self._say(token.offer(b""))
        elif name == "again":
            self._say(token.again())
        elif name == "reverse":
            self._say(token.reverse())

    def _say(self, message: Message | None) -> None:
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

    transfers: int = 2
    reversals: bool = True

    def node(self, index: int, size: int) -> Node:
        """Return one end; number 0 begins with the token."""
        return TokenEnd(index == 0, self.transfers, self.reversals)

    def max_faults(self, size: int) -> int:
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


def pair() -> tuple[LinkToken, LinkToken]:
    return LinkToken(True), LinkToken(False)


def test_a_hand_over_takes_four_messages() -> None:
    one, other = pair()
    hold = other.offered(one.offer(b"x"))
    assert (one.state, other.state, one.owner) == (OFFERED, HELD, True)
    assert isinstance(hold, Hold)
    commit = one.held(hold)
    assert (one.state, one.owner, other.owner) == (COMMITTED, False, False)
    assert isinstance(commit, Commit)
    ack, taken = other.committed(commit)
    assert taken
    assert (other.owner, other.payload) == (True, b"x")
    assert isinstance(ack, Ack)
    assert one.acknowledged(ack)
    assert (one.state, other.state) == (IDLE, IDLE)


def test_every_message_that_comes_twice_changes_nothing() -> None:
    one, other = pair()
    offer = one.offer(b"x")
    hold = other.offered(offer)
    assert other.offered(offer) == hold
    assert isinstance(hold, Hold)
    commit = one.held(hold)
    assert one.held(hold) == commit
    assert isinstance(commit, Commit)
    ack, _ = other.committed(commit)
    before = (one.saved(), other.saved())
    assert other.committed(commit) == (ack, False)
    assert other.offered(offer) == ack
    assert (one.saved(), other.saved()) == before
    assert isinstance(ack, Ack)
    assert one.acknowledged(ack)
    assert not one.acknowledged(ack)


def test_an_offer_can_be_reversed_and_a_commit_cannot() -> None:
    one, other = pair()
    hold = other.offered(one.offer(b"x"))
    void = one.reverse()
    assert void == Reverse(1)
    assert other.reversed(void) is None
    assert (one.owner, one.state, other.owner, other.state) == (True, IDLE, False, IDLE)
    # A hold that was under way is told that the offer is void.
    assert isinstance(hold, Hold)
    assert one.held(hold) == Reverse(1)
    second = other.offered(one.offer(b"y"))
    assert isinstance(second, Hold)
    one.held(second)
    assert one.reverse() is None
    assert one.reversed(Reverse(2)) == Commit(2)


def test_a_holder_asks_and_stays_bound() -> None:
    one, other = pair()
    other.offered(one.offer(b"x"))
    please = other.reverse()
    assert please == Reverse(1)
    assert other.state == HELD
    assert one.reversed(please) == Reverse(1)
    assert one.state == IDLE
    assert other.reversed(Reverse(1)) is None
    assert other.state == IDLE


def test_what_is_saved_is_what_comes_back() -> None:
    one, _ = pair()
    one.offer(b"x")
    again = LinkToken(*one.saved())
    assert again == one
    assert again.again() == Offer(1, b"x")
    assert LinkToken(True).again() is None


ENVIRONMENTS = {
    "loss": {"drops": 2},
    "duplication": {"duplicates": 2},
    "crash and restart": {"crashes": 2, "recoveries": 2},
    "everything": {"drops": 1, "duplicates": 1, "crashes": 1, "recoveries": 1},
    "everything sent arrives for ever again": {"channels": "set"},
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_owners_are_one_in_every_quiescent_state_of_every_interleaving(name: str) -> None:
    environment = Environment(timeouts=4, **ENVIRONMENTS[name])  # type: ignore[arg-type]
    found = explore(TokenExchange(transfers=2), 2, environment=environment)
    assert found.complete
    assert [each for each in found.judgements if each.outcome != "holds"] == []
    assert found.states > 100


class _TakesBackAfterCommit(LinkToken):
    def reversed(self, message: Reverse) -> Message | None:
        if message.serial == self.serial and self.state == COMMITTED:
            self.state, self.owner = IDLE, True
            return Reverse(self.serial)
        return super().reversed(message)


def test_the_invariant_tells_two_owners_and_none() -> None:
    algorithm = TokenExchange()
    nodes = [algorithm.node(0, 2), algorithm.node(1, 2)]

    def says() -> str:
        return algorithm.violation(Snapshot(nodes, frozenset({0, 1}), {}, {}))

    assert says() == ""
    nodes[1].token.owner = True  # type: ignore[attr-defined]
    assert says() == "both ends own the token"
    for node in nodes:
        node.token.owner = False  # type: ignore[attr-defined]
    assert says() == "no end owns the token, and none is under way"
    nodes[0].token.state = COMMITTED  # type: ignore[attr-defined]
    assert says() == ""


def test_an_end_that_takes_back_what_it_committed_makes_two_owners() -> None:
    one, other = _TakesBackAfterCommit(True), LinkToken(False)
    hold = other.offered(one.offer(b""))
    assert isinstance(hold, Hold)
    commit = one.held(hold)
    assert isinstance(commit, Commit)
    one.reversed(Reverse(1))
    other.committed(commit)
    assert one.owner
    assert other.owner


@given(st.integers(0, 10**6), st.floats(0, 0.4), st.floats(0, 0.4), st.floats(0, 0.5))
def test_all_transfers_end_over_a_bad_link(seed: int, drop: float, duplicate: float, reorder: float) -> None:
    links = Links(delay="uniform-real", least_delay=0.1, most_delay=3, drop=drop, duplicate=duplicate, reorder=reorder)
    network = Network(topology=Topology.complete(2), links=links)
    algorithm = TokenExchange(transfers=6)
    run = simulate(algorithm, network=network, until=600, life="events", seed=seed)
    assert algorithm.violation(run.snapshot()) == ""
    assert max(node.token.serial for node in run.nodes) == 6  # type: ignore[attr-defined]
    assert sum(node.token.owner for node in run.nodes) == 1  # type: ignore[attr-defined]
