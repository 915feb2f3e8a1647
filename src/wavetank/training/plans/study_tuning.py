"""Study ``plan-tuning``: how few trials find a fast configuration when many do not fit into memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.study.tuning import Space, Tuner, random_median, trials_to
from wavetank.training.plans.recipe import SuperMucRecipe
from wavetank.training.plans.tiles import BEST, MODELS, Tiles, calibrated, recipes, strong_scaling, weak_scaling

_FEWEST = 128


@dataclass(frozen=True, kw_only=True)
class PlanTuning(Study):
    """Tuners look for the fastest configuration of a dense model on tiles of SuperMUC-NG 2: tensor shards, stages,
    sequences of a microbatch, microbatches, shards of ZeRO.  A trial gives a speed by formulas, or does not fit; the
    fastest of all is known.  Memory holds more than the formula that tuners may ask knows of.
    """

    name: ClassVar[str] = "plan-tuning"
    baseline: ClassVar[str] = "random-search"
    primary: ClassVar[str] = "trials"
    secondary: ClassVar[tuple[str, ...]] = ("infeasible_trials",)
    default_seeds: ClassVar[int] = 20
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("trials", "", "lower", "counted",
               "trials, those that do not fit included, until one has the wanted share of the fastest configuration's "
               "speed"),
        Metric("trials_of_random_median", "", "lower", "counted",
               "trials / median trials of a search at random among all configurations, exact by their numbers",
               words="trials over the median of random ones"),
        Metric("infeasible_trials", "", "lower", "counted", "trials that do not fit, of these",
               words="infeasible trials"),
        Metric("speed_of_best", "", "higher", "modelled", "fastest of the first trials / fastest of all, by how many "
               "they are; 0 where none fits", table=False, words="speed reached"),
        Metric("weak_scaling", "", "higher", "modelled", "speed per tile of 175 billion parameters with the source's "
               "best configuration on 1,024 tiles / on 128, with as many sequences per replica; of the recipe",
               table=False),
        Metric("strong_scaling", "", "higher", "modelled", "the same with as many sequences in all; of the recipe",
               table=False),
        Metric("weak_error", "", "lower", "modelled", "distance of the weak scaling from the source's 0.93",
               table=False),
        Metric("strong_error", "", "lower", "modelled", "distance of the strong scaling from the source's 0.82",
               table=False),
        Metric("loss_share", "", "lower", "modelled", "time of a step of the source's best configuration that is lost, "
               "by what; of the recipe", table=False, words="share of the step"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Trials until the wanted speed", y="trials", log="y", says="Shorter is better."),
        Chart("sweep", "Speed of the best of the first trials", y="speed_of_best", by="first", log="x",
              says="Sooner near 1 is better."),
    )  # fmt: skip

    gpt: str = setting("175B", says="Model", choices=tuple(MODELS))
    tiles: int = setting(1024, unit="tiles", says="Tiles", low=8, high=1920)
    wanted: float = setting(
        0.95, says="Share of the fastest configuration's speed that is looked for", low=0.01, high=1.0
    )
    unknown_bytes: int = setting(
        4 << 30, unit="bytes", says="Memory that is taken besides what the formula knows of", low=0, high=1 << 40
    )
    half_rows: float = setting(
        256.0, unit="rows", says="Rows at which a product reaches half of its best speed", low=0.0, high=1e6
    )
    budgets: tuple[int, ...] = setting(
        (4, 8, 16, 32, 64), unit="trials", says="Numbers of first trials", low=1, high=10_000
    )

    @cached_property
    def problem(self) -> Tiles:
        """The model on its tiles, with speeds by the source's one figure."""
        return calibrated(MODELS[self.gpt], self.tiles, half_rows=self.half_rows)

    @cached_property
    def landscape(self) -> tuple[Space, list[float | None]]:
        """All configurations, and what each gives; None where it does not fit."""
        tiles = self.problem
        configurations = tuple(recipes(tiles))
        held = [tiles.held_bytes(each) for each in configurations]
        speeds = [
            tiles.step(each).flops_per_tile if needs + self.unknown_bytes <= tiles.room_bytes else None
            for each, needs in zip(configurations, held, strict=True)
        ]
        space = Space(
            configurations=tuple(tuple(each) for each in configurations), predicted_bytes=np.array(held, np.int64),
            room_bytes=tiles.room_bytes, node=tiles.machine.node,
        )  # fmt: skip
        return space, speeds

    def check(self) -> None:
        """Refuse tiles on which nothing fits."""
        if not self.good():
            raise BadValueError(
                "No configuration fits into the memory of a tile.", given=f"{self.gpt} on {self.tiles} tiles",
                allowed="more tiles, a smaller model, or fewer unknown_bytes", where="tiles",
            )  # fmt: skip

    def good(self) -> int:
        """Return how many configurations are as fast as wanted."""
        _, speeds = self.landscape
        known = [speed for speed in speeds if speed is not None]
        best = max(known, default=0.0)
        return sum(speed >= self.wanted * best for speed in known)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        space, speeds = self.landscape
        fit = sum(speed is not None for speed in speeds)
        through = int((space.predicted_bytes <= space.room_bytes).sum())
        return (
            f"{len(speeds)} configurations of {self.gpt} on {self.tiles} tiles, of which {fit} fit and {self.good()} "
            f"are as fast as wanted; the formula of memory lets {through} through.",
            f"Products reach {self.problem.share:.1%} of a tile's peak: with that, the source's best configuration of "
            "175 billion parameters has its 57 TFLOP/s per tile, operations that are computed again included.",
        )  # fmt: skip

    def measure(self, system: Tuner, seed: int) -> Measurements:
        """Tune until a configuration is as fast as wanted."""
        space, speeds = self.landscape
        best = max(speed for speed in speeds if speed is not None)
        tried = trials_to(system, space, speeds, self.wanted * best, stream(seed, "tuning"), most=len(speeds))
        found = Measurements()
        found.put("trials", len(tried))
        found.put("trials_of_random_median", len(tried) / random_median(len(speeds), self.good()))
        found.put("infeasible_trials", sum(trial.speed is None for trial in tried))
        for first in self.budgets:
            reached = max((trial.speed or 0.0 for trial in tried[:first]), default=0.0)
            found.put("speed_of_best", reached / best, first=first)
        if isinstance(system, SuperMucRecipe):
            large = calibrated(MODELS["175B"], 1024, half_rows=self.half_rows)
            weak, strong = (scaling(large, BEST, _FEWEST) for scaling in (weak_scaling, strong_scaling))
            found.put("weak_scaling", weak)
            found.put("strong_scaling", strong)
            found.put("weak_error", abs(weak - 0.93))
            found.put("strong_error", abs(strong - 0.82))
            step = large.step(BEST)
            for what in ("bubble_s", "tensor_s", "send_s", "gradient_s"):
                found.put("loss_share", getattr(step, what) / step.time_s, what=what.removesuffix("_s"))
        return found
