"""Checks by number: slope (2), everyone as committee (3), prefixes (4), impossibility (5), optimistic path (6).

Agreement and totality (1) are in test_trials.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from scripted_faults import HoldBack, Scripted

from wavetank.check.explore import SearchBudget, explore
from wavetank.errors import BadValueError
from wavetank.live.cluster import run_cluster
from wavetank.protocols.broadcast.accounting import HASH_BYTES, SIGNATURE_BYTES, broken_order, digest_of
from wavetank.protocols.broadcast.adversaries import Twins
from wavetank.protocols.broadcast.amortized import (
    Amortized,
    AmortizedNode,
    Ask,
    Echo,
    Exposure,
    Link,
    Proof,
    Pull,
    Vote,
    committee,
    echo_content,
    head_of,
    link_content,
)
from wavetank.protocols.broadcast.hash_bracha import HashBracha
from wavetank.protocols.broadcast.trials import judged
from wavetank.protocols.digraphs.signing import scheme
from wavetank.sim.events import simulate
from wavetank.sim.faults import SelectiveRelay
from wavetank.sim.simulation import Request, Run

ROOT = bytes(HASH_BYTES)


def stream(count: int, node: int = 0, every: float = 1.0) -> list[Request]:
    return [
        Request(at=1.0 + number * every, node=node, command=("broadcast", b"payload %d" % number))
        for number in range(count)
    ]


def lag(run: Run, number: int, source: int = 0, every: float = 1.0) -> float:
    return max(run.decided_at[node, (source, number)] for node in range(run.size)) - 1.0 - (number - 1) * every


def node_of(run: Run, index: int) -> AmortizedNode:
    node = run.nodes[index]
    assert isinstance(node, AmortizedNode)
    return node


def link(source: int, number: int, payload: bytes, parent: bytes) -> Link:
    head = head_of(source, number, digest_of(payload), parent)
    signature = scheme("keyed-hash", 0).sign(source, link_content(source, number, head))
    return Link(source, number, parent, payload, False, signature)


# Committees.


@pytest.mark.parametrize(("size", "seats"), [(4, 2), (7, 2), (31, 5), (100, 7)])
def test_rotating_committees_hear_everyone_within_one_permutation(size: int, seats: int) -> None:
    turns = [committee(size, seats, 3, number, ROOT) for number in range(1, size // seats + 1)]
    assert len(frozenset().union(*turns)) == seats * len(turns)
    assert {len(each) for each in turns} == {seats}


def test_committees_by_hash_depend_on_the_link_before() -> None:
    draws = {committee(100, 7, 3, 5, bytes([value]) * 32, "hash") for value in range(20)}
    assert len(draws) == 20
    assert {len(each) for each in draws} == {7}
    assert committee(4, 9, 0, 1, ROOT) == frozenset(range(4))


# Check 2: the slope.


@pytest.mark.parametrize("size", [31, 100])
@pytest.mark.parametrize("payload_bytes", [1024, 65_536])
def test_one_more_broadcast_costs_its_payload_and_short_echoes_of_a_committee(size: int, payload_bytes: int) -> None:
    algorithm = Amortized(payload_bytes=payload_bytes)
    short, long = (
        simulate(algorithm, size=size, until=300, requests=stream(count)).total("bytes") for count in (40, 80)
    )
    slope = (long - short) / 40
    signed = HASH_BYTES + SIGNATURE_BYTES
    least = (size - 1) * (payload_bytes + signed + algorithm.seats(size) * signed)
    assert least < slope < 1.25 * least
    assert slope < (size - 1) * (payload_bytes + 1.4 * signed * (algorithm.seats(size) + 1))


# Check 3: everyone as committee.


@pytest.mark.parametrize("size", [4, 31])
def test_with_everyone_as_committee_it_costs_what_hash_bracha_costs(size: int) -> None:
    ours = simulate(Amortized(committee=size), size=size, until=60, requests=stream(20))
    theirs = simulate(HashBracha(), size=size, until=60, requests=stream(20))
    assert ours.decisions == theirs.decisions
    assert 0.5 < ours.total("bytes") / theirs.total("bytes") < 2.0
    # One phase of votes instead of two.
    assert {lag(ours, number) for number in range(1, 21)} == {2.0}


# Check 4: prefixes.


def test_deliveries_are_prefixes_at_every_moment() -> None:
    seen: list[str] = []

    def watch(run: Run) -> bool:
        seen.append(broken_order(run.snapshot()))
        return False

    run = simulate(Amortized(), size=10, until=80, requests=stream(20), stop=watch)
    assert len(run.decisions) == 200
    assert len(seen) > 20
    assert not any(seen)


# Check 5: what committees alone cannot do.


def impossible_setting(size: int, seats: int, links: int) -> tuple[int, int, frozenset[int]]:
    """Return a source, a node outside of all its committees, and its last committee."""
    for source in range(size):
        turns = [committee(size, seats, source, number, ROOT) for number in range(1, links + 1)]
        outside = set(range(size)) - set().union(*turns) - {source}
        if outside:
            return source, min(outside), turns[-1]
    raise AssertionError("no source has a node outside of its committees")


def test_full_asynchrony_defeats_committees_that_stay_among_themselves() -> None:
    # 7 nodes, no fault at all; the scheduler holds what the last committee, 2 = f nodes, says to one node.
    source, victim, last = impossible_setting(7, 2, 3)
    held = HoldBack(last, frozenset({victim}))
    requests = stream(3, node=source)

    pure = Amortized(committee=2, turns_to="committee")
    run = simulate(pure, size=7, until=2000, requests=requests, scheduler=held, log=True)
    assert {node for node, instance in run.decisions if instance == (source, 1)} == set(range(7)) - {victim}
    assert f"node {victim} never delivered ({source}, 1)" in judged(pure, run)["totality"]
    # The victim did what it could: it asked the newest committee.
    asked = {each.node for each in run.log if isinstance(each.what, Pull) and each.sender == victim}
    assert asked == last

    # The same schedule is nothing to protocols that turn to everyone: f silent nodes are tolerated.
    for algorithm in (Amortized(committee=2), HashBracha()):
        run = simulate(algorithm, size=7, until=2000, requests=requests, scheduler=held)
        assert len(run.decisions) == 21
        assert not any(judged(algorithm, run).values())


def test_without_the_scheduler_the_same_committees_agree_and_all_deliver() -> None:
    source, _, _ = impossible_setting(7, 2, 3)
    pure = Amortized(committee=2, turns_to="committee")
    run = simulate(pure, size=7, until=2000, requests=stream(3, node=source))
    assert {node for node, instance in run.decisions if instance == (source, 1)} == set(range(7))
    assert not judged(pure, run)["totality"]


def test_a_quorum_below_two_thirds_loses_agreement_instead() -> None:
    faults = [Twins(members=(0, 1), first=(2, 3), second=(4, 5, 6))]
    run = simulate(Amortized(quorum=4), size=7, until=200, requests=stream(1), faults=faults)
    assert "decided" in judged(Amortized(quorum=4), run)["agreement"]
    run = simulate(Amortized(), size=7, until=200, requests=stream(1), faults=faults)
    assert not judged(Amortized(), run)["agreement"]


# Check 6: the optimistic path, and the start of a stream.


@pytest.mark.parametrize("size", [4, 31, 100])
def test_a_lone_broadcast_takes_two_message_delays(size: int) -> None:
    run = simulate(Amortized(), size=size, until=100, requests=stream(4, every=10.0))
    assert {lag(run, number, every=10.0) for number in range(1, 5)} == {2.0}
    assert run.replies[0].result == (0, 1)


@pytest.mark.parametrize("size", [31, 100])
def test_a_stream_starts_in_a_quorum_over_a_committee_rounds(size: int) -> None:
    algorithm = Amortized(optimistic=False)
    run = simulate(algorithm, size=size, until=300, requests=stream(40))
    quorum = (size + (size - 1) // 3) // 2 + 1
    assert lag(run, 1) == math.ceil(quorum / algorithm.seats(size)) + 1
    assert max(lag(run, number) for number in range(1, 30)) <= 2 * lag(run, 1)


def test_a_stream_that_ends_is_delivered_by_asking_everyone() -> None:
    run = simulate(Amortized(committee=1), size=10, until=100, requests=stream(3), log=True)
    assert len(run.decisions) == 30
    assert sum(isinstance(each.what, Ask) for each in run.log) == 9


# Levels, proofs, memory.


def level(node: AmortizedNode, source: int, number: int) -> str:
    """Return how far a link has come: ``unknown``, ``seen``, ``witnessed``, ``locked`` or ``delivered``.

    ``witnessed`` means that f+1 nodes signed it or a successor, so that a correct node holds it; ``locked`` that a
    quorum did, so that no other chain ever can.
    """
    stream = node.streams.get(source)
    if stream is None or number not in stream.heads:
        return "unknown"
    if number <= stream.delivered:
        return "delivered"
    if number <= stream.locked:
        return "locked"
    return "witnessed" if stream.vouched(node.faults + 1) >= number else "seen"


def test_a_link_rises_from_level_to_level() -> None:
    algorithm = Amortized(committee=2, optimistic=False)
    levels = [
        level(node_of(simulate(algorithm, size=10, until=until, requests=stream(20)), 9), 0, 1)
        for until in range(1, 12)
    ]
    order = ["unknown", "seen", "witnessed", "delivered"]
    assert [level for place, level in enumerate(levels) if place == 0 or levels[place - 1] != level] == order


def test_a_locked_link_waits_for_its_payload() -> None:
    # Node 3 never hears the source, only proof by the others; until the payload comes the link is locked.
    faults = [SelectiveRelay(members=(0,), to=(1, 2))]
    run = simulate(Amortized(), size=4, until=200, requests=stream(1), faults=faults, log=True)
    kinds = [type(each.what).__name__ for each in run.log if each.node == 3 and each.kind == "message"]
    assert kinds[:2] == ["Echo", "Echo"]
    assert kinds[-1] in ("Link", "Pull", "Proof")
    assert run.decisions[3, (0, 1)] == b"payload 0"
    first_proof = next(each.at for each in run.log if each.node == 3 and isinstance(each.what, Proof))
    early = simulate(Amortized(), size=4, until=first_proof, requests=stream(1), faults=faults)
    assert level(node_of(early, 3), 0, 1) == "locked"


def test_two_chains_of_one_source_are_exposed_and_end() -> None:
    faults = [Twins(members=(0,), first=(1, 2, 3, 4), second=(4, 5, 6), fork=3)]
    run = simulate(Amortized(), size=7, until=300, requests=stream(12, every=3.0), faults=faults, log=True)
    assert any(isinstance(each.what, Exposure) for each in run.log)
    streams = [node_of(run, node).streams[0] for node in range(1, 7)]
    assert all(each.exposed for each in streams)
    assert {each.delivered for each in streams} in ({2}, {3}, {4})
    assert not judged(Amortized(), run)["agreement"]
    assert not judged(Amortized(), run)["totality"]


def test_an_exposure_needs_two_signatures_of_the_source() -> None:
    sign = scheme("keyed-hash", 0).sign
    one, other = (head_of(2, 1, digest_of(payload), ROOT) for payload in (b"a", b"b"))
    good = sign(2, link_content(2, 1, one))
    menu = (
        Exposure(2, 1, one, good, one, good),
        Exposure(2, 1, one, good, other, sign(0, link_content(2, 1, other))),
    )
    run = simulate(
        Amortized(), size=4, until=60, requests=stream(1, node=2), faults=[Scripted(members=(0,), script=menu)]
    )
    assert run.total("rejected") == 0
    assert not any(node_of(run, node).streams[2].exposed for node in (1, 2, 3))


@pytest.mark.parametrize("number", [0, -1, 2**64])
def test_an_exposure_of_a_link_that_cannot_be_is_passed_over(number: int) -> None:
    script = (Exposure(2, number, bytes(32), bytes(16), bytes(31), bytes(16)),)
    run = simulate(Amortized(), size=4, until=20, faults=[Scripted(members=(0,), script=script)])
    assert run.delivered == 3
    assert not any(node_of(run, node).streams[2].exposed for node in (1, 2, 3))


def test_one_copy_of_a_proved_link_is_kept_whatever_its_signature() -> None:
    sign = scheme("keyed-hash", 0).sign
    first, second = digest_of(b"a"), digest_of(b"b")
    parent = head_of(2, 1, first, ROOT)
    content = echo_content(2, 2, head_of(2, 2, second, parent))
    proof = Proof(2, 1, (first, second), tuple(Vote(node, 2, sign(node, content)) for node in (0, 1, 3)))
    # The first link never comes, so the second waits; relays may sign it with anything.
    copies = tuple(Link(2, 2, parent, b"b", False, b"%d" % number) for number in range(200))
    run = simulate(Amortized(), size=4, until=60, faults=[Scripted(members=(0,), script=(proof, *copies))])
    for node in (1, 3):
        assert level(node_of(run, node), 2, 2) == "locked"
        assert [len(each) for each in node_of(run, node).streams[2].spare.values()] == [1]


def forged_proofs() -> list[Proof]:
    sign = scheme("keyed-hash", 0).sign
    digest = digest_of(b"forged")
    head = head_of(2, 1, digest, ROOT)
    mine = Vote(0, 1, sign(0, echo_content(2, 1, head)))
    return [
        Proof(2, 1, (digest,), (mine,)),
        Proof(2, 1, (digest,), (mine, mine, mine)),
        Proof(2, 1, (digest,), (mine, Vote(1, 1, mine.signature), Vote(3, 1, mine.signature))),
        Proof(2, 1, (digest,), (mine, Vote(1, 7, mine.signature), Vote(9, 1, mine.signature))),
        Proof(2, 5, (digest,), (mine, mine, mine)),
        Proof(2, 1, (), ()),
    ]


@pytest.mark.parametrize("proof", forged_proofs(), ids=range(6))
def test_a_forged_proof_moves_nobody(proof: Proof) -> None:
    faults = [Scripted(members=(0,), script=(proof,))]
    run = simulate(Amortized(), size=4, until=60, faults=faults)
    assert run.decisions == {}
    assert run.delivered == 3
    assert [level(node_of(run, node), 2, 1) for node in (1, 2, 3)] == ["unknown"] * 3


def test_undelivered_links_and_echoes_are_bounded_by_the_window() -> None:
    # A source that signs hundreds of links that lead nowhere, and shows each in two versions.
    menu = tuple(link(0, number, payload, ROOT) for number in range(1, 200) for payload in (b"a", b"b", b"c"))
    run = simulate(Amortized(window=4), size=4, until=2000, faults=[Scripted(members=(0,), script=menu)])
    for node in (1, 2, 3):
        known = node_of(run, node).streams[0]
        assert len(known.spare) == 4
        assert all(len(each) <= 2 for each in known.spare.values())
        assert len(known.links) <= 1


def test_echoes_far_ahead_and_of_many_heads_are_not_kept() -> None:
    sign = scheme("keyed-hash", 0).sign
    script = tuple(
        Echo(2, number, head, 0, sign(0, echo_content(2, number, head)))
        for number in range(1, 100)
        for head in (digest_of(b"one"), digest_of(b"two"), digest_of(b"three"))
    )
    run = simulate(Amortized(window=4), size=4, until=60, faults=[Scripted(members=(0,), script=script)])
    for node in (1, 2, 3):
        known = node_of(run, node).streams[2]
        assert sorted(known.echoes) == list(range(1, 9))
        assert {len(voters[0]) for voters in known.echoes.values()} == {2}


def test_delivered_links_are_forgotten_when_all_have_them() -> None:
    run = simulate(Amortized(), size=4, until=400, requests=stream(200))
    assert len(run.decisions) == 800
    for node in range(4):
        known = node_of(run, node).streams[0]
        assert len(known.links) < 20
        assert len(known.heads) < 25
        assert len(known.echoes) < 20


def test_a_silent_node_holds_back_no_more_than_the_history() -> None:
    faults = [SelectiveRelay(members=(3,), to=())]
    run = simulate(Amortized(history=32), size=4, until=400, requests=stream(200), faults=faults)
    assert len(node_of(run, 1).streams[0].links) == 32


def test_the_window_makes_a_source_wait() -> None:
    requests = [Request(at=1.0, node=0, command=("broadcast", b"%d" % number)) for number in range(50)]
    widest = 0

    def watch(run: Run) -> bool:
        nonlocal widest
        node = node_of(run, 0)
        widest = max(widest, node.number - node.streams[0].delivered if node.streams else 0)
        return False

    run = simulate(Amortized(window=5), size=4, until=1000, requests=requests, stop=watch)
    assert len(run.decisions) == 200
    assert widest == 5


# Other lives.


def test_every_interleaving_with_an_equivocating_source_agrees() -> None:
    faults = [Twins(members=(0,), first=(1,), second=(2, 3))]
    found = explore(Amortized(), 4, requests=stream(1), faults=faults, budget=SearchBudget(states=100_000))
    assert found.outcome != "violated"
    assert found.states > 1000


def test_the_explorer_finds_a_quorum_of_f_and_one() -> None:
    faults = [Twins(members=(0,), first=(1,), second=(2, 3))]
    found = explore(Amortized(quorum=2), 4, requests=stream(1), faults=faults)
    assert found.outcome == "violated"


@pytest.mark.parametrize("size", [4, 7])
def test_over_sockets_with_ed25519_the_same_is_delivered(size: int) -> None:
    algorithm = Amortized(signatures="ed25519")
    requests = [*stream(6), *stream(3, node=size - 1, every=2.0)]
    wanted = simulate(algorithm, size=size, until=100, requests=requests).decisions

    def done(run: Any) -> bool:
        return len(run.decisions) == len(wanted)

    live = run_cluster(algorithm, size, requests=requests, duration_s=20.0, round_s=0.03, stop=done)
    assert live.decisions == wanted
    assert not live.violation
    assert not live.hostile


@pytest.mark.parametrize(
    "wrong", [{"draw": "dice"}, {"turns_to": "nobody"}, {"window": 0}, {"committee": -1}, {"signatures": "rsa"}]
)
def test_a_wrong_parameter_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match=r"allowed words|out of range"):
        Amortized(**wrong)
