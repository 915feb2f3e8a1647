"""Small tasks that a policy of a few actions can learn, with the delay of a tool after every action.

Each has a secret of its own, drawn from its seed: two tasks of one kind want different answers to the same question, so
that an adapter that learnt another task's would be seen.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import Draws, stream
from wavetank.training.tenants.policy import ACTIONS, INPUTS, Floats

_SIDE = 4


class Reply(NamedTuple):
    """What an environment answers to an action.

    Attributes
    ----------
    observation : ndarray of float64, shape (INPUTS,)
    reward : float
        Added to the answer's reward.
    done : bool
    """

    observation: Floats
    reward: float
    done: bool


class Session(Protocol):
    """One answer in the making; ``observation`` is what the policy sees first.

    act(action) does what the policy chose, and waits for the reply.
    """

    observation: Floats

    async def act(self, action: int) -> Reply: ...


class Environment(Protocol):
    """What a task is about.

    begin(prompt, draws) starts an answer: ``prompt`` is a number that all answers of a group share; ``draws`` is the
    answer's own chance.  It may also be a coroutine function.
    """

    def begin(self, prompt: int, draws: Draws) -> Session | Awaitable[Session]: ...


def one_hot(place: int) -> Floats:
    """Return zeros with a one at a place."""
    found = np.zeros(INPUTS)
    found[place] = 1.0
    return found


async def _tool(delay_s: float, sigma: float, draws: Draws) -> None:
    """Sleep for a log-normal time."""
    if delay_s > 0:
        # Box and Muller: the draws of an answer are single numbers.
        radius = math.sqrt(-2.0 * math.log1p(-draws.random()))
        await asyncio.sleep(delay_s * math.exp(sigma * radius * math.cos(2.0 * math.pi * draws.random())))


@dataclass(frozen=True, kw_only=True)
class _WithTool:
    """What all toys have: a tool that takes its time."""

    delay_s: float = setting(0.0, unit="s", says="Median delay of the tool", low=0.0, high=3600.0)
    sigma: float = setting(1.0, says="Standard deviation of the delay's logarithm", low=0.0, high=4.0)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Bandit(_WithTool):
    """Sixteen questions, of which each has one right answer."""

    secret: int = setting(0, says="Draws which answers are right")

    def begin(self, prompt: int, draws: Draws) -> Session:
        """Ask one of the questions.

        Parameters
        ----------
        prompt : int
        draws : Draws
        """
        question = prompt % INPUTS
        right = int(stream(self.secret, "bandit").integers(ACTIONS, size=INPUTS)[question])
        return _Question(one_hot(question), right, self.delay_s, self.sigma, draws)


@dataclass(frozen=True, kw_only=True)
class Arithmetic(_WithTool):
    """Two numbers from 0 to 7, of which a secret sum is asked: a + b + c, without what is carried over."""

    secret: int = setting(0, says="Draws what is added")

    def begin(self, prompt: int, draws: Draws) -> Session:
        """Ask for one of the sums.

        Parameters
        ----------
        prompt : int
        draws : Draws
        """
        more = int(stream(self.secret, "arithmetic").integers(ACTIONS))
        # The second number is 0 or 1: what two layers of this size learn in some dozens of updates.
        first, second = prompt % ACTIONS, prompt // ACTIONS % 2
        seen = one_hot(first) + one_hot(ACTIONS + second)
        return _Question(seen, (first + second + more) % ACTIONS, self.delay_s, self.sigma, draws)


class _Question:
    def __init__(self, observation: Floats, right: int, delay_s: float, sigma: float, draws: Draws) -> None:
        self.observation = observation
        self._right, self._delay, self._draws = right, (delay_s, sigma), draws

    async def act(self, action: int) -> Reply:
        await _tool(*self._delay, self._draws)
        return Reply(self.observation, float(action == self._right), True)


@dataclass(frozen=True, kw_only=True)
class Grid(_WithTool):
    """A walk on four by four fields to one that is not shown; every move is a call of the tool."""

    secret: int = setting(0, says="Draws the field to reach")
    moves: int = setting(6, says="Most moves of an answer", low=1, high=1000)

    def begin(self, prompt: int, draws: Draws) -> Session:
        """Stand on one of the fields.

        Parameters
        ----------
        prompt : int
        draws : Draws
        """
        goal = int(stream(self.secret, "grid").integers(_SIDE * _SIDE))
        start = (goal + 1 + prompt % (_SIDE * _SIDE - 1)) % (_SIDE * _SIDE)
        return _Walk(start, goal, self, draws)


class _Walk:
    def __init__(self, start: int, goal: int, grid: Grid, draws: Draws) -> None:
        self.observation = one_hot(start)
        self._at, self._goal, self._grid, self._draws, self._moves = start, goal, grid, draws, 0

    async def act(self, action: int) -> Reply:
        await _tool(self._grid.delay_s, self._grid.sigma, self._draws)
        row, column = divmod(self._at, _SIDE)
        step_row, step_column = ((-1, 0), (1, 0), (0, -1), (0, 1))[action % 4]
        row, column = min(max(row + step_row, 0), _SIDE - 1), min(max(column + step_column, 0), _SIDE - 1)
        self._at, self._moves = row * _SIDE + column, self._moves + 1
        there = self._at == self._goal
        reward = 1.0 - 0.05 * self._moves if there else 0.0
        return Reply(one_hot(self._at), reward, there or self._moves >= self._grid.moves)
