"""Silent ranking in linear time: a leader at the root hands out the ranks of a binary tree, an error resets everybody.

The agent of rank r gives the ranks 2r and 2r + 1 to agents without rank that it meets.  Two agents of one rank that
meet, or an agent that stays without rank for too long, start a reset in which one root is elected.  Once all have
ranks nothing changes any more: the protocol is silent, and no silent protocol is faster than linear.

Source: J. Burman, H.-L. Chen, H.-P. Chen, D. Doty, T. Nowak, E. Severson, C. Xu, "Time-Optimal Self-Stabilizing Leader
Election in Population Protocols", PODC 2021, arXiv 1907.06068 (Optimal-Silent-SSR).

Differs from the source:
1. Constants (countdown, dormancy, patience) are tuned for speed, not taken from the proof.
2. With ``election = "tickets"`` the root is drawn by lottery in logarithmic time, at the cost of 2 log2(n) more bits in
   the reset; the source lets candidates duel for linear time, which keeps the states at O(n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.protocols.population.leader_interfaces import (
    Election,
    Memory,
    bits,
    check_start,
    meet_until_ranked,
    start_ranks,
)
from wavetank.protocols.population.leader_reset import (
    CANDIDATE,
    COLUMNS,
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
from wavetank.protocols.population.leader_simulation import (
    RANK,
    Agents,
    Population,
    Words,
    check_agents,
    meeting,
    set_rank,
)
from wavetank.rng import stream
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
class BurmanSilent:
    """Ranking by a binary tree with resets: linear time, O(n) states.

    Parameters
    ----------
    election : str
        ``duel`` as in the source, or ``tickets``.
    countdown_logs : float
        Countdown of a reset in multiples of ln n.
    dormant_share : float
        With duels: dormancy in own meetings / n.
    dormant_logs : float
        With tickets: dormancy in own meetings / ln n.
    patience_share : float
        Own meetings / n after which an agent without rank asks for a reset.

    References
    ----------
    Burman et al., PODC 2021.
    """

    election: str = setting("duel", says="how a reset elects the root", choices=("duel", "tickets"))
    countdown_logs: float = setting(3.0, says="countdown of a reset / ln n", low=0.5, high=100)
    dormant_share: float = setting(2.0, says="with duels: dormancy / n", low=0.01, high=100)
    dormant_logs: float = setting(4.0, says="with tickets: dormancy / ln n", low=0.5, high=100)
    patience_share: float = setting(6.0, says="meetings without rank before a reset / n", low=0.1, high=1000)

    most_agents: ClassVar[int] = 1_000_000

    def constants(self, n: int) -> NDArray[np.int64]:
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
            record_bits=math.fsum(bits(values) for values in (3, n, 3, patience, *reset)),
            state_bits=math.log2(3 * n + patience + resetting),
        )

    def elect(self, n: int, start: str = "garbage", seed: int = 0, *, most_time: float) -> Election:
        """Let agents meet until all have ranks, which is silent and therefore for ever."""
        return meet_until_ranked(self.begin(n, start, seed), window=0.0, most_time=most_time)

    def begin(self, n: int, start: str, seed: int) -> Population:
        """Return ``n`` agents at a start.

        Raises
        ------
        UnknownNameError, BadValueError
        """
        constants = self.constants(n)
        rng = stream(seed, "leader-election", "start", check_start(start), n)
        agents = np.zeros((n, COLUMNS), np.int32)
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
        return Population(_meet, agents, np.zeros((n, 1), np.int32), constants, seed)
