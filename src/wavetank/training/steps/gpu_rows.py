"""Training steps that others have measured on GPUs: rows of the data set ``ccl-bench-metrics``.

A row is a model, a batch, a plan of parallelism, a machine, and the time of a step.  Rows of phases other than training
are left out, and so are machines and models without figures in :mod:`wavetank.platforms`, and context parallelism.

Source: "CCL-Bench 1.0: A Trace-Based Benchmark for LLM Infrastructure", arXiv 2605.06544, 2026.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from wavetank.errors import BadFileError, BadValueError
from wavetank.workloads import datasets

DATA_SET, FILE = "ccl-bench-metrics", "rows.csv"
MODELS: Mapping[str, str] = MappingProxyType({
    "llama-3.1-8b": "Llama-3.1-8B", "deepseek-v3-16b": "DeepSeek-V2-Lite", "deepseek-v3-236b": "DeepSeek-V2",
})  # fmt: skip
"""Our names of the rows' models: TorchTitan's sizes of DeepSeek-V3 have the shapes of DeepSeek-V2."""
DEVICES: Mapping[str, str] = MappingProxyType({"nvidia_a100": "A100-SXM-80GB"})
"""Ours of the rows' devices; rows do not say how much memory they have, and it is not asked for."""
_COLUMNS = (
    "workload_name", "model_family", "phase", "batch_size", "seq_len", "hardware_model", "total_count",
    "count_per_node", "bandwidth_scaleout", "bandwidth_scaleup", "tp", "pp", "pp_mb", "dp_replicate", "dp_shard", "ep",
    "cp", "avg_step_time",
)  # fmt: skip
_BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True, kw_only=True)
class GpuRow:
    """One measured step.

    Parameters
    ----------
    name, model, device : str
        The row's name; model and device as the platforms name them.
    batch, tokens : int
        Sequences of a step, over all ranks, and tokens of each.
    ranks, node : int
        Devices in all, and of a node.
    tensor, stages, replicas, shards, experts : int
        Ranks that divide matrices, stages of the pipeline, replicas that hold all weights, ranks that divide weights
        and optimiser states among them, and ranks that divide the experts of a layer.
    micro : int
        Sequences of a microbatch.
    node_bytes_per_s, network_bytes_per_s : float
        Of a device to others of its node, and to other nodes.
    step_s : float
        Measured, s.

    Raises
    ------
    BadValueError
        If the numbers do not fit each other.
    """

    name: str
    model: str
    device: str
    batch: int
    tokens: int
    ranks: int
    node: int
    tensor: int
    stages: int
    replicas: int
    shards: int
    experts: int
    micro: int
    node_bytes_per_s: float
    network_bytes_per_s: float
    step_s: float

    def __post_init__(self) -> None:
        wholes = (
            self.batch, self.tokens, self.ranks, self.node, self.tensor, self.stages, self.replicas, self.shards,
            self.experts, self.micro,
        )  # fmt: skip
        reals = (self.node_bytes_per_s, self.network_bytes_per_s, self.step_s)
        if min(wholes) < 1 or not all(0 < each < math.inf for each in reals):
            raise BadValueError("A row has numbers above 0.", given=self.name)
        if (
            self.tensor * self.stages * self.replicas * self.shards != self.ranks
            or (self.ranks > self.node and self.ranks % self.node)
            or self.batch % (self.replicas * self.shards * self.micro)
            or self.tensor * self.shards % self.experts
        ):
            raise BadValueError("The plan of a row does not divide its ranks and its batch.", given=self.name)

    @property
    def microbatches(self) -> int:
        """Microbatches that go through a pipeline in a step."""
        return self.batch // (self.replicas * self.shards * self.micro)

    @property
    def configuration(self) -> tuple[object, ...]:
        """All that a prediction may look at: not the name, and not the measured time."""
        return (
            self.model, self.device, self.batch, self.tokens, self.ranks, self.node, self.tensor, self.stages,
            self.replicas, self.shards, self.experts, self.micro, self.node_bytes_per_s, self.network_bytes_per_s,
        )  # fmt: skip


def read_gpu_rows(file: str | Path | None = None) -> tuple[GpuRow, ...]:
    """Read the training rows whose model and device ship with Wavetank.

    Parameters
    ----------
    file : str or Path, optional
        A CSV file of the data set's form; the data set's own when left out.

    Returns
    -------
    tuple of GpuRow
        In order of the file.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    BadFileError
        If the file is damaged; the error names the line.
    """
    path = datasets.find(DATA_SET, FILE) if file is None else Path(file)
    try:
        with path.open(encoding="utf-8", newline="") as text:
            rows = csv.DictReader(text)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise BadFileError(f"Columns are missing: {', '.join(missing)}.", where=str(path),
                                   given=rows.fieldnames or "an empty file")  # fmt: skip
            found = [_row(row, f"{path}, line {rows.line_num}") for row in rows if _known(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFileError(f"The rows cannot be read: {error}.", given=str(path)) from error
    return tuple(found)


def _family(row: Mapping[str, str]) -> str:
    return (row["model_family"] or "").lower().replace("_", "-")


def _known(row: Mapping[str, str]) -> bool:
    return (
        row["phase"] == "training" and row["hardware_model"] in DEVICES and _family(row) in MODELS
        and row["cp"] in ("", "1")
    )  # fmt: skip


def _row(row: Mapping[str, str], where: str) -> GpuRow:
    def whole(column: str, otherwise: int | None = None) -> int:
        return otherwise if row[column] == "" and otherwise is not None else int(row[column])

    try:
        replicas, shards, batch = whole("dp_replicate", 1), whole("dp_shard", 1), whole("batch_size")
        stages = whole("pp", 1)
        # Without a pipeline a rank's sequences go through the model together.
        micro = whole("pp_mb") if stages > 1 else batch // max(replicas * shards, 1)
        return GpuRow(
            name=row["workload_name"], model=MODELS[_family(row)], device=DEVICES[row["hardware_model"]], batch=batch,
            tokens=whole("seq_len"), ranks=whole("total_count"), node=whole("count_per_node"), tensor=whole("tp", 1),
            stages=stages, replicas=replicas, shards=shards, experts=whole("ep", 1), micro=micro,
            node_bytes_per_s=float(row["bandwidth_scaleup"]) * _BYTES_PER_GBIT,
            network_bytes_per_s=float(row["bandwidth_scaleout"]) * _BYTES_PER_GBIT, step_s=float(row["avg_step_time"]),
        )  # fmt: skip
    except (TypeError, ValueError, BadValueError) as error:
        raise BadFileError("This is no row of a training step.", given=str(error), where=where) from error
