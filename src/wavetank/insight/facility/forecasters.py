"""Who says what load comes: its last hour, the same hours of yesterday or last week, ridge, boosted trees, an LSTM.

All see load alone, as means of hours that end now, and give the means of the next hours.  What the servers draw and
how warm they are follows from what a controller does, so that a forecast from those would foretell the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, missing_extra
from wavetank.insight.facility.scenes import DAY, HOUR, WEEK
from wavetank.insight.facility.site import Floats
from wavetank.machine.threads import libraries_limited
from wavetank.settings import check_ranges, setting

Ints = NDArray[np.int64]

LAGS = 24
AHEAD = 24
CHECKED_SHARE = 0.15


class Fitted(Protocol):
    """A forecaster that has seen its training part."""

    def ahead(self, load: Floats, times: Ints) -> Floats:
        """Return the means of the next 24 hours at each time, shape (times, 24); only what was before a time counts."""

    def growth(self, load: Floats, times: Ints) -> Floats:
        """Return by how much the next hour's mean is above the last hour's, shape (times,)."""


class LoadForecaster(Protocol):
    """Says what load comes."""

    def fitted(self, past: Floats, seed: int) -> Fitted:
        """Learn from the minutes of a training part."""


def hours_before(load: Floats, times: Ints, lags: int = LAGS) -> Floats:
    """Return means of the hours that end at each time, the latest last, shape (times, lags).

    Parameters
    ----------
    load : numpy.ndarray of float64, shape (minutes,)
    times : numpy.ndarray of int64
        Minutes; each has that many hours before it.
    lags : int

    Raises
    ------
    BadValueError
    """
    if times.size and (times.min() < lags * HOUR or times.max() > load.size):
        raise BadValueError(f"A forecast needs {lags} hours before it.", given=int(times.min()),
                            allowed=f"minutes {lags * HOUR} to {load.size}")  # fmt: skip
    sums = np.concatenate([[0.0], np.cumsum(load)])
    edges = times[:, None] - HOUR * np.arange(lags, -1, -1)
    return np.diff(sums[edges], axis=1) / HOUR


def hours_after(load: Floats, times: Ints, count: int = AHEAD) -> Floats:
    """Return means of the hours that begin at each time: the truth, shape (times, count).

    Parameters
    ----------
    load : numpy.ndarray of float64, shape (minutes,)
    times : numpy.ndarray of int64
    count : int
    """
    return hours_before(load, times + count * HOUR, count)


@dataclass(frozen=True, kw_only=True)
class Persistence:
    """The last hour again and again."""

    def fitted(self, past: Floats, seed: int) -> Fitted:
        """Return itself: there is nothing to learn.

        Parameters
        ----------
        past : numpy.ndarray
        seed : int
        """
        return _Persisting()


class _Persisting:
    def ahead(self, load: Floats, times: Ints) -> Floats:
        return np.repeat(hours_before(load, times, 1), AHEAD, axis=1)

    def growth(self, load: Floats, times: Ints) -> Floats:
        return np.zeros(times.size)


@dataclass(frozen=True, kw_only=True)
class Seasonal:
    """The same hours one period before; the last day where there is no such period yet."""

    period_min: int = setting(DAY, unit="min", says="Period", choices=(DAY, WEEK))

    def fitted(self, past: Floats, seed: int) -> Fitted:
        """Return what repeats the period: there is nothing to learn.

        Parameters
        ----------
        past : numpy.ndarray
        seed : int
        """
        return _Repeating(self.period_min)


class _Repeating:
    def __init__(self, period_min: int) -> None:
        self._period_min = period_min

    def ahead(self, load: Floats, times: Ints) -> Floats:
        return hours_after(load, self._then(times))

    def growth(self, load: Floats, times: Ints) -> Floats:
        then = self._then(times)
        return np.asarray(hours_after(load, then, 1)[:, 0] - hours_before(load, then, 1)[:, 0])

    def _then(self, times: Ints) -> Ints:
        period = np.where(times >= self._period_min + HOUR, self._period_min, DAY)
        return np.asarray(times - period)


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """Least squares on the last 24 hours with a penalty, a fit for each hour ahead."""

    penalty: float = setting(1.0, says="Weight of the squared coefficients of scaled lags", low=0, high=1e9)

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, past: Floats, seed: int) -> Fitted:
        """Fit 24 hours ahead at once.

        Parameters
        ----------
        past : numpy.ndarray of float64
        seed : int
            Not used: there is one solution.
        """
        scale, times = _Scale(past), _lessons(past)
        seen = np.column_stack([scale.of(hours_before(past, times)), np.ones(times.size)])
        weight = self.penalty * np.eye(seen.shape[1])
        weight[-1, -1] = 0.0
        # Of lags that repeat each other the shortest coefficients are taken.
        solved = np.linalg.lstsq(seen.T @ seen + weight, seen.T @ scale.of(hours_after(past, times)), rcond=None)[0]
        return _Learned(scale, lambda lags, _: np.column_stack([lags, np.ones(len(lags))]) @ solved)


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """Boosted trees of scikit-learn on the last 24 hours and the time of the week, a model for each hour ahead."""

    hours: tuple[int, ...] = setting((1, 6, 24), unit="h", says="Hours ahead that have a model of their own; others "
                                     "take the next one's", low=1, high=AHEAD)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, past: Floats, seed: int) -> Fitted:
        """Fit the models.

        Parameters
        ----------
        past : numpy.ndarray of float64
        seed : int
        """
        try:
            from sklearn.ensemble import HistGradientBoostingRegressor
        except ImportError:
            raise missing_extra("scikit-learn", "insight", needed_for="Boosting") from None
        scale, times = _Scale(past), _lessons(past)
        lags = scale.of(hours_before(past, times))
        seen = np.column_stack([lags, calendar(times)])
        # What the trees say is added to the last hour: trees know no values beyond those that they have seen.
        after = scale.of(hours_after(past, times)) - lags[:, -1:]
        models = {}
        for hour in sorted(set(self.hours)):
            models[hour] = HistGradientBoostingRegressor(max_iter=100, max_leaf_nodes=15, random_state=seed)
            with libraries_limited(1):
                models[hour].fit(seen, after[:, hour - 1])
        last = max(models)

        def say(lags: Floats, times: Ints) -> Floats:
            seen = np.column_stack([lags, calendar(times)])
            with libraries_limited(1):
                said = {hour: model.predict(seen) for hour, model in models.items()}
            columns = [said[min((at for at in said if at >= hour), default=last)] for hour in range(1, AHEAD + 1)]
            return np.asarray(np.column_stack(columns) + lags[:, -1:])

        return _Learned(scale, say)


@dataclass(frozen=True, kw_only=True)
class Lstm:
    """Two LSTM layers over the last 24 hours that give at once how far the next 24 are from the last one."""

    units: int = setting(64, says="Units of each of two layers", low=1, high=4096)
    dropout: float = setting(0.1, says="Dropout between and after the layers", low=0, high=0.9)
    epochs: int = setting(60, says="Passes over the training part at most", low=1, high=10_000)
    patience: int = setting(8, says="Passes without a better one after which it stops", low=1, high=10_000)
    batch: int = setting(64, says="Samples of a step", low=1, high=10**6)

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, past: Floats, seed: int) -> Fitted:
        """Train with Adam until the last 15 % of the training part are foretold no better.

        Parameters
        ----------
        past : numpy.ndarray of float64
        seed : int

        Raises
        ------
        MissingExtraError
        """
        try:
            import torch
        except ImportError:
            raise missing_extra("torch", "insight", needed_for="An LSTM") from None
        scale, times = _Scale(past), _lessons(past)
        lags = scale.of(hours_before(past, times))
        seen = torch.from_numpy(_steps(lags, times))
        after = torch.from_numpy((scale.of(hours_after(past, times)) - lags[:, -1:]).astype(np.float32))
        # The hours that are foretold from the training samples must not reach into those that decide when to stop.
        checked = times.size - max(1, int(CHECKED_SHARE * times.size))
        learned = max(1, checked - AHEAD)
        with libraries_limited(1), torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            network = self._network()
            optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
            best, kept, stale = float("inf"), network.state_dict(), 0
            for _ in range(self.epochs):
                network.train()
                for rows in torch.randperm(learned).split(self.batch):
                    loss = torch.nn.functional.mse_loss(network(seen[rows]), after[rows])
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                network.eval()
                with torch.no_grad():
                    now = float(torch.nn.functional.mse_loss(network(seen[checked:]), after[checked:]))
                stale = 0 if now < best else stale + 1
                if now < best:
                    best, kept = now, {name: each.clone() for name, each in network.state_dict().items()}
                if stale == self.patience:
                    break
            network.load_state_dict(kept)
            network.eval()

        def say(lags: Floats, times: Ints) -> Floats:
            with libraries_limited(1), torch.no_grad():
                said = network(torch.from_numpy(_steps(lags, times))).numpy()
            return np.asarray(said + lags[:, -1:], np.float64)

        return _Learned(scale, say)

    def _network(self) -> Any:
        import torch
        from torch import nn

        class Network(nn.Module):  # type: ignore[misc]
            def __init__(self, units: int, dropout: float) -> None:
                super().__init__()
                self.layers = nn.LSTM(6, units, 2, batch_first=True, dropout=dropout)
                self.drop, self.say = nn.Dropout(dropout), nn.Linear(units, AHEAD)

            def forward(self, seen: torch.Tensor) -> torch.Tensor:
                hidden, _ = self.layers(seen)
                return self.say(self.drop(hidden[:, -1]))

        return Network(self.units, self.dropout)


def calendar(times: Ints) -> Floats:
    """Return sine and cosine of the hour and of the weekday, and whether it is one of the last two, shape (times, 5).

    Parameters
    ----------
    times : numpy.ndarray of int64
        Minutes from a Monday at 0:00.
    """
    hour, day = 2 * np.pi * (times % DAY) / DAY, 2 * np.pi * (times // DAY % 7) / 7
    weekend = (times // DAY % 7 >= 5).astype(np.float64)
    return np.column_stack([np.sin(hour), np.cos(hour), np.sin(day), np.cos(day), weekend])


def _steps(lags: Floats, times: Ints) -> NDArray[np.float32]:
    """Return what the LSTM sees, shape (times, 24, 6): an hour's load and its place in the week."""
    at = times[:, None] - HOUR * np.arange(LAGS, 0, -1)
    where = calendar(at.ravel()).reshape(*at.shape, 5)
    return np.concatenate([lags[:, :, None], where], axis=2).astype(np.float32)


def _lessons(past: Floats) -> Ints:
    """Return the times, an hour apart, that have 24 hours before and after them in a training part."""
    times = np.arange(LAGS * HOUR, past.size - AHEAD * HOUR + 1, HOUR)
    if times.size < AHEAD:
        raise BadValueError("A forecaster learns from three days at least.", given=f"{past.size} minutes")
    return times


class _Scale:
    """Mean and spread of a training part, and of nothing else."""

    def __init__(self, past: Floats) -> None:
        self.mean, self.spread = float(past.mean()), max(float(past.std()), 1e-9)

    def of(self, load: Floats) -> Floats:
        return np.asarray((load - self.mean) / self.spread)

    def back(self, scaled: Floats) -> Floats:
        return np.asarray(scaled * self.spread + self.mean)


class _Learned:
    def __init__(self, scale: _Scale, say: Any) -> None:
        self.scale, self._say = scale, say

    def ahead(self, load: Floats, times: Ints) -> Floats:
        return self.scale.back(self._say(self.scale.of(hours_before(load, times)), times))

    def growth(self, load: Floats, times: Ints) -> Floats:
        return np.asarray(self.ahead(load, times)[:, 0] - hours_before(load, times, 1)[:, 0])


def relative_error(said: Floats, came: Floats) -> Floats:
    """Return the root of the mean squared error / the mean, an hour ahead each, shape (hours,).

    Parameters
    ----------
    said, came : numpy.ndarray of float64, shape (times, hours)
    """
    return np.asarray(np.sqrt(np.mean((said - came) ** 2, axis=0)) / np.mean(came, axis=0))


def named(word: str) -> LoadForecaster:
    """Return a forecaster by its word.

    Parameters
    ----------
    word : str
        One of NAMES.

    Raises
    ------
    BadValueError
    """
    if word not in NAMES:
        raise BadValueError("There is no such forecaster.", given=word, allowed=list(NAMES))
    return NAMES[word]


NAMES: dict[str, LoadForecaster] = {
    "persistence": Persistence(),
    "yesterday": Seasonal(),
    "week": Seasonal(period_min=WEEK),
    "ridge": Ridge(),
    "boosting": Boosting(),
    "lstm": Lstm(),
}
FORECASTERS: Sequence[str] = tuple(NAMES)
