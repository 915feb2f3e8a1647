"""Study ``serving-fidelity``: the simulator against recorded runs of real engines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wavetank.errors import DataUnavailableError
from wavetank.serving.fidelity.left_out import LEFT_OUT as ALL
from wavetank.serving.fidelity.left_out import SEEN, SEVERAL, cases
from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial

if TYPE_CHECKING:
    from wavetank.platforms.step_estimates import StepEstimate
    from wavetank.platforms.step_time import StepTime
    from wavetank.serving.fidelity.predictors import Prediction
    from wavetank.serving.fidelity.recorded_runs import RecordedRun

_LATENCIES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "time from arrival to last token"}
_STATISTICS = {"mean": "mean", "p50": "median", "p99": "99th percentile"}
_OURS = "profiles-with-overheads"


@dataclass(frozen=True, kw_only=True)
class ServingFidelity(Study):
    """Every system predicts recorded runs of vLLM from arrivals, lengths and the engine's settings.  What a
    system fits, it fits to the other runs and is judged on the one left out; beside that stand the cases in which it
    has seen all runs, in which every run of one degree of tensor parallelism is left out, and in which every run on
    several devices is.  Errors are predicted / measured - 1 of means, medians and 99th percentiles over all requests
    of a run, and none is averaged away: a run's error is its worst, a case's that of its worst run.
    """

    name = "serving-fidelity"
    baseline = "profiles-only"
    primary = "e2e_mean_error"
    secondary = ("ttft_mean_error", "tpot_mean_error")
    cases_by = "configuration"
    default_seeds = 1
    exact = True
    metrics = (
        *(
            Metric(
                f"{name}_error", "", "lower",
                of=f"{words}: largest |predicted / measured - 1| of mean, median and 99th percentile; the "
                f"largest over the runs in the cases '{ALL}', '{SEEN}', 'tensor parallel N left out' and '{SEVERAL}'",
            )
            for name, words in _LATENCIES.items()
        ),
        *(
            Metric(
                f"{name}_mean_error", "", "lower",
                of=f"{words}: |predicted / measured - 1| of the mean; its mean over the runs in a case of several",
                words=f"error of the mean {words}",
            )
            for name, words in _LATENCIES.items()
        ),
        Metric(
            "throughput_error", "", "lower",
            of="|predicted / measured - 1| of output tokens per second between first arrival and last token; the "
            "largest in a case of several runs",
        ),
        *(
            Metric(
                f"{name}_request_error", "", "lower",
                of=f"{words}: median over requests of |predicted / measured - 1|", table=False,
            )
            for name, words in _LATENCIES.items()
        ),
        *(
            Metric(
                f"{name}_{statistic}_deviation", "",
                of=f"{words}, {figure}: predicted / measured - 1, with its sign", table=False,
            )
            for name, words in _LATENCIES.items()
            for statistic, figure in _STATISTICS.items()
        ),
        Metric("throughput_deviation", "", of="predicted / measured - 1, with its sign", table=False),
        Metric("predicted_ttft_s", "s", of="predicted time to first token of one request", table=False),
        Metric("predicted_e2e_s", "s", of="predicted time from arrival to last token of one request", table=False),
        Metric("fitted_step_s", "s", of="time per step, fitted to the other runs", table=False),
        Metric("fitted_sequence_s", "s", of="time per step and sequence, fitted to the other runs", table=False),
        Metric(
            "step_estimate_ratio", "", kind="modelled",
            of="step time / the estimate of NVIDIA's aiconfigurator for the same batch: median over batches and "
            "models; another tool's prediction, reported and not fitted to", table=False,
        ),
    )  # fmt: skip
    charts = (
        Chart("bars", "Largest error of the end-to-end time", y="e2e_error",
              says="Shorter is nearer to the real engine."),
        Chart("bars", "Largest error of the time to first token", y="ttft_error",
              says="Shorter is nearer to the real engine."),
        Chart("scatter", "Time to first token of requests, predicted against measured", y="predicted_ttft_s",
              by="measured_s", log="xy",
              says="On the diagonal the prediction is right."),
        Chart("scatter", "End-to-end time of requests, predicted against measured", y="predicted_e2e_s",
              by="measured_s",
              says="On the diagonal the prediction is right."),
    )  # fmt: skip

    folder: str = setting(
        "",
        says="Folder of recorded runs of your own, <hardware>/<model>/requests.jsonl.gz, one or more; empty: those of "
        "vllm-layer-profiles",
    )
    points: int = setting(
        60, says="Requests per run in the scatter plot, evenly spread over measured times", low=2, high=2000
    )

    def check(self) -> None:
        """Read the runs once, so that what is missing shows before any trial."""
        from wavetank.serving.fidelity.predictors import profile_of

        for run in self.recorded():
            profile_of(run)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures: the runs, the worst cases, the fits."""
        from wavetank.ledger import catalog

        runs = self.recorded()
        said = [
            f"{len(runs)} recorded runs ({', '.join(f'{run.name}: {len(run.requests)} requests' for run in runs)}); "
            "so few that the spread over other hardware and models is not known. Nothing is random: one seed is all.",
            *(sentence for run in runs for sentence in run.assumed),
            self._fitted_to(runs),
            "TTFT and end-to-end count from the arrival. llmservingsim is judged by its authors' own figures, which "
            "count from the moment the scheduler saw a request, and published no throughput.",
            "Clocks of client and engine are aligned by the fastest request, so what every request spends on its way "
            "to the engine (tokenisation included) is in no figure.",
        ]
        predictor = catalog.system(_OURS).build()
        for run in runs:
            prediction = _predicted(predictor, run, tuple(other for other in runs if other is not run))
            worst = max(prediction.figures, key=lambda name: abs(_deviation(prediction, name)))
            measured, predicted = prediction.figures[worst]
            fitted = ", ".join(f"{name} {value * 1e6:.1f} us" for name, value in prediction.coefficients.items())
            said.append(
                f"Worst of {_OURS}, as the catalog builds it, on {run.name}: {worst} "
                f"{_deviation(prediction, worst):+.1%} (measured {measured:.4g}, predicted {predicted:.4g}); "
                f"{'fitted to the others' if len(runs) > 1 else 'shipped'}: {fitted}."
            )
        if _estimates() is None:
            said.append("Data set gpu-specs-and-estimates is absent: step times were not held against its estimates.")
        return tuple(said)

    @staticmethod
    def _fitted_to(runs: Sequence[RecordedRun]) -> str:
        if len(runs) > 1:
            return (
                f"Coefficients of {_OURS} are fitted without the run that is judged, but in the case '{SEEN}'; which "
                "terms it has was decided with all runs of vllm-layer-profiles in view."
            )
        shipped = shipped_fit()
        known = next((name for name, checksum in shipped.runs.items() if checksum == runs[0].checksum), None)
        said = f"There is one run, so that none is left to fit {_OURS} to. {shipped.said()}"
        return said + (f" The run is {known} of these: it was seen." if known else " The run is none of these.")

    def data(self) -> Mapping[str, str]:
        """Return the checksum of every run's requests."""
        return {run.requests.name: run.checksum for run in self.recorded()}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial per system: nothing is random, so another seed would only repeat the figures."""
        return super().trials(systems, seeds[:1])

    def recorded(self) -> tuple[RecordedRun, ...]:
        """Return the runs that systems are judged on."""
        return _recorded(self.folder)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Let one system predict every run from the others."""
        found = Measurements()
        for case, judged in cases(self.recorded()).items():
            worst: dict[str, float] = {}
            of_means: dict[str, list[float]] = {latency: [] for latency in _LATENCIES}
            for run, others in judged:
                prediction = _predicted(system, run, others)
                if not prediction.figures:
                    continue
                # A run's own figures are those of the case in which it alone was left out.
                each = found if case == ALL else Measurements()
                for name, value in _put_errors(each, run, prediction).items():
                    worst[name] = max(worst.get(name, 0.0), value)
                self._put_requests(each, run, prediction)
                for latency, values in of_means.items():
                    values.append(abs(_deviation(prediction, f"{latency}_mean")))
                    each.put(f"{latency}_mean_error", values[-1], configuration=run.name)
            for name, value in worst.items():
                found.put(name, value, configuration=case)
            for latency, values in of_means.items():
                if values:
                    found.put(f"{latency}_mean_error", statistics.fmean(values), configuration=case)
        _put_estimates(found, system)
        return found

    def _put_requests(self, found: Measurements, run: RecordedRun, prediction: Prediction) -> None:
        pairs = {
            "ttft": (run.ttft_s, prediction.ttft_s),
            "tpot": (run.tpot_s, prediction.tpot_s),
            "e2e": (run.e2e_s, prediction.e2e_s),
        }
        for name, (measured, predicted) in pairs.items():
            if predicted is None:
                continue
            error = float(np.nanmedian(np.abs(predicted / measured - 1)))
            found.put(f"{name}_request_error", error, configuration=run.name)
            if name != "tpot":
                order = np.argsort(measured, kind="stable")
                for i in order[np.linspace(0, order.size - 1, min(self.points, order.size)).astype(int)]:
                    where = round(float(measured[i]), 6)
                    found.put(f"predicted_{name}_s", predicted[i], configuration=run.name, measured_s=where)


def _deviation(prediction: Prediction, name: str) -> float:
    measured, predicted = prediction.figures[name]
    return predicted / measured - 1


def _put_errors(found: Measurements, run: RecordedRun, prediction: Prediction) -> dict[str, float]:
    """Put one run's deviations and errors; return the errors."""
    errors = {}
    for latency in _LATENCIES:
        deviations = {name: _deviation(prediction, f"{latency}_{name}") for name in _STATISTICS}
        for name, value in deviations.items():
            found.put(f"{latency}_{name}_deviation", value, configuration=run.name)
        errors[f"{latency}_error"] = max(map(abs, deviations.values()))
    if "throughput" in prediction.figures:
        deviation = _deviation(prediction, "throughput")
        found.put("throughput_deviation", deviation, configuration=run.name)
        errors["throughput_error"] = abs(deviation)
    for name, value in errors.items():
        found.put(name, value, configuration=run.name)
    for name, value in prediction.coefficients.items():
        if name != "token_s":
            found.put(f"fitted_{name}", value, configuration=run.name)
    return errors


def _put_estimates(found: Measurements, system: Any) -> None:
    """Put the ratios of the system's step times to another tool's estimates, where it has step times."""
    ratios: dict[tuple[str, str, int], list[float]] = {}
    for estimate in _estimates() or ():
        step_time = _step_time(system, estimate)
        if step_time is not None:
            case = (estimate.device, estimate.phase, estimate.tensor_parallel)
            ratios.setdefault(case, []).append(estimate.ratio(step_time))
    for (device, phase, degree), values in ratios.items():
        where: dict[str, float | str] = {"device": device, "phase": phase, "tensor_parallel": degree}
        found.put("step_estimate_ratio", statistics.median(values), **where)


def _step_time(system: Any, estimate: StepEstimate) -> StepTime | None:
    of = getattr(system, "step_time", None)
    made: StepTime | None = None if of is None else of(estimate.device, estimate.model, estimate.tensor_parallel)
    return made


@lru_cache(maxsize=4)
def _recorded(folder: str) -> tuple[RecordedRun, ...]:
    from wavetank.serving.fidelity.recorded_runs import recorded_runs

    return recorded_runs(folder or None)


@lru_cache(maxsize=64)
def _predicted(system: Any, run: RecordedRun, others: tuple[RecordedRun, ...]) -> Prediction:
    prediction: Prediction = system.predict(run, others)
    return prediction


@lru_cache(maxsize=1)
def _estimates() -> tuple[StepEstimate, ...] | None:
    from wavetank.platforms.step_estimates import read_step_estimates

    try:
        return read_step_estimates()
    except DataUnavailableError:
        return None
