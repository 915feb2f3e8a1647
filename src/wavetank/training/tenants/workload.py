"""Tasks that differ in how long their answers are, how long their tools take, and how many updates they want."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream
from wavetank.training.tenants.interface import PS, Tenants
from wavetank.workloads.trajectories import LogNormal, Spread, Uniform, generate

_CENTRE = math.sqrt(2.0)  # of lengths from a half to four times
_TURN_SIGMA = 0.6
_LONGEST_TURN_TOKENS = 4096.0


@dataclass(frozen=True)
class _Nothing:
    """No delay at all, which no log-normal number is."""

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.zeros(n)


def draw(
    seed: int, *, tasks: int, updates: int, groups: int, group: int, turns: int, turn_tokens: float,
    prompt_tokens: float, heterogeneity: float, delays_s: tuple[float, float], sigma: float, tools: int, kv_quota: int,
    fewest: float = 0.5,
) -> Tenants:  # fmt: skip
    """Draw the tasks of a seed.

    Parameters
    ----------
    seed : int
    tasks, updates : int
        Tasks, and the most updates of one; each wants a number between ``fewest`` of them and all.
    groups, group : int
        Groups of an update, and answers of a group.
    turns : int
        Most turns of an answer; all numbers from 1 on are equally likely.
    turn_tokens, prompt_tokens : float
        Medians of a task of length 1, tokens.
    heterogeneity : float
        Longest turns of a task over the shortest, around the square root of 2; all logarithms are equally likely.
    delays_s : (float, float)
        Shortest and longest median of a task's tools, s; all logarithms are equally likely.
    sigma : float
        Standard deviation of the logarithm of delays.
    tools, kv_quota : int
        Tools of a task at the same time, and tokens that it may hold.
    fewest : float
        Share of ``updates`` that every task wants at least.

    Raises
    ------
    BadValueError
        If the delays are not in order.
    """
    low, high = delays_s
    if not 0 <= low <= high < math.inf or low == 0 < high:
        raise BadValueError("These are no delays.", given=delays_s, allowed="two equal ones, or a range above 0")
    draws = stream(seed, "tasks of tenants")
    lengths = _CENTRE * heterogeneity ** (draws.random(tasks) - 0.5)
    medians = low * (high / low) ** draws.random(tasks) if high > low else np.full(tasks, low)
    many = np.ceil(updates * (fewest + (1 - fewest) * (1 - draws.random(tasks)))).astype(np.int64)
    drawn = []
    for task in range(tasks):
        delay: Spread = LogNormal(median=float(medians[task]), sigma=sigma) if medians[task] > 0 else _Nothing()
        length = LogNormal(median=turn_tokens * float(lengths[task]), sigma=_TURN_SIGMA, high=_LONGEST_TURN_TOKENS)
        drawn.append(generate(
            int(many[task]) * groups * group, seed=seed, name=f"tenant {task}", turns=Uniform(low=1, high=turns),
            turn_tokens=length, delay_s=delay, prompt_tokens=LogNormal(median=prompt_tokens, sigma=0.5, high=8192.0),
        ))  # fmt: skip
    counts = np.concatenate([each.turns for each in drawn])
    return Tenants(
        first_answer=np.concatenate(([0], np.cumsum([len(each) for each in drawn]))),
        first_turn=np.concatenate(([0], np.cumsum(counts))),
        prompt_tokens=np.concatenate([each.prompt_tokens for each in drawn]),
        turn_tokens=np.concatenate([each.turn_tokens for each in drawn]),
        delay_ps=np.rint(np.concatenate([each.delay_s for each in drawn]) * PS).astype(np.int64),
        groups=groups, group=group, weight=np.ones(tasks, np.int64),
        tool_workers=np.full(tasks, tools), kv_quota=np.full(tasks, kv_quota),
    )  # fmt: skip
