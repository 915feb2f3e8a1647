"""Study ``adapter-fidelity``: the simulator against recorded runs with many LoRA adapters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wavetank.errors import BadFileError
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

if TYPE_CHECKING:
    from wavetank.serving.adapters.lora_fidelity import Configuration
    from wavetank.serving.adapters.lora_models import LoraModel

ALL, FED, STARVED, TWINS = "all runs", "fed runs", "starved runs", "the twin's runs"
_JUDGED = {
    "throughput": ("throughput_tokens_per_s", "output tokens per second"),
    "ttft_mean": ("ttft_mean_s", "mean time to first token"),
    "ttft_p50": ("ttft_p50_s", "median time to first token"),
    "ttft_p99": ("ttft_p99_s", "99th percentile of the time to first token"),
    "tpot_mean": ("tpot_mean_s", "mean time per output token"),
    "tpot_p50": ("tpot_p50_s", "median time per output token"),
    "tpot_p99": ("tpot_p99_s", "99th percentile of the time per output token"),
    "itl_mean": ("itl_mean_s", "mean time between tokens"),
}
# Predictions that are timed.
_TIMED = 20
_IN_TABLE = ("throughput", "ttft_mean", "tpot_mean", "itl_mean")


@dataclass(frozen=True, kw_only=True)
class AdapterFidelity(Study):
    """Every system predicts one-hour runs of vLLM from the slots, the adapters with their rates and ranks, and the
    KV cache that was left.  What is fitted, is fitted to the runs of one set and judged on those of another.  Runs that
    starve (less than nine tenths of the tokens asked for) and runs that do not are separate cases: in the first,
    requests pile up for an hour and a time to first token says how long the hour was.
    """

    name = "adapter-fidelity"
    baseline = "blind-to-adapters"
    primary = "throughput_smape"
    secondary = ("ttft_mean_smape", "itl_mean_smape")
    cases_by = "runs"
    default_seeds = 3
    metrics = (
        *(
            Metric(
                f"{name}_smape", "", "lower",
                of=f"{words}: mean over runs of 2 |predicted - measured| / (predicted + measured)",
                table=name in _IN_TABLE, words=f"error of the {words}",
            )
            for name, (_, words) in _JUDGED.items()
        ),
        *(
            Metric(
                f"{name}_error", "", "lower",
                of=f"{words}: median over runs of |predicted / measured - 1|", table=False,
            )
            for name, (_, words) in _JUDGED.items()
        ),
        Metric(
            "memory_errors_missed", "", "lower",
            of="configurations that vLLM did not start for want of memory and that were predicted to start, as a share",
            table=False,
        ),
        Metric(
            "memory_errors_invented", "", "lower",
            of="configurations that ran and were predicted not to start, as a share", table=False,
        ),
        Metric(
            "hours_per_s", "", "higher", "measured",
            of="simulated hours per second on this machine", table=False,
        ),
        Metric("predicted_throughput_tokens_per_s", "tokens/s", of="predicted throughput of one run", table=False),
        Metric("predicted_ttft_mean_s", "s", of="predicted mean time to first token of one run", table=False),
        Metric("predicted_tpot_mean_s", "s", of="predicted mean time per output token of one run", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Error of the throughput", y="throughput_smape", says="Shorter is nearer to the real runs."),
        Chart("bars", "Error of the time per output token", y="tpot_mean_smape",
              says="Shorter is nearer to the real runs."),
        Chart("scatter", "Throughput of runs, predicted against measured", y="predicted_throughput_tokens_per_s",
              by="measured_tokens_per_s", says="On the diagonal the prediction is right."),
        Chart("scatter", "Mean time to first token of runs, predicted against measured", y="predicted_ttft_mean_s",
              by="measured_s", log="xy", says="On the diagonal the prediction is right."),
    )  # fmt: skip

    folder: str = setting(
        "",
        says="Folder of recorded runs of your own, of any model, in the form of lora-serving-vllm; empty: that set",
    )
    runs: int = setting(90, unit="runs", says="Judged runs, evenly spread over the set; 0 for all", low=0, high=10_000)
    points: int = setting(80, unit="runs", says="Runs in the scatter plot", low=2, high=2000)

    def check(self) -> None:
        """Read the runs once, so that what is missing shows before any trial."""
        judged = self.judged()
        if not judged:
            raise BadFileError(
                "No run can be judged.", given=self.folder, allowed="runs of the set test with the outcome ok",
                where="folder",
            )  # fmt: skip
        for each in {run.model.name: run for run in judged}.values():
            if each.model.costs is None:
                _check_fittable(self._folder(), each.model.name)

    def judged(self) -> tuple[Configuration, ...]:
        """Return the runs that systems are judged on."""
        return _judged(self._folder(), self.runs)

    def _folder(self) -> Path | None:
        return Path(self.folder).expanduser() if self.folder else None

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures: the runs, and the worst cases."""
        from wavetank.ledger import catalog
        from wavetank.serving.adapters.lora_fidelity import FIT_SET

        judged = self.judged()
        starved = sum(each.starved for each in judged)
        with_twin = sum(bool(each.twin) for each in judged)
        models = sorted({each.model for each in judged}, key=lambda model: model.name)
        said = [
            f"{len(judged)} recorded runs of {', '.join(model.name for model in models)} on one GPU, {starved} of them "
            f"starved; costs were fitted to runs of the set {FIT_SET}, which none of these belong to.",
            "Which costs there are was decided with half of the runs of lora-serving-vllm in view, and the limit of "
            "memory with all: those are development data.",
            *(sentence for model in models for sentence in _said_of(model)),
            f"The authors' twin was run for {with_twin} of these configurations: compare it in the case {TWINS!r}.",
            "Prompts and answers are drawn, not those of the runs, whose texts were not published; slots and ranks "
            "alone decide which configurations are predicted not to start.",
        ]
        predictor = catalog.system("adapters-fitted").build()
        deviations = {each: _predicted(predictor, each, 0)["throughput_tokens_per_s"] / _measured(each)[
            "throughput_tokens_per_s"] - 1 for each in judged}  # fmt: skip
        for each in sorted(judged, key=lambda run: -abs(deviations[run]))[:3]:
            said.append(f"Worst of adapters-fitted: {each.name}: throughput {deviations[each]:+.0%}.")
        return tuple(said)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the runs' file."""
        from wavetank.serving.adapters.lora_fidelity import DATASET, checksum

        return {self.folder or DATASET: checksum(self._folder())}

    def measure(self, system: Any, seed: int) -> Measurements:
        """Let one system predict every judged run."""
        found = Measurements()
        judged = self.judged()
        predictions = [(each, _predicted(system, each, seed)) for each in judged]
        predictions = [(each, figures) for each, figures in predictions if figures]
        # What one predictor leaves out would make its errors those of other runs.
        whole = predictions if len(predictions) == len(judged) else []
        cases = {
            ALL: whole,
            FED: [(each, figures) for each, figures in whole if not each.starved],
            STARVED: [(each, figures) for each, figures in whole if each.starved],
            TWINS: [(each, figures) for each, figures in predictions if each.twin],
        }
        for case, pairs in cases.items():
            _put_errors(found, case, pairs)
        self._put_points(found, predictions)
        if predictions and getattr(system, "simulates", False):
            found.put("hours_per_s", _hours_per_s(system, judged, seed))
        _put_memory(found, getattr(system, "starts", None), self._folder())
        return found

    def _put_points(self, found: Measurements, predictions: Sequence[tuple[Configuration, dict[str, float]]]) -> None:
        for metric, name, by in (
            ("predicted_throughput_tokens_per_s", "throughput_tokens_per_s", "measured_tokens_per_s"),
            ("predicted_ttft_mean_s", "ttft_mean_s", "measured_s"),
            ("predicted_tpot_mean_s", "tpot_mean_s", "measured_s"),
        ):
            known = [(each, figures) for each, figures in predictions if name in figures]
            order = sorted(range(len(known)), key=lambda i: _measured(known[i][0])[name])
            for i in np.linspace(0, len(order) - 1, min(self.points, len(order))).astype(int):
                each, figures = known[order[i]]
                at: dict[str, float | str] = {by: round(_measured(each)[name], 6)}
                at["runs"] = STARVED if each.starved else FED
                found.put(metric, figures[name], **at)


def _hours_per_s(system: Any, judged: Sequence[Configuration], seed: int) -> float:
    """Time some predictions anew: those that were judged may have been looked up."""
    some = judged[:: max(len(judged) // _TIMED, 1)]
    began = time.perf_counter()
    for each in some:
        system.predict(each, seed)
    return len(some) / (time.perf_counter() - began)


def _put_errors(found: Measurements, case: str, pairs: Sequence[tuple[Configuration, dict[str, float]]]) -> None:
    for short, (name, _) in _JUDGED.items():
        known = [(figures[name], _measured(each)[name]) for each, figures in pairs if name in figures]
        if known:
            predicted, measured = np.array(known).T
            smape = 2 * np.abs(predicted - measured) / (predicted + measured)
            found.put(f"{short}_smape", float(smape.mean()), runs=case)
            found.put(f"{short}_error", float(np.median(np.abs(predicted / measured - 1))), runs=case)


def _put_memory(
    found: Measurements, starts: Callable[[Configuration], bool | None] | None, folder: Path | None
) -> None:
    """Put how often a system that says so is wrong about what vLLM starts."""
    from wavetank.serving.adapters.lora_fidelity import JUDGED_SET, configurations

    if starts is None:
        return
    every = configurations(folder, subset=JUDGED_SET)
    for metric, outcome, wrong in (("missed", "memory_error", True), ("invented", "ok", False)):
        said = [said for each in every if each.outcome == outcome and (said := starts(each)) is not None]
        if said:
            found.put(f"memory_errors_{metric}", said.count(wrong) / len(said), runs=ALL)


def _measured(configuration: Configuration) -> dict[str, float]:
    return dict(configuration.measured)


def _check_fittable(folder: Path | None, model: str) -> None:
    """Refuse a model of which no costs ship and too few runs are there to fit them to, before any trial."""
    from wavetank.serving.adapters.lora_fidelity import FEWEST_FITTED, FIT_SET, runs_to_fit

    known = len(runs_to_fit(folder, model))
    if known < FEWEST_FITTED:
        raise BadFileError(
            f"Nothing says what a step of {model} costs.", given=f"{known} runs of the set {FIT_SET} with figures",
            allowed=f"{FEWEST_FITTED} or more", where="folder",
        )  # fmt: skip


def _said_of(model: LoraModel) -> tuple[str, ...]:
    """Say what was assumed of a model of which something does not ship."""
    from wavetank.serving.adapters.lora_fidelity import FIT_SET, FITTED_RUNS

    said = []
    if model.costs is None:
        said.append(
            f"No costs ship for {model.name}: they are fitted to up to {FITTED_RUNS} of its runs of the set {FIT_SET}, "
            f"and prompts and answers drawn with the means of its runs, {model.lengths.prompt_mean_tokens:.0f} and "
            f"{model.lengths.output_mean_tokens:.0f} tokens."
        )
    if model.longest_context_tokens is None:
        said.append(f"The longest context of {model.name} is not known: no limit of memory is predicted.")
    return tuple(said)


@lru_cache(maxsize=4)
def _judged(folder: Path | None, limit: int) -> tuple[Configuration, ...]:
    from wavetank.serving.adapters.lora_fidelity import JUDGED_SET, configurations

    runs = [each for each in configurations(folder, subset=JUDGED_SET) if each.outcome == "ok"]
    if limit and limit < len(runs):
        runs = [runs[i * len(runs) // limit] for i in range(limit)]
    return tuple(runs)


@lru_cache(maxsize=8192)
def _predicted(system: Any, configuration: Configuration, seed: int) -> dict[str, float]:
    figures: dict[str, float] = system.predict(configuration, seed)
    return figures
