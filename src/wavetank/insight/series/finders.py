"""Which periods and level shifts are in a series: the decomposition's answer, and those of simpler ways."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from wavetank.diagnosis.changes import noise_of
from wavetank.diagnosis.periods import LEAST_CYCLES, periodogram
from wavetank.errors import missing_extra
from wavetank.insight.series.decompose import CloudDecomposition
from wavetank.settings import check_ranges, setting
from wavetank.workloads.series import Regular


class Found(NamedTuple):
    """What was found in a series.

    Parameters
    ----------
    periods : tuple of float
        In steps.
    changes : tuple of int
        Slots at which a new level begins.
    """

    periods: tuple[float, ...]
    changes: tuple[int, ...]


class Finder(Protocol):
    """Says what is in a series."""

    def find(self, series: Regular) -> Found:
        """Return its periods and level shifts."""


@dataclass(frozen=True, kw_only=True)
class PartsFound(CloudDecomposition):
    """What the decomposition finds."""

    def find(self, series: Regular) -> Found:
        """Return periods and level shifts of a decomposition.

        Parameters
        ----------
        series : Regular
        """
        parts = self.decompose(series)
        return Found(tuple(each.period for each in parts.periods), parts.changes)


@dataclass(frozen=True, kw_only=True)
class GivenWeek:
    """What a user of STL has: the period that was given, and no level shift."""

    period: float = setting(7.0, unit="steps", says="The period that is given", low=2.0, high=1e6)

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, series: Regular) -> Found:
        """Return the period that was given, whatever the series.

        Parameters
        ----------
        series : Regular
        """
        return Found((self.period,), ())


@dataclass(frozen=True, kw_only=True)
class PeaksAndPelt:
    """Peaks of the periodogram beyond the formula for independent noise, and PELT of ruptures with squares."""

    chance: float = setting(0.001, says="With which independent noise shows a period", low=1e-9, high=0.5)

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, series: Regular) -> Found:
        """Return all peaks, and all changes of the mean.

        Parameters
        ----------
        series : Regular
        """
        try:
            import ruptures
        except ImportError:
            raise missing_extra("ruptures", "insight", needed_for="PELT with squares") from None
        seen = np.flatnonzero(~series.missing)
        x = np.log(series.value[seen])
        noise = noise_of(x)
        search = ruptures.KernelCPD(kernel="linear", min_size=14).fit((x / noise)[:, None])
        cuts = search.predict(pen=3.0 * math.log(x.size))[:-1]
        level = np.concatenate([np.full(each.size, each.mean()) for each in np.split(x, cuts)])
        rest = np.zeros(series.value.size)
        rest[seen] = x - level
        frequency, power = periodogram(rest, series.missing)
        span = int(seen[-1] - seen[0] + 1)
        # Independent frequencies, of which each is exceeded with (1 - power) ** ((n - 3) / 2).
        alone = -math.expm1(math.log1p(-self.chance) / (span / 2.0))
        enough = 1.0 - alone ** (2.0 / (x.size - 3.0))
        inside = power[1:-1]
        top = np.flatnonzero((inside > enough) & (inside >= power[:-2]) & (inside >= power[2:])) + 1
        periods = tuple(1.0 / frequency[each] for each in top if frequency[each] >= LEAST_CYCLES / span)
        return Found(tuple(map(float, periods)), tuple(int(seen[each]) for each in cuts))
