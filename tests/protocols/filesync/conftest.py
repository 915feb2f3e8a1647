"""Two devices, one cloud, and whatever engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from wavetank.protocols.filesync.bilateral import BilateralSync
from wavetank.protocols.filesync.causal import CausalSnapshotSync
from wavetank.protocols.filesync.simulated import Outcome, outcome_of
from wavetank.protocols.filesync.timeline import TimelineSync
from wavetank.protocols.filesync.tree import Clock, MemoryTree
from wavetank.protocols.filesync.vectors import VersionVectorSync
from wavetank.sim.events import simulate
from wavetank.sim.network import Links, Network, Partition, Topology
from wavetank.sim.simulation import Request

ENGINES = {
    "timeline": TimelineSync(),
    "careful": TimelineSync(careful=True, conflict_rounds=1e12),
    "vectors": VersionVectorSync(),
    "causal": CausalSnapshotSync(),
    "bilateral": BilateralSync(),
}


@pytest.fixture
def engines() -> dict[str, Any]:
    return ENGINES


@pytest.fixture
def play() -> Callable[..., Outcome]:
    """Run commands ``(time, device, command)`` with optional cuts, clocks and bad links."""

    def run(
        engine: Any,
        commands: Sequence[tuple[float, int, Any]],
        *,
        cuts: Sequence[tuple[float, float, int]] = (),
        offsets: Sequence[float] = (0.0, 0.0),
        until: float = 400.0,
        disk_bytes: float = float("inf"),
        seed: int = 0,
        **links: float,
    ) -> Outcome:
        size = len(offsets) + 1

        def equip(nodes: Sequence[Any]) -> None:
            for number, offset in enumerate(offsets, 1):
                nodes[number].tree = MemoryTree(Clock(offset), disk_bytes)

        partitions = tuple(
            Partition(start=start, stop=stop, groups=(tuple(n for n in range(size) if n != device), (device,)))
            for start, stop, device in cuts
        )
        network = Network(
            topology=Topology.named("star", size),
            links=Links(delay="uniform-real", least_delay=0.05, most_delay=0.3, partitions=partitions, **links),  # type: ignore[arg-type]
        )
        requests = [Request(at=at, node=device, command=command) for at, device, command in commands]
        return outcome_of(
            simulate(engine, network=network, until=until, life="events", seed=seed, requests=requests, setup=equip)
        )

    return run
