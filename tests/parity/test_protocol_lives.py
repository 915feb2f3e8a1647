"""One node class, four lives: rounds, events, sockets and the explorer agree on what the algorithms decide."""

from __future__ import annotations

from typing import Any

import pytest
from small_protocols import Flood

from wavetank.check.consistency.engine import judge
from wavetank.check.explore import Clock, Environment, SearchBudget, explore
from wavetank.check.explore.values import canonical
from wavetank.live.cluster import run_cluster
from wavetank.protocols.consensus.pbft import PBFT
from wavetank.protocols.consensus.raft import Raft
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash, Equivocation
from wavetank.sim.network import Network
from wavetank.sim.node import Snapshot
from wavetank.sim.simulation import LIVES, Request

COMMANDS = [("write", "x", 1), ("append", "y", 1), ("cas", "x", (1, 2)), ("append", "y", 2), ("write", "z", 5)]


def asked(size: int, start: float, apart: float = 6.0) -> list[Request]:
    return [
        Request(at=start + apart * number, node=number % size, command=command, client=f"c{number}")
        for number, command in enumerate(COMMANDS)
    ]


def committed(run: Any) -> set[Any]:
    """Return the requests that nodes decided, without the order in which the log holds them."""
    found = set()
    for value in run.decisions.values():
        entries = value if isinstance(value[0], tuple) else (value,)
        found |= {number for number, _ in entries}
    return found


@pytest.mark.parametrize(("algorithm", "size", "start"), [(Raft(), 3, 60.0), (PBFT(), 4, 5.0)])
def test_the_same_requests_are_committed_in_every_life(algorithm: Any, size: int, start: float) -> None:
    requests = asked(size, start)
    runs = [simulate(algorithm, size=size, until=300, life=life, requests=requests) for life in LIVES]
    real = run_cluster(
        algorithm, size, requests=requests, duration_s=20.0, round_s=0.01,
        stop=lambda found: len(found.replies) == len(requests) and len(found.decisions) == size * len(requests),
    )  # fmt: skip
    for run in (*runs, real):
        assert committed(run) == set(range(len(COMMANDS)))
        assert algorithm.violation(run.snapshot()) == "" if run in runs else not real.violation
        assert len(run.replies) == len(COMMANDS)
    results = [[run.replies[number].result for number in range(len(COMMANDS))] for run in (*runs, real)]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("algorithm", "size", "start"), [(Raft(), 5, 60.0), (PBFT(), 4, 5.0)])
@pytest.mark.parametrize("life", LIVES)
def test_histories_of_replicated_logs_are_linearizable(algorithm: Any, size: int, start: float, life: str) -> None:
    commands = [("write", "x", 1), ("read", "x"), ("write", "x", 2), ("cas", "x", (2, 3)), ("read", "x"), ("read", "x")]
    requests = [
        Request(at=start + 2 * number, node=number % size, command=command, client=f"c{number}")
        for number, command in enumerate(commands * 4)
    ]
    network = Network.complete(size, delay="uniform", most_delay=4.0, drop=0.05)
    for seed in range(3):
        run = simulate(algorithm, network=network, until=2000, life=life, seed=seed, requests=requests)
        assert judge(run.history(), "linearizable").outcome == "holds"


class Impatient(Flood):
    """Decides before all messages can have come; nobody minds."""

    def violation(self, snapshot: Snapshot) -> str:
        return ""


def test_the_explorer_sees_every_end_that_simulations_come_to() -> None:
    algorithm = Impatient(rounds=3)
    found = explore(algorithm, 3, clock=Clock(most_delay=4), terminal=10**6)
    assert (found.outcome, found.complete) == ("holds", True)
    assert len(found.terminal) == found.terminal_states
    ends = {canonical(dict(path.snapshot().decisions)) for path in found.terminal}
    network = Network.complete(3, delay="uniform", most_delay=4.0)
    drawn = {canonical(simulate(algorithm, network=network, until=50, seed=seed).decisions) for seed in range(100)}
    assert len(drawn) > 2
    assert drawn <= ends


def test_what_holds_only_in_time_is_violated_without_a_clock_and_holds_with_one() -> None:
    for life in LIVES:
        assert simulate(Flood(), size=3, until=20, life=life).violation == ""
    assert explore(Flood(), 3).outcome == "violated"
    assert explore(Flood(), 3, clock=Clock(most_delay=3)).outcome == "holds"
    assert explore(Flood(rounds=3), 3, clock=Clock(most_delay=3)).outcome == "violated"


def test_the_explorer_finds_a_raft_that_counts_too_few_votes() -> None:
    wrong = explore(Raft(quorum=1), 2, environment=Environment(timeouts=2), budget=SearchBudget(states=200_000))
    assert wrong.outcome == "violated"
    right = explore(Raft(), 2, environment=Environment(timeouts=2), budget=SearchBudget(states=200_000))
    assert right.outcome != "violated"


def test_the_explorer_finds_a_pbft_whose_quorum_is_too_small() -> None:
    ask = [Request(at=0, node=0, command=("write", "x", 1))]
    lie = [Equivocation(members=(0,), other=(3,))]
    for order in ("breadth-first", "depth-first", "random"):
        wrong = explore(PBFT(quorum=2), 4, requests=ask, faults=lie, order=order, environment=Environment(timeouts=0))
        assert wrong.outcome == "violated"


def test_the_explorer_finds_that_nothing_is_decided_without_view_changes() -> None:
    ask = [Request(at=0, node=1, command=("write", "x", 1))]
    down = [Crash(members=(0,))]
    answered = {"answered": lambda snapshot: 0 in snapshot.replies}
    budget = SearchBudget(states=300_000, seconds=30)
    wrong = explore(
        PBFT(view_changes=False), 4, requests=ask, faults=down, eventually=answered, budget=budget,
        environment=Environment(timeouts="unlimited", timers="when-quiet"),
    )  # fmt: skip
    # The client's replica asks again for ever, so this is no run that only a bound on time-outs ends.
    assert wrong.outcome == "violated"
