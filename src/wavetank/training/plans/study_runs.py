"""Study ``run-tuning``: how few real short runs find a fast way to cut a job over four processes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.live.short_runs import RANKS, Ran, cuts, predicted_bytes, run_cuts
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.study.tuning import Space, Trial, Tuner, random_median, trials_to

_LIMIT_S = 900.0


@functools.cache
def measured(steps: int) -> tuple[Ran, ...]:
    """Return what every cut took on this machine just now, once for this process.

    Parameters
    ----------
    steps : int
        Of each.
    """
    return tuple(run_cuts(cuts(), steps=steps, timeout_s=_LIMIT_S))


def space_of(room_bytes: int) -> Space:
    """Return all cuts as configurations.

    Parameters
    ----------
    room_bytes : int
        What a rank may hold.
    """
    known = cuts()
    return Space(
        configurations=tuple(tuple(each) for each in known),
        predicted_bytes=np.array([predicted_bytes(each) for each in known], np.int64), room_bytes=room_bytes,
        node=RANKS,
    )  # fmt: skip


def tune_runs(tuner: Tuner, *, room_bytes: int, trials: int, seed: int = 0, steps: int = 3) -> list[Trial]:
    """Let a tuner try real runs, each in four processes of its own; speeds are steps per second.

    Parameters
    ----------
    tuner : Tuner
    room_bytes : int
        What a rank may hold; a run that held more does not fit.
    trials : int
    seed : int
    steps : int
        Of each run.
    """
    space, known, draws = space_of(room_bytes), cuts(), stream(seed, "tuning of runs")
    tried: list[Trial] = []
    for _ in range(min(trials, len(known))):
        number = tuner.propose(space, tried, draws)
        (ran,) = run_cuts([known[number]], steps=steps)
        fits = ran.held_bytes <= room_bytes
        tried.append(Trial(number, 1 / float(np.median(ran.seconds)) if fits else None))
    return tried


def median_speeds(table: Sequence[Ran], room_bytes: int) -> list[float | None]:
    """Return steps per second of each cut, by its median step; None where it held more than there is room for.

    Parameters
    ----------
    table : sequence of Ran
    room_bytes : int
    """
    return [1 / float(np.median(ran.seconds)) if ran.held_bytes <= room_bytes else None for ran in table]


@dataclass(frozen=True, kw_only=True)
class RunTuning(Study):
    """A small stack of transformer layers is trained by four processes of this machine in every way there is to cut it:
    tensor shards, stages, replicas, microbatches, checkpoints.  All ways are measured, so that the fastest is known.
    Then tuners look for one as fast; a trial shows them one measured step, and the median decides whether it is fast.
    """

    name: ClassVar[str] = "run-tuning"
    baseline: ClassVar[str] = "random-search"
    primary: ClassVar[str] = "trials"
    secondary: ClassVar[tuple[str, ...]] = ("infeasible_trials",)
    in_process: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 12
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("trials", "", "lower", "counted", "trials, those that do not fit included, until one is as fast "
               "as wanted"),
        Metric("trials_of_random_median", "", "lower", "counted",
               "trials / median trials of a search at random among all configurations, exact by their numbers",
               words="trials over the median of random ones"),
        Metric("infeasible_trials", "", "lower", "counted", "trials that do not fit, of these",
               words="infeasible trials"),
        Metric("false_fits", "", "lower", "counted", "configurations of which the formula of memory says that they "
               "fit, and whose ranks held more; the same for all tuners", table=False),
        Metric("good", "", "", "counted", "configurations as fast as wanted; the same for all", table=False),
        Metric("best_over_middle", "", "", "measured", "speed of the fastest that fits / of the one in the middle; the "
               "same for all", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Trials until the wanted speed", y="trials", says="Shorter is better."),
    )  # fmt: skip

    room_bytes: int = setting(
        3_600_000, unit="bytes", says="What a rank may hold: weights, gradients, moments, what backward passes need",
        low=1, high=1 << 40,
    )  # fmt: skip
    wanted: float = setting(
        0.95, says="Share of the fastest configuration's speed that is looked for", low=0.01, high=1.0
    )
    steps: int = setting(3, unit="steps", says="Steps of each configuration that are timed", low=1, high=100)

    def check(self) -> None:
        """Refuse room in which nothing fits."""
        least = min(predicted_bytes(each) for each in cuts())
        if self.room_bytes < least:
            raise BadValueError("Nothing fits.", given=f"{self.room_bytes} bytes", allowed=f"{least} bytes or more",
                                where="room_bytes")  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            f"{len(cuts())} configurations of four processes that share this machine's processors; other load "
            "changes which is fastest.",
            "What does not fit is counted by tensors, and ends no process.",
        )

    def measure(self, system: Tuner, seed: int) -> Measurements:
        """Tune until a configuration is as fast as wanted."""
        table, space = measured(self.steps), space_of(self.room_bytes)
        judged = median_speeds(table, self.room_bytes)
        known = sorted(speed for speed in judged if speed is not None)
        wanted = self.wanted * known[-1]
        shown = [
            None if speed is None else 1 / ran.seconds[seed % self.steps]
            for speed, ran in zip(judged, table, strict=True)
        ]
        good = sum(speed >= wanted for speed in known)
        tried = trials_to(
            system, space, shown, wanted, stream(seed, "tuning"), most=len(shown), judged=judged
        )
        wrong = [
            ran.held_bytes > self.room_bytes >= predicted
            for ran, predicted in zip(table, space.predicted_bytes, strict=True)
        ]
        return Measurements({
            "trials": len(tried), "trials_of_random_median": len(tried) / random_median(len(shown), good),
            "infeasible_trials": sum(trial.speed is None for trial in tried), "false_fits": sum(wrong), "good": good,
            "best_over_middle": known[-1] / known[len(known) // 2],
        })  # fmt: skip
