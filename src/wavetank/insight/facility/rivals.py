"""Sites that are run without a model: fixed set points, and a set point that follows the weather."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.insight.facility.interface import Operator, Scene, View
from wavetank.insight.facility.plant import Action
from wavetank.insight.facility.site import COOLEST_C, WARMEST_C
from wavetank.settings import check_ranges, setting


@dataclass(frozen=True, kw_only=True)
class FixedSetPoint:
    """One supply temperature, all servers on."""

    supply_c: float = setting(22.0, unit="C", says="Supply temperature", low=COOLEST_C, high=35)
    full_fans: bool = setting(False, says="Whether fans run at full speed")
    economiser: bool = setting(True, says="Whether the compressor stops in cold weather")

    def __post_init__(self) -> None:
        check_ranges(self)

    def begin(self, scene: Scene) -> Operator:
        """Return an operator that always does the same.

        Parameters
        ----------
        scene : Scene
        """
        return _Fixed(Action(self.supply_c, scene.site.servers, 1.0, self.full_fans, self.economiser))


class _Fixed:
    def __init__(self, action: Action) -> None:
        self._action = action

    def decide(self, view: View) -> Action:
        return self._action


@dataclass(frozen=True, kw_only=True)
class WeatherReset:
    """Supplies the coolest air that the economiser alone can give, between two set points; all servers on.

    When it is too warm outside for the economiser, the warmest allowed air is supplied.
    """

    lowest_c: float = setting(COOLEST_C, unit="C", says="Coolest supply", low=5, high=35)
    highest_c: float = setting(WARMEST_C, unit="C", says="Warmest supply", low=5, high=35)
    approach_k: float = setting(4.5, unit="K", says="Supply above the outside wet bulb", low=0, high=30)

    def __post_init__(self) -> None:
        check_ranges(self)

    def begin(self, scene: Scene) -> Operator:
        """Return an operator that follows the wet bulb.

        Parameters
        ----------
        scene : Scene
        """
        return _Following(self, scene.site.servers)


class _Following:
    def __init__(self, settings: WeatherReset, servers: int) -> None:
        self._settings, self._servers = settings, servers

    def decide(self, view: View) -> Action:
        least, most = self._settings.lowest_c, self._settings.highest_c
        return Action(min(max(view.wet_c + self._settings.approach_k, least), most), self._servers)
