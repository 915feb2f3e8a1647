"""``wavetank diagnose`` for two-line elements: likely manoeuvres, decay, and gaps of satellites."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.diagnosis.findings import Diagnosis, Finding, Value, by_severity, read
from wavetank.errors import BadTraceError, WavetankError, unknown_name
from wavetank.files import head_of
from wavetank.insight.orbits.interface import History
from wavetank.insight.orbits.mechanics import Floats, altitude_km, axis_km
from wavetank.insight.orbits.page import orbit_page
from wavetank.insight.orbits.rules import RobustRule, running_median
from wavetank.settings import check_ranges, setting
from wavetank.workloads.tle import DAY_NS, Elements, looks_like_tle, read_tle

LABELS = ("manoeuvres", "decay", "gap")
_ENDINGS = (".tle", ".2le", ".3le", ".txt")
_WINDOW = 31
_LEAST_RECORDS = 31
_MOST_SATELLITES = 40
_RULE = "the robust rule of Wavetank's study orbit-events"


class TooLittleError(WavetankError):
    """The history does not hold what a quantity is made of."""


class OrbitSource:
    """Element histories as quantities by name.

    Parameters
    ----------
    path : Path
        A file of two-line elements, of one satellite or many, or a folder of such files.

    Raises
    ------
    BadTraceError
        If nothing can be read, or two files hold the same satellite.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.satellites: dict[int, Elements] = {}
        self.left_out = 0
        files = [path]
        if path.is_dir():
            named = sorted(each for each in path.iterdir() if each.name.removesuffix(".gz").endswith(_ENDINGS))
            files = [each for each in named if each.is_file() and looks_like_tle(head_of(each))]
        for file in files:
            held = read_tle(file)
            # Of a file, and the same with each of its satellites.
            self.left_out += sum(next(iter(held.values())).left_out.values())
            for number, elements in held.items():
                if number in self.satellites:
                    raise BadTraceError("Two files hold the same satellite.", given=str(number), where=str(file))
                self.satellites[number] = elements
        if not self.satellites:
            raise BadTraceError("The folder has no two-line elements.", given=str(path))

    def quantity(self, name: str, **of: Any) -> Value:
        """Return a quantity by its name.

        Parameters
        ----------
        name : str
            One of :data:`QUANTITIES`.
        **of : value
            ``satellite``, and the rule's settings where it counts.

        Raises
        ------
        TooLittleError
            If the history does not hold what it is made of.
        UnknownNameError
            If there is no such quantity.
        """
        if name not in QUANTITIES:
            raise unknown_name("quantity", name, QUANTITIES, hint="see wavetank.insight.orbits.diagnose")
        return QUANTITIES[name](self, **of)

    def how(self, name: str) -> str:
        """Return how a quantity is read from the records.

        Parameters
        ----------
        name : str
        """
        return (QUANTITIES[name].__doc__ or "").strip().rstrip(".")

    def of(self, satellite: int) -> Elements:
        """Return the records of a satellite.

        Parameters
        ----------
        satellite : int

        Raises
        ------
        BadTraceError
            If there are none.
        """
        if satellite not in self.satellites:
            raise BadTraceError(
                "There is no such satellite in the file.", given=satellite, allowed=map(str, self.satellites)
            )
        return self.satellites[satellite]

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a source is used for one diagnosis and dropped
    def flagged(self, satellite: int, times: float, floor_m: float) -> tuple[Floats, Floats]:
        """Return the change of the axis in m of each record, and its departure over the alarm's.

        Parameters
        ----------
        satellite : int
        times, floor_m : float
            Of the rule.
        """
        of = self.of(satellite)
        if len(of) < _LEAST_RECORDS:
            raise TooLittleError("A satellite has too few records for a running median.", given=len(of))
        rule = RobustRule(window=_WINDOW, times=times, floor_m=floor_m)
        scores = rule.scores(History(name=str(satellite), elements=of, events_ns=np.empty(0, np.int64)))
        change = np.concatenate(([np.nan], np.diff(axis_km(of.mean_motion)) * 1000))
        return change, scores


def _satellites(source: OrbitSource) -> int:
    """Satellites of the file or folder."""
    return len(source.satellites)


def _left_out(source: OrbitSource) -> int:
    """Records that could not be used, or were replaced by a later one of the same epoch."""
    return source.left_out


def _records(source: OrbitSource, satellite: int) -> int:
    """Records of the satellite with an epoch of their own."""
    return len(source.of(satellite))


def _span(source: OrbitSource, satellite: int) -> float:
    """From the first epoch to the last."""
    epochs = source.of(satellite).epoch_ns
    return float(epochs[-1] - epochs[0]) / DAY_NS


def _altitude(source: OrbitSource, satellite: int) -> float:
    """Semi-major axis of the last record, from the mean motion, less the Earth's mean radius."""
    return float(altitude_km(source.of(satellite))[-1])


def _manoeuvres(source: OrbitSource, satellite: int, times: float, floor_m: float) -> int:
    """Records whose change of the axis departs from its running median over 31 records by more than both settings."""
    return int((np.nan_to_num(source.flagged(satellite, times, floor_m)[1]) > 1).sum())


def _last_manoeuvre(source: OrbitSource, satellite: int, times: float, floor_m: float) -> str:
    """Epoch of the last such record, UTC."""
    at = np.flatnonzero(np.nan_to_num(source.flagged(satellite, times, floor_m)[1]) > 1)
    if not at.size:
        raise TooLittleError("No record departs from its running median.", given=satellite)
    seconds = int(source.of(satellite).epoch_ns[at[-1]] // 10**9)
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _largest_change(source: OrbitSource, satellite: int, times: float, floor_m: float) -> float:
    """Largest such departure of the axis from its running median."""
    change, scores = source.flagged(satellite, times, floor_m)
    off = np.abs(change[1:] - running_median(change[1:], _WINDOW))[np.nan_to_num(scores[1:]) > 1]
    if not off.size:
        raise TooLittleError("No record departs from its running median.", given=satellite)
    return float(off.max())


def _clear_share(source: OrbitSource, satellite: int, times: float, floor_m: float) -> float:
    """Such records whose departure is at least twice what is needed / such records."""
    scores = np.nan_to_num(source.flagged(satellite, times, floor_m)[1])
    above = scores[scores > 1]
    if not above.size:
        raise TooLittleError("No record departs from its running median.", given=satellite)
    return float((above >= 2).mean())


def _sinking(source: OrbitSource, satellite: int) -> float:
    """Median over the last 30 days of the axis' rate between neighbouring records, downwards, per day."""
    return float(np.median(_rates(source, satellite)))


def _sinking_share(source: OrbitSource, satellite: int) -> float:
    """Pairs of neighbouring records of the last 30 days whose axis sinks / all such pairs."""
    return float((_rates(source, satellite) > 0).mean())


def _rates(source: OrbitSource, satellite: int) -> Floats:
    of = source.of(satellite)
    late = of.epoch_ns >= of.epoch_ns[-1] - 30 * DAY_NS
    if late.sum() < 4:
        raise TooLittleError("A satellite has fewer than four records in its last 30 days.", given=satellite)
    rates: Floats = -np.diff(axis_km(of.mean_motion[late]) * 1000) / (np.diff(of.epoch_ns[late]) / DAY_NS)
    return rates


def _longest_gap(source: OrbitSource, satellite: int) -> float:
    """Longest time between two neighbouring records."""
    epochs = source.of(satellite).epoch_ns
    if epochs.size < 2:
        raise TooLittleError("A satellite has one record.", given=satellite)
    return float(np.diff(epochs).max()) / DAY_NS


QUANTITIES: dict[str, Callable[..., Value]] = {
    "satellites": _satellites, "left_out": _left_out, "records": _records, "span_d": _span, "altitude_km": _altitude,
    "manoeuvres": _manoeuvres, "last_manoeuvre": _last_manoeuvre, "largest_change_m": _largest_change,
    "clear_share": _clear_share, "sinking_m_per_day": _sinking, "sinking_share": _sinking_share,
    "longest_gap_d": _longest_gap,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OrbitDiagnosis:
    """Judges element histories: records that a manoeuvre came before, orbits that sink, long gaps."""

    times: float = setting(6.0, says="running median departures of the axis that are a manoeuvre", low=0.5, high=100)
    floor_m: float = setting(3.0, says="change of the axis that is none", unit="m", low=0.001)
    sinking_m_per_day: float = setting(
        200.0, says="loss of altitude per day over 30 days that is decay", unit="m", low=0.1
    )
    gap_d: float = setting(10.0, says="days without a record that are a gap", unit="d", low=0.1)

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin two-line elements.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_tle(head)

    def source(self, path: Path) -> OrbitSource:
        """Return the histories, read anew.

        Parameters
        ----------
        path : Path
        """
        return OrbitSource(path)

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file or a folder.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadTraceError
            If a file cannot be read.
        """
        source = self.source(path)
        facts, too_little = [read(source, "satellites")], list[str]()
        if source.quantity("left_out"):
            facts.append(read(source, "left_out"))
        findings: list[Finding] = []
        for satellite in list(source.satellites)[:_MOST_SATELLITES]:
            facts += [
                read(source, "records", satellite=satellite), read(source, "span_d", "d", satellite=satellite),
                read(source, "altitude_km", "km", satellite=satellite),
            ]  # fmt: skip
            for judge in (self._manoeuvred, self._sinks, self._silent):
                try:
                    findings += judge(source, satellite)
                except TooLittleError as error:
                    too_little.append(f"satellite {satellite}: {error.problem}")
        if len(source.satellites) > _MOST_SATELLITES:
            too_little.append(f"of {len(source.satellites)} satellites the first {_MOST_SATELLITES} were judged")
        diagnosis = Diagnosis(
            subject=path.name, kind="tle", facts=tuple(facts), findings=by_severity(findings),
            too_little=tuple(too_little),
        )  # fmt: skip
        return orbit_page(diagnosis, source, self.times, self.floor_m)

    def _manoeuvred(self, source: OrbitSource, satellite: int) -> list[Finding]:
        of: dict[str, Any] = {"satellite": satellite, "times": self.times, "floor_m": self.floor_m}
        many = read(source, "manoeuvres", **of)
        if not many.value:
            return []
        clear = read(source, "clear_share", **of)
        return [
            Finding(
                label="manoeuvres", where=f"satellite {satellite}", severity="note", confidence=float(clear.value),
                says="The axis of {where} jumps at {manoeuvres} records, by {largest_change_m} at most and last on "
                "{last_manoeuvre}; {clear_share} of the jumps are at least twice what makes one.",
                evidence=(
                    many, clear, read(source, "largest_change_m", "m", **of), read(source, "last_manoeuvre", **of)
                ),
                advice="Hold these dates against the operator's list; near geostationary orbit most jumps are pulls of "
                "the Moon and the Sun.",
                sources=(_RULE,),
            )
        ]  # fmt: skip

    def _sinks(self, source: OrbitSource, satellite: int) -> list[Finding]:
        rate, share = (
            read(source, "sinking_m_per_day", "m", satellite=satellite),
            read(source, "sinking_share", satellite=satellite),
        )
        if float(rate.value) < self.sinking_m_per_day:
            return []
        return [
            Finding(
                label="decay", where=f"satellite {satellite}", severity="warning", confidence=float(share.value),
                says="{where} lost {sinking_m_per_day} of altitude per day at the end of its records, from "
                "{altitude_km}; it sinks between {sinking_share} of the neighbouring records.",
                evidence=(rate, share, read(source, "altitude_km", "km", satellite=satellite)),
                advice="Nothing keeps the orbit up, or nothing does any more: see whether it is steered at all.",
                sources=(_RULE,),
            )
        ]  # fmt: skip

    def _silent(self, source: OrbitSource, satellite: int) -> list[Finding]:
        gap = read(source, "longest_gap_d", "d", satellite=satellite)
        if float(gap.value) < self.gap_d:
            return []
        return [
            Finding(
                label="gap", where=f"satellite {satellite}", severity="note", confidence=1.0,
                says="{where} has no record for {longest_gap_d}: what happened meanwhile shows as one jump.",
                evidence=(gap,), advice="Fetch the missing records before jumps at the gap's end are believed.",
                sources=(_RULE,),
            )
        ]  # fmt: skip
