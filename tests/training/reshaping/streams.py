"""Steps for watches: planted costs, planted slow groups, and lengths that change."""

from __future__ import annotations

import numpy as np

from wavetank.sim.rng import stream
from wavetank.training.reshaping.telemetry import Cost, Noise, Observation, observe

COST = Cost(token_s=2e-6, square_s=3e-10, batch_s=4e-3)
LAYERS = (3, 2, 3)
QUIET = Noise(chunk=0.0, spikes=0.0, spike=0.0)


def observations(
    steps: int, *, seed: int = 0, slow: tuple[int, int, float] | None = None, begin: int = 0, fixed: bool = True,
    noise: Noise = QUIET, long: float = 0.5, layers: tuple[int, ...] = LAYERS, cost: Cost = COST,
) -> list[Observation]:  # fmt: skip
    """Return steps of three replicas with three stages and four micro-batches; ``slow`` from step ``begin`` on."""
    draws = stream(seed, "streams of tests")
    found = []
    for step in range(steps):
        shape = (3, 4)
        tokens = np.full(shape, 8192.0) if fixed else draws.uniform(2000, 8192, shape)
        squares = tokens * np.where(draws.random(shape) < long, draws.uniform(0.3, 1.0, shape), 0.1) * tokens
        factors = np.ones((3, len(layers)))
        if slow is not None and step >= begin:
            factors[slow[0], slow[1]] = slow[2]
        found.append(observe(cost, layers, (tokens, squares), factors, 1e-4, 5e-3, noise, draws))
    return found
