"""What CCL-Bench's public rows say of its claims: whether overlap ranks speed, and what frameworks differ by.

Phases are not mixed: only rows of training count.  Speeds are compared between rows of equal work (model, batch,
length, devices), and between all rows of a family by the share of the devices' peak.

Source: "CCL-Bench 1.0: A Trace-Based Benchmark for LLM Infrastructure", arXiv 2605.06544, 2026.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from wavetank.errors import BadFileError
from wavetank.workloads import datasets

DATA_SET, FILE = "ccl-bench-metrics", "rows.csv"
MORE, LESS = "deepseek-v3-16b-torchtitan-ep4-dp2-tp4-perlmutter", "deepseek-v3-16b-torchtitan-ep8-dp8-perlmutter"
"""The two rows of the source's first claim: with more overlap, and with less."""
_WORK = ("model_family", "batch_size", "seq_len", "hardware_model", "total_count")
_COLUMNS = ("workload_name", "phase", "framework", "avg_step_time", "compute_comm_overlap", "mfu", *_WORK)

_VERSION = re.compile(r"-v?[0-9].*")

Row = Mapping[str, str]


def training_rows(file: Path | None = None) -> list[Row]:
    """Return the rows of training with a time of a step.

    Parameters
    ----------
    file : Path, optional
        The data set's own when left out.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    BadFileError
        If it is damaged.
    """
    path = datasets.find(DATA_SET, FILE) if file is None else file
    try:
        with path.open(encoding="utf-8", newline="") as text:
            rows = list(csv.DictReader(text))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFileError(f"The rows cannot be read: {error}.", given=str(path)) from error
    missing = [name for name in _COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise BadFileError(f"Columns are missing: {', '.join(missing)}.", where=str(path), given=f"{len(rows)} rows")
    return [row for row in rows if row["phase"] == "training" and _number(row, "avg_step_time") > 0]


def _number(row: Row, column: str) -> float:
    try:
        return float(row[column])
    except (TypeError, ValueError):
        return math.nan


def family(row: Row) -> str:
    """Return a row's family, written in one way.

    Parameters
    ----------
    row : mapping
    """
    return row["model_family"].lower().replace("_", "-")


def work(row: Row) -> tuple[str, ...]:
    """Return what has to be equal for times to be comparable.

    Parameters
    ----------
    row : mapping
    """
    return (family(row), *(row[name] for name in _WORK[1:]))


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's correlation of ranks; nan where one has no order.

    Parameters
    ----------
    one, other : sequence of float
    """
    ranks = [rankdata(each) - (len(each) + 1) / 2 for each in (one, other)]
    norm = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / norm if norm > 0 else math.nan


def row_figures(rows: Sequence[Row] | None = None) -> dict[str, float]:
    """Return what rows say of the claims; a figure whose rows are missing is left out.

    Parameters
    ----------
    rows : sequence of mapping, optional
        Those of the data set when left out.

    Returns
    -------
    dict of str to float
        ``overlap_ranks_speed``: correlation of ranks of overlap and speed over the DeepSeek rows of the most frequent
        work; ``overlap_ranks_mfu``: of overlap and model FLOPs utilisation over all DeepSeek rows;
        ``more_overlap_slower``: step time of the claim's row with more overlap / with less; ``framework_gap``: the
        largest ratio of the best times of two frameworks at equal work.
    """
    rows = training_rows() if rows is None else rows
    of_family = [row for row in rows if family(row).startswith("deepseek")]
    with_overlap = [row for row in of_family if math.isfinite(_number(row, "compute_comm_overlap"))]
    found: dict[str, float] = {}
    by_work: dict[tuple[str, ...], list[Row]] = {}
    for row in with_overlap:
        by_work.setdefault(work(row), []).append(row)
    if by_work:
        most = max(by_work.values(), key=len)
        found["overlap_ranks_speed"] = rank_correlation(
            [_number(row, "compute_comm_overlap") for row in most], [-_number(row, "avg_step_time") for row in most]
        )
        used = [row for row in with_overlap if math.isfinite(_number(row, "mfu"))]
        found["overlap_ranks_mfu"] = rank_correlation(
            [_number(row, "compute_comm_overlap") for row in used], [_number(row, "mfu") for row in used]
        )
    named = {row["workload_name"]: _number(row, "avg_step_time") for row in rows}
    if MORE in named and LESS in named:
        found["more_overlap_slower"] = named[MORE] / named[LESS]
    best: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        times = best.setdefault(work(row), {})
        name = _VERSION.sub("", row["framework"].lower())
        times[name] = min(times.get(name, math.inf), _number(row, "avg_step_time"))
    gaps = [max(times.values()) / min(times.values()) for times in best.values() if len(times) > 1]
    if gaps:
        found["framework_gap"] = max(gaps)
    return {name: value for name, value in found.items() if math.isfinite(value)}
