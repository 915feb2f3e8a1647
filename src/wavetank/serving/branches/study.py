"""Studies ``branch-admission`` and ``branch-surface``: how many branches of a request may share a step."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.platforms.memory import kv_capacity_tokens
from wavetank.platforms.step_time import StepTime
from wavetank.serving.branches.interface import view_of
from wavetank.serving.branches.predictor import grid_of, mean_error, profiled
from wavetank.serving.branches.rivals import Eager, Off
from wavetank.serving.branches.steps import Engine, repeated, simulate_branches
from wavetank.serving.branches.workload import BranchingRequests, branching
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.units import show
from wavetank.workloads import datasets
from wavetank.workloads.generate import generate_requests
from wavetank.workloads.load import read_trace
from wavetank.workloads.requests import RequestTrace

Floats = NDArray[np.float64]

# Loads are shares of what the engine serves of a backlog, one branch at a time.
_LIGHTEST, _HEAVIEST, _BISECTIONS = 0.05, 4.0, 9
# How far past the heaviest load that the eager controller sustains.
_PAST = 1.05
_DECIDED, _REPEATS = 256, 200
_WIN = 0.02


@dataclass(frozen=True, kw_only=True)
class BranchAdmission(Study):
    """One engine serves requests of which a share has a parallel stage.  Arrivals and prompts are those of a trace; the
    load is raised until fewer requests than asked are within both objectives, the time to first token and the time per
    token.  Step times are looked up in measured layers, never in the predictor's own line.  Caps are tuned on the
    requests before those that are served, for the same load, lengths and objectives.
    """

    name: ClassVar[str] = "branch-admission"
    baseline: ClassVar[str] = "branches-off"
    primary: ClassVar[str] = "sustained_tokens_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("attainment_at_limit", "goodput_at_limit_tokens_per_s")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("sustained_tokens_per_s", "tokens/s", "higher", "simulated",
               "goodput at the heaviest load at which the asked share of requests is within both objectives, found by "
               "bisection; 0 where the lightest load misses them", words="sustained goodput"),
        Metric("goodput_at_limit_tokens_per_s", "tokens/s", "higher", "simulated",
               "output tokens per second of requests within both objectives, at 1.05 times the heaviest load that the "
               "eager controller sustains", words="goodput where eager admission begins to miss"),
        Metric("attainment_at_limit", "", "higher", "simulated",
               "share of requests within both objectives at that load", words="attainment there"),
        Metric("over_slack_steps", "steps", "lower", "counted",
               "steps at that load whose lengthening by further branches, predicted by the fitted line, is above what "
               "the request with the least slack had left", words="steps beyond the slack"),
        Metric("extra_share", "", "", "simulated",
               "share of tokens at that load from branches beside the protected one"),
        Metric("tuned", "", "", "simulated", "the value that tuning chose: a cap, tokens, or a share", table=False),
        Metric("decision_s", "s", "lower", "measured",
               "one decision for 256 further branches of 64 requests, compiled; least of batches of calls"),
        Metric("plain_decision_s", "s", "lower", "measured", "the same decision in plain Python; median"),
        Metric("goodput_tokens_per_s", "tokens/s", "higher", "simulated",
               "output tokens per second of requests within both objectives, by load", table=False, words="goodput"),
        Metric("attainment", "", "higher", "simulated", "share of requests within both objectives, by load",
               table=False),
        Metric("ttft_p99_s", "s", "lower", "simulated", "99th percentile of times to first token, by load",
               table=False),
        Metric("tpot_p99_s", "s", "lower", "simulated", "99th percentile of times per token, by load", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Sustained goodput", y="sustained_tokens_per_s",
              says="Longer is better: tokens per second at the heaviest load that keeps the objectives."),
        Chart("sweep", "Goodput as the load grows", y="goodput_tokens_per_s", by="load",
              says="All lines rise together until the engine is full; a controller is good where its line falls last."),
        Chart("sweep", "Requests within both objectives", y="attainment", by="load", says="Higher is better."),
    )  # fmt: skip

    trace: str = setting(
        "generated",
        says="Arrivals and prompts, and the answers of requests without branches: generated, a trace's name or a file",
    )
    requests: int = setting(
        600, unit="requests", says="Requests served, after as many to tune on", low=20, high=100_000
    )
    share: float = setting(0.3, says="Share of requests with a parallel stage", low=0.0, high=1.0)
    width: int = setting(4, unit="branches", says="Branches of a parallel stage", low=1, high=1024)
    branch_tokens: float = setting(100.0, unit="tokens", says="Mean length of a branch", low=1.0, high=1e6)
    tpot_slo_s: float = setting(0.1, unit="s", says="Objective for the time per output token", low=1e-3, high=100.0)
    ttft_slo_s: float = setting(5.0, unit="s", says="Objective for the time to first token", low=1e-3, high=1e4)
    within: float = setting(0.95, says="Share of requests that must be within both objectives", low=0.05, high=0.999)
    device: str = setting("RTXPRO6000", says="Device, by the folder of its layer profile")
    model: str = setting("Qwen3-32B", says="Language model")
    tensor_parallel: int = setting(1, unit="devices", says="Devices that share every layer", low=1, high=8)
    step_times: str = setting(
        "auto", says="Step times: measured layers, the calibrated roofline, or the layers where they are there",
        choices=("auto", "measured", "roofline"),
    )  # fmt: skip
    chunk_tokens: int = setting(256, unit="tokens", says="Prompt tokens of a step at most", low=16, high=1 << 16)
    noise: float = setting(0.02, says="Standard deviation of the logarithm of step times", low=0.0, high=1.0)
    refit_s: float = setting(600.0, unit="s", says="Time between refits of the predictor", low=1.0, high=1e6)
    shared_prefix: bool = setting(False, says="Whether a step reads the common prefix of a request's branches once")
    loads: tuple[float, ...] = setting(
        (0.6, 0.7, 0.8, 0.9, 1.0, 1.1), says="Loads of the sweep, as shares of the backlog rate without extra branches",
        low=0.01, high=10.0,
    )  # fmt: skip

    def check(self) -> None:
        """Build the engine once, so that what cannot run shows before any trial."""
        step = self._step_time()
        least_s = step.seconds(1, 1)
        if least_s >= self.tpot_slo_s:
            raise BadValueError(
                "No step of this model is as short as the objective.", given=f"tpot_slo_s={show(self.tpot_slo_s, 's')}",
                allowed=f"more than {show(least_s, 's')}, a step with one sequence", where="tpot_slo_s",
                hint="raise tpot_slo_s, or take more devices (tensor_parallel)",
            )  # fmt: skip
        requests = self._requests(0)
        longest = int((requests.trace.prompt_tokens + requests.trace.output_tokens).max())
        if longest > self._kv_tokens():
            raise BadValueError(
                "A request does not fit into the KV cache.", given=f"{longest} tokens",
                allowed=f"{self._kv_tokens()} tokens", hint="take more devices, or fewer or shorter branches",
            )  # fmt: skip

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the trace."""
        return {} if self.trace == "generated" else {self.trace: read_trace(self.trace).checksum}

    def opening(self) -> tuple[str, ...]:
        """Return what is served and by what."""
        return (
            f"{self.share:.0%} of the requests have {self.width} branches of {show(self.branch_tokens, 'tokens')} on "
            f"average; objectives are {show(self.ttft_slo_s, 's')} to the first token and "
            f"{show(self.tpot_slo_s, 's')} per token, for {self.within:.0%}.",
            f"{self.model} on {self.tensor_parallel} x {self.device}: {self._source()}, "
            f"{show(self._kv_tokens(), 'tokens')} of KV cache, prompts in chunks of {self.chunk_tokens}.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        step, predictor = self._step_time(), self._predictor()
        return (
            f"Step times: {self._source()}; the fitted line is {mean_error(predictor, step, self._grid()):.1%} off on "
            "average on the profile itself.",
            "A request reserves KV cache up to its last token when it is admitted; no request is given up.",
            "Tuned are fixed-cap, token-budget and eager-admission, on the requests before those that are served; the "
            "settings of TAPER are its defaults.",
            f"Loads are shares of the rate at which {Off.__name__.lower()} serves a backlog.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Find the heaviest load that a controller sustains, and sweep the load."""
        found = Measurements()
        controller = self._tuned(system, seed)
        if controller is not system:
            found.put("tuned", next(iter(set(vars(controller).values()) - set(vars(system).values()))))
        engine, capacity = self._engine(), self._capacity_per_s(seed)
        served = self._requests(seed).part(self.requests, self.requests)
        found.put("sustained_tokens_per_s", self._sustained(served, controller, seed)[0])
        limit = self._eager_limit(seed) * _PAST
        for load in (limit, *self.loads):
            run = simulate_branches(
                served.at_rate(capacity * load), engine, self._step_time(), controller, self._predictor(),
                noise=self._noise(seed),
            )  # fmt: skip
            figures = run.figures(engine)
            if load == limit:
                found.put("goodput_at_limit_tokens_per_s", figures["goodput_tokens_per_s"])
                found.put("attainment_at_limit", figures["attainment"])
                found.put("over_slack_steps", run.over_slack)
                found.put("extra_share", figures["extra_share"])
                continue
            for name in ("goodput_tokens_per_s", "attainment", "ttft_p99_s", "tpot_p99_s"):
                found.put(name, figures[name], load=load)
        if hasattr(controller, "plan") and getattr(controller, "predictor", "") != "exact":
            compiled_s, plain_s = decision_times(controller, self._step_time(), self._predictor())
            found.put("decision_s", compiled_s)
            found.put("plain_decision_s", plain_s)
        return found

    def _tuned(self, system: Any, seed: int) -> Any:
        """Return the best setting of a controller on the requests before those that are served."""
        tried = system.candidates() if hasattr(system, "candidates") else (system,)
        if len(tried) == 1:
            return tried[0]
        past = self._requests(seed).part(0, self.requests)
        return max(tried, key=lambda each: self._sustained(past, each, seed)[0])

    def _sustained(self, requests: BranchingRequests, controller: Any, seed: int) -> tuple[float, float]:
        """Return goodput and load at the heaviest load that keeps the objectives; 0 and 0 where none does."""
        engine, capacity, best = self._engine(), self._capacity_per_s(seed), (0.0, 0.0)
        low, high = _LIGHTEST, _HEAVIEST
        for _ in range(_BISECTIONS):
            load = math.sqrt(low * high)
            figures = simulate_branches(
                requests.at_rate(capacity * load), engine, self._step_time(), controller, self._predictor(),
                noise=self._noise(seed),
            ).figures(engine)  # fmt: skip
            if figures["attainment"] >= self.within:
                low, best = load, (figures["goodput_tokens_per_s"], load)
            else:
                high = load
        return best

    def _engine(self) -> Engine:
        return Engine(
            tpot_slo_s=self.tpot_slo_s, ttft_slo_s=self.ttft_slo_s, kv_tokens=self._kv_tokens(),
            chunk_tokens=self.chunk_tokens, refit_s=self.refit_s, shared_prefix=self.shared_prefix,
        )  # fmt: skip

    def _step_time(self) -> StepTime:
        return _step_time(self.device, self.model, self.tensor_parallel, self.step_times)[0]

    def _source(self) -> str:
        return _step_time(self.device, self.model, self.tensor_parallel, self.step_times)[1]

    def _kv_tokens(self) -> int:
        return kv_capacity_tokens(self.device, self.model, self.tensor_parallel)

    def _grid(self) -> list[tuple[int, int]]:
        return grid_of(self._kv_tokens())

    def _predictor(self) -> Floats:
        return _predictor(self.device, self.model, self.tensor_parallel, self.step_times, self.chunk_tokens)

    def _noise(self, seed: int) -> Floats:
        drawn: Floats = np.exp(stream(seed, "step noise").normal(0.0, self.noise, 4096))
        return drawn

    def _requests(self, seed: int) -> BranchingRequests:
        return _requests(self.trace, 2 * self.requests, self.share, self.width, self.branch_tokens, seed)

    def _capacity_per_s(self, seed: int) -> float:
        """Return the rate at which a backlog is served without extra branches."""
        return _capacity_per_s(replace(self, tpot_slo_s=0.1, ttft_slo_s=5.0, within=0.95, loads=()), seed)

    def _eager_limit(self, seed: int) -> float:
        return _eager_limit(replace(self, loads=()), seed)


@dataclass(frozen=True, kw_only=True)
class BranchSurface(BranchAdmission):
    """The sustained goodput of branch-admission in every combination of the share of requests with branches, their
    number and the objective per token.
    """

    name: ClassVar[str] = "branch-surface"
    secondary: ClassVar[tuple[str, ...]] = ("cells_won", "cells_lost")
    default_seeds: ClassVar[int] = 6
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("sustained_tokens_per_s", "tokens/s", "higher", "simulated",
               "geometric mean over the cells in which the baseline sustains any load; by cell as in branch-admission",
               words="sustained goodput"),
        Metric("cells_won", "", "higher", "simulated",
               "share of cells with more than 1.02 times the sustained goodput of the best cap, of whichever kind",
               words="share of cells won against the best cap"),
        Metric("cells_lost", "", "lower", "simulated", "share of cells with less than 1 / 1.02 of it",
               words="share of cells lost to the best cap"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Sustained goodput over the surface", y="sustained_tokens_per_s", says="Longer is better."),
        Chart("bars", "Cells won against the best cap", y="cells_won", says="Longer is better."),
    )

    requests: int = setting(
        200, unit="requests", says="Requests served, after as many to tune on", low=20, high=100_000
    )
    shares: tuple[float, ...] = setting((0.1, 0.3, 0.6), says="Shares of requests with branches", low=0.0, high=1.0)
    widths: tuple[int, ...] = setting((2, 8), says="Branches of a parallel stage", low=1, high=1024)
    objectives_s: tuple[float, ...] = setting(
        (0.08, 0.15), unit="s", says="Objectives for the time per output token", low=1e-3, high=100.0
    )

    def opening(self) -> tuple[str, ...]:
        """Return how many cells there are, and what serves them."""
        return (f"{len(self._cells())} cells.", *super().opening()[1:])

    def _cells(self) -> list[BranchAdmission]:
        own = {item.name: getattr(self, item.name) for item in fields(BranchAdmission)}
        return [
            BranchAdmission(**own | {"share": share, "width": width, "tpot_slo_s": objective, "loads": ()})
            for share in self.shares for width in self.widths for objective in self.objectives_s
        ]  # fmt: skip

    def measure(self, system: Any, seed: int) -> Measurements:
        """Find what a controller sustains in every cell."""
        found, values = Measurements(), []
        for cell in self._cells():
            served = cell._requests(seed).part(cell.requests, cell.requests)
            sustained, _ = cell._sustained(served, cell._tuned(system, seed), seed)
            name = f"{cell.share:g} x {cell.width}, {show(cell.tpot_slo_s, 's')}"
            found.put("sustained_tokens_per_s", sustained, cell=name)
            values.append(sustained)
        positive = [value for value in values if value > 0]
        found.put("sustained_tokens_per_s", math.exp(float(np.mean(np.log(positive)))) if positive else 0.0)
        return found

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Count the cells that each system wins and loses against the best cap of the same seed."""
        cells: dict[tuple[int, str], dict[str, float]] = {}
        for record in records:
            if record.metric == "sustained_tokens_per_s" and "cell" in record.at:
                cells.setdefault((record.seed, str(record.at["cell"])), {})[record.system] = record.value
        counted: dict[tuple[str, int], list[int]] = {}
        for (seed, _), by_system in cells.items():
            caps = [by_system[name] for name in ("fixed-cap", "token-budget") if name in by_system]
            if not caps:
                continue
            for system, value in by_system.items():
                sign = (value > (1 + _WIN) * max(caps)) - (value * (1 + _WIN) < max(caps))
                counted.setdefault((system, seed), []).append(sign)
        return [
            Record(self.name, system, seed, metric, signs.count(sign) / len(signs), "", "simulated", {})
            for (system, seed), signs in counted.items()
            for metric, sign in (("cells_won", 1), ("cells_lost", -1))
        ]


def decision_times(controller: Any, step_time: StepTime, predictor: Floats) -> tuple[float, float]:
    """Return the seconds of one decision for 256 further branches of 64 requests, compiled and in plain Python.

    Parameters
    ----------
    controller : Taper
    step_time : StepTime
    predictor : float64 array
    """
    draws = stream(0, "decision")
    requests = _DECIDED // 4
    view = view_of(
        deadline_s=draws.uniform(0.1, 0.3, requests), request=np.repeat(np.arange(requests), 4),
        context=draws.integers(200, 3000, _DECIDED), left=draws.integers(1, 200, _DECIDED),
        protected_left=draws.integers(1, 200, requests), decodes=requests, context_tokens=requests * 1024,
    )  # fmt: skip
    compiled, plain = [], []
    for _ in range(20):
        began = time.perf_counter()
        repeated(controller, view, step_time, predictor, _REPEATS)
        compiled.append((time.perf_counter() - began) / _REPEATS)
    for _ in range(_REPEATS):
        began = time.perf_counter()
        controller.plan(view, predictor)
        plain.append(time.perf_counter() - began)
    return min(compiled), float(np.median(plain))


@lru_cache(maxsize=8)
def _step_time(device: str, model: str, tensor_parallel: int, which: str) -> tuple[StepTime, str]:
    from wavetank.platforms.calibration import calibrated_roofline
    from wavetank.platforms.table_step_time import TableStepTime

    if which != "roofline":
        try:
            datasets.find("vllm-layer-profiles")
            measured = TableStepTime.from_vllm_profiles(device, model, tensor_parallel)
            return measured, f"measured layers ({measured.source})"
        except DataUnavailableError:
            if which == "measured":
                raise
    return calibrated_roofline(device, model, tensor_parallel), "a calibrated roofline, no measured layers"


@lru_cache(maxsize=8)
def _predictor(device: str, model: str, tensor_parallel: int, which: str, chunk_tokens: int) -> Floats:
    step, _ = _step_time(device, model, tensor_parallel, which)
    kv_tokens = kv_capacity_tokens(device, model, tensor_parallel)
    fitted = profiled(step, grid_of(kv_tokens), [max(1, chunk_tokens * part // 4) for part in (1, 2, 3, 4)])
    fitted.flags.writeable = False
    return fitted


@lru_cache(maxsize=32)
def _requests(trace: str, n: int, share: float, width: int, branch_tokens: float, seed: int) -> BranchingRequests:
    source = (
        generate_requests(rate_per_s=1.0, n_requests=n, seed=seed)
        if trace == "generated"
        else _long_enough(read_trace(trace), n, seed)
    )
    return branching(source.head(n), share, width, branch_tokens, seed)


def _long_enough(trace: RequestTrace, n: int, seed: int) -> RequestTrace:
    drawn = trace.resampled(seed)
    return drawn if len(drawn) >= n else drawn.replayed(-(-n // len(drawn)))


@lru_cache(maxsize=256)
def _capacity_per_s(study: BranchAdmission, seed: int) -> float:
    served = study._requests(seed).part(study.requests, study.requests)
    run = simulate_branches(
        served.at_rate(math.inf), study._engine(), study._step_time(), Off(), study._predictor(),
        noise=study._noise(seed),
    ).serving  # fmt: skip
    return study.requests / run.makespan_s


@lru_cache(maxsize=256)
def _eager_limit(study: BranchAdmission, seed: int) -> float:
    served = study._requests(seed).part(study.requests, study.requests)
    return study._sustained(served, Eager(), seed)[1] or _LIGHTEST
