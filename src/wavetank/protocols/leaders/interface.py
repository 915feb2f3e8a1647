"""What a leader-election protocol promises, where it starts, and how its memory is counted.

Every protocol here elects by ranking: agents take ranks 1..n, and rank 1 leads.  All are held to the same definition of
convergence and to the same two ways of counting memory.

Source: Y. Sudo, "Complementary Time-Space Tradeoff for Self-Stabilizing Leader Election: Polynomial States Meet
Sublinear Time", arXiv 2505.23649 (the table of known bounds).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import unknown_name
from wavetank.protocols.leaders.reset import COLUMNS
from wavetank.protocols.leaders.simulation import STEP, Agents, Population, Words
from wavetank.sim.rng import stream

STARTS: Mapping[str, str] = {
    "correct": "a right ranking with consistent records: nothing must happen",
    "all-leaders": "every agent believes to lead, before any other has a rank",
    "no-leader": "ranks 2..n, one of them twice: nobody leads",
    "all-rank-1": "every agent holds rank 1 and takes the ranking for finished",
    "duplicate": "a right ranking but for one agent, which copies another's rank",
    "garbage": "every field of every record drawn from its whole domain",
}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one agent.

    Attributes
    ----------
    record_bits : float
        Every field of the record side by side, each in whole bits: clock, timers, roster, everything.
    state_bits : float
        log2 of the number of states when fields that are never in use at the same time share their place and a roster
        is counted as a set.
    """

    record_bits: float
    state_bits: float


@dataclass(frozen=True, kw_only=True)
class Election:
    """How a run ended.

    Attributes
    ----------
    time : float
        Parallel time (meetings / n) of the last change of the output; NaN when it did not converge.
    converged : bool
        Whether the ranks were a permutation of 1..n during the whole window.
    triggers : int
        How often an agent asked for a reset before that, on its own evidence.
    ranks : int array (n,)
        The output at the end; 0 means none.
    meetings : int
        Simulated meetings, the window included.
    """

    time: float
    converged: bool
    triggers: int
    ranks: NDArray[np.int32]
    meetings: int

    @property
    def leaders(self) -> int:
        """Return how many agents lead at the end."""
        return int((self.ranks == 1).sum())


class LeaderElection(ABC):
    """A protocol that ranks n anonymous agents that know n, from any start.

    Attributes
    ----------
    rule : compiled rule
        What happens in a meeting, see :func:`~wavetank.protocols.leaders.simulation.meeting`.
    columns : int
        Columns of an agent's record.
    """

    rule: ClassVar[Any]
    columns: ClassVar[int] = COLUMNS

    @property
    def most_agents(self) -> int:
        """Return how many agents can be simulated."""
        return 1_000_000

    @abstractmethod
    def constants(self, n: int) -> Words:
        """Return the parameters as the rule reads them; raises BadValueError where ``n`` does not suit them."""

    @abstractmethod
    def memory(self, n: int) -> Memory:
        """Return the bits of an agent's record, and of the states it can be in, when there are ``n``."""

    def window(self, n: int) -> float:
        """Return the parallel time for which ranks must stay; 0 for protocols that are silent once all have ranks."""
        return 0.0

    @abstractmethod
    def arrange(self, start: str, agents: Agents, constants: Words, rng: np.random.Generator) -> Agents:
        """Fill the records (n, columns), which are zero, for a start; return the long memory (n, cells)."""

    def begin(self, n: int, start: str, seed: int) -> Population:
        """Return ``n`` agents at one of :data:`STARTS`.

        Raises
        ------
        UnknownNameError, BadValueError
        """
        constants = self.constants(n)
        rng = stream(seed, "leader-election", "start", check_start(start), n)
        agents = np.zeros((n, self.columns), np.int32)
        return Population(self.rule, agents, self.arrange(start, agents, constants, rng), constants, seed)

    def elect(self, n: int, start: str = "garbage", seed: int = 0, *, most_time: float) -> Election:
        """Let agents meet until their ranks are a permutation and stay so for the window.

        It ends without convergence after ``most_time`` parallel time; the window does not count.
        """
        agents, window = self.begin(n, start, seed), self.window(n)
        converged = agents.advance(most_time + window, window=window)
        return Election(
            time=agents.ranked_since if converged else math.nan,
            converged=converged,
            triggers=agents.triggers,
            ranks=agents.ranks,
            meetings=int(agents.board[STEP]),
        )


def check_start(start: str) -> str:
    """Return ``start``, or raise an UnknownNameError with the nearest one."""
    if start not in STARTS:
        raise unknown_name("start", start, STARTS)
    return start


def start_ranks(start: str, n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return the ranks at a start other than garbage, shuffled over the agents.

    Parameters
    ----------
    start : str
        One of :data:`STARTS`.
    n : int
    rng : numpy Generator
    """
    ranks = np.arange(1, n + 1, dtype=np.int32)
    if start in ("all-leaders", "all-rank-1"):
        ranks[:] = 1
    elif start == "no-leader":
        ranks[0] = rng.integers(2, n + 1)
    elif start == "duplicate":
        copied, copy = rng.choice(np.arange(1 if n > 2 else 0, n), 2, replace=False)
        ranks[copy] = ranks[copied]
    elif start == "garbage":
        ranks[:] = rng.integers(0, n + 1, n)
    return rng.permutation(ranks).astype(np.int32)


def bits(*fields: float) -> float:
    """Return the whole bits of fields with these numbers of values.

    Examples
    --------
    >>> bits(8), bits(9), bits(1), bits(8, 9)
    (3.0, 4.0, 0.0, 7.0)
    """
    return float(sum(math.ceil(math.log2(values)) for values in fields))


def product_log2(fields: Iterable[float]) -> float:
    """Return log2 of the states of fields side by side, with these numbers of values."""
    return math.fsum(math.log2(values) for values in fields)


def sum_log2(modes: Sequence[float]) -> float:
    """Return log2 of the states of modes of which one holds at a time, each given as its log2.

    Examples
    --------
    >>> sum_log2([3.0, 3.0, 4.0])
    5.0
    """
    top = max(modes)
    return top + math.log2(math.fsum(2.0 ** (mode - top) for mode in modes))


def subsets_log2(values: int, most: int) -> float:
    """Return log2 of the number of sets of at most ``most`` out of ``values`` names.

    Examples
    --------
    >>> round(subsets_log2(4, 2), 6), round(math.log2(1 + 4 + 6), 6)
    (3.459432, 3.459432)
    """
    logs = [
        math.lgamma(values + 1) - math.lgamma(k + 1) - math.lgamma(values - k + 1) for k in range(min(most, values) + 1)
    ]
    top = max(logs)
    return (top + math.log(math.fsum(math.exp(each - top) for each in logs))) / math.log(2)
