"""Study ``adapter-placement``: how few GPUs serve many LoRA adapters without starving anybody."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.placement.interface import (
    Adapter,
    Gpu,
    Placement,
    PlacementProblem,
    outcasts,
    read_adapters,
    width_of,
)
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.units import show

# Shares of what a planner believes that are tried, from the boldest on.
_HEADROOMS = tuple(round(1.4 * 0.93**step, 4) for step in range(48))
# Hours that a plan must get through, of seeds that no planner saw.
_HOURS = 2
_JUDGED_SETS = 8
RANKS = (8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class AdapterPlacement(Study):
    """Planners spread the same adapters over GPUs.  The twin, a simulated engine, serves hours of requests on every GPU
    of a plan.  A planner that believes too much is given less headroom, one that believes too little more, until no GPU
    starves: each planner is counted at its best headroom.
    """

    name: ClassVar[str] = "adapter-placement"
    baseline: ClassVar[str] = "dealt-in-turns"
    primary: ClassVar[str] = "gpus"
    secondary: ClassVar[tuple[str, ...]] = ("starved_share", "planning_s")
    default_seeds = 4
    metrics = (
        Metric("gpus", "GPUs", "lower", "simulated",
               "fewest GPUs of the planner's plans, over shares of headroom, of which none starves in the twin's hours",
               words="GPUs without starving"),
        Metric("gpus_over_bound", "", "lower", "simulated",
               "the same over the least number: all requests / what a GPU keeps up with one adapter of the lowest rank",
               words="GPUs over the bound"),
        Metric("headroom", "", "", "simulated", "share of what the planner believes that it could use for that"),
        Metric("starved_share", "", "lower", "simulated",
               "share of the GPUs that starve in the plan as made, with all that the planner believes",
               words="GPUs that starve as planned"),
        Metric("given_share", "", "higher", "simulated", "tokens given / tokens asked for, in the plan as made",
               words="tokens given as planned"),
        Metric("itl_s", "s", "lower", "simulated", "mean time between tokens of the counted plan, over its GPUs",
               words="time between tokens"),
        Metric("ttft_p99_s", "s", "lower", "simulated", "99th percentile of the time to first token of the counted "
               "plan, mean over its GPUs", table=False),
        Metric("worst_adapter_share", "", "higher", "simulated", "least share of one adapter's requests that were "
               "finished, of adapters with 20 or more, in the counted plan", table=False),
        Metric("planning_s", "s", "lower", "measured", "time of making one plan on this machine"),
        Metric("belief_smape", "", "lower", "simulated", "what the planner believes that a GPU keeps up against the "
               "twin, on random sets of adapters: mean of 2 |believed - true| / (believed + true)",
               words="error of what is believed"),
    )  # fmt: skip
    charts = (
        Chart("bars", "GPUs without starving", y="gpus", says="Shorter is cheaper."),
        Chart("bars", "GPUs that starve as planned", y="starved_share", says="Of a plan that is trusted as it is."),
        Chart("bars", "Error of what is believed", y="belief_smape", says="Shorter is nearer to the twin."),
    )  # fmt: skip

    file: str = setting("", says="CSV file of your adapters with columns adapter, rank, rate_per_s; empty: drawn ones")
    adapters: int = setting(256, unit="adapters", says="Adapters that are drawn", low=1, high=2_000)
    rate_per_s: float = setting(
        0.8, unit="requests/s", says="Mean rate of an adapter that is drawn", low=1e-4, high=100.0
    )
    spread: float = setting(1.0, says="Standard deviation of the logarithm of the rates", low=0.0, high=4.0)
    rank: int = setting(0, says="Rank of all adapters that are drawn; 0: 8, 16 and 32", low=0, high=256)
    model: str = setting("llama-3.1-8b-instruct", says="Base model, of which costs and memory ship")
    itl_target_s: float = setting(
        0.0, unit="s", says="Mean time between tokens that every GPU must keep, too; 0: none", low=0.0, high=100.0
    )

    def check(self) -> None:
        """Refuse adapters that no number of GPUs serves."""
        problem = self.problem(0)
        refused = outcasts(problem)
        if refused:
            raise BadValueError(
                "Some adapters fit no slot.", given=", ".join(list(refused)[:5]), allowed="ranks up to 256 with a KV "
                f"cache beside one slot of {self.model}", where="rank",
            )  # fmt: skip
        for each in problem.adapters:
            # Ranks in slots of the same width are alike.
            alone_per_s = _alone_per_s(self.model, width_of(each.rank) or each.rank)
            if each.rate_per_s > alone_per_s:
                raise BadValueError(
                    "One adapter alone is more than a GPU keeps up; give it as several of a part of its rate.",
                    given=f"{each.name}: {show(each.rate_per_s)} requests/s",
                    allowed=f"at most {show(alone_per_s)}", where="rate_per_s",
                )  # fmt: skip

    def problem(self, seed: int) -> PlacementProblem:
        """Return the adapters of a seed.

        Parameters
        ----------
        seed : int
        """
        target = {"itl_target_s": self.itl_target_s or None, "model": self.model}
        if self.file:
            return PlacementProblem(adapters=read_adapters(self.file), **target)  # type: ignore[arg-type]
        draws = stream(seed, "adapter-placement")
        rates = np.exp(draws.normal(0.0, self.spread, self.adapters))
        # What one GPU cannot keep up is cut, as an operator would cut it.
        highest = 0.8 * _alone_per_s(self.model, self.rank or max(RANKS))
        rates = np.minimum(rates * self.rate_per_s / math.exp(self.spread**2 / 2), highest)
        ranks = draws.choice([self.rank] if self.rank else RANKS, self.adapters)
        adapters = tuple(
            Adapter(name=f"adapter-{i}", rank=int(rank), rate_per_s=float(max(rate, 1e-6)))
            for i, (rank, rate) in enumerate(zip(ranks, rates, strict=True))
        )
        return PlacementProblem(adapters=adapters, **target)  # type: ignore[arg-type]

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        problem = self.problem(0)
        return (
            f"{len(problem.adapters)} adapters ask for {show(sum(each.rate_per_s for each in problem.adapters))} "
            f"requests/s (seed 0) of {self.model}; a GPU starves where it gives less than {problem.share:.0%} of the "
            "tokens asked for, or to one of its adapters less than that of its requests.",
            "GPUs are simulated: the twin's errors on recorded runs are those of wavetank compare adapter-fidelity "
            "(throughput 3 % for Llama-3.1-8B; for other models it uses the authors' constants, not checked here).",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Plan with falling headroom until no GPU starves."""
        from wavetank.serving.placement.twin import judge

        found = Measurements()
        problem = self.problem(seed)
        began = time.perf_counter()
        as_made = system.plan(problem)
        found.put("planning_s", time.perf_counter() - began)
        as_made.check(problem)
        runs = [judge(problem, gpu, _seed(seed, 0)) for gpu in as_made.gpus]
        found.put("starved_share", float(np.mean([not problem.fed(run) for run in runs])))
        found.put("given_share", sum(run.given_tokens for run in runs) / sum(run.asked_tokens for run in runs))
        headroom, plan = self._best(system, problem, seed)
        if headroom is not None:
            found.put("headroom", headroom)
        found.put("gpus", float(len(plan.gpus)))
        asked = sum(each.rate_per_s for each in problem.adapters)
        found.put("gpus_over_bound", len(plan.gpus) / math.ceil(asked / _alone_per_s(self.model, min(RANKS))))
        runs = [judge(problem, gpu, _seed(seed, 0)) for gpu in plan.gpus]
        found.put("itl_s", float(np.nanmean([run.itl_mean_s for run in runs])))
        found.put("ttft_p99_s", float(np.nanmean([run.ttft_p99_s for run in runs])))
        found.put("worst_adapter_share", min(run.worst_share for run in runs))
        if getattr(system, "believes", "") in ("distilled", "formula", "without-adapters"):
            found.put("belief_smape", _belief_smape(system.belief, self.model, seed))
        return found

    def _best(self, system: Any, problem: PlacementProblem, seed: int) -> tuple[float | None, Placement]:
        """Return the boldest plan of which no GPU starves, and its headroom."""
        from wavetank.serving.placement.twin import judge

        # Who tries plans, and knows that no GPU starves, is taken at its word first.
        boldest = 1.0 if getattr(system, "tries", False) else _HEADROOMS[0]
        for headroom in (boldest, *(each for each in _HEADROOMS if each < boldest)):
            plan = system.plan(replace(problem, headroom=headroom))
            if not plan.feasible:
                continue
            hours = (problem.fed(judge(problem, gpu, _seed(seed, hour))) for hour in range(_HOURS) for gpu in plan.gpus)
            if all(hours):
                return headroom, plan
        # What always works where anything does: a GPU for each adapter.
        return None, Placement(gpus=tuple(Gpu(adapters=(each.name,), slots=1) for each in problem.adapters))


def _seed(seed: int, hour: int) -> int:
    return 10_000 + _HOURS * seed + hour


@lru_cache(maxsize=64)
def _alone_per_s(model: str, rank: int) -> float:
    from wavetank.serving.placement.twin import HOUR_S, capacity_per_s

    one = (Adapter(name="one", rank=rank, rate_per_s=1.0),)
    problem = PlacementProblem(adapters=one, model=model)
    return capacity_per_s(problem, one, 1, search_s=HOUR_S) if problem.choices(rank) else math.inf


def _belief_smape(belief: Any, model: str, seed: int) -> float:
    errors = []
    for problem, slots, true in _true_capacities(model, seed):
        said = float(belief.capacity_per_s(problem, problem.adapters, [slots])[0])
        errors.append(2 * abs(said - true) / (said + true))
    return float(np.mean(errors))


@lru_cache(maxsize=8)
def _true_capacities(model: str, seed: int) -> tuple[tuple[PlacementProblem, int, float], ...]:
    from wavetank.serving.placement.training import example
    from wavetank.serving.placement.twin import capacity_per_s

    found = []
    for number in range(_JUDGED_SETS):
        # Sets of a seed that the forest was not trained on.
        problem, slots = example(model, 2 + seed, number)
        found.append((problem, slots, capacity_per_s(problem, problem.adapters, slots, seed=100_000 + number)))
    return tuple(found)
