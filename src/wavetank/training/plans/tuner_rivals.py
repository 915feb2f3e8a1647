"""Other tuners: at random, in order, the usual default, surrogates of scikit-learn, and Optuna's."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from wavetank.errors import missing_extra
from wavetank.settings import setting
from wavetank.study.tuning import Floats, Space, Trial, expected_improvement, untried


def _kept(space: Space, tried: Sequence[Trial], filtered: bool) -> list[int]:
    left = untried(space, tried)
    fits = [number for number in left if space.predicted_bytes[number] <= space.room_bytes]
    return fits if filtered and fits else left


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Tuner that tries what was not tried, at random."""

    filtered: bool = setting(False, says="Whether what a formula says does not fit is never tried")

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return one of those left."""
        left = _kept(space, tried, self.filtered)
        return left[int(draws.integers(len(left)))]


@dataclass(frozen=True, kw_only=True)
class GridSearch:
    """Tuner that tries a coarse grid before a finer one: always the one farthest from all tried, in their order."""

    filtered: bool = setting(False, says="Whether what a formula says does not fit is never tried")

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return the one farthest from those tried, in the order of the space."""
        left = _kept(space, tried, self.filtered)
        if not tried:
            return left[int(draws.integers(len(left)))]
        at = np.array([trial.number for trial in tried])
        apart = np.abs(np.array(left)[:, None] - at[None, :])
        whole = len(space.configurations)
        return left[int(np.argmax(np.minimum(apart, whole - apart).min(1)))]


@dataclass(frozen=True, kw_only=True)
class DefaultFirst:
    """Tuner that begins with what users begin with: no tensor shards or stages more than needed, then at random."""

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return the fewest shards and stages with one sequence a microbatch; after ten such trials, any."""
        left = untried(space, tried)
        if len(tried) < 10:
            return min(left, key=lambda number: _plain(space.configurations[number]))
        return left[int(draws.integers(len(left)))]


def _plain(configuration: tuple[int, ...]) -> tuple[int, ...]:
    tensor, stages, micro, microbatches, *rest = configuration
    return tensor * stages, micro, microbatches, tensor, *rest


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """Tuner with a model of scikit-learn; what did not fit counts as the slowest that did, which is the usual way."""

    model: str = setting("forest", says="Random forest or Gaussian process", choices=("forest", "gaussian"))
    filtered: bool = setting(False, says="Whether what a formula says does not fit is never tried")
    start: int = setting(4, unit="trials", says="Trials before the model chooses", low=1, high=1000)

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return the largest expected improvement."""
        left = _kept(space, tried, self.filtered)
        worked = [trial.speed for trial in tried if trial.speed is not None]
        if len(tried) < self.start or not worked:
            return left[int(draws.integers(len(left)))]
        features, worst = space.features, min(worked)
        logs = np.log([worst if trial.speed is None else trial.speed for trial in tried])
        at, where = features[[trial.number for trial in tried]], features[left]
        mean, deviation = self._predicted(at, np.asarray(logs), where, int(draws.integers(2**31)))
        gain = expected_improvement(mean, np.maximum(deviation, 1e-6), float(logs.max()))
        return left[int(np.argmax(np.round(gain / max(float(gain.max()), 1e-300), 9)))]

    def _predicted(self, at: Floats, values: Floats, where: Floats, seed: int) -> tuple[Floats, Floats]:
        try:
            from sklearn.ensemble import RandomForestRegressor
            from sklearn.gaussian_process import GaussianProcessRegressor
            from sklearn.gaussian_process.kernels import RBF, WhiteKernel
        except ImportError:
            raise missing_extra("scikit-learn", "training", needed_for="A surrogate") from None
        if self.model == "forest":
            forest = RandomForestRegressor(n_estimators=30, random_state=seed).fit(at, values)
            trees = np.array([tree.predict(where) for tree in forest.estimators_])
            return trees.mean(0), trees.std(0)
        kernel = RBF(np.full(at.shape[1], 0.5), (0.05, 20.0)) + WhiteKernel(1e-3, (1e-6, 1e-1))
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
        with warnings.catch_warnings():
            # A length at its bound, which a few trials often give.
            warnings.simplefilter("ignore")
            found: tuple[Any, Any] = process.fit(at, values).predict(where, return_std=True)
        return np.asarray(found[0]), np.asarray(found[1])


@dataclass(frozen=True, kw_only=True)
class OptunaTpe:
    """Tuner by Optuna's Parzen trees over the numbers of a configuration; what did not fit is infeasible."""

    filtered: bool = setting(False, says="Whether what a formula says does not fit is never tried")
    start: int = setting(4, unit="trials", says="Trials at random at first", low=1, high=1000)

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return what the sampler draws, or the nearest that was not tried."""
        try:
            import optuna
        except ImportError:
            raise missing_extra("optuna", "training", needed_for="Optuna's tuner") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        left = _kept(space, tried, self.filtered)
        width = len(space.configurations[0])
        columns = [sorted({each[k] for each in space.configurations}) for k in range(width)]
        ranges: dict[str, Any] = {
            str(k): optuna.distributions.IntDistribution(0, len(column) - 1) for k, column in enumerate(columns)
        }

        def words(number: int) -> dict[str, Any]:
            return {str(k): columns[k].index(value) for k, value in enumerate(space.configurations[number])}

        seed = int(draws.integers(2**31))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=self.start, seed=seed, multivariate=True,
                constraints_func=lambda trial: trial.user_attrs["over"],
            )  # fmt: skip
        study = optuna.create_study(direction="maximize", sampler=sampler)
        worst = min((trial.speed for trial in tried if trial.speed is not None), default=0.0)
        for trial in tried:
            over = [0.0 if trial.speed is not None else 1.0]
            study.add_trial(optuna.trial.create_trial(
                params=words(trial.number), distributions=ranges, value=worst if trial.speed is None else trial.speed,
                user_attrs={"over": over}, system_attrs={"constraints": over},
            ))  # fmt: skip
        asked = study.ask(ranges).params
        places = np.array([[words(number)[str(k)] for k in range(width)] for number in left])
        wanted = np.array([asked[str(k)] for k in range(width)])
        return left[int(np.argmin(np.abs(places - wanted).sum(1)))]
