"""What a controller sees says nothing of what comes."""

from __future__ import annotations

import numpy as np

from wavetank.insight.facility.interface import Scene, View
from wavetank.insight.facility.site import Site


def test_scenes_are_kept_as_given_and_views_hold_the_present_alone() -> None:
    load = np.linspace(0.2, 0.4, 100)
    scene = Scene(site=Site(), load=load, first=60, interval_min=15, seed=3)
    assert scene.load is load and scene != Scene(site=Site(), load=load, first=60, interval_min=15, seed=3)
    assert View._fields == ("minute", "load", "waiting", "air_c", "wet_c", "recirculation", "recirculation_sd", "site")
