"""What the systems of ``profiling-reuse`` share under one seed: models, one database, and runs of the real engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import DataUnavailableError
from wavetank.machine.threads import libraries_limited
from wavetank.platforms.catalog import Device, Model
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.profiling.database import OperationDatabase, Point, ProfiledModel
from wavetank.serving.profiling.decoder import Decoder
from wavetank.serving.profiling.measuring import Grid, Timing
from wavetank.serving.profiling.models import DecoderConfig
from wavetank.serving.profiling.operations import Operation
from wavetank.serving.profiling.profiled import Profiled, Variant, profile, step_time
from wavetank.serving.profiling.regression import latencies
from wavetank.serving.profiling.served import DecoderEngine, MeasuredRun
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.cluster import Cluster
from wavetank.sim.rng import stream
from wavetank.workloads.requests import RequestTrace

if TYPE_CHECKING:
    from wavetank.platforms.step_time import StepTime

_SMALL = DecoderConfig(
    name="mini", layers=4, hidden=256, heads=8, kv_heads=2, head_dim=32, ffn=704, vocab=4096
)  # fmt: skip
SMALL_MODELS = (
    _SMALL,
    replace(_SMALL, name="mini-deep", layers=8),
    replace(_SMALL, name="mini-experts", ffn=352, experts=8, experts_per_token=2),
)
"""Models that are small enough to be served here; the second has the shapes of the first, the third most of them."""
_MAX_TOKENS, _MAX_REQUESTS, _MAX_CONTEXT = 128, 8, 256
_LOAD = 0.6


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A run of the engine that no profile has seen."""

    name: str
    requests: RequestTrace
    measured: MeasuredRun


class Session:
    """Measurements of one seed, each made when it is first asked for.

    Parameters
    ----------
    seed : int
    requests : int
        Of each held-out run.
    threads : int
    clock : {"wall", "processor"}
    point_budget_s : float
        Longest time for one measured point, if it has three runs.
    """

    def __init__(self, seed: int, *, requests: int, threads: int, clock: str, point_budget_s: float) -> None:
        self.seed, self.requests = seed, requests
        self.variant, self.clock = Variant(threads=threads), clock
        self.grid = Grid.up_to(_MAX_TOKENS, _MAX_REQUESTS, _MAX_CONTEXT)
        self.timing = Timing(clock=clock, budget_s=point_budget_s, tries=1)
        self._runs: dict[str, list[HeldOut]] = {}
        self._own: dict[str, TableStepTime] = {}
        self._engines: dict[str, DecoderEngine] = {}

    @cached_property
    def _shared(self) -> tuple[OperationDatabase, dict[str, Profiled]]:
        database = OperationDatabase(":memory:")
        return database, {config.name: self._profiled(config, database) for config in SMALL_MODELS}

    def _profiled(self, config: DecoderConfig, database: OperationDatabase) -> Profiled:
        return profile(config, database, variant=self.variant, grid=self.grid, timing=self.timing)

    @property
    def disturbed(self) -> tuple[int, int]:
        """Operations that were measured while the machine was busy, and all that were measured."""
        swept = [done.swept for done in self._shared[1].values()]
        return sum(len(each.disturbed) for each in swept), sum(len(each.measured) for each in swept)

    def shared_step_time(self, config: DecoderConfig) -> TableStepTime:
        """Return a model's step time from the database that all models share."""
        database, done = self._shared
        return step_time(database, done[config.name])

    def own_step_time(self, config: DecoderConfig) -> TableStepTime:
        """Return a model's step time from measurements made for it alone."""
        if config.name not in self._own:
            with OperationDatabase(":memory:") as database:
                self._own[config.name] = step_time(database, self._profiled(config, database))
        return self._own[config.name]

    def shared_measurements(self, config: DecoderConfig) -> tuple[ProfiledModel, dict[Operation, dict[Point, float]]]:
        """Return a model's operations with what was measured of them."""
        database, done = self._shared
        model = done[config.name].model
        return model, latencies(database, model, done[config.name].conditions)[1]

    def spent_s(self, key: Callable[[DecoderConfig, Operation], Hashable]) -> float:
        """Return the seconds of all measurements, those with equal keys made once."""
        database, done = self._shared
        found: dict[Hashable, float] = {}
        for config in SMALL_MODELS:
            each = done[config.name]
            for operation in each.model.counts:
                results = database.results(operation, each.conditions)
                found[key(config, operation)] = sum(result.spent_s for result in results.values())
        return sum(found.values())

    def held_out(self, config: DecoderConfig) -> list[HeldOut]:
        """Return the runs of a model's engine: a backlog, a chat at 0.6 of its rate, and long prompts likewise."""
        if config.name not in self._runs:
            draw = stream(self.seed, f"held-out {config.name}")
            count = self.requests
            prompts, answers = draw.integers(8, 96, count), draw.integers(8, 48, count)
            runs = [self._served(config, "backlog", RequestTrace(
                arrival_s=np.zeros(count), prompt_tokens=prompts, output_tokens=answers,
            ))]  # fmt: skip
            for name, lengths in (("chat", ((8, 64), (16, 64))), ("prompts", ((96, 192), (4, 16)))):
                prompts, answers = (draw.integers(low, high, count) for low, high in lengths)
                # As fast as the backlog was served, token by token, times the load.
                took_s = sum(step.seconds for step in runs[0].measured.steps)
                served = runs[0].requests
                share = (prompts + answers).sum() / (served.prompt_tokens + served.output_tokens).sum()
                gaps = draw.exponential(took_s * share / count / _LOAD, count)
                runs.append(self._served(config, name, RequestTrace(
                    arrival_s=np.cumsum(gaps), prompt_tokens=prompts, output_tokens=answers,
                )))  # fmt: skip
            self._runs[config.name] = runs
        return self._runs[config.name]

    def _served(self, config: DecoderConfig, name: str, requests: RequestTrace) -> HeldOut:
        return HeldOut(name, requests, self._run(config, requests))

    def _run(self, config: DecoderConfig, requests: RequestTrace) -> MeasuredRun:
        with libraries_limited(self.variant.used_threads):
            if config.name not in self._engines:
                decoder = Decoder(config, device="cpu", seed=self.seed)
                engine = DecoderEngine(decoder, self.cluster(), _MAX_CONTEXT, self.clock)
                # The first steps of a process find nothing in place.
                four = np.full(4, 16)
                engine.serve(RequestTrace(arrival_s=np.zeros(4), prompt_tokens=four, output_tokens=four))
                self._engines[config.name] = engine
            return self._engines[config.name].serve(requests, self.seed)

    def served_again(self, config: DecoderConfig, run: HeldOut) -> MeasuredRun:
        """Return a second run of the engine on the same requests."""
        return self._run(config, run.requests)

    def cluster(self, step: StepTime | None = None) -> Cluster:
        """Return the one worker that the engine is."""
        limits: dict[str, Any] = {
            "workers": 1, "max_running": _MAX_REQUESTS, "max_batched_tokens": _MAX_TOKENS, "refresh_s": 0.0,
            "kv_capacity_tokens": _MAX_REQUESTS * _MAX_CONTEXT,
        }  # fmt: skip
        return Cluster(**limits) if step is None else Cluster(**limits, step_time=step)

    def simulated(self, run: HeldOut, step: StepTime) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what the simulator says about a run."""
        from wavetank.serving.simulator.simulate import simulate

        served = simulate(run.requests, self.cluster(step), VLLMDefault())
        return served.ttft_s, served.tpot_s

    def machine(self) -> Device:
        """Return this machine as a device whose limits were measured."""
        from wavetank.machine import limits

        found = limits.cached()
        # One device has no link; these figures of one are never used.
        # The roofline counts two bytes per weight; these have four.
        alone = self.variant.used_threads == 1
        flops = found.peak_float32_per_s / (found.cores if alone else 1)
        bandwidth = found.copy_one_bytes_per_s if alone else found.copy_all_bytes_per_s
        return Device(
            name="this machine", memory_bytes=limits.memory_bytes(), hbm_bytes_per_s=bandwidth / 2,
            bf16_flops_per_s=flops, tdp_w=1.0, link_bytes_per_s=1e9, network_bytes_per_s=1e9,
            pcie_bytes_per_s=1e9, link_latency_s=1e-6, source="measured",
        )  # fmt: skip

    def shape(self, config: DecoderConfig) -> Model:
        """Return a decoder as the platforms describe models."""
        c = config
        attention = 2 * c.hidden * (c.heads + c.kv_heads) * c.head_dim
        block = 3 * c.hidden * c.ffn
        mixture = {"experts": c.experts, "experts_per_token": c.experts_per_token, "expert_ffn": c.ffn}
        parameters = c.layers * (attention + block * max(c.experts, 1)) + 2 * c.vocab * c.hidden
        active = c.layers * (attention + block * max(c.experts_per_token, 1)) + 2 * c.vocab * c.hidden
        return Model(
            name=c.name, layers=c.layers, hidden=c.hidden, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim,
            ffn=c.ffn, vocab=c.vocab, parameters=parameters, active_parameters=active, source="wavetank",
            **(mixture if c.experts else {}),
        )  # fmt: skip

    def recorded_errors(self) -> Mapping[str, tuple[float, float]]:
        """Return |predicted / measured - 1| of mean TTFT and TPOT per recorded run; empty without the data set."""
        from wavetank.serving.profiling.layer_profiles import recorded_errors

        try:
            return recorded_errors()
        except DataUnavailableError:
            return {}


def mape(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """Return the mean of |predicted / measured - 1| over requests; those without a figure do not count.

    Parameters
    ----------
    predicted, measured : ndarray of float64
        Of equal shape.
    """
    known = np.isfinite(measured) & (measured > 0)
    return float(np.abs(predicted[known] / measured[known] - 1).mean()) if known.any() else math.nan
