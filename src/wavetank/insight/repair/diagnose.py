"""``wavetank diagnose`` for tables of service metrics: which services depart from normal operation, and how far.

Normal operation is another table: by setting, or ``noissue/metrics.csv.gz`` two folders above the incident's, as
PetShop has it.  Without one there is too little to say.  A service departs where it is far from normal, and farther
than it ever was in normal operation: latencies have long tails, and six standard deviations come every hour.  Where a
table of calls is near, a finding says how many of the services that are called depart as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavetank.diagnosis.findings import Diagnosis, Finding, by_severity, read
from wavetank.errors import BadFileError, BadValueError
from wavetank.insight.repair.networks import Floats
from wavetank.insight.repair.page import services_page
from wavetank.settings import check_ranges, setting
from wavetank.workloads.petshop import ServiceMetrics, read_calls, read_metrics

LABELS = ("departing-service",)
_SOURCES = ("The PetShop Dataset, CLeaR 2024", "Wavetank's study service-causes")
_BEGINS = b"microservice,"
_TABLES = ("metrics.csv", "metrics.csv.gz")
_CALLS = "graph.csv"
_TO_SIGMA = 1.4826
# Metric, direction that is worse, least spread as a share of the median.
_JUDGED = (("latency", 1.0, 0.05), ("availability", -1.0, 0.01))
# An hour of normal operation: a median distance of fewer windows is none.
_LEAST_NORMAL = 12
_FARTHEST = 1e12
# From this many times the limit on it is grave.
_GRAVE = 3.0
_HOW = {
    "services": "different names in the row microservice",
    "windows": "rows of the table",
    "span_s": "last time less the first one",
    "missing_share": "empty cells over all cells",
    "normal_windows": "rows of the table of normal operation",
    "normal_operation": "the table that stands for normal operation",
    "departure": "distance of the worst window from the median of normal operation towards worse, over the scaled "
    "median distance there, the larger of latency and availability",
    "metric": "the metric with that distance",
    "usual": "its median in normal operation",
    "worst": "its worst window",
    "normal_share": "windows of normal operation that are as far from that median or farther",
    "departing_share": "windows in which it is as far or farther than the limit, over those with a value",
    "calls": "services that it calls, by the table of calls",
    "departing_callees": "those of them that depart as well, by the same limits",
}


class Departure(NamedTuple):
    """How far a metric of a service is from normal.

    Attributes
    ----------
    far : float
        Of its worst window, in robust standard deviations.
    metric : str
    usual, worst : float
    normal_share : float
        Of the windows of normal operation, those as far as the worst one here.
    distances : numpy.ndarray of float64, shape (windows with a value,)
    """

    far: float
    metric: str
    usual: float
    worst: float
    normal_share: float
    distances: Floats

    def departs(self, far: float, usual: float) -> bool:
        """Return whether it is this far, and no more than a share of normal windows is as far as its worst one.

        Parameters
        ----------
        far, usual : float
        """
        return self.far >= far and self.normal_share <= usual


class ServiceHistory:
    """A table of service metrics beside one of normal operation.

    Parameters
    ----------
    path : Path
        The incident: a table, or a folder that has one.
    normal, calls : str
        Tables of normal operation and of calls; empty: those near the incident, if there are any.

    Raises
    ------
    BadFileError
        If the folder has no table.
    """

    def __init__(self, path: Path, normal: str = "", calls: str = "") -> None:
        self.path = path if not path.is_dir() else _first(path / each for each in _TABLES)
        if self.path is None:
            raise BadFileError("The folder has no table of metrics of services.", given=str(path), allowed=_TABLES)
        above = self.path.resolve().parents[:3]
        beside = _first(each / "noissue" / name for each in above[1:] for name in _TABLES)
        self.normal_path = Path(normal) if normal else beside
        self.calls_path = Path(calls) if calls else _first(each / _CALLS for each in above)

    @cached_property
    def table(self) -> ServiceMetrics:
        """The incident."""
        return read_metrics(self.path)

    @cached_property
    def normal(self) -> ServiceMetrics | None:
        """Normal operation; none where that is the very table that is judged."""
        if self.normal_path is None or self.normal_path.resolve() == self.path.resolve():
            return None
        return read_metrics(self.normal_path)

    @cached_property
    def calls(self) -> Mapping[str, tuple[str, ...]]:
        """The services that each service calls; empty without a table of calls."""
        return read_calls(self.calls_path) if self.calls_path else {}

    @cached_property
    def services(self) -> tuple[str, ...]:
        """The services, in the order of the table."""
        return tuple(dict.fromkeys(service for service, _, _ in self.table.columns))

    @cached_property
    def departures(self) -> Mapping[str, Departure]:
        """How far each service is from normal, of those with enough values here and there."""
        found = {}
        for service in self.services if self.normal else ():
            known = [each for each in (self._departure(service, *judged) for judged in _JUDGED) if each]
            if known:
                found[service] = min(known, key=lambda each: (each.normal_share, -each.far))
        return found

    def how(self, name: str) -> str:
        """Return how a quantity is read.

        Parameters
        ----------
        name : str
        """
        return _HOW[name]

    def quantity(self, name: str, **of: Any) -> float | int | str:
        """Return a quantity.

        Parameters
        ----------
        name : str
        **of : value
            ``service`` for all that is of one service, ``far`` and ``usual`` for what counts what departs.

        Raises
        ------
        BadValueError
            If there is none of that name, or nothing is known of the service.
        """
        table, service = self.table, str(of.get("service", ""))
        if name not in _HOW:
            raise BadValueError("There is no such quantity.", given=name, allowed=sorted(_HOW))
        if name == "services":
            return len(self.services)
        if name == "windows":
            return len(table.time_s)
        if name == "span_s":
            return float(table.time_s[-1] - table.time_s[0]) if len(table.time_s) else 0.0
        if name == "missing_share":
            return float(np.isnan(table.values).mean()) if table.values.size else 1.0
        if name == "normal_windows":
            return len(self.normal.time_s) if self.normal else 0
        if name == "normal_operation":
            return str(self.normal_path)
        if service not in self.departures:
            raise BadValueError("Nothing is known of this service, here or in normal operation.", given=service)
        if name == "calls":
            return len(self.calls.get(service, ()))
        if name == "departing_callees":
            called = [self.departures[each] for each in self.calls.get(service, ()) if each in self.departures]
            return sum(each.departs(float(of["far"]), float(of["usual"])) for each in called)
        found = self.departures[service]
        if name == "departing_share":
            return float(np.mean(found.distances >= float(of["far"])))
        facts: dict[str, float | str] = {"departure": found.far, **found._asdict()}
        return facts[name]

    def _departure(self, service: str, metric: str, worse: float, least: float) -> Departure | None:
        usual = self.normal.of(service, metric, "Average") if self.normal else np.empty(0)
        now = self.table.of(service, metric, "Average")
        usual, now = usual[np.isfinite(usual)], now[np.isfinite(now)]
        if usual.size < _LEAST_NORMAL or not now.size:
            return None
        middle = float(np.median(usual))
        with np.errstate(over="ignore", invalid="ignore"):
            spread = max(_TO_SIGMA * float(np.median(np.abs(usual - middle))), least * abs(middle))
            # A metric that is nought and never moves has no scale.
            if not 0 < spread < np.inf:
                return None
            distances, before = (np.clip(worse * (each - middle) / spread, -_FARTHEST, _FARTHEST) for each in
                                 (now, usual))  # fmt: skip
        at = int(distances.argmax())
        return Departure(float(distances[at]), metric, middle, float(now[at]), float(np.mean(before >= distances[at])),
                         distances)  # fmt: skip


def _first(paths: Any) -> Any:
    return next((each for each in paths if each.is_file()), None)


@dataclass(frozen=True, kw_only=True)
class ServiceDiagnosis:
    """Compares each service's latency and availability with normal operation."""

    normal: str = setting("", says="Table of normal operation; empty: noissue/metrics.csv.gz above the incident")
    calls: str = setting("", says="Table of who calls whom; empty: graph.csv above the incident, if it is there")
    far: float = setting(6.0, says="Robust standard deviations from which a service departs", low=0.1, high=1e6)

    usual: float = setting(0.0, says="Share of the windows of normal operation that may be as far", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin a table of service metrics.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return head.startswith(_BEGINS)

    def source(self, path: Path) -> ServiceHistory:
        """Return the tables, read anew.

        Parameters
        ----------
        path : Path
        """
        return ServiceHistory(path, self.normal, self.calls)

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a table, or in a folder that has one.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadFileError
            If a table cannot be read, or the folder has none.
        """
        source = self.source(path)
        facts = [read(source, name, unit) for name, unit in (("services", ""), ("windows", ""), ("span_s", "s"),
                                                            ("missing_share", ""))]  # fmt: skip
        too_little = []
        if source.normal is None:
            too_little.append("There is no table of normal operation beside this one: --set normal=FILE names one.")
        else:
            facts += [read(source, "normal_windows"), read(source, "normal_operation")]
            silent = len(source.services) - len(source.departures)
            if not source.departures:
                too_little.append("No service has latency or availability here and for an hour of normal operation.")
            elif silent:
                too_little.append(f"{silent} of {len(source.services)} services: they have too few values here or in "
                                  "normal operation.")  # fmt: skip
        far = sorted(source.departures.items(), key=lambda each: -each[1].far)
        departing = [service for service, each in far if each.departs(self.far, self.usual)]
        findings = [_departs(source, service, self.far, self.usual) for service in departing]
        diagnosis = Diagnosis(subject=path.name, kind="service-metrics", facts=tuple(facts),
                              findings=by_severity(findings), too_little=tuple(too_little))  # fmt: skip
        return services_page(diagnosis, {service: each.far for service, each in far}, departing)


def _departs(source: ServiceHistory, service: str, far: float, usual: float) -> Finding:
    of = {"service": service}
    departure, metric = read(source, "departure", **of), read(source, "metric", **of)
    share = read(source, "departing_share", **of, far=far)
    unit = "s" if metric.value == "latency" else "%"
    evidence = [departure, metric, read(source, "usual", unit, **of), read(source, "worst", unit, **of),
                read(source, "normal_share", **of), share]  # fmt: skip
    called = ""
    if source.quantity("calls", **of):
        evidence += [read(source, "calls", **of), read(source, "departing_callees", **of, far=far, usual=usual)]
        called = " Services that it calls: {calls}; of these {departing_callees} depart as well."
    return Finding(
        label="departing-service", where=service,
        severity="critical" if float(departure.value) >= _GRAVE * far else "warning", confidence=float(share.value),
        says="The {metric} of {where} is {worst} in its worst window where {usual} is usual: {departure} robust "
        "standard deviations, as far as {normal_share} of normal windows." + called,
        evidence=tuple(evidence),
        advice="It may only wait for another: on incidents whose cause is known, who was farthest from normal was the "
        "cause more often than who departed while its callees were well.",
        sources=_SOURCES,
    )  # fmt: skip
