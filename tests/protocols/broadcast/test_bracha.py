from __future__ import annotations

import pytest

from wavetank.check.explore import Environment, SearchBudget, explore, replay
from wavetank.check.explore.environment import AnyOf
from wavetank.protocols.broadcast.adversaries import Twins
from wavetank.protocols.broadcast.bracha import Bracha, Echo, Ready, Send
from wavetank.protocols.broadcast.trials import judged
from wavetank.sim.events import simulate
from wavetank.sim.faults import SelectiveRelay
from wavetank.sim.node import Snapshot
from wavetank.sim.simulation import Request

ONE = [Request(at=1.0, node=0, command=("broadcast", b"a"))]
# A Byzantine sender and what it may say.
SENDS = (Send(1, b"a"), Send(1, b"b"))
VOTES = (Echo(0, 1, b"a"), Ready(0, 1, b"a"))


def test_it_takes_three_message_delays_and_the_messages_of_the_paper() -> None:
    run = simulate(Bracha(), size=7, until=20, requests=ONE)
    assert set(run.decided_at.values()) == {4.0}
    assert run.sent == 6 + 2 * 7 * 6
    assert run.replies[0].result == (0, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_few_nodes_deliver_too(size: int) -> None:
    run = simulate(Bracha(), size=size, until=20, requests=ONE)
    assert len(run.decisions) == size


def test_f_readies_more_make_everyone_ready() -> None:
    # Echoes of everyone reach nodes 1 to 4 alone; the others become ready by f+1 readies.
    faults = [SelectiveRelay(members=(0,), to=(1, 2, 3, 4))]
    run = simulate(Bracha(), size=7, until=40, requests=ONE, faults=faults)
    assert {node for node, _ in run.decisions} >= {1, 2, 3, 4, 5, 6}
    assert not any(judged(Bracha(), run).values())


def test_every_interleaving_of_four_nodes_with_a_byzantine_sender_agrees() -> None:
    found = explore(Bracha(), 4, faults=[AnyOf(members=(0,), menu=SENDS, sends=3)])
    assert found.complete
    assert found.outcome == "holds"
    assert found.states == 48_452


def _all_or_nobody(snapshot: Snapshot) -> bool:
    return len({node for node, _ in snapshot.decisions if node in snapshot.correct}) == len(snapshot.correct)


def test_every_interleaving_of_a_correct_sender_delivers_everywhere() -> None:
    found = explore(
        Bracha(),
        4,
        requests=ONE,
        faults=[SelectiveRelay(members=(3,), to=())],
        eventually={"delivered": _all_or_nobody},
        budget=SearchBudget(states=2_000_000),
    )
    assert found.complete
    assert found.outcome == "holds"


@pytest.mark.slow
def test_every_interleaving_with_lying_votes_agrees() -> None:
    found = explore(
        Bracha(),
        4,
        faults=[AnyOf(members=(0,), menu=(*SENDS, *VOTES), sends=4)],
        budget=SearchBudget(states=3_000_000),
    )
    assert found.complete
    assert found.outcome == "holds"


def test_a_quorum_of_f_and_one_is_found_out() -> None:
    twins = [Twins(members=(0,), first=(1,), second=(2, 3))]
    found = explore(Bracha(quorum=2), 4, requests=ONE, faults=twins, environment=Environment())
    assert found.outcome == "violated"
    assert found.counterexample is not None
    assert "decided b'a' and b'another a'" in found.counterexample.chart()
    path = replay(found, found.counterexample.actions)
    assert Bracha().violation(path.snapshot())


def test_random_walks_find_it_without_knowing_the_attack() -> None:
    found = explore(
        Bracha(quorum=2), 4, faults=[AnyOf(members=(0,), menu=(*SENDS, *VOTES), sends=5)], order="random", seed=1
    )
    assert found.outcome == "violated"


def test_the_same_twins_do_not_fool_the_right_quorum() -> None:
    twins = [Twins(members=(0,), first=(1,), second=(2, 3))]
    found = explore(Bracha(), 4, requests=ONE, faults=twins, budget=SearchBudget(states=3_000_000))
    assert found.complete
    assert found.outcome == "holds"
