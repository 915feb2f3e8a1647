"""The unit in which a whole column or axis is shown, and names of metrics as people read them.

One unit a column: numbers under each other are compared, so a prefix that changes from row to row would mislead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wavetank import units

if TYPE_CHECKING:
    from wavetank.study import Metric
    from wavetank.summary import Row

_PREFIXED = {"s": ("s", "ms", "us", "ns"), "bytes": ("TB", "GB", "MB", "kB", "bytes")}
# Endings of names that state a unit, the longest first.
_ENDINGS = (
    ("_tokens_per_s", "tokens/s"),
    ("_requests_per_s", "requests/s"),
    ("_bytes_per_s", "bytes/s"),
    ("_per_s", "/s"),
    ("_bytes", "bytes"),
    ("_tokens", "tokens"),
    ("_joules", "joules"),
    ("_usd", "usd"),
    ("_s", "s"),
)


@dataclass(frozen=True)
class Scale:
    """How figures recorded in one unit are shown in another.

    Attributes
    ----------
    base : str
        The unit of the records.
    unit : str
        The unit shown.
    """

    base: str
    unit: str

    def of(self, value: float) -> float:
        """Return a recorded value in the unit shown."""
        return units.convert(value, self.base, self.unit)

    def text(self, value: float) -> str:
        """Write a recorded value in the unit shown, without naming the unit."""
        return units.show(self.of(value))

    def interval(self, row: Row, dash: str = "..") -> str:
        """Write the interval of a row; empty where one seed, or equal figures of all seeds, give none."""
        if row.seeds < 2 or row.least == row.most or math.isnan(row.low):
            return ""
        return f"{self.text(row.low)}{' to ' if row.low < 0 else dash}{self.text(row.high)}"


def scale_for(unit: str, values: Iterable[float]) -> Scale:
    """Choose the prefix that suits the middle one of ``values``.

    Examples
    --------
    >>> scale_for("s", [0.012, 0.2, 1.4]).unit
    'ms'
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if unit not in _PREFIXED or not sizes:
        return Scale(unit, unit)
    middle = statistics.median(sizes)
    fitting = (name for name in _PREFIXED[unit] if units.convert(middle, unit, name) >= 0.9995)
    return Scale(unit, next(fitting, _PREFIXED[unit][-1]))


def label(name: str, unit: str) -> str:
    """Return a metric's name without its unit, in words.

    Examples
    --------
    >>> label("ttft_p99_s", "s"), label("throughput_tokens_per_s", "tokens/s"), label("time_ratio", "")
    ('ttft p99', 'throughput', 'time ratio')
    """
    if unit:
        for ending in (f"_{unit.replace('/', '_per_')}", f"_per_{unit.partition('/')[2]}"):
            if name.endswith(ending) and name != ending:
                name = name.removesuffix(ending)
                break
    return name.replace("_", " ").strip()


def labels(metrics: Sequence[Metric]) -> dict[str, str]:
    """Return a label for every metric; two that would read alike keep their unit."""
    short = {metric.name: label(metric.name, metric.unit) for metric in metrics}
    taken = list(short.values())
    return {name: text if taken.count(text) == 1 else name.replace("_", " ") for name, text in short.items()}


def coordinate(name: str) -> tuple[str, str]:
    """Return the words and the unit in the name of a coordinate.

    Examples
    --------
    >>> coordinate("refresh_s"), coordinate("load")
    (('refresh', 's'), ('load', ''))
    """
    for ending, unit in _ENDINGS:
        if name.endswith(ending) and name != ending:
            return name.removesuffix(ending).replace("_", " "), unit
    return name.replace("_", " "), ""


def stated(value: float) -> str:
    """Write a figure of a source as it stands there: no digits are added.

    Examples
    --------
    >>> stated(0.62), stated(1_350_000.0)
    ('0.62', '1,350,000')
    """
    return f"{value:,.10g}"


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


def shortened(name: str, most: int) -> str:
    """Return a name with its middle left out when it is longer than ``most`` characters.

    Examples
    --------
    >>> shortened("a-very-long-name-of-a-system", 16)
    'a-very-lo…system'
    """
    if len(name) <= most:
        return name
    tail = (most - 1) * 2 // 5
    return f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"
