"""What is summed: fields of the atmosphere that members of an ensemble have, and gradients that layers have.

Fields are those of the data set ``science-fields`` (ERA-Interim: winds and geopotential on three pressure levels in two
months), each member's turned around the globe by an angle drawn for it, so that members are alike and not equal.
Without the data set, waves are drawn.  Gradients are drawn: each layer a matrix of low rank that all ranks have, and
noise of each rank's own, both with tails; scales of layers differ by orders of magnitude.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, DataUnavailableError, unknown_name
from wavetank.sim.rng import stream
from wavetank.workloads import datasets

Floats = NDArray[np.float32]

DATA, FILE = "science-fields", "eraint_uvz.nc"
FIELDS = ("u", "v", "z")
WORKLOADS = (*FIELDS, "gradients")
_GRID = (6, 241, 480)
_LAYER = 512
_RANK = 4


@dataclass(frozen=True, kw_only=True)
class Members:
    """The numbers of every rank.

    Parameters
    ----------
    values : tuple of float32 array (n,)
    shape : tuple of int
        Of each, as a grid.
    spread : float
        Largest less smallest number of all.
    """

    values: tuple[Floats, ...]
    shape: tuple[int, ...]
    spread: float


@functools.cache
def field(name: str) -> Floats:
    """Return a field, levels (and months) first; drawn waves where the data set is absent.

    Parameters
    ----------
    name : str
        ``u``, ``v`` or ``z``.

    Raises
    ------
    UnknownNameError
        If there is no such field.
    BadFileError
        If the file is not as it should be.
    """
    if name not in FIELDS:
        raise unknown_name("field", name, FIELDS)
    try:
        path = datasets.find(DATA, FILE)
    except DataUnavailableError:
        return _waves(FIELDS.index(name))
    return read_field(str(path), name)


def read_field(path: str, name: str) -> Floats:
    """Return a variable of a NetCDF file of format 3, unpacked by its scale and offset, as planes of a grid.

    Parameters
    ----------
    path : str
    name : str

    Raises
    ------
    BadFileError
        If the file cannot be read, or has no such variable of two dimensions or more.
    """
    from scipy.io import netcdf_file

    try:
        with netcdf_file(path, "r", mmap=False) as file:
            packed = file.variables[name]
            raw = np.array(packed.data, np.float64)
            scale = float(getattr(packed, "scale_factor", 1.0))
            offset = float(getattr(packed, "add_offset", 0.0))
    except (OSError, KeyError, ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        raise BadFileError("This file holds no such field.", given=str(error), allowed=f"NetCDF 3 with {name}",
                           where=path) from error  # fmt: skip
    if raw.ndim < 2:
        raise BadFileError("A field has rows and columns.", given=raw.shape, where=path)
    return (raw * scale + offset).astype(np.float32).reshape(-1, *raw.shape[-2:])


def _waves(number: int) -> Floats:
    """Return drawn planes: waves of falling height, and a little noise."""
    draws = stream(number, "waves of a field")
    rows, columns = np.linspace(0, np.pi, _GRID[1]), np.linspace(0, 2 * np.pi, _GRID[2], endpoint=False)
    planes = np.zeros(_GRID)
    for plane in planes:
        for k in range(1, 40):
            height, phase, tilt = draws.normal() * k**-1.5, draws.uniform(0, 6.3), draws.integers(1, 6)
            plane += height * np.cos(k * columns + phase) * np.sin(tilt * rows)[:, None]
        plane += 0.003 * draws.normal(size=plane.shape)
    return (10 * planes).astype(np.float32)


def members(workload: str, size: int, seed: int, count: int = 0) -> Members:
    """Return the numbers of all ranks.

    Parameters
    ----------
    workload : str
        A field, or ``gradients``.
    size : int
        Ranks.
    seed : int
    count : int
        Numbers of each; 0: a whole field, or the gradients of two layers.

    Raises
    ------
    UnknownNameError
        If there is no such workload.
    """
    draws = stream(seed, "members")
    if workload == "gradients":
        return _gradients(size, draws, count or 2 * _LAYER * _LAYER)
    whole = field(workload)
    columns = whole.shape[2]
    turns = draws.integers(0, columns, size)
    shape: tuple[int, ...] = whole.shape
    values = [np.roll(whole, int(turn), axis=2).reshape(-1) for turn in turns]
    if count:
        kept = min(count, whole.size)
        shape = (kept // columns, columns) if kept >= columns else (1, kept)
        values = [each[: int(np.prod(shape))].copy() for each in values]
    return Members(values=tuple(values), shape=shape, spread=_spread(values))


def _gradients(size: int, draws: np.random.Generator, count: int) -> Members:
    values = np.empty((size, count), np.float32)
    for first in range(0, count, _LAYER * _LAYER):
        many = min(_LAYER * _LAYER, count - first)
        scale = 10.0 ** draws.uniform(-4, -2)
        left, right = draws.normal(size=(_LAYER, _RANK)), draws.normal(size=(_RANK, _LAYER))
        common = (left @ right / np.sqrt(_RANK)).reshape(-1)[:many]
        for each in values:
            noise = draws.standard_t(5, size=many)
            each[first : first + many] = scale * (common + noise)
    return Members(values=tuple(values), shape=(count,), spread=_spread(list(values)))


def _spread(values: list[Floats]) -> float:
    return float(max(each.max() for each in values)) - float(min(each.min() for each in values))
