"""Tests of QUANTAS's stabilizing data link."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.protocols.quantas.stable_data_link import StableDataLink
from wavetank.sim.events import simulate
from wavetank.sim.network import Topology


def utility(rules: QuantasRounds, seed: int = 0) -> float:
    return float(
        StableDataLink().series(rules.simulate(StableDataLink(), rounds=100, size=2, seed=seed), 100)["utility"][-1]
    )


def test_without_losses_it_has_quantas_figures() -> None:
    run = QuantasRounds(queue=100).simulate(StableDataLink(), rounds=100, size=2)
    series = StableDataLink().series(run, 100)
    assert (series["utility"][-1], series["messages"][-1], series["throughput"][-1]) == (49.0, 100.0, 24.5)
    assert series["messages"][:4] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("rules", "there"),
    [
        (QuantasRounds(most_delay=3, drop=0.1, duplicate=0.02, reorder=0.05, queue=3), 37.57),
        (QuantasRounds(most_delay=3, queue=100), 43.22),
        (QuantasRounds(most_delay=3, drop=0.1, duplicate=0.4, reorder=0.5, budget=2, queue=2), 33.09),
    ],
)
def test_faults_cost_what_they_cost_in_quantas(rules: QuantasRounds, there: float) -> None:
    # Means of 300 tests there, with standard errors of 0.2.
    assert sum(utility(rules, seed) for seed in range(150)) / 150 == pytest.approx(there, abs=1.2)


def test_a_duplicate_counts_once() -> None:
    run = QuantasRounds(duplicate=0.5, budget=5).simulate(StableDataLink(), rounds=200, size=2)
    numbers = [number for _, number in run.decisions]
    assert len(numbers) > 90
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(run.recorded["satisfied"]) == len(numbers)


def test_a_sender_that_hears_nothing_repeats_itself_every_five_rounds() -> None:
    run = QuantasRounds(drop=1.0).simulate(StableDataLink(), rounds=21, size=2)
    assert [at for at, _, _ in run.recorded["said"]] == [1, 6, 11, 16, 21]


def test_a_sender_without_neighbours_speaks_to_nobody() -> None:
    run = QuantasRounds().simulate(StableDataLink(), rounds=10, topology=Topology(2, ((), ())))
    assert (run.sent, len(run.recorded["said"])) == (0, 2)


def test_it_runs_as_events_too() -> None:
    assert len(simulate(StableDataLink(), size=2, until=100, life="events").decisions) == 49


def test_a_timeout_takes_time() -> None:
    with pytest.raises(BadValueError):
        StableDataLink(timeout=0)
    assert StableDataLink().max_faults(2) == 0
