"""What else forecasts a series: its last value, its last week, medians, smoothing, STL and MSTL, a small network.

All work on the logarithm where the series allows it, as the decomposition does, so that none loses by its scale.  Those
of statsmodels need complete series: their gaps are filled by straight lines.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError, missing_extra
from wavetank.insight.series.interface import Floats
from wavetank.settings import check_ranges, setting
from wavetank.workloads.series import Regular


@dataclass(frozen=True, kw_only=True)
class LastValue:
    """Says that what comes is what was last."""

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return the last observed value, again and again.

        Parameters
        ----------
        history : Regular
        steps : int
        """
        return np.full(steps, _observed(history)[-1])


@dataclass(frozen=True, kw_only=True)
class SeasonalNaive:
    """Says that the last week comes again."""

    period: int = setting(7, unit="steps", says="Steps that come again", low=1, high=10**6)

    def __post_init__(self) -> None:
        check_ranges(self)

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return the last observed value of the same phase.

        Parameters
        ----------
        history : Regular
        steps : int
        """
        seen = np.flatnonzero(~history.missing)
        last = _observed(history)[-1]
        size = history.value.size
        out = np.full(steps, last)
        for phase in range(min(self.period, steps)):
            same = seen[(size + phase - seen) % self.period == 0]
            if same.size:
                out[phase :: self.period] = history.value[same[-1]]
        return out


@dataclass(frozen=True, kw_only=True)
class RecentMedian:
    """Says that the median of the last days comes."""

    recent: int = setting(28, unit="steps", says="Latest observed values whose median it is", low=1, high=10**6)

    def __post_init__(self) -> None:
        check_ranges(self)

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return the median of the latest values.

        Parameters
        ----------
        history : Regular
        steps : int
        """
        return np.full(steps, float(np.median(_observed(history)[-self.recent :])))


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Simple exponential smoothing of statsmodels, its weight estimated from each history."""

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return the smoothed level.

        Parameters
        ----------
        history : Regular
        steps : int
        """
        fit = _library("tsa.holtwinters").SimpleExpSmoothing
        x, back = _complete(history)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fit(x, initialization_method="estimated").fit()
        return back(np.asarray(found.forecast(steps), np.float64))


@dataclass(frozen=True, kw_only=True)
class Loess:
    """STL for one period, MSTL for several, both of statsmodels: the trend's last value, and the last cycles again.

    A period of which the history has no two cycles is left out.
    """

    periods: tuple[int, ...] = setting((7,), unit="steps", says="Given periods", low=2, high=10**6)
    window: int = setting(0, unit="cycles", says="Reach of the cycles' shape; 0 for the library's own", low=0,
                          high=10**6)  # fmt: skip
    trend: int = setting(0, unit="steps", says="Reach of the trend; 0 for the library's own", low=0, high=10**6)
    robust: bool = setting(False, says="Whether outliers lose their weight")

    def __post_init__(self) -> None:
        check_ranges(self)

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return trend and cycles, continued.

        Parameters
        ----------
        history : Regular
        steps : int
        """
        seasonal = _library("tsa.seasonal")
        x, back = _complete(history)
        periods = tuple(each for each in sorted(set(self.periods)) if 2 * each < x.size)
        if not periods:
            return back(np.full(steps, x[-1]))
        options: dict[str, Any] = {"robust": self.robust}
        if self.trend:
            options["trend"] = self.trend | 1
        windows = [self.window | 1] * len(periods) if self.window else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = seasonal.MSTL(x, periods=periods, windows=windows, stl_kwargs=options).fit()
        out = np.full(steps, found.trend[-1])
        for period, cycle in zip(periods, np.asarray(found.seasonal, np.float64).reshape(x.size, -1).T, strict=True):
            out = out + np.resize(cycle[-period:], steps)
        return back(out)


@dataclass(frozen=True, kw_only=True)
class LagNetwork:
    """A small network of scikit-learn that learns from one history what follows its last weeks."""

    lags: int = setting(28, unit="steps", says="Values that it sees", low=2, high=10**4)
    hidden: int = setting(16, says="Units of its hidden layer", low=1, high=10**4)
    seed: int = setting(0, says="Of its first weights", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return what the network says of all steps at once; the recent median of a history that is too short.

        Parameters
        ----------
        history : Regular
        steps : int
        """
        try:
            from sklearn.neural_network import MLPRegressor
        except ImportError:
            raise missing_extra("scikit-learn", "insight", needed_for="A network over lags") from None
        x, back = _complete(history)
        rows = x.size - self.lags - steps + 1
        if rows < self.lags:
            return RecentMedian().forecast(history, steps)
        windows = np.lib.stride_tricks.sliding_window_view(x, self.lags + steps)
        base = np.median(windows[:, : self.lags], axis=1, keepdims=True)
        usual = max(float(np.std(windows - base)), 1e-9)
        scaled = (windows - base) / usual
        network = MLPRegressor(
            hidden_layer_sizes=(self.hidden,), alpha=1.0, max_iter=60, early_stopping=True, random_state=self.seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network.fit(scaled[:, : self.lags], scaled[:, self.lags :])
        last = x[-self.lags :]
        middle = float(np.median(last))
        said = network.predict(((last - middle) / usual)[None])[0]
        return back(middle + usual * np.asarray(said, np.float64))


def _observed(history: Regular) -> Floats:
    of = history.value[~history.missing]
    if not of.size:
        raise BadValueError("A series without any value says nothing of what comes.", given=history.name)
    return of


def _complete(history: Regular) -> tuple[Floats, Any]:
    """Return the history on its scale with straight lines over its gaps, and the way back."""
    of = _observed(history)
    positive = bool((of > 0).all())
    seen = np.flatnonzero(~history.missing)
    x = np.interp(np.arange(history.value.size), seen, np.log(of) if positive else of)
    return x, (_exponential if positive else np.asarray)


def _exponential(x: Floats) -> Floats:
    # A decomposition that runs away must not overflow.
    return np.exp(np.clip(x, -math.log(1e300), math.log(1e300)))


def _library(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"statsmodels.{module}")
    except ImportError:
        raise missing_extra("statsmodels", "insight", needed_for="A forecast of statsmodels") from None
