"""The stores under faults, in the explorer and on sockets, as any other algorithm."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.check.consistency.engine import judge
from wavetank.check.explore import Environment, SearchBudget, explore
from wavetank.errors import BadValueError
from wavetank.live.cluster import run_cluster
from wavetank.protocols.histories.stores import (
    CausalStore,
    FifoStore,
    LastWriterWinsStore,
    PrimaryStore,
    QuorumStore,
    SequencerStore,
)
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash, RandomCrashes
from wavetank.sim.network import Network
from wavetank.sim.simulation import Request

STORES = (
    LastWriterWinsStore(), FifoStore(), CausalStore(), SequencerStore(), QuorumStore(), PrimaryStore(),
    QuorumStore(write_back=False),
)  # fmt: skip


def asked(size: int, count: int, apart: float) -> list[Request]:
    commands = [("write", "x", number) if number % 3 == 0 else ("read", "x") for number in range(count)]
    return [
        Request(at=1 + apart * number, node=number * 7 % size, command=command)
        for number, command in enumerate(commands)
    ]


@pytest.mark.parametrize("store", STORES, ids=repr)
def test_repeated_and_reordered_messages_change_nothing(store: Any) -> None:
    network = Network.complete(3, delay="exponential", mean_delay=3.0, duplicate=0.3, reorder=0.5)
    keeps = {SequencerStore: "sequential", PrimaryStore: "linearizable", CausalStore: "causal", FifoStore: "pram"}
    model = keeps.get(type(store), "eventual")
    if type(store) is QuorumStore:
        model = "linearizable" if store.write_back else "regular"
    for seed in range(6):
        run = simulate(store, network=network, until=2000, life="events", seed=seed, requests=asked(3, 24, 1.5))
        assert len(run.replies) == 24
        assert run.violation == ""
        assert judge(run.history(), model).outcome != "violated"


def test_a_minority_that_crashes_and_returns_loses_nothing_of_a_quorum_store() -> None:
    faults = [RandomCrashes(members=(0, 1, 2, 3, 4), odds=0.02, down_for=30.0)]
    network = Network.complete(5, delay="exponential", mean_delay=2.0)
    answered = 0
    for seed in range(20):
        run = simulate(
            QuorumStore(), network=network, until=400, life="events", seed=seed, faults=faults,
            requests=asked(5, 60, 4.0),
        )  # fmt: skip
        answered += len(run.replies)
        assert run.violation == ""
        assert judge(run.history(), "linearizable").outcome == "holds"
    assert answered > 20 * 20


class _Forgetful(QuorumStore):
    """Answers when a single replica has stored."""

    def node(self, index: int, size: int) -> Any:
        node = super().node(index, size)
        node.majority = 1  # type: ignore[attr-defined]
        return node


def test_the_explorer_finds_a_quorum_that_is_too_small() -> None:
    requests = [Request(at=0, node=0, command=("write", "x", 1)), Request(at=0, node=1, command=("read", "x"))]
    budget = SearchBudget(states=300_000)
    assert explore(_Forgetful(), 3, requests=requests, budget=budget).outcome == "violated"
    right = explore(QuorumStore(), 3, requests=requests[:1], budget=budget)
    assert (right.outcome, right.complete) == ("holds", True)


@pytest.mark.parametrize("store", [SequencerStore(), PrimaryStore(), CausalStore(), FifoStore()], ids=repr)
def test_every_interleaving_of_two_writes_keeps_the_invariant(store: Any) -> None:
    requests = [Request(at=0, node=node, command=("write", "x", node)) for node in (1, 2)]
    found = explore(store, 3, requests=requests, environment=Environment(duplicates=1))
    assert (found.outcome, found.complete) == ("holds", True)


def test_a_launched_quorum_store_answers_while_a_replica_is_down() -> None:
    requests = asked(3, 12, 4.0)
    requests = [Request(at=each.at, node=each.node % 2, command=each.command, client=f"c{n}")
                for n, each in enumerate(requests)]  # fmt: skip
    run = run_cluster(
        QuorumStore(), 3, requests=requests, duration_s=20.0, round_s=0.02, faults=(Crash(members=(2,), at=5.0),),
        stop=lambda found: len(found.replies) == len(requests),
    )  # fmt: skip
    assert (len(run.replies), run.violation) == (12, "")
    assert judge(run.history(), "linearizable").outcome == "holds"


@pytest.mark.parametrize("command", [("cas", "x", (1, 2)), ("read",), ("write", "x"), "read", ("read", "x", 1), ()])
def test_other_commands_are_refused(command: Any) -> None:
    with pytest.raises(BadValueError, match="does not know this command"):
        simulate(PrimaryStore(), size=3, until=5, requests=[Request(at=1, node=0, command=command)])
