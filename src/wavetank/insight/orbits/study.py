"""Study ``orbit-events``: which detector finds the true manoeuvres of satellites, at equal false alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.scoreboard import AlarmScore, Event, alarm_score
from wavetank.insight.orbits.decays import decaying
from wavetank.insight.orbits.interface import (
    BEFORE_NS,
    DATA_SET,
    DECAYING,
    DECAYING_DAILY,
    GEOSTATIONARY,
    LOW,
    SATELLITES,
    History,
    history,
)
from wavetank.insight.orbits.mechanics import DAY_S, Floats
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets

_RATES = (0.3, 1.0, 3.0)
_YEAR_DAYS = 365.25
# Alarms that are no farther apart are one false alarm.
_WITHIN_S = 3 * DAY_S
_BLOCK = 25
_SIMULATED = 40


@dataclass(frozen=True, kw_only=True)
class OrbitEvents(Study):
    """Detectors score every record of seven satellites in low orbits, or four in geostationary ones, whose true times
    of manoeuvres are known.  Every detector's threshold is the one at which it has the same number of false alarms per
    satellite and year, over all satellites together; then its recall counts.

    An alarm finds a manoeuvre that lies at most three days before it or one day after it.  Satellites are split into
    parts at random; each is scored by what was learned from the other part, so that no detector learns from a satellite
    on which it is judged.  With ``split=window`` single windows are left out in place of satellites, as the paper did.

    With ``orbits=decaying`` forty satellites are simulated, two of three of which sink from some day on; an alarm finds
    that within twenty days.  With ``orbits=decaying-daily`` their records are a day apart, so that times say nothing.
    """

    name: ClassVar[str] = "orbit-events"
    baseline: ClassVar[str] = "robust-axis-rule"
    primary: ClassVar[str] = "recall"
    exact: ClassVar[bool] = False
    default_seeds: ClassVar[int] = 5
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("recall", "", "higher", "measured", "true manoeuvres that an alarm found / all, at the threshold with "
               "the wished false alarms per satellite and year"),
        Metric("false_alarms_per_year", "", "", "measured", "false alarms per satellite and year at that threshold; "
               "alarms of a satellite within three days are one", words="false alarms per satellite and year"),
        Metric("time_to_locate_d", "d", "", "measured", "median time from a manoeuvre that was found to its first "
               "alarm; negative where an alarm up to a day before it counts"),
        Metric("shipped_recall", "", "", "measured", "recall at the detector's own threshold"),
        Metric("shipped_precision", "", "", "measured", "records above its own threshold that find a manoeuvre / all"),
        Metric("shipped_false_alarms_per_year", "", "", "measured", "false alarms per satellite and year at its own "
               "threshold", words="false alarms per satellite and year as shipped", table=False),
        Metric("shipped_alarms", "", "higher", "counted", "records above its own threshold", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Manoeuvres found by false alarms", y="recall", by="allowed_per_year", log="x",
              says="Recall at the same false alarms per satellite and year."),
        Chart("bars", "Manoeuvres found by satellite", y="recall", by="satellite",
              says="At one threshold for all satellites."),
    )  # fmt: skip

    orbits: str = setting(
        "low", says="which satellites; those that decay are simulated",
        choices=(LOW, GEOSTATIONARY, DECAYING, DECAYING_DAILY),
    )  # fmt: skip
    noise: float = setting(10.0, says="noise of satellites that are simulated, in that of real ones", low=0, high=1000)
    rate: float = setting(1.0, says="false alarms per satellite and year that are allowed", low=0.01, high=100)
    folds: int = setting(2, says="parts of the split", low=2, high=7)
    split: str = setting(
        "satellite", says="what is held out: whole satellites, or windows of 25 records, whose neighbours are learned",
        choices=("satellite", "window"),
    )  # fmt: skip

    def check(self) -> None:
        """Refuse a machine without the data."""
        for name in self._names():
            datasets.find(DATA_SET, f"{name}.tle.gz")

    def data(self) -> Mapping[str, str]:
        """Return the checksums of the satellites' records."""
        wanted = {f"{name}.tle.gz" for name in self._names()}
        return {file.path: file.sha256 for file in datasets.entry(DATA_SET).files if file.path in wanted}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        note = (
            "Detectors with medians around a record see the records after it; the transformer and the filters do not.",
        )
        leak = (
            "Windows were held out, not satellites: learned detectors saw the neighbours of what they are judged on.",
        )
        planted = (
            "Decay is simulated: orbits that were held fall as drag has it, with noise of real satellites, magnified. "
            "The elements give no rate of the mean motion, as the paper's small models see none.",
        )
        return note + (() if self.split == "satellite" else leak) + (planted if self._simulated else ())

    @property
    def _simulated(self) -> bool:
        return self.orbits in (DECAYING, DECAYING_DAILY)

    def _names(self) -> tuple[str, ...]:
        """Return the real satellites: those of the question, or whose noise is copied."""
        return SATELLITES[LOW if self._simulated else self.orbits]

    def histories(self, seed: int) -> list[History]:
        """Return the satellites.

        Parameters
        ----------
        seed : int
            Of those that are simulated.
        """
        real = [history(name) for name in self._names()]
        if not self._simulated:
            return real
        return decaying(seed, real, _SIMULATED, noise=self.noise, regular=self.orbits == DECAYING_DAILY)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Score all satellites, each by what was learned elsewhere, and judge the scores."""
        histories = self.histories(seed)
        scores = self.scored(system, histories, seed)
        found = Measurements()
        for rate in dict.fromkeys((self.rate, *_RATES)):
            score, threshold = judged(histories, scores, rate)
            if rate == self.rate:
                found.put("recall", score.recall)
                found.put("false_alarms_per_year", score.false_per_day * _YEAR_DAYS)
                if score.found:
                    found.put("time_to_locate_d", score.time_to_locate_s / DAY_S)
                for of, own in () if self._simulated else zip(histories, scores, strict=True):
                    found.put("recall", _at(threshold, [of], [own]).recall, satellite=of.name)
            found.put("recall", score.recall, allowed_per_year=rate)
        if not np.isnan(system.alarm_at):
            shipped = _at(system.alarm_at, histories, scores)
            alarms = [_above(own, system.alarm_at) for own in scores]
            right = sum(int((of.near_events() & own).sum()) for of, own in zip(histories, alarms, strict=True))
            many = sum(int(own.sum()) for own in alarms)
            found.put("shipped_recall", shipped.recall)
            found.put("shipped_false_alarms_per_year", shipped.false_per_day * _YEAR_DAYS)
            found.put("shipped_alarms", float(many))
            if many:
                found.put("shipped_precision", right / many)
        return found

    def scored(self, system: Any, histories: list[History], seed: int) -> list[Floats]:
        """Return the scores of all histories, each from what was learned elsewhere.

        Parameters
        ----------
        system : OrbitDetector
        histories : list of History
        seed : int
            Of the split and of the learning.
        """
        draws = stream(seed, "split", self.split)
        if self.split == "satellite":
            part = np.argsort(draws.permutation(len(histories))) % self.folds
            parts = [np.full(len(each.elements), part[at]) for at, each in enumerate(histories)]
        else:
            parts = [
                np.repeat(draws.integers(0, self.folds, len(each.elements) // _BLOCK + 1), _BLOCK)[: len(each.elements)]
                for each in histories
            ]
        scores = [np.full(len(each.elements), np.nan) for each in histories]
        for fold in range(self.folds):
            usable = [own != fold for own in parts]
            learn = [at for at, own in enumerate(usable) if own.any()]
            if not learn or all(own.all() for own in usable):
                continue
            scorer = system.fitted([histories[at] for at in learn], [usable[at] for at in learn], seed)
            for at, each in enumerate(histories):
                here = parts[at] == fold
                if here.any():
                    scores[at][here] = scorer(each)[here]
        return scores


def judged(histories: list[History], scores: list[Floats], per_year: float) -> tuple[AlarmScore, float]:
    """Return how alarms meet true manoeuvres at the threshold with some false alarms per satellite and year.

    Parameters
    ----------
    histories : list of History
    scores : list of numpy.ndarray of float64
        Of each history's records; NaN is never an alarm.
    per_year : float
        Allowed over all histories together.

    Returns
    -------
    AlarmScore, float
        The score, and the threshold: found by halving over the ranks of scores, so that between two ranks fewer alarms
        could be false at a lower threshold where merged alarms grow together.
    """
    days = sum(each.days for each in histories)
    values = np.unique(np.concatenate([own[~np.isnan(own)] for own in scores]))
    if not values.size:
        return _at(math.inf, histories, scores), math.inf
    # Rounding must not forbid a whole number of alarms.
    allowed = per_year * days / _YEAR_DAYS * (1 + 1e-9)
    # Index 0 is the highest threshold, above which nothing is.
    low, high = 0, values.size
    while high - low > 1:
        middle = (low + high) // 2
        few = _at(float(values[-1 - middle]), histories, scores).false_alarms <= allowed
        low, high = (middle, high) if few else (low, middle)
    threshold = float(values[-1 - low])
    return _at(threshold, histories, scores), threshold


def _above(scores: Floats, threshold: float) -> NDArray[np.bool_]:
    # A comparison with NaN is false.
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = scores > threshold
    return found


def _at(threshold: float, histories: list[History], scores: list[Floats]) -> AlarmScore:
    events = [
        Event(
            subject=each.name, begin_s=(when - BEFORE_NS) / 1e9, end_s=(when + each.found_ns) / 1e9, label="manoeuvre",
            since_s=when / 1e9,
        )
        for each in histories
        for when in each.events_ns.tolist()
    ]  # fmt: skip
    alarms = {
        each.name: each.elements.epoch_ns[_above(own, threshold)] / 1e9
        for each, own in zip(histories, scores, strict=True)
    }
    return alarm_score(alarms, events, days=sum(each.days for each in histories), within_s=_WITHIN_S)
