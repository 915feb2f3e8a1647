"""Ranking by names in sublinear time, without silence: everybody knows all names, and remembers whom it met.

Agents draw names; rosters merge until they hold n names, and the place of a name in the roster is the rank.  Two agents
of one name are found without meeting: when two agents meet they agree on a random word, and keep it in a tree of who
met whom, ``depth`` meetings deep.  An agent that is said to have met somebody, but remembers another word has a double.
A right ranking is never given up.  With depth d the time is about d n^(1/(d+1)), with n^d log n bits: for few agents.

The source calls it Sublinear-Time-SSR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba import boolean, int64, void

from wavetank.errors import BadValueError
from wavetank.protocols.leaders.interface import LeaderElection, Memory, bits, product_log2, start_ranks, subsets_log2
from wavetank.protocols.leaders.reset import (
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
    LARGEST,
    Agents,
    Words,
    check_agents,
    draw_below,
    meeting,
    set_rank,
)
from wavetank.settings import setting
from wavetank.sim.compiled import compiled

NAME, SIZE, FRIENDS = 2, 3, 4
COLLECTING = 0
DEPTH, NAMES, MEMORY_SPAN = 3, 4, 5
WORDS = 1 << 16
# A record holds n (1 + 3 + 3 n) cells at depth 2.
MOST_AGENTS = (1024, 256, 64)


@compiled(int64(AGENTS, AGENTS, int64, int64))
def _friend(agents: Agents, memory: Agents, who: int, name: int) -> int:
    """Return the row of a name among those that an agent met, -1 where it is none of them."""
    n = agents.shape[0]
    for row in range(agents[who, FRIENDS]):
        if memory[who, n + 3 * row] == name:
            return row
    return -1


@compiled(boolean(AGENTS, AGENTS, int64, int64, int64[::1]))
def _is_contradicted(agents: Agents, memory: Agents, a: int, b: int, constants: Words) -> bool:
    """Return whether what ``a`` heard of the name of ``b`` contradicts what ``b`` remembers."""
    n = agents.shape[0]
    name_a, name_b = agents[a, NAME], agents[b, NAME]
    if constants[DEPTH] >= 1:
        row = _friend(agents, memory, a, name_b)
        if row >= 0 and memory[a, n + 3 * row + 2] > 0:
            back = _friend(agents, memory, b, name_a)
            if back < 0 or memory[b, n + 3 * back + 1] != memory[a, n + 3 * row + 1]:
                return True
    if constants[DEPTH] >= 2:
        deeper = 4 * n
        for row in range(agents[a, FRIENDS]):
            between = memory[a, n + 3 * row]
            if memory[a, n + 3 * row + 2] <= 0 or between == name_b:
                continue
            for heard in range(n):
                cell = deeper + 3 * (row * n + heard)
                if memory[a, cell] == 0:
                    break
                if memory[a, cell] != name_b or memory[a, cell + 2] <= 0:
                    continue
                # "between" met the name of b and kept this word: b remembers it, or met "between" again, and that was
                # after "between" met a.
                back = _friend(agents, memory, b, between)
                if back >= 0 and memory[b, n + 3 * back + 1] == memory[a, cell + 1]:
                    continue
                confirmed = False
                if back >= 0:
                    for other in range(n):
                        seen = deeper + 3 * (back * n + other)
                        if memory[b, seen] == 0:
                            break
                        if memory[b, seen] == name_a:
                            confirmed = memory[b, seen + 1] == memory[a, n + 3 * row + 1]
                if not confirmed:
                    return True
    return False


@compiled(void(AGENTS, AGENTS, int64, int64, int64, int64[::1]))
def _remember(agents: Agents, memory: Agents, who: int, other: int, word: int, constants: Words) -> None:
    n = agents.shape[0]
    name = agents[other, NAME]
    row = _friend(agents, memory, who, name)
    if row < 0:
        if agents[who, FRIENDS] >= n:
            return
        row = np.int64(agents[who, FRIENDS])
        agents[who, FRIENDS] += 1
        memory[who, n + 3 * row] = name
    memory[who, n + 3 * row + 1] = word
    memory[who, n + 3 * row + 2] = constants[MEMORY_SPAN]


@compiled(void(AGENTS, AGENTS, int64, int64))
def _copy_friends(agents: Agents, memory: Agents, who: int, other: int) -> None:
    """Keep, below the row of ``other``, whom ``other`` met and when."""
    n = agents.shape[0]
    row = _friend(agents, memory, who, agents[other, NAME])
    if row < 0:
        return
    start, size = 4 * n + 3 * row * n, 3 * np.int64(agents[other, FRIENDS])
    for cell in range(3 * n):
        memory[who, start + cell] = memory[other, n + cell] if cell < size else 0


@compiled(void(AGENTS, AGENTS, int64))
def _age(agents: Agents, memory: Agents, who: int) -> None:
    n = agents.shape[0]
    for row in range(agents[who, FRIENDS]):
        memory[who, n + 3 * row + 2] = max(memory[who, n + 3 * row + 2] - 1, 0)
    if memory.shape[1] > 4 * n:
        for row in range(agents[who, FRIENDS]):
            for heard in range(n):
                cell = 4 * n + 3 * (row * n + heard)
                if memory[who, cell] == 0:
                    break
                memory[who, cell + 2] = max(memory[who, cell + 2] - 1, 0)


@compiled(boolean(AGENTS, AGENTS, int64, int64))
def _merge_rosters(agents: Agents, memory: Agents, a: int, b: int) -> bool:
    """Give both agents all names that either knows; return whether there are more than n, or one misses its own."""
    n = agents.shape[0]
    size_a, size_b = np.int64(agents[a, SIZE]), np.int64(agents[b, SIZE])
    merged = np.empty(n, np.int32)
    i, j, size = 0, 0, 0
    found_a, found_b = False, False
    while i < size_a or j < size_b:
        if size == n:
            return True
        if j >= size_b or (i < size_a and memory[a, i] < memory[b, j]):
            name = memory[a, i]
            i += 1
        elif i >= size_a or memory[b, j] < memory[a, i]:
            name = memory[b, j]
            j += 1
        else:
            name = memory[a, i]
            i += 1
            j += 1
        found_a |= name == agents[a, NAME]
        found_b |= name == agents[b, NAME]
        merged[size] = name
        size += 1
    for k in range(size):
        memory[a, k] = merged[k]
        memory[b, k] = merged[k]
    agents[a, SIZE] = size
    agents[b, SIZE] = size
    return not (found_a and found_b)


@meeting
def _meet(agents: Agents, memory: Agents, a: int, b: int, constants: Words, draws: Any, board: Words) -> None:
    n = agents.shape[0]
    if agents[a, MODE] == RESET or agents[b, MODE] == RESET:
        wakes = reset_meeting(agents, a, b, constants, draws, board)
        for who, flag in ((a, WAKES_FIRST), (b, WAKES_SECOND)):
            if wakes & flag:
                agents[who, MODE] = COLLECTING
                agents[who, NAME] = 1 + draw_below(draws, constants[NAMES])
                agents[who, FRIENDS] = 0
                agents[who, SIZE] = 1
                memory[who, 0] = agents[who, NAME]
        return
    if (
        agents[a, NAME] == agents[b, NAME]
        or _is_contradicted(agents, memory, a, b, constants)
        or _is_contradicted(agents, memory, b, a, constants)
        or _merge_rosters(agents, memory, a, b)
    ):
        trigger(agents, a, constants, draws, board)
        trigger(agents, b, constants, draws, board)
        return
    if constants[DEPTH] >= 1:
        _age(agents, memory, a)
        _age(agents, memory, b)
        word = 1 + draw_below(draws, WORDS)
        if constants[DEPTH] >= 2:
            # Both hand on what they knew before this meeting, then both remember it.
            _remember(agents, memory, a, b, word, constants)
            _copy_friends(agents, memory, a, b)
            _remember(agents, memory, b, a, word, constants)
            _copy_friends(agents, memory, b, a)
        else:
            _remember(agents, memory, a, b, word, constants)
            _remember(agents, memory, b, a, word, constants)
    for who in (a, b):
        if agents[who, SIZE] == n:
            for k in range(n):
                if memory[who, k] == agents[who, NAME]:
                    set_rank(agents, board, who, k + 1)


@dataclass(frozen=True, kw_only=True)
class BurmanSublinear(LeaderElection):
    """Ranking by names with a tree of meetings: sublinear time, exponentially many states.

    Parameters
    ----------
    depth : int
        Meetings that a tree looks back: 0 (only meetings of doubles count), 1 or 2.

    References
    ----------
    Burman et al., PODC 2021.
    """

    depth: int = setting(1, says="Depth of the tree of past meetings", low=0, high=2)
    span: float = setting(8.0, says="Lifetime of evidence divided by (n^(1/(depth+1)) + ln n)", low=0.1, high=1000)
    countdown_logs: float = setting(2.0, says="Countdown of a reset divided by ln n", low=0.5, high=100)
    dormant_logs: float = setting(4.0, says="Dormancy of a reset divided by ln n", low=0.5, high=100)

    rule: ClassVar[Any] = staticmethod(_meet)

    def constants(self, n: int) -> Words:
        """Return the parameters as the compiled rule reads them; raises BadValueError for too few agents."""
        check_agents(n)
        reset = reset_constants(n, self.countdown_logs, self.dormant_logs * math.log(n), tickets=False)
        span = math.ceil(self.span * (n ** (1 / (self.depth + 1)) + math.log(n)))
        return np.array([*reset, self.depth, min(n**3, LARGEST), span], np.int64)

    @property
    def most_agents(self) -> int:
        """Return how many agents can be simulated."""
        return MOST_AGENTS[self.depth]

    def memory(self, n: int) -> Memory:
        """Return the bits of an agent's record, and of the states it can be in."""
        constants = self.constants(n)
        names, span = int(constants[NAMES]), int(constants[MEMORY_SPAN])
        edges = sum(n**level for level in range(1, self.depth + 1))
        asleep = reset_fields(constants)
        collecting = subsets_log2(names, n) + math.log2(names)
        collecting += edges * (math.log2(names + 1) + math.log2(WORDS) + math.log2(span + 1))
        sleeping = product_log2(asleep)
        return Memory(
            record_bits=bits(2, names, n + 1, n + 1, n + 1, *asleep)
            + n * bits(names + 1)
            + edges * bits(names + 1, WORDS, span + 1),
            state_bits=collecting + math.log2(1 + 2.0 ** (sleeping - collecting)),
        )

    def window(self, n: int) -> float:
        """Return how long evidence counts."""
        return float(self.constants(n)[MEMORY_SPAN])

    def arrange(self, start: str, agents: Agents, constants: Words, rng: np.random.Generator) -> Agents:
        """Fill the records for a start; return rosters and trees; raises BadValueError for trees that do not fit."""
        n = len(agents)
        if n > self.most_agents:
            raise BadValueError(
                "The trees of this number of agents do not fit.",
                given=n,
                allowed=f"2 to {self.most_agents} at depth {self.depth}",
                where="n, the agents",
                hint="a smaller depth, or another protocol",
            )
        memory = np.zeros((n, n * (1, 4, 4 + 3 * n)[self.depth]), np.int32)
        names = np.sort(1 + rng.choice(int(constants[NAMES]), n, replace=False))
        ranks = start_ranks(start, n, rng)
        agents[:, 0] = ranks
        agents[:, NAME] = names[np.maximum(ranks, 1) - 1]
        memory[:, :n] = names
        agents[:, SIZE] = n
        if start == "all-leaders":
            # Each knows only itself, and all have one name.
            agents[:, SIZE] = 1
        elif start == "garbage":
            agents[:, MODE] = rng.choice([COLLECTING, RESET], n)
            agents[:, NAME] = rng.integers(1, constants[NAMES] + 1, n)
            agents[:, SIZE] = rng.integers(1, n + 1, n)
            agents[:, FRIENDS] = rng.integers(0, n + 1, n) if self.depth else 0
            memory[:, :n] = np.sort(rng.integers(1, constants[NAMES] + 1, (n, n)), axis=1)
            edges = (memory.shape[1] - n) // 3
            for at, values in enumerate((constants[NAMES], WORDS, constants[MEMORY_SPAN])):
                memory[:, n + at :: 3] = rng.integers(1, values + 1, (n, edges))
            draw_reset_fields(agents, constants, rng)
        return memory
