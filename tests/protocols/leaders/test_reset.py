"""A reset reaches everybody, picks one candidate, and all wake together."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.protocols.leaders.burman_silent import BurmanSilent
from wavetank.protocols.leaders.reset import (
    CANDIDATE,
    COUNTDOWN,
    DORMANT,
    MODE,
    RESET,
    TICKET,
    WAKES_FIRST,
    WAKES_SECOND,
    draw_reset_fields,
    enter_reset,
    reset_constants,
    reset_fields,
    reset_meeting,
    trigger,
)
from wavetank.protocols.leaders.simulation import RANK, Population


@pytest.fixture
def agents() -> Population:
    return BurmanSilent(election="tickets").begin(16, "correct", 0)


def _meet(agents: Population, first: int, second: int) -> int:
    return int(reset_meeting(agents.agents, first, second, agents.constants, agents.draws, agents.board))


def test_a_trigger_takes_the_rank_and_starts_the_countdown(agents: Population) -> None:
    trigger(agents.agents, 3, agents.constants, agents.draws, agents.board)
    record = agents.agents[3]
    assert record[RANK] == 0
    assert record[MODE] == RESET
    assert record[COUNTDOWN] == agents.constants[0]
    assert agents.triggers == 1
    assert not agents.is_ranked()


def test_whoever_meets_a_countdown_joins_it(agents: Population) -> None:
    trigger(agents.agents, 3, agents.constants, agents.draws, agents.board)
    assert _meet(agents, 3, 4) == 0
    assert agents.agents[4, MODE] == RESET
    assert agents.agents[3, COUNTDOWN] == agents.agents[4, COUNTDOWN] == agents.constants[0] - 1
    assert agents.triggers == 1


def test_a_dormant_agent_wakes_when_it_meets_one_that_is_awake(agents: Population) -> None:
    enter_reset(agents.agents, 5, agents.constants, agents.draws, agents.board, 0)
    assert _meet(agents, 5, 6) == WAKES_FIRST
    assert _meet(agents, 6, 5) == WAKES_SECOND
    assert agents.agents[6, MODE] != RESET


def test_dormant_agents_wake_when_their_time_is_over(agents: Population) -> None:
    for who in (0, 1):
        enter_reset(agents.agents, who, agents.constants, agents.draws, agents.board, 0)
        agents.agents[who, DORMANT] = 3
    assert [_meet(agents, 0, 1) for _ in range(3)] == [0, 0, WAKES_FIRST + WAKES_SECOND]


def test_the_better_ticket_stays_candidate_and_its_number_spreads(agents: Population) -> None:
    for who, ticket in ((0, 5), (1, 9)):
        enter_reset(agents.agents, who, agents.constants, agents.draws, agents.board, 4)
        agents.agents[who, TICKET] = ticket
    _meet(agents, 0, 1)
    assert agents.agents[[0, 1], CANDIDATE].tolist() == [0, 1]
    assert agents.agents[[0, 1], TICKET].tolist() == [9, 9]


def test_of_equal_tickets_the_first_survives(agents: Population) -> None:
    for who in (0, 1):
        enter_reset(agents.agents, who, agents.constants, agents.draws, agents.board, 4)
        agents.agents[who, TICKET] = 7
    _meet(agents, 1, 0)
    assert agents.agents[[0, 1], CANDIDATE].tolist() == [0, 1]


def test_lengths_grow_with_the_logarithm_and_duels_need_no_tickets() -> None:
    assert reset_constants(1000, 2.0, 20.5, tickets=True) == (14, 21, 1_000_000)
    assert reset_constants(1000, 2.0, 20.5, tickets=False)[2] == 1
    assert reset_fields(np.array([14, 21, 1_000_000])) == (15, 22, 2, 1_000_000)
    assert reset_fields(np.array([14, 21, 1])) == (15, 22, 2)


def test_garbage_fields_fill_their_domains() -> None:
    agents = BurmanSilent(election="tickets").begin(4000, "correct", 0)
    agents.agents[:2000, MODE] = RESET
    draw_reset_fields(agents.agents, agents.constants, np.random.default_rng(0))
    assert set(agents.agents[:, CANDIDATE]) == {0, 1}
    assert agents.agents[:, COUNTDOWN].max() == agents.constants[0]
    assert (agents.agents[:2000, RANK] == 0).all()
    assert (agents.agents[2000:, RANK] > 0).all()
