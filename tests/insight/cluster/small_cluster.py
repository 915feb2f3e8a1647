"""A small cluster of normal noise with known departures, and what detectors are given of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.cluster.interface import View
from wavetank.insight.cluster.peer_view import PeerView
from wavetank.sim.rng import stream

METRICS = ("a", "b", "c", "DCGM_FI_DEV_XID_ERRORS")
LAYERS = ("gpu", "gpu", "host", "gpu")
NODES, SAMPLES = 9, 240


def noise(part: str, samples: int = SAMPLES) -> NDArray[np.float32]:
    values = 100 + stream(5, "small cluster", part).normal(size=(len(METRICS), NODES, samples))
    values[3] = 0.0
    return values.astype(np.float32)


def peers() -> PeerView:
    return PeerView(noise("learned"))


def view_of(values: NDArray[np.float32]) -> View:
    return peers().view(values)
