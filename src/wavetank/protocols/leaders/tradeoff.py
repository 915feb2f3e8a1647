"""Leader election with a memory knob: agents are ranked and checked rho at a time, in phases that one agent beats.

Ranks are needed to know that a leader is alone, and with little memory ranking takes linear time, because the last two
agents concerned must meet.  Here every agent carries a roster of up to rho short names, which spreads like an epidemic
instead: one phase of logarithmic time ranks, or checks, rho agents at once, so n / rho phases do.

A run is: *reset* (a trigger spreads with a countdown, all fall dormant, draw tickets, wake together, the best ticket
leads with rank 1), *rank* (of every phase: collect, the names of recruits among the unranked spread; announce, the
leader's roster spreads with the clock and an agent that finds its name takes its place as rank), then *check* forever
(the members of a group of ranks draw nonces into their slots of the roster; two nonces in one slot are two holders of
one rank: reset).  The leader beats the clock: it goes on to the next stage when it has met enough agents that hold the
current one; every other agent adopts the later stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba import int64, uint64, void

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.interface import (
    LeaderElection,
    Memory,
    bits,
    product_log2,
    start_ranks,
    subsets_log2,
    sum_log2,
)
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
    CHECKED,
    LARGEST,
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

# Columns of the record besides rank, mode and the fields of a reset.
STAGE, BASE, TIMER, NAME, SIZE, BEATS, MISSES, TOKENS = range(2, 10)
# Modes besides RESET.
COLLECT, ANNOUNCE, CHECK = 0, 1, 2
# Stages are counted modulo 8: one to three ahead is later, four is a contradiction.
STAGES = 8
# Phases in a row that may add nobody to the ranking.
PATIENCE = 15

# Cells of the constants behind those of a reset.
RHO, NAMES, NONCES, COLLECT_BEATS, ANNOUNCE_BEATS, CHECK_BEATS, SILENCE, RECRUITS, BY_TOKEN, HUNT = range(3, 13)


@compiled(void(AGENTS, AGENTS, int64, int64[::1], uint64[::1]))
def _recruit(agents: Agents, memory: Agents, who: int, constants: Words, draws: Any) -> None:
    name = 1 + draw_below(draws, constants[NAMES])
    agents[who, NAME] = name
    names = memory[who]
    size = agents[who, SIZE]
    place = size
    for k in range(size):
        if names[k] == name:
            return
        if names[k] > name:
            place = k
            break
    if place == constants[RHO]:
        return
    last = min(size, constants[RHO] - 1)
    for k in range(last, place, -1):
        names[k] = names[k - 1]
    names[place] = name
    agents[who, SIZE] = last + 1


@compiled(void(AGENTS, AGENTS, int64, int64[::1], uint64[::1]))
def _start_collecting(agents: Agents, memory: Agents, who: int, constants: Words, draws: Any) -> None:
    agents[who, SIZE] = 0
    agents[who, NAME] = 0
    agents[who, TOKENS] = 0
    left = np.int64(agents.shape[0]) - agents[who, BASE]
    if agents[who, RANK] == 1:
        if constants[BY_TOKEN] and left > constants[RHO]:
            agents[who, TOKENS] = constants[RHO]
        return
    # Not more than rho left: all are recruits, whichever way recruits are found.
    if agents[who, RANK] == 0 and (
        left <= constants[RHO] or (not constants[BY_TOKEN] and draw_below(draws, left) < constants[RECRUITS])
    ):
        _recruit(agents, memory, who, constants, draws)


@compiled(void(AGENTS, AGENTS, int64, int64[::1], uint64[::1]))
def _start_checking(agents: Agents, memory: Agents, who: int, constants: Words, draws: Any) -> None:
    slots = memory[who]
    rho = constants[RHO]
    for k in range(rho):
        slots[k] = 0
    place = agents[who, RANK] - agents[who, BASE] - 1
    if 0 <= place < rho:
        slots[place] = 1 + draw_below(draws, constants[NONCES])


@compiled(void(AGENTS, AGENTS, int64, int64[::1], uint64[::1], int64[::1]))
def _wake(agents: Agents, memory: Agents, who: int, constants: Words, draws: Any, board: Words) -> None:
    set_rank(agents, board, who, agents[who, CANDIDATE])
    agents[who, MODE] = COLLECT
    agents[who, STAGE] = 0
    agents[who, BASE] = 1
    agents[who, TIMER] = 0
    agents[who, BEATS] = 0
    agents[who, MISSES] = 0
    _start_collecting(agents, memory, who, constants, draws)


@compiled(void(AGENTS, AGENTS, int64, int64, int64[::1], uint64[::1], int64[::1]))
def _adopt(agents: Agents, memory: Agents, late: int, ahead: int, constants: Words, draws: Any, board: Words) -> None:
    """Let ``late`` go to the stage of ``ahead``."""
    mode = agents[ahead, MODE]
    listed = (
        mode == ANNOUNCE
        and agents[late, MODE] == COLLECT
        and (agents[ahead, STAGE] - agents[late, STAGE]) & (STAGES - 1) == 1
    )
    agents[late, MODE] = mode
    agents[late, STAGE] = agents[ahead, STAGE]
    agents[late, BASE] = agents[ahead, BASE]
    agents[late, TIMER] = 0
    if mode == COLLECT:
        _start_collecting(agents, memory, late, constants, draws)
    elif mode == ANNOUNCE:
        size = agents[ahead, SIZE]
        agents[late, SIZE] = size
        name = agents[late, NAME]
        wanted = listed and name > 0 and agents[late, RANK] == 0
        for k in range(size):
            memory[late, k] = memory[ahead, k]
            if wanted and memory[ahead, k] == name:
                set_rank(agents, board, late, min(agents[late, BASE] + 1 + k, agents.shape[0]))
        agents[late, NAME] = 0
        agents[late, TOKENS] = 0
    elif agents[late, RANK] == 0:
        trigger(agents, late, constants, draws, board)
    else:
        _start_checking(agents, memory, late, constants, draws)


@compiled(void(AGENTS, AGENTS, int64, int64[::1], uint64[::1], int64[::1]))
def _beat(agents: Agents, memory: Agents, leader: int, constants: Words, draws: Any, board: Words) -> None:
    """Let the leader, which met an agent of its stage, go on when that happened often enough."""
    agents[leader, BEATS] += 1
    agents[leader, TIMER] = 0
    beats, mode, base = agents[leader, BEATS], agents[leader, MODE], agents[leader, BASE]
    n, rho = np.int64(agents.shape[0]), constants[RHO]
    if mode == COLLECT:
        wanted = min(rho, n - base)
        patience = constants[COLLECT_BEATS]
        if constants[BY_TOKEN] and n - base > rho:
            patience += constants[HUNT] * n // (n - base)
        if agents[leader, SIZE] < wanted:
            if beats < patience:
                return
            if constants[BY_TOKEN]:
                agents[leader, SIZE] = 0
        agents[leader, SIZE] = min(np.int64(agents[leader, SIZE]), wanted)
        agents[leader, MODE] = ANNOUNCE
    elif mode == ANNOUNCE:
        if beats < constants[ANNOUNCE_BEATS]:
            return
        ranked = agents[leader, SIZE]
        if ranked == 0:
            agents[leader, MISSES] += 1
            if agents[leader, MISSES] > PATIENCE:
                trigger(agents, leader, constants, draws, board)
                return
        else:
            agents[leader, MISSES] = 0
        agents[leader, BASE] = base + ranked
        if agents[leader, BASE] < n:
            agents[leader, MODE] = COLLECT
            _start_collecting(agents, memory, leader, constants, draws)
        else:
            agents[leader, MODE] = CHECK
            agents[leader, BASE] = 0
            _start_checking(agents, memory, leader, constants, draws)
    else:
        if beats < constants[CHECK_BEATS]:
            return
        agents[leader, BASE] = base + rho
        if agents[leader, BASE] >= n:
            agents[leader, BASE] = 0
        board[CHECKED] += 1
        _start_checking(agents, memory, leader, constants, draws)
    agents[leader, STAGE] = (agents[leader, STAGE] + 1) & (STAGES - 1)
    agents[leader, BEATS] = 0


@compiled(void(AGENTS, AGENTS, int64, int64, int64))
def _merge_names(agents: Agents, memory: Agents, a: int, b: int, most: int) -> None:
    """Give both agents the smallest ``most`` names that either knows."""
    one, other = memory[a], memory[b]
    size_a, size_b = np.int64(agents[a, SIZE]), np.int64(agents[b, SIZE])
    k = 0
    shorter = min(size_a, size_b)
    while k < shorter and one[k] == other[k]:
        k += 1
    if k == size_a == size_b or k == most:
        return
    # Before place k both are equal.  What the union takes from either is counted first, then filled from behind.
    i, j, size = k, k, k
    while size < most and (i < size_a or j < size_b):
        if j >= size_b or (i < size_a and one[i] < other[j]):
            i += 1
        elif i >= size_a or other[j] < one[i]:
            j += 1
        else:
            i += 1
            j += 1
        size += 1
    agents[a, SIZE] = size
    agents[b, SIZE] = size
    i -= 1
    j -= 1
    for place in range(size - 1, k - 1, -1):
        if j < k or (i >= k and one[i] > other[j]):
            name = one[i]
            i -= 1
        elif i < k or other[j] > one[i]:
            name = other[j]
            j -= 1
        else:
            name = one[i]
            i -= 1
            j -= 1
        one[place] = name
        other[place] = name


@compiled(void(AGENTS, AGENTS, int64, int64, int64[::1], uint64[::1]))
def _pass_tokens(agents: Agents, memory: Agents, giver: int, taker: int, constants: Words, draws: Any) -> None:
    """Halve the giver's tokens; an agent without rank keeps one and becomes a recruit."""
    tokens = agents[giver, TOKENS]
    free = agents[taker, RANK] == 0 and agents[taker, NAME] == 0
    if tokens == 0 or agents[taker, TOKENS] > 0 or (tokens == 1 and not free):
        return
    given = max(tokens // 2, 1)
    agents[giver, TOKENS] -= given
    if free:
        _recruit(agents, memory, taker, constants, draws)
        given -= 1
    agents[taker, TOKENS] = given


@meeting
def _meet(agents: Agents, memory: Agents, a: int, b: int, constants: Words, draws: Any, board: Words) -> None:
    if agents[a, MODE] == RESET or agents[b, MODE] == RESET:
        wakes = reset_meeting(agents, a, b, constants, draws, board)
        if wakes & WAKES_FIRST:
            _wake(agents, memory, a, constants, draws, board)
        if wakes & WAKES_SECOND:
            _wake(agents, memory, b, constants, draws, board)
        return
    rank_a, rank_b = agents[a, RANK], agents[b, RANK]
    ahead = (agents[b, STAGE] - agents[a, STAGE]) & (STAGES - 1)
    contradiction = rank_a == rank_b and rank_a > 0
    if ahead == 0:
        contradiction |= agents[a, MODE] != agents[b, MODE] or agents[a, BASE] != agents[b, BASE]
    else:
        # Nobody is ahead of the one that beats the clock.
        contradiction |= (
            ahead == STAGES // 2 or (ahead < STAGES // 2 and rank_a == 1) or (ahead > STAGES // 2 and rank_b == 1)
        )
    if contradiction:
        trigger(agents, a, constants, draws, board)
        trigger(agents, b, constants, draws, board)
        return
    if ahead == 0:
        # In step, as nearly always: the leader beats, and who is left behind by it follows at once.
        if rank_a == 1 or rank_b == 1:
            leader, other = (a, b) if rank_a == 1 else (b, a)
            _beat(agents, memory, leader, constants, draws, board)
            if agents[leader, MODE] != RESET and agents[leader, STAGE] != agents[other, STAGE]:
                _adopt(agents, memory, other, leader, constants, draws, board)
    elif ahead < STAGES // 2:
        _adopt(agents, memory, a, b, constants, draws, board)
    else:
        _adopt(agents, memory, b, a, constants, draws, board)
    mode = agents[a, MODE]
    if mode == RESET or agents[b, MODE] == RESET:
        return
    rho = constants[RHO]
    if mode == COLLECT:
        if constants[BY_TOKEN]:
            _pass_tokens(agents, memory, a, b, constants, draws)
            _pass_tokens(agents, memory, b, a, constants, draws)
        _merge_names(agents, memory, a, b, rho)
    elif mode == CHECK:
        one, other = memory[a], memory[b]
        clash = False
        for k in range(rho):
            x, y = one[k], other[k]
            clash |= x != y and x != 0 and y != 0
            both = x | y
            one[k] = both
            other[k] = both
        if clash:
            trigger(agents, a, constants, draws, board)
            trigger(agents, b, constants, draws, board)
            return
    limit = constants[SILENCE]
    if constants[BY_TOKEN] and mode == COLLECT:
        limit += 4 * constants[HUNT] * agents.shape[0] // max(agents.shape[0] - agents[a, BASE], 1)
    for who in (a, b):
        agents[who, TIMER] += 1
        if agents[who, TIMER] > limit:
            trigger(agents, who, constants, draws, board)


@dataclass(frozen=True, kw_only=True)
class TradeoffLeader(LeaderElection):
    """Self-stabilising ranking (rank 1 leads) with rosters of ``rho`` names.

    Parameters
    ----------
    rho : int
        Names in a roster: memory grows with it, time falls as 1 / rho; sensible up to sqrt(n).
    recruits : str
        ``coins``: agents without rank volunteer by a coin; ``tokens``: the leader's tokens find them.
    collect_beats, announce_beats, check_beats : float
        How many agents of its stage the leader must meet before it ends the stage, beyond the logarithmic time that
        the first takes.  A collection ends earlier when the leader's roster is full.  An announcement that is too
        short is missed by some, a check that is too short misses doubled ranks.

    References
    ----------
    Sudo, arXiv 2505.23649.
    """

    rho: int = setting(16, says="Names per roster", low=2, high=4096)
    recruits: str = setting("coins", says="How agents without rank are found", choices=("coins", "tokens"))
    collect_beats: float = setting(16.0, says="Meetings of the leader before it ends a collection", low=1, high=1e4)
    announce_beats: float = setting(10.0, says="Meetings of the leader before it ends an announcement", low=1, high=1e4)
    check_beats: float = setting(
        0.0, says="Meetings of the leader before it ends a check; 0 for 6 + 3 ln rho", low=0, high=1e4
    )
    name_bits: int = setting(
        0, unit="bits", says="Bits of a recruit's name; 0: as many as the allowed failures require", low=0, high=31
    )
    countdown_logs: float = setting(2.0, says="Countdown of a reset divided by ln n", low=0.5, high=100)
    dormant_logs: float = setting(4.0, says="Dormancy of a reset divided by ln n", low=0.5, high=100)

    rule: ClassVar[Any] = staticmethod(_meet)

    def constants(self, n: int) -> Words:
        """Return the parameters as the compiled rule reads them.

        Raises
        ------
        BadValueError
            If there are too few agents for a roster of ``rho``.
        """
        check_agents(n)
        if self.rho > n:
            raise BadValueError(
                "A roster cannot hold more names than there are agents.",
                given=self.rho,
                allowed=f"2 to {n}",
                where="rho",
                hint="the paper asks for rho at most sqrt(n)",
            )
        log_n = math.log(n)
        tokens = self.recruits == "tokens"
        found = np.zeros(13, np.int64)
        found[:3] = reset_constants(n, self.countdown_logs, self.dormant_logs * log_n, tickets=True)
        found[RHO] = self.rho
        automatic = 4 * math.log2(self.rho) if tokens else math.log2(n) + math.log2(self.rho) + 10
        found[NAMES] = min(2 ** (self.name_bits or math.ceil(automatic)), LARGEST)
        found[NONCES] = min(self.rho**4, LARGEST)
        found[COLLECT_BEATS] = math.ceil(self.collect_beats)
        found[ANNOUNCE_BEATS] = math.ceil(self.announce_beats)
        found[CHECK_BEATS] = math.ceil(self.check_beats or 6 + 3 * math.log(self.rho))
        most_beats = max(int(found[at]) for at in (COLLECT_BEATS, ANNOUNCE_BEATS, CHECK_BEATS))
        # Five times what a stage usually takes: a running clock is never taken for stopped.
        found[SILENCE] = math.ceil(5 * (log_n + most_beats))
        # More volunteers than places, so that the leader's roster is full early.
        found[RECRUITS] = 3 * self.rho
        found[BY_TOKEN] = tokens
        found[HUNT] = math.ceil(math.log(self.rho) + 4) if tokens else 0
        return found

    def memory(self, n: int) -> Memory:
        """Return the bits of an agent's record, and of the states it can be in."""
        constants = [int(value) for value in self.constants(n)]
        hunt = 4 * constants[HUNT] * math.ceil(n / (self.rho + 1))
        beats = max(constants[at] for at in (COLLECT_BEATS, ANNOUNCE_BEATS, CHECK_BEATS)) + hunt
        name, nonce = constants[NAMES], constants[NONCES]
        tokens = self.rho + 1 if constants[BY_TOKEN] else 1
        awake = (n + 1, STAGES, n + 1, constants[SILENCE] + hunt + 1, beats + 1, PATIENCE + 1)
        asleep = reset_fields(self.constants(n))
        fields = (4, *awake, *asleep, name + 1, tokens, self.rho + 1)
        awake_log2 = product_log2(awake)
        collecting = math.log2(name + 1) + math.log2(tokens) + subsets_log2(name, self.rho)
        checking = self.rho * math.log2(nonce + 1)
        modes = (
            awake_log2 + collecting,
            awake_log2 + subsets_log2(name, self.rho),
            awake_log2 + checking,
            product_log2(asleep),
        )
        return Memory(record_bits=self.rho * bits(max(name, nonce) + 1) + bits(*fields), state_bits=sum_log2(modes))

    def window(self, n: int) -> float:
        """Return how long a ranking must stay: about one sweep of checks through all ranks."""
        constants = self.constants(n)
        return math.ceil(n / self.rho) * (math.log(n) + float(constants[CHECK_BEATS])) / 2

    def finds_double(self, n: int, seed: int) -> bool:
        """Return whether one sweep of checks finds the one doubled rank of the start ``duplicate``."""
        agents = self.begin(n, "duplicate", seed)
        # The group in which the run starts is half over: a whole sweep ends with the same group's next check.
        while agents.triggers == 0 and agents.groups_checked <= math.ceil(n / self.rho):
            agents.advance(1.0, until_trigger=True)
        return agents.triggers > 0

    def arrange(self, start: str, agents: Agents, constants: Words, rng: np.random.Generator) -> Agents:
        """Fill the records for a start; return the rosters."""
        n, memory = len(agents), np.zeros((len(agents), self.rho), np.int32)
        agents[:, RANK] = start_ranks(start, n, rng)
        agents[:, MODE] = CHECK
        if start == "garbage":
            self._garbage(agents, memory, constants, rng)
        elif start == "all-leaders":
            agents[:, MODE] = COLLECT
            agents[:, BASE] = 1
        else:
            group = int(rng.integers(math.ceil(n / self.rho)))
            agents[:, BASE] = group * self.rho
            place = agents[:, RANK] - agents[:, BASE] - 1
            members = np.flatnonzero((place >= 0) & (place < self.rho))
            memory[members, place[members]] = 1 + rng.integers(0, constants[NONCES], members.size)
        return memory

    def _garbage(self, agents: Agents, memory: Agents, constants: Words, rng: np.random.Generator) -> None:
        n = len(agents)
        most_beats = int(constants[[COLLECT_BEATS, ANNOUNCE_BEATS, CHECK_BEATS]].max())
        domains = {
            MODE: 4,
            STAGE: STAGES,
            BASE: n,
            TIMER: constants[SILENCE] + 1,
            NAME: constants[NAMES] + 1,
            SIZE: self.rho + 1,
            BEATS: most_beats + 1,
            MISSES: PATIENCE + 1,
            TOKENS: self.rho + 1 if constants[BY_TOKEN] else 1,
        }
        for column, values in domains.items():
            agents[:, column] = rng.integers(0, values, n)
        draw_reset_fields(agents, constants, rng)
        # A roster of names is kept in order; the slots of a check hold anything.
        memory[:] = np.sort(rng.integers(1, constants[NAMES] + 1, memory.shape), axis=1)
        checking = agents[:, MODE] == CHECK
        agents[checking, BASE] -= agents[checking, BASE] % self.rho
        memory[checking] = rng.integers(0, constants[NONCES] + 1, (int(checking.sum()), self.rho))
