from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_faults import Scripted

from wavetank.errors import BadValueError
from wavetank.protocols.broadcast import accounting, bracha, coded, hash_bracha, sampled
from wavetank.protocols.broadcast.accounting import (
    MOST_OPEN,
    InstanceNode,
    Sizes,
    SourceNode,
    Votes,
    binary_bytes,
    encoded_bytes,
    payload_of,
)
from wavetank.protocols.broadcast.amortized import Amortized, Echo, Link, Proof, Vote
from wavetank.protocols.broadcast.bracha import Bracha, Send
from wavetank.protocols.broadcast.coded import Coded
from wavetank.protocols.broadcast.hash_bracha import HashBracha
from wavetank.protocols.broadcast.sampled import Sampled
from wavetank.sim.events import simulate
from wavetank.sim.node import Message, Snapshot, disagreement
from wavetank.sim.simulation import Request, Run

_encode = msgspec.msgpack.encode


@pytest.mark.parametrize("size", [1, 4, 5, 6, 7, 10, 31, 100, 301])
def test_two_quorums_share_a_correct_node_and_correct_nodes_make_one(size: int) -> None:
    faults, quorum = accounting.most_faults(size), accounting.intersecting_quorum(size)
    assert 2 * quorum - size >= faults + 1
    assert quorum <= size - faults
    assert 3 * faults < size <= 3 * faults + 3


@given(st.integers(0, 70_000))
def test_the_length_of_a_string_of_bytes_is_that_of_its_encoding(length: int) -> None:
    assert binary_bytes(length) == len(_encode(bytes(length)))


@pytest.mark.parametrize("length", [1, 200, 255, 256, 65_535, 65_536, 100_000])
def test_a_declared_payload_counts_as_the_real_one_would(length: int) -> None:
    assert encoded_bytes(Send(7, b"short"), Sizes(length)) == len(_encode(Send(7, bytes(length))))


def test_signatures_count_as_ed25519_wherever_they_are() -> None:
    short, long = bytes(16), bytes(64)
    proof = Proof(1, 1, (bytes(32),), (Vote(0, 1, short), Vote(2, 1, short)))
    real = Proof(1, 1, (bytes(32),), (Vote(0, 1, long), Vote(2, 1, long)))
    assert encoded_bytes(proof) == len(_encode(real))
    assert encoded_bytes(Echo(1, 1, bytes(32), 0, short)) == len(_encode(Echo(1, 1, bytes(32), 0, long)))
    assert encoded_bytes(Link(1, 1, bytes(32), b"p", False, short)) == len(
        _encode(Link(1, 1, bytes(32), b"p", False, long))
    )


@pytest.mark.parametrize(
    "algorithm",
    [Bracha(), HashBracha(), Coded(), Sampled(signatures="ed25519"), Amortized(signatures="ed25519")],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_recorded_bytes_are_those_of_the_messages_that_arrive(algorithm: Bracha) -> None:
    requests = [Request(at=1.0 + number, node=0, command=("broadcast", bytes(300))) for number in range(3)]
    run = simulate(algorithm, size=4, until=60, requests=requests, log=True)
    arrived = sum(len(_encode(each.what)) for each in run.log if isinstance(each.what, Message))
    assert run.under_way == 0
    assert run.total("bytes") == arrived > 0


def test_a_voter_has_one_vote() -> None:
    votes = Votes()
    assert votes.add(3, b"a") == 1
    assert votes.add(3, b"a") == 0
    assert votes.add(3, b"b") == 0
    assert votes.add(200, b"a") == 2
    assert votes.of(b"a") == 2
    assert votes.of(b"b") == 0
    assert list(accounting.members(votes.voters)) == [3, 200]


def test_a_request_names_a_payload() -> None:
    assert payload_of(("broadcast", b"x")) == b"x"
    assert payload_of(["broadcast", "x"]) == b"x"


@pytest.mark.parametrize("command", ["broadcast", ("write", "k", 1), ("broadcast", 3), ("broadcast",), None])
def test_what_is_no_broadcast_is_refused(command: object) -> None:
    with pytest.raises(BadValueError, match="cannot be broadcast"):
        payload_of(command)


def test_broken_properties_are_named() -> None:
    def end(decisions: dict[tuple[int, tuple[int, int]], bytes]) -> Snapshot:
        return Snapshot((), frozenset({0, 1}), decisions, {})

    assert not accounting.broken_totality(end({(0, (2, 1)): b"a", (1, (2, 1)): b"a", (3, (2, 2)): b"b"}))
    assert "node 1 never delivered (2, 1)" in accounting.broken_totality(end({(0, (2, 1)): b"a"}))
    assert "nodes 0 and 1" in disagreement(end({(0, (2, 1)): b"a", (1, (2, 1)): b"b"}))
    assert "without the broadcast before" in accounting.broken_order(end({(0, (2, 2)): b"a"}))
    assert not accounting.broken_order(end({(0, (2, 1)): b"a", (0, (2, 2)): b"a"}))


# A vote of node 0 for a broadcast, in the words of each protocol.
SPEAKING = {
    "bracha": (Bracha(), lambda source, number: bracha.Echo(source, number, b"x")),
    "hash-bracha": (HashBracha(), lambda source, number: hash_bracha.Ready(source, number, bytes(32))),
    "hash-bracha-fetch": (HashBracha(), lambda source, number: hash_bracha.Fetch(source, number)),
    "coded": (Coded(), lambda source, number: coded.Ready(source, number, bytes(32))),
    "sampled": (Sampled(), lambda source, number: sampled.Echo(source, number, bytes(32))),
    "sampled-gossip": (Sampled(), lambda source, number: sampled.Gossip(source, number, b"x", bytes(16))),
}


def known(run: Run, node: int) -> InstanceNode[accounting.Instance]:
    found = run.nodes[node]
    assert isinstance(found, InstanceNode)
    return found


@pytest.mark.parametrize("name", SPEAKING)
def test_a_liar_makes_nobody_remember_more_than_so_many_broadcasts(name: str) -> None:
    algorithm, say = SPEAKING[name]
    script = tuple(say(source, number) for number in range(1, MOST_OPEN + 300) for source in (1, 2))
    asks = [Request(at=5.0, node=2, command=("broadcast", b"after the flood"))]
    run = simulate(algorithm, size=6, until=60, faults=[Scripted(members=(0,), script=script)], requests=asks)
    for node in range(1, 6):
        assert len(known(run, node).instances) <= 2 * MOST_OPEN
        assert known(run, node).open[1][0] == MOST_OPEN
    assert run.total("refused") == 5 * 2 * 299
    # What others say of the source of which the liar said too much still counts.
    assert {run.decisions[node, (2, 1)] for node in range(1, 6)} == {b"after the flood"}


@pytest.mark.parametrize("name", SPEAKING)
@pytest.mark.parametrize(("source", "number"), [(-1, 1), (4, 1), (2**40, 1), (1, 0), (1, -1), (1, 2**64 - 1)])
def test_broadcasts_that_cannot_be_are_not_remembered(name: str, source: int, number: int) -> None:
    algorithm, say = SPEAKING[name]
    run = simulate(algorithm, size=4, until=20, faults=[Scripted(members=(0,), script=(say(source, number),))])
    assert run.total("rejected") == 3
    assert not any(known(run, node).instances for node in (1, 2, 3))


@pytest.mark.parametrize("algorithm", [Bracha(), HashBracha(), Coded()], ids=lambda each: type(each).__name__)
def test_a_source_waits_until_there_is_room_and_delivery_makes_some(algorithm: Bracha) -> None:
    count = MOST_OPEN // 2 + 88
    requests = [Request(at=1.0, node=0, command=("broadcast", b"%d" % number)) for number in range(count)]
    widest = 0

    def watch(run: Run) -> bool:
        nonlocal widest
        widest = max(widest, known(run, 0).open.get(0, [0])[0])
        return False

    run = simulate(algorithm, size=4, until=60, requests=requests, stop=watch)
    assert len(run.decisions) == 4 * count
    assert len(run.replies) == count
    assert [run.decisions[3, (0, number)] for number in (1, count)] == [b"0", b"%d" % (count - 1)]
    assert not any(known(run, node).open for node in range(4))
    assert widest == MOST_OPEN // 2


def test_what_does_not_say_how_to_broadcast_is_no_node() -> None:
    with pytest.raises(TypeError, match="abstract"):
        SourceNode(Sizes())  # type: ignore[abstract]
