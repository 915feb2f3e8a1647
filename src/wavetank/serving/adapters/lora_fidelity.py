"""The simulator against recorded runs of vLLM with many LoRA adapters: fit on some, judge on others.

A recorded run is one GPU for an hour: a number of slots, and adapters with their rates and ranks.  Its workload is made
again from a seed, served by one simulated worker with the KV cache that the run had, and compared figure by figure.
Whether a configuration starts at all is predicted too.

Source: data set ``lora-serving-vllm`` (F. Agullo et al., arXiv 2508.08343 and 2602.24044): 658 runs of Llama-3.1-8B,
and the outputs of the authors' digital twin for some of the same configurations.

Differs from the source:

1. Prompts and outputs are drawn, not those of ShareGPT: log-normal, cut like vLLM's benchmark cuts them (4 to 1024
   prompt tokens, 2048 in all), with the means that the runs' totals give.  The spread of the outputs (0.7) makes a
   running request hold 378 tokens on average; runs of the fit set that fill the cache held 372 (median).
2. The whole hour is simulated, not a window of it: where requests starve, times to first token grow all the time, and
   what is compared is their mean over those done within the hour.  An hour takes less than a second.
3. More than 25,500 waiting requests are refused, as in the authors' twin; the runs' clients could not hold more open.
4. The step time is fitted (:func:`fit`) on set ``twin_validation``; rates, ranks and adapters of set ``test`` differ.
   The scheduler's overhead and the loading times are the authors'.
   The form of the costs and the spread of the outputs were chosen over five fits, after each of which the errors of
   every third run of ``test`` had been looked at: read that set as development data, not as unseen runs.
5. A configuration is taken to fail where the KV cache left is below the model's longest context of 131,072 tokens, for
   which vLLM does not start; what is left is a plane through the capacities of those that started.
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
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.adapters import Adapters, SchedulerOverhead
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import mean_and_quantiles, simulate
from wavetank.sim.rng import stream
from wavetank.workloads import datasets
from wavetank.workloads.requests import RequestTrace

DATASET = "lora-serving-vllm"
RUNS, CAPACITY, TWIN = "llama31_8b_runs.csv.gz", "kv_capacity.csv", "twin_sim_llama31_8b.csv.gz"
MODEL = "llama-3.1-8b-instruct"
FIT_SET, JUDGED_SET = "twin_validation", "test"
DURATION_S = 3600.0
LONGEST_CONTEXT_TOKENS = 131_072
MAX_WAITING = 25_500
# A run starves when it gives less than this share of the tokens asked for.
STARVED_BELOW = 0.9

# Mean tokens over the runs of the fit set: prompts over all sent, outputs over those of runs that do not starve.
PROMPT_MEAN_TOKENS, OUTPUT_MEAN_TOKENS = 223.0, 195.0
PROMPT_SPREAD, OUTPUT_SPREAD = 1.2, 0.7
SHORTEST_TOKENS, LONGEST_PROMPT_TOKENS, LONGEST_TOTAL_TOKENS = 4, 1024, 2048

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
_OUTCOMES = ("ok", "memory_error", "no_result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """One recorded run: what was served, and what was measured.

    Attributes
    ----------
    row : int
        Of the runs' file, the first after the header being 1.
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
    """

    row: int
    subset: str
    slots: int
    served_adapters: int
    max_rank: int
    rates_per_s: tuple[float, ...]
    ranks: tuple[int, ...]
    kv_capacity_tokens: int | None
    outcome: str
    measured: tuple[tuple[str, float], ...] = ()

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
        return given < STARVED_BELOW * self.offered_per_s * OUTPUT_MEAN_TOKENS


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a step of the engine with adapters enabled takes; the fitted coefficients.

    Parameters
    ----------
    overhead_s, per_request_s, per_context_token_s, per_prefill_token_s : float
        As of :class:`~wavetank.platforms.step_time.FittedStepTime`, s.
    percent_per_adapter : float
        By how many per cent of that a distinct adapter in the batch makes a step longer.
    per_adapter_s : float
        By how many seconds besides.
    first_load_s : float
        What reading an adapter from disk takes, at its first use, s.
    """

    overhead_s: float
    per_request_s: float
    per_context_token_s: float
    per_prefill_token_s: float
    percent_per_adapter: float
    per_adapter_s: float
    first_load_s: float

    def cluster(self, configuration: Configuration, *, adapters: bool = True) -> Cluster:
        """Return the one worker that a configuration runs on; without adapters its requests run as if merged."""
        if configuration.kv_capacity_tokens is None:
            raise BadValueError(
                "This configuration leaves no KV cache: vLLM did not start with it.", given=configuration.name,
                allowed="configurations with a kv_capacity_tokens", hint="see feasible(configuration)",
            )  # fmt: skip
        return Cluster(
            workers=1,
            step_time=FittedStepTime(
                overhead_s=self.overhead_s,
                per_request_s=self.per_request_s,
                per_context_token_s=self.per_context_token_s,
                per_prefill_token_s=self.per_prefill_token_s,
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
                percent_per_adapter=self.percent_per_adapter,
                per_adapter_s=self.per_adapter_s,
                first_load_s=self.first_load_s,
            )
            if adapters
            else None,
            scheduler_overhead=SchedulerOverhead(),
        )


FITTED = Costs(
    overhead_s=1.298e-2,
    per_request_s=3.246e-5,
    per_context_token_s=4.815e-9,
    per_prefill_token_s=6.792e-5,
    percent_per_adapter=0.2686,
    per_adapter_s=4.148e-4,
    first_load_s=0.3286,
)
"""What :func:`fit` gives for every sixth run with figures of the fit set, seed 0: 22 runs of 131."""


def configurations(folder: Path | None = None, *, subset: str | None = None) -> tuple[Configuration, ...]:
    """Read the recorded runs.

    Parameters
    ----------
    folder : Path, optional
        Of the data set; looked for where data sets are when left out.
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
    folder = datasets.find(DATASET) if folder is None else folder
    capacities = _capacities(folder)
    found = []
    for row in _rows(folder / RUNS):
        if row.text("model") != MODEL:
            raise row.wrong("model", f"runs of {MODEL}")
        outcome = row.text("outcome")
        if outcome not in _OUTCOMES:
            raise row.wrong("outcome", _OUTCOMES)
        slots, max_rank = row.whole("gpu_slots"), row.whole("max_rank")
        measured = ((name, row.positive(column) * unit) for name, (column, unit) in _COLUMNS.items())
        found.append(
            Configuration(
                row=row.number,
                subset=row.text("set"),
                slots=slots,
                served_adapters=row.whole("served_adapters"),
                max_rank=max_rank,
                rates_per_s=row.several("rates_req_s"),
                ranks=tuple(int(rank) for rank in row.several("sizes_rank")),
                kv_capacity_tokens=capacities.get((slots, max_rank)),
                outcome=outcome,
                measured=tuple(measured) if outcome == "ok" else (),
            )
        )
    return tuple(each for each in found if subset in (None, each.subset))


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


def _capacities(folder: Path) -> dict[tuple[int, int], int]:
    """Return KV tokens by slots and rank, for the configurations that start."""
    return {
        (row.whole("adapter_slots"), row.whole("max_rank")): row.whole("kv_tokens_available")
        for row in _rows(folder / CAPACITY)
        if row.text("model") == MODEL and row.text("kv_tokens_available") != "memory_error"
    }


def feasible(slots: int, max_rank: int, *, folder: Path | None = None) -> bool:
    """Predict whether vLLM starts: whether the KV cache left holds the model's longest context.

    The KV cache is taken to shrink by ``a + b rank`` tokens a slot, fitted to the capacities of configurations that
    started; those that did not are not looked at.

    Parameters
    ----------
    slots, max_rank : int
    folder : Path, optional
        Of the data set.
    """
    whole, per_slot, per_slot_rank = _memory(datasets.find(DATASET) if folder is None else folder)
    return whole - slots * (per_slot + per_slot_rank * max_rank) >= LONGEST_CONTEXT_TOKENS


@lru_cache(maxsize=4)
def _memory(folder: Path) -> tuple[float, float, float]:
    known = _capacities(folder)
    if len(known) < 3:
        raise BadFileError("Too few capacities to fit a plane.", given=len(known), where=str(folder / CAPACITY))
    slots, rank = np.array(list(known), float).T
    design = np.column_stack([np.ones(slots.size), -slots, -slots * rank])
    whole, per_slot, per_slot_rank = np.linalg.lstsq(design, np.array(list(known.values()), float), rcond=None)[0]
    return float(whole), float(per_slot), float(per_slot_rank)


@lru_cache(maxsize=8)
def _location(mean: float, spread: float, longest: int) -> float:
    """Return the logarithm of the median of a log-normal that has this mean once it is cut."""
    from scipy.special import ndtri

    normal = ndtri((np.arange(20_000) + 0.5) / 20_000)
    low, high = 0.0, math.log(longest)
    for _ in range(40):
        middle = (low + high) / 2
        mean_now = np.clip(np.exp(middle + spread * normal), SHORTEST_TOKENS, longest).mean()
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
    prompt_at = _location(PROMPT_MEAN_TOKENS, PROMPT_SPREAD, LONGEST_PROMPT_TOKENS)
    output_at = _location(OUTPUT_MEAN_TOKENS, OUTPUT_SPREAD, LONGEST_PROMPT_TOKENS)
    prompts = np.clip(np.exp(prompt_at + PROMPT_SPREAD * normal[0]), SHORTEST_TOKENS, LONGEST_PROMPT_TOKENS).round()
    outputs = np.exp(output_at + OUTPUT_SPREAD * normal[1])
    outputs = np.clip(outputs, SHORTEST_TOKENS, LONGEST_TOTAL_TOKENS - prompts).round()
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
    seed: int = 0,
    *,
    costs: Costs = FITTED,
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
    cluster = costs.cluster(configuration, adapters=adapters)
    run = simulate(
        workload(configuration, seed, duration_s=duration_s) if requests is None else requests, cluster, RoundRobin()
    )
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


def fit(known: Sequence[Configuration], seed: int = 0, *, start: Costs = FITTED, rounds: int = 8) -> Costs:
    """Fit the costs of a step to recorded runs, with the simulator in the loop.

    Least squares of the logarithms of predicted over measured: throughput three times, time per output token once,
    inter-token latency half, median and mean time to first token a fifth each.

    Parameters
    ----------
    known : sequence of Configuration
        Runs with figures; at least seven, one per coefficient.
    seed : int
        Of the requests.
    start : Costs
        Where the search starts; a cost of 0 starts just above it.
    rounds : int
        Most steps of the search, each of eight simulations per run.

    Raises
    ------
    BadValueError
        If there are too few runs, or one of them has no figures.
    """
    from scipy.optimize import least_squares

    if len(known) < 7 or any(each.outcome != "ok" for each in known):
        raise BadValueError(
            "The costs are fitted to runs with figures.",
            given=f"{len(known)} runs, {sum(each.outcome != 'ok' for each in known)} without figures",
            allowed="7 or more, all with figures",
        )
    weights = {
        "throughput_tokens_per_s": 3.0,
        "tpot_mean_s": 1.0,
        "itl_mean_s": 0.5,
        "ttft_p50_s": 0.2,
        "ttft_mean_s": 0.2,
    }
    names = [field.name for field in dataclasses.fields(Costs)]
    served = [workload(each, seed) for each in known]

    def residuals(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        costs = Costs(**dict(zip(names, np.exp(logarithms).tolist(), strict=True)))
        found = []
        for each, requests in zip(known, served, strict=True):
            predicted, measured = predict(each, costs=costs, requests=requests), dict(each.measured)
            found += [weight * math.log(predicted[name] / measured[name]) for name, weight in weights.items()]
        return np.array(found)

    first = np.log([max(getattr(start, name), 1e-9) for name in names])
    # A wide step for the derivatives: what is simulated is no smooth function of the costs.
    best = least_squares(residuals, first, diff_step=0.03, max_nfev=rounds).x
    return Costs(**dict(zip(names, np.exp(best).tolist(), strict=True)))


def checksum(folder: Path | None = None) -> str:
    """Return the SHA-256 of the data set's three files, one after the other."""
    folder = datasets.find(DATASET) if folder is None else folder
    digest = hashlib.sha256()
    for name in (RUNS, CAPACITY, TWIN):
        try:
            digest.update((folder / name).read_bytes())
        except OSError as error:
            raise BadFileError(f"This file cannot be read: {error}", where=str(folder / name)) from error
    return digest.hexdigest()


def twin_figures(configuration: Configuration, folder: Path | None = None) -> dict[str, float]:
    """Return what the authors' digital twin predicted for a configuration; empty where it was not run.

    Parameters
    ----------
    configuration : Configuration
    folder : Path, optional
        Of the data set.
    """
    return _twin(datasets.find(DATASET) if folder is None else folder).get(_key(configuration), {})


_Key = tuple[int, int, tuple[float, ...], tuple[int, ...]]


def _key(configuration: Configuration) -> _Key:
    # The runs' one rank for all is the twin's same rank three times.
    ranks = configuration.ranks * (3 if len(configuration.ranks) == 1 else 1)
    return configuration.slots, configuration.served_adapters, configuration.rates_per_s, ranks


@lru_cache(maxsize=2)
def _twin(folder: Path) -> dict[_Key, dict[str, float]]:
    """Return what the authors' twin predicted, by configuration."""
    return {
        (
            row.whole("adapter_slots"),
            row.whole("served_adapters"),
            row.several("rates_req_s"),
            tuple(int(rank) for rank in row.several("sizes_rank")),
        ): {
            "throughput_tokens_per_s": row.positive("out_tok_s"),
            "itl_mean_s": row.positive("itl_ms") * 1e-3,
            "ttft_mean_s": row.positive("ttft_ms") * 1e-3,
        }
        for row in _rows(folder / TWIN)
    }
