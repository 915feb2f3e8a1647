"""Study ``facility-forecast``: how far forecasts of a data centre's load are off, by hours ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.insight.facility import scenes
from wavetank.insight.facility.forecasters import LoadForecaster, hours_after, relative_error
from wavetank.insight.facility.scenes import DAY, HOUR
from wavetank.insight.facility.site import Floats
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets

SHOWN = (1, 6, 24)


@dataclass(frozen=True, kw_only=True)
class FacilityForecast(Study):
    """A forecaster learns from the training part of a load and foretells the means of the next 24 hours, at each full
    hour of the rest.  The load is requests to serverless functions over twelve days, counted minute by minute, or
    generated; seeds are those of generated loads and of networks.
    """

    name: ClassVar[str] = "facility-forecast"
    baseline: ClassVar[str] = "load-persistence"
    primary: ClassVar[str] = "error_1h"
    secondary: ClassVar[tuple[str, ...]] = ("error_6h", "error_24h")
    default_seeds: ClassVar[int] = 5
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("error_1h", "", "lower", "counted", "root of the mean squared error / mean of the load, 1 h ahead; at "
               "noise: on a generated load", words="error 1 h ahead"),
        Metric("error_6h", "", "lower", "counted", "the same, 6 h ahead", words="error 6 h ahead"),
        Metric("error_24h", "", "lower", "counted", "the same, 24 h ahead", words="error 24 h ahead"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Error 1 h ahead", y="error_1h", says="Shorter is better."),
        Chart("sweep", "Error 1 h ahead as the load is less regular", y="error_1h", by="noise",
              says="Standard deviation of the disturbance; lower is better."),
        Chart("sweep", "Error 6 h ahead as the load is less regular", y="error_6h", by="noise",
              says="Standard deviation of the disturbance; lower is better."),
    )  # fmt: skip

    load: str = setting("auto", says="Counted requests, a generated load, or the former if they are here",
                        choices=("auto", "counted", "generated"))  # fmt: skip
    noise: float = setting(0.1, says="Standard deviation of the generated load's disturbance", low=0, high=2)
    noises: tuple[float, ...] = setting((0.0, 0.1, 0.4), says="Those of further generated loads", low=0,
                                        high=2)  # fmt: skip
    training_days: int = setting(28, unit="days", says="Training part of generated loads", low=4, high=3650)
    days: int = setting(12, unit="days", says="Days after it", low=2, high=3650)

    @property
    def counted(self) -> bool:
        """Whether the load is counted requests."""
        return self.load == "counted" or (self.load == "auto" and scenes.serverless_is_here())

    def check(self) -> None:
        """Refuse counted requests that are not here."""
        if self.load == "counted":
            datasets.find(scenes.LOAD_DATA, scenes.COUNTS_FILE)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of what is read."""
        if not self.counted:
            return {}
        files = {file.path: file.sha256 for file in datasets.entry(scenes.LOAD_DATA).files}
        return {f"{scenes.LOAD_DATA}/{scenes.COUNTS_FILE}": files[scenes.COUNTS_FILE]}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        kind = "requests to 800 functions; it is the same for each seed" if self.counted else "generated"
        return (f"The load of the table is {kind}.",)

    def measure(self, system: LoadForecaster, seed: int) -> Measurements:
        """Learn, and foretell from each hour of the rest.

        Parameters
        ----------
        system : LoadForecaster
        seed : int
        """
        found = Measurements()
        load, first = scenes.requests() if self.counted else self._generated(self.noise, seed)
        for hour, value in errors(system, load, first, seed).items():
            found.put(f"error_{hour}h", value)
        for noise in sorted(set(self.noises)):
            load, first = self._generated(noise, seed)
            for hour, value in errors(system, load, first, seed).items():
                found.put(f"error_{hour}h", value, noise=noise)
        return found

    def _generated(self, noise: float, seed: int) -> tuple[Floats, int]:
        first = self.training_days * DAY
        return scenes.generated_load(first + self.days * DAY, noise, seed), first


def errors(system: LoadForecaster, load: Floats, first: int, seed: int) -> dict[int, float]:
    """Return the errors by hours ahead, each over all full hours whose truth is known.

    Parameters
    ----------
    system : LoadForecaster
    load : numpy.ndarray of float64, shape (minutes,)
    first : int
        Minutes of the training part.
    seed : int
    """
    fitted = system.fitted(load[:first], seed)
    found = {}
    for hour in SHOWN:
        times = np.arange(first, load.size - hour * HOUR + 1, HOUR)
        said = fitted.ahead(load, times)[:, hour - 1]
        came = hours_after(load, times, hour)[:, hour - 1]
        found[hour] = float(relative_error(said[:, None], came[:, None])[0])
    return found
