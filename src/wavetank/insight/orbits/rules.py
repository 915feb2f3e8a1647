"""Rules for orbit events: the paper's first tier, and robust ones over a moving window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from wavetank.insight.orbits.interface import History, Unlearned
from wavetank.insight.orbits.mechanics import Floats, altitude_km, axis_km, node_rate
from wavetank.settings import check_ranges, setting
from wavetank.workloads.tle import DAY_NS, Elements

NORMAL, MANOEUVRE, DECAY, BREAKUP = range(4)
"""Labels of records."""


def rule_labels(elements: Elements) -> NDArray[np.int64]:
    """Return the labels of the paper's first tier; the first record is normal.

    Parameters
    ----------
    elements : Elements
    """
    height, drag = altitude_km(elements), elements.drag
    rise = np.diff(height)
    before, after = drag[:-1], drag[1:]
    rules = (
        (height[1:] < 250, BREAKUP),
        ((rise < -5) & (height[1:] < 400), DECAY),
        (np.abs(np.diff(elements.inclination_deg)) > 0.1, MANOEUVRE),
        (np.abs(rise) > 10, MANOEUVRE),
        (np.abs(np.diff(elements.eccentricity)) > 0.01, MANOEUVRE),
        ((before * after < 0) & (np.minimum(np.abs(before), np.abs(after)) > 5e-3), MANOEUVRE),
        ((np.abs(after - before) > 2 * np.abs(before)) & (np.abs(after) > 5e-3), DECAY),
    )
    found = np.full(len(elements), NORMAL, np.int64)
    for holds, label in reversed(rules):
        found[1:][holds] = label
    return found


@dataclass(frozen=True, kw_only=True)
class PaperRule(Unlearned):
    """Seven thresholds on two records; they lie far above what keeps a satellite in its place."""

    alarm_at: ClassVar[float] = 0.5

    def scores(self, history: History) -> Floats:
        """Return 1 where the label is a manoeuvre, else 0.

        Parameters
        ----------
        history : History
        """
        return (rule_labels(history.elements) == MANOEUVRE).astype(np.float64)


def running_median(values: Floats, window: int) -> Floats:
    """Return medians over a window around each value, mirrored at the ends.

    Parameters
    ----------
    values : numpy.ndarray of float64, shape (n,)
    window : int
        Odd.
    """
    found: Floats = median_filter(values, min(window, 2 * values.size - 1), mode="reflect") if values.size else values
    return found


def departures(values: Floats, floor: float, window: int, times: float) -> Floats:
    """Return how far values are from their running median, in units of what is an alarm.

    Parameters
    ----------
    values : numpy.ndarray of float64, shape (n,)
    floor : float
        Departures below it are none, whatever the noise.
    window : int
        Records.
    times : float
        Running median absolute departures that are an alarm.
    """
    off = np.abs(values - running_median(values, window))
    found: Floats = off / np.maximum(times * running_median(off, window), floor)
    return found


@dataclass(frozen=True, kw_only=True)
class RobustRule(Unlearned):
    """One line: the change of the semi-major axis against its running median, in running median departures."""

    alarm_at: ClassVar[float] = 1.0

    window: int = setting(31, says="records of the running median, centred", low=3, high=999)
    times: float = setting(6.0, says="running median departures that are an alarm", low=0.5, high=100)
    floor_m: float = setting(3.0, says="change of the axis that is none whatever the noise", unit="m", low=0.001)

    def __post_init__(self) -> None:
        check_ranges(self)

    def scores(self, history: History) -> Floats:
        """Return departures over the alarm's; the first record has none.

        Parameters
        ----------
        history : History
        """
        change = np.diff(axis_km(history.elements.mean_motion)) * 1000
        return np.concatenate(([math.nan], departures(change, self.floor_m, self.window, self.times)))


@dataclass(frozen=True, kw_only=True)
class RobustElements(Unlearned):
    """The same line on three elements that a burn may change: axis, inclination, and eccentricity; the largest counts.

    The inclination catches burns across the orbit's plane, which leave the axis as it is.
    """

    alarm_at: ClassVar[float] = 1.0

    window: int = setting(31, says="records of the running median, centred", low=3, high=999)
    times: float = setting(6.0, says="running median departures that are an alarm", low=0.5, high=100)
    axis_m: float = setting(3.0, says="change of the axis that is none whatever the noise", unit="m", low=0.001)
    tilt_deg: float = setting(1e-3, says="change of the inclination that is none, likewise", unit="deg", low=1e-6)
    shape: float = setting(1e-5, says="change of the eccentricity that is none, likewise", low=1e-9)

    def __post_init__(self) -> None:
        check_ranges(self)

    def scores(self, history: History) -> Floats:
        """Return the largest departure over the alarm's; the first record has none.

        Parameters
        ----------
        history : History
        """
        of = history.elements
        changes = (
            (np.diff(axis_km(of.mean_motion)) * 1000, self.axis_m),
            (np.diff(of.inclination_deg), self.tilt_deg),
            (np.diff(of.eccentricity), self.shape),
        )
        parts = [departures(change, floor, self.window, self.times) for change, floor in changes]
        return np.concatenate(([math.nan], np.max(parts, axis=0)))


@dataclass(frozen=True, kw_only=True)
class SinkingRule(Unlearned):
    """One line for decay: the median of the last rates of the axis, downwards, in units of the rates' own noise."""

    alarm_at: ClassVar[float] = 3.0

    window: int = setting(9, says="records whose rates count, the last ones", low=1, high=999)

    def __post_init__(self) -> None:
        check_ranges(self)

    def scores(self, history: History) -> Floats:
        """Return the median rate over what such medians depart by; the first records have none.

        Parameters
        ----------
        history : History
        """
        of, found = history.elements, np.full(len(history.elements), math.nan)
        if len(of) <= self.window:
            return found
        rates = -np.diff(axis_km(of.mean_motion) * 1000) / (np.diff(of.epoch_ns) / DAY_NS)
        medians = np.median(np.lib.stride_tricks.sliding_window_view(rates, self.window), axis=1)
        found[self.window :] = medians / max(float(np.median(np.abs(medians))), 1e-9)
        return found


def changes_of(elements: Elements) -> dict[str, Floats]:
    """Return what changes from record to record, as differences that noise alone would leave near zero.

    Parameters
    ----------
    elements : Elements

    Returns
    -------
    dict of str to numpy.ndarray of float64, shape (n - 1,)
        Axis in m; inclination and node, less what J2 turns it by, in degrees; eccentricity; B*.
    """
    days = np.diff(elements.epoch_ns) / DAY_NS
    axis = axis_km(elements.mean_motion)
    turned = node_rate(axis, elements.eccentricity, elements.inclination_deg)[:-1] * days
    node = np.diff(elements.node_deg) - turned
    return {
        "axis": np.diff(axis) * 1000,
        "inclination": np.diff(elements.inclination_deg),
        "node": (node + 180) % 360 - 180,
        "eccentricity": np.diff(elements.eccentricity),
        "drag": np.diff(elements.drag),
    }
