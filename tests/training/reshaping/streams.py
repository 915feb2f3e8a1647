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
    replicas: int = 3, kept: tuple[tuple[int, ...], ...] | None = None,
) -> list[Observation]:  # fmt: skip
    """Return steps of three replicas, or more or fewer, with four micro-batches, or those that are ``kept``.

    ``slow`` is so from step ``begin`` on.
    """
    draws = stream(seed, "streams of tests")
    found = []
    for step in range(steps):
        shape = (replicas, 4)
        tokens = np.full(shape, 8192.0) if fixed else draws.uniform(2000, 8192, shape)
        squares = tokens * np.where(draws.random(shape) < long, draws.uniform(0.3, 1.0, shape), 0.1) * tokens
        if kept is not None:
            tokens, squares = tokens * np.array(kept), squares * np.array(kept)
        factors = np.ones((replicas, len(layers)))
        if slow is not None and step >= begin:
            factors[slow[0], slow[1]] = slow[2]
        found.append(observe(cost, layers, (tokens, squares), factors, 1e-4, 5e-3, noise, draws))
    return found
