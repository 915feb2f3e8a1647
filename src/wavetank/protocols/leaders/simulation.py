"""The compiled core of leader election: random pairs of agents meet, a protocol's rule changes both records.

Every agent is one row of whole numbers, so that a meeting touches one or two cache lines of each agent; long rosters
lie in a second array.  A protocol is one compiled rule for a meeting, called through a function pointer, so that the
loop below is compiled once for all of them.  Time is parallel time: meetings / n.

A run has converged when the output, a rank for every agent, is a permutation of 1..n and stays so for a stated window;
the time of convergence is the moment of the last change.  The loop keeps the number of ranks that exactly one agent
holds up to date with every change, so the test costs one comparison per meeting.

Pairs come from 32 random bits per agent; the bias of the scaling is below n / 2^32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, int32, int64, types, uint64, void
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled
from wavetank.sim.rng import stream_key
from wavetank.sim.streams import mix

# The output is column 0 of every protocol's record; 0 means no rank.
RANK = 0

# The board: what the loop and the rules exchange.  Behind it: how many agents hold each rank 0..n.
DISTINCT, CHANGED, TRIGGERS, CHECKED, STEP, SINCE = range(6)
BOARD = 6

AGENTS = int32[:, ::1]
MEET_SIGNATURE = void(AGENTS, AGENTS, int64, int64, int64[::1], uint64[::1], int64[::1])
MEET_TYPE = types.FunctionType(MEET_SIGNATURE)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
LARGEST = 2**31 - 1

Agents = NDArray[np.int32]
Words = NDArray[np.int64]


def meeting(rule: Any) -> Any:
    """Compile a rule ``(agents, memory, first, second, constants, draws, board)`` for the loop.

    Parameters
    ----------
    rule : callable
        Changes rows ``first`` and ``second`` of ``agents`` (n, columns) and ``memory`` (n, cells), both int32;
        ``constants`` (int64) are the protocol's parameters, ``draws`` its random stream, ``board`` the loop's.
    """
    return compiled(MEET_SIGNATURE)(rule)


@compiled(int64(uint64[::1], int64), inline="always")
def draw_below(draws: Any, bound: int) -> int:
    """Draw a whole number from 0 to ``bound - 1`` for a bound below 2**32."""
    draws[1] += np.uint64(1)
    bits = mix(draws[0] + draws[1] * _GOLDEN)
    return np.int64(((bits >> _HALF) * np.uint64(bound)) >> _HALF)  # type: ignore[return-value]


@compiled(void(AGENTS, int64[::1], int64, int64))
def set_rank(agents: Agents, board: Words, agent: int, rank: int) -> None:
    """Give an agent a rank (0: none) and keep the count of ranks that one agent holds."""
    old = agents[agent, RANK]
    if old == rank:
        return
    for place, change in ((BOARD + old, -1), (BOARD + rank, 1)):
        if place > BOARD:
            board[DISTINCT] -= np.int64(board[place] == 1)
            board[place] += change
            board[DISTINCT] += np.int64(board[place] == 1)
    agents[agent, RANK] = rank
    board[CHANGED] = 1


@compiled(
    boolean(MEET_TYPE, AGENTS, AGENTS, int64[::1], uint64[::1], uint64[::1], int64[::1], int64, int64, boolean),
)
def run_meetings(
    meet: Any,
    agents: Agents,
    memory: Agents,
    constants: Words,
    pairs: Any,
    draws: Any,
    board: Words,
    steps: int,
    window: int,
    until_trigger: bool,
) -> bool:
    """Let random pairs meet.

    Parameters
    ----------
    meet : compiled rule
    agents, memory : int32 arrays (n, columns), (n, cells)
    constants : int64 array
    pairs, draws : uint64 arrays (2,)
        Streams of the scheduler and of the protocol: key, counter.
    board : int64 array
    steps : int
        Most meetings.
    window : int
        Stops when the output was right for that many meetings; a negative window never stops.
    until_trigger : bool
        Stops at the first reset trigger.

    Returns
    -------
    bool
        Whether it stopped before ``steps``.
    """
    n = np.uint64(agents.shape[0])
    others = np.uint64(agents.shape[0] - 1)
    everybody = agents.shape[0]
    key, counter = pairs[0], pairs[1]
    step = board[STEP]
    end = step + steps
    if board[CHANGED] != 0:
        board[CHANGED] = 0
        board[SINCE] = step if board[DISTINCT] == everybody else -1
    since = board[SINCE]
    stopped = window >= 0 and since >= 0 and step - since >= window
    triggers = board[TRIGGERS]
    while step < end and not stopped:
        counter += np.uint64(1)
        bits = mix(key + counter * _GOLDEN)
        first = np.int64(((bits >> _HALF) * n) >> _HALF)
        second = np.int64(((bits & _LOW) * others) >> _HALF)
        second += np.int64(second >= first)
        step += 1
        meet(agents, memory, first, second, constants, draws, board)
        if board[CHANGED] != 0:
            board[CHANGED] = 0
            since = step if board[DISTINCT] == everybody else -1
            board[SINCE] = since
        if board[TRIGGERS] != triggers:
            triggers = board[TRIGGERS]
            stopped = until_trigger
        if window >= 0 and since >= 0 and step - since >= window:
            stopped = True
    board[STEP] = step
    pairs[1] = counter
    return stopped


class Population:
    """Agents in the middle of a run.

    Parameters
    ----------
    meet : compiled rule
    agents : int32 array (n, columns)
        Column 0 is the rank.
    memory : int32 array (n, cells)
    constants : int64 array
    seed : int

    Attributes
    ----------
    board : int64 array
        Tallies of the run; behind them the number of holders of every rank.
    """

    def __init__(self, meet: Any, agents: Agents, memory: Agents, constants: Words, seed: int) -> None:
        self.agents, self.memory, self.constants = agents, memory, constants
        self._meet = meet
        self._pairs = np.array([stream_key(seed, "leader-election", "pairs"), 0], np.uint64)
        self.draws = np.array([stream_key(seed, "leader-election", "draws"), 0], np.uint64)
        self.board = np.zeros(BOARD + len(agents) + 1, np.int64)
        self.recount()

    def recount(self) -> None:
        """Count the holders of every rank anew, after the agents were changed from outside."""
        n = len(self.agents)
        holders = np.bincount(self.agents[:, RANK], minlength=n + 1)
        self.board[BOARD:] = holders
        self.board[DISTINCT] = int((holders[1:] == 1).sum())
        self.board[CHANGED] = 1

    @property
    def time(self) -> float:
        """Return the parallel time that has passed: meetings / n."""
        return float(self.board[STEP]) / len(self.agents)

    @property
    def ranked_since(self) -> float:
        """Return the parallel time since which the ranks are a permutation of 1..n; NaN when they are none."""
        return float(self.board[SINCE]) / len(self.agents) if self.is_ranked() else float("nan")

    @property
    def triggers(self) -> int:
        """Return how often an agent asked for a reset on its own evidence."""
        return int(self.board[TRIGGERS])

    @property
    def groups_checked(self) -> int:
        """Return how many groups of ranks the leader saw checked, over all sweeps."""
        return int(self.board[CHECKED])

    @property
    def ranks(self) -> NDArray[np.int32]:
        """Return every agent's rank, 0 where it has none."""
        return self.agents[:, RANK].copy()

    def is_ranked(self) -> bool:
        """Return whether the ranks are a permutation of 1..n."""
        return int(self.board[DISTINCT]) == len(self.agents)

    def advance(self, time: float, *, window: float = -1.0, until_trigger: bool = False) -> bool:
        """Let agents meet for at most ``time`` parallel time.

        Parameters
        ----------
        time : float
            Parallel time, meetings / n.
        window : float
            Parallel time for which the output must be right before the run stops; negative: it never stops for that.
        until_trigger : bool
            Stop at the first reset trigger.

        Returns
        -------
        bool
            Whether it stopped early.
        """
        n = len(self.agents)
        return bool(
            run_meetings(
                self._meet,
                self.agents,
                self.memory,
                self.constants,
                self._pairs,
                self.draws,
                self.board,
                int(time * n),
                -1 if window < 0 else int(window * n),
                until_trigger,
            )
        )


def check_agents(n: int, least: int = 2, most: int = 1_000_000) -> None:
    """Raise a BadValueError for a number of agents that cannot be simulated."""
    if not least <= n <= most:
        raise BadValueError(
            "There are too few or too many agents.", given=n, allowed=f"{least} to {most}", where="n, the agents"
        )
