"""A small study for charts, and what a reader finds in a drawing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from wavetank.report.charts import Drawing, draw
from wavetank.run.comparison import Comparison
from wavetank.study.records import Record
from wavetank.study.study import Chart, Metric, Study


@dataclass(frozen=True, kw_only=True)
class Plain(Study):
    """What is where?"""

    name: ClassVar[str] = "plain"
    baseline: ClassVar[str] = "base"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("wait_s", "s", "lower"),
        Metric("rate_per_s", "requests/s", "higher"),
        Metric("steps", "steps", ""),
        Metric("late_share", "", "lower"),
    )


@pytest.fixture
def plain(compared: Callable[..., Comparison]) -> Callable[..., Comparison]:
    """Build a run of one metric from (system, value, coordinates) rows, without claims."""

    def build(*rows: tuple[object, ...], systems: tuple[str, ...] = ("base", "left", "right")) -> Comparison:
        units = {metric.name: metric.unit for metric in Plain.metrics}
        records = []
        for system, metric, value, *at in rows:
            values = value if isinstance(value, list) else [value]
            records += [
                Record("plain", system, seed, metric, each, units[metric], "simulated", at[0] if at else {})
                for seed, each in enumerate(values)
            ]
        comparison = compared(Plain(), records, systems=systems)
        comparison.__dict__["findings"] = []
        return comparison

    return build


@pytest.fixture
def drawn() -> Callable[..., Drawing]:
    """Draw one chart of a run."""

    def draw_one(comparison: Comparison, kind: str, **more: str) -> Drawing:
        return draw(comparison, Chart(kind, "A chart", **{"y": "wait_s", **more}), "c")

    return draw_one


@pytest.fixture
def texts() -> Callable[[Drawing], list[str]]:
    """Return all text of a drawing."""
    return lambda drawing: re.findall(r">([^<>\n]+)</text>", "".join(panel.svg for panel in drawing.panels))


@pytest.fixture
def described() -> Callable[[Drawing], str]:
    """Return the descriptions of a drawing's panels."""

    def descriptions(drawing: Drawing) -> str:
        return " ".join(re.search(r"<desc[^>]*>(.*?)</desc>", panel.svg, re.DOTALL)[1] for panel in drawing.panels)

    return descriptions
