"""Fields of the atmosphere, as samples: winds and geopotential of a month, and coarse fields of another as the aim."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from scipy.io import netcdf_file

from wavetank.errors import BadFileError, BadValueError
from wavetank.sim.rng import stream
from wavetank.workloads import datasets

Floats = NDArray[np.float64]

DATA, FILE = "science-fields", "eraint_uvz.nc"
FIELDS = ("z", "u", "v")
CHANNELS, ROWS, COLUMNS = 9, 241, 480


@functools.cache
def months() -> Floats:
    """Return the recorded fields of two months, each with mean 0 and deviation 1.

    Returns
    -------
    float64 array (months, 9, 241, 480)
        Geopotential and winds to east and north, each on three levels; rows go from north to south.

    Raises
    ------
    DataUnavailableError
        Without the data set ``science-fields``.
    BadFileError
        If the file holds no such fields.
    """
    path = datasets.find(DATA) / FILE
    found = []
    try:
        with netcdf_file(str(path), "r", mmap=False) as file:
            for name in FIELDS:
                packed = file.variables[name]
                numbers = np.asarray(packed.data, np.float64) * packed.scale_factor + packed.add_offset
                # (months, levels, rows, columns)
                found.append(numbers.reshape(2, 3, ROWS, COLUMNS))
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as problem:
        raise BadFileError("The file holds no fields of two months.", given=str(problem), where=str(path)) from None
    joined = np.concatenate(found, 1)
    joined -= joined.mean((2, 3), keepdims=True)
    joined /= joined.std((2, 3), keepdims=True)
    return joined


def waves(seed: int) -> Floats:
    """Return drawn fields of the same shape: sums of waves around the globe.

    Parameters
    ----------
    seed : int
    """
    draws = stream(seed, "waves")
    rows, columns = np.mgrid[0:ROWS, 0:COLUMNS] / COLUMNS * 2 * np.pi
    found = np.zeros((2, CHANNELS, ROWS, COLUMNS))
    for month in found:
        for channel in month:
            for _ in range(4):
                along, across = draws.integers(1, 9, 2)
                channel += draws.normal() * np.sin(along * columns + across * rows + draws.uniform(0, 6.28))
    return found


def sample(source: str, seed: int, rows: int, columns: int, patch: int) -> tuple[Floats, Floats]:
    """Return a window of one month's fields, and means of the other month's over patches of it.

    Parameters
    ----------
    source : str
        ``era-interim`` or ``waves``.
    seed : int
        Where the window lies, and which month comes first.
    rows, columns : int
        Of the window, multiples of ``patch``.
    patch : int

    Raises
    ------
    BadValueError
        For a window that does not fit, or cuts patches.
    """
    if not (0 < rows <= ROWS and 0 < columns <= COLUMNS) or rows % patch or columns % patch:
        raise BadValueError("A window lies within the fields.", given=(rows, columns),
                            allowed=f"multiples of {patch}, at most {ROWS} x {COLUMNS}")  # fmt: skip
    both = waves(seed) if source == "waves" else months()
    draws = stream(seed, "window")
    top, left = int(draws.integers(ROWS - rows + 1)), int(draws.integers(COLUMNS))
    window = np.roll(both, -left, 3)[:, :, top : top + rows, :columns]
    first = int(draws.integers(2))
    coarse = window[1 - first].reshape(CHANNELS, rows // patch, patch, columns // patch, patch).mean((2, 4))
    return np.ascontiguousarray(window[first][None]), coarse[None]


def uneven_cuts(seed: int, rows: int, processes: int, patch: int) -> tuple[int, ...]:
    """Return drawn numbers of rows, from about half to one and a half times as many as even ones.

    Parameters
    ----------
    seed : int
    rows, processes : int
    patch : int
        Parts end where patches do; every process has one.

    Raises
    ------
    BadValueError
        For fewer patches than processes.
    """
    units = rows // patch
    if units < processes:
        raise BadValueError("Every process has a patch of rows.", given=units, allowed=f"{processes} or more")
    shifts = stream(seed, f"cuts of {processes}").uniform(-0.25, 0.25, processes - 1)
    inner = [round((each + 1 + shift) * units / processes) for each, shift in enumerate(shifts.tolist())]
    ends = [0]
    for each, end in enumerate([*inner, units]):
        ends.append(min(max(end, ends[-1] + 1), units - (processes - 1 - each)))
    return tuple((patch * np.diff(ends)).tolist())
