"""The token is at exactly one end whenever both are at rest, whatever the link and the ends do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.explore.environment import Environment
from wavetank.protocols.explore.explorer import explore
from wavetank.protocols.filesync.token import (
    COMMITTED,
    HELD,
    IDLE,
    OFFERED,
    Ack,
    Commit,
    Hold,
    LinkToken,
    Offer,
    Reverse,
    TokenExchange,
)
from wavetank.protocols.interfaces import Message, Snapshot
from wavetank.protocols.network import Links, Network, Topology
from wavetank.protocols.simulation import simulate


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
    again = LinkToken.restored(one.saved())
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
