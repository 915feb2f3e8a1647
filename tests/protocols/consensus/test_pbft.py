from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.consensus import pbft
from wavetank.protocols.consensus.pbft import PBFT, PBFTNode
from wavetank.sim.events import simulate
from wavetank.sim.faults import Corruption, Crash, Delay, Equivocation, Fault, Omission, Replay, SelectiveRelay
from wavetank.sim.network import Network, Partition
from wavetank.sim.node import Message, Node
from wavetank.sim.simulation import LIVES, Request, Run


def run(
    size: int = 4,
    life: str = "rounds",
    *,
    algorithm: PBFT | None = None,
    faults: Sequence[Fault] = (),
    count: int = 40,
    seed: int = 0,
    until: float = 3000,
    **links: object,
) -> Run:
    requests = [Request(at=5 + 3 * each, node=each % size, command=("append", "x", each)) for each in range(count)]
    network = Network.complete(size, **links)
    return simulate(
        algorithm or PBFT(), network=network, until=until, life=life, seed=seed, requests=requests, faults=faults
    )


def replica(node: Node) -> PBFTNode:
    found = getattr(node, "inner", node)
    assert isinstance(found, PBFTNode)
    return found


def unanswered(found: Run, *, faulty: Sequence[int] = ()) -> list[int]:
    return [
        number
        for number, request in enumerate(found.requests)
        if number not in found.replies and request.node not in faulty
    ]


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("size", [1, 4, 6, 7])
def test_every_request_is_executed_everywhere_in_one_order(size: int, life: str) -> None:
    found = run(size, life)
    assert unanswered(found) == []
    (order,) = {replica(node).registers.values["x"] for node in found.nodes}
    assert sorted(order) == list(range(40))
    assert found.total("view changes") == 0


def test_a_batch_costs_the_messages_of_its_three_phases() -> None:
    size = 7
    found = simulate(PBFT(), size=size, until=50, requests=[Request(at=5, node=0, command=("write", "x", 1))])
    # The request enters at the primary: n-1 pre-prepares, (n-1)^2 prepares, n(n-1) commits.
    assert found.sent == (size - 1) + (size - 1) ** 2 + size * (size - 1)
    assert found.replies[0].at == 8


@pytest.mark.parametrize("life", LIVES)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([4, 7]),
    kind=st.sampled_from(["equivocate", "corrupt", "relay", "replay", "silent", "slow", "both"]),
    drop=st.sampled_from([0.0, 0.05]),
    most=st.sampled_from([1.0, 6.0]),
)
@settings(max_examples=15)
def test_f_byzantine_replicas_never_split_the_correct_ones(
    life: str, seed: int, size: int, kind: str, drop: float, most: float
) -> None:
    members = tuple((seed + each) % size for each in range((size - 1) // 3))
    faults: list[Fault] = {
        "equivocate": [Equivocation(members=members)],
        "corrupt": [Corruption(members=members, probability=0.4)],
        "relay": [SelectiveRelay(members=members, to=tuple(range(0, size, 2)))],
        "replay": [Replay(members=members)],
        "silent": [Omission(members=members)],
        "slow": [Delay(members=members, rounds=15)],
        "both": [Equivocation(members=members), Replay(members=members)],
    }[kind]
    found = run(size, life, seed=seed, faults=faults, drop=drop, delay="uniform", most_delay=most, count=20)
    assert PBFT().violation(found.snapshot()) == ""
    assert not [each for each in found.contradictions if int(each.split()[1]) not in members]
    assert unanswered(found, faulty=members) == []


def test_those_that_have_executed_help_those_that_have_not() -> None:
    """Two of five correct replicas have executed a batch: too few for their word, so the others need their votes."""
    found = run(
        7, "events", seed=3289, faults=[Omission(members=(6, 0))], drop=0.05, delay="uniform", most_delay=1.0, count=20
    )
    assert unanswered(found, faulty=(6, 0)) == []


@pytest.mark.parametrize("life", LIVES)
def test_a_silent_primary_is_replaced(life: str) -> None:
    found = run(4, life, faults=[Crash(members=(0,), at=30)])
    assert unanswered(found, faulty=(0,)) == []
    assert {replica(node).view for node in found.nodes[1:]} == {1}


def test_two_silent_primaries_in_a_row_are_replaced() -> None:
    found = run(7, faults=[Crash(members=(0, 1), at=30)])
    assert unanswered(found, faulty=(0, 1)) == []
    assert {replica(node).view for node in found.nodes[2:]} == {2}


def test_without_view_changes_a_silent_primary_ends_it_all() -> None:
    found = run(4, algorithm=PBFT(view_changes=False), faults=[Crash(members=(0,), at=30)])
    assert len(unanswered(found, faulty=(0,))) > 20


def test_a_quorum_of_f_plus_one_lets_an_equivocator_split_the_others() -> None:
    split = 0
    for seed in range(20):
        found = run(
            4, algorithm=PBFT(quorum=2), faults=[Equivocation(members=(0,))], seed=seed, delay="uniform", most_delay=4.0
        )
        split += PBFT().violation(found.snapshot()) != ""
    assert split > 0


def test_more_faults_than_it_tolerates_may_split_it_and_are_not_hidden() -> None:
    assert [PBFT().max_faults(size) for size in (1, 3, 4, 6, 7)] == [0, 0, 1, 1, 2]
    found = run(4, faults=[Omission(members=(2, 3))], until=500)
    assert len(unanswered(found, faulty=(2, 3))) == 20


def test_a_replica_that_was_cut_off_fetches_the_state() -> None:
    cut = Partition(start=10, stop=150, groups=((0, 1, 2), (3,)))
    parameters = PBFT(checkpoint=4, batch=1)
    found = run(4, algorithm=parameters, partitions=(cut,), count=60)
    assert unanswered(found) == []
    assert replica(found.nodes[3]).registers.values["x"] == replica(found.nodes[0]).registers.values["x"]


def test_checkpoints_bound_what_is_kept() -> None:
    found = run(4, algorithm=PBFT(checkpoint=4, batch=1, window=16), count=100)
    assert unanswered(found) == []
    for node in map(replica, found.nodes):
        assert node.stable.place >= 92
        assert len(node.prepares) <= 16
        assert len(node.accepted) <= 16
        assert len(node.own_checkpoints) <= 5


def test_a_request_that_comes_twice_takes_effect_once() -> None:
    found = run(4, faults=[Replay(members=(3,), probability=1.0)], duplicate=0.3)
    order = replica(found.nodes[0]).registers.values["x"]
    assert len(order) == len(set(order)) == 40


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(BadValueError):
        PBFT(patience_rounds=0.0)
    with pytest.raises(BadValueError):
        simulate(PBFT(), size=4, until=9, requests=[Request(at=1, node=0, command=("take", "x"))])


class Desk:
    """A context that writes down what a replica sends."""

    id, size, peers, now = 1, 4, (0, 2, 3), 5.0

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, to: int, message: Message) -> None:
        self.sent.append(message)

    def broadcast(self, message: Message) -> None:
        self.sent.append(message)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def alone(**parameters: Any) -> PBFTNode:
    node = PBFTNode(PBFT(**parameters), 4)
    node.context = Desk()  # type: ignore[assignment]
    node.start()
    return node


def kept(node: PBFTNode) -> int:
    """Return how many items a replica holds in all its fields."""

    def count(value: Any) -> int:
        if isinstance(value, dict):
            return sum(1 + count(each) for each in value.values())
        return sum(1 + count(each) for each in value) if isinstance(value, set | tuple | list) else 0

    return sum(count(value) for name, value in vars(node).items() if name != "context")


def flood(kind: str, each: int) -> Message:
    digest = each.to_bytes(16, "big")
    return {
        "prepare digests": pbft.Prepare(0, 1, digest),
        "prepare views": pbft.Prepare(4 * each, 1, digest),
        "commit digests": pbft.Commit(0, 1, digest),
        "commit views": pbft.Commit(each, 1, digest),
        "checkpoints": pbft.Checkpoint(each + 1, digest),
        "checkpoint digests": pbft.Checkpoint(16, digest),
        "view changes": pbft.ViewChange(each + 1, 0, (), (), ()),
        "acknowledged views": pbft.ViewChangeAck(each, 2, digest),
        "acknowledged senders": pbft.ViewChangeAck(1, each, digest),
        "acknowledged digests": pbft.ViewChangeAck(1, 2, digest),
        "new views": pbft.NewView(4 * each + 3, (), pbft.Checkpoint(0, digest), ()),
        "outcomes": pbft.Outcome(each, None),
        "batches": pbft.Batch((pbft.Ask(each, 3, ("read", "x")),)),
        "states": pbft.State(each, (), ()),
    }[kind]


FLOODS = (
    "prepare digests", "prepare views", "commit digests", "commit views", "checkpoints", "checkpoint digests",
    "view changes", "acknowledged views", "acknowledged senders", "acknowledged digests", "new views", "outcomes",
    "batches", "states",
)  # fmt: skip


@pytest.mark.parametrize("kind", FLOODS)
def test_one_replica_cannot_fill_another_ones_memory(kind: str) -> None:
    node = alone()
    before = kept(node)
    for each in range(500):
        node.receive(3, flood(kind, each))
    assert kept(node) - before <= 40
    assert node.view == 0


def test_requests_of_one_replica_that_are_not_executed_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pbft, "MOST_ASKED", 10)
    node = alone()
    for each in range(100):
        node.receive(3, pbft.Ask(each, 3, ("read", "x")))
        node.receive(3, pbft.Ask(1000 + each, 2, ("read", "x")))
    assert len(node.waiting) == 20
    # A flood of one takes nothing from another.
    node.receive(2, pbft.Ask(5000, 2, ("read", "x")))
    assert 5000 in node.waiting
    node._done(5000)
    assert all(5000 not in numbers for numbers in node.asked.values())


def test_a_second_vote_of_a_replica_for_the_same_number_does_not_count() -> None:
    node = alone()
    batch = (pbft.Ask(7, 0, ("write", "x", 1)),)
    right, wrong = pbft.digest_of(batch), pbft.digest_of(())
    node.receive(0, pbft.PrePrepare(0, 1, batch))
    node.receive(3, pbft.Prepare(0, 1, wrong))
    node.receive(3, pbft.Prepare(0, 1, right))
    assert not any(isinstance(each, pbft.Commit) for each in node.context.sent)  # type: ignore[attr-defined]
    node.receive(2, pbft.Prepare(0, 1, right))
    assert any(isinstance(each, pbft.Commit) for each in node.context.sent)  # type: ignore[attr-defined]


def test_a_batch_larger_than_batches_are_is_not_accepted() -> None:
    node = alone(batch=2)
    node.receive(0, pbft.PrePrepare(0, 1, tuple(pbft.Ask(each, 0, ("read", "x")) for each in range(3))))
    assert not node.accepted
    assert not node.waiting


FAR = 2**60


@pytest.mark.parametrize(
    "change",
    [
        pbft.ViewChange(1, 0, (), (pbft.Certified(FAR, b"", 0),), ()),
        pbft.ViewChange(1, FAR, (), (pbft.Certified(FAR + 1, b"", 0),), (pbft.Certified(0, b"", 0),)),
        pbft.ViewChange(1, -1, (), (), ()),
        pbft.ViewChange(1, 0, (), (pbft.Certified(1, b"", 1),), ()),
        pbft.ViewChange(1, 0, (), (pbft.Certified(1, b"a", 0), pbft.Certified(1, b"b", 0)), ()),
        pbft.ViewChange(1, 0, tuple(pbft.Checkpoint(each, b"") for each in range(100)), (), ()),
        pbft.ViewChange(1, 0, (), (), tuple(pbft.Certified(1, bytes([each]), 0) for each in range(200)) * 9),
    ],
    ids=["place", "no window", "stable", "view", "two batches", "checkpoints", "accepted"],
)
def test_a_view_change_that_no_correct_replica_sends_is_ignored(change: pbft.ViewChange) -> None:
    node = alone()
    node.receive(3, change)
    assert not node.changes


def test_a_place_far_away_in_a_view_change_neither_stops_nor_slows_the_new_view() -> None:
    node = alone()
    # The liar's whole window lies far away, so its view change alone makes sense.
    node.receive(3, pbft.ViewChange(1, FAR, (), (pbft.Certified(FAR + 1, b"", 0),), ()))
    node.timer("patience")
    beginning = (pbft.Checkpoint(0, node.stable.digest),)
    for sender in (0, 2):
        node.receive(sender, pbft.ViewChange(1, 0, beginning, (), ()))
    for about in (0, 2, 3):
        for sender in {0, 2, 3} - {about}:
            change = node.changes[1][about]
            node.receive(sender, pbft.ViewChangeAck(1, about, pbft.digest_of(change)))
    assert node.active
    assert len(node.new_views[1].chosen) <= node.parameters.window


def test_replicas_far_ahead_are_followed_although_what_they_said_there_is_not_kept() -> None:
    node = alone()
    node.receive(3, pbft.ViewChange(1000, 0, (), (), ()))
    assert node.view == 0
    node.receive(2, pbft.ViewChange(900, 0, (), (), ()))
    assert node.view == 900
    assert not node.active


def test_a_replica_without_the_state_takes_the_new_views_batches_once_it_has_it() -> None:
    # Cut off while the others pass checkpoints, then the primary falls silent: the new view begins beyond its window.
    cut = Partition(start=10, stop=220, groups=((0, 1, 2, 4, 5, 6), (3,)))
    parameters = PBFT(checkpoint=4, batch=1, window=8)
    for seed in range(5):
        found = run(
            7, algorithm=parameters, partitions=(cut,), faults=[Crash(members=(0,), at=150)], count=70, seed=seed
        )
        assert unanswered(found, faulty=(0,)) == []
        assert parameters.violation(found.snapshot()) == ""
        # It may lack what came after the last checkpoint.
        state, order = (replica(found.nodes[each]).registers.values["x"] for each in (3, 1))
        assert state == order[: len(state)]
        assert len(state) > len(order) - 8


NUMBERS = st.one_of(st.integers(-2, 4), st.sampled_from([-(2**63), 2**31, 2**60, 2**63, 2**64 - 1]))
DIGESTS = st.sampled_from([b"", pbft.digest_of(()), pbft.digest_of(((), ())), bytes(16)])
COMMANDS = st.sampled_from([None, ("read", "x"), ("write", "x", 1), ("append", "x", 2), ("cas", "x", (1,)), (b"", {})])
BATCHES = st.lists(st.builds(pbft.Ask, NUMBERS, NUMBERS, COMMANDS), max_size=2).map(tuple)
CHECKPOINTS = st.builds(pbft.Checkpoint, NUMBERS, DIGESTS)
CERTIFIED = st.lists(st.builds(pbft.Certified, NUMBERS, DIGESTS, NUMBERS), max_size=2).map(tuple)
PAIRS = st.lists(st.tuples(NUMBERS, DIGESTS), max_size=3).map(tuple)
WORDS = st.one_of(
    st.builds(pbft.Ask, NUMBERS, NUMBERS, COMMANDS),
    st.builds(pbft.Outcome, NUMBERS, COMMANDS),
    st.builds(pbft.PrePrepare, NUMBERS, NUMBERS, BATCHES),
    st.builds(pbft.Prepare, NUMBERS, NUMBERS, DIGESTS),
    st.builds(pbft.Commit, NUMBERS, NUMBERS, DIGESTS),
    CHECKPOINTS,
    st.builds(pbft.ViewChange, NUMBERS, NUMBERS, st.lists(CHECKPOINTS, max_size=2).map(tuple), CERTIFIED, CERTIFIED),
    st.builds(pbft.ViewChangeAck, NUMBERS, NUMBERS, DIGESTS),
    st.builds(pbft.NewView, NUMBERS, PAIRS, CHECKPOINTS, PAIRS),
    st.builds(pbft.Remind, NUMBERS),
    st.builds(pbft.FetchBatch, DIGESTS),
    st.builds(pbft.Batch, BATCHES),
    st.builds(pbft.FetchState, NUMBERS),
    st.builds(pbft.State, NUMBERS, st.just(()), st.just(())),
)


@given(said=st.lists(st.tuples(st.sampled_from([0, 2, 3]), WORDS), max_size=25), leave=st.booleans())
@settings(max_examples=120)
def test_no_message_whatever_it_says_raises(said: list[tuple[int, Message]], leave: bool) -> None:
    node = alone()
    node.request(1, ("write", "x", 1))
    for sender, message in said:
        node.receive(sender, message)
        if leave and len(said) > 12:
            node.timer("patience")
            leave = False
    node.timer("again")
    node.timer("retry")
    assert node.executed >= 0
