"""Study ``barrier-routing``: routers in front of a real lockstep group, processes that meet at a barrier."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.routing.traffic import Traffic
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial
from wavetank.units import show, stated

if TYPE_CHECKING:
    from wavetank.serving.routing.barrier_worker import GroupShape
    from wavetank.workloads.requests import RequestTrace

FEWEST_REQUESTS = 20
# Steps over which the saturation rate is measured.
_FULL_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class BarrierRouting(Traffic, Study):
    """Every worker is a process that reads its KV cache once per step (decode attention in float32) and then waits for
    the others at a barrier.  The routers are the objects that ``llm-routing`` simulates, and they see the same ageing
    view.  The offered load is a share of the group's saturation rate, which the study measures first.  Every run is
    then simulated with a step time fitted to its own steps.
    """

    name = "barrier-routing"
    baseline = "vllm-default"
    primary = "throughput_tokens_per_s"
    secondary = ("imbalance_tokens", "waiting_share")
    in_process = True
    metrics = (
        Metric(
            "throughput_tokens_per_s", "tokens/s", "higher", "measured",
            of="tokens decoded in the steps that begin between the warm-up (a tenth of the trace) and the last "
            "arrival, per second of it; the clock runs during steps", words="throughput",
        ),
        Metric(
            "imbalance_tokens", "tokens", "lower", "counted",
            of="workers * largest - sum of the KV tokens that a step reads; mean over the same steps",
            words="imbalance",
        ),
        Metric(
            "waiting_share", "", "lower", "measured",
            of="share of the workers' step time that they wait at the barrier for the last one; same steps",
            words="waiting at the barrier",
        ),
        Metric(
            "step_s", "s", "", "measured",
            of="release of the workers to arrival of the last one at the barrier; mean of the same steps",
        ),
        Metric(
            "barrier_s", "s", "lower", "measured",
            of="part of a step in which not even its slowest worker works: release, wake-up, signal; mean",
        ),
        Metric(
            "measured_over_simulated", "", "", "measured",
            of="output tokens per second of the whole run, first arrival to last token, measured / "
               "simulated with a step time fitted to the run's own steps plus the mean barrier_s",
        ),
        Metric(
            "fit_r_squared", "", "higher", "measured",
            of="share of the variance of the workers' times of work that the fitted step time explains",
            table=False,
        ),
        Metric(
            "share_of_copy", "", "", "measured",
            of="KV bytes read per second of work / bytes per second of a plain copy, all workers at once",
            table=False,
        ),
        Metric(
            "between_steps_s", "s", "", "measured",
            of="end of a step to release of the next, outside the clock: bookkeeping, decision, prompts loaded; mean",
            table=False,
        ),
        Metric("makespan_s", "s", "lower", "measured", of="first arrival to last token", table=False),
        Metric(
            "simulated_makespan_s", "s", "lower", "simulated",
            of="the same of the simulation with the fitted step time",
            table=False,
        ),
        Metric(
            "simulated_imbalance_tokens", "tokens", "lower", "simulated",
            of="imbalance_tokens of the simulation with the fitted step time",
            table=False,
        ),
        Metric("offered_per_s", "requests/s", "", "measured", of="arrival rate of the trace as served", table=False),
    )  # fmt: skip
    charts = (
        Chart("pareto", "Throughput against waiting at the barrier", x="throughput_tokens_per_s", y="waiting_share",
              says="Down and to the right is better: less waiting is more throughput."),
        Chart("bars", "Imbalance of the KV load", y="imbalance_tokens",
              says="Idle tokens per step, counted: the tokens for which all workers together wait for the most "
                   "loaded one."),
        Chart("bars", "Measured against simulated throughput", y="measured_over_simulated",
              says="At 1 the simulator predicts the duration of the real run."),
    )  # fmt: skip

    requests: int = setting(100, unit="requests", says="Requests per run", low=FEWEST_REQUESTS, high=100_000)
    load: float = setting(1.3, says="Arrival rate as a share of the saturation rate", low=0.05, high=10)
    workers: int = setting(
        2,
        unit="workers",
        says="Number of worker processes, each on a core of its own; not more than there are cores",
        low=1,
        high=256,
    )
    max_running: int = setting(8, unit="requests", says="Most requests that a worker decodes at once", low=1, high=256)
    query_heads: int = setting(8, says="Query heads that attend over the key and value of a token", low=1, high=128)
    head_dim: int = setting(128, says="Floats per key, and per value", low=8, high=1024)
    refresh_s: float = setting(
        0.003,
        unit="s",
        says="Time between two refreshes of the routers' view of the workers; about four steps",
        low=0.0,
        high=60.0,
    )

    def check(self) -> None:
        """Refuse groups that this machine cannot hold, and read the trace, so that mistakes show before any trial."""
        from wavetank.machine.limits import require_memory
        from wavetank.serving.routing.barrier import check_cores
        from wavetank.serving.routing.barrier_worker import COPIED_BYTES

        check_cores(self.workers)
        served = self.split(0)[1]
        if len(served) < FEWEST_REQUESTS:
            raise BadValueError(
                "Too few requests are left to serve; those of a single output token are never decoded.",
                given=len(served),
                allowed=f"{FEWEST_REQUESTS} or more",
                where="requests, history",
                hint="a longer trace, a larger --set requests= or a smaller --set history=",
            )
        # A trace whose requests all arrive at once has no rate, and this says so.
        served.at_rate(1.0)
        require_memory(self.workers * (self.shape(served).cache_bytes + 2 * COPIED_BYTES), "barrier-routing")

    def assumed(self) -> str:
        """Return one sentence on the workload and the group that the figures are of."""
        own = self.split(0)[1]
        what = f"{len(own):,} requests of {self.trace}" + ("" if self.made else self.learnt())
        return (
            f"Assumed: {what}; {self.workers} processes on this machine in one group that steps together, "
            f"{self.max_running} slots each, {self.query_heads} query heads of {self.head_dim}; arrivals at "
            f"{stated(self.load)} of the saturation rate. Change with --set workers=, max_running=, load=."
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            *self.notes_on_reading(),
            f"{self.workers} real processes on this machine, which share its memory and caches; accelerators share "
            "neither.",
            f"Saturation rate, measured with all slots full of average requests: "
            f"{show(saturation_per_s(self), 'requests/s')}.",
            "Prompts are computed elsewhere. Loading their keys and values, and the coordinator's own work, happen "
            "while the clock stands still (between_steps_s).",
            "Few slots on few workers are as uneven as many on many: the larger of two sums of 8 loads lies 0.20 "
            "standard deviations of a load, per slot, above the mean; the largest of 16 sums of 64 lies 0.22.",
            "Figures of time belong to this machine and moment; imbalance_tokens is counted.",
        )

    def split(self, seed: int, n: int = 0) -> tuple[RequestTrace, RequestTrace]:
        """Return past requests, for predictors, and the requests to serve, at the trace's own times.

        Requests of one output token have it with their prompt and never come to a decode worker.
        """
        from wavetank.workloads.requests import RequestTrace

        # A trace's history is long enough to learn from; the requests to serve are cut afterwards.
        most = max(self.requests, 1000) if self.made else 10_000_000
        past, rest = Traffic.split(dataclasses.replace(self, requests=most), seed)
        decoded = np.flatnonzero(rest.output_tokens > 1)[: self.requests]
        if not decoded.size:
            raise BadValueError("No request of the trace has two output tokens or more.", where="trace")
        return past, RequestTrace(
            arrival_s=rest.arrival_s[decoded] - rest.arrival_s[decoded[0]],
            prompt_tokens=rest.prompt_tokens[decoded],
            output_tokens=rest.output_tokens[decoded],
        )

    def shape(self, served: RequestTrace) -> GroupShape:
        """Return the group that has room for these requests."""
        from wavetank.serving.routing.barrier_worker import GroupShape

        return GroupShape(
            workers=self.workers,
            slots=self.max_running,
            longest_tokens=int((served.prompt_tokens + served.output_tokens).max()),
            head_dim=self.head_dim,
            query_heads=self.query_heads,
        )

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return the trials: every system once before the next seed, another one first each time."""
        return [
            Trial(systems=(systems[(position + number) % len(systems)],), seed=seed)
            for position, seed in enumerate(seeds)
            for number in range(len(systems))
        ]

    def measure(self, system: Any, seed: int) -> Measurements:
        """Decode a seed's requests for real, then simulate the same."""
        from wavetank.serving.routing.barrier import LockstepGroup, decode_for_real, simulated

        past, requests = self.split(seed)
        if getattr(system, "learns_lengths", False):
            system = system.fitted_to(past)
        requests = requests.at_rate(self.load * saturation_per_s(self))
        shape = self.shape(requests)
        with LockstepGroup(shape) as group:
            real = decode_for_real(requests, system, group, refresh_s=self.refresh_s)
        twin = simulated(requests, system, real, shape, refresh_s=self.refresh_s)
        found = Measurements(real.metrics())
        found.put("measured_over_simulated", twin.makespan_s / real.makespan_s)
        found.put("fit_r_squared", real.fitted()[1])
        found.put("makespan_s", real.makespan_s)
        found.put("simulated_makespan_s", twin.makespan_s)
        found.put("simulated_imbalance_tokens", twin.imbalance_tokens)
        found.put("offered_per_s", requests.rate_per_s)
        return found


def saturation_per_s(study: BarrierRouting) -> float:
    """Return the requests per second that the study's group could decode if its load were always even.

    Measured once per process, with every slot of every worker as full as a slot is on average over the steps.
    """
    return _saturation_per_s(study, study.version())


@lru_cache(maxsize=8)
def _saturation_per_s(study: BarrierRouting, version: tuple[str, int, int]) -> float:
    from wavetank.serving.routing.barrier import LockstepGroup

    requests = study.split(0)[1]
    steps = requests.output_tokens - 1.0
    mean_tokens = float((steps * (requests.prompt_tokens + requests.output_tokens / 2)).sum() / steps.sum())
    with LockstepGroup(study.shape(requests)) as group:
        step_s = group.full_step_s(math.ceil(mean_tokens), _FULL_STEPS)
    return study.workers * study.max_running / (step_s * float(steps.mean()))
