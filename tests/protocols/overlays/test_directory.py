from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.chord import Chord
from wavetank.protocols.overlays.directory import (
    ALIVE,
    RIGHT,
    Ask,
    Directory,
    Find,
    Nodes,
    Outside,
    Store,
    Stored,
    inner_node,
)
from wavetank.protocols.overlays.gossip import Gossip
from wavetank.protocols.overlays.kademlia import Kademlia
from wavetank.protocols.overlays.pastry import Pastry
from wavetank.protocols.overlays.registry import Registry
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash, Omission
from wavetank.sim.network import Network
from wavetank.sim.node import Node
from wavetank.sim.simulation import Request

OVERLAYS = (Chord, Pastry, Kademlia)
ALL = (*OVERLAYS, Registry, Gossip)


def published_and_asked(size: int, count: int) -> list[Request]:
    publications = [Request(at=100, node=n % size, command=("publish", f"key {n}", f"at {n}")) for n in range(count)]
    lookups = [Request(at=150 + n % 7, node=(5 * n) % size, command=("lookup", f"key {n}")) for n in range(count)]
    return publications + lookups


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("size", [2, 5, 24])
def test_without_churn_every_lookup_succeeds_once_all_have_joined(kind: type[Directory], size: int) -> None:
    run = simulate(kind(stabilize_rounds=2), size=size, until=240, requests=published_and_asked(size, 20), seed=4)
    for number in range(20):
        assert run.replies[number].result.status == "published"
        assert run.replies[20 + number].result.endpoints == (f"at {number}",)


@pytest.mark.parametrize("kind", ALL)
def test_messages_are_conserved_also_when_some_are_lost(kind: type[Directory]) -> None:
    network = Network.complete(16, drop=0.1)
    run = simulate(kind(stabilize_rounds=2), network=network, until=150, requests=published_and_asked(16, 10), seed=1)
    assert run.dropped > 0
    assert run.sent == run.delivered + run.dropped + run.under_way
    assert run.sent == sum(sum(inner_node(node).sent) for node in run.nodes)


@pytest.mark.parametrize("kind", ALL)
def test_equal_seeds_give_equal_runs(kind: type[Directory]) -> None:
    runs = [
        simulate(kind(), size=12, until=120, requests=published_and_asked(12, 5), seed=9, log=True) for _ in range(2)
    ]
    assert runs[0].digest() == runs[1].digest()


@pytest.mark.parametrize("kind", OVERLAYS)
def test_records_survive_as_many_crashes_as_the_directory_tolerates(kind: type[Directory], stationary: Any) -> None:
    size = 40
    run = stationary.run(kind(), size, [Request(at=1, node=3, command=("publish", "key", "here"))], until=20)
    [outcome] = stationary.outcomes(run)
    keepers = [node for node in outcome.owners if node not in (0, 3)][:3]
    asker = next(node for node in range(4, size) if node not in outcome.owners)

    def setup(nodes: Any) -> None:
        from wavetank.protocols.overlays.tables import give_exact

        give_exact(nodes, range(size), 1)

    run = simulate(
        kind(),
        size=size,
        until=100,
        seed=1,
        setup=setup,
        requests=[
            Request(at=1, node=3, command=("publish", "key", "here")),
            Request(at=32, node=asker, command=("trace", "key")),
        ],
        faults=[Crash(members=tuple(keepers), at=30.0)],
    )
    assert run.replies[1].result.endpoints == ("here",)
    assert len(keepers) <= kind().max_faults(size)


@pytest.mark.parametrize("kind", OVERLAYS)
def test_a_trace_tells_whom_the_lookup_asked_and_what_came_back(kind: type[Directory], stationary: Any) -> None:
    run = stationary.run(kind(), 200, [Request(at=1, node=0, command=("trace", "nobody has this"))])
    [outcome] = stationary.outcomes(run)
    assert outcome.status == "failed"
    assert outcome.reason == "not-found"
    assert len(outcome.trace) == outcome.asked > 0
    assert all(at >= 1 and 0 < node < 200 and said for at, node, said in outcome.trace)


def test_a_newcomer_that_reaches_nobody_says_so() -> None:
    run = simulate(
        Chord(deadline_rounds=20),
        size=5,
        until=80,
        requests=[Request(at=1, node=4, command=("lookup", "key"))],
        faults=[Omission(members=(4,), sending=1.0, receiving=1.0)],
    )
    assert run.replies[0].result.reason == "not-joined"


def test_a_registry_that_is_down_fails_every_lookup() -> None:
    requests = [
        Request(at=1, node=2, command=("publish", "key", "here")),
        Request(at=20, node=3, command=("lookup", "key")),
    ]
    run = simulate(Registry(), size=5, until=60, requests=requests, faults=[Crash(members=(0,), at=10.0)])
    assert run.replies[0].result.status == "published"
    assert run.replies[1].result.reason == "owners-down"


def test_records_end_when_nobody_publishes_them_again() -> None:
    requests = [
        Request(at=1, node=2, command=("publish", "key", "here")),
        Request(at=30, node=3, command=("lookup", "key")),
        Request(at=100, node=3, command=("lookup", "key")),
    ]
    directory = Registry(republish_rounds=20, ttl_rounds=40)
    run = simulate(directory, size=5, until=150, requests=requests, faults=[Crash(members=(2,), at=5.0)])
    assert run.replies[1].result.status == "found"
    assert run.replies[2].result.reason == "not-found"


def made(kind: type[Directory], **parameters: Any) -> Any:
    node: Node = kind(**parameters).node(0, 4)
    run = simulate(kind(**parameters), size=4, until=1)
    node.context = run.nodes[0].context
    return node


def test_a_full_store_refuses_further_keys_and_endpoints() -> None:
    node = made(Registry, store_keys=2, endpoints_per_key=2)
    assert [node.keep(key, "a", 10.0) for key in (1, 2, 3)] == ["", "", "store-full"]
    assert [node.keep(1, end, 10.0) for end in ("b", "c")] == ["", "store-full"]
    assert node.keep(1, "a", 10.0) == ""


def test_a_record_that_is_too_large_is_refused_at_both_ends() -> None:
    node = made(Registry, record_bytes=4)
    assert node.keep(1, "ééé", 10.0) == "record-too-large"
    requests = [Request(at=1, node=1, command=("publish", "key", "too long"))]
    run = simulate(Registry(record_bytes=4), size=3, until=10, requests=requests)
    assert run.replies[0].result.reason == "record-too-large"


def test_lookups_beyond_the_limit_fail_at_once() -> None:
    requests = [Request(at=1, node=1, command=("lookup", f"key {n}")) for n in range(5)]
    run = simulate(Registry(lookups=2), size=3, until=10, requests=requests)
    assert [run.replies[n].result.reason for n in range(5)].count("too-many-lookups") == 3


def test_answers_nobody_asked_for_change_nothing() -> None:
    node = made(Kademlia)
    node.receive(1, Nodes(12345, (2, 3), True, ("forged",), 4))
    node.receive(1, Stored(12345, "", 3))
    assert node.lookups == {}
    assert node.store == {}


def test_contacts_that_do_not_exist_are_ignored() -> None:
    node = made(Kademlia)
    node.joined = True
    lookup = node._new(4, 99)
    node._merge(lookup, (-1, 7, 10**9), 1)
    assert lookup.order == []


@pytest.mark.parametrize(
    "command", [("steal", "key"), ("lookup",), "lookup", ("lookup", 3), ("publish", "a", "b", "c")]
)
def test_a_command_that_is_none_is_refused(command: Any) -> None:
    with pytest.raises(BadValueError, match="is to publish or to look up"):
        simulate(Registry(), size=3, until=10, requests=[Request(at=1, node=1, command=command)])


def test_records_may_not_end_before_they_are_published_again() -> None:
    with pytest.raises(BadValueError, match="before they are published again"):
        Chord(ttl_rounds=10, republish_rounds=20)


def test_a_node_without_a_directory_is_refused() -> None:
    with pytest.raises(BadValueError, match="not a node of a directory"):
        inner_node(Node())


def test_an_answer_that_comes_after_the_key_is_settled_does_not_end_a_publication(stationary: Any) -> None:
    requests = [Request(at=1, node=n, command=("publish", f"key {n}", "here")) for n in range(60)]
    run = stationary.run(Kademlia(parallel=8, redundancy=4), 60, requests)
    for outcome in stationary.outcomes(run):
        assert outcome.status == "published"
        assert len(outcome.owners) == 4


def spied(node: Any) -> list[tuple[int, Any]]:
    """Keep what a node sends instead of sending it."""
    sent: list[tuple[int, Any]] = []
    node._send = lambda to, message, purpose, size: sent.append((to, message))
    return sent


@pytest.mark.parametrize("kind", OVERLAYS)
@pytest.mark.parametrize("question", [Find(5, bytes(20), True, 4), Ask(5, RIGHT, 1)])
def test_a_node_that_has_not_joined_says_so(kind: type[Directory], question: Any) -> None:
    node = made(kind)
    sent = spied(node)
    node.receive(2, question)
    assert sent == [(2, Outside(5, question.purpose))]


@pytest.mark.parametrize("kind", OVERLAYS)
def test_who_is_outside_is_left_out_but_not_suspected(kind: type[Directory]) -> None:
    node = made(kind)
    node.joined = True
    for other in (1, 2, 3):
        node.learn(other)
    node.ask(2, ALIVE, 1)
    node.receive(2, Outside(node.count, 1))
    assert 2 not in node.known()
    assert 2 not in node.suspected


@pytest.mark.parametrize("kind", OVERLAYS)
def test_a_newcomer_asks_several_members_at_once(kind: type[Directory]) -> None:
    node: Any = kind().node(0, 50)
    node.context = simulate(kind(), size=50, until=1).nodes[0].context
    node.context.save("member", True)
    sent = spied(node)
    node._join()
    assert len(sent) >= 2
    assert all(isinstance(message, Find) and to != 0 for to, message in sent)


def test_whoever_has_lost_its_place_asks_those_it_still_knows() -> None:
    node: Any = Chord().node(0, 50)
    node.context = simulate(Chord(), size=50, until=1).nodes[0].context
    node.context.save("member", True)
    node.fingers = {150: 7, 151: 8}
    assert {7, 8} <= set(node._gates())


def test_a_search_that_nobody_can_carry_on_tries_suspects_last() -> None:
    node = made(Chord)
    node.joined = True
    node.learn(1)
    node.suspected = {2: 1e9}
    sent = spied(node)
    lookup = node._new(4, node.ids[2])
    node._merge(lookup, (1, 2), 1)
    node._advance(lookup)
    assert [to for to, _ in sent] == [1]
    node.receive(1, Nodes(node.count, (), False, (), 4))
    assert [to for to, _ in sent] == [1, 2]
    node.receive(2, Nodes(node.count, (2,), True, (), 4))
    assert lookup.owners == (2,)
    assert 2 not in node.suspected


def test_a_search_goes_on_from_its_own_table_when_all_it_was_told_are_silent() -> None:
    node: Any = Chord(redundancy=8, replicas=1).node(0, 50)
    node.context = simulate(Chord(), size=50, until=1).nodes[0].context
    node.joined = True
    order = sorted(range(1, 50), key=node.distance)
    for other in order[7::-1]:
        node.learn(other)
    sent = spied(node)
    far = (node.ids[order[20]] + 1) % 2**160
    node._search(node._new(4, far))
    # An answer names four; all eight are asked in the end.
    for _ in range(7):
        to = sent[-1][0]
        node.suspected[to] = 1e9
        node.forget(to)
        node._passed_over(next(iter(node.lookups.values())), to)
    asked = [to for to, message in sent if isinstance(message, Find)]
    assert sorted(asked) == sorted(order[:8])


def test_lookups_that_wait_for_a_place_do_not_keep_their_node_out() -> None:
    requests = [Request(at=1, node=3, command=("lookup", f"key {n}")) for n in range(2)]
    run = simulate(Chord(lookups=1), size=5, until=60, requests=requests, faults=[Crash(members=(4,), at=40.0)])
    assert inner_node(run.nodes[3]).joined
    node: Any = Chord(lookups=1).node(1, 5)
    node.context = run.nodes[1].context
    node.held = [node._new(4, 1)]
    node._join()
    assert any(lookup.kind == 0 for lookup in node.lookups.values())


def test_endpoints_that_have_ended_make_room() -> None:
    node = made(Registry, endpoints_per_key=2)
    node.keep(1, "a", -1.0)
    node.keep(1, "b", 10.0)
    assert node.keep(1, "c", 10.0) == ""
    assert set(node.store[1]) == {"b", "c"}


@pytest.mark.parametrize(
    "message",
    [
        Find(1, bytes(21), False, 4), Store(1, b"", "end", 9.0, 3), Find(1, bytes(20), False, 5), Ask(1, RIGHT, -1),
    ],
)  # fmt: skip
def test_messages_that_no_node_sends_are_ignored(message: Any) -> None:
    node = made(Kademlia)
    node.joined = True
    sent = spied(node)
    node.receive(2, message)
    assert sent == []
    assert node.store == {}
    assert node.known() == set()
