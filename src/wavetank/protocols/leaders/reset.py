"""Propagate-Reset: one agent that finds a contradiction brings all agents back to a clean start, together.

A trigger spreads as an epidemic that carries a countdown; when it has run out an agent is dormant for a number of its
own meetings, then it wakes, and a dormant one that meets it wakes too.  Meanwhile the best of random tickets picks
one candidate; with one ticket for all the candidates duel, the first of two that meet survives.

Source: J. Burman, H.-L. Chen, H.-P. Chen, D. Doty, T. Nowak, E. Severson, C. Xu, "Time-Optimal Self-Stabilizing Leader
Election in Population Protocols", PODC 2021, arXiv 1907.06068.

Differs from the source:
1. The countdown and the dormancy are as long as failures ask for, not as long as the proof does (60 ln n).
2. Tickets, which make one candidate in logarithmic time; the source lets candidates duel for linear time.  From a
   corrupted start the best ticket may be nobody's: then no candidate wakes, and a protocol needs a timer to notice.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import int64, uint64, void
from numpy.typing import NDArray

from wavetank.protocols.leaders.simulation import AGENTS, LARGEST, RANK, TRIGGERS, Agents, Words, draw_below, set_rank
from wavetank.sim.compiled import compiled

# Of every protocol that resets: columns of the record, the mode that means a reset, the first cells of the constants.
MODE = 1
COUNTDOWN, DORMANT, TICKET, CANDIDATE = 12, 13, 14, 15
COLUMNS = 16
RESET = 3
FULL_COUNTDOWN, FULL_DORMANT, TICKETS = 0, 1, 2

# Who wakes, as reset_meeting says it.
WAKES_FIRST, WAKES_SECOND = 1, 2


@compiled(void(AGENTS, int64, int64[::1], uint64[::1], int64[::1], int64))
def enter_reset(agents: Agents, who: int, constants: Words, draws: Any, board: Words, countdown: int) -> None:
    """Let an agent join a reset: no rank, a fresh ticket."""
    set_rank(agents, board, who, 0)
    agents[who, MODE] = RESET
    agents[who, COUNTDOWN] = countdown
    agents[who, DORMANT] = constants[FULL_DORMANT]
    agents[who, TICKET] = draw_below(draws, constants[TICKETS])
    agents[who, CANDIDATE] = 1


@compiled(void(AGENTS, int64, int64[::1], uint64[::1], int64[::1]))
def trigger(agents: Agents, who: int, constants: Words, draws: Any, board: Words) -> None:
    """Let an agent start a reset on its own evidence."""
    board[TRIGGERS] += 1
    enter_reset(agents, who, constants, draws, board, constants[FULL_COUNTDOWN])


@compiled(int64(AGENTS, int64, int64, int64[::1], uint64[::1], int64[::1]))
def reset_meeting(agents: Agents, first: int, second: int, constants: Words, draws: Any, board: Words) -> int:
    """Let two agents meet of which one at least takes part in a reset.

    Returns
    -------
    int
        ``WAKES_FIRST``, ``WAKES_SECOND``, both added, or 0.
    """
    for sleeper, other, wakes in ((first, second, WAKES_FIRST), (second, first, WAKES_SECOND)):
        if agents[other, MODE] != RESET:
            if agents[sleeper, COUNTDOWN] == 0:
                return wakes
            enter_reset(agents, other, constants, draws, board, 0)
    ticket, rival = agents[first, TICKET], agents[second, TICKET]
    if ticket > rival:
        agents[second, TICKET] = ticket
        agents[second, CANDIDATE] = 0
    elif rival > ticket:
        agents[first, TICKET] = rival
        agents[first, CANDIDATE] = 0
    elif agents[first, CANDIDATE]:
        agents[second, CANDIDATE] = 0
    countdown = max(agents[first, COUNTDOWN], agents[second, COUNTDOWN]) - 1
    found = 0
    for who, wakes in ((first, WAKES_FIRST), (second, WAKES_SECOND)):
        if countdown > 0 or agents[who, COUNTDOWN] > 0:
            agents[who, COUNTDOWN] = max(countdown, 0)
            agents[who, DORMANT] = constants[FULL_DORMANT]
        else:
            agents[who, DORMANT] -= 1
            if agents[who, DORMANT] <= 0:
                found += wakes
    return found


def reset_constants(n: int, countdown_logs: float, dormant: float, *, tickets: bool) -> tuple[int, int, int]:
    """Return countdown, dormancy (own meetings) and number of tickets for ``n`` agents."""
    return math.ceil(countdown_logs * math.log(n)), math.ceil(dormant), min(n * n, LARGEST) if tickets else 1


def reset_fields(constants: NDArray[np.int64]) -> tuple[int, ...]:
    """Return how many values each field of a reset can have."""
    found = [int(constants[FULL_COUNTDOWN]) + 1, int(constants[FULL_DORMANT]) + 1, 2]
    return (*found, int(constants[TICKETS])) if constants[TICKETS] > 1 else tuple(found)


def draw_reset_fields(agents: Agents, constants: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Draw the fields of a reset at random; an agent in one has no rank."""
    n = len(agents)
    agents[:, COUNTDOWN] = rng.integers(0, constants[FULL_COUNTDOWN] + 1, n)
    agents[:, DORMANT] = rng.integers(0, constants[FULL_DORMANT] + 1, n)
    agents[:, TICKET] = rng.integers(0, constants[TICKETS], n)
    agents[:, CANDIDATE] = rng.integers(0, 2, n)
    agents[agents[:, MODE] == RESET, RANK] = 0
