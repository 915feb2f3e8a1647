"""The places whose scenes are coded: one that Sentinel-2 observed 51 times, and 64 that are generated.

A generated place is a mosaic of parcels, each with a crop whose greenness follows the seasons, a texture of its soil
and a tint of its own; parcels are ploughed, years differ, the sensor has noise, and clouds hide parts.  Every year a
share of the parcels is replaced by those of another mosaic, geometry and texture included: at 1, a new year has
nothing of the old ones.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.sim.rng import stream
from wavetank.training.scenes.interface import Archive, Flags, Floats, Ints
from wavetank.workloads import datasets

DATA = "eo-timeseries"
FILE = "ndvi_dates_00_50.npz"

# The protocol on the real place: dates that a prior may know, and how clouded a date may be that is coded.
FIRST_LATER = 36
CLEAR_ENOUGH = 0.05

PLACES = 64
YEARS = 4
DATES_A_YEAR = 8
_CLASSES = 4
_DECIMALS = 4


class Place(NamedTuple):
    """A place with what is needed to put codecs to the test on it.

    Parameters
    ----------
    archive : Archive
        All dates.
    first_later : int
        Number of the first date that no fixed prior may know.
    coded : tuple of int
        Numbers of the dates that are coded.
    cover : int64 array (rows, columns)
        Class of land cover of each pixel, as of the coded dates.
    """

    archive: Archive
    first_later: int
    coded: tuple[int, ...]
    cover: Ints


def is_here() -> bool:
    """Return whether the real place's data set is on this machine."""
    return datasets.status(DATA).path is not None


@functools.cache
def observed() -> Place:
    """Return the real place: NDVI of 101 by 100 pixels on 51 dates from July 2015 to July 2017.

    Raises
    ------
    DataUnavailableError
        If the data set ``eo-timeseries`` is not on this machine.
    BadFileError
        If its file is damaged.
    """
    path = datasets.find(DATA, FILE)
    try:
        with np.load(path, allow_pickle=False) as file:
            values = np.asarray(file["ndvi"], np.float32)
            clear = np.asarray(file["cloud_mask"]) == 0
            days = np.array(file["timestamps"], "datetime64[D]").astype(np.int64)
            cover = np.asarray(file["lulc"], np.int64)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise BadFileError(
            "The scenes of the data set cannot be read.", given=str(error), where=str(path),
            hint=f"compare it with: wavetank data verify {DATA}",
        ) from error  # fmt: skip
    archive = Archive(values, clear, days)
    coded = tuple(int(each) for each in np.flatnonzero(archive.clouded < CLEAR_ENOUGH) if each >= FIRST_LATER)
    return Place(archive, FIRST_LATER, coded, cover)


def generated(number: int, *, change: float = 0.1, side: int = 96) -> Place:
    """Return a generated place: three years that a prior may know and one of which the clear dates are coded.

    Parameters
    ----------
    number : int
        From 0 to 63.
    change : float
        Share of the parcels that are replaced every year, from 0 to 1.
    side : int
        Rows and columns.

    Raises
    ------
    BadValueError
        If a parameter is out of its range.
    """
    if not 0 <= number < PLACES or not 0 <= change <= 1 or not 16 <= side <= 1024:
        raise BadValueError(
            "There is no such place.", given=f"number {number}, change {change}, side {side}",
            allowed=f"number 0 to {PLACES - 1}, change 0 to 1, side 16 to 1024",
        )  # fmt: skip
    return _generated(number, float(change), side)


@functools.lru_cache(maxsize=8)
def _generated(number: int, change: float, side: int) -> Place:
    values, clear, days = [], [], []
    mosaic = _Mosaic(number, 0, side)
    for year in range(YEARS):
        if year:
            mosaic = mosaic.replaced(_Mosaic(number, year, side), change, stream(number, "replaced", year))
        draws = stream(number, "year", year)
        lift = draws.normal(0.0, 0.02)
        for place in range(DATES_A_YEAR):
            day = int((place + 0.2 + 0.6 * draws.random()) * 365 / DATES_A_YEAR)
            values.append(mosaic.seen(day, lift, draws))
            clear.append(_sky(side, draws))
            days.append(365 * year + day)
    archive = Archive(np.stack(values), np.stack(clear), np.array(days, np.int64))
    first = (YEARS - 1) * DATES_A_YEAR
    coded = tuple(int(each) for each in np.flatnonzero(archive.clouded < CLEAR_ENOUGH) if each >= first)
    return Place(archive, first, coded, mosaic.crop.astype(np.int64))


def _smooth(noise: Floats, radius: int) -> Floats:
    """Return noise averaged over squares, twice, with unit variance."""
    for _ in range(2):
        for axis in (0, 1):
            total = np.zeros_like(noise)
            for step in range(-radius, radius + 1):
                total += np.roll(noise, step, axis)
            noise = total
    scaled: Floats = (noise - noise.mean()) / noise.std()
    return scaled


def _sky(side: int, draws: np.random.Generator) -> Flags:
    """Return what is clear: half of the dates have no cloud, the others some."""
    cover = max(0.0, draws.uniform(-0.6, 0.6))
    field = _smooth(draws.normal(size=(side, side)), 5)
    if cover == 0.0:
        return np.ones((side, side), np.bool_)
    clear: Flags = field < np.quantile(field, 1 - cover)
    return clear


class _Mosaic:
    """Parcels of one year: number, crop, phase, tint and texture of each pixel."""

    def __init__(self, number: int, year: int, side: int) -> None:
        draws = stream(number, "mosaic", year)
        parcels = max(4, side * side // 150)
        rows, columns = draws.uniform(0, side, (2, parcels))
        at = np.arange(side) + 0.5
        far = np.abs(at[:, None, None] - rows) + np.abs(at[None, :, None] - columns)
        self.parcel = far.argmin(2)
        crop = draws.integers(0, _CLASSES, parcels)
        self.crop = crop[self.parcel]
        self.phase = (draws.normal(0.0, 12.0, parcels) + 40.0 * crop)[self.parcel]
        self.tint = draws.normal(0.0, 0.04, parcels)[self.parcel]
        self.ploughed = draws.uniform(0, 730, parcels)[self.parcel]
        self.texture = 0.03 * _smooth(draws.normal(size=(side, side)), 2) + draws.normal(0.0, 0.012, (side, side))

    def replaced(self, other: _Mosaic, change: float, draws: np.random.Generator) -> _Mosaic:
        """Return this mosaic with a share of its parcels replaced by what the other has there."""
        chosen = draws.random(int(self.parcel.max()) + 1) < change
        here = chosen[self.parcel]
        found = object.__new__(_Mosaic)
        for name in vars(self):
            mine, theirs = getattr(self, name), getattr(other, name)
            # Parcels of the other mosaic keep numbers of their own.
            theirs = theirs + (int(self.parcel.max()) + 1 if name == "parcel" else 0)
            setattr(found, name, np.where(here, theirs, mine))
        return found

    def seen(self, day: int, lift: float, draws: np.random.Generator) -> np.ndarray:
        """Return what the sensor sees on a day of the year."""
        season = np.sin(2 * np.pi * (day - 90.0 - self.phase) / 365)
        height = np.array([0.30, 0.22, 0.14, 0.06])[self.crop]
        green = 0.42 + height * season + self.tint + lift + self.texture
        bare = (self.ploughed <= day) & (day < self.ploughed + 45)
        green = np.where(bare, 0.15 + 0.5 * self.texture, green)
        haze = 0.01 * _smooth(draws.normal(size=green.shape), 12)
        noise = draws.normal(0.0, 0.008, green.shape)
        return np.round(np.clip(green + haze + noise, -0.2, 0.95), _DECIMALS).astype(np.float32)
