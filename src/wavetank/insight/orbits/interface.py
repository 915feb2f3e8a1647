"""What a detector of orbit events gets and gives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.orbits.mechanics import Floats, altitude_km
from wavetank.workloads import datasets
from wavetank.workloads.tle import DAY_NS, Elements, read_manoeuvres, read_tle

DATA_SET = "tle-manoeuvres"
_LOW_KM = 2000.0
LOW, GEOSTATIONARY = "low", "geostationary"
DECAYING, DECAYING_DAILY = "decaying", "decaying-daily"
"""Simulated satellites, with records hours to days apart, or a day."""
SATELLITES = {
    LOW: ("CryoSat-2", "Jason-1", "Jason-2", "SARAL", "Sentinel-3A", "Sentinel-6A", "TOPEX"),
    GEOSTATIONARY: ("Fengyun-2D", "Fengyun-2E", "Fengyun-2H", "Fengyun-4A"),
}
"""Satellites of the data set by orbit."""

BEFORE_NS, AFTER_NS = DAY_NS, 3 * DAY_NS
"""An alarm finds a true time that lies at most three days before it, or one day after it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """The records of one satellite, with what truly happened.

    Parameters
    ----------
    name : str
    elements : Elements
    events_ns : numpy.ndarray of int64
        True times inside the records' span.
    found_ns : int
        How long after an event an alarm still finds it.
    taught_ns : int
        For how long after an event its records are what a detector learns.
    """

    name: str
    elements: Elements
    events_ns: NDArray[np.int64]
    found_ns: int = AFTER_NS
    taught_ns: int = 2 * DAY_NS

    @property
    def low(self) -> bool:
        """Whether the orbit is a low one."""
        return bool(np.median(altitude_km(self.elements)) < _LOW_KM)

    @property
    def days(self) -> float:
        """From the first record to the last."""
        return float(self.elements.epoch_ns[-1] - self.elements.epoch_ns[0]) / DAY_NS

    def near_events(self) -> NDArray[np.bool_]:
        """Return which records, as alarms, find an event."""
        times = self.elements.epoch_ns
        first = np.searchsorted(self.events_ns, times - self.found_ns, "left")
        return first < np.searchsorted(self.events_ns, times + BEFORE_NS, "right")

    def first_after(self, within_ns: int | None = None) -> NDArray[np.bool_]:
        """Return which records come within some time after an event: what a supervised detector learns.

        Parameters
        ----------
        within_ns : int, optional
            By default what the history says.
        """
        times = self.elements.epoch_ns
        first = np.searchsorted(self.events_ns, times - (self.taught_ns if within_ns is None else within_ns), "right")
        return first < np.searchsorted(self.events_ns, times, "right")


Scorer = Callable[[History], Floats]


class OrbitDetector(Protocol):
    """Scores every record of a history: the higher, the surer that an event came before it."""

    alarm_at: float
    """A score above this is an alarm of the detector as it is shipped; NaN where it ships no threshold."""

    def fitted(self, histories: Sequence[History], usable: Sequence[NDArray[np.bool_]], seed: int) -> Scorer:
        """Return what scores, learned from histories.

        Parameters
        ----------
        histories : sequence of History
        usable : sequence of numpy.ndarray of bool
            Of each history: which records may be learned from.
        seed : int
        """


class Unlearned:
    """What detectors share that learn nothing: they score as they are."""

    def scores(self, history: History) -> Floats:
        """Return the score of each record.

        Parameters
        ----------
        history : History
        """
        raise NotImplementedError

    def fitted(self, histories: Sequence[History], usable: Sequence[NDArray[np.bool_]], seed: int) -> Scorer:
        """Return its scores: nothing is learned.

        Parameters
        ----------
        histories, usable, seed
            As the interface says.
        """
        return self.scores


@functools.lru_cache(maxsize=16)
def history(name: str) -> History:
    """Return a satellite of the data set tle-manoeuvres with its true manoeuvres.

    Parameters
    ----------
    name : str

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    """
    (elements,) = read_tle(datasets.find(DATA_SET, f"{name}.tle.gz")).values()
    _, times = read_manoeuvres(datasets.find(DATA_SET, f"manoeuvres_{name}.yaml"))
    inside = (times >= elements.epoch_ns[0]) & (times <= elements.epoch_ns[-1])
    return History(name=name, elements=elements, events_ns=times[inside])
