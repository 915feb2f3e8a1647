"""What comes from outside: weather of two climates, and load of three kinds.

Loads are shares of all servers, minute by minute from a Monday at 0:00.  ``generated`` is a weekly profile that an
autoregressive disturbance, level steps and bursts move about (frozen before any controller was written);
``serverless`` is the number of requests to 800 functions over twelve days; one week of a cluster of Alibaba, repeated
for a year, serves the known answers alone: "as last week" foretells it exactly.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import zipfile
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadFileError, unknown_name
from wavetank.insight.facility.site import Floats, wet_bulb_c
from wavetank.sim.rng import stream
from wavetank.workloads import datasets

WEATHER_DATA, LOAD_DATA = "datacentre-load-weather", "carbon-serverless"
CLIMATES = {"phoenix": "weather_Phoenix.csv.gz", "chicago": "weather_ChicagoOHare.csv.gz"}
WEEK_FILE = "Alibaba_CPU_Data_Hourly_1.csv.gz"
COUNTS_FILE = "minute_counts.npz"
HOUR, DAY, WEEK = 60, 1440, 10_080
YEAR_H = 8760
LEAST, MOST = 0.2, 0.7
TRAINING_SHARE = 0.7
# Mean, half the swing of the year, half the swing of the day, all in deg C, and relative humidity in %.
_MADE = {"phoenix": (23.0, 10.0, 7.0, 30.0), "chicago": (10.0, 14.0, 5.0, 70.0)}
_DISTURBED_HOURLY = 0.95
_STEP_EVERY_DAYS, _STEP = 10.0, 0.2
_BURSTS_PER_DAY, _BURST, _BURST_MIN = 1.0, (0.05, 0.2), (10, 60)


class Weather(NamedTuple):
    """A year of hours.

    Attributes
    ----------
    air_c, wet_c : numpy.ndarray of float64, shape (8760,)
        Dry and wet bulb, deg C.
    """

    air_c: Floats
    wet_c: Floats

    def minutes(self, first: int, count: int) -> tuple[Floats, Floats]:
        """Return air and wet bulb of minutes, straight between hours; the year begins again after its end.

        Parameters
        ----------
        first : int
            Minute of the year.
        count : int
        """
        at = (first + np.arange(count)) / HOUR
        hour = at.astype(np.int64)
        part = at - hour
        here, after = hour % YEAR_H, (hour + 1) % YEAR_H
        air, wet = self.air_c, self.wet_c
        return air[here] + part * (air[after] - air[here]), wet[here] + part * (wet[after] - wet[here])


def weather_is_here() -> bool:
    """Return whether the real weather is on this machine."""
    return not datasets.status(WEATHER_DATA).missing


def serverless_is_here() -> bool:
    """Return whether the counted requests are on this machine."""
    status = datasets.status(LOAD_DATA)
    return status.path is not None and COUNTS_FILE not in status.missing


@functools.cache
def weather(climate: str) -> Weather:
    """Return a typical year of a climate.

    Parameters
    ----------
    climate : str
        One of CLIMATES.

    Raises
    ------
    DataUnavailableError
    BadFileError
    """
    if climate not in CLIMATES:
        raise unknown_name("climate", climate, CLIMATES)
    air, humidity = _columns(CLIMATES[climate], "dry_bulb_c", "rel_humidity_pct")
    return Weather(air, wet_bulb_c(air, humidity))


@functools.cache
def made_weather(climate: str) -> Weather:
    """Return a year of sines that is about as warm as a climate, where the real one is not here.

    Parameters
    ----------
    climate : str
    """
    if climate not in _MADE:
        raise unknown_name("climate", climate, _MADE)
    mean, year, day, humidity = _MADE[climate]
    hour = np.arange(YEAR_H)
    air = mean - year * np.cos(2 * np.pi * hour / YEAR_H) - day * np.cos(2 * np.pi * (hour - 3) / 24)
    return Weather(air, wet_bulb_c(air, np.full(YEAR_H, humidity)))


@functools.cache
def repeated_week() -> Floats:
    """Return the year of hourly loads that repeats one week of a cluster of Alibaba, shape (8760,)."""
    (load,) = _columns(WEEK_FILE, "cpu_load")
    return load


@functools.cache
def requests() -> tuple[Floats, int]:
    """Return the requests of all functions in each minute of twelve days, and how many minutes are for training."""
    path = datasets.find(LOAD_DATA, COUNTS_FILE)
    try:
        with np.load(path) as kept:
            counts = kept["counts"].sum(axis=0, dtype=np.float64)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadFileError("These are no counts of requests.", given=str(error), where=str(path),
                           hint=f"wavetank data verify {LOAD_DATA}") from error  # fmt: skip
    return counts, int(TRAINING_SHARE * counts.size) // HOUR * HOUR


@functools.cache
def serverless_load() -> tuple[Floats, int]:
    """Return loads of twelve days in minutes, and how many of them are for training.

    Requests of all functions, scaled so that minutes of the training part reach from 0.2 to 0.7.
    """
    counts, training = requests()
    share = (counts - counts[:training].min()) / np.ptp(counts[:training])
    return np.clip(LEAST + (MOST - LEAST) * share, 0.02, 0.98), training


def profile(minutes: int) -> Floats:
    """Return the generator's weekly profile: low at night and on the last two days of a week.

    Parameters
    ----------
    minutes : int
    """
    at = np.arange(minutes)
    day = at // DAY % 7
    hour = at % DAY / HOUR
    wave = 0.45 - 0.16 * np.cos(2 * np.pi * (hour - 3) / 24) - 0.05 * np.cos(4 * np.pi * (hour - 2) / 24)
    return np.asarray(np.where(day >= 5, 0.75, 1.0 + 0.03 * (day - 2)) * wave)


def generated_load(minutes: int, noise: float, seed: int) -> Floats:
    """Return a generated load.

    Parameters
    ----------
    minutes : int
    noise : float
        Standard deviation of the disturbance, a share; it forgets with 0.95 an hour.  At 0 there are neither level
        steps nor bursts: each week is the last one again.
    seed : int
    """
    load = profile(minutes)
    if noise > 0:
        draws = stream(seed, "facility", "load")
        keep = _DISTURBED_HOURLY ** (1 / HOUR)
        shocks = draws.normal(size=minutes) * np.sqrt(1 - keep * keep)
        shocks[0] /= np.sqrt(1 - keep * keep)
        load = load * (1 + noise * _faded(shocks, keep))
        load = load * _levels(minutes, draws) * _bursts(minutes, draws)
    return np.clip(load, 0.02, 0.98)


def _faded(shocks: Floats, keep: float) -> Floats:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -keep], shocks), np.float64)


def _levels(minutes: int, draws: np.random.Generator) -> Floats:
    level, out, at = 1.0, np.ones(minutes), 0
    while True:
        at += 1 + int(draws.exponential(_STEP_EVERY_DAYS * DAY))
        if at >= minutes:
            return out
        level = 1.0 if level != 1.0 else float(draws.choice((1 - _STEP, 1 + _STEP)))
        out[at:] = level


def _bursts(minutes: int, draws: np.random.Generator) -> Floats:
    out = np.ones(minutes)
    for at in np.flatnonzero(draws.random(minutes) < _BURSTS_PER_DAY / DAY):
        out[at : at + int(draws.integers(*_BURST_MIN))] *= 1 + draws.uniform(*_BURST)
    return out


def _columns(file: str, *names: str) -> list[Floats]:
    path = datasets.find(WEATHER_DATA, file)
    try:
        rows = list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))[:YEAR_H]
        found = [np.array([float(row[name]) for row in rows]) for name in names]
    except (OSError, EOFError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadFileError("This is no file of hours.", given=str(error), where=str(path),
                           hint=f"wavetank data verify {WEATHER_DATA}") from error  # fmt: skip
    if any(each.size < YEAR_H or not np.isfinite(each).all() for each in found):
        raise BadFileError("A year has 8,760 hours, each with a figure.", given=len(rows), where=str(path))
    return found
