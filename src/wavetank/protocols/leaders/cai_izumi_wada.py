"""Self-stabilising leader election with n states: when two agents of one state meet, one of them goes on to the next.

Nothing else ever happens, so the last vacancy is filled by pushes that must go all the way round: quadratic time.  As
only meetings of equals matter, the meetings between them are jumped over: their number is geometric, so a run is exact
and costs a logarithm for every push.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba import int64, uint64

from wavetank.protocols.leaders.interface import Election, LeaderElection, Memory, bits, start_ranks
from wavetank.protocols.leaders.simulation import (
    BOARD,
    RANK,
    Agents,
    Words,
    check_agents,
    draw_below,
    meeting,
    set_rank,
)
from wavetank.sim.compiled import compiled


@meeting
def _meet(agents: Agents, memory: Agents, a: int, b: int, constants: Words, draws: Any, board: Words) -> None:
    if agents[a, RANK] == agents[b, RANK]:
        set_rank(agents, board, b, 1 + agents[b, RANK] % agents.shape[0])


@compiled(int64(uint64[::1], int64))
def _draw_long(draws: Any, bound: int) -> int:
    high = np.float64(draw_below(draws, 1 << 31)) * 2.0**-31
    low = np.float64(draw_below(draws, 1 << 21)) * 2.0**-52
    return min(int((high + low) * bound), bound - 1)


@compiled(int64(int64[::1], uint64[::1], int64))
def _push_until_silent(holders: Words, draws: Any, most_meetings: int) -> int:
    """Push agents on, by the counts of the ranks alone; return the meetings it took, -1 for too many."""
    n = holders.size
    # A Fenwick tree over the ordered pairs of equals of every rank.
    tree = np.zeros(n + 1, np.int64)
    total = np.int64(0)
    for rank in range(n):
        place, pairs = rank + 1, holders[rank] * (holders[rank] - 1)
        total += pairs
        while place <= n:
            tree[place] += pairs
            place += place & -place
    top = 1
    while 2 * top <= n:
        top *= 2
    everything = np.float64(n) * np.float64(n - 1)
    meetings = 0
    while total > 0:
        share = np.float64(total) / everything
        uniform = (np.float64(draw_below(draws, 1 << 31)) + 0.5) * 2.0**-31
        uniform = (uniform + np.float64(draw_below(draws, 1 << 31))) * 2.0**-31
        meetings += 1 + (int(math.log(uniform) / math.log1p(-share)) if share < 1.0 else 0)
        if meetings > most_meetings:
            return -1
        # Below 2^32 pairs one draw is enough; beyond (n > 65536) the high half decides first.
        left = draw_below(draws, total) if total < (1 << 32) else _draw_long(draws, total)
        place, step = 0, top
        while step > 0:
            if place + step <= n and tree[place + step] <= left:
                place += step
                left -= tree[place]
            step //= 2
        following = (place + 1) % n
        for rank, change in ((place, -2 * (holders[place] - 1)), (following, 2 * holders[following])):
            total += change
            at = rank + 1
            while at <= n:
                tree[at] += change
                at += at & -at
        holders[place] -= 1
        holders[following] += 1
    return meetings


@dataclass(frozen=True, kw_only=True)
class CaiIzumiWada(LeaderElection):
    """Self-stabilising leader election with n states and quadratic time; it has no parameters.

    References
    ----------
    Cai, Izumi, Wada 2012: n states are also necessary.
    """

    rule: ClassVar[Any] = staticmethod(_meet)
    columns: ClassVar[int] = 1

    def memory(self, n: int) -> Memory:
        """Return log2 of the n states."""
        check_agents(n)
        return Memory(record_bits=bits(n), state_bits=math.log2(n))

    def constants(self, n: int) -> Words:
        """Return that there are none; raises BadValueError for too few agents."""
        check_agents(n)
        return np.zeros(1, np.int64)

    def arrange(self, start: str, agents: Agents, constants: Words, rng: np.random.Generator) -> Agents:
        """Give out the ranks of a start."""
        n = len(agents)
        ranks = start_ranks(start, n, rng)
        # The protocol has no state without rank.
        agents[:, RANK] = rng.integers(1, n + 1, n) if start == "garbage" else ranks
        return np.zeros((n, 1), np.int32)

    def elect(self, n: int, start: str = "garbage", seed: int = 0, *, most_time: float) -> Election:
        """Push agents on until the ranks are a permutation, which is silent and therefore for ever."""
        agents = self.begin(n, start, seed)
        holders = agents.board[BOARD + 1 :]
        meetings = int(_push_until_silent(holders, agents.draws, int(most_time * n)))
        converged = meetings >= 0
        return Election(
            time=meetings / n if converged else math.nan,
            converged=converged,
            triggers=0,
            ranks=np.repeat(np.arange(1, n + 1, dtype=np.int32), holders),
            meetings=meetings if converged else int(most_time * n),
        )
