"""Study ``facility-control``: who runs a small data centre on least energy, and which part of it needs a forecast."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.facility import closed_loop, scenes
from wavetank.insight.facility.closed_loop import Outcome, Outside
from wavetank.insight.facility.control import NONE, ORACLE, ModelControl
from wavetank.insight.facility.interface import Controller, Scene
from wavetank.insight.facility.scenes import CLIMATES, DAY, HOUR, YEAR_H
from wavetank.insight.facility.site import Site
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets

SERVERLESS = "serverless"
_HEADROOM = 0.25
_NOTHING = np.empty((0, 0))
_FIRST_DAY, _DAYS_APART = 10, 73


@dataclass(frozen=True, kw_only=True)
class FacilityControl(Study):
    """A controller learns from four weeks of load and runs the simulated site for one more, in two climates: it sets
    supply temperature, fans and servers every quarter of an hour.  Loads are generated at several strengths of
    disturbance, or counted requests.  Seeds begin on other days of the year.  Work that finds no server waits.
    """

    name: ClassVar[str] = "facility-control"
    baseline: ClassVar[str] = "twin-without-forecast"
    primary: ClassVar[str] = "facility_energy"
    secondary: ClassVar[tuple[str, ...]] = ("pue", "late", "above_target")
    default_seeds: ClassVar[int] = 5
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("facility_energy", "kWh", "lower", "simulated",
               "servers, fans, cooling and losses, sum over both climates; at noise, load, climate, interval_min or "
               "recirculation: with that one", words="energy of the facility"),
        Metric("pue", "", "lower", "simulated", "energy of the facility / energy of the servers, both over the run"),
        Metric("share_of_oracle", "", "higher", "simulated",
               "(energy of the same controller without a forecast, 25 % headroom - energy) / (the former - energy with "
               "the load known before); meant only where little work is late", words="share of the gain of an oracle"),
        Metric("late", "", "lower", "simulated", "work that found no server within its minute / all work",
               words="late work"),
        Metric("inlet_broken", "", "lower", "simulated", "share of minutes in which inlets are above 27.01 deg C",
               words="time above the inlets' limit"),
        Metric("above_target", "", "lower", "simulated", "share of minutes in which servers have more than 0.8 of what "
               "they can take: what room for the unforeseen buys", words="time above the servers' target"),
        Metric("alarms", "", "", "simulated", "alarms of the estimator", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Energy of the facility", y="facility_energy", says="Shorter is better."),
        Chart("sweep", "Energy as the load is less regular", y="facility_energy", by="noise",
              says="Standard deviation of the disturbance; lower is better."),
        Chart("pareto", "Energy and servers above their target", x="above_target", y="facility_energy",
              says="Below and left is better: who leaves servers no room saves energy by it."),
    )  # fmt: skip

    noise: float = setting(0.1, says="Standard deviation of the load's disturbance, a share", low=0, high=2)
    noises: tuple[float, ...] = setting((0.0, 0.05, 0.2, 0.4), says="Further ones", low=0, high=2)
    training_days: int = setting(28, unit="days", says="Days that controllers learn from", low=4, high=3650)
    days: int = setting(7, unit="days", says="Days that they run the site", low=1, high=3650)
    interval_min: int = setting(15, unit="min", says="Time between decisions", low=1, high=720)
    intervals: tuple[int, ...] = setting((60,), unit="min", says="Further times", low=1, high=720)
    servers: int = setting(100, unit="servers", says="Servers", low=1, high=10_000)
    recirculation: float = setting(0.1, says="Recirculated share of the air", low=0, high=0.3)
    recirculations: tuple[float, ...] = setting((0.15,), says="Further shares, which nobody knows", low=0,
                                                high=0.3)  # fmt: skip
    requests: str = setting("auto", says="Whether counted requests are a load, too", choices=("auto", "yes", "no"))
    weather: str = setting("auto", says="Real typical years, or sines where those are not here",
                           choices=("auto", "real", "made"))  # fmt: skip

    def check(self) -> None:
        """Refuse data that are not here."""
        if self.requests == "yes":
            datasets.find(scenes.LOAD_DATA, scenes.COUNTS_FILE)
        if self.weather == "real":
            datasets.find(scenes.WEATHER_DATA)
        if self.interval_min > self.days * DAY:
            raise BadValueError("A run has one decision at least.", given=self.interval_min, where="interval_min")

    @property
    def real(self) -> bool:
        """Whether the weather is that of typical years."""
        return self.weather == "real" or (self.weather == "auto" and scenes.weather_is_here())

    @property
    def counted(self) -> bool:
        """Whether counted requests are a load."""
        return self.requests == "yes" or (self.requests == "auto" and scenes.serverless_is_here())

    def data(self) -> Mapping[str, str]:
        """Return the checksums of what is read."""
        found: dict[str, str] = {}
        if self.real:
            files = {file.path: file.sha256 for file in datasets.entry(scenes.WEATHER_DATA).files}
            found |= {f"{scenes.WEATHER_DATA}/{file}": files[file] for file in CLIMATES.values()}
        if self.counted:
            files = {file.path: file.sha256 for file in datasets.entry(scenes.LOAD_DATA).files}
            found[f"{scenes.LOAD_DATA}/{scenes.COUNTS_FILE}"] = files[scenes.COUNTS_FILE]
        return found

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "The site is simulated, and the model that controllers search in is the site's own: real sites differ.",
            "Typical years of Phoenix and Chicago." if self.real else "Weather is made of sines.",
            *(() if self.counted else ("Counted requests are left out.",)),
        )

    def scene(self, seed: int) -> Scene:
        """Return the generated load of a seed.

        Parameters
        ----------
        seed : int
        """
        first = self.training_days * DAY
        load = scenes.generated_load(first + self.days * DAY, self.noise, seed)
        site = Site(servers=self.servers)
        return Scene(site=site, load=load, first=first, interval_min=self.interval_min, seed=seed)

    def counted_scene(self, seed: int) -> Scene:
        """Return the load of counted requests.

        Parameters
        ----------
        seed : int
        """
        load, first = scenes.serverless_load()
        site = Site(servers=self.servers)
        return Scene(site=site, load=load, first=first, interval_min=self.interval_min, seed=seed)

    def outside(self, scene: Scene, climate: str) -> Outside:
        """Return the site as it is and its weather from a seed's day on.

        Parameters
        ----------
        scene : Scene
        climate : str
        """
        year = scenes.weather(climate) if self.real else scenes.made_weather(climate)
        day = (_FIRST_DAY + _DAYS_APART * scene.seed) % (YEAR_H // 24)
        air_c, wet_c = year.minutes(day * 24 * HOUR, scene.load.size - scene.first)
        site = replace(scene.site, recirculation=self.recirculation)
        return Outside(site=site, air_c=air_c, wet_c=wet_c)

    def measure(self, system: Controller, seed: int) -> Measurements:
        """Run the site under a controller, and again with other loads, times between decisions and air.

        Parameters
        ----------
        system : Controller
        seed : int
        """
        found = Measurements()
        plain = _runs(self, system, seed, "")
        bounds = _bounds(self, seed, "")
        self._put(found, plain, bounds)
        for climate, one in plain.items():
            self._put(found, {climate: one}, None, climate=climate)
        for name, values in self._sweeps().items():
            self._put(found, plain, bounds, **{name: getattr(self, name)})
            for value in sorted({*values} - {getattr(self, name)}):
                other: FacilityControl = replace(self, **{name: value})  # type: ignore[arg-type]
                self._put(found, _runs(other, system, seed, ""), _bounds(other, seed, ""), **{name: value})
        if self.counted:
            self._put(found, _runs(self, system, seed, SERVERLESS), _bounds(self, seed, SERVERLESS), load=SERVERLESS)
        return found

    def _sweeps(self) -> Mapping[str, tuple[float, ...]]:
        return {"noise": self.noises, "interval_min": self.intervals, "recirculation": self.recirculations}

    def _put(
        self, found: Measurements, runs: Mapping[str, Outcome], bounds: tuple[float, float] | None, **at: float | str
    ) -> None:
        energy = sum(each.facility_kwh for each in runs.values())
        found.put("facility_energy", energy, **at)
        found.put("pue", energy / sum(each.servers_kwh for each in runs.values()), **at)
        for metric in ("late", "inlet_broken", "above_target"):
            found.put(metric, sum(getattr(each, metric) for each in runs.values()) / len(runs), **at)
        if bounds is not None and bounds[0] > bounds[1]:
            found.put("share_of_oracle", (bounds[0] - energy) / (bounds[0] - bounds[1]), **at)
        if not at:
            found.put("alarms", sum(each.alarms for each in runs.values()))


def _runs(study: FacilityControl, system: Any, seed: int, load: str) -> Mapping[str, Outcome]:
    """Return the runs of both climates; minutes are dropped."""
    scene = study.counted_scene(seed) if load == SERVERLESS else study.scene(seed)
    return {
        climate: closed_loop.run(system, scene, study.outside(scene, climate))._replace(minutes=_NOTHING, actions=())
        for climate in CLIMATES
    }


@functools.lru_cache(maxsize=64)
def _bounds(study: FacilityControl, seed: int, load: str) -> tuple[float, float]:
    """Return the energy of the controller without a forecast and of the one that knows the load."""
    bounds = (ModelControl(forecast=NONE, headroom=_HEADROOM), ModelControl(forecast=ORACLE))
    energies = [sum(run.facility_kwh for run in _runs(study, each, seed, load).values()) for each in bounds]
    return energies[0], energies[1]
