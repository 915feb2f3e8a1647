"""The known answers: five ways to run the site for a year of hours at rest, in two climates.

What each adds: A to C is the right set point and the economiser, C to E switches servers off, and a forecast buys the
hours in which D, which goes by the last hour, has too few servers on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetank.insight.facility.plant import Action, Hours, at_rest
from wavetank.insight.facility.scenes import Weather
from wavetank.insight.facility.site import PER_SERVER, Floats, Site
from wavetank.settings import check_ranges, setting

ALL, LAST_HOUR, THIS_HOUR = "all", "last-hour", "this-hour"


@dataclass(frozen=True, kw_only=True)
class HourlyPolicy:
    """A set point, fans, an economiser or none, and a rule for servers."""

    supply_c: float = setting(25.78, unit="C", says="Supply temperature", low=5, high=35)
    full_fans: bool = setting(False, says="Whether fans run at full speed")
    economiser: bool = setting(True, says="Whether the compressor stops in cold weather")
    servers: str = setting(ALL, says="Servers on: all, or as the load of the last or of this hour asks, 0.8 a server",
                           choices=(ALL, LAST_HOUR, THIS_HOUR))  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def year(self, site: Site, load: Floats, weather: Weather) -> Hours:
        """Return the energy of a year.

        Parameters
        ----------
        site : Site
        load : numpy.ndarray of float64, shape (hours,)
        weather : Weather
        """
        seen = load if self.servers == THIS_HOUR else np.concatenate([load[:1], load[:-1]])
        on = np.full(load.size, float(site.servers))
        if self.servers != ALL:
            on = np.clip(np.ceil(site.servers * seen / PER_SERVER - 1e-9), 1, site.servers)
        action = Action(self.supply_c, site.servers, 1.0, self.full_fans, self.economiser)
        return at_rest(site, load, weather.air_c, weather.wet_c, on, action)
