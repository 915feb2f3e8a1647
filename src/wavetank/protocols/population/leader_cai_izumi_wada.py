"""Self-stabilising leader election with n states: when two agents of one state meet, one of them goes on to the next.

Nothing else ever happens, so the last vacancy is filled by pushes that must go all the way round: quadratic time.  As
only meetings of equals matter, the meetings between them are jumped over: their number is geometric, so a run is exact
and costs a logarithm for every push.

Source: S. Cai, T. Izumi, K. Wada, "How to Prove Impossibility Under Global Fairness: On Space Complexity of
Self-Stabilizing Leader Election on a Population Protocol Model", Theory of Computing Systems 50, 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numba import int64, uint64
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.population.leader_interfaces import Election, Memory, bits, check_start, start_ranks
from wavetank.protocols.population.leader_simulation import (
    RANK,
    Agents,
    Population,
    Words,
    check_agents,
    draw_below,
    meeting,
    set_rank,
)
from wavetank.rng import stream, stream_key
from wavetank.sim.compiled import compiled

# Configurations grow as 4^n: the exact solve is for a handful of agents.
MOST_AGENTS_SOLVED = 8


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
    for rank in range(n):
        place, pairs = rank + 1, holders[rank] * (holders[rank] - 1)
        while place <= n:
            tree[place] += pairs
            place += place & -place
    total = np.int64(0)
    for rank in range(n):
        total += holders[rank] * (holders[rank] - 1)
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
class CaiIzumiWada:
    """Self-stabilising leader election with n states and quadratic time; it has no parameters.

    References
    ----------
    Cai, Izumi, Wada 2012: n states are also necessary.
    """

    most_agents: ClassVar[int] = 1_000_000

    def memory(self, n: int) -> Memory:
        """Return log2 of the n states."""
        check_agents(n)
        return Memory(record_bits=bits(n), state_bits=math.log2(n))

    def begin(self, n: int, start: str, seed: int) -> Population:
        """Return ``n`` agents at a start; they may be let meet one by one."""
        check_agents(n)
        agents = np.zeros((n, 1), np.int32)
        agents[:, RANK] = self._ranks(n, start, seed)
        return Population(_meet, agents, np.zeros((n, 1), np.int32), np.zeros(1, np.int64), seed)

    def elect(self, n: int, start: str = "garbage", seed: int = 0, *, most_time: float) -> Election:
        """Push agents on until the ranks are a permutation, which is silent and therefore for ever."""
        check_agents(n)
        ranks = self._ranks(n, start, seed)
        holders = np.bincount(ranks - 1, minlength=n)
        draws = np.array([stream_key(seed, "leader-election", "draws"), 0], np.uint64)
        meetings = int(_push_until_silent(holders, draws, int(most_time * n)))
        converged = meetings >= 0
        return Election(
            time=meetings / n if converged else math.nan,
            converged=converged,
            triggers=0,
            ranks=np.repeat(np.arange(1, n + 1, dtype=np.int32), holders),
            meetings=meetings if converged else int(most_time * n),
        )

    def _ranks(self, n: int, start: str, seed: int) -> NDArray[np.int32]:
        rng = stream(seed, "leader-election", "start", check_start(start), n)
        ranks = start_ranks(start, n, rng)
        # The protocol has no state without rank.
        return rng.integers(1, n + 1, n).astype(np.int32) if start == "garbage" else ranks


def exact_mean_time(ranks: tuple[int, ...]) -> float:
    """Return the expected parallel time of the protocol from given ranks, by solving its Markov chain.

    Parameters
    ----------
    ranks : tuple of int
        The agents' ranks, 1..n for n agents; n at most 8.

    Raises
    ------
    BadValueError
    """
    n = len(ranks)
    if not 2 <= n <= MOST_AGENTS_SOLVED or not all(1 <= rank <= n for rank in ranks):
        raise BadValueError(
            "The chain is solved for few agents with ranks 1..n.",
            given=ranks,
            allowed=f"2 to {MOST_AGENTS_SOLVED} ranks, each from 1 to their number",
        )
    configurations = [counts for counts in product(range(n + 1), repeat=n) if sum(counts) == n]
    place = {counts: at for at, counts in enumerate(configurations)}
    # Mean meetings h: h = 1 + P h, with h = 0 where no two are equal.
    matrix = np.eye(len(configurations))
    ones = np.ones(len(configurations))
    for counts, at in place.items():
        if max(counts) == 1:
            ones[at] = 0.0
            continue
        moves = 0.0
        for rank, held in enumerate(counts):
            if held > 1:
                after = list(counts)
                after[rank] -= 1
                after[(rank + 1) % n] += 1
                chance = held * (held - 1) / (n * (n - 1))
                matrix[at, place[tuple(after)]] -= chance
                moves += chance
        matrix[at, at] -= 1.0 - moves
    mean = np.linalg.solve(matrix, ones)
    return float(mean[place[tuple(int(count) for count in np.bincount(np.array(ranks) - 1, minlength=n))]]) / n
