"""The simulator against recorded runs of vLLM with many LoRA adapters: fit on some, judge on others.

A recorded run is one GPU for an hour: a number of slots, and adapters with their rates and ranks.  Its workload is made
again from a seed, served by one simulated worker with the KV cache that the run had, and compared figure by figure.
Whether a configuration starts at all is predicted too.

Source: data set ``lora-serving-vllm`` (F. Agullo et al., arXiv 2508.08343 and 2602.24044): 658 runs of Llama-3.1-8B,
and the outputs of the authors' digital twin for some of the same configurations.  A folder of the same form may hold
runs of any model; what differs between models is data (:mod:`wavetank.serving.adapters.lora_models`).

Differs from the source:

1. Prompts and outputs are drawn, not those of ShareGPT: log-normal, cut like vLLM's benchmark cuts them (4 to 1024
   prompt tokens, 2048 in all), with the means that the runs' totals give; some answers are of a few tokens.
2. The whole hour is simulated, not a window of it: where requests starve, times to first token grow all the time, and
   what is compared is their mean over those done within the hour.  An hour takes less than a second.
3. More than 25,500 waiting requests are refused, as in the authors' twin; the runs' clients could not hold more open.
4. The step time is fitted (:func:`fit`) on set ``twin_validation``; rates, ranks and adapters of set ``test`` differ.
   The scheduler's overhead and the loading times are the authors', the time to take in a request is fitted too.
   The form of the costs and the spread of the outputs were chosen over nine fits, after each of which the errors of
   every third or fourth run of ``test`` had been looked at: read that set as development data, not as unseen runs.
5. A configuration is taken to fail where the KV cache left is below the model's longest context, for which vLLM does
   not start; what is left is a plane through the capacities of those that started.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.adapters.lora_models import (
    Costs,
    LoraModel,
    lora_model,
    models_with_lengths,
    shipped_costs,
    with_memory,
)
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.adapters import Adapters, SchedulerOverhead
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import mean_and_quantiles, simulate
from wavetank.sim.rng import stream
from wavetank.workloads import datasets
from wavetank.workloads.requests import RequestTrace

DATASET = "lora-serving-vllm"
# A folder holds NAME_runs.csv.gz, one file or more, kv_capacity.csv, and twin_sim_NAME.csv.gz where a twin was run.
RUNS, CAPACITY, TWIN = "_runs.csv.gz", "kv_capacity.csv", "twin_sim_"
FIT_SET, JUDGED_SET = "twin_validation", "test"
DURATION_S = 3600.0
MAX_WAITING = 25_500
# A run starves when it gives less than this share of the tokens asked for.
STARVED_BELOW = 0.9
# Costs of a model that none ship for are fitted to at most as many runs, evenly spread over the fit set.
FITTED_RUNS, FEWEST_FITTED = 22, 9

# Our name of a metric: the runs' column, and its unit in seconds (1 for rates).
_COLUMNS = {
    "throughput_tokens_per_s": ("out_tok_s", 1.0),
    "requests_per_s": ("req_s", 1.0),
    "ttft_mean_s": ("ttft_mean_ms", 1e-3),
    "ttft_p50_s": ("ttft_p50_ms", 1e-3),
    "ttft_p99_s": ("ttft_p99_ms", 1e-3),
    "tpot_mean_s": ("tpot_mean_ms", 1e-3),
    "tpot_p50_s": ("tpot_p50_ms", 1e-3),
    "tpot_p99_s": ("tpot_p99_ms", 1e-3),
    "itl_mean_s": ("itl_mean_ms", 1e-3),
}
METRICS = tuple(_COLUMNS)
_TOTALS = ("in_tokens", "prompts_sent_expected", "out_tokens", "completed")
_OUTCOMES = ("ok", "memory_error", "no_result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """One recorded run: what was served, and what was measured.

    Attributes
    ----------
    row : int
        Of the runs' file, the first after the header being 1.
    model : LoraModel
    subset : str
        ``twin_validation`` or ``test``.
    slots, served_adapters, max_rank : int
        Slots of the GPU, adapters that requests ask for, rank that every slot has room for.
    rates_per_s, ranks : tuple
        Of the adapters, taken in turn.
    kv_capacity_tokens : int or None
        The KV cache that vLLM had left; None where it did not start.
    outcome : str
        ``ok``, ``memory_error`` or ``no_result``.
    measured : tuple of (str, float)
        Metric and value, for the names of :data:`METRICS`; empty unless ``ok``.
    twin : tuple of (str, float)
        Likewise, what the authors' digital twin predicted; empty where it was not run.
    folder : Path or None
        Of the runs; None for one that was not read.
    """

    row: int
    model: LoraModel
    subset: str
    slots: int
    served_adapters: int
    max_rank: int
    rates_per_s: tuple[float, ...]
    ranks: tuple[int, ...]
    kv_capacity_tokens: int | None
    outcome: str
    measured: tuple[tuple[str, float], ...] = ()
    twin: tuple[tuple[str, float], ...] = ()
    folder: Path | None = None

    @property
    def name(self) -> str:
        """What a table calls it."""
        rates = "/".join(f"{rate:g}" for rate in self.rates_per_s)
        ranks = "/".join(map(str, self.ranks))
        return f"{self.slots} slots, {self.served_adapters} adapters of rank {ranks} at {rates} requests/s"

    @property
    def adapter_rates_per_s(self) -> NDArray[np.float64]:
        """Rate of every adapter, in requests/s."""
        return np.resize(np.array(self.rates_per_s), self.served_adapters)

    @property
    def offered_per_s(self) -> float:
        """Requests asked for per second."""
        return float(self.adapter_rates_per_s.sum())

    @property
    def starved(self) -> bool:
        """Whether the run gave less than nine tenths of the tokens asked for."""
        given = dict(self.measured).get("throughput_tokens_per_s", 0.0)
        return given < STARVED_BELOW * self.offered_per_s * self.model.lengths.output_mean_tokens


def cluster(configuration: Configuration, costs: Costs, *, adapters: bool = True) -> Cluster:
    """Return the one worker that a configuration runs on.

    Parameters
    ----------
    configuration : Configuration
        One with a ``kv_capacity_tokens``.
    costs : Costs
    adapters : bool, default True
        Whether slots and adapters count; without, its requests run as if merged.
    """
    if configuration.kv_capacity_tokens is None:
        raise BadValueError(
            "This configuration leaves no KV cache: vLLM did not start with it.", given=configuration.name,
            allowed="configurations with a kv_capacity_tokens", hint="see feasible(configuration)",
        )  # fmt: skip
    return Cluster(
        workers=1,
        step_time=FittedStepTime(
            overhead_s=costs.overhead_s,
            per_request_s=costs.per_request_s,
            per_context_token_s=costs.per_context_token_s,
            per_prefill_token_s=costs.per_prefill_token_s,
        ),
        max_running=2048,
        max_batched_tokens=2048,
        kv_capacity_tokens=configuration.kv_capacity_tokens,
        # Nobody routes anything.
        refresh_s=3600.0,
        max_waiting=MAX_WAITING,
        adapters=Adapters(
            slots=configuration.slots,
            ranks=configuration.ranks,
            percent=100.0,
            percent_per_adapter=costs.percent_per_adapter,
            # Every slot is as wide as the largest rank, and so is what a batch computes for it.
            per_adapter_s=costs.per_adapter_s + costs.per_adapter_s_per_rank * configuration.max_rank,
            load_s=configuration.model.load_s,
            load_s_per_rank=configuration.model.load_s_per_rank,
            first_load_s_per_rank=costs.first_load_s_per_rank,
        )
        if adapters
        else None,
        scheduler_overhead=SchedulerOverhead(per_arrival_s=costs.per_arrival_s),
    )


def configurations(folder: Path | None = None, *, subset: str | None = None) -> tuple[Configuration, ...]:
    """Read the recorded runs.

    Parameters
    ----------
    folder : Path, optional
        Holds runs in the form of the data set, of one model or several; the data set when left out.
    subset : str, optional
        ``twin_validation`` or ``test``; both when left out.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    BadFileError
        If a file of it is not what it should be; the error names file, row and column.
    BadValueError
        If there is no such subset.
    """
    if subset not in (None, FIT_SET, JUDGED_SET):
        raise BadValueError("There is no such subset of the runs.", given=subset, allowed=(FIT_SET, JUDGED_SET))
    folder = _folder(folder)
    found = [run for file in _run_files(folder) for run in _configurations(file)]
    return tuple(each for each in found if subset in (None, each.subset))


def _folder(folder: Path | None) -> Path:
    return datasets.find(DATASET) if folder is None else folder


def _run_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob(f"*{RUNS}")) if folder.is_dir() else []
    if not files:
        raise BadFileError("There are no runs with adapters in this folder.", given=str(folder), allowed=f"NAME{RUNS}")
    return files


@lru_cache(maxsize=4)
def _configurations(file: Path) -> tuple[Configuration, ...]:
    rows = list(_rows(file))
    names = sorted({row.text("model") for row in rows})
    models = {name: _model_of(name, [row for row in rows if row.text("model") == name], file.parent) for name in names}
    capacities = {name: _capacities(file.parent, name) for name in names}
    twin_file = file.with_name(f"{TWIN}{file.name.removesuffix(RUNS)}.csv.gz")
    # The twin's files do not name the model.
    twin = _twin(twin_file) if len(names) == 1 and twin_file.is_file() else {}
    found = []
    for row in rows:
        outcome = row.text("outcome")
        if outcome not in _OUTCOMES:
            raise row.wrong("outcome", _OUTCOMES)
        slots, max_rank = row.whole("gpu_slots"), row.whole("max_rank")
        measured = ((name, row.positive(column) * unit) for name, (column, unit) in _COLUMNS.items())
        each = Configuration(
            row=row.number,
            model=models[row.text("model")],
            subset=row.text("set"),
            slots=slots,
            served_adapters=row.whole("served_adapters"),
            max_rank=max_rank,
            rates_per_s=row.several("rates_req_s"),
            ranks=tuple(int(rank) for rank in row.several("sizes_rank")),
            kv_capacity_tokens=capacities[row.text("model")].get((slots, max_rank)),
            outcome=outcome,
            measured=tuple(measured) if outcome == "ok" else (),
            folder=file.parent,
        )
        found.append(dataclasses.replace(each, twin=twin.get(_key(each), ())))
    return tuple(found)


def _model_of(name: str, rows: Sequence[_Row], folder: Path) -> LoraModel:
    """Return what a model's runs are simulated with: what ships, and what the runs say themselves."""
    totals = dict.fromkeys(_TOTALS, 0.0)
    known = [row for row in rows if row.text("outcome") == "ok"]
    fitted = [row for row in known if row.text("set") == FIT_SET] or known
    model = lora_model(name, 1.0, 1.0)
    if name not in models_with_lengths():
        for row in fitted:
            for column in _TOTALS:
                totals[column] += row.positive(column)
        if not fitted:
            raise BadFileError(
                f"No run of {name} has figures, so that nothing says how long its requests were.", where=str(folder),
                allowed=f"a run with the outcome ok, or a model that ships: {', '.join(models_with_lengths())}",
            )  # fmt: skip
        model = lora_model(
            name, totals["in_tokens"] / totals["prompts_sent_expected"], totals["out_tokens"] / totals["completed"]
        )
    return with_memory(model, _memory(folder, name) if model.longest_context_tokens else None)


@dataclass(frozen=True)
class _Row:
    """One row of a CSV file, whose cells are asked for by type."""

    path: Path
    number: int
    cells: dict[str, str]

    def wrong(self, column: str, allowed: Any) -> BadFileError:
        return BadFileError(
            "A cell has the wrong content.", given=self.cells.get(column), allowed=allowed,
            where=f"{self.path}, row {self.number}, column {column!r}",
            hint="wavetank data list says whether the files are whole",
        )  # fmt: skip

    def text(self, column: str) -> str:
        if not self.cells.get(column):
            raise self.wrong(column, "a word")
        return self.cells[column]

    def positive(self, column: str) -> float:
        try:
            value = float(self.cells.get(column) or "")
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.wrong(column, "a number above 0")
        return value

    def whole(self, column: str) -> int:
        value = self.positive(column)
        if value != int(value):
            raise self.wrong(column, "a whole number above 0")
        return int(value)

    def several(self, column: str) -> tuple[float, ...]:
        try:
            values = tuple(float(part) for part in self.text(column).split())
        except ValueError:
            values = ()
        if not values or not all(0 < value < math.inf for value in values):
            raise self.wrong(column, "numbers above 0 with spaces between")
        return values


def _rows(path: Path) -> Iterator[_Row]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
            for number, cells in enumerate(csv.DictReader(lines), start=1):
                yield _Row(path, number, {str(name): value or "" for name, value in cells.items() if name})
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadFileError(f"This file cannot be read: {error}", where=str(path)) from error


def _capacities(folder: Path, model: str) -> dict[tuple[int, int], int]:
    """Return KV tokens by slots and rank, for the configurations that start."""
    return {
        (row.whole("adapter_slots"), row.whole("max_rank")): row.whole("kv_tokens_available")
        for row in _rows(folder / CAPACITY)
        if row.text("model") == model and row.text("kv_tokens_available") != "memory_error"
    }


def feasible(configuration: Configuration) -> bool | None:
    """Predict whether vLLM starts: whether the KV cache left holds the model's longest context.

    The KV cache is taken to shrink by ``a + b rank`` tokens a slot, fitted to the capacities of configurations that
    started; those that did not are not looked at.

    Returns
    -------
    bool or None
        None where the model's longest context is not known.
    """
    model = configuration.model
    if model.memory is None or model.longest_context_tokens is None:
        return None
    whole, per_slot, per_slot_rank = model.memory
    left = whole - configuration.slots * (per_slot + per_slot_rank * configuration.max_rank)
    return left >= model.longest_context_tokens


def _memory(folder: Path, model: str) -> tuple[float, float, float]:
    known = _capacities(folder, model)
    if len(known) < 3:
        raise BadFileError(
            f"Too few capacities of {model} to fit a plane.", given=len(known), where=str(folder / CAPACITY)
        )
    slots, rank = np.array(list(known), float).T
    design = np.column_stack([np.ones(slots.size), -slots, -slots * rank])
    whole, per_slot, per_slot_rank = np.linalg.lstsq(design, np.array(list(known.values()), float), rcond=None)[0]
    return float(whole), float(per_slot), float(per_slot_rank)


@lru_cache(maxsize=8)
def _location(mean: float, spread: float, shortest: int, longest: int) -> float:
    """Return the logarithm of the median of a log-normal that has this mean once it is cut."""
    from scipy.special import ndtri

    normal = ndtri((np.arange(20_000) + 0.5) / 20_000)
    low, high = 0.0, math.log(longest)
    for _ in range(40):
        middle = (low + high) / 2
        mean_now = np.clip(np.exp(middle + spread * normal), shortest, longest).mean()
        low, high = (middle, high) if mean_now < mean else (low, middle)
    return low


def workload(configuration: Configuration, seed: int, *, duration_s: float = DURATION_S) -> RequestTrace:
    """Return the requests of a configuration: Poisson arrivals for every adapter, drawn lengths.

    Parameters
    ----------
    configuration : Configuration
    seed : int
        Equal seeds give equal requests; configurations that differ in slots or ranks alone share them.
    duration_s : float
        Arrivals come in this time, s.
    """
    if not 0 < duration_s < math.inf:
        raise BadValueError("A time above 0 is needed.", given=duration_s, where="duration_s")
    rates = configuration.adapter_rates_per_s
    about = (configuration.served_adapters, *configuration.rates_per_s)
    rng = stream(seed, "lora-fidelity", *(str(part) for part in about))
    # Independent Poisson processes together are one, whose arrivals belong to each in proportion to its rate.
    n = max(int(rng.poisson(rates.sum() * duration_s)), 1)
    arrival_s = np.sort(rng.uniform(0.0, duration_s, n))
    adapter = np.searchsorted(np.cumsum(rates) / rates.sum(), rng.random(n), side="right")
    normal = rng.standard_normal((2, n))
    given = configuration.model.lengths
    cut = (given.shortest_tokens, given.longest_prompt_tokens)
    prompt_at = _location(given.prompt_mean_tokens, given.prompt_spread, *cut)
    output_at = _location(given.long_mean_tokens, given.output_spread, *cut)
    prompts = np.clip(np.exp(prompt_at + given.prompt_spread * normal[0]), *cut).round()
    outputs = np.exp(output_at + given.output_spread * normal[1])
    short, place = rng.random((2, n))
    few = given.shortest_tokens * (given.short_longest_tokens / given.shortest_tokens) ** place
    outputs = np.where(short < given.short_share, few, outputs)
    outputs = np.clip(outputs, given.shortest_tokens, given.longest_total_tokens - prompts).round()
    return RequestTrace(
        arrival_s=arrival_s,
        prompt_tokens=prompts.astype(np.int64),
        output_tokens=outputs.astype(np.int64),
        adapter=np.minimum(adapter, rates.size - 1),
        adapter_names=tuple(f"adapter-{i}" for i in range(rates.size)),
        name=configuration.name,
    )


def predict(
    configuration: Configuration,
    seed: int,
    costs: Costs,
    *,
    requests: RequestTrace | None = None,
    duration_s: float = DURATION_S,
    adapters: bool = True,
) -> dict[str, float]:
    """Simulate a configuration and return what its run would have reported.

    Parameters
    ----------
    configuration : Configuration
        One with a ``kv_capacity_tokens``.
    seed : int
        Of the requests.
    costs : Costs
    requests : RequestTrace, optional
        Instead of :func:`workload`, where several configurations share it.
    duration_s : float
        Requests arrive, and those done are counted, in this time, s.
    adapters : bool
        Whether slots and adapters count at all.

    Returns
    -------
    dict
        A value for every one of :data:`METRICS`; of the requests that are done in time, as the runs' tool counts.
        NaN for latencies where none is.
    """
    requests = workload(configuration, seed, duration_s=duration_s) if requests is None else requests
    run = simulate(requests, cluster(configuration, costs, adapters=adapters), RoundRobin())
    done = run.finish_s <= duration_s
    outputs = run.output_tokens[done]
    found = {
        "throughput_tokens_per_s": float(outputs.sum()) / duration_s,
        "requests_per_s": float(done.sum()) / duration_s,
    }
    for name, values in (("ttft", run.ttft_s[done]), ("tpot", run.tpot_s[done])):
        found |= {f"{name}_{figure}_s": value for figure, value in mean_and_quantiles(values, (50, 99)).items()}
    gaps = int((outputs - 1).sum())
    found["itl_mean_s"] = float((run.finish_s - run.first_token_s)[done].sum()) / gaps if gaps else math.nan
    return found


def fit(known: Sequence[Configuration], seed: int = 0, *, start: Costs | None = None, rounds: int = 8) -> Costs:
    """Fit the costs of a step to recorded runs, with the simulator in the loop.

    Least squares of the logarithms of predicted over measured: throughput three times, time per output token once,
    inter-token latency and the 99th percentile of the time per output token half each, median and mean time to first
    token a fifth each.

    Parameters
    ----------
    known : sequence of Configuration
        Runs with figures; at least nine, one per coefficient.
    seed : int
        Of the requests.
    start : Costs, optional
        Where the search starts, the costs that ship when left out; a cost of 0 starts just above it.
    rounds : int
        Most steps of the search, each of nine simulations per run.

    Raises
    ------
    BadValueError
        If there are too few runs, or one of them has no figures.
    """
    from scipy.optimize import least_squares

    if len(known) < FEWEST_FITTED or any(each.outcome != "ok" for each in known):
        raise BadValueError(
            "The costs are fitted to runs with figures.",
            given=f"{len(known)} runs, {sum(each.outcome != 'ok' for each in known)} without figures",
            allowed=f"{FEWEST_FITTED} or more, all with figures",
        )
    weights = {
        "throughput_tokens_per_s": 3.0,
        "tpot_mean_s": 1.0,
        "itl_mean_s": 0.5,
        "ttft_p50_s": 0.2,
        "ttft_mean_s": 0.2,
        "tpot_p99_s": 0.5,
    }
    names = [field.name for field in dataclasses.fields(Costs)]
    served = [workload(each, seed) for each in known]

    def residuals(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        costs = Costs(**dict(zip(names, np.exp(logarithms).tolist(), strict=True)))
        found = []
        for each, requests in zip(known, served, strict=True):
            predicted, measured = predict(each, seed, costs, requests=requests), dict(each.measured)
            found += [weight * math.log(predicted[name] / measured[name]) for name, weight in weights.items()]
        return np.array(found)

    start = start or shipped_costs()
    first = np.log([max(getattr(start, name), 1e-9) for name in names])
    # A wide step for the derivatives: what is simulated is no smooth function of the costs.
    best = least_squares(residuals, first, diff_step=0.03, max_nfev=rounds).x
    return Costs(**dict(zip(names, np.exp(best).tolist(), strict=True)))


def costs_of(configuration: Configuration) -> Costs:
    """Return the costs of a step for a configuration's model: those that ship, else fitted to its runs of the fit set.

    Raises
    ------
    BadValueError
        If no costs ship and there are too few runs to fit them to.
    """
    model = configuration.model
    return model.costs or _costs_fitted(_folder(configuration.folder), model.name)


@lru_cache(maxsize=4)
def _costs_fitted(folder: Path, model: str) -> Costs:
    return fit(runs_to_fit(folder, model))


def runs_to_fit(folder: Path | None, model: str) -> tuple[Configuration, ...]:
    """Return the runs that a model's costs are fitted to: with figures, of the fit set, evenly spread over it.

    Parameters
    ----------
    folder : Path or None
        Where the runs are; the data set for None.
    model : str
        As the runs' files have it.
    """
    known = [
        each for each in configurations(folder, subset=FIT_SET) if each.outcome == "ok" and each.model.name == model
    ]
    return tuple(known[:: -(-len(known) // FITTED_RUNS) or 1])


def checksum(folder: Path | None = None) -> str:
    """Return the SHA-256 of the files of a folder of runs, one after the other in order of their names."""
    folder = _folder(folder)
    digest = hashlib.sha256()
    for file in sorted({*_run_files(folder), folder / CAPACITY, *folder.glob(f"{TWIN}*.csv.gz")}):
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            raise BadFileError(f"This file cannot be read: {error}", where=str(file)) from error
    return digest.hexdigest()


_Key = tuple[int, int, tuple[float, ...], tuple[int, ...]]


def _key(configuration: Configuration) -> _Key:
    # The runs' one rank for all is the twin's same rank three times.
    ranks = configuration.ranks * (3 if len(configuration.ranks) == 1 else 1)
    return configuration.slots, configuration.served_adapters, configuration.rates_per_s, ranks


def _twin(file: Path) -> dict[_Key, tuple[tuple[str, float], ...]]:
    """Return what the authors' twin predicted, by configuration."""
    return {
        (
            row.whole("adapter_slots"),
            row.whole("served_adapters"),
            row.several("rates_req_s"),
            tuple(int(rank) for rank in row.several("sizes_rank")),
        ): (
            ("throughput_tokens_per_s", row.positive("out_tok_s")),
            ("itl_mean_s", row.positive("itl_ms") * 1e-3),
            ("ttft_mean_s", row.positive("ttft_ms") * 1e-3),
        )
        for row in _rows(file)
    }
