"""Other agents: rules on single readings, boosted trees that may abstain, chance, and one that knows the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError, missing_extra
from wavetank.insight.repair.interface import (
    ACTIONS,
    FAULTS,
    READINGS,
    Cuts,
    Decisions,
    Episodes,
    Flags,
    Floats,
    Learning,
    cuts_of,
)
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

_INDICATORS = (("run_queue", 1.0), ("rss_slope", 1.0), ("rtt", 1.0))
"""The reading by which a rule knows each fault, and its direction."""


@dataclass(frozen=True, kw_only=True)
class ThresholdRules:
    """Repairs the fault whose indicator is farthest above its limit, and restarts where none is: a runbook's rules."""

    limit: float = setting(2.0, says="Standard deviations above the mean of a healthy service", low=0.0, high=100.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, learning: Learning) -> _Rules:
        """Return the rules with mean and spread of a healthy service.

        Parameters
        ----------
        learning : Learning
        """
        healthy = learning.healthy.readings.reshape(-1, len(READINGS))
        return _Rules(self, np.nanmean(healthy, axis=0), np.nanstd(healthy, axis=0))


class _Rules:
    def __init__(self, rules: ThresholdRules, mean: Floats, spread: Floats) -> None:
        self._rules, self._mean, self._spread = rules, mean, spread

    def decide(self, readings: Floats, slo_ok: Flags) -> Decisions:
        scores = np.nan_to_num((readings - self._mean) / self._spread)
        of = np.stack([way * scores[:, READINGS.index(name)] for name, way in _INDICATORS], axis=1)
        largest = of.max(axis=1)
        action = np.where(largest > self._rules.limit, of.argmax(axis=1), ACTIONS.index("restart-worker"))
        return Decisions(action, np.ones(len(action), np.bool_), largest)


@dataclass(frozen=True, kw_only=True)
class BoostedTrees:
    """scikit-learn's boosted trees, one model a fault, calibrated, acting above a probability tuned for no harm."""

    iterations: int = setting(60, says="Trees of each fault", low=1, high=10_000)
    rate: float = setting(0.1, says="Learning rate", low=1e-4, high=1.0)
    leaves: int = setting(15, says="Leaves of a tree", low=2, high=1000)
    sees: str = setting("readings", choices=("readings", "levels"), says="Readings as they are, or low, normal, high")

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, learning: Learning) -> _Trees:
        """Return the trees, with probabilities calibrated and the threshold tuned on validation cases.

        Half of the validation cases calibrate (Platt's sigmoid of the log odds), the others give the least threshold
        without a harmful action.

        Parameters
        ----------
        learning : Learning

        Raises
        ------
        MissingExtraError
            Without scikit-learn.
        """
        try:
            from sklearn.ensemble import HistGradientBoostingClassifier
            from sklearn.linear_model import LogisticRegression
            from threadpoolctl import threadpool_limits
        except ImportError as error:
            raise missing_extra("scikit-learn", "insight", needed_for="Boosted trees") from error
        cuts, halves = cuts_of(learning.healthy), np.arange(len(learning.validation.present)) % 2 == 0
        first, second = learning.validation.chosen(halves), learning.validation.chosen(~halves)
        for fault, name in enumerate(FAULTS):
            if any(len(set(each.present[:, fault].tolist())) < 2 for each in (learning.train, first)) or not len(
                second.present
            ):
                raise BadValueError("Trees learn from cases with and without each fault, and as many to calibrate by.",
                                    given=f"{len(learning.train.present)} cases, too few with or without {name}",
                                    hint="more episodes, or faults that are severer")  # fmt: skip
        models = []
        # These tables are small: more threads than one only wait for each other.
        with threadpool_limits(1):
            for fault in range(len(FAULTS)):
                model = HistGradientBoostingClassifier(
                    max_iter=self.iterations, learning_rate=self.rate, max_leaf_nodes=self.leaves, random_state=0,
                    early_stopping=False,
                )  # fmt: skip
                model.fit(seen(self.sees, *learning.train.shown(), cuts), learning.train.present[:, fault])
                odds = model.decision_function(seen(self.sees, *first.shown(), cuts))
                sigmoid = LogisticRegression(C=1e6).fit(odds[:, None], first.present[:, fault])
                models.append((model, float(sigmoid.coef_[0, 0]), float(sigmoid.intercept_[0])))
        tried = _Trees(self, cuts, models, 0.0).decide(*second.shown())
        wrong = ~second.present[np.arange(len(tried.action)), tried.action]
        return _Trees(self, cuts, models, float(tried.sure[wrong].max()) if wrong.any() else 0.0)


def seen(sees: str, readings: Floats, slo_ok: Flags, cuts: Cuts) -> Floats:
    """Return what a classifier is shown: readings or their levels, and whether the objective is kept.

    Parameters
    ----------
    sees : str
        ``readings`` or ``levels``.
    readings : ndarray of float64, shape (cases, 9)
    slo_ok : ndarray of bool, shape (cases,)
    cuts : Cuts
    """
    shown = readings if sees == "readings" else cuts.levels(readings).astype(np.float64)
    return np.concatenate((shown, slo_ok[:, None]), axis=1)


class _Trees:
    def __init__(
        self, trees: BoostedTrees, cuts: Cuts, models: list[tuple[Any, float, float]], threshold: float
    ) -> None:
        self._trees, self._cuts, self._models, self.threshold = trees, cuts, models, threshold

    def decide(self, readings: Floats, slo_ok: Flags) -> Decisions:
        from threadpoolctl import threadpool_limits

        shown = seen(self._trees.sees, readings, slo_ok, self._cuts)
        with threadpool_limits(1):
            odds = [slope * model.decision_function(shown) + start for model, slope, start in self._models]
        faults = 1.0 / (1.0 + np.exp(-np.stack(odds, axis=1)))
        sure = faults.max(axis=1)
        return Decisions(faults.argmax(axis=1), sure > self.threshold, sure)


@dataclass(frozen=True, kw_only=True)
class RandomRepair:
    """Takes one of the actions by chance, always."""

    def fitted(self, learning: Learning) -> _Random:
        """Return the agent with draws of its own.

        Parameters
        ----------
        learning : Learning
        """
        return _Random(learning.seed)


class _Random:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def decide(self, readings: Floats, slo_ok: Flags) -> Decisions:
        draws = stream(self._seed, "random repair", len(slo_ok))
        action = draws.integers(0, len(ACTIONS), len(slo_ok))
        return Decisions(action, np.ones(len(action), np.bool_), draws.random(len(action)))


@dataclass(frozen=True, kw_only=True)
class RepairOracle:
    """Knows what is planted: repairs a fault that is there, and hands on what cannot be repaired."""

    knows: bool = setting(True, says="That the study shows it what is planted")

    def fitted(self, learning: Learning) -> _Oracle:
        """Return the agent.

        Parameters
        ----------
        learning : Learning
        """
        return _Oracle()


class _Oracle:
    def decide(self, readings: Floats, slo_ok: Flags) -> Decisions:
        raise BadValueError("Only a study can show the oracle what is planted.")

    def decide_knowing(self, episodes: Episodes) -> Decisions:
        """Return the best decisions.

        Parameters
        ----------
        episodes : Episodes
        """
        known = np.asarray(episodes.present.any(axis=1), np.bool_)
        return Decisions(episodes.present.argmax(axis=1), known, np.asarray(known, np.float64))
