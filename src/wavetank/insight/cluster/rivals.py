"""What else watches a cluster: one metric, XIDs, operators' thresholds, a control chart a metric, outlier detectors.

All but the thresholds and XIDs are shown the same distances from peers as :class:`LayeredPeers`, decay them as it does,
and get their threshold from the same week.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, missing_extra, nearest_of
from wavetank.insight.cluster.averages import Averages, Decaying, Standardised
from wavetank.insight.cluster.interface import View, Watcher
from wavetank.settings import check_ranges, setting

XID_METRIC = "DCGM_FI_DEV_XID_ERRORS"


@dataclass(frozen=True, kw_only=True)
class OneMetric(Decaying):
    """The decayed distance from peers of one metric; the study tries each and keeps the best, by hindsight."""

    metric: str = setting("", says="Name of the metric; empty: the study tries all")

    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher of the metric.

        Parameters
        ----------
        metrics : tuple of str
        layers : tuple of str

        Raises
        ------
        BadValueError
            If the metric is none of them.
        """
        if self.metric not in metrics:
            raise BadValueError("This metric is not watched.", given=self.metric, allowed=metrics,
                                nearest=nearest_of(self.metric, metrics))  # fmt: skip
        return _One(self, metrics.index(self.metric))


class _One:
    def __init__(self, detector: OneMetric, metric: int) -> None:
        self._metric, self._averages = metric, Averages(detector.half_life)

    def learn(self, view: View) -> None:
        """Nothing is learned."""

    def score(self, view: View) -> NDArray[np.float32]:
        own = slice(self._metric, self._metric + 1)
        return np.abs(self._averages.of(View(view.values[own], view.scores[own]))[0])


@dataclass(frozen=True, kw_only=True)
class XidOnly:
    """An alarm when a node logs an XID: certain, and as late as the log."""

    held: int = setting(1, unit="samples", says="Samples for which a score must last", low=1, high=1000)

    def __post_init__(self) -> None:
        check_ranges(self)

    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher of XIDs.

        Parameters
        ----------
        metrics : tuple of str
        layers : tuple of str
        """
        return _Xid([index for index, name in enumerate(metrics) if name.startswith(XID_METRIC)])


class _Xid:
    def __init__(self, metrics: list[int]) -> None:
        if not metrics:
            raise BadValueError("No metric has the XIDs.", allowed=XID_METRIC)
        self._metrics = metrics

    def learn(self, view: View) -> None:
        """Nothing is learned."""

    def score(self, view: View) -> NDArray[np.float32]:
        return (np.nan_to_num(view.values[self._metrics]).max(axis=0) > 0).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class ControlChart(Decaying):
    """The largest decayed distance from peers of any metric, in its own standard deviations: an EWMA chart a metric."""


    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher of all metrics.

        Parameters
        ----------
        metrics : tuple of str
        layers : tuple of str
        """
        return _Chart(self.half_life, len(metrics))


class _Chart:
    def __init__(self, half_life: float, metrics: int) -> None:
        self._sizes = Standardised(half_life, metrics)

    def learn(self, view: View) -> None:
        self._sizes.learn(view)

    def score(self, view: View) -> NDArray[np.float32]:
        return self._sizes.of(view).max(axis=0)


@dataclass(frozen=True, kw_only=True)
class Outliers(Decaying):
    """An outlier detector of pyod on the decayed distances from peers, trained on a day without failures."""

    method: str = setting("iforest", choices=("iforest", "ecod"), says="Which detector of pyod")
    every: int = setting(6, unit="samples", says="Samples of which one is judged", low=1, high=1000)
    rows: int = setting(4000, says="Rows that it is trained with", low=100, high=1_000_000)

    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher of all metrics.

        Parameters
        ----------
        metrics : tuple of str
        layers : tuple of str

        Raises
        ------
        MissingExtraError
            Without pyod.
        """
        try:
            from pyod.models.ecod import ECOD
            from pyod.models.iforest import IForest
        except ImportError as error:
            raise missing_extra("pyod", "insight", needed_for="Finding outliers") from error
        model = ECOD(n_jobs=1) if self.method == "ecod" else IForest(random_state=0, n_jobs=1)
        return _Outliers(self, model)


class _Outliers:
    def __init__(self, detector: Outliers, model: Any) -> None:
        self._detector, self._model, self._fitted = detector, model, False
        self._averages, self._learned = Averages(detector.half_life), Averages(detector.half_life)
        self._rows: list[NDArray[np.float32]] = []

    def learn(self, view: View) -> None:
        self._rows.append(self._some(self._learned.of(view)))

    def _some(self, means: NDArray[np.float32]) -> NDArray[np.float32]:
        some = means[:, :, self._detector.every - 1 :: self._detector.every]
        return np.ascontiguousarray(some.reshape(len(means), -1).T)

    def score(self, view: View) -> NDArray[np.float32]:
        if not self._fitted:
            if not self._rows:
                raise BadValueError("An outlier detector learns before it judges.")
            rows = np.concatenate(self._rows)
            self._model.fit(rows[:: max(1, -(-len(rows) // self._detector.rows))])
            self._fitted, self._rows = True, []
        nodes, samples = view.scores.shape[1:]
        judged = self._model.decision_function(self._some(self._averages.of(view))).reshape(nodes, -1)
        # A judgement holds until the next one.
        held = np.repeat(judged, self._detector.every, axis=1)[:, :samples]
        short = samples - held.shape[1]
        return np.pad(held, ((0, 0), (0, short)), mode="edge").astype(np.float32)


class Rule(NamedTuple):
    """One threshold of the operators.

    Attributes
    ----------
    metric : str
        Beginning of the names.
    held : int
        Samples for which it must hold.
    kind : str
        ``above`` a limit, ``below`` a limit while the median of the peers is above ``beside``, ``below median`` by a
        factor, or ``above median`` by a factor and ``beside``.
    limit : float
    beside : float
    scale : float
        From the metric's unit to the limit's.
    """

    metric: str
    held: int
    kind: str
    limit: float
    beside: float = 0.0
    scale: float = 1.0


RULES = (
    Rule("node_intr", 20, "below median", 0.5),
    Rule("node_procs_running", 3, "below", 2.0, beside=10.0),
    Rule("node_vmstat_pgpgout", 3, "above median", 4.0, beside=1.0),
    Rule("DCGM_FI_DEV_GPU_TEMP", 10, "above", 85.0),
    Rule("DCGM_FI_DEV_MEMORY_TEMP", 3, "above", 95.0),
    Rule("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 20, "above", 8.0),
    Rule("nfs_getattr_latency", 20, "above", 100.0, scale=1000.0),
    Rule("nfs_read_latency", 20, "above", 100.0, scale=1000.0),
    Rule("nfs_write_latency", 20, "above", 100.0, scale=1000.0),
    Rule("nfs_queue_share", 30, "above", 90.0),
    Rule(XID_METRIC, 1, "above", 1.0),
)
_SILENT_HELD = 4
_LEAST_LIVE = 3
_MOST = 1000.0


@dataclass(frozen=True, kw_only=True)
class FixedThresholds:
    """The operators' rules: thresholds on single metrics, some against the median of the nodes, each held for a time.

    The score is how far the plainest rule is exceeded: 1 where it is just met.  The week without failures moves all
    thresholds by one factor.
    """

    held: int = setting(1, unit="samples", says="Samples for which a score must last", low=1, high=1000)

    def __post_init__(self) -> None:
        check_ranges(self)

    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher of the metrics that rules name.

        Parameters
        ----------
        metrics : tuple of str
        layers : tuple of str
        """
        return _Rules(metrics)


class _Rules:
    def __init__(self, metrics: tuple[str, ...]) -> None:
        self._rows = [
            (rule, index) for rule in RULES for index, name in enumerate(metrics) if name.startswith(rule.metric)
        ]
        if not self._rows:
            raise BadValueError("No rule names any of the metrics.", given=list(metrics),
                                allowed=[each.metric for each in RULES])  # fmt: skip
        self._tails: dict[int, NDArray[np.float32]] = {}

    def learn(self, view: View) -> None:
        """Nothing is learned."""

    def score(self, view: View) -> NDArray[np.float32]:
        worst = np.zeros(view.values.shape[1:], dtype=np.float32)
        for place, (rule, metric) in enumerate(self._rows):
            worst = np.maximum(worst, self._lasting(place, exceeded(rule, view.values[metric]), rule.held))
        silent = np.asarray(np.isnan(view.values).all(axis=0), dtype=np.float32)
        return np.maximum(worst, self._lasting(-1, silent, _SILENT_HELD))

    def _lasting(self, place: int, ratios: NDArray[np.float32], held: int) -> NDArray[np.float32]:
        tail = self._tails.get(place)
        if tail is None:
            tail = np.zeros((len(ratios), held - 1), dtype=np.float32)
        joined = np.concatenate([tail, ratios], axis=1)
        self._tails[place] = joined[:, joined.shape[1] - held + 1 :].copy()
        if held == 1:
            return ratios
        windows = np.lib.stride_tricks.sliding_window_view(joined, held, axis=1)
        lasting: NDArray[np.float32] = windows.min(axis=2)
        return lasting


def exceeded(rule: Rule, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return by which factor a rule is exceeded: 1 where it is just met, 0 where nothing is known.

    Parameters
    ----------
    rule : Rule
    values : ndarray of float32, shape (nodes, samples)
    """
    of = values * np.float32(rule.scale)
    live = np.isfinite(of).sum(axis=0) > _LEAST_LIVE
    with np.errstate(invalid="ignore", divide="ignore"):
        if rule.kind == "above":
            found = of / rule.limit
        else:
            median = np.where(live, np.median(np.nan_to_num(of), axis=0), np.nan)
            if rule.kind == "below":
                found = np.where(median > rule.beside, rule.limit / of, 0.0)
            elif rule.kind == "below median":
                found = rule.limit * median / of
            else:
                found = of / (rule.limit * median + rule.beside)
    found = np.where(np.isnan(of) | np.isnan(found), 0.0, found)
    capped: NDArray[np.float32] = np.clip(found, 0.0, _MOST).astype(np.float32)
    return capped
