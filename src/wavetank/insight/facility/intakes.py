"""Three ways from messages to means of minutes, whose speed and rightness a study compares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wavetank.errors import missing_extra
from wavetank.insight.facility.ingest import MINUTE_S, Ingestion, Mean, Rules


class Arrived(NamedTuple):
    """A message as it comes.

    Attributes
    ----------
    now_s : float
        When it comes, seconds since the epoch.
    topic : str
    payload : bytes
    """

    now_s: float
    topic: str
    payload: bytes


class Intake(Protocol):
    """Turns messages into means."""

    def means(self, messages: Sequence[Arrived], until_s: float) -> list[Mean]:
        """Return the means of all minutes that end before a time, when all messages have come."""


@dataclass(frozen=True, kw_only=True)
class LateWindow:
    """Waits five minutes for late messages, drops duplicates, and checks ranges, jumps and stuck sensors."""

    def means(self, messages: Sequence[Arrived], until_s: float) -> list[Mean]:
        """Return the means.

        Parameters
        ----------
        messages : sequence of Arrived
            In the order in which they come.
        until_s : float
        """
        ingestion, found, closing = Ingestion(), [], 0.0
        for now_s, topic, payload in messages:
            if now_s >= closing:
                found += ingestion.close(now_s)
                closing = (now_s // MINUTE_S + 1) * MINUTE_S
            ingestion.take(topic, payload, now_s)
        return found + ingestion.close(until_s + Rules().late_s)


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """Closes a topic's minute when its next one begins, and takes every message as it comes."""

    def means(self, messages: Sequence[Arrived], until_s: float) -> list[Mean]:
        """Return the means.

        Parameters
        ----------
        messages : sequence of Arrived
        until_s : float
        """
        sums: dict[str, tuple[int, float, int]] = {}
        found = []
        for _, topic, payload in messages:
            said = json.loads(payload)
            minute, value = int(said["ts"] // MINUTE_S), said["value"]
            now, total, count = sums.get(topic, (minute, 0.0, 0))
            if minute > now:
                found.append(Mean(topic, now, total / count, count))
                sums[topic] = (minute, value, 1)
            elif minute == now:
                sums[topic] = (now, total + value, count + 1)
        for topic, (now, total, count) in sums.items():
            if (now + 1) * MINUTE_S <= until_s:
                found.append(Mean(topic, now, total / count, count))
        return found


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Keeps all messages and lets pandas drop duplicates and group them at the end: late by design."""

    def means(self, messages: Sequence[Arrived], until_s: float) -> list[Mean]:
        """Return the means.

        Parameters
        ----------
        messages : sequence of Arrived
        until_s : float
        """
        try:
            import pandas
        except ImportError:
            raise missing_extra("pandas", "pandas", needed_for="A batch job of pandas") from None
        said = [json.loads(each.payload) for each in messages]
        table = pandas.DataFrame({
            "topic": [each.topic for each in messages], "ts": [each["ts"] for each in said],
            "value": [each["value"] for each in said],
        }).drop_duplicates(["topic", "ts"])  # fmt: skip
        table["minute"] = (table["ts"] // MINUTE_S).astype("int64")
        grouped = table[table["ts"] < until_s // MINUTE_S * MINUTE_S].groupby(["minute", "topic"], sort=True)["value"]
        return [
            Mean(topic, int(minute), float(mean), int(count))
            for (minute, topic), mean, count in zip(grouped.mean().index, grouped.mean(), grouped.count(), strict=True)
        ]
