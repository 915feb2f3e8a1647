"""Hardware, tiers and requests that the tests of tiers share."""

import numpy as np
import pytest

from wavetank.serving.tiers.interface import Problem, Tier
from wavetank.serving.tiers.profile import Hardware, units_of
from wavetank.serving.tiers.traffic import TieredRequests

TIERS = (
    Tier(name="tight", ttft_s=0.5, tpot_s=0.015, prompt_tokens=1000, output_tokens=100),
    Tier(name="loose", ttft_s=5.0, tpot_s=0.2, prompt_tokens=2000, output_tokens=50),
)


@pytest.fixture(scope="session")
def hardware():
    """Return four H100s and a model of 14 billion parameters."""
    return Hardware(device="H100-SXM", model="Qwen3-14B", gpus=4, degrees=(1, 2, 4))


@pytest.fixture(scope="session")
def problem(hardware):
    """Return the problem of two tiers on them, with capacities from formulas."""
    units, sliced = (units_of(hardware.rates(TIERS, full), hardware.gpus) for full in (True, False))
    return Problem(TIERS, units, sliced, hardware.gpus, 1.0, 0.1, (8.0, 8.0))


def requests_at(*rows):
    """Return requests given as (arrival_s, tier, prompt, output)."""
    arrival, tier, prompt, output = zip(*rows, strict=True)
    return TieredRequests(
        arrival_s=np.array(arrival, float), tier=np.array(tier), prompt_tokens=np.array(prompt),
        output_tokens=np.array(output),
    )  # fmt: skip


def mixed_requests(per_s=(8.0, 8.0), duration_s=20.0, seed=0):
    """Return requests of both tiers with random lengths."""
    draws = np.random.default_rng(seed)
    rows = []
    for tier, rate in enumerate(per_s):
        for at in np.sort(draws.uniform(0, duration_s, draws.poisson(rate * duration_s))):
            prompt, output = draws.integers(1, 2 * TIERS[tier].prompt_tokens), draws.integers(1, 150)
            rows.append((at, tier, prompt, output))
    return requests_at(*sorted(rows))
