"""``wavetank diagnose`` for histories of figures: level shifts, cycles, trends, outliers and gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, Severity, by_severity, read
from wavetank.errors import WavetankError
from wavetank.insight.series.decompose import CloudDecomposition
from wavetank.insight.series.interface import Decomposition
from wavetank.insight.series.page import series_page
from wavetank.insight.series.source import SeriesSource
from wavetank.settings import check_ranges, setting
from wavetank.workloads.series import looks_like_series

LABELS = ("level-shift", "cycle", "intermittent-cycle", "trend", "outliers", "gaps")
_SOURCE = ("Cloud Performance Decomposition, arXiv 2605.09787",)
_FACTS = (("values", ""), ("begins", ""), ("ends", ""), ("step", ""), ("missing_share", ""))
_CRITICAL, _WARNING = 0.5, 0.1


@dataclass(frozen=True, kw_only=True)
class SeriesDiagnosis:
    """Judges the histories of a CSV or Parquet file: wide, or long with columns that name groups."""

    time: str = setting("", says="Column of times; by itself the one that says so")
    value: tuple[str, ...] = setting((), says="Columns of figures; by themselves all with numbers")
    group: tuple[str, ...] = setting((), says="Columns that say which series a row is of")
    match: str = setting("", says="Words that the name of a series must have")
    most: int = setting(8, says="Series that are looked at", low=1, high=10**4)
    decisions: str = setting("", says="File of decisions with fixed periods and level shifts")
    scale: str = setting("auto", says="As of the decomposition", choices=("auto", "log", "linear"))
    shift: float = setting(0.02, says="Share by which a level must shift to be reported", low=0.0, high=1e6)
    trend: float = setting(0.1, says="Share by which a trend must change, likewise", low=0.0, high=1e6)
    outliers: float = setting(0.01, says="Share of outliers among the values, likewise", low=0.0, high=1.0)
    gaps: float = setting(0.05, says="Share of missing steps, likewise", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin a table with regular times and figures.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_series(path, head)

    def source(self, path: Path) -> SeriesSource:
        """Return the series, read anew.

        Parameters
        ----------
        path : Path
        """
        return SeriesSource(
            path, CloudDecomposition(scale=self.scale), time=self.time, columns=self.value, groups=self.group,
            match=self.match, most=self.most, decisions=self.decisions,
        )  # fmt: skip

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadFileError
            If the file cannot be read, or is no table of series.
        """
        source = self.source(path)
        facts, findings, too_little = [read(source, "series")], list[Finding](), list[str]()
        if source.quantity("series_left_out"):
            facts.append(read(source, "series_left_out"))
        for name in source.looked_at:
            try:
                facts += [read(source, quantity, unit, series=name) for quantity, unit in _FACTS]
                parts = source.parts(name)
            except WavetankError as error:
                too_little.append(f"{name}: {error.problem} ({error.given})")
                continue
            log = parts.scale == "log"
            facts += [
                read(source, "middle", series=name), read(source, "noise_share" if log else "noise", series=name),
                read(source, "shifts", series=name), read(source, "cycles", series=name),
                read(source, "longest_period", series=name),
            ]  # fmt: skip
            findings += self._of(source, parts, name)
        diagnosis = Diagnosis(subject=path.name, kind="series", facts=tuple(facts), findings=by_severity(findings),
                              too_little=tuple(too_little))  # fmt: skip
        return series_page(diagnosis, source)

    def _of(self, source: SeriesSource, parts: Decomposition, name: str) -> Sequence[Finding]:
        log = parts.scale == "log"
        # Without a logarithm, shares are of the median.
        scale = 1.0 if log else abs(float(source.quantity("middle", series=name))) or 1.0
        found = []
        for number in range(len(parts.changes)):
            size = read(source, "shift_share" if log else "shift", series=name, shift=number)
            if abs(_number(size)) / scale >= self.shift:
                found.append(_shift(source, name, number, size, scale))
        found += [_cycle(source, name, number, log=log) for number in range(len(parts.cycles))]
        moved = read(source, "trend_share" if log else "trend_change", series=name)
        if abs(_number(moved)) / scale >= self.trend:
            found.append(_trend(source, name, moved))
        if float(source.quantity("outlier_share", series=name)) >= max(self.outliers, 1e-12):
            found.append(_outliers(source, name, log=log))
        if float(source.quantity("missing_share", series=name)) >= max(self.gaps, 1e-12):
            found.append(_gaps(source, name))
        return found


def _number(evidence: Evidence) -> float:
    return float(evidence.value)


def _shift(source: SeriesSource, name: str, number: int, size: Evidence, scale: float) -> Finding:
    when = read(source, "shift_at", series=name, shift=number)
    sure = read(source, "shift_side_share", series=name, shift=number)
    share = abs(_number(size)) / scale
    severity: Severity = "critical" if share >= _CRITICAL else "warning" if share >= _WARNING else "note"
    return Finding(
        label="level-shift", where=name, severity=severity, confidence=_number(sure),
        says=f"The level of {{where}} changes by {{{size.key}}} at {{shift_at}}; of the values around it "
        "{shift_side_share} lie on their side.",
        evidence=(size, when, sure),
        advice="See what was released, moved or upgraded then; compare later values with the new level alone.",
        sources=_SOURCE,
    )  # fmt: skip


def _cycle(source: SeriesSource, name: str, number: int, *, log: bool) -> Finding:
    of: dict[str, Any] = {"series": name, "cycle": number}
    period, size = read(source, "period", **of), read(source, "cycle_size_share" if log else "cycle_size", **of)
    on, sure = read(source, "cycle_on_share", **of), read(source, "cycle_repeats_share", **of)
    says = f"{{where}} repeats every {{period}}, {{{size.key}}} up and down; "
    evidence = [period, size, on, sure]
    comes_and_goes = bool(source.quantity("cycle_turns", **of))
    if comes_and_goes:
        evidence += [read(source, "cycle_turns", **of), read(source, "cycle_last_turn_at", **of)]
        says += "it is on for {cycle_on_share} of the time and last came or went at {cycle_last_turn_at}."
    else:
        says += "{cycle_repeats_share} of its cycles follow the shape."
    return Finding(
        label="intermittent-cycle" if comes_and_goes else "cycle", where=name, severity="note",
        confidence=_number(sure), says=says, evidence=tuple(evidence),
        advice="Compare values with those of the same phase; plan capacity by the phase.", sources=_SOURCE,
    )  # fmt: skip


def _trend(source: SeriesSource, name: str, moved: Evidence) -> Finding:
    sure = read(source, "trend_same_way_share", series=name)
    return Finding(
        label="trend", where=name, severity="note", confidence=_number(sure),
        says=f"Beside its level shifts {{where}} changes by {{{moved.key}}} from the first to the last step; over "
        "{trend_same_way_share} of the eighths of the time it moves that way.",
        evidence=(moved, sure), advice="Look for what grows: data, code, contention.", sources=_SOURCE,
    )  # fmt: skip


def _outliers(source: SeriesSource, name: str, *, log: bool) -> Finding:
    far = read(source, "largest_outlier_share" if log else "largest_outlier", series=name)
    evidence = (
        read(source, "outliers", series=name), read(source, "outlier_share", series=name), far,
        read(source, "largest_outlier_at", series=name),
    )  # fmt: skip
    return Finding(
        label="outliers", where=name, severity="note", confidence=1.0,
        says=f"{{outliers}} values of {{where}} stand alone, {{outlier_share}} of all; the farthest, by {{{far.key}}}, "
        "at {largest_outlier_at}.",
        evidence=evidence, advice="Look at these by themselves; means are moved by them.",
        sources=_SOURCE,
    )  # fmt: skip


def _gaps(source: SeriesSource, name: str) -> Finding:
    evidence = (
        read(source, "missing_share", series=name), read(source, "gaps", series=name),
        read(source, "longest_gap", series=name),
    )  # fmt: skip
    return Finding(
        label="gaps", where=name, severity="note", confidence=1.0,
        says="{missing_share} of the steps of {where} have no value, in {gaps} gaps, the longest of {longest_gap}.",
        evidence=evidence, advice="Nothing was filled in; see why the measurement stopped.", sources=_SOURCE,
    )  # fmt: skip
