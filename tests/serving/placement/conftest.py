"""Adapters of tests."""

import pytest

from wavetank.serving.placement.interface import Adapter, PlacementProblem


@pytest.fixture
def problem():
    """Return a function that makes a problem from pairs of rates and ranks."""

    def made(*rates, ranks=(8,), **others):
        adapters = tuple(
            Adapter(name=f"a{i}", rank=ranks[i % len(ranks)], rate_per_s=rate) for i, rate in enumerate(rates)
        )
        return PlacementProblem(adapters=adapters, **others)

    return made
