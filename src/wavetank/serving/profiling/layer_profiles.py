"""Published layer profiles of vLLM as a database that is ready: nothing is measured, everything is looked up.

Each layer becomes an operation whose sizes come from the model's shape, so that what two models share is kept once.
Models with experts are left out: their times depend on how many experts a batch touches, which is no size.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from wavetank.errors import BadFileError, BadValueError
from wavetank.platforms.catalog import Model, as_model
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.profiling.database import OperationDatabase, Point, ProfiledModel, Result, conditions_of
from wavetank.serving.profiling.operations import Operation, canonical
from wavetank.serving.profiling.regression import compiled_step_time, latencies
from wavetank.workloads import datasets

DATA_SET = "vllm-layer-profiles"
_TOKS, _REQS = {"NUM_TOKS": 1}, {"NUM_REQS": 1}
_PER_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
_PER_LAYER_IF_PROFILED = {"qk_norm": 1}
_PER_STEP = {"embedding": 1, "final_layernorm": 1}
_PER_SEQUENCE = {"lm_head": 1, "sampler": 1}
_ATTENTION = "attention"


def layer_operations(model: Model, tensor_parallel: int = 1) -> dict[str, Operation]:
    """Return the operations of vLLM's layers of a dense model, by the profile's names."""
    m, k = model, tensor_parallel
    q, kv, ffn = m.heads * m.head_dim // k, m.kv_heads * m.head_dim // k, m.ffn // k

    def linear(into: int, out: int, rows: Mapping[str, int] = _TOKS) -> list[list[object]]:
        return [[dict(rows), into], [out, into]]

    shapes: dict[str, list[list[object]]] = {
        "layernorm": [[_TOKS, m.hidden]], "final_layernorm": [[_TOKS, m.hidden]],
        "qkv_proj": linear(m.hidden, q + 2 * kv),
        "rotary_emb": [[_TOKS, q], [_TOKS, kv]], "o_proj": linear(q, m.hidden), "qk_norm": [[_TOKS, q], [_TOKS, kv]],
        "gate_up_proj": linear(m.hidden, 2 * ffn), "act_fn": [[_TOKS, 2 * ffn]], "down_proj": linear(ffn, m.hidden),
        "embedding": [[m.vocab // k, m.hidden], [_TOKS]], "lm_head": linear(m.hidden, m.vocab // k, _REQS),
        "sampler": [[_REQS, m.vocab]],
        _ATTENTION: [[_TOKS, m.heads // k, m.head_dim], [_TOKS, m.kv_heads // k, m.head_dim]],
    }  # fmt: skip
    return {
        name: Operation(f"vllm.{name}.layer", canonical({"a": [{"t": "bfloat16", "d": dims} for dims in each]}))
        for name, each in shapes.items()
    }


def read_layer_profiles(
    database: OperationDatabase,
    hardware: str,
    model: str | Model,
    tensor_parallel: int = 1,
    *,
    folder: str | Path | None = None,
) -> tuple[ProfiledModel, str]:
    """Put the profile of a dense model on a device into a database, and return the model and its conditions.

    Parameters
    ----------
    database : OperationDatabase
    hardware : str
        The device's folder, such as ``"RTX4090"``.
    model : str or Model
    tensor_parallel : int
        1 or 2; several devices need a link for their step time.
    folder : str or Path, optional
        A folder like data set ``vllm-layer-profiles``, which is taken when left out.

    Raises
    ------
    BadFileError
        If the profile is missing or damaged.
    BadValueError
        If the model has experts.
    """
    shape = as_model(model)
    if shape.experts:
        raise BadValueError("Profiles of models with experts are not read into a database.", given=shape.name,
                            hint="use TableStepTime.from_vllm_profiles")  # fmt: skip
    root = Path(datasets.find(DATA_SET)) if folder is None else Path(folder)
    home = root / hardware / shape.name / f"tp{tensor_parallel}"
    conditions = conditions_of({"device": hardware, "engine": "vLLM 0.19.0", "source": DATA_SET})
    found: dict[str, dict[Point, float]] = {}
    for layer, tokens, time_us in _rows(home, "dense", ("layer", "tokens", "time_us")):
        found.setdefault(layer, {})[Point(tokens=_count(tokens, home))] = _seconds(time_us, home)
    for layer, sequences, time_us in _rows(home, "per_sequence", ("layer", "sequences", "time_us")):
        found.setdefault(layer, {})[Point(requests=_count(sequences, home))] = _seconds(time_us, home)
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    for chunk, past, decodes, context, time_us in _rows(home, _ATTENTION, columns):
        c, p, r, n = (_count(each, home) for each in (chunk, past, decodes, context))
        # The profile counts the context before the newest token; points count it with that one.
        point = Point(chunk=c, past=p, decodes=r, context=n + 1 if r else 0)
        found.setdefault(_ATTENTION, {})[point] = _seconds(time_us, home)
    operations = layer_operations(shape, tensor_parallel)
    per_layer = _PER_LAYER | {name: each for name, each in _PER_LAYER_IF_PROFILED.items() if name in found}
    counts = {name: each * shape.layers for name, each in {**per_layer, _ATTENTION: 1}.items()}
    counts |= _PER_STEP | _PER_SEQUENCE
    for name in counts:
        if name not in found:
            raise BadFileError("The profile lacks a layer.", given=name, where=str(home))
        database.store(operations[name], conditions, {point: _as_result(s) for point, s in found[name].items()})
    linked = ProfiledModel(
        name=shape.name, variant=canonical({"tensor_parallel": tensor_parallel}), step_s=0.0, sequence_s=0.0,
        counts={operations[name]: count for name, count in counts.items()}, collectives={},
    )  # fmt: skip
    database.link(linked, conditions)
    return linked, conditions


def _as_result(seconds: float) -> Result:
    return Result(median_s=seconds, mean_s=seconds, min_s=seconds, max_s=seconds, std_s=0.0, runs=1, spent_s=0.0)


def _rows(home: Path, stem: str, columns: tuple[str, ...]) -> Iterator[list[str]]:
    file = next((home / f"{stem}.csv{end}" for end in (".gz", "") if (home / f"{stem}.csv{end}").is_file()), None)
    if file is None:
        raise BadFileError(f"There is no {stem}.csv.gz of this device and model.", given=str(home))
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as text:
            for row in csv.DictReader(text):
                values = [row.get(column) for column in columns]
                if None in values:
                    raise BadFileError("A line lacks a column.", given=row, allowed=columns, where=str(file))
                yield [str(each) for each in values]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadFileError("The profile cannot be read.", given=str(error), where=str(file)) from error


def _count(text: str, home: Path) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadFileError("This is not a count.", given=text, where=str(home))
    return int(text)


def _seconds(text: str, home: Path) -> float:
    try:
        seconds = float(text) * 1e-6
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadFileError("This is not a time.", given=text, where=str(home))
    return seconds


def layer_step_time(hardware: str, model: str, *, folder: str | Path | None = None) -> TableStepTime:
    """Return the step time of a dense model on one device, by way of a database."""
    with OperationDatabase(":memory:") as database:
        linked, conditions = read_layer_profiles(database, hardware, model, folder=folder)
        fits, measured = latencies(database, linked, conditions)
        return compiled_step_time(linked, fits, measured)


@lru_cache(maxsize=1)
def recorded_errors() -> Mapping[str, tuple[float, float]]:
    """Return |predicted / measured - 1| of mean TTFT and TPOT, for each recorded run of a dense model on one device.

    Nothing is fitted to any run: what the engine does beside its layers counts as an error.

    Raises
    ------
    DataUnavailableError
        If the data set is absent.
    """
    from wavetank.serving.fidelity.predictors import simulate_plainly
    from wavetank.serving.fidelity.recorded_runs import latency_figures, recorded_runs

    found = {}
    for run in recorded_runs():
        if as_model(run.model).experts or run.devices > 1:
            continue
        served = simulate_plainly(run, layer_step_time(run.hardware, run.model))
        predicted = latency_figures(run.requests, served.first_token_s, served.finish_s)
        errors = [abs(predicted[each] / run.figures[each] - 1) for each in ("ttft_mean", "tpot_mean")]
        found[run.name] = (errors[0], errors[1])
    return MappingProxyType(found)
