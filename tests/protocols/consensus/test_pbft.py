from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.consensus.pbft import PBFT, PBFTNode
from wavetank.protocols.faults import Corruption, Crash, Delay, Equivocation, Fault, Omission, Replay, SelectiveRelay
from wavetank.protocols.interfaces import Node
from wavetank.protocols.network import Network, Partition
from wavetank.protocols.simulation import LIVES, Request, Run, simulate


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
@settings(max_examples=30)
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


def test_more_faults_than_it_bears_may_split_it_and_are_not_hidden() -> None:
    assert [PBFT().bears(size) for size in (1, 3, 4, 6, 7)] == [0, 0, 1, 1, 2]
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
