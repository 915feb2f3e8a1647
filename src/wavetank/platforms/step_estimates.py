"""Another tool's estimates of step times, to hold ours against: NVIDIA's aiconfigurator.

They are predictions from a database of operators measured on real GPUs, not measurements of engines.  Two defaults of
Wavetank were chosen by them: the roofline's efficiencies, on H100, H200 and A100, and what collectives reach over PCIe,
on prompts of the RTX PRO 6000 with two devices.

Source: data set ``gpu-specs-and-estimates``, made with aiconfigurator 0.12.0.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from wavetank.errors import BadFileError
from wavetank.platforms.step_time import StepTime
from wavetank.workloads import datasets

DATA_SET, FILE = "gpu-specs-and-estimates", "step_estimates.csv.gz"
DEVICES: Mapping[str, str] = MappingProxyType(
    {
        "h100_sxm": "H100-SXM",
        "h200_sxm": "H200-SXM",
        "a100_sxm": "A100-SXM-80GB",
        "l40s": "L40S",
        "rtx_pro_6000_server": "RTXPRO6000",
    }
)
"""The tool's systems by our names of their devices; others of a file are left out."""
MODELS: Mapping[str, str] = MappingProxyType(
    {
        "meta-llama/Meta-Llama-3.1-8B": "Llama-3.1-8B",
        "meta-llama/Meta-Llama-3.1-70B": "Llama-3.1-70B",
        "Qwen/Qwen3-32B": "Qwen3-32B",
    }
)
_COLUMNS = ("system", "model", "phase", "tp", "batch", "context_tokens", "latency_ms")
_PHASES = ("decode_step", "prefill")


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """One estimate.

    Attributes
    ----------
    device, model : str
        As the platforms name them.
    phase : str
        ``"decode_step"``: one token for each of ``batch`` sequences with ``context_tokens`` of context;
        ``"prefill"``: as many prompts of ``context_tokens``.
    tensor_parallel, batch, context_tokens : int
    seconds : float
    """

    device: str
    model: str
    phase: str
    tensor_parallel: int
    batch: int
    context_tokens: int
    seconds: float

    def ratio(self, step_time: StepTime) -> float:
        """Return the step time that a model of ours gives for the same batch, divided by the estimate."""
        if self.phase == "decode_step":
            return step_time.seconds(self.batch, self.batch * self.context_tokens) / self.seconds
        pairs = self.batch * self.context_tokens * (self.context_tokens + 1) // 2
        return step_time.seconds(0, 0, self.batch * self.context_tokens, pairs) / self.seconds


def read_step_estimates(file: str | Path | None = None) -> tuple[StepEstimate, ...]:
    """Read the estimates for devices and models that ship with Wavetank.

    Parameters
    ----------
    file : str or Path, optional
        A ``.csv.gz`` file of the data set's form; the data set's own when left out.

    Returns
    -------
    tuple of StepEstimate
        In order of the file.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    BadFileError
        If the file is damaged; the error names the line.
    """
    path = datasets.find(DATA_SET, FILE) if file is None else Path(file)
    found = []
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
            rows = csv.DictReader(text)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise BadFileError(
                    f"Columns are missing: {', '.join(missing)}.", given=rows.fieldnames or "an empty file",
                    where=str(path),
                )  # fmt: skip
            for number, row in enumerate(rows, start=2):
                if row["system"] in DEVICES and row["model"] in MODELS:
                    found.append(_estimate(row, f"{path}, line {number}"))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise BadFileError(f"The estimates cannot be read: {error}.", given=str(path)) from error
    return tuple(found)


def _estimate(row: Mapping[str, str], where: str) -> StepEstimate:
    try:
        counts = [int(row[name]) for name in ("tp", "batch", "context_tokens")]
        seconds = float(row["latency_ms"]) / 1e3
    except (TypeError, ValueError):
        counts, seconds = [0], math.nan
    if min(counts) < 1 or not 0 < seconds < math.inf or row["phase"] not in _PHASES:
        raise BadFileError(
            "This is not an estimate.",
            given=", ".join(str(row[name]) for name in _COLUMNS),
            allowed=_COLUMNS,
            where=where,
        )
    return StepEstimate(
        device=DEVICES[row["system"]],
        model=MODELS[row["model"]],
        phase=row["phase"],
        tensor_parallel=counts[0],
        batch=counts[1],
        context_tokens=counts[2],
        seconds=seconds,
    )
