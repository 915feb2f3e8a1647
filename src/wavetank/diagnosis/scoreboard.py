"""How good diagnoses are: one accounting for labels, for alarms, and for analysers that may abstain.

Truth comes from planted faults or labelled data.  A ratio with nothing below the line is NaN, never 0 or 1: a score
over no cases is no score.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """What was said of one label, or of several together.

    Parameters
    ----------
    right : int
        Said, and true.
    wrong : int
        Said, and not true.
    missed : int
        True, and not said.
    """

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.right + other.right, self.wrong + other.wrong, self.missed + other.missed)

    @property
    def precision(self) -> float:
        """Right of what was said; NaN where nothing was."""
        return _ratio(self.right, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Right of what is true; NaN where nothing is."""
        return _ratio(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; NaN where nothing was said and nothing is true."""
        return _ratio(2 * self.right, 2 * self.right + self.wrong + self.missed)


def label_counts(
    truth: Sequence[AbstractSet[str]], said: Sequence[AbstractSet[str]], labels: Iterable[str] | None = None
) -> dict[str, Counts]:
    """Return for each label what was said of it over all cases.

    Parameters
    ----------
    truth : sequence of set of str
        True labels, one set a case.
    said : sequence of set of str
        Labels that were said, in the same order of cases.
    labels : iterable of str, optional
        Labels that count; by default all that are true or were said in any case.

    Raises
    ------
    BadValueError
        If the cases are not the same.
    """
    if len(truth) != len(said):
        raise BadValueError("Every case has a truth and an answer.", given=f"{len(truth)} truths, {len(said)} answers")
    counted = sorted(set().union(*truth, *said)) if labels is None else list(dict.fromkeys(labels))
    return {
        label: Counts(
            right=sum(label in true and label in heard for true, heard in zip(truth, said, strict=True)),
            wrong=sum(label not in true and label in heard for true, heard in zip(truth, said, strict=True)),
            missed=sum(label in true and label not in heard for true, heard in zip(truth, said, strict=True)),
        )
        for label in counted
    }


def micro(counts: Mapping[str, Counts]) -> Counts:
    """Return all labels together: every answer weighs the same.

    Parameters
    ----------
    counts : mapping of str to Counts
    """
    return sum(counts.values(), Counts())


def macro_f1(counts: Mapping[str, Counts]) -> float:
    """Return the mean of the labels' F1: every label weighs the same; labels without a case are left out.

    Parameters
    ----------
    counts : mapping of str to Counts
    """
    known = [each.f1 for each in counts.values() if not math.isnan(each.f1)]
    return sum(known) / len(known) if known else math.nan


def interval(
    cases: int,
    statistic: Callable[[NDArray[np.int64]], float],
    *,
    seed: int = 0,
    rounds: int = 1000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Return a bootstrap interval of a statistic over cases, by percentiles.

    Parameters
    ----------
    cases : int
        How many there are.  Where several belong to one system, these are the systems.
    statistic : callable
        Takes indices of cases, some more than once, and returns a number.
    seed : int
    rounds : int
    level : float
        Share of the drawn statistics inside.

    Returns
    -------
    tuple of float
        NaN where the statistic never is a number.
    """
    if cases < 1 or rounds < 1 or not 0 < level < 1:
        raise BadValueError(
            "A bootstrap needs cases, rounds and a level between 0 and 1.", given=(cases, rounds, level)
        )
    draws = stream(seed, "bootstrap", cases).integers(0, cases, (rounds, cases))
    found = np.array([statistic(each) for each in draws], np.float64)
    found = found[~np.isnan(found)]
    if not found.size:
        return math.nan, math.nan
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that an alarm is to find.

    Parameters
    ----------
    subject : hashable
        Where: a node, a satellite.  Alarms of other subjects do not find it.
    begin_s, end_s : float
        An alarm from ``begin_s`` to ``end_s``, both ends included, finds it.
    label : str
        Its kind.
    since_s : float, optional
        From when its delay counts; by default ``begin_s``.
    """

    subject: Hashable
    begin_s: float
    end_s: float
    label: str = ""
    since_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class AlarmScore:
    """How alarms meet events.

    Parameters
    ----------
    events : int
    found : int
        Events that at least one alarm found.
    false_alarms : int
        Merged alarms that found no event.
    days : float
        Watched, summed over what rates are stated per (the cluster, or satellites).
    delays_s : tuple of float
        From ``since_s`` of each found event to its first alarm, in the order of events.
    missed : tuple of Event
    """

    events: int
    found: int
    false_alarms: int
    days: float
    delays_s: tuple[float, ...]
    missed: tuple[Event, ...]

    @property
    def recall(self) -> float:
        """Found of all events; NaN without any."""
        return _ratio(self.found, self.events)

    @property
    def false_per_day(self) -> float:
        """False alarms per day."""
        return self.false_alarms / self.days

    @property
    def time_to_locate_s(self) -> float:
        """Median delay of what was found; NaN where nothing was."""
        return float(np.median(self.delays_s)) if self.delays_s else math.nan


def merged(times_s: ArrayLike, within_s: float) -> list[tuple[float, float]]:
    """Return groups of alarms as first and last time: an alarm belongs to the one before it that is at most so far off.

    Parameters
    ----------
    times_s : array of float, shape (n,)
        In any order.
    within_s : float
        The largest gap inside a group.
    """
    times = np.sort(_finite(times_s))
    if not times.size:
        return []
    first = np.concatenate(([True], np.diff(times) > within_s))
    last = np.concatenate((first[1:], [True]))
    return list(zip(times[first].tolist(), times[last].tolist(), strict=True))


def alarm_score(
    alarms: Mapping[Any, ArrayLike], events: Sequence[Event], *, days: float, within_s: float = 0.0
) -> AlarmScore:
    """Return how alarms meet events.  Repeated alarms of a subject are merged before false ones are counted.

    A merged alarm is false when none of its own times finds an event; one that goes on after it found an event is not.

    Parameters
    ----------
    alarms : mapping of subject to array of float
        Times of alarms in seconds.
    events : sequence of Event
    days : float
        That were watched.
    within_s : float
        Alarms of a subject that are at most so far apart are one.

    Raises
    ------
    BadValueError
        If no time was watched, or an event ends before it begins.
    """
    if not days > 0:
        raise BadValueError("Alarms are counted over a time that was watched.", given=f"{days} days")
    times = {subject: np.sort(_finite(each)) for subject, each in alarms.items()}
    none = np.empty(0)
    delays, missed = [], []
    for event in events:
        if not event.begin_s <= event.end_s:
            raise BadValueError("An event ends before it begins.", given=event)
        of = times.get(event.subject, none)
        at = int(np.searchsorted(of, event.begin_s))
        if at < of.size and of[at] <= event.end_s:
            delays.append(float(of[at]) - (event.begin_s if event.since_s is None else event.since_s))
        else:
            missed.append(event)
    wrong = 0
    for subject, of in times.items():
        finds = np.zeros(of.size, np.bool_)
        for event in events:
            if event.subject == subject:
                finds |= (of >= event.begin_s) & (of <= event.end_s)
        groups = merged(of, within_s)
        wrong += sum(not finds[(of >= begin) & (of <= end)].any() for begin, end in groups)
    return AlarmScore(
        events=len(events), found=len(delays), false_alarms=wrong, days=days, delays_s=tuple(delays),
        missed=tuple(missed),
    )  # fmt: skip


def threshold_for(
    scores: Mapping[Any, tuple[ArrayLike, ArrayLike]], *, per_day: float, days: float, within_s: float = 0.0
) -> float:
    """Return the least threshold at which a time without events has no more merged alarms than is wished.

    An alarm is a score above the threshold.  Every higher threshold keeps to the wish as well.

    Parameters
    ----------
    scores : mapping of subject to (array of float, array of float)
        Times in seconds and scores, of a time without events; scores that are NaN are never alarms.
    per_day : float
        Alarms that are allowed, at most.
    days : float
        That were watched.
    within_s : float
        As for :func:`alarm_score`.

    Returns
    -------
    float
        ``-inf`` where even all scores together are few enough.
    """
    if not days > 0 or not per_day >= 0:
        raise BadValueError("An allowed rate is 0 or more, over a time that was watched.", given=(per_day, days))
    pairs = []
    for number, (times_s, values) in enumerate(scores.values()):
        times, of = np.asarray(times_s, np.float64).ravel(), np.asarray(values, np.float64).ravel()
        if times.shape != of.shape:
            raise BadValueError("Every score has a time.", given=(times.size, of.size))
        known = ~np.isnan(of)
        pairs += [(value, number, time) for value, time in zip(of[known].tolist(), times[known].tolist(), strict=True)]
    pairs.sort(reverse=True)
    kept: list[list[float]] = [[] for _ in scores]
    alarms, at, allowed = 0, 0, per_day * days
    while at < len(pairs):
        value = pairs[at][0]
        while at < len(pairs) and pairs[at][0] == value:
            _, number, time = pairs[at]
            alarms += _more(kept[number], time, within_s)
            at += 1
        if alarms > allowed:
            return float(value)
    return -math.inf


def _more(times: list[float], time: float, within: float) -> int:
    """Put a time among sorted ones; return by how many the merged groups grow: 1, 0, or -1 where it joins two."""
    at = bisect_left(times, time)
    left = at > 0 and time - times[at - 1] <= within
    right = at < len(times) and times[at] - time <= within
    apart = 0 < at < len(times) and times[at] - times[at - 1] <= within
    insort(times, time)
    return 1 - left - right + apart


def risk_coverage(confidence: ArrayLike, wrong: ArrayLike) -> tuple[Floats, Floats]:
    """Return the risk at each coverage of an analyser that answers only where it is sure enough.

    Parameters
    ----------
    confidence : array of float, shape (n,)
        Of each case; cases of one confidence are answered together.
    wrong : array of bool, shape (n,)
        Whether the answer is wrong, or harmful.

    Returns
    -------
    coverage, risk : numpy.ndarray of float64
        Share of cases that are answered, rising, and the share of these that are wrong.

    Raises
    ------
    BadValueError
        Without cases, with another number of answers, or with a confidence that is NaN.
    """
    sure, bad = np.asarray(confidence, np.float64).ravel(), np.asarray(wrong, np.bool_).ravel()
    if sure.shape != bad.shape or not sure.size or np.isnan(sure).any():
        raise BadValueError("Every case has a confidence and an answer.", given=f"{sure.size} and {bad.size} cases")
    order = np.argsort(-sure, kind="stable")
    last = np.concatenate((np.diff(sure[order]) != 0, [True]))
    answered = np.arange(1, sure.size + 1)[last]
    return answered / sure.size, np.cumsum(bad[order])[last] / answered


def risk_at(confidence: ArrayLike, wrong: ArrayLike, coverage: float) -> float:
    """Return the risk at a coverage: between two that thresholds reach, the surer cases and a part of the next ones.

    Parameters
    ----------
    confidence, wrong : array, shape (n,)
        As for :func:`risk_coverage`.
    coverage : float
        Above 0, at most 1.
    """
    if not 0 < coverage <= 1:
        raise BadValueError("A coverage is above 0 and at most 1.", given=coverage)
    covered, risk = risk_coverage(confidence, wrong)
    harm = np.interp(coverage, np.concatenate(([0.0], covered)), np.concatenate(([0.0], covered * risk)))
    return float(harm) / coverage


def area_of_risk(confidence: ArrayLike, wrong: ArrayLike) -> float:
    """Return the area below the curve of risk against coverage; less is better, 0 where nothing is wrong.

    Parameters
    ----------
    confidence, wrong : array, shape (n,)
        As for :func:`risk_coverage`.
    """
    covered, risk = risk_coverage(confidence, wrong)
    return float((risk * np.diff(covered, prepend=0.0)).sum())


def held_out(systems: Sequence[Hashable], share: float, *, seed: int = 0) -> NDArray[np.bool_]:
    """Return which cases are held out: whole systems, never some windows of one.

    Parameters
    ----------
    systems : sequence of hashable, length n
        The system of each case: a node, a satellite, a family of programs.
    share : float
        Of the systems, rounded; at least one and never all.
    seed : int

    Returns
    -------
    numpy.ndarray of bool, shape (n,)

    Raises
    ------
    BadValueError
        With fewer than two systems, or a share that is none.
    """
    names = list(dict.fromkeys(systems))
    if len(names) < 2 or not 0 < share < 1:
        raise BadValueError(
            "Two systems at least, of which a share between 0 and 1 is held out.",
            given=f"{len(names)} systems, {share}",
        )
    many = min(max(round(share * len(names)), 1), len(names) - 1)
    drawn = stream(seed, "held out", len(names)).permutation(len(names))[:many]
    out = {names[at] for at in drawn.tolist()}
    return np.array([each in out for each in systems], np.bool_)


def _finite(times_s: ArrayLike) -> Floats:
    times = np.asarray(times_s, np.float64).ravel()
    if not np.isfinite(times).all():
        raise BadValueError("An alarm has a time.", given=times[~np.isfinite(times)][0])
    return times


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan
