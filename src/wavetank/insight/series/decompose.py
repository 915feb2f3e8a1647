"""A long history of a cloud service, taken apart into level, trend, cycles that come and go, outliers and the rest.

Platform changes look like trends and hide cycles, so they come first: jumps of the level are cut out, then periods are
sought in what is left, then cycles and trend are smoothed in turn.  What was missing stays missing: every step weighs
what was seen.  Effects of a service multiply, so that a positive series is taken apart on a logarithmic scale.

A forecast puts the parts together again: the last level, the cycles that are on, and what is left of the last
deviation, which fades.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetank.diagnosis.changes import change_points, noise_of
from wavetank.diagnosis.periods import Period, find_periods, harmonics
from wavetank.errors import BadValueError
from wavetank.insight.series.interface import Decisions, Decomposition, Flags, Floats
from wavetank.insight.series.smooth import (
    NORMAL,
    bisquare,
    fitted,
    local_line,
    running_median,
    smoothed_subseries,
    spread_of,
)
from wavetank.settings import check_ranges, setting
from wavetank.workloads.series import Regular, Series, on_grid

LEAST_VALUES = 21
"""Fewer observed values say nothing: three cycles of a week."""

MOST_STEPS = 50_000
"""Longer grids are not taken apart: time and memory grow with more than the length."""

MOST_EMPTY = 50
"""Of so long a grid for its values one time is wrong, or the step: what is taken apart would be the gap."""

ANCHORS_NS = tuple(round(days * 86_400e9) for days in (1.0, 7.0, 30.44, 91.31, 365.25))
_OUTLIER_HALF = 15
_ROUNDS = 3
_SIDE = 30
_LEAST_SIDE = 5
_WHOLE = 0.02
_SHORT = 24
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class CloudDecomposition:
    """Takes a series apart, and puts the parts together for what comes next.

    The trend's reach, like all reaches, counts steps of the grid, of which the paper's data have one a day.
    """

    scale: str = setting("auto", says="Whether parts add up to the logarithm of the series; by itself where all is "
                         "above 0", choices=("auto", "log", "linear"))  # fmt: skip
    outlier: float = setting(4.0, says="Deviations from the median of 31 steps, in their usual size, from which a "
                             "value is an outlier", low=1.0, high=1e6)  # fmt: skip
    penalty: float = setting(3.0, says="What a level shift costs, times noise and logarithm of the length", low=0.01,
                             high=1e6)  # fmt: skip
    jump: float = setting(4.0, says="Standard errors by which both sides of a level shift must be apart", low=0.0,
                          high=1e6)  # fmt: skip
    least: int = setting(14, unit="steps", says="Fewest steps with values of a level", low=2, high=10**6)
    chance: float = setting(0.001, says="With which noise shows a period", low=1e-9, high=0.5)
    trend: float = setting(120.0, unit="steps", says="Reach of the trend on both sides", low=4.0, high=1e7)
    cycles: float = setting(26.0, unit="cycles", says="Reach of a short cycle's shape on both sides", low=2.0, high=1e7)
    turns_on: float = setting(0.6, says="Share of its usual size from which a cycle is on", low=0.0, high=2.0)
    turns_off: float = setting(0.3, says="Share of its usual size below which a cycle is off", low=0.0, high=2.0)
    recent: int = setting(14, unit="steps", says="Latest values whose median a forecast returns to", low=1, high=10**6)
    fresh: float = setting(0.2, says="Weight of the latest value in the deviation that a forecast begins with", low=0.0,
                           high=1.0)  # fmt: skip
    fades: float = setting(0.95, says="Share of the deviation that is left a step later", low=0.0, high=1.0)
    seed: int = setting(0, says="Of the orders of blocks by which periods are judged", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.turns_off > self.turns_on:
            raise BadValueError("A cycle turns off below where it turns on.", given=(self.turns_on, self.turns_off))

    def decompose(self, series: Regular, decisions: Decisions | None = None) -> Decomposition:
        """Return the parts of a series.

        Parameters
        ----------
        series : Regular
        decisions : Decisions, optional
            What an analyst fixed.

        Raises
        ------
        BadValueError
            For fewer than 21 values or one in 50 steps, more than 50,000 steps, values that are not above 0 on a
            logarithmic scale, or decisions outside of the series.
        """
        fixed = decisions or Decisions()
        if series.value.size > MOST_STEPS:
            raise BadValueError("The series has more steps than can be taken apart.", given=f"{series.value.size:,}",
                                allowed=f"{MOST_STEPS:,}", where=series.name,
                                hint="on_grid(series, step_ns=...) with a longer step")  # fmt: skip
        seen = ~series.missing
        if series.seen < LEAST_VALUES:
            raise BadValueError("The series is too short to say anything.", given=f"{series.seen} values",
                                allowed=f"at least {LEAST_VALUES}", where=series.name)  # fmt: skip
        if series.seen * MOST_EMPTY < series.value.size:
            raise BadValueError("Nearly all steps of the series have no value.",
                                given=f"{series.seen} of {series.value.size:,}", allowed=f"one in {MOST_EMPTY}",
                                where=series.name, hint="see whether a time is wrong")  # fmt: skip
        scale = self._scale(series)
        x = np.where(seen, series.value, 1.0)
        x = np.log(x) if scale == "log" else np.where(seen, series.value, 0.0)
        steps = np.arange(x.size, dtype=np.float64)
        plain = seen & ~self._outliers(x, seen)
        changes = _slots(series, fixed.changes) if fixed.changes is not None else self._changes(x, plain)
        level = _levels(x, plain, changes, self.trend)
        if fixed.periods is not None:
            _check_periods(series, fixed.periods)
            periods = tuple(Period(each, 0.0, 0.0, 0.0) for each in sorted(set(fixed.periods)))
        else:
            periods = self._periods(series, x - level, plain)
            if periods and fixed.changes is None:
                # Level shifts are clearer without the cycles.
                cycles, _ = self._cycles(x - level, plain, [each.period for each in periods], steps)
                changes = self._changes(x - sum(cycles.values()), plain)
                level = _levels(x - sum(cycles.values()), plain, changes, self.trend)
        cycles, trend = self._cycles(x - level, plain, [each.period for each in periods], steps)
        on = {each: self._on(x - level - trend - _others(cycles, each), plain, cycles[each], each) for each in cycles}
        if any(not each.all() for each in on.values()):
            cycles, trend = self._cycles(x - level, plain, list(cycles), steps, on)
        cycles = {each: np.where(on[each], cycles[each], 0.0) for each in cycles}
        # One constant for level and trend: the trend has none.
        shift = float(trend.mean())
        level, trend = level + shift, trend - shift
        rest = x - (level + trend + np.sum([np.zeros(x.size), *cycles.values()], axis=0))
        odd = seen & ~plain
        return Decomposition(
            series=series, scale=scale, level=level, trend=trend, cycles=cycles, on=on,
            outlier=np.where(odd, rest, 0.0), remainder=np.where(seen, np.where(odd, 0.0, rest), np.nan),
            changes=tuple(int(each) for each in changes), periods=periods,
        )  # fmt: skip

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return what comes next.

        Parameters
        ----------
        history : Regular
        steps : int
            At least one.

        Returns
        -------
        numpy.ndarray of float64, shape (steps,)
            In the unit of the series.

        Raises
        ------
        BadValueError
            As :meth:`decompose` does.
        """
        return self.continued(self.decompose(history), steps)

    def continued(self, parts: Decomposition, steps: int) -> Floats:
        """Return what comes after a decomposition.

        Parameters
        ----------
        parts : Decomposition
        steps : int
            At least one.

        Returns
        -------
        numpy.ndarray of float64, shape (steps,)
        """
        if steps < 1:
            raise BadValueError("A forecast is of at least one step.", given=steps)
        usual = (parts.level + parts.trend + parts.remainder)[: parts.level.size]
        at = np.flatnonzero(~np.isnan(usual) & (parts.outlier == 0.0))
        begins = parts.changes[-1] if parts.changes else 0
        last = at[at >= begins]
        last = (last if last.size else at)[-self.recent :]
        base = float(np.median(usual[last]))
        ahead = np.arange(1, steps + 1, dtype=np.float64)
        # A gap fades, too: the weight of a value falls with the steps that have passed since.
        age = (parts.level.size - 1) - last
        weight = self.fresh * (1.0 - self.fresh) ** age if self.fresh < 1.0 else (age == age.min()).astype(np.float64)
        deviation = float((weight * (usual[last] - base)).sum())
        out = base + deviation * self.fades**ahead
        size = parts.level.size
        for period, cycle in parts.cycles.items():
            if parts.on[period][-1]:
                out = out + _next_cycle(cycle, period, size, steps)
        return np.exp(out) if parts.scale == "log" else out

    def _scale(self, series: Regular) -> str:
        positive = bool((series.value[~series.missing] > 0).all())
        if self.scale == "log" and not positive:
            raise BadValueError("A logarithm needs values above 0.", given=float(np.nanmin(series.value)),
                                where=series.name, hint="--set scale=linear")  # fmt: skip
        return ("log" if positive else "linear") if self.scale == "auto" else self.scale

    def _outliers(self, x: Floats, seen: Flags) -> Flags:
        rest = np.where(seen, x - running_median(x, seen, _OUTLIER_HALF), 0.0)
        usual = NORMAL * running_median(np.abs(rest), seen, 3 * _OUTLIER_HALF)
        least = spread_of(rest[seen]) * 0.5
        return seen & (np.abs(rest) > self.outlier * np.maximum(usual, max(least, _TINY)))

    def _changes(self, x: Floats, plain: Flags) -> Sequence[int]:
        at = np.flatnonzero(plain)
        of = x[at]
        noise = noise_of(of)
        if of.size < 2 * self.least or not noise > 0:
            # Without noise every step is a shift: a tiny price still has to be paid.
            noise = max(noise, 1e-9 * float(np.ptp(of)) if of.size else 0.0)
            if of.size < 2 * self.least or not noise > 0:
                return ()
        cuts = list(change_points(of, penalty=self.penalty * math.log(of.size) * noise, least=self.least))
        while cuts:
            apart = [_apart(of, cuts, place, noise) for place in range(len(cuts))]
            weakest = int(np.argmin(apart))
            if apart[weakest] >= self.jump:
                break
            del cuts[weakest]
        return tuple(int(at[each]) for each in cuts)

    def _periods(self, series: Regular, x: Floats, plain: Flags) -> tuple[Period, ...]:
        rest = x - local_line(x, plain.astype(np.float64), max(x.size / 6.0, 60.0))
        anchors = [each / series.step_ns for each in ANCHORS_NS if each >= 2 * series.step_ns]
        return find_periods(rest, ~plain, anchors=anchors, chance=self.chance, seed=self.seed)

    def _cycles(
        self, x: Floats, plain: Flags, periods: Sequence[float], steps: Floats, on: dict[float, Flags] | None = None
    ) -> tuple[dict[float, Floats], Floats]:
        """Return cycles and trend, each smoothed from what the others leave, the shortest first."""
        cycles = {each: np.zeros(x.size) for each in sorted(periods)}
        robust = plain.astype(np.float64)
        trend = local_line(x, robust, self.trend)
        for _ in range(_ROUNDS):
            for each in cycles:
                rest = x - trend - _others(cycles, each)
                weights = robust * on[each] if on is not None and on[each].any() else robust
                cycles[each] = _cycle(rest, weights, each, steps, self.cycles)
            trend = local_line(x - _sum(cycles, x.size), robust, self.trend)
            robust = bisquare(x - trend - _sum(cycles, x.size), plain)
        return cycles, trend

    def _on(self, rest: Floats, plain: Flags, cycle: Floats, period: float) -> Flags:
        """Return where a cycle is on: the size at which what is left follows its shape, over a window of steps."""
        half = max(1.5 * period, 30.0)
        if 4 * half >= rest.size:
            return np.ones(rest.size, bool)
        window = np.ones(2 * round(half) + 1)
        both = np.convolve(np.where(plain, rest * cycle, 0.0), window, "same")
        alone = np.convolve(np.where(plain, cycle**2, 0.0), window, "same")
        size = np.where(alone > 0, both / np.maximum(alone, _TINY**2), np.nan)
        out = np.ones(rest.size, bool)
        known = size[~np.isnan(size)]
        now = bool(known.size == 0 or known[0] >= self.turns_off)
        for at, each in enumerate(size):
            if not np.isnan(each):
                now = bool(each >= self.turns_off) if now else bool(each >= self.turns_on)
            out[at] = now
        return out


def decompose(
    series: Series | Regular, *, decisions: Decisions | None = None, **settings: float | str
) -> Decomposition:
    """Return the parts of a series.

    Parameters
    ----------
    series : Series or Regular
        A series whose times are on no grid is put on one with the usual distance of its times.
    decisions : Decisions, optional
        Periods and level shifts that an analyst fixed.
    **settings
        Of :class:`CloudDecomposition`.

    Raises
    ------
    BadValueError
        For a series that is too short, or settings out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from wavetank.workloads.series import regular
    >>> week = 10.0 + np.sin(2 * np.pi * np.arange(210) / 7)
    >>> [round(each.period, 2) for each in decompose(regular(week)).periods]
    [7.0]
    """
    grid = on_grid(series) if isinstance(series, Series) else series
    return CloudDecomposition(**settings).decompose(grid, decisions)  # type: ignore[arg-type]


def _sum(cycles: dict[float, Floats], size: int) -> Floats:
    return np.sum([np.zeros(size), *cycles.values()], axis=0)


def _others(cycles: dict[float, Floats], but: float) -> Floats:
    return _sum({each: of for each, of in cycles.items() if each != but}, cycles[but].size)


def _is_short(period: float) -> bool:
    return period <= _SHORT and abs(period - round(period)) <= _WHOLE


def _cycle(rest: Floats, weights: Floats, period: float, steps: Floats, cycles: float) -> Floats:
    if _is_short(period):
        whole = round(period)
        found = smoothed_subseries(rest, weights, whole, cycles)
        # A cycle adds up to nothing over each period.
        return found - np.convolve(np.pad(found, (whole // 2, whole - 1 - whole // 2), "wrap"), np.ones(whole) / whole,
                                   "valid")  # fmt: skip
    columns = np.concatenate([np.ones((steps.size, 1)), harmonics(period, steps)], axis=1)
    found = fitted(columns, rest, weights)
    return np.asarray(columns[:, 1:] @ found[1:], np.float64)


def _next_cycle(cycle: Floats, period: float, size: int, steps: int) -> Floats:
    if _is_short(period):
        whole = round(period)
        return cycle[size - whole + np.arange(steps) % whole]
    at = np.arange(size, dtype=np.float64)
    columns = harmonics(period, np.arange(size + steps, dtype=np.float64))
    on = (cycle != 0.0).astype(np.float64)
    return np.asarray(columns[size:] @ fitted(columns[: at.size], cycle, on, rounds=1), np.float64)


def _apart(of: Floats, cuts: list[int], place: int, noise: float) -> float:
    """Return how many standard errors the lines through both sides of a cut are apart where they meet."""
    edges = [0, *cuts, of.size]
    left, middle, right = edges[place], edges[place + 1], edges[place + 2]
    before, after = of[max(left, middle - _SIDE) : middle], of[middle : min(right, middle + _SIDE)]
    ends, rest = [], []
    for side, at in ((before, before.size), (after, -1)):
        steps = np.arange(side.size, dtype=np.float64)
        columns = np.stack([np.ones(side.size), steps - at], axis=1)
        # The last half step belongs to each side: lines meet between the two values.
        columns[:, 1] += 0.5 if at else 0.0
        line = fitted(columns, side, np.ones(side.size))
        ends.append(float(line[0]))
        rest.append(side - columns @ line)
    both = np.concatenate(rest)
    usual = max(spread_of(both), 0.5 * noise, _TINY)
    close = float((rest[0][1:] * rest[0][:-1]).sum() + (rest[1][1:] * rest[1][:-1]).sum())
    alike = float(np.clip(close / max(float((both**2).sum()), _TINY**2), 0.0, 0.8))
    error = usual * 2.0 * math.sqrt((1.0 / before.size + 1.0 / after.size) * (1.0 + alike) / (1.0 - alike))
    return abs(ends[1] - ends[0]) / error


def _levels(x: Floats, plain: Flags, changes: Sequence[int], reach: float) -> Floats:
    """Return the level: steps fitted together with a trend of straight pieces, so that neither takes from the other."""
    n = x.size
    if not changes:
        return np.full(n, float(np.median(x[plain])) if plain.any() else 0.0)
    steps = np.arange(n, dtype=np.float64)
    knots = np.linspace(0.0, n - 1.0, max(round(n / (2.0 * reach)), 1) + 1)
    hats = np.stack([np.interp(steps, knots, np.eye(knots.size)[each]) for each in range(knots.size)], axis=1)
    jumps = np.stack([(steps >= each).astype(np.float64) for each in changes], axis=1)
    found = fitted(np.concatenate([jumps, hats], axis=1), x, plain.astype(np.float64))
    level = jumps @ found[: len(changes)]
    return np.asarray(level + float(np.median((x - level)[plain])), np.float64)


def _slots(series: Regular, changes: Sequence[int]) -> tuple[int, ...]:
    slots = sorted({round((each - series.start_ns) / series.step_ns) for each in changes})
    for each in slots:
        if not 0 < each < series.value.size:
            raise BadValueError("A level shift lies within the series.", given=series.time_ns(each),
                                allowed=f"{series.start_ns} to {series.time_ns(series.value.size - 1)} ns",
                                where=series.name)  # fmt: skip
    return tuple(slots)


def _check_periods(series: Regular, periods: Sequence[float]) -> None:
    for each in periods:
        if not (math.isfinite(each) and 2.0 < each <= series.value.size):
            raise BadValueError("A period is above two steps and not longer than the series.", given=each,
                                where=series.name)  # fmt: skip
