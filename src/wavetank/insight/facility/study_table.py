"""Study ``facility-table``: a year's energy under five simple policies, beside figures that were computed apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from wavetank.insight.facility import scenes
from wavetank.insight.facility.scenes import CLIMATES
from wavetank.insight.facility.site import Site
from wavetank.insight.facility.table import ALL, LAST_HOUR, THIS_HOUR, HourlyPolicy
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets

_A = HourlyPolicy(supply_c=22.0, full_fans=True, economiser=False)
# kWh and PUE of a year, by policy and climate.
KNOWN: Mapping[HourlyPolicy, Mapping[str, tuple[float, float]]] = {
    _A: {"phoenix": (327_202, 1.431), "chicago": (319_637, 1.398)},
    HourlyPolicy(supply_c=22.0): {"phoenix": (273_626, 1.197), "chicago": (268_331, 1.174)},
    HourlyPolicy(servers=ALL): {"phoenix": (262_558, 1.148), "chicago": (259_315, 1.134)},
    HourlyPolicy(servers=LAST_HOUR): {"phoenix": (195_477, 1.134), "chicago": (192_904, 1.119)},
    HourlyPolicy(servers=THIS_HOUR): {"phoenix": (197_574, 1.135), "chicago": (194_975, 1.120)},
}


@dataclass(frozen=True, kw_only=True)
class FacilityTable(Study):
    """One week of a cluster's load, repeated for a year, beside typical years of two climates; each hour is at rest.
    No forecast is judged here: on a week that repeats, last week is always right.
    """

    name: ClassVar[str] = "facility-table"
    baseline: ClassVar[str] = "full-fans-22-hourly"
    primary: ClassVar[str] = "year_energy"
    secondary: ClassVar[tuple[str, ...]] = ("year_pue", "short_hours")
    default_seeds: ClassVar[int] = 1
    exact: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("year_energy", "kWh", "lower", "modelled", "of the facility over 8,760 hours, sum over both climates; "
               "at climate: of that one", words="energy of a year"),
        Metric("year_pue", "", "lower", "modelled", "energy of the facility / energy of the servers over the year",
               words="PUE of a year"),
        Metric("short_hours", "h", "lower", "modelled", "hours in a year with more load than servers that are on",
               words="hours with too few servers"),
        Metric("off_known", "", "lower", "modelled", "largest |energy / known - 1| and |PUE / known - 1| of both "
               "climates", words="distance from the known answers"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Energy of a year", y="year_energy", says="Shorter is better."),
    )

    def check(self) -> None:
        """Refuse to begin without the data set."""
        datasets.find(scenes.WEATHER_DATA)

    def data(self) -> Mapping[str, str]:
        """Return the checksums of what is read."""
        files = {file.path: file.sha256 for file in datasets.entry(scenes.WEATHER_DATA).files}
        return {f"{scenes.WEATHER_DATA}/{file}": files[file] for file in (*CLIMATES.values(), scenes.WEEK_FILE)}

    def measure(self, system: HourlyPolicy, seed: int) -> Measurements:
        """Compute a year of each climate.

        Parameters
        ----------
        system : HourlyPolicy
        seed : int
            Not used: nothing is drawn.
        """
        found, site, load = Measurements(), Site(), scenes.repeated_week()
        years = {climate: system.year(site, load, scenes.weather(climate)) for climate in CLIMATES}
        energy = sum(each.facility_kwh for each in years.values())
        found.put("year_energy", energy)
        found.put("year_pue", energy / sum(each.servers_kwh for each in years.values()))
        found.put("short_hours", max(each.short for each in years.values()))
        for climate, each in years.items():
            found.put("year_energy", each.facility_kwh, climate=climate)
            found.put("year_pue", each.pue, climate=climate)
        if system in KNOWN:
            known = KNOWN[system]
            found.put("off_known", max(
                max(abs(each.facility_kwh / known[climate][0] - 1), abs(each.pue / known[climate][1] - 1))
                for climate, each in years.items()
            ))  # fmt: skip
        return found
