"""Sensors' messages become means of minutes, whatever their order and however often they come.

A topic is site/rack/server/metric, a payload JSON with ts (seconds), value and unit; a message comes at least once.  A
minute is closed when its late window has passed; until then messages may come in any order and twice.  What depends on
the order of readings (a value that jumps, a sensor that is stuck) is judged when a minute is closed, by the readings'
own times, and sums are exact, so that the order in which messages come changes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wavetank.errors import BadValueError
from wavetank.settings import check_ranges, setting

MINUTE_S = 60
_TOPIC = re.compile(r"[A-Za-z0-9_.-]{1,64}(?:/[A-Za-z0-9_.-]{1,64}){3}")
_MOST_PAYLOAD = 1024


class Metric(NamedTuple):
    """What a metric may be.

    Attributes
    ----------
    unit : str
    low, high : float
        Bounds of its values.
    jump : float
        Largest change a second.
    stuck : bool
        Whether a value that stays equal means that the sensor is broken.
    """

    unit: str
    low: float
    high: float
    jump: float
    stuck: bool


METRICS: Mapping[str, Metric] = {
    "power": Metric("W", 0.0, 5_000.0, 500.0, True),
    "load": Metric("", 0.0, 1.0, 1.0, False),
    "inlet": Metric("C", -10.0, 60.0, 1.0, True),
    "room": Metric("C", -10.0, 80.0, 1.0, True),
    "supply": Metric("C", -10.0, 60.0, 5.0, False),
    "outside": Metric("C", -60.0, 60.0, 1.0, True),
    "humidity": Metric("%", 0.0, 100.0, 10.0, True),
}
DUPLICATE, LATE, FUTURE, MALFORMED, RANGE, JUMP, STUCK, TOO_MANY = (
    "duplicate", "late", "future", "malformed", "range", "jump", "stuck", "too many",
)  # fmt: skip
TAKEN = "taken"


class Mean(NamedTuple):
    """A minute of a topic.

    Attributes
    ----------
    topic : str
    minute : int
        Minutes since the epoch.
    value : float
    readings : int
        That it is the mean of.
    """

    topic: str
    minute: int
    value: float
    readings: int


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When messages count."""

    late_s: int = setting(300, unit="s", says="Time after a minute for which its messages may still come", low=0,
                          high=86_400)  # fmt: skip
    future_s: float = setting(60.0, unit="s", says="How far ahead a message's time may be", low=0, high=86_400)
    stuck: int = setting(30, says="Equal readings after which a sensor is stuck", low=2, high=10**6)
    topics: int = setting(200_000, says="Topics at most", low=1, high=10**7)
    per_minute: int = setting(120, says="Readings of a topic in a minute at most", low=1, high=10**5)
    held: int = setting(4_000_000, says="Readings of minutes that are not closed, of all topics, at most", low=1,
                        high=10**8)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)


class _Past:
    """What is known of a topic's last reading that counted, and how often its value has come in a row."""

    __slots__ = ("equal", "ts", "value")

    def __init__(self) -> None:
        self.ts, self.value, self.equal = -math.inf, math.nan, 0


class Ingestion:
    """Takes messages, gives means.

    Parameters
    ----------
    rules : Rules, optional
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = Rules() if rules is None else rules
        self.counts: dict[str, int] = {TAKEN: 0}
        self._open: dict[int, dict[str, dict[float, float]]] = {}
        self._past: dict[str, _Past] = {}
        self._closed = -(2**62)
        self._held = 0

    def take(self, topic: str, payload: bytes | str, now_s: float) -> str:
        """Take a message; return what became of it: TAKEN, or why it does not count.

        Parameters
        ----------
        topic : str
        payload : bytes or str
        now_s : float
            Time of its arrival, seconds since the epoch.
        """
        return self.note(self._take(topic, payload, now_s))

    def note(self, verdict: str) -> str:
        """Count a verdict and return it.

        Parameters
        ----------
        verdict : str
        """
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        return verdict

    def _take(self, topic: str, payload: bytes | str, now_s: float) -> str:
        rules = self.rules
        if len(payload) > _MOST_PAYLOAD:
            return MALFORMED
        try:
            said = json.loads(payload)
            ts, value, unit = said["ts"], said["value"], said["unit"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return MALFORMED
        past = self._past.get(topic)
        if past is None and not _TOPIC.fullmatch(topic):
            return MALFORMED
        metric = METRICS.get(topic.rpartition("/")[2])
        if metric is None or type(ts) not in (int, float) or type(value) not in (int, float) or unit != metric.unit:
            return MALFORMED
        if not metric.low <= value <= metric.high:
            return RANGE
        if not ts <= now_s + rules.future_s:
            return FUTURE
        if not ts >= 0.0:
            return MALFORMED
        minute = int(ts // MINUTE_S)
        if minute <= self._closed or (minute + 1) * MINUTE_S + rules.late_s <= now_s:
            return LATE
        if past is None:
            if len(self._past) >= rules.topics:
                return TOO_MANY
            self._past[topic] = _Past()
        readings = self._open.setdefault(minute, {}).setdefault(topic, {})
        if ts in readings:
            return DUPLICATE
        if len(readings) >= rules.per_minute or self._held >= rules.held:
            return TOO_MANY
        self._held += 1
        readings[ts] = value
        return TAKEN

    def close(self, now_s: float) -> list[Mean]:
        """Return the means of all minutes whose late window has passed, in order of minutes and topics.

        Parameters
        ----------
        now_s : float
        """
        if not math.isfinite(now_s):
            raise BadValueError("Now is no time.", given=now_s)
        last = int((now_s - self.rules.late_s) // MINUTE_S) - 1
        found = []
        for minute in sorted(each for each in self._open if each <= last):
            topics = self._open.pop(minute)
            self._held -= sum(map(len, topics.values()))
            for topic in sorted(topics):
                mean = self._mean(topic, minute, topics[topic])
                if mean is not None:
                    found.append(mean)
        self._closed = max(self._closed, last)
        return found

    def _mean(self, topic: str, minute: int, readings: dict[float, float]) -> Mean | None:
        metric, past = METRICS[topic.rpartition("/")[2]], self._past[topic]
        kept = []
        for ts in sorted(readings):
            value = readings[ts]
            gap = ts - past.ts
            # After a gap of more than a minute nothing is known of how a value has changed.
            if gap <= MINUTE_S and abs(value - past.value) > metric.jump * gap:
                self.note(JUMP)
                # The next reading is held against this one: a value that stays where it jumped to is believed.
                past.ts, past.value, past.equal = ts, value, 1
                continue
            past.equal = past.equal + 1 if value == past.value else 1
            past.ts, past.value = ts, value
            if metric.stuck and past.equal > self.rules.stuck:
                self.note(STUCK)
                continue
            kept.append(value)
        return Mean(topic, minute, math.fsum(kept) / len(kept), len(kept)) if kept else None
