"""Study ``profiling-reuse``: what profiling many models costs, and how well the profile predicts an engine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wavetank.serving.profiling.models import BACKENDS, DTYPES, from_zoo, read_model, zoo
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

if TYPE_CHECKING:
    from wavetank.serving.profiling.session import Session

ALL_RUNS = "all held-out runs"
_JUDGED = ("mini", "mini-experts")


@dataclass(frozen=True, kw_only=True)
class ProfilingReuse(Study):
    """Measurements are counted over twelve models with public shapes, which are traced and not run: every distinct
    operation of a model at every point of one grid is a measurement, whichever way it is saved.  Then three small
    models are profiled on this machine, and the engine of two of them serves requests that no profile has seen; the
    simulator, with each system's step time, predicts every request's latencies.  Recorded runs of vLLM are predicted
    from published layer profiles where the data set is there.
    """

    name = "profiling-reuse"
    baseline = "full-profiles"
    primary = "measurements_saved"
    secondary = ("ttft_mape", "tpot_mape")
    cases_by = "case"
    in_process = True
    default_seeds = 1
    exact = True
    metrics = (
        Metric("measurements_saved", "", "higher", "counted",
               "1 - measurements made / measurements of every model by itself, over the models of the zoo; a "
               "measurement is one point of the grid for one distinct operation of a model",
               words="saved share of the measurements"),
        Metric("measurements", "points", "", "counted", "points of operations that are measured for the whole zoo"),
        Metric("gpu_time_saved", "", "higher", "modelled",
               "the same share, each point weighted by the roofline of one call on an H100",
               words="saved share of the time on a modelled GPU"),
        Metric("profiling_s", "s", "lower", "measured",
               "time of all measurements of the three small models, warm-ups included, those that are reused once"),
        Metric("ttft_mape", "", "lower", "measured",
               "time to first token: mean over requests of |predicted / measured - 1|; in the case "
               f"'{ALL_RUNS}' the mean over runs", words="error of times to first token"),
        Metric("tpot_mape", "", "lower", "measured",
               "time per output token after the first: mean over requests of |predicted / measured - 1|; in the case "
               f"'{ALL_RUNS}' the mean over runs", words="error of times per output token"),
        Metric("recorded_ttft_error", "", "lower", "simulated",
               "mean time to first token of a recorded run of vLLM: |predicted / measured - 1|, nothing fitted"),
        Metric("recorded_tpot_error", "", "lower", "simulated",
               "mean time per output token of a recorded run of vLLM: |predicted / measured - 1|, nothing fitted"),
        Metric("predicted_ttft_s", "s", "", "measured", "predicted time to first token of one request", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Measurements that need not be made", y="measurements_saved",
              says="Longer is better: the share of a full profile of every model."),
        Chart("bars", "Error of times to first token", y="ttft_mape", says="Shorter is nearer to the engine."),
        Chart("bars", "Error of times per output token", y="tpot_mape", says="Shorter is nearer to the engine."),
        Chart("scatter", "Time to first token, predicted against measured", y="predicted_ttft_s", by="measured_s",
              log="xy", says="On the diagonal the prediction is right."),
    )  # fmt: skip

    models: str = setting(
        "", says="Models to count over, separated by commas: names of the zoo, or config.json files; empty: the zoo"
    )
    dtype: str = setting("bfloat16", says="Element type of the counted models", choices=DTYPES)
    backend: str = setting("per-sequence", says="Attention of the counted models", choices=BACKENDS)
    tensor_parallel: int = setting(1, unit="devices", says="Devices that share each counted model", low=1, high=64)
    max_tokens: int = setting(2048, unit="tokens", says="Largest step of the counted grid", low=16, high=1 << 20)
    max_requests: int = setting(128, unit="requests", says="Largest batch of the counted grid", low=2, high=1 << 20)
    max_context: int = setting(4096, unit="tokens", says="Longest request of the counted grid", low=32, high=1 << 20)
    measures: bool = setting(True, says="Whether small models are profiled and served on this machine")
    requests: int = setting(40, unit="requests", says="Requests of each held-out run", low=4, high=10_000)
    threads: int = setting(1, says="Threads of the profile and of the engine", low=1, high=256)
    clock: str = setting(
        "processor", says="Seconds of the wall, or those that the processor worked (one thread)",
        choices=("wall", "processor"),
    )  # fmt: skip
    point_budget_s: float = setting(
        0.03, unit="s", says="Longest time for one measured point that has three runs", low=0.001, high=60.0
    )

    def check(self) -> None:
        """Read the models once, so that what is wrong with one shows before any trial."""
        for config in self._configs():
            config.check_parallel(self.tensor_parallel)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            f"{len(self._configs())} models; which ones was decided before anything was counted, and another choice "
            "gives another share. Traced are decoders of this package with these shapes, not the models' own code.",
            "The engine that is predicted runs eagerly on this machine's processor; its scheduler is the simulator's, "
            "so that errors are those of step times.",
            "Whole steps of the engine with one sequence and with eight give what lies beside the operations, for "
            "every system that adds operations up.",
        )

    def _configs(self) -> tuple[Any, ...]:
        names = [name.strip() for name in self.models.split(",") if name.strip()]
        return tuple(map(read_model, names)) if names else tuple(map(from_zoo, zoo()))

    def measure(self, system: Any, seed: int) -> Measurements:
        """Count what one system measures, and let it predict."""
        found = Measurements()
        if hasattr(system, "reuse_key"):
            self._count(found, system)
        if not self.measures:
            return found
        session = _session(seed, self.requests, self.threads, self.clock, self.point_budget_s)
        if hasattr(system, "spent_s"):
            found.put("profiling_s", system.spent_s(session))
        self._predict(found, system, session)
        if hasattr(system, "recorded"):
            for run, (ttft, tpot) in system.recorded(session).items():
                found.put("recorded_ttft_error", ttft, case=run)
                found.put("recorded_tpot_error", tpot, case=run)
        return found

    def _count(self, found: Measurements, system: Any) -> None:
        from wavetank.platforms.catalog import device
        from wavetank.serving.profiling.counting import count, distinct
        from wavetank.serving.profiling.measuring import Grid
        from wavetank.serving.profiling.profiled import Variant

        variant = Variant(dtype=self.dtype, backend=self.backend, tensor_parallel=self.tensor_parallel)
        grid = Grid.up_to(self.max_tokens, self.max_requests, self.max_context)
        models = {config: distinct(config, variant) for config in self._configs()}
        counted = count(models, grid, system.reuse_key, device("H100-SXM"))
        found.put("measurements_saved", counted.saved)
        found.put("measurements", counted.points)
        found.put("gpu_time_saved", counted.saved_time)

    def _predict(self, found: Measurements, system: Any, session: Session) -> None:
        from wavetank.serving.profiling.session import SMALL_MODELS, mape

        errors: dict[str, list[float]] = {"ttft_mape": [], "tpot_mape": []}
        for config in SMALL_MODELS:
            if config.name not in _JUDGED:
                continue
            for run in session.held_out(config):
                ttft, tpot = system.predict(session, config, run)
                case = f"{config.name}, {run.name}"
                of_run = {"ttft_mape": mape(ttft, run.measured.ttft_s), "tpot_mape": mape(tpot, run.measured.tpot_s)}
                for metric, value in of_run.items():
                    if math.isfinite(value):
                        found.put(metric, value, case=case)
                        errors[metric].append(value)
                for predicted, measured in zip(ttft.tolist(), run.measured.ttft_s.tolist(), strict=True):
                    found.put("predicted_ttft_s", predicted, case=case, measured_s=round(measured, 6))
        for metric, values in errors.items():
            found.put(metric, statistics.fmean(values), case=ALL_RUNS)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of every model's shape."""
        import hashlib

        return {each.name: hashlib.sha256(repr(each).encode()).hexdigest() for each in self._configs()}


@lru_cache(maxsize=2)
def _session(seed: int, requests: int, threads: int, clock: str, point_budget_s: float) -> Session:
    from wavetank.serving.profiling.session import Session

    return Session(seed, requests=requests, threads=threads, clock=clock, point_budget_s=point_budget_s)
