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
from wavetank.study.effects import LEAST_FOR_INTERVAL

if TYPE_CHECKING:
    from wavetank.study.study import Metric
    from wavetank.study.summary import Row

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LARGE = 1e7  # from which on figures without a prefix are shown in powers of a thousand
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
    factor : float
        The power of ten that the unit shown begins with, where it has no prefix of its own.
    """

    base: str
    unit: str
    factor: float = 1.0

    def of(self, value: float) -> float:
        """Return a recorded value in the unit shown."""
        return value / self.factor if self.factor != 1 else units.convert(value, self.base, self.unit)

    def text(self, value: float) -> str:
        """Write a recorded value in the unit shown, without naming the unit."""
        return units.show(self.of(value))

    def interval(self, row: Row, dash: str = "..") -> str:
        """Write the interval of a row; empty where one seed, or equal figures of all seeds, give none."""
        if row.seeds < 2 or row.least == row.most or math.isnan(row.low):
            return ""
        return f"{self.text(row.low)}{' to ' if row.low < 0 else dash}{self.text(row.high)}"


def spread(rows: Iterable[Row]) -> str:
    """Return what the intervals of rows are; empty where none has one."""
    counts = [row.seeds for row in rows if row.seeds > 1]
    if not counts:
        return ""
    if min(counts) >= LEAST_FOR_INTERVAL:
        return "95 % intervals"
    if max(counts) < LEAST_FOR_INTERVAL:
        return "least to most"
    return f"95 % intervals, or least to most of fewer than {LEAST_FOR_INTERVAL}"


def scale_for(unit: str, values: Iterable[float]) -> Scale:
    """Choose the prefix that suits the middle one of ``values``.

    Examples
    --------
    >>> scale_for("s", [0.012, 0.2, 1.4]).unit
    'ms'
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if not sizes:
        return Scale(unit, unit)
    middle = statistics.median(sizes)
    if unit not in _PREFIXED:
        if not _LARGE <= middle < 1e100:
            return Scale(unit, unit)
        power = int(math.log10(middle)) // 3 * 3
        return Scale(unit, f"×10{str(power).translate(RAISED)} {unit}".rstrip(), 10.0**power)
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


def is_share(metric: Metric) -> bool:
    """Return whether a metric is a share of a whole by its name, so that no value can be above 1."""
    return not metric.unit and "share" in metric.name.split("_")


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
