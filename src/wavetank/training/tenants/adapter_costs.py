"""By how much each further adapter in a batch makes a step longer, fitted to recorded runs of vLLM.

The form is the simulator's: a step of R answers takes ``(c0 + c1 * R) * (1 + a * (adapters - 1))``.  The recorded runs
of data set ``lora-serving-vllm`` give the mean time of an output token, and by Little's law how many answers ran; how
many distinct adapters these had follows from the adapters' rates.  Runs that starve, or whose slots are fewer than the
adapters that would run, are left out.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError
from wavetank.workloads import datasets

DATA_SET = "lora-serving-vllm"
FILE = "llama31_8b_runs.csv.gz"
FIT_SET = "twin_validation"
# What `fitted()` found, in thousandths, rounded: held against it by a test.
FITTED_PERMILLE = 29
_GRID_PERMILLE = np.arange(0.0, 100.0, 0.1)
_STARVED_BELOW = 0.9


class Fit(NamedTuple):
    """What was fitted.

    Attributes
    ----------
    permille : float
        ``a``, in thousandths.
    step_s, answer_s : float
        ``c0`` and ``c1``, s.
    error : float
        Mean relative error of a token's time, over the runs.
    runs : int
    """

    permille: float
    step_s: float
    answer_s: float
    error: float
    runs: int


def distinct(rates: NDArray[np.float64], answers: float) -> float:
    """Return how many distinct adapters a number of answers has on average, where each draws its own by rate.

    Parameters
    ----------
    rates : ndarray of float64
    answers : float
    """
    return float((-np.expm1(-answers * rates / rates.sum())).sum())


def fitted(path: Path | None = None) -> Fit:
    """Fit the cost of adapters.

    Parameters
    ----------
    path : Path, optional
        The recorded runs; those of the data set when left out.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    BadFileError
        If a row is not what it should be, or too few are left.
    """
    answers, adapters, token_s = _runs(path or datasets.find(DATA_SET, FILE))
    best = Fit(0.0, 0.0, 0.0, math.inf, len(answers))
    for permille in _GRID_PERMILLE:
        factor = 1 + permille / 1000 * (adapters - 1)
        # Relative errors: every row over its own time.
        rows = np.column_stack([factor, factor * answers]) / token_s[:, None]
        (step_s, answer_s), *_ = np.linalg.lstsq(rows, np.ones(len(answers)), rcond=None)
        error = float(np.abs(rows @ [step_s, answer_s] - 1).mean())
        if error < best.error:
            best = Fit(float(permille), float(step_s), float(answer_s), error, len(answers))
    return best


def _runs(path: Path) -> tuple[NDArray[np.float64], ...]:
    """Return answers that run, distinct adapters, and the time of a token, s, of the runs that are fitted to."""
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, ValueError) as error:
        raise BadFileError("The recorded runs cannot be read.", given=str(error), where=str(path)) from error
    found = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 1):
        if row.get("set") != FIT_SET or row.get("outcome") != "ok":
            continue
        try:
            rates = np.resize(np.array(row["rates_req_s"].split(), dtype=np.float64), int(row["served_adapters"]))
            token_s, out_per_s = float(row["tpot_mean_ms"]) / 1000, float(row["out_tok_s"])
            asked, done = float(row["prompts_sent_expected"]), float(row["completed"])
            slots = int(row["gpu_slots"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            where = f"{path}, row {number}"
            raise BadFileError("A row of the recorded runs is damaged.", given=repr(error), where=where) from error
        running = out_per_s * token_s
        adapters = distinct(rates, running)
        if done >= _STARVED_BELOW * rates.sum() * float(row["duration_s"]) and adapters <= slots and asked > 0:
            found.append((running, adapters, token_s))
    if len(found) < 4:
        raise BadFileError("Too few of the recorded runs can be fitted to.", given=len(found), allowed="4 or more",
                           where=str(path))  # fmt: skip
    answers, adapters, token = np.array(found).T
    return answers, adapters, token
