"""Tests of QUANTAS's Raft."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.quantas.raft import QuantasRaft
from wavetank.protocols.quantas.rounds import Pauses, QuantasRounds
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request


def means(algorithm: QuantasRaft, pauses: Pauses, seeds: int) -> tuple[float, float]:
    """Return the mean throughput and latency of 1000 rounds with 20 servers."""
    tests = [
        algorithm.series(QuantasRounds().simulate(algorithm, rounds=1000, size=20, seed=seed, pauses=pauses), 1000)
        for seed in range(seeds)
    ]
    return (
        statistics.fmean(test["throughput"][-1] for test in tests),
        statistics.fmean(test["latency"][-1] for test in tests),
    )


def test_without_crashes_a_request_takes_three_rounds() -> None:
    # QUANTAS: 332.05 or 333.0, by the round in which the first client comes.
    throughput, latency = means(QuantasRaft(submit_rate=20, timeout=20, jitter=5), Pauses(), 5)
    assert throughput == pytest.approx(332.1, abs=0.5)
    assert latency == pytest.approx(2.997, abs=0.001)


@pytest.mark.parametrize(
    ("algorithm", "pauses", "throughput", "latency"),
    [
        (
            QuantasRaft(submit_rate=10, timeout=20, jitter=10),
            Pauses(odds=0.05, rounds=20, stopped=(0, 1, 2, 3, 4), until=40), (45.8, 5.0), (13.9, 1.6),
        ),
        (
            QuantasRaft(submit_rate=10, timeout=40, jitter=30),
            Pauses(odds=0.01, rounds=10, stopped=(0, 1), until=100), (272.7, 6.0), (3.28, 0.08),
        ),
    ],
)  # fmt: skip
def test_crashes_cost_what_they_cost_in_quantas(
    algorithm: QuantasRaft, pauses: Pauses, throughput: tuple[float, float], latency: tuple[float, float]
) -> None:
    # Means of 8 runs there, and what both means may differ by.
    found = means(algorithm, pauses, 10)
    assert found[0] == pytest.approx(throughput[0], abs=throughput[1])
    assert found[1] == pytest.approx(latency[0], abs=latency[1])


def test_all_servers_commit_the_same_requests() -> None:
    asked = [Request(at=at, node=at % 5, command=1000 + at) for at in range(1, 40)]
    run = QuantasRounds().simulate(QuantasRaft(submit_rate=0), rounds=300, size=5, requests=asked)
    wanted = {1000 + at for at in range(1, 40)}
    for node in range(5):
        assert wanted <= {key for who, key in run.decisions if who == node}


def test_a_new_leader_is_elected_when_the_first_stands_still() -> None:
    pauses = Pauses(stopped=(0,))
    run = QuantasRounds().simulate(QuantasRaft(), rounds=400, size=5, pauses=pauses)
    nodes: list[Any] = run.nodes
    assert {node.leader for node in nodes[1:]} <= {1, 2, 3, 4}
    assert QuantasRaft().series(run, 400)["leaderChanges"][-1] >= 1
    # The first timeout takes 100 to 104 rounds whatever the settings.
    assert min(when for node in nodes for when in node.elections) in range(102, 108)


def test_a_minority_commits_nothing() -> None:
    run = QuantasRounds().simulate(QuantasRaft(), rounds=400, size=5, pauses=Pauses(stopped=(0, 1, 2)))
    assert run.decisions == {}
    assert QuantasRaft().max_faults(5) == 1


def test_without_clients_nothing_is_sent_before_the_first_timeout() -> None:
    run = QuantasRounds().simulate(QuantasRaft(submit_rate=0), rounds=99, size=5)
    assert run.sent == 0


def test_it_runs_as_events_too() -> None:
    asked = [Request(at=1, node=2, command=500)]
    run = simulate(QuantasRaft(submit_rate=0), size=3, until=50, life="events", requests=asked)
    assert {(0, 500), (1, 500), (2, 500)} <= run.decisions.keys()


def test_parameters_are_checked() -> None:
    for wrong in ({"timeout": 0}, {"submit_rate": -1}, {"jitter": -1}):
        with pytest.raises(BadValueError):
            QuantasRaft(**wrong)
