"""Study ``write-slots``: when checkpoints of many nodes wait for slots of their clients."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from wavetank.insight.cluster.real_bursts import expected_share, real_share
from wavetank.insight.cluster.write_slots import Load, SlotLimit, burst, checked, knee_nodes, predicted_share
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study


@dataclass(frozen=True, kw_only=True)
class WriteSlots(Study):
    """Nodes write a checkpoint at the same time, each through a client with a limited number of requests on their way.
    The service time of a request grows with the nodes that write, by assumption.  Beside it, a few real processes write
    files through a few writers each.
    """

    name: ClassVar[str] = "write-slots"
    baseline: ClassVar[str] = "slots-128"
    primary: ClassVar[str] = "queue_share"
    secondary: ClassVar[tuple[str, ...]] = ("utilisation", "knee_nodes")
    in_process: ClassVar[bool] = True
    metrics = (
        Metric("queue_share", "", "lower", "simulated",
               "time that requests waited for a slot / their latency; at nodes: that write at the same time",
               words="waiting in the latency of writes"),
        Metric("utilisation", "", "higher", "simulated",
               "bytes of all bursts / (time until the last answer x what the server could take)",
               words="use of the server"),
        Metric("share_error", "", "lower", "simulated",
               "|waiting request by request - 1 + service time / latency by the closed form|, the largest over nodes",
               words="error of the closed form"),
        Metric("knee_nodes", "nodes", "higher", "modelled",
               "nodes from which bursts wait: where slots x request / service time is what comes",
               words="nodes at the knee"),
        Metric("real_error", "", "lower", "measured",
               "|waiting of real writes - (n / W - 1) / (n / W + 1)|, n requests of a process at once, W writers: the "
               "system's slots / 32", words="error beside real writes"),
    )  # fmt: skip
    charts = (
        Chart("sweep", "Waiting as more nodes write", y="queue_share", by="nodes", log="x",
              says="Before the knee nothing waits."),
        Chart("sweep", "Use of the server as more nodes write", y="utilisation", by="nodes", log="x",
              says="After the knee it stands still."),
    )  # fmt: skip

    nodes: int = setting(60, unit="nodes", says="Nodes that write at the same time", low=1, high=100_000)
    burst_gb: float = setting(16.0, unit="GB", says="Checkpoint of a node", low=0.001, high=1e5)
    over_s: float = setting(16.0, unit="s", says="Time over which it comes", low=0, high=1e6)
    request_kb: float = setting(1048.576, unit="kB", says="Bytes of a request", low=1, high=1e6)
    alone_ms: float = setting(5.0, unit="ms", says="Service time of a request of one node alone", low=0.001, high=1e6)
    per_node_ms: float = setting(3.0, unit="ms", says="What each further node adds to it", low=0, high=1e6)
    server_gb_per_s: float = setting(250.0, unit="GB/s", says="What the server takes at most", low=0.001, high=1e6)
    processes: int = setting(2, says="Real processes that write; 0: none", low=0, high=16)
    requests: int = setting(64, says="Real requests of each", low=1, high=100_000)
    others: tuple[int, ...] = setting((1, 2, 4, 8, 16, 30, 120, 240), unit="nodes", says="Further nodes", low=1,
                                      high=100_000)  # fmt: skip

    def load(self) -> Load:
        """Return what a node writes."""
        request_bytes, alone_s = self.request_kb * 1e3, self.alone_ms / 1e3
        return Load(self.burst_gb * 1e9, self.over_s, request_bytes, alone_s, self.per_node_ms / 1e3)

    def check(self) -> None:
        """Refuse a load that there cannot be."""
        checked(self.load(), self.nodes)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "That service times grow with the nodes is assumed, and by how much.",
            "Real writers share a machine with everything else that runs on it.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Follow bursts through the slots of a system.

        Parameters
        ----------
        system : SlotLimit
        seed : int
        """
        found, load, errors = Measurements(), self.load(), []
        for nodes in sorted({self.nodes, *self.others}):
            one = burst(load, system.slots, nodes)
            used = nodes * load.burst_bytes / one.lasts_s / (self.server_gb_per_s * 1e9)
            errors.append(abs(one.queue_share - predicted_share(load, system.slots, nodes)))
            for at in ({}, {"nodes": nodes}) if nodes == self.nodes else ({"nodes": nodes},):
                found.put("queue_share", one.queue_share, **at)
                found.put("utilisation", used, **at)
        found.put("share_error", max(errors))
        found.put("knee_nodes", knee_nodes(load, system.slots))
        if self.processes:
            found.put("real_error", self.real_error(system))
        return found

    def real_error(self, system: SlotLimit) -> float:
        """Return how far the waiting of real writes is from what is expected.

        Parameters
        ----------
        system : SlotLimit
        """
        slots = max(1, system.slots // 32)
        with tempfile.TemporaryDirectory() as folder:
            share, _ = real_share(Path(folder), processes=self.processes, requests=self.requests,
                                  request_bytes=round(self.request_kb * 1e3), slots=slots)  # fmt: skip
        return abs(share - expected_share(self.requests, slots))
