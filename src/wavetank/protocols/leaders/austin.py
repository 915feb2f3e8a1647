"""Ranking with r deputies and messages: labels instead of ranks first, then collisions found inside groups of r ranks.

After a reset the leader appoints r deputies, and a deputy labels every agent without label that it meets, so that r
agents hand out at once; everybody gossips how many labels each deputy gave, and when they sum to n a label (deputy,
number) becomes a rank.  From then on the agents of r neighbouring ranks watch each other: every rank has r * r messages
that drift among the agents of its group, and rewrites each it meets; an agent that finds a message of its own rank with
words it did not write has a double.  A right ranking is never given up.

The source's bounds are O((n/r) log n) time and 2^O(r^2 log n) states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba import boolean, int64, uint64, void

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.interface import LeaderElection, Memory, bits, product_log2, start_ranks, sum_log2
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
from wavetank.protocols.leaders.simulation import (
    AGENTS,
    RANK,
    Agents,
    Words,
    check_agents,
    draw_below,
    meeting,
    set_rank,
)
from wavetank.settings import setting
from wavetank.sim.compiled import compiled

# The label: the deputy that gave it, and its number.  POSTS: how many deputies' posts, from its own on, a deputy has to
# give away.
DEPUTY, NUMBER, IS_DEPUTY, POSTS, WAITED = range(2, 7)
LABELLING, WATCHING = 0, 1
GROUP, PATIENCE = 3, 4
WORDS = 1024
# A word and the number of the message share a cell.
_SHIFT = 10


@compiled(void(AGENTS, AGENTS, int64, int64[::1]))
def _start_watching(agents: Agents, memory: Agents, who: int, constants: Words) -> None:
    group = constants[GROUP]
    agents[who, MODE] = WATCHING
    mine = (agents[who, RANK] - 1) % group
    for issuer in range(group):
        for k in range(group):
            message = mine * group + k
            memory[who, group + issuer * group + k] = message << _SHIFT
            memory[who, group + group * group + issuer * group + k] = 0


@compiled(boolean(AGENTS, AGENTS, int64, int64, int64, uint64[::1]))
def _rewrite(agents: Agents, memory: Agents, issuer: int, holder: int, group: int, draws: Any) -> bool:
    """Let an issuer check and rewrite its messages at a holder; return whether all had its own words."""
    mine = (agents[issuer, RANK] - 1) % group
    start, book = group + mine * group, group + group * group
    for cell in range(start, start + group):
        message, word = memory[holder, cell] >> _SHIFT, memory[holder, cell] & (WORDS - 1)
        if memory[issuer, book + message] != word:
            return False
        word = draw_below(draws, WORDS)
        memory[issuer, book + message] = word
        memory[holder, cell] = message << _SHIFT | word
    return True


@compiled(void(AGENTS, AGENTS, int64, int64, int64[::1]))
def _hand_out(agents: Agents, memory: Agents, giver: int, taker: int, constants: Words) -> None:
    """Let a deputy appoint another, or label an agent."""
    if agents[giver, IS_DEPUTY] == 0 or agents[taker, DEPUTY] > 0:
        return
    posts = agents[giver, POSTS]
    if posts > 1:
        kept = (posts + 1) // 2
        agents[giver, POSTS] = kept
        deputy = agents[giver, DEPUTY] + kept
        agents[taker, IS_DEPUTY] = 1
        agents[taker, POSTS] = posts - kept
        agents[taker, DEPUTY] = deputy
        agents[taker, NUMBER] = 1
        memory[taker, deputy - 1] = max(memory[taker, deputy - 1], 1)
    else:
        deputy = agents[giver, DEPUTY]
        given = memory[giver, deputy - 1] + 1
        if given <= agents.shape[0]:
            memory[giver, deputy - 1] = given
            agents[taker, DEPUTY] = deputy
            agents[taker, NUMBER] = given


@meeting
def _meet(agents: Agents, memory: Agents, a: int, b: int, constants: Words, draws: Any, board: Words) -> None:
    group = constants[GROUP]
    n = np.int64(agents.shape[0])
    if agents[a, MODE] == RESET or agents[b, MODE] == RESET:
        wakes = reset_meeting(agents, a, b, constants, draws, board)
        for who, flag in ((a, WAKES_FIRST), (b, WAKES_SECOND)):
            if wakes & flag:
                first = np.int64(agents[who, CANDIDATE])
                agents[who, MODE] = LABELLING
                agents[who, DEPUTY] = first
                agents[who, NUMBER] = first
                agents[who, IS_DEPUTY] = first
                agents[who, POSTS] = group * first
                agents[who, WAITED] = 0
                for k in range(group):
                    memory[who, k] = 0
                memory[who, 0] = first
        return
    contradiction = False
    if agents[a, MODE] == WATCHING and agents[b, MODE] == WATCHING:
        rank_a, rank_b = np.int64(agents[a, RANK]), np.int64(agents[b, RANK])
        if (rank_a - 1) // group != (rank_b - 1) // group:
            return
        contradiction = rank_a == rank_b
        if not contradiction:
            contradiction = not _rewrite(agents, memory, a, b, group, draws)
        if not contradiction:
            contradiction = not _rewrite(agents, memory, b, a, group, draws)
        if not contradiction:
            # One draw decides 31 swaps.
            coins = 0
            for cell in range(group * group):
                if cell % 31 == 0:
                    coins = draw_below(draws, 1 << 31)
                if (coins >> (cell % 31)) & 1:
                    kept = memory[a, group + cell]
                    memory[a, group + cell] = memory[b, group + cell]
                    memory[b, group + cell] = kept
    else:
        for giver, taker in ((a, b), (b, a)):
            if agents[giver, MODE] == LABELLING and agents[taker, MODE] == LABELLING:
                _hand_out(agents, memory, giver, taker, constants)
        total = np.int64(0)
        for k in range(group):
            most = max(memory[a, k], memory[b, k])
            memory[a, k] = most
            memory[b, k] = most
            total += most
        contradiction = bool(total > n)
        if agents[a, MODE] == LABELLING and agents[b, MODE] == LABELLING and agents[a, DEPUTY] > 0:
            contradiction |= agents[a, DEPUTY] == agents[b, DEPUTY] and agents[a, NUMBER] == agents[b, NUMBER]
        for who in (a, b):
            if agents[who, MODE] == LABELLING:
                agents[who, WAITED] += 1
                contradiction |= agents[who, WAITED] > constants[PATIENCE]
                contradiction |= total == n and agents[who, DEPUTY] == 0
        if total == n and not contradiction:
            for who in (a, b):
                if agents[who, MODE] == LABELLING:
                    rank = np.int64(agents[who, NUMBER])
                    for k in range(agents[who, DEPUTY] - 1):
                        rank += memory[who, k]
                    set_rank(agents, board, who, min(max(rank, 1), n))
                    _start_watching(agents, memory, who, constants)
    if contradiction:
        trigger(agents, a, constants, draws, board)
        trigger(agents, b, constants, draws, board)


@dataclass(frozen=True, kw_only=True)
class AustinGroups(LeaderElection):
    """Ranking with ``rho`` deputies and groups of ``rho`` ranks that watch each other.

    Parameters
    ----------
    rho : int
        Deputies, and ranks in a group; memory grows with its square.

    References
    ----------
    Austin et al., PODC 2025.
    """

    rho: int = setting(8, says="Deputies, and ranks per group", low=2, high=64)
    countdown_logs: float = setting(2.0, says="Countdown of a reset divided by ln n", low=0.5, high=100)
    dormant_logs: float = setting(4.0, says="Dormancy of a reset divided by ln n", low=0.5, high=100)
    patience: float = setting(
        2.0, says="Meetings without rank before a reset divided by ((n / rho) ln n)", low=0.1, high=1000
    )

    rule: ClassVar[Any] = staticmethod(_meet)
    most_agents: ClassVar[int] = 100_000

    def constants(self, n: int) -> Words:
        """Return the parameters as the compiled rule reads them; raises BadValueError for too few agents."""
        check_agents(n)
        if self.rho > n:
            raise BadValueError(
                "There cannot be more deputies than agents.", given=self.rho, allowed=f"2 to {n}", where="rho"
            )
        reset = reset_constants(n, self.countdown_logs, self.dormant_logs * math.log(n), tickets=True)
        patience = math.ceil(self.patience * (n / self.rho + 10) * math.log(n))
        return np.array([*reset, self.rho, patience], np.int64)

    def memory(self, n: int) -> Memory:
        """Return the bits of an agent's record, and of the states it can be in."""
        constants = self.constants(n)
        counts, messages = self.rho, self.rho**2
        asleep, patience = reset_fields(constants), int(constants[PATIENCE])
        message = math.log2(messages * WORDS) + math.log2(WORDS)
        labelling = (self.rho + 1, n + 1, 2, self.rho + 1, patience + 1)
        modes = (
            product_log2(asleep),
            product_log2(labelling) + counts * math.log2(n + 1),
            math.log2(n) + counts * math.log2(n + 1) + messages * message,
        )
        return Memory(
            record_bits=bits(n + 1, 3, *labelling, *asleep)
            + counts * bits(n + 1)
            + messages * bits(messages, WORDS, WORDS),
            state_bits=sum_log2(modes),
        )

    def window(self, n: int) -> float:
        """Return how long a double needs to be found."""
        return (n / self.rho + 10) * math.log(n)

    def arrange(self, start: str, agents: Agents, constants: Words, rng: np.random.Generator) -> Agents:
        """Fill the records for a start; return labels given, messages held and words written."""
        n = len(agents)
        memory = np.zeros((n, self.rho + 2 * self.rho**2), np.int32)
        agents[:, RANK] = start_ranks(start, n, rng)
        agents[:, MODE] = WATCHING
        memory[:, : self.rho] = n // self.rho + (np.arange(self.rho) < n % self.rho)
        for who in range(n):
            if agents[who, RANK] > 0:
                _start_watching(agents, memory, who, constants)
        if start == "all-leaders":
            agents[:, MODE] = LABELLING
            agents[:, [DEPUTY, NUMBER, IS_DEPUTY]] = 1
            agents[:, POSTS] = self.rho
            memory[:] = 0
            memory[:, 0] = 1
        elif start == "garbage":
            self._garbage(agents, memory, constants, rng)
        return memory

    def _garbage(self, agents: Agents, memory: Agents, constants: Words, rng: np.random.Generator) -> None:
        n, square = len(agents), self.rho**2
        agents[:, MODE] = rng.choice([LABELLING, WATCHING, RESET], n)
        agents[:, RANK] = np.where(agents[:, MODE] == WATCHING, rng.integers(1, n + 1, n), 0)
        for column, values in (
            (DEPUTY, self.rho + 1), (NUMBER, n + 1), (IS_DEPUTY, 2), (POSTS, self.rho + 1),
            (WAITED, int(constants[PATIENCE]) + 1),
        ):  # fmt: skip
            agents[:, column] = rng.integers(0, values, n)
        # A deputy has a post, and gives away no more than follow its own.
        agents[agents[:, DEPUTY] == 0, IS_DEPUTY] = 0
        agents[:, POSTS] = np.minimum(agents[:, POSTS], self.rho + 1 - agents[:, DEPUTY])
        memory[:, : self.rho] = rng.integers(0, n + 1, (n, self.rho))
        held = rng.integers(0, square * WORDS, (n, square))
        memory[:, self.rho : self.rho + square] = held
        memory[:, self.rho + square :] = rng.integers(0, WORDS, (n, square))
        draw_reset_fields(agents, constants, rng)
