"""The histories that are forecast and taken apart: cold starts of AWS Lambda, and series whose parts are known.

A generated series has a slow trend, a weekly and a quarterly cycle, one level shift, gaps and noise with heavy tails;
what was planted is kept beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream
from wavetank.workloads import datasets
from wavetank.workloads.series import Regular, on_grid, read_series, regular

DATA = "lambda-cold-starts"
FILE = "lambda_cold_starts.csv.gz"
COLUMN = "avg_cold_start_ms"
WEEK, QUARTER = 7.0, 91.0
_HEAVY = 3.0


class Planted(NamedTuple):
    """A generated series and what is in it.

    Parameters
    ----------
    series : Regular
    periods : tuple of float
        In steps.
    change : int
        Slot at which the new level begins; -1 for none.
    """

    series: Regular
    periods: tuple[float, ...]
    change: int


def is_here() -> bool:
    """Return whether the real histories are on this machine."""
    return datasets.status(DATA).path is not None


@functools.cache
def observed(column: str = COLUMN) -> tuple[Regular, ...]:
    """Return the 88 real histories of a column, each on a grid of days.

    Parameters
    ----------
    column : str
        Of the data set's file.

    Raises
    ------
    DataUnavailableError
        If the data set ``lambda-cold-starts`` is not on this machine.
    """
    path = datasets.find(DATA, FILE)
    found = read_series(path, value=(column,), group=("runtime", "arch", "memory_mb"))
    return tuple(on_grid(each) for each in found)


def runtimes() -> tuple[str, ...]:
    """Return the runtimes of the real histories in alphabetical order."""
    return tuple(sorted({runtime_of(each) for each in observed()}))


def scored() -> tuple[str, ...]:
    """Return the runtimes by which forecasters are judged: every other one; the rest gave our settings."""
    return runtimes()[::2]


def runtime_of(series: Regular) -> str:
    """Return the runtime that a real history's name begins with.

    Parameters
    ----------
    series : Regular
    """
    return series.name.rsplit(" ", 2)[0]


def of_runtime(runtime: str, column: str = COLUMN) -> tuple[Regular, ...]:
    """Return the eight histories of a runtime.

    Parameters
    ----------
    runtime : str
    column : str

    Raises
    ------
    BadValueError
        If there is no such runtime.
    """
    found = tuple(each for each in observed(column) if runtime_of(each) == runtime)
    if not found:
        raise BadValueError("There is no such runtime.", given=runtime, allowed=runtimes())
    return found


def planted(
    seed: int, *, days: int = 900, noise: float = 0.03, week: float = 0.03, quarter: float = 0.05, shift: float = 0.2,
    gaps: float = 0.1,
) -> Planted:  # fmt: skip
    """Return a generated history.

    Parameters
    ----------
    seed : int
    days : int
    noise : float
        Standard deviation of the logarithm's noise, which is of Student's t with three degrees of freedom.
    week, quarter : float
        Amplitudes of the cycles of 7 and 91 days, as shares of the value; 0 for none.
    shift : float
        By what share the level rises, in the middle third of the days; 0 for none.
    gaps : float
        Share of the days that are missing, a third of them in one gap.
    """
    if days < 1 or not 0 <= gaps < 1 or not math.isfinite(noise) or noise < 0:
        raise BadValueError("A history has days, noise from 0 on and fewer gaps than days.", given=(days, noise, gaps))
    rng = stream(seed, "planted series")
    day = np.arange(days, dtype=np.float64)
    heavy = rng.standard_t(_HEAVY, days) / math.sqrt(_HEAVY / (_HEAVY - 2.0))
    x = math.log(200.0) + noise * heavy
    x += 0.1 * rng.uniform(-1, 1) * np.sin(np.pi * day / days)
    for period, amplitude in ((WEEK, week), (QUARTER, quarter)):
        x += amplitude * np.sin(2.0 * np.pi * (day / period + rng.uniform()))
    change = int(rng.integers(days // 3, 2 * days // 3)) if shift else -1
    if shift:
        x += math.log1p(shift) * (day >= change)
    missing = rng.random(days) < gaps * 2.0 / 3.0
    first = int(rng.integers(0, days))
    # The long gap leaves the shift alone: nobody could say on which of its days the level rose.
    last = first + round(gaps * days / 3.0)
    if not (change >= 0 and first - 1 <= change <= last):
        missing[first:last] = True
    if change >= 0:
        missing[change - 1 : change + 1] = False
    return Planted(
        regular(np.where(missing, np.nan, np.exp(x)), name=f"planted {seed}"),
        tuple(each for each, size in ((WEEK, week), (QUARTER, quarter)) if size),
        change,
    )


def noise_only(seed: int, *, days: int = 900, gaps: float = 0.1) -> Regular:
    """Return a history that is normal noise around a constant, with single days missing.

    Parameters
    ----------
    seed : int
    days : int
    gaps : float
        Share of the days that are missing.
    """
    rng = stream(seed, "noise series")
    x = math.log(200.0) + 0.03 * rng.standard_normal(days)
    return regular(np.where(rng.random(days) < gaps, np.nan, np.exp(x)), name=f"noise {seed}")


def within(found: Sequence[float], of: float, share: float) -> bool:
    """Return whether one of the found figures is within a share of another.

    Parameters
    ----------
    found : sequence of float
    of : float
    share : float
    """
    return any(abs(each - of) <= share * of for each in found)
