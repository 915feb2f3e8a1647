"""Shared pieces of the overlays' tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wavetank.protocols.overlays.directory import Directory, Outcome
from wavetank.protocols.overlays.tables import give_exact
from wavetank.sim.events import simulate
from wavetank.sim.node import Node
from wavetank.sim.simulation import Request, Run


class Stationary:
    """Runs an overlay whose tables are exact and stay as they are."""

    @staticmethod
    def run(directory: Directory, size: int, requests: Sequence[Request], *, until: float = 80.0, seed: int = 1) -> Run:
        def setup(nodes: Sequence[Node]) -> None:
            give_exact(nodes, range(size), seed)

        return simulate(directory, size=size, until=until, requests=requests, setup=setup, seed=seed)

    @staticmethod
    def outcomes(run: Run) -> list[Outcome]:
        return [run.replies[number].result for number in range(len(run.requests))]


@pytest.fixture
def stationary() -> Stationary:
    return Stationary()
