"""Runs that go on until their answer is sharp: seeds are added until an interval is narrow, or the time is spent.

What ends a run is how narrow the interval is, never which side it lies on, so that going on does not favour a winner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from wavetank.errors import BadValueError, RunFolderError
from wavetank.files import write_atomic
from wavetank.run.comparison import Comparison
from wavetank.run.runfolder import Plan, dump_plan
from wavetank.study.effects import LEAST_FOR_INTERVAL

MOST_SEEDS = 200

Runner = Callable[[Plan], Comparison | None]


@dataclass(frozen=True)
class Goal:
    """When a run is done.

    Parameters
    ----------
    width : float
        Half the width of the primary interval, as a share of the ratio, that is narrow enough; 0 for never.
    budget_s : float
        Seconds after which no further seeds begin.
    """

    width: float = 0.0
    budget_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.width < 1:
            raise BadValueError("The width of an interval is a share.", given=self.width, allowed="0 to 1 (--until 2%)")
        if not self.budget_s > 0:
            raise BadValueError("A budget is a positive time.", given=self.budget_s, allowed="--budget 2min")
        if self.width == 0 and math.isinf(self.budget_s):
            raise BadValueError("Nothing would end the run.", allowed="--until 2%, --budget 2min, or both")


def width_of(result: Comparison) -> float:
    """Return half the width of the primary interval as a share of the ratio; infinite where there is no interval.

    The interval is that of the best system against the baseline: of the widest case, where there are several.  Where no
    system is better, it is the widest of all.
    """
    answer = result.answer
    if answer is None:
        return 0.0
    against = [each for each in answer.comparisons if each.versus == answer.baseline]
    mine = [each.found for each in against if each.system == answer.best] or [each.found for each in against]
    widths = [0.0 if found.low == found.high else _share(found.low, found.high) for found in mine]
    enough = all(found.exact or found.low == found.high or found.count >= LEAST_FOR_INTERVAL for found in mine)
    return max(widths, default=0.0) if enough else math.inf


def _share(low: float, high: float) -> float:
    return math.sqrt(high / low) - 1 if low > 0 and math.isfinite(high) else math.inf


def run_until(plan: Plan, folder: Path, goal: Goal, run: Runner) -> Comparison | None:
    """Run a plan, then again with more seeds, until the goal is reached; return the last result.

    Parameters
    ----------
    plan : Plan
        Its seeds are 0, 1, ...: further ones follow.
    folder : Path
        The run's folder, whose ``study.toml`` is kept true to what has run.
    goal : Goal
    run : callable
        Runs what is not finished of a plan in the folder; None when the user interrupted it.
    """
    if plan.seeds != tuple(range(len(plan.seeds))):
        raise BadValueError(
            "A run that adds seeds counts them from 0.", given=plan.seeds, allowed="--seeds N", where="--until"
        )
    began = time.monotonic()
    plan = replace(plan, seeds=tuple(range(max(len(plan.seeds), LEAST_FOR_INTERVAL))))
    while True:
        _keep(plan, folder)
        result = run(plan)
        if result is None or result.failures:
            return result
        spent_s, width, seeds = time.monotonic() - began, width_of(result), len(plan.seeds)
        if width <= goal.width or seeds >= MOST_SEEDS or spent_s >= goal.budget_s:
            return result
        more = _wanted(seeds, width, goal.width)
        # What the time that is left is enough for, by the time that the seeds so far have taken.
        affordable = int((goal.budget_s - spent_s) / (spent_s / seeds)) if math.isfinite(goal.budget_s) else more
        if affordable < 1:
            return result
        plan = replace(plan, seeds=tuple(range(min(seeds + min(more, affordable), MOST_SEEDS))))


def _wanted(seeds: int, width: float, goal: float) -> int:
    """Return how many more seeds to try: an interval narrows with the square root of their number."""
    if goal == 0 or math.isinf(width):
        return seeds
    return min(seeds, max(2, math.ceil(seeds * (width / goal) ** 2) - seeds))


def _keep(plan: Plan, folder: Path) -> None:
    try:
        write_atomic(folder / "study.toml", dump_plan(plan))
    except OSError as error:
        raise RunFolderError(
            f"The run's plan cannot be written: {error.strerror or error}.", where=str(folder / "study.toml")
        ) from error
