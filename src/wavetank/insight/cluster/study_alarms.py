"""Study ``cluster-alarms``: which watch over a cluster finds failing nodes at few false alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.insight.cluster.averages import Averages
from wavetank.insight.cluster.fault_mix import MIXES, drawn_kinds
from wavetank.insight.cluster.interface import View, Watcher
from wavetank.insight.cluster.peer_view import PeerView
from wavetank.insight.cluster.rivals import OneMetric
from wavetank.insight.cluster.scoring import BLOCK, GRACE_S, Held, at_recall, judged, threshold
from wavetank.insight.cluster.simulated_cluster import (
    CHUNK,
    CLASSES,
    DAY,
    METRICS,
    NAMES,
    STEP_S,
    Chunk,
    Fault,
    SimulatedCluster,
    drawn_faults,
)
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial

_LAYERS = tuple(each.layer for each in METRICS)
# Chunks from which views, then detectors, learn; then follows the week for thresholds.
_VIEW_CHUNKS, _LEARN_CHUNKS, _WEEK = 2, 2, 28
_BEFORE = _VIEW_CHUNKS + _LEARN_CHUNKS + _WEEK
# Samples before and after a fault that are shown again, with the fault at another strength.
_WARM, _TAIL = 180, 60
# Shares of the faults at which detectors are compared by their false alarms.
_SHARES = (0.7, 0.8, 0.9, 1.0)


class Scored:
    """The scores that one detector gave, as blocks.

    Parameters
    ----------
    week : ndarray of float32, shape (nodes, blocks)
        Of the week without failures.
    watched : ndarray of float32, shape (nodes, blocks)
        Of the days with faults.
    windows : dict of (float, Fault) to ndarray of float32, shape (1, blocks)
        Of a fault's node around the fault, at another strength.
    """

    def __init__(
        self, week: NDArray[np.float32], watched: NDArray[np.float32],
        windows: dict[tuple[float, Fault], tuple[int, NDArray[np.float32]]],
    ) -> None:  # fmt: skip
        self.week, self.watched, self.windows = week, watched, windows


@dataclass(frozen=True, kw_only=True)
class ClusterAlarms(Study):
    """Detectors watch a simulated cluster: about a hundred metrics of each node, every 30 s.  All nodes run one job,
    which trains, saves, breaks down and starts again; harmless events strike single nodes, and faults with planted
    signatures of ten classes.  Every detector learns on the same half day and gets its threshold from the same week
    without failures.  The faults are shown again at other strengths, with thresholds for other rates of false alarms.
    """

    name: ClassVar[str] = "cluster-alarms"
    baseline: ClassVar[str] = "fixed-thresholds"
    primary: ClassVar[str] = "recall"
    secondary: ClassVar[tuple[str, ...]] = ("false_alarms_per_day", "delay_s", "before_crash_share")
    # Five, so that the plain run stays below two minutes on two cores.
    default_seeds: ClassVar[int] = 5
    metrics = (
        Metric("recall", "", "higher", "simulated",
               "faults of which the node had an alarm from the first departure to 300 s after it was taken out / all; "
               "at strength and wished: with faults this strong, at a threshold for this rate of alarms"),
        Metric("false_alarms_per_day", "", "lower", "simulated",
               "alarms, merged within 30 min of a node, that found no fault, per day of the whole cluster; at wished: "
               "at a threshold for this rate in the week without failures; at equal_recall: at the highest threshold "
               "that finds this share of the faults, known by hindsight for all alike", words="false alarms a day"),
        Metric("delay_s", "s", "lower", "simulated",
               "median time from the first departure to the alarm, of the faults that were found", words="delay"),
        Metric("before_crash_share", "", "higher", "simulated",
               "faults that had an alarm before the job broke down (and the XID was logged) / all",
               words="alarms before the crash"),
        Metric("classes_missed", "", "lower", "simulated", "classes of faults of which at least one was missed",
               words="missed classes"),
        Metric("threshold", "", "", "simulated", "score above which is an alarm", table=False),
        Metric("least_classes_missed", "", "", "simulated",
               "least number of classes that any single metric missed, over all metrics, each with its own threshold "
               "from the week; of the best single metric alone", table=False),
    )  # fmt: skip
    charts = (
        Chart("sweep", "As faults become plainer", y="recall", by="strength",
              says="1 is as planted: factors are powers of the strength; 0 is a cluster without faults."),
        Chart("sweep", "As more false alarms are allowed", y="recall", by="wished", log="x",
              says="Thresholds from the week without failures, at these rates of alarms a day."),
        Chart("sweep", "False alarms beside those wished", y="false_alarms_per_day", by="wished", log="xy",
              says="The job breaks down more often than in the week of the thresholds."),
        Chart("sweep", "False alarms at equal recall", y="false_alarms_per_day", by="equal_recall",
              says="Each detector at the threshold that finds this share; a detector that never does has no point."),
        Chart("pareto", "Recall against false alarms", x="false_alarms_per_day", y="recall",
              says="Up and to the left is better."),
        Chart("bars", "Alarms before the job broke down", y="before_crash_share", says="Longer leaves time to act."),
    )  # fmt: skip

    nodes: int = setting(63, unit="nodes", says="Nodes of the cluster", low=5, high=1000)
    days: int = setting(7, unit="days", says="Days with faults", low=1, high=400)
    faults: int = setting(10, says="Faults in these days", low=1, high=1600)
    mix: str = setting("classes", choices=MIXES, says="Classes of the faults: each in turn, or drawn as recorded")
    wished_per_day: float = setting(0.6, says="Alarms a day in the week without failures, for thresholds", low=0.01,
                                    high=1000)  # fmt: skip
    events: float = setting(4.0, says="Harmless events a day, of each of six kinds", low=0, high=1000)
    strengths: tuple[float, ...] = setting((0.0, 0.35, 0.6), says="Further strengths of the faults", low=0, high=10)
    rates: tuple[float, ...] = setting((0.2, 2.0, 6.0), says="Further rates of alarms a day for thresholds", low=0.01,
                                       high=1000)  # fmt: skip

    def check(self) -> None:
        """Refuse more faults than there are quarters of a day, and a mix without its data."""
        if self.faults > self.days * DAY // CHUNK:
            raise BadValueError("There is one fault in a quarter of a day at most.", given=self.faults,
                                allowed=f"at most {self.days * DAY // CHUNK}",
                                where=f"study {self.name}, faults")  # fmt: skip
        drawn_kinds(self.mix, self.faults, 0)

    def opening(self) -> tuple[str, ...]:
        """Return what is simulated."""
        return (
            f"{self.nodes} nodes x {len(METRICS)} metrics every 30 s: a day to learn, a week without failures for "
            f"thresholds, {self.days} days with {self.faults} faults.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Signatures are planted, so that recall says how plain they are: see the curve over strengths.",
            "The best single metric is chosen after the fact, seed by seed.",
        )

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial a seed: all detectors watch the same stream."""
        return [Trial(systems=tuple(systems), seed=seed) for seed in seeds]

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Run all detectors over the stream of one seed.

        Parameters
        ----------
        trial : Trial
        built : mapping
            Detectors by name.
        """
        found = self.measured({name: built[name] for name in trial.systems}, trial.seed)
        return [record for name, each in found.items() for record in self.stamp(name, trial.seed, each)]

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run one detector over the stream of a seed.

        Parameters
        ----------
        system : ClusterDetector
        seed : int
        """
        return self.measured({"it": system}, seed)["it"]

    def measured(self, systems: Mapping[str, Any], seed: int) -> dict[str, Measurements]:
        """Return the figures of all detectors.

        Parameters
        ----------
        systems : mapping of str to ClusterDetector
        seed : int
        """
        cluster = self.cluster(seed)
        scored = watch(cluster, systems, _BEFORE, self.strengths)
        found = {}
        for name, each in scored.items():
            figures = Measurements()
            if isinstance(each, list):
                best, least = self._best(each, cluster.faults)
                figures.put("least_classes_missed", least)
                each = best
            self._put(figures, each, cluster.faults)
            found[name] = figures
        return found

    def cluster(self, seed: int) -> SimulatedCluster:
        """Return the cluster of a seed: first without failures, then with faults.

        Parameters
        ----------
        seed : int
        """
        kinds = drawn_kinds(self.mix, self.faults, seed)
        calm = _BEFORE * CHUNK
        faults = tuple(
            each._replace(begin=each.begin + calm, crash=each.crash + calm, end=each.end + calm)
            for each in drawn_faults(seed, self.nodes, self.days, kinds)
        )
        return SimulatedCluster(seed, self.nodes, _BEFORE * CHUNK // DAY + self.days, faults, self.events)

    def _best(self, scored: list[Scored], faults: tuple[Fault, ...]) -> tuple[Scored, int]:
        """Return the scores of the best single metric, and the least number of classes that one missed."""
        ranks, least = [], len(CLASSES)
        for place, each in enumerate(scored):
            score = judged(each.watched, threshold(each.week, self.wished_per_day), faults, first=_BEFORE * CHUNK)
            ranks.append((score.found, -score.false_alarms, -place))
            least = min(least, len({event.label for event in score.missed}))
        return scored[-max(ranks)[2]], least

    def _put(self, figures: Measurements, scored: Scored, faults: tuple[Fault, ...]) -> None:
        first = _BEFORE * CHUNK
        for wished in (self.wished_per_day, *sorted({*self.rates} - {self.wished_per_day})):
            tau = threshold(scored.week, wished)
            score = judged(scored.watched, tau, faults, first=first)
            own: tuple[dict[str, float], ...] = ({}, {"wished": wished})
            for at in own[wished != self.wished_per_day :]:
                figures.put("recall", score.recall, **at)
                figures.put("false_alarms_per_day", score.false_per_day, **at)
            if wished != self.wished_per_day:
                continue
            figures.put("threshold", tau)
            figures.put("classes_missed", len({event.label for event in score.missed}))
            if score.delays_s:
                figures.put("delay_s", score.time_to_locate_s)
            before = judged(scored.watched, tau, [_until_crash(each) for each in faults], first=first)
            figures.put("before_crash_share", before.recall)
            figures.put("recall", score.recall, strength=1.0)
            for share in _SHARES:
                equal = at_recall(scored.watched, share, faults, first=first)
                if equal.recall >= share - 1e-9:
                    figures.put("false_alarms_per_day", equal.false_per_day, equal_recall=share)
            for strength in self.strengths:
                found = sum(
                    judged(held, tau, [fault], first=begin, nodes=[fault.node]).found
                    for (other, fault), (begin, held) in scored.windows.items()
                    if other == strength
                )
                figures.put("recall", found / len(faults), strength=strength)


def watch(
    cluster: SimulatedCluster, systems: Mapping[str, Any], before: int, strengths: Sequence[float] = ()
) -> dict[str, Scored | list[Scored]]:
    """Show a stream to detectors and return their scores; of a detector of one metric without a name, of all metrics.

    Parameters
    ----------
    cluster : SimulatedCluster
        Its first chunks are without failures.
    systems : mapping of str to ClusterDetector
    before : int
        Chunks without failures.
    strengths : sequence of float
        Further strengths at which each fault is shown, after the stream.
    """
    eyes = [_eye(system) for system in systems.values()]
    learned = [cluster.chunk(index).values for index in range(_VIEW_CHUNKS)]
    peers = PeerView(np.concatenate(learned, axis=2))
    for index in range(_VIEW_CHUNKS, cluster.chunks):
        view = peers.view(cluster.chunk(index).values)
        for eye in eyes:
            if index < _VIEW_CHUNKS + _LEARN_CHUNKS:
                eye.learn(view)
            else:
                eye.score(view)
    week = [eye.split((before - _VIEW_CHUNKS - _LEARN_CHUNKS) * CHUNK // BLOCK) for eye in eyes]
    windows: list[dict[tuple[float, Fault], tuple[int, list[NDArray[np.float32]]]]] = [{} for _ in eyes]
    for fault in cluster.faults:
        for strength in strengths:
            part = _around(cluster.chunk(fault.begin // CHUNK, strength), fault)
            view = peers.view(part.values)
            for eye, own in zip(eyes, windows, strict=True):
                own[strength, fault] = part.first, eye.again(view, fault.node)
    found: dict[str, Scored | list[Scored]] = {}
    for name, eye, (calm, watched), own in zip(systems, eyes, week, windows, strict=True):
        each = [
            Scored(calm[place], watched[place], {key: (first, held[place]) for key, (first, held) in own.items()})
            for place in range(len(calm))
        ]
        found[name] = each if eye.many else each[0]
    return found


def _around(chunk: Chunk, fault: Fault) -> Chunk:
    """Return the part of a chunk around a fault, in whole blocks."""
    begin = max(0, fault.begin - chunk.first - _WARM) // BLOCK * BLOCK
    end = min(CHUNK, -(-(fault.end - chunk.first + _TAIL) // BLOCK) * BLOCK)
    return Chunk(chunk.first + begin, chunk.values[:, :, begin:end])


def _until_crash(fault: Fault) -> Fault:
    """Return a fault that must be found before the job breaks down: the grace after its end is taken off."""
    return fault._replace(end=fault.crash - round(GRACE_S / STEP_S))


class _Eye:
    """One detector and the blocks of its scores."""

    many = False

    def __init__(self, system: Any) -> None:
        self.watcher: Watcher = system.watcher(NAMES, _LAYERS)
        self._width = system.held
        self._held = [Held(system.held)]

    def learn(self, view: View) -> None:
        self.watcher.learn(view)

    def score(self, view: View) -> None:
        self._held[0].take(self.watcher.score(view))

    def split(self, blocks: int) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
        """Return the scores of the week and of the days after it, one or one a metric."""
        whole = [each.all() for each in self._held]
        return [each[:, :blocks] for each in whole], [each[:, blocks:] for each in whole]

    def again(self, view: View, node: int) -> list[NDArray[np.float32]]:
        """Return the scores of one node in a part of the stream."""
        held = Held(self._width)
        held.take(self.watcher.score(view)[[node]])
        return [held.all()]


class _AllMetrics(_Eye):
    """Every single metric as a detector of its own."""

    many = True

    def __init__(self, system: OneMetric) -> None:
        self._averages = Averages(system.half_life)
        self._width = system.held
        self._held = [Held(system.held) for _ in NAMES]

    def learn(self, view: View) -> None:
        """Nothing is learned."""

    def score(self, view: View) -> None:
        for each, means in zip(self._held, np.abs(self._averages.of(view)), strict=True):
            each.take(means)

    def again(self, view: View, node: int) -> list[NDArray[np.float32]]:
        found = []
        for means in np.abs(self._averages.of(view)):
            held = Held(self._width)
            held.take(means[[node]])
            found.append(held.all())
        return found


def _eye(system: Any) -> _Eye:
    return _AllMetrics(system) if isinstance(system, OneMetric) and not system.metric else _Eye(system)
