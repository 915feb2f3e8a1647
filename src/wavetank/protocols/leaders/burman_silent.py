"""Silent ranking in linear time: a leader at the root hands out the ranks of a binary tree, an error resets everybody.

The agent of rank r gives the ranks 2r and 2r + 1 to agents without rank that it meets.  Two agents of one rank that
meet, or an agent that stays without rank for too long, start a reset in which one root is elected.  Once all have
ranks nothing changes any more: the protocol is silent, and no silent protocol is faster than linear.

The source calls it Optimal-Silent-SSR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.protocols.leaders.interface import LeaderElection, Memory, bits, start_ranks
from wavetank.protocols.leaders.reset import (
    CANDIDATE,
    MODE,
    RESET,
    WAKES_FIRST,
    WAKES_SECOND,
    draw_reset_fields,
    reset_constants,
    reset_fields,
    reset_meeting,
    trigger,
)
from wavetank.protocols.leaders.simulation import RANK, Agents, Words, check_agents, meeting, set_rank
from wavetank.settings import setting

CHILDREN, WAITED = 2, 3
SETTLED, UNSETTLED = 0, 1
PATIENCE = 3


@meeting
def _meet(agents: Agents, memory: Agents, a: int, b: int, constants: Words, draws: Any, board: Words) -> None:
    if agents[a, MODE] == RESET or agents[b, MODE] == RESET:
        wakes = reset_meeting(agents, a, b, constants, draws, board)
        for who, flag in ((a, WAKES_FIRST), (b, WAKES_SECOND)):
            if wakes & flag:
                root = agents[who, CANDIDATE] == 1
                agents[who, MODE] = SETTLED if root else UNSETTLED
                agents[who, CHILDREN] = 0
                agents[who, WAITED] = 0
                set_rank(agents, board, who, 1 if root else 0)
        return
    if agents[a, MODE] == SETTLED and agents[b, MODE] == SETTLED:
        if agents[a, RANK] == agents[b, RANK]:
            trigger(agents, a, constants, draws, board)
            trigger(agents, b, constants, draws, board)
        return
    for parent, child in ((a, b), (b, a)):
        if agents[parent, MODE] == SETTLED and agents[child, MODE] == UNSETTLED and agents[parent, CHILDREN] < 2:
            rank = 2 * agents[parent, RANK] + agents[parent, CHILDREN]
            if rank <= agents.shape[0]:
                agents[parent, CHILDREN] += 1
                agents[child, MODE] = SETTLED
                agents[child, CHILDREN] = 0
                set_rank(agents, board, child, rank)
    for who in (a, b):
        if agents[who, MODE] == UNSETTLED:
            agents[who, WAITED] += 1
            if agents[who, WAITED] >= constants[PATIENCE]:
                trigger(agents, who, constants, draws, board)


@dataclass(frozen=True, kw_only=True)
class BurmanSilent(LeaderElection):
    """Ranking by a binary tree with resets: linear time, O(n) states.

    References
    ----------
    Burman et al., PODC 2021.
    """

    election: str = setting("duel", says="How a reset elects the root", choices=("duel", "tickets"))
    countdown_logs: float = setting(3.0, says="Countdown of a reset divided by ln n", low=0.5, high=100)
    dormant_share: float = setting(2.0, says="With duels: dormancy divided by n", low=0.01, high=100)
    dormant_logs: float = setting(4.0, says="With tickets: dormancy divided by ln n", low=0.5, high=100)
    patience_share: float = setting(6.0, says="Meetings without rank before a reset divided by n", low=0.1, high=1000)

    rule: ClassVar[Any] = staticmethod(_meet)

    def constants(self, n: int) -> Words:
        """Return the parameters as the compiled rule reads them; raises BadValueError for too few agents."""
        check_agents(n)
        tickets = self.election == "tickets"
        dormant = self.dormant_logs * math.log(n) if tickets else self.dormant_share * n
        reset = reset_constants(n, self.countdown_logs, dormant, tickets=tickets)
        return np.array([*reset, math.ceil(self.patience_share * n)], np.int64)

    def memory(self, n: int) -> Memory:
        """Return the bits of an agent's record, and of the states it can be in."""
        constants = self.constants(n)
        reset = reset_fields(constants)
        patience = int(constants[PATIENCE])
        # Dormancy runs only when the countdown is over, so the two are added, not multiplied: O(n) states.
        resetting = (reset[0] + reset[1]) * math.prod(reset[2:])
        return Memory(
            record_bits=bits(3, n, 3, patience, *reset),
            state_bits=math.log2(3 * n + patience + resetting),
        )

    def arrange(self, start: str, agents: Agents, constants: Words, rng: np.random.Generator) -> Agents:
        """Fill the records for a start; return the long memory."""
        n = len(agents)
        agents[:, RANK] = start_ranks(start, n, rng)
        children = [2 * agents[:, RANK] + k <= n for k in (0, 1)]
        agents[:, CHILDREN] = np.sum(children, axis=0)
        if start == "all-leaders":
            agents[:, CHILDREN] = 0
        elif start == "garbage":
            agents[:, MODE] = rng.choice([SETTLED, UNSETTLED, RESET], n)
            agents[:, RANK] = rng.integers(1, n + 1, n)
            agents[agents[:, MODE] != SETTLED, RANK] = 0
            agents[:, CHILDREN] = rng.integers(0, 3, n)
            agents[:, WAITED] = rng.integers(0, constants[PATIENCE], n)
            draw_reset_fields(agents, constants, rng)
        return np.zeros((n, 1), np.int32)
