"""What charts say in words: axes, cases, figures, and why something is not drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wavetank import units
from wavetank.report.scale import Scale, coordinate, label, listed

if TYPE_CHECKING:
    from wavetank.ledger.claims import Finding
    from wavetank.study.study import Metric
    from wavetank.study.summary import Row

BELOW = "not above zero, which a log scale cannot show"


def no_records(metric: Metric, by: str) -> str:
    """Say that a run has no records of a metric."""
    where = f" along {by}" if by else ""
    return f"There is nothing to draw: this run has no records of {metric.name}{where}."


def cut(have: int, most: int, what: str) -> list[str]:
    """Say how many groups or cases are drawn, where that is not all of them."""
    return [f"Drawn are the first {most} of {have} {what}; the table has all."] if have > most else []


def why_missing(row: Row | None, log: bool) -> str:
    """Say why a row cannot be drawn."""
    if row is None:
        return "no records"
    if not row.seeds:
        return "not a number"
    if math.isinf(row.median):
        return "infinite"
    return BELOW if log and row.median <= 0 else "too large to draw"


def axis_title(metric: Metric, scale: Scale, log: bool) -> str:
    """Return a metric's label with its unit, its better side and its kind of scale."""
    about = [scale.unit, f"{metric.better} is better" if metric.better else "", "log scale" if log else ""]
    description = ", ".join(filter(None, about))
    return label(metric.name, metric.unit) + (f" ({description})" if description else "")


def paper_notes(findings: Sequence[Finding]) -> list[str]:
    """Explain the hollow diamonds, where there are any."""
    if not findings:
        return []
    against = list(dict.fromkeys(finding.versus for finding in findings if finding.versus is not None))
    ratios = f"; ratios stand at that multiple of our median of {listed(against)}" if against else ""
    return [f"Hollow diamonds are the papers' figures{ratios}."]


def figure(row: Row | None, scale: Scale) -> str:
    """Write a row's median with its interval; a dash where there is none."""
    if row is None or not row.seeds:
        return "-"
    interval = scale.interval(row, " to ")
    return scale.text(row.median) + (f" ({interval})" if interval else "")


def is_number(value: Any) -> bool:
    """Return whether a coordinate is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def value(value: Any) -> str:
    """Write the value of a coordinate."""
    return units.show(value) if is_number(value) else str(value)


def heading(place: str) -> str:
    """Write the coordinates of a case, given in their canonical form."""
    return ", ".join(f"{coordinate(name)[0]}: {value(at)}" for name, at in json.loads(place).items())


def in_case(place: str) -> str:
    """Return the heading of a case in brackets, empty where there is only one case."""
    return f" ({heading(place)})" if place != "{}" else ""
