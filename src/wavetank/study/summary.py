"""Summaries of records: medians over replicates with their intervals.

The report and the terminal table print these and compute nothing of their own.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wavetank.study.effects import per_replicate, shown_interval
from wavetank.study.records import Record, canonical_at


@dataclass(frozen=True)
class Row:
    """One line of a summary.

    Attributes
    ----------
    system, metric, unit, kind : str
    median, low, high : float
        Median over replicates, and the ends of its exact 95 % interval; below six replicates least and most.
    least, most : float
        Smallest and largest value.
    seeds : int
        How many replicates gave a figure: seeds, or processes of a timing study.
    at : dict
        Coordinates inside the trial.
    """

    system: str
    metric: str
    median: float
    low: float
    high: float
    unit: str
    kind: str
    seeds: int
    least: float
    most: float
    at: dict[str, Any]


def summarise(records: Iterable[Record], rounds: int = 1) -> list[Row]:
    """Return one row for every system, metric and coordinate, in order of first appearance.

    Parameters
    ----------
    records : iterable of Record
    rounds : int
        Consecutive seeds that make one replicate: the rounds of a process.
    """
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.system, record.metric, canonical_at(record.at)].append(record)
    rows = []
    for (system, metric, at), group in groups.items():
        by_seed = {record.seed: record.value for record in group}
        values = list(per_replicate(by_seed, rounds).values())
        median = statistics.median(values) if values else math.nan
        low, high = shown_interval(values) if values else (math.nan, math.nan)
        rows.append(
            Row(
                system,
                metric,
                median,
                low,
                high,
                group[0].unit,
                group[0].kind,
                len(values),
                min(values, default=math.nan),
                max(values, default=math.nan),
                json.loads(at),
            )
        )
    return rows
