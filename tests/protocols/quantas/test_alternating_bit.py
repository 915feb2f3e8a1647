"""Tests of QUANTAS's alternating bit protocol."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.quantas.alternating_bit import AlternatingBit
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.sim.events import simulate


def test_without_losses_one_message_is_delivered_every_two_rounds() -> None:
    run = QuantasRounds().simulate(AlternatingBit(timeout=2), rounds=100, size=2)
    # QUANTAS's own figures for this input.
    assert AlternatingBit().series(run, 100) == {"utility": [49.0], "messages": [100.0], "throughput": [49.0]}
    assert [run.decided_at[0, number] for number in (1, 2, 3)] == [3, 5, 7]


def test_a_lost_message_is_sent_again() -> None:
    rules = QuantasRounds(drop=0.5)
    stuck = rules.simulate(AlternatingBit(timeout=0), rounds=1000, size=2)
    goes_on = rules.simulate(AlternatingBit(timeout=2), rounds=1000, size=2)
    assert len(stuck.decisions) < 20
    assert len(goes_on.decisions) > 100


def test_numbers_are_acknowledged_in_order_whatever_the_links_do() -> None:
    rules = QuantasRounds(most_delay=3, drop=0.2, duplicate=0.2, reorder=0.3, budget=2)
    run = rules.simulate(AlternatingBit(timeout=3), rounds=1000, size=2)
    numbers = [number for _, number in run.decisions]
    assert numbers == list(range(1, len(numbers) + 1))


def test_drops_cost_what_they_cost_in_quantas() -> None:
    # Means of 300 tests there: 28.06 and 31.76 percent (standard errors 0.16 and 0.14).
    for rules, utility in (
        (QuantasRounds(most_delay=3, drop=0.1, duplicate=0.02, reorder=0.05, queue=3), 28.06),
        (QuantasRounds(most_delay=3, queue=100), 31.76),
    ):
        tests = [
            AlternatingBit().series(rules.simulate(AlternatingBit(timeout=3), rounds=100, size=2, seed=seed), 100)
            for seed in range(150)
        ]
        assert sum(test["utility"][0] for test in tests) / 150 == pytest.approx(utility, abs=1.0)


def test_a_third_node_says_what_nobody_needs() -> None:
    run = QuantasRounds().simulate(AlternatingBit(timeout=2), rounds=20, size=3)
    found: Any = run.nodes[2]
    assert found.sent == 6
    assert len([key for key in run.decisions if key[0] == 0]) == 9


def test_it_runs_as_events_too() -> None:
    run = simulate(AlternatingBit(), size=2, until=100, life="events")
    assert len(run.decisions) == 49


def test_a_negative_timeout_is_refused() -> None:
    with pytest.raises(BadValueError):
        AlternatingBit(timeout=-1)
    assert AlternatingBit().max_faults(2) == 0
