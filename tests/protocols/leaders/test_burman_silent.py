"""The silent protocol: a binary tree of ranks, linear time."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import UnknownNameError
from wavetank.protocols.leaders.burman_silent import CHILDREN, UNSETTLED, BurmanSilent
from wavetank.protocols.leaders.reset import MODE
from wavetank.protocols.leaders.simulation import RANK


def _mean_time(protocol: BurmanSilent, n: int, runs: int) -> float:
    return float(np.mean([protocol.elect(n, "garbage", seed, most_time=1e6).time for seed in range(runs)]))


def test_the_agent_of_rank_r_gives_the_ranks_2r_and_2r_plus_1() -> None:
    agents = BurmanSilent().begin(7, "correct", 0)
    root = int(np.flatnonzero(agents.ranks == 1)[0])
    agents.agents[:, RANK] = 0
    agents.agents[:, MODE] = UNSETTLED
    agents.agents[root, [RANK, MODE, CHILDREN]] = 1, 0, 0
    agents.recount()
    assert agents.advance(200.0, window=0.0)
    assert sorted(agents.ranks) == list(range(1, 8))
    children = {int(rank): int(children) for rank, children in agents.agents[:, [RANK, CHILDREN]]}
    assert children == {1: 2, 2: 2, 3: 2, 4: 0, 5: 0, 6: 0, 7: 0}


def test_a_right_ranking_is_silent() -> None:
    agents = BurmanSilent().begin(40, "correct", 0)
    before = agents.agents.copy()
    agents.advance(500.0)
    assert np.array_equal(agents.agents, before)


def test_time_is_about_linear() -> None:
    protocol = BurmanSilent(election="tickets")
    few, many = _mean_time(protocol, 100, 12), _mean_time(protocol, 800, 12)
    assert 4 < many / few < 16


def test_a_lottery_is_faster_than_duels_and_costs_bits() -> None:
    duel, tickets = BurmanSilent(), BurmanSilent(election="tickets")
    assert _mean_time(tickets, 400, 6) < _mean_time(duel, 400, 6)
    assert tickets.memory(400).state_bits > duel.memory(400).state_bits


def test_the_number_of_states_is_linear() -> None:
    states = [2 ** BurmanSilent().memory(n).state_bits for n in (1_000, 10_000, 100_000)]
    assert states[1] / states[0] == pytest.approx(10, rel=0.05)
    assert states[2] / states[1] == pytest.approx(10, rel=0.05)


def test_unknown_starts_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="start"):
        BurmanSilent().elect(10, "nothing", 0, most_time=1.0)
