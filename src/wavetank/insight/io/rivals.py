"""Simple and learned rivals of the diagnosis, and variants of it that say what its parts are worth."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.scoreboard import label_counts, micro
from wavetank.errors import missing_extra
from wavetank.insight.io.diagnose import IoAgent
from wavetank.insight.io.labels import KINDS, kind
from wavetank.insight.io.measures import IoFacts
from wavetank.insight.io.merge import Summary, merge
from wavetank.settings import setting
from wavetank.workloads.darshan import DarshanLog

_CHANCES = tuple(round(0.025 * step, 3) for step in range(2, 29))
_THRESHOLDS = tuple(float(each) for each in np.geomspace(0.005, 0.6, 40))


@dataclass(frozen=True, kw_only=True)
class ReportEverything:
    """Reports every kind of issue for every log: recall one, whatever the log."""

    def fitted(self, logs: Sequence[DarshanLog], kinds: Sequence[frozenset[str]]) -> ReportEverything:
        """Return itself.

        Parameters
        ----------
        logs : sequence of DarshanLog
        kinds : sequence of frozenset of str
        """
        return self

    def said(self, log: DarshanLog) -> frozenset[str]:
        """Return all kinds.

        Parameters
        ----------
        log : DarshanLog
        """
        return frozenset(KINDS)


@dataclass(frozen=True, kw_only=True)
class BoostedCounters:
    """Gradient-boosted trees on the totals of all counters, one model a kind of issue.

    A kind is said from one probability on for all, the one with the best F1 on folds that a model had not seen.
    """

    iterations: int = setting(60, says="Trees of a model", low=1, high=10_000)
    leaf: int = setting(5, says="Traces of a leaf, at least", low=1, high=10_000)
    folds: int = setting(3, says="Folds on which the probability is chosen; 1 takes a half", low=1, high=100)

    def fitted(self, logs: Sequence[DarshanLog], kinds: Sequence[frozenset[str]]) -> GrownTrees:
        """Return trees that were grown on given logs.

        Parameters
        ----------
        logs : sequence of DarshanLog
        kinds : sequence of frozenset of str
        """
        try:
            from sklearn.base import clone
            from sklearn.ensemble import GradientBoostingClassifier
        except ImportError as error:
            raise missing_extra("scikit-learn", "insight", needed_for="A model of boosted trees") from error
        rows = np.array([totals(log) for log in logs])
        models: list[tuple[str, Any]] = []
        unseen = np.zeros((len(logs), len(KINDS)))
        fold = np.arange(len(logs)) % self.folds
        for column, name in enumerate(KINDS):
            true = np.array([name in each for each in kinds])
            if true.all() or not true.any():
                models.append((name, bool(true.any())))
                unseen[:, column] = true
                continue
            model = GradientBoostingClassifier(
                n_estimators=self.iterations, min_samples_leaf=self.leaf, max_features="sqrt", random_state=0
            )
            for part in range(self.folds if self.folds > 1 else 0):
                here = fold == part
                rest = true[~here]
                if rest.all() or not rest.any():
                    unseen[here, column] = rest.any()
                else:
                    unseen[here, column] = clone(model).fit(rows[~here], rest).predict_proba(rows[here])[:, 1]
            models.append((name, model.fit(rows, true)))
        return GrownTrees(models=tuple(models), least=_best_least(unseen, kinds) if self.folds > 1 else 0.5)

    def said(self, log: DarshanLog) -> frozenset[str]:
        """Return nothing: no tree has grown yet.

        Parameters
        ----------
        log : DarshanLog
        """
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class GrownTrees:
    """Trees that were grown on logs.

    Parameters
    ----------
    models : tuple of (str, object)
        By kind, a model, or whether the kind was always true where no model was needed.
    least : float
        Probability from which a kind is said.
    """

    models: tuple[tuple[str, Any], ...]
    least: float = 0.5

    def said(self, log: DarshanLog) -> frozenset[str]:
        """Return the kinds that the trees say.

        Parameters
        ----------
        log : DarshanLog
        """
        row = np.array([totals(log)])
        return frozenset(
            name
            for name, model in self.models
            if (model if isinstance(model, bool) else model.predict_proba(row)[0, 1] >= self.least)
        )


def _best_least(chances: NDArray[np.float64], kinds: Sequence[frozenset[str]]) -> float:
    """Return the probability from which on saying a kind has the best F1 of all kinds together."""
    names = np.array(list(KINDS))

    def score(least: float) -> float:
        return micro(label_counts(list(kinds), [frozenset(names[row >= least]) for row in chances], list(KINDS))).f1

    scores = np.nan_to_num([score(least) for least in _CHANCES])
    return _CHANCES[int(np.argmax(scores))] if scores.max() > 0 else 0.5


def totals(log: DarshanLog) -> NDArray[np.float64]:
    """Return sums of all counters of a log, and ratios of them to requests and bytes, for a learned rival.

    Parameters
    ----------
    log : DarshanLog

    Returns
    -------
    numpy.ndarray of float64
        Of one length for all logs.
    """
    found = [np.log1p(log.processes), np.log1p(max(log.run_time_s, 0.0))]
    facts = IoFacts(log)
    for module, names in _NAMES.items():
        if module not in log.modules:
            found += [0.0] * (2 * len(names) + 1)
            continue
        sums = np.array([facts.total(module, name) for name in names])
        # The first counters of each module are its requests.
        of = max(1.0, float(sums[: 4 if module == "MPI-IO" else 2].sum()))
        found += [float(len(log.modules[module])), *np.log1p(np.maximum(sums, 0)), *(sums / of)]
    stripes = log.stripes
    known = stripes is not None and len(stripes) > 0
    found += (
        [float(stripes.stripe_count.min()), float(stripes.stripe_count.mean())] if stripes and known else [0.0, 0.0]
    )
    return np.asarray(found, np.float64)


_COMMON = ["BYTES_READ", "BYTES_WRITTEN", "F_READ_TIME", "F_WRITE_TIME", "F_META_TIME", "FASTEST_RANK_BYTES",
           "SLOWEST_RANK_BYTES", "F_FASTEST_RANK_TIME", "F_SLOWEST_RANK_TIME", "F_VARIANCE_RANK_TIME",
           "F_VARIANCE_RANK_BYTES"]  # fmt: skip
_CLASSES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M")
_NAMES = {
    "POSIX": [
        "READS", "WRITES", "OPENS", "STATS", "SEEKS", "CONSEC_READS", "CONSEC_WRITES", "SEQ_READS", "SEQ_WRITES",
        "RW_SWITCHES", "FILE_NOT_ALIGNED", "MAX_BYTE_READ", "MAX_BYTE_WRITTEN", *_COMMON,
        *(f"SIZE_{word}_{size}" for word in ("READ", "WRITE") for size in _CLASSES),
    ],
    "MPI-IO": [
        "INDEP_READS", "INDEP_WRITES", "COLL_READS", "COLL_WRITES", "COLL_OPENS", "INDEP_OPENS", *_COMMON,
        *(f"SIZE_{word}_AGG_{size}" for word in ("READ", "WRITE") for size in _CLASSES),
    ],
    "STDIO": ["READS", "WRITES", "OPENS", "SEEKS", "FLUSHES", *_COMMON],
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FittedAgent(IoAgent):
    """The diagnosis with a threshold for each kind that is best on given logs, in place of one share for all."""

    def fitted(self, logs: Sequence[DarshanLog], kinds: Sequence[frozenset[str]]) -> IoAgent:
        """Return the diagnosis with those thresholds.

        Parameters
        ----------
        logs : sequence of DarshanLog
        kinds : sequence of frozenset of str
        """
        scores = []
        for log in logs:
            found = dict.fromkeys(KINDS, 0.0)
            for code, score in IoFacts(log).scores().items():
                found[kind(code)] = max(found[kind(code)], score)
            scores.append(found)
        thresholds = []
        for name in KINDS:
            best, chosen = -1.0, self.least
            for threshold in _THRESHOLDS:
                said = [{name} if each[name] >= threshold else set() for each in scores]
                score = micro(label_counts(list(kinds), said, [name])).f1
                if score > best + 1e-12:
                    best, chosen = score, threshold
            thresholds.append(chosen)
        return replace(self, thresholds=tuple(thresholds))


@dataclass(frozen=True, kw_only=True)
class FlatAgent(IoAgent):
    """The diagnosis with all verdicts on fragments joined in one go, in place of a tree."""

    def joined(self, parts: Sequence[Summary]) -> Summary:
        """Return all verdicts as one.

        Parameters
        ----------
        parts : sequence of Summary
        """
        return functools.reduce(merge, parts, ())
