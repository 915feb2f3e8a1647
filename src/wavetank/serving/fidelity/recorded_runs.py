"""Recorded runs of real engines: what arrived, how the engine was set up, and when each request's tokens came.

A run is a folder ``<hardware>/<model>`` with ``requests.jsonl.gz`` (one request per line: tokens in and out, arrival,
and the engine's times of queueing, first and last token), ``meta.json`` (the engine's settings),
``cluster_config.json`` (the link between its devices, and how they share the model) and, where another simulator
published its prediction, ``reference_sim_summary.txt``.  Data set ``vllm-layer-profiles`` holds three.  Without the
cluster file, or where it is silent, a run says what was assumed in its place.

Source: J. Cho et al., "LLMServingSim 2.0", ISPASS 2026, ``bench/examples``.

Clocks: arrivals are in the client's time, tokens in the engine's.  The two are aligned by the request that reached the
engine fastest, so what every request spends on its way, tokenisation included, is not part of any figure.  What is left
of a request's way to the scheduler is: TTFT counts from the arrival, as in the simulator, and not from the moment the
scheduler saw the request, as the summaries of the source do.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadTraceError, WavetankError, nearest_of
from wavetank.serving.fidelity.cluster_config import FILE as CLUSTER_FILE
from wavetank.serving.fidelity.cluster_config import ClusterConfig, read_cluster_config
from wavetank.workloads import datasets
from wavetank.workloads.requests import RequestTrace

if TYPE_CHECKING:
    from wavetank.platforms.links import Link
    from wavetank.platforms.step_time import StepTime
    from wavetank.serving.simulator.cluster import Cluster

DATA_SET = "vllm-layer-profiles"
STATISTICS = ("mean", "p50", "p99")
LATENCIES = ("ttft", "tpot", "e2e")
# Fewer have no 99th percentile to speak of.
FEWEST_REQUESTS = 20
_LARGEST_FILE_BYTES = 256 * 2**20
# No engine is as slow, and no two clocks count a run so differently, unless the unit is another one.
_SLOWEST_TOKEN_S, _CLOCKS_APART = 10.0, 300.0
# Beyond these a count is of something else, or damaged.
_MOST_TOKENS, _MOST_PROMPT_TOKENS, _LARGEST_SETTING = 10**7, 10**9, 10**9
_LATEST = 1e18
_TIMES = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_TOKENS = ("input_toks", "output_toks")
_SUMMARY_NAMES = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e", "Mean": "mean", "Median": "p50", "P99": "p99"}
_SUMMARY_LINE = re.compile(r"(TTFT|TPOT|Latency) (Mean|Median|P99) +(\d+(?:\.\d+)?) +(\d+(?:\.\d+)?) ")

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How the recorded engine was set up, as far as a simulation needs it.

    Attributes
    ----------
    workers : int
        Data-parallel engines.
    tensor_parallel : int
    pipeline_parallel : int
        Stages of each engine's layers.
    expert_parallel : int
        Engines that share the experts; 1 when each holds all.
    max_running, max_batched_tokens : int
    kv_capacity_tokens : int or None
        None where the record does not say.
    block_tokens : int
    prefix_caching, schedules_ahead : bool
    memory_share : float
        Share of a device's memory that the engine may use.
    link : Link or None
        Between its devices, from the cluster file; None where the record does not say.
    """

    workers: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    max_running: int = 256
    max_batched_tokens: int = 2048
    kv_capacity_tokens: int | None = None
    block_tokens: int = 16
    prefix_caching: bool = True
    schedules_ahead: bool = True
    memory_share: float = 0.9
    link: Link | None = None

    @property
    def devices(self) -> int:
        """Devices of all engines together."""
        return self.workers * self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """One run of a real engine.

    Attributes
    ----------
    hardware, model : str
        As the platforms name them.
    engine : EngineSettings
    requests : RequestTrace
        In order of arrival, from 0; every prompt has prefix blocks of its own, so that a simulated prefix cache can
        keep what a preempted request leaves behind.
    first_token_s, last_token_s : ndarray of float64, shape (requests,)
        On the same clock.
    published : mapping of str to (float, float)
        Figure, such as ``ttft_mean``, to what was measured and what another simulator predicted, s, both as its
        authors define them.
    checksum : str
        SHA-256 of the requests' file.
    assumed : tuple of str
        What the record does not say, or says twice, and was decided here: whole sentences.
    """

    hardware: str
    model: str
    engine: EngineSettings
    requests: RequestTrace
    first_token_s: _Floats
    last_token_s: _Floats
    published: Mapping[str, tuple[float, float]]
    checksum: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return hardware and model, and how many devices share every layer, or its layers, if several do."""
        degree, stages = self.engine.tensor_parallel, self.engine.pipeline_parallel
        shared = f", tensor parallel {degree}" if degree > 1 else ""
        return f"{self.hardware} {self.model}{shared}" + (f", pipeline of {stages}" if stages > 1 else "")

    @property
    def tensor_parallel(self) -> int:
        """Devices that share every layer."""
        return self.engine.tensor_parallel

    @property
    def devices(self) -> int:
        """Devices of all engines together."""
        return self.engine.devices

    @cached_property
    def ttft_s(self) -> _Floats:
        """Time to first token, from the arrival."""
        return self.first_token_s - self.requests.arrival_s

    @cached_property
    def tpot_s(self) -> _Floats:
        """Time per output token after the first; NaN for requests of one token."""
        return tpot_s(self.first_token_s, self.last_token_s, self.requests.output_tokens)

    @cached_property
    def e2e_s(self) -> _Floats:
        """Last token minus arrival."""
        return self.last_token_s - self.requests.arrival_s

    @cached_property
    def figures(self) -> dict[str, float]:
        """What :func:`latency_figures` says about the run."""
        return latency_figures(self.requests, self.first_token_s, self.last_token_s)

    def cluster(self, step_time: StepTime, *, prefix_caching: bool = True) -> Cluster:
        """Return the simulated counterpart of the engine.

        Parameters
        ----------
        step_time : StepTime
        prefix_caching : bool, default True
            Whether to keep prefixes where the engine did; without, a preempted request computes all its tokens again.
        """
        from wavetank.platforms.memory import kv_capacity_tokens
        from wavetank.serving.simulator.cluster import Cluster

        engine = self.engine
        capacity = engine.kv_capacity_tokens
        if capacity is None:
            capacity = kv_capacity_tokens(
                self.hardware, self.model, engine.tensor_parallel, memory_share=engine.memory_share,
                expert_parallel=engine.expert_parallel, pipeline_parallel=engine.pipeline_parallel,
            )  # fmt: skip
        return Cluster(
            workers=engine.workers,
            group_size=engine.workers,
            step_time=step_time,
            max_running=engine.max_running,
            # A step is a round of the pipeline, in which every micro-batch has its own budget.
            max_batched_tokens=engine.max_batched_tokens * engine.pipeline_parallel,
            kv_capacity_tokens=capacity,
            # vLLM admits to the last block.
            kv_watermark=0.0,
            refresh_s=0.0,
            prefix_caching=prefix_caching and engine.prefix_caching,
        )


def tpot_s(first_token_s: _Floats, last_token_s: _Floats, output_tokens: NDArray[np.int64]) -> _Floats:
    """Return the time per output token after the first, s; NaN for requests of one token."""
    later = output_tokens - 1
    return np.where(later > 0, (last_token_s - first_token_s) / np.maximum(later, 1), np.nan)


def latency_figures(requests: RequestTrace, first_token_s: _Floats, last_token_s: _Floats) -> dict[str, float]:
    """Return the figures by which runs are compared; every request counts.

    Parameters
    ----------
    requests : RequestTrace
    first_token_s, last_token_s : ndarray of float64, shape (requests,)

    Returns
    -------
    dict of str to float
        ``ttft_mean``, ``ttft_p50``, ... ``e2e_p99``, s, and ``throughput``: output tokens per second between the first
        arrival and the last token.
    """
    from wavetank.serving.simulator.simulate import mean_and_quantiles

    values = {
        "ttft": first_token_s - requests.arrival_s,
        "tpot": tpot_s(first_token_s, last_token_s, requests.output_tokens),
        "e2e": last_token_s - requests.arrival_s,
    }
    found: dict[str, float] = {}
    for name, seconds in values.items():
        found |= {f"{name}_{figure}": value for figure, value in mean_and_quantiles(seconds, (50, 99)).items()}
    span_s = float(last_token_s.max() - requests.arrival_s[0])
    found["throughput"] = float(requests.output_tokens.sum()) / span_s if span_s > 0 else math.nan
    return found


def recorded_runs(folder: str | Path | None = None) -> tuple[RecordedRun, ...]:
    """Read every recorded run of a folder.

    Parameters
    ----------
    folder : str or Path, optional
        Holds ``<hardware>/<model>/requests.jsonl.gz``; the runs of data set ``vllm-layer-profiles`` when left out.

    Returns
    -------
    tuple of RecordedRun
        In order of hardware and model.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    BadFileError
        If the folder holds no run, or one of them is incomplete or damaged.
    """
    root = datasets.find(DATA_SET) / "end_to_end" if folder is None else Path(folder).expanduser()
    found = sorted({file.parent for file in root.glob("*/*/requests.jsonl*")}) if root.is_dir() else []
    if not found:
        raise BadFileError(
            "There is no recorded run in this folder.",
            given=str(root),
            allowed="<hardware>/<model>/requests.jsonl.gz",
            hint=f"wavetank data fetch {DATA_SET}" if folder is None else None,
        )
    return tuple(read_recorded_run(place) for place in found)


def read_recorded_run(folder: str | Path) -> RecordedRun:
    """Read one recorded run.

    Parameters
    ----------
    folder : str or Path
        ``<hardware>/<model>`` with ``requests.jsonl.gz`` (or ``.jsonl``) and ``meta.json``; ``cluster_config.json``
        where there is one.

    Raises
    ------
    BadFileError
        If a file is missing, damaged or too short; the error names the line.
    UnknownNameError
        If no shipped model has the folder's name.
    """
    folder = Path(folder)
    file = next((path for path in (folder / "requests.jsonl.gz", folder / "requests.jsonl") if path.is_file()), None)
    if file is None:
        raise BadFileError("The recorded run lacks requests.jsonl.gz.", given=str(folder))
    content = _content(file)
    columns = _columns(content, file)
    engine, assumed = _engine(folder)

    _check_units(columns, file)
    behind = columns["queued_ts"] - columns["arrival_time"]
    order = np.argsort(columns["arrival_time"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    zero = columns["arrival_time"][0] + behind.min()
    # Subtracting the common start first keeps microseconds of Unix times.
    arrival_s = columns["arrival_time"] - columns["arrival_time"][0]
    blocks = -(-columns["input_toks"].astype(np.int64) // engine.block_tokens)
    offsets = np.concatenate(([0], np.cumsum(blocks)))
    try:
        requests = RequestTrace(
            arrival_s=arrival_s,
            prompt_tokens=columns["input_toks"].astype(np.int64),
            output_tokens=columns["output_toks"].astype(np.int64),
            block_ids=np.arange(offsets[-1]),
            block_offsets=offsets,
            block_tokens=engine.block_tokens,
            name=f"{folder.parent.name}/{folder.name}",
        )
    except BadTraceError as error:
        raise BadFileError(error.problem, given=error.given, where=f"{file}, {error.where}") from error
    summary = folder / "reference_sim_summary.txt"
    run = RecordedRun(
        hardware=folder.parent.name,
        model=_model_name(folder),
        engine=engine,
        requests=requests,
        first_token_s=columns["first_token_ts"] - zero,
        last_token_s=columns["last_token_ts"] - zero,
        published=_published(summary) if summary.is_file() else {},
        checksum=hashlib.sha256(content).hexdigest(),
        assumed=assumed,
    )
    _check_figures(run, file)
    return run


def _check_figures(run: RecordedRun, file: Path) -> None:
    """Refuse a run of which no error can be given: of single tokens alone, or in which no time passes."""
    if not (run.requests.output_tokens > 1).any():
        raise BadFileError(
            "No request of the recorded run has a second token: nothing says how long one takes.", where=str(file),
            allowed="one request or more with output_toks of 2 or more",
        )  # fmt: skip
    still = [name for name, value in run.figures.items() if not 0 < value < math.inf]
    if still:
        raise BadFileError(
            "No time passes in the recorded run.", given=f"{', '.join(still)}: 0", where=str(file),
            allowed="times of arrival, first and last token that differ",
        )  # fmt: skip


def _content(file: Path) -> bytes:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError(f"The recorded run cannot be read: {error}.", given=str(file)) from error
    if len(content) > _LARGEST_FILE_BYTES:
        raise BadFileError("The recorded run is too large.", given=str(file), allowed=f"{_LARGEST_FILE_BYTES} bytes")
    return content


def _columns(content: bytes, file: Path) -> dict[str, _Floats]:
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            rows.append(_row(line, f"{file}, line {number}"))
    if len(rows) < FEWEST_REQUESTS:
        raise BadFileError(
            "The recorded run is too short.", given=f"{len(rows)} requests", allowed=f"{FEWEST_REQUESTS} or more",
            where=str(file),
        )  # fmt: skip
    columns = dict(zip((*_TOKENS, *_TIMES), np.array(rows).T, strict=True))
    if columns["input_toks"].sum() > _MOST_PROMPT_TOKENS:
        raise BadFileError(
            "The prompts of the recorded run are too long together.",
            given=f"{columns['input_toks'].sum():,.0f} tokens", allowed=f"{_MOST_PROMPT_TOKENS:,}", where=str(file),
        )  # fmt: skip
    return columns


def _check_units(columns: Mapping[str, _Floats], file: Path) -> None:
    """Refuse times in milliseconds or nanoseconds: of the engine alone, of the client alone, or of both."""
    arrivals_s, queued_s = (float(np.ptp(columns[name])) for name in ("arrival_time", "queued_ts"))
    if min(arrivals_s, queued_s) > 0 and not 1 / _CLOCKS_APART < queued_s / arrivals_s < _CLOCKS_APART:
        raise BadFileError(
            "Client and engine do not count in the same unit.",
            given=f"all arrive within {arrivals_s:g} by arrival_time, within {queued_s:g} by queued_ts",
            allowed="seconds for both", where=str(file),
        )  # fmt: skip
    more = columns["output_toks"] > 1
    token_s = (columns["last_token_ts"] - columns["first_token_ts"])[more] / (columns["output_toks"][more] - 1)
    if token_s.size and float(np.median(token_s)) > _SLOWEST_TOKEN_S:
        raise BadFileError(
            "The recorded times are not in seconds.", given=f"{float(np.median(token_s)):g} a token (median)",
            allowed=f"at most {_SLOWEST_TOKEN_S:g}", where=str(file),
        )  # fmt: skip


def _row(line: bytes, where: str) -> list[float]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"This line is not JSON: {error}.", where=where) from error
    if not isinstance(request, dict):
        raise BadFileError("A request is an object.", given=type(request).__name__, where=where)
    values = []
    for name in (*_TOKENS, *_TIMES):
        value = request.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LATEST:
            raise BadFileError(
                f"A request needs a number {name!r}.", given=value, nearest=nearest_of(name, request), where=where
            )
        if name in _TOKENS and (value < 1 or value != int(value) or value > _MOST_TOKENS):
            raise BadFileError(
                "A request has whole numbers of tokens.", given=f"{name}={value}", allowed=f"1 to {_MOST_TOKENS:,}",
                hint="leave out requests that failed", where=where,
            )  # fmt: skip
        values.append(float(value))
    times = values[len(_TOKENS) + 1 :]
    if any(later < earlier for earlier, later in itertools.pairwise(times)):
        raise BadFileError(
            "A request's times are out of order.", given=times, allowed="queued, scheduled, first token, last token",
            where=where,
        )  # fmt: skip
    return values


def _engine(folder: Path) -> tuple[EngineSettings, tuple[str, ...]]:
    """Return how the engine was set up, and what was assumed; meta.json, which the engine wrote, counts first."""
    file = folder / "meta.json"
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadFileError("The recorded run lacks meta.json.", given=str(folder)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise BadFileError(f"meta.json cannot be read: {error}.", given=str(file)) from error
    given = _table(meta, "engine_kwargs", file)
    cache = _table(meta, "kv_cache", file)
    scheduler = _table(_table(meta, "resolved_config", file), "scheduler_config", file)
    default = EngineSettings()
    beside = folder / CLUSTER_FILE
    config = read_cluster_config(beside) if beside.is_file() else None
    joined = config or ClusterConfig()
    workers = _whole(given, "data_parallel_size", joined.workers, file)
    tensor_parallel = _whole(given, "tensor_parallel_size", joined.tensor_parallel, file)
    sharing = given.get("enable_expert_parallel")
    capacity = _whole(cache, "num_kv_tokens", 0, file, low=0)
    engine = EngineSettings(
        workers=workers,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=_whole(given, "pipeline_parallel_size", joined.pipeline_parallel, file),
        expert_parallel=joined.expert_parallel if sharing is None else workers if sharing is True else 1,
        max_running=_whole(given, "max_num_seqs", default.max_running, file),
        max_batched_tokens=_whole(given, "max_num_batched_tokens", default.max_batched_tokens, file),
        kv_capacity_tokens=capacity or None,
        block_tokens=_whole(cache, "block_size", default.block_tokens, file),
        prefix_caching=cache.get("enable_prefix_caching", default.prefix_caching) is True,
        schedules_ahead=scheduler.get("async_scheduling", default.schedules_ahead) is True,
        memory_share=joined.memory_share or default.memory_share,
        link=joined.link,
    )
    return engine, _assumed(f"{folder.parent.name}/{folder.name}", engine, config)


def _assumed(run: str, engine: EngineSettings, config: ClusterConfig | None) -> tuple[str, ...]:
    said = []
    if config is None or config.link is None:
        lacks = f"has no {CLUSTER_FILE}" if config is None else f"has a {CLUSTER_FILE} without link_bw and link_latency"
        said.append(
            f"{run} {lacks}: its {engine.devices} devices were taken to have the link of their data sheet."
            if engine.devices > 1
            else f"{run} {lacks}: it ran on one device, as meta.json has it, so that no link counts."
        )
    if engine.pipeline_parallel > 1:
        said.append(
            f"{run} is a pipeline of {engine.pipeline_parallel} stages: the step time of one was held against a "
            "simulation of stages and links, never against a recorded run."
        )
    if config is not None:
        for name in ("workers", "tensor_parallel", "pipeline_parallel", "expert_parallel"):
            ours, theirs = getattr(engine, name), getattr(config, name)
            if ours != theirs:
                said.append(f"{run}: {name} is {ours} in meta.json and {theirs} in {CLUSTER_FILE}; meta.json counts.")
        said += [f"{run}: {key} of {CLUSTER_FILE} is not read; one link serves all." for key in config.unread]
    return tuple(said)


def _table(meta: Any, name: str, file: Path) -> dict[str, Any]:
    value = meta.get(name, {}) if isinstance(meta, dict) else None
    if not isinstance(value, dict):
        raise BadFileError(f"{name} is an object.", given=value, where=str(file))
    return value


def _whole(table: Mapping[str, Any], name: str, default: int, file: Path, low: int = 1) -> int:
    value = table.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _LARGEST_SETTING:
        raise BadFileError(
            f"{name} is a whole number of at least {low}.", given=repr(value)[:40],
            allowed=f"{low} to {_LARGEST_SETTING:,}", where=str(file),
        )  # fmt: skip
    return value


def _model_name(folder: Path) -> str:
    from wavetank.platforms.catalog import model, models

    # "Qwen3-30B-A3B-Instruct-2507" has the shape of "Qwen3-30B-A3B".
    alike = [name for name in models() if folder.name == name or folder.name.startswith(f"{name}-")]
    try:
        return max(alike, key=len) if alike else model(folder.name).name
    except WavetankError as error:
        error.where = str(folder)
        raise


def _published(file: Path) -> dict[str, tuple[float, float]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"The published summary cannot be read: {error}.", given=str(file)) from error
    found = {
        f"{_SUMMARY_NAMES[what]}_{_SUMMARY_NAMES[statistic]}": (float(measured_ms) / 1e3, float(predicted_ms) / 1e3)
        for what, statistic, measured_ms, predicted_ms in _SUMMARY_LINE.findall(text)
    }
    missing = {f"{what}_{statistic}" for what in LATENCIES for statistic in STATISTICS} - found.keys()
    if missing:
        raise BadFileError("The published summary lacks figures.", given=sorted(missing), where=str(file))
    return found
