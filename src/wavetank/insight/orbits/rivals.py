"""Rivals that are no rule: change points of the axis, boosted trees, and the filters alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.orbits.filters import MANOEUVRE, MEASURED, STATION, Filtered, filtered
from wavetank.insight.orbits.interface import History, Scorer, Unlearned
from wavetank.insight.orbits.mechanics import Floats, axis_km
from wavetank.insight.orbits.rules import changes_of, running_median
from wavetank.settings import check_ranges, setting
from wavetank.workloads.tle import DAY_NS

_WINDOW = 31


@dataclass(frozen=True, kw_only=True)
class ChangePoints(Unlearned):
    """PELT (ruptures) on the axis without its drift, for a ladder of penalties; a change scores the highest that it
    survives.
    """

    alarm_at: ClassVar[float] = math.nan

    rungs: int = setting(24, says="penalties, each twice the one before", low=2, high=40)

    def __post_init__(self) -> None:
        check_ranges(self)

    def scores(self, history: History) -> Floats:
        """Return for each record the logarithm of the highest penalty at which the axis changes there.

        Parameters
        ----------
        history : History
        """
        import ruptures

        change = np.diff(axis_km(history.elements.mean_motion)) * 1000
        off = change - running_median(change, _WINDOW)
        noise = max(float(np.median(np.abs(off))), 1e-6)
        levels = np.concatenate(([0.0], np.cumsum(off))) / noise
        search = ruptures.KernelCPD(kernel="linear", min_size=2).fit(levels[:, None])
        found = np.full(len(history.elements), np.nan)
        for rung in range(self.rungs):
            at = np.array(search.predict(pen=2.0 ** (rung + 1))[:-1], np.int64)
            found[at] = rung
        return found


@dataclass(frozen=True, kw_only=True)
class BoostedTrees:
    """Gradient boosting (scikit-learn) on changes of five elements and their neighbours, taught the true times."""

    alarm_at: ClassVar[float] = math.nan

    rounds: int = setting(60, says="trees", low=1, high=5000)
    leaves: int = setting(15, says="leaves per tree, at most", low=2, high=500)

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, histories: Sequence[History], usable: Sequence[NDArray[np.bool_]], seed: int) -> Scorer:
        """Return trees learned from the true times of the histories.

        Parameters
        ----------
        histories, usable, seed
            As the interface says.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier

        rows = np.concatenate([features(each)[keep] for each, keep in zip(histories, usable, strict=True)])
        labels = np.concatenate([each.first_after()[keep] for each, keep in zip(histories, usable, strict=True)])
        if labels.all() or not labels.any():
            return lambda history: np.full(len(history.elements), np.nan)
        trees = HistGradientBoostingClassifier(
            max_iter=self.rounds, max_leaf_nodes=self.leaves, learning_rate=0.05, l2_regularization=1.0,
            early_stopping=False, random_state=seed,
        ).fit(rows, labels)  # fmt: skip
        return lambda history: np.asarray(trees.decision_function(features(history)), np.float64)


def features(history: History) -> Floats:
    """Return what trees see of each record: changes in units of their running noise, with both neighbours, and times.

    Parameters
    ----------
    history : History

    Returns
    -------
    numpy.ndarray of float64, shape (n, k)
    """
    of, columns = history.elements, []
    for name, change in changes_of(of).items():
        off = change - running_median(change, _WINDOW)
        noise = running_median(np.abs(off), _WINDOW)
        least = max(float(np.median(noise)), 1e-12)
        score = np.concatenate(([0.0], off / np.maximum(noise, 0.1 * least)))
        columns += [score, np.roll(score, 1), np.roll(score, -1)]
        if name == "axis":
            columns += [np.concatenate(([0.0], off)), np.concatenate(([least], noise))]
    columns.append(np.concatenate(([0.0], np.diff(of.epoch_ns) / DAY_NS)))
    return np.column_stack(columns)


@functools.lru_cache(maxsize=32)
def filter_of(history: History, models: tuple[int, ...], measured: tuple[float, float] = MEASURED) -> Filtered:
    """Return a filtered history, computed once per process.

    Parameters
    ----------
    history : History
    models : tuple of int
    measured : tuple of float
        As :func:`~wavetank.insight.orbits.filters.filtered` has them.
    """
    return filtered(history.elements, models, measured)


@dataclass(frozen=True, kw_only=True)
class _StateFilter(Unlearned):
    """A filter over states, with the noise that it takes records to have."""

    position_m: float = setting(MEASURED[0], says="noise of a record's position", unit="m", low=0.1)
    velocity_m_s: float = setting(MEASURED[1], says="noise of a record's velocity", unit="m/s", low=1e-4)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ImmFilter(_StateFilter):
    """The paper's second tier alone: how probable the model of manoeuvres is after a record, in interacting filters."""

    alarm_at: ClassVar[float] = math.log(0.3 / 0.7)

    def scores(self, history: History) -> Floats:
        """Return log odds of the manoeuvre's model.

        Parameters
        ----------
        history : History
        """
        models = filter_of(history, (0, 1, 2), (self.position_m, self.velocity_m_s))
        share = np.clip(models.probability[:, MANOEUVRE], 1e-15, 1 - 1e-15)
        found: Floats = np.log(share / (1 - share))
        return found


@dataclass(frozen=True, kw_only=True)
class OneFilter(_StateFilter):
    """One unscented Kalman filter of station keeping: how surprising a record is."""

    # The 99.9 % point of chi-square with 6 degrees of freedom.
    alarm_at: ClassVar[float] = 22.458

    def scores(self, history: History) -> Floats:
        """Return the squared innovation in units of its covariance.

        Parameters
        ----------
        history : History
        """
        return filter_of(history, (STATION,), (self.position_m, self.velocity_m_s)).surprise
