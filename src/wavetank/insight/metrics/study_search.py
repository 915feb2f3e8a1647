"""Study ``plan-search``: how few real short runs find a fast plan, for tuners that look at traces and for others."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.files import write_atomic
from wavetank.insight.metrics.board import board_text, keep_runs, name_of, read_board
from wavetank.insight.metrics.search import PARTS
from wavetank.live.short_runs import RANKS, Ran, cuts, predicted_bytes
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.study.tuning import Space, Tuner, random_median, trials_to

_LIMIT_S = 900.0
_BUDGET = 15


@functools.cache
def measured(steps: int, keep: str = "") -> tuple[tuple[Ran, ...], tuple[Mapping[str, float], ...]]:
    """Return what every plan took on this machine just now, and the shares of its traces, once for this process.

    Parameters
    ----------
    steps : int
        Of each that are timed.
    keep : str
        Folder where rows and the leaderboard are kept; empty for one that is removed.
    """
    plans = cuts()
    with tempfile.TemporaryDirectory(prefix="wavetank-plans-") as made:
        folder = Path(keep or made)
        ran = keep_runs(folder, plans, steps=steps, timeout_s=_LIMIT_S)
        rows = read_board(folder)
        if keep:
            write_atomic(folder / "leaderboard.md", board_text(rows))
    by_name = {row.name: row.figures for row in rows}
    found = [{part: by_name[name_of(cut)][part].value for part in PARTS} for cut in plans]
    return tuple(ran), tuple({part: value for part, value in each.items() if value is not None} for each in found)


@dataclass(frozen=True, kw_only=True)
class PlanSearch(Study):
    """Four processes of this machine train a small stack of transformer layers in each of 46 ways to cut it: tensor
    shards, stages, replicas, microbatches, checkpoints.  All are run, timed and recorded, so that the fastest is known.
    Then tuners look for one as fast; a trial shows them one step and the shares of the trace, and the median decides.
    """

    name: ClassVar[str] = "plan-search"
    baseline: ClassVar[str] = "random-search"
    primary: ClassVar[str] = "trials"
    in_process: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 12
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("trials", "", "lower", "counted", "trials, those that do not fit included, until one has the wanted "
               "share of the speed of the fastest that fits"),
        Metric("speed_of_best", "", "higher", "measured", "fastest of the first 15 trials / fastest of all that fit, "
               "by their medians", words="share of the best speed"),
        Metric("trials_of_random_median", "", "lower", "counted", "trials / median trials of a search at random among "
               "all plans, exact by their numbers", words="trials over the median of random ones"),
        Metric("good", "", "", "counted", "plans that have the wanted share; the same for all", table=False),
        Metric("best_over_middle", "", "", "measured", "speed of the fastest that fits / of the one in the middle; the "
               "same for all", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Trials until the wanted speed", y="trials", says="Shorter is better."),
        Chart("bars", "Best speed after 15 trials", y="speed_of_best", says="1: the fastest of all."),
    )

    room_bytes: int = setting(
        3_600_000, unit="bytes", says="What a rank may hold: weights, gradients, moments, what backward passes need",
        low=1, high=1 << 40,
    )  # fmt: skip
    wanted: float = setting(0.95, says="Share of the fastest plan's speed that is looked for", low=0.01, high=1.0)
    steps: int = setting(5, unit="steps", says="Steps of each plan that are timed", low=1, high=100)
    keep: str = setting("", says="Folder where each run's trace, card and script are kept, with a leaderboard")

    def check(self) -> None:
        """Refuse room in which nothing fits."""
        least = min(predicted_bytes(each) for each in cuts())
        if self.room_bytes < least:
            raise BadValueError("Nothing fits.", given=f"{self.room_bytes} bytes", allowed=f"{least} bytes or more",
                                where="room_bytes")  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            f"{len(cuts())} plans of {RANKS} processes that share this machine's processors; other load changes which "
            "is fastest.",
            "Times are those of steps that nobody watched; shares are those of two more steps that were recorded.",
        )

    def measure(self, system: Tuner, seed: int) -> Measurements:
        """Tune until a plan has the wanted share of the best speed; then go on to 15 trials."""
        table, shares = measured(self.steps, self.keep)
        plans = cuts()
        space = Space(
            configurations=tuple(tuple(each) for each in plans),
            predicted_bytes=np.array([predicted_bytes(each) for each in plans], np.int64), room_bytes=self.room_bytes,
            node=RANKS,
        )  # fmt: skip
        fits = [ran.held_bytes <= self.room_bytes for ran in table]
        judged = [1 / float(np.median(ran.seconds)) if fit else None for ran, fit in zip(table, fits, strict=True)]
        shown = [1 / ran.seconds[seed % self.steps] if fit else None for ran, fit in zip(table, fits, strict=True)]
        known = sorted(speed for speed in judged if speed is not None)
        tried = trials_to(
            system, space, shown, self.wanted * known[-1], stream(seed, "plan search"), most=len(shown), judged=judged,
            figures=shares,
        )  # fmt: skip
        first = trials_to(
            system, space, shown, float("inf"), stream(seed, "plan search"), most=_BUDGET, judged=judged, figures=shares
        )
        good = sum(speed >= self.wanted * known[-1] for speed in known)
        best = max((judged[trial.number] or 0.0 for trial in first), default=0.0)
        return Measurements({
            "trials": len(tried), "speed_of_best": best / known[-1],
            "trials_of_random_median": len(tried) / random_median(len(shown), good), "good": good,
            "best_over_middle": known[-1] / known[len(known) // 2],
        })  # fmt: skip
