"""What a controller of a site sees and decides, every quarter of an hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wavetank.insight.facility.plant import Action
from wavetank.insight.facility.site import Floats, Site


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """A site, its load and when control begins.

    Parameters
    ----------
    site : Site
        As it is believed to be.
    load : numpy.ndarray of float64, shape (minutes,)
        Training part and what comes after it; a controller may look at what is before now alone.
    first : int
        Minute at which control begins.
    interval_min : int
        Minutes between decisions.
    seed : int
    """

    site: Site
    load: Floats
    first: int
    interval_min: int
    seed: int


class View(NamedTuple):
    """What is known at a decision.

    Attributes
    ----------
    minute : int
        Now, as an index of the scene's load.
    load : float
        Mean of the last five minutes, a share of all servers.
    waiting : float
        Work that waits, in servers.
    air_c, wet_c : float
        Outside air and wet bulb now, deg C.
    recirculation, recirculation_sd : float
        As the estimator believes.
    site : Site, optional
        As it is believed to be now; by default as the scene has it.
    """

    minute: int
    load: float
    waiting: float
    air_c: float
    wet_c: float
    recirculation: float
    recirculation_sd: float
    site: Site | None = None


class Operator(Protocol):
    """A controller at work on one scene."""

    def decide(self, view: View) -> Action:
        """Return what is set until the next decision."""


class Controller(Protocol):
    """Sets air and servers of a site."""

    def begin(self, scene: Scene) -> Operator:
        """Return an operator that has learned from the training part."""
