"""Study ``service-causes``: which ranking of services names the one into which a real fault was injected."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.insight.repair.causes import CauseRanker, ShopCase
from wavetank.insight.repair.networks import Floats
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets
from wavetank.workloads.petshop import ServiceMetrics, read_calls, read_issue, read_metrics

DATA_SET = "petshop-rca"
# Scenarios, the number of their open issues, and where their normal operation is; two have none of their own.
SCENARIOS = {
    "high_traffic": (8, "high_traffic"), "low_traffic": (8, "low_traffic"), "temporal_traffic1": (2, "low_traffic"),
    "temporal_traffic2": (2, "low_traffic"),
}  # fmt: skip
_WINDOW_S = 300.0
_TO_SIGMA = 1.4826


def departures(history: ServiceMetrics, normal: ServiceMetrics, service: str, since_s: float) -> float:
    """Return how far a service's latency or availability is from normal, towards worse, in robust deviations.

    The largest of the windows that end after the alarm counts; NaN where neither is known.

    Parameters
    ----------
    history : ServiceMetrics
        With the incident.
    normal : ServiceMetrics
        Without.
    service : str
    since_s : float
        Unix time of the alarm.
    """
    found = []
    late = history.time_s > since_s - _WINDOW_S
    for metric, worse, least in (("latency", 1.0, 0.05), ("availability", -1.0, 0.01)):
        usual = normal.of(service, metric, "Average")
        usual = usual[np.isfinite(usual)]
        now = history.of(service, metric, "Average")[late]
        now = now[np.isfinite(now)]
        if not usual.size or not now.size:
            continue
        middle = float(np.median(usual))
        spread = max(_TO_SIGMA * float(np.median(np.abs(usual - middle))), least * abs(middle), 1e-9)
        found.append(float((worse * (now - middle)).max()) / spread)
    return max(found) if found else float("nan")


@functools.cache
def shop_cases() -> tuple[ShopCase, ...]:
    """Return all open incidents of the data set."""
    found = []
    for scenario, (count, like) in SCENARIOS.items():
        normal = read_metrics(datasets.find(DATA_SET, f"{like}/noissue/metrics.csv.gz"))
        calls = read_calls(datasets.find(DATA_SET, f"{scenario}/graph.csv"))
        services = tuple(calls)
        places = tuple(tuple(services.index(each) for each in calls[service]) for service in services)
        for number in range(count):
            folder = f"{scenario}/train/issue_{number}"
            history = read_metrics(datasets.find(DATA_SET, f"{folder}/metrics.csv.gz"))
            issue = read_issue(datasets.find(DATA_SET, f"{folder}/target.json"))
            far: Floats = np.array([departures(history, normal, each, issue.noticed_s) for each in services])
            found.append(ShopCase(services, places, far, issue.cause, scenario, number))
    return tuple(found)


def place_of(case: ShopCase, suspicion: Floats) -> float:
    """Return the place of the true cause, 1 for the first; services of one score share the mean of their places.

    Parameters
    ----------
    case : ShopCase
    suspicion : ndarray of float64, shape (services,)
    """
    own = suspicion[case.services.index(case.cause)]
    return float((suspicion > own).sum() + ((suspicion == own).sum() + 1) / 2)


@dataclass(frozen=True, kw_only=True)
class ServiceCauses(Study):
    """Twenty incidents of a shop of 42 services on AWS with an injected fault each, as the authors' open part has
    them.  Systems see how far each service departs from normal operation, and who calls whom, and rank the services.
    What learns learns from other scenarios.
    """

    name: ClassVar[str] = "service-causes"
    baseline: ClassVar[str] = "largest-departure"
    primary: ClassVar[str] = "first"
    secondary: ClassVar[tuple[str, ...]] = ("mean_of_five",)
    metrics = (
        Metric("first", "", "higher", "counted", "incidents whose true cause is ranked first / incidents",
               words="causes ranked first"),
        Metric("among_three", "", "higher", "counted", "the same for the first three", words="causes among three"),
        Metric("mean_of_five", "", "higher", "counted", "mean of the shares among the first one to five (Avg@5)",
               words="Avg@5"),
        Metric("place", "", "lower", "counted", "mean place of the true cause", words="place of the cause"),
        Metric("causes", "", "", "counted", "different true causes in the data", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "True cause ranked first", y="first", says="Longer is better."),
        Chart("bars", "Avg@5", y="mean_of_five", says="Longer is better."),
    )

    held: bool = setting(True, says="Whether systems learn from other scenarios alone, not from the same one as well")

    def check(self) -> None:
        """Refuse a machine without the data."""
        datasets.find(DATA_SET)

    def data(self) -> Mapping[str, str]:
        """Return the checksums of the call graphs and of normal operation."""
        return {f"{DATA_SET}/{each.path}": each.sha256 for each in datasets.entry(DATA_SET).files if "train" not in
                each.path}  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "All twenty open incidents have one cause, the search service: who always says so is always right. The "
            "authors hold the others back.",
            "Two scenarios come without normal operation; that of low traffic stands in.",
        )

    def measure(self, system: CauseRanker, seed: int) -> Measurements:
        """Rank the services of every incident."""
        cases, places = shop_cases(), []
        for case in cases:
            others = [each for each in cases if each is not case and not (self.held and each.group == case.group)]
            places.append(place_of(case, system.suspicion(case, others, seed)))
        found = np.array(places)
        return Measurements({
            "first": float((found <= 1).mean()), "among_three": float((found <= 3).mean()),
            "mean_of_five": float(np.mean([(found <= count).mean() for count in range(1, 6)])),
            "place": float(found.mean()), "causes": float(len({each.cause for each in cases})),
        })  # fmt: skip
