"""Trajectories of agentic reinforcement learning: turns of an agent, each followed by what its environment takes.

A trajectory begins with a prompt; in each turn the model writes tokens, and then the environment answers after a delay.
A turn cannot begin before the delay of the turn before it is over, so that a trajectory has a shortest time that no
number of devices can undercut: the few with many turns decide when a synchronous step ends.

Sources: W. Gao et al., "ROSE: Rollout On Serving GPUs via Cooperative Elasticity for Agentic RL", arXiv 2605.06534, and
Q. Yu et al., "DAPO", arXiv 2503.14476, for how unequal trajectories are.

Differs from the sources:

1. Numbers of turns, tokens and delays are independent of each other; those of real agents need not be.
2. What the environment's answer adds to the context is not drawn here: a simulation says how many tokens it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadTraceError, BadValueError
from wavetank.sim.rng import stream

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MOST_TURNS = 100_000_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Trajectories:
    """Trajectories one after the other, with the turns of all of them in one array.

    Arrays are converted, copied and made read-only.  Two are equal when their contents are.

    Parameters
    ----------
    first_turn : int64 array (n + 1,)
        Trajectory i has the turns ``first_turn[i]`` to ``first_turn[i + 1] - 1``, one or more.
    prompt_tokens : int64 array (n,)
        Tokens of the first prompt, 1 or more.
    turn_tokens : int64 array (turns,)
        Tokens that the model writes in each turn, 1 or more.
    delay_s : float64 array (turns,)
        What the environment takes after each turn, s, finite and not negative; after the last turn, what the reward
        takes.

    Raises
    ------
    BadTraceError
        If shapes do not fit together or a number is outside its range; it names the field and the place.
    """

    first_turn: IntArray
    prompt_tokens: IntArray
    turn_tokens: IntArray
    delay_s: FloatArray

    def __post_init__(self) -> None:
        first = _whole("first_turn", self.first_turn, 0)
        prompts = _whole("prompt_tokens", self.prompt_tokens, 1)
        tokens = _whole("turn_tokens", self.turn_tokens, 1)
        delays = _numbers("delay_s", self.delay_s).astype(np.float64)
        wrong = np.flatnonzero(~((delays >= 0) & (delays < math.inf)))
        if wrong.size:
            raise BadTraceError("A delay is finite and not negative.", given=float(delays[wrong[0]]),
                                where=f"delay_s[{wrong[0]}]")  # fmt: skip
        if prompts.size == 0 or first.size != prompts.size + 1:
            raise BadTraceError(
                "first_turn has one entry per trajectory and one for the end.", given=first.size,
                allowed=f"{prompts.size + 1}, of one trajectory or more", where="first_turn",
            )  # fmt: skip
        if first[0] != 0 or first[-1] != tokens.size or tokens.size != delays.size:
            raise BadTraceError(
                "The turns of all trajectories are those of the arrays.",
                given=f"turns {first[0]} to {first[-1]}, {tokens.size} turn_tokens, {delays.size} delays",
                allowed="0 to the length of both arrays", where="first_turn",
            )  # fmt: skip
        empty = np.flatnonzero(np.diff(first) < 1)
        if empty.size:
            raise BadTraceError("Every trajectory has a turn.", given=int(np.diff(first)[empty[0]]),
                                allowed="1 or more", where=f"trajectory {empty[0]}")  # fmt: skip
        for name, array in zip(("first_turn", "prompt_tokens", "turn_tokens", "delay_s"),
                               (first, prompts, tokens, delays), strict=True):  # fmt: skip
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return int(self.prompt_tokens.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trajectories) and all(
            np.array_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)
        )

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, each.name).tobytes() for each in fields(self)))

    def __repr__(self) -> str:
        return f"Trajectories({len(self)} trajectories, {self.turn_tokens.size} turns)"

    @property
    def turns(self) -> IntArray:
        """Number of turns of each trajectory, shape (n,)."""
        return np.diff(self.first_turn)

    @property
    def written_tokens(self) -> IntArray:
        """Tokens that the model writes in each trajectory, shape (n,)."""
        return np.add.reduceat(self.turn_tokens, self.first_turn[:-1])

    def context_tokens(self, answer_tokens: int = 0) -> IntArray:
        """Return the tokens before each turn: the prompt, what was written before, and the environment's answers.

        Parameters
        ----------
        answer_tokens : int
            Of each answer of the environment.

        Returns
        -------
        int64 array (turns,)
        """
        before = np.cumsum(self.turn_tokens) - self.turn_tokens
        starts = np.repeat(self.first_turn[:-1], self.turns)
        turn = np.arange(self.turn_tokens.size) - starts
        found: IntArray = np.repeat(self.prompt_tokens, self.turns) + before - before[starts] + turn * answer_tokens
        return found

    def least_s(self, token_s: float) -> FloatArray:
        """Return the time that each trajectory takes where nothing waits, s, shape (n,).

        Parameters
        ----------
        token_s : float
            For each token that is written; prompts are read in no time.
        """
        delays_s = np.add.reduceat(self.delay_s, self.first_turn[:-1])
        return np.asarray(token_s * self.written_tokens + delays_s, dtype=np.float64)

    def part(self, first: int, count: int) -> Trajectories:
        """Return ``count`` trajectories from the one numbered ``first``.

        Parameters
        ----------
        first, count : int

        Raises
        ------
        BadValueError
            If there are not as many.
        """
        if not 0 <= first < first + count <= len(self):
            raise BadValueError("There are no such trajectories.", given=f"{count} from number {first}",
                                allowed=f"within 0 to {len(self) - 1}")  # fmt: skip
        begin, end = self.first_turn[first], self.first_turn[first + count]
        return Trajectories(
            first_turn=self.first_turn[first : first + count + 1] - begin,
            prompt_tokens=self.prompt_tokens[first : first + count],
            turn_tokens=self.turn_tokens[begin:end],
            delay_s=self.delay_s[begin:end],
        )


def _numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.array(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise BadTraceError("One array of numbers is needed.", given=f"{array.dtype}, shape {array.shape}", where=name)
    return array


def _whole(name: str, values: npt.ArrayLike, least: int) -> IntArray:
    array = _numbers(name, values)
    wrong = np.flatnonzero(~((array >= least) & (array < 2**53) & (array == np.floor(array))))
    if wrong.size:
        raise BadTraceError("A whole number is needed.", given=array[wrong[0]].item(), allowed=f"{least} or more",
                            where=f"{name}[{wrong[0]}]")  # fmt: skip
    return array.astype(np.int64)


class Spread(Protocol):
    """A distribution of numbers above 0."""

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return ``n`` numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """Log-normal numbers, with what lies outside of an interval moved to its ends.

    Parameters
    ----------
    median : float
        Above 0.
    sigma : float
        Standard deviation of the logarithm; 0: all are the median.
    low, high : float
        Ends of the interval.
    """

    median: float
    sigma: float
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        if not (0 < self.median < math.inf and 0 <= self.sigma < math.inf):
            raise BadValueError(
                "This is no log-normal distribution.", given=f"median {self.median}, sigma {self.sigma}",
                allowed="a median above 0 and a sigma of 0 or more, finite",
            )  # fmt: skip
        if not 0 <= self.low <= self.high:
            raise BadValueError(
                "The interval is empty.", given=f"{self.low} to {self.high}", allowed="0 <= low <= high"
            )

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return ``n`` numbers."""
        drawn = self.median * np.exp(self.sigma * rng.standard_normal(n))
        return np.asarray(np.clip(drawn, self.low, self.high), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Whole numbers of an interval, all as likely.

    Parameters
    ----------
    low, high : int
        Both ends are drawn, too.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < 2**53:
            raise BadValueError(
                "The interval is empty.", given=f"{self.low} to {self.high}", allowed="0 <= low <= high"
            )

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return ``n`` numbers."""
        return rng.integers(self.low, self.high, n, endpoint=True).astype(np.float64)


TURNS = LogNormal(median=6.0, sigma=0.8, low=1.0, high=30.0)
TURN_TOKENS = LogNormal(median=200.0, sigma=0.6, low=1.0, high=4096.0)
DELAY_S = LogNormal(median=1.7, sigma=1.4, low=0.1, high=30.0)
PROMPT_TOKENS = LogNormal(median=1000.0, sigma=0.5, low=1.0, high=8192.0)


def generate(
    n: int,
    *,
    seed: int,
    turns: Spread = TURNS,
    turn_tokens: Spread = TURN_TOKENS,
    delay_s: Spread = DELAY_S,
    prompt_tokens: Spread = PROMPT_TOKENS,
    name: str = "trajectories",
) -> Trajectories:
    """Draw trajectories; more of them with the same seed begin with the same ones.

    Parameters
    ----------
    n : int
        How many.
    seed : int
    turns, turn_tokens, prompt_tokens : Spread
        :class:`LogNormal`, :class:`Uniform` or a distribution of your own; rounded to whole numbers, at least 1.
    delay_s : Spread
        Of the environment after each turn, s.
    name : str
        Of the random streams: other names give other trajectories of the same seed, for several jobs.

    Returns
    -------
    Trajectories

    Raises
    ------
    BadValueError
        If ``n`` is no number of trajectories, or they have too many turns.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_TURNS:
        raise BadValueError(
            "There is no such number of trajectories.", given=n, allowed=f"1 to {MOST_TURNS}", where="n"
        )

    def drawn(spread: Spread, what: str, count: int) -> FloatArray:
        return spread.draw(count, stream(seed, name, what))

    counts = _rounded(drawn(turns, "turns", n))
    total = int(counts.sum())
    if total > MOST_TURNS:
        raise BadValueError("The trajectories have too many turns.", given=total, allowed=f"at most {MOST_TURNS}")
    return Trajectories(
        first_turn=np.concatenate(([0], np.cumsum(counts))),
        prompt_tokens=_rounded(drawn(prompt_tokens, "prompts", n)),
        turn_tokens=_rounded(drawn(turn_tokens, "tokens", total)),
        delay_s=drawn(delay_s, "delays", total),
    )


def _rounded(drawn: FloatArray) -> IntArray:
    wrong = drawn[~(np.abs(drawn) < 2**53)]
    if wrong.size:
        raise BadValueError("A distribution gave what is no count.", given=float(wrong[0]), allowed="below 2**53")
    return np.maximum(np.rint(drawn), 1).astype(np.int64)
