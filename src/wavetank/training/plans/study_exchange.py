"""Study ``token-exchange``: all-to-all exchanges among the ranks of many nodes, flat or through the nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.machines import machine
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TokenExchange(Study):
    """Ranks of whole nodes exchange as many bytes with each other; rounds are priced on the levels of a machine.  A few
    ranks also exchange blocks of drawn lengths, which must end where a flat exchange brings them.
    """

    name: ClassVar[str] = "token-exchange"
    baseline: ClassVar[str] = "flat-exchange"
    primary: ClassVar[str] = "bandwidth_bytes_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("messages",)
    must_be_zero: ClassVar[tuple[str, ...]] = ("wrong_blocks",)
    exact: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("bandwidth_bytes_per_s", "bytes/s", "higher", "modelled",
               "bytes that a rank has for all / time, geometric mean over nodes and sizes",
               words="bandwidth of a rank"),
        Metric("messages", "", "lower", "counted", "messages through the network cards of one node, most nodes"),
        Metric("wrong_blocks", "", "lower", "counted", "blocks that are not where a flat exchange brings them"),
        Metric("bandwidth_by_case", "bytes/s", "higher", "modelled", "bandwidth of a rank by nodes and size",
               table=False, words="bandwidth of a rank"),
        Metric("bandwidth_by_nodes", "bytes/s", "higher", "modelled", "the same, geometric mean over sizes",
               table=False, words="bandwidth of a rank"),
        Metric("bandwidth_by_latency", "bytes/s", "higher", "modelled", "the same over nodes and sizes, by factors on "
               "all latencies", table=False, words="bandwidth of a rank"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Bandwidth of a rank by number of nodes", y="bandwidth_by_nodes", by="nodes", log="xy",
              says="Where lines part, messages are too small for the network."),
    )  # fmt: skip

    machine: str = setting("Frontier", says="Machine: Frontier, SuperMUC-NG-2")
    nodes: tuple[int, ...] = setting(
        (2, 4, 8, 16, 32, 64, 128), unit="nodes", says="Numbers of nodes", low=2, high=1024
    )
    sizes_mib: tuple[float, ...] = setting(
        (1.0, 16.0, 256.0), unit="MiB", says="What a rank has for all, in 2^20 bytes", low=1e-3, high=1e5
    )
    latencies: tuple[float, ...] = setting((0.25, 4.0), says="Further factors on all latencies", low=0.0, high=1e3)

    def check(self) -> None:
        """Refuse nothing to exchange, and nodes that the machine has not."""
        if not self.nodes or not self.sizes_mib:
            raise BadValueError("Some nodes exchange some bytes.", given=f"{self.nodes}, {self.sizes_mib}")
        for nodes in self.nodes:
            found = machine(self.machine)
            found.fabric(nodes * found.node)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Rounds wait for each other; nothing is lost to congestion, and no library's own overhead is counted.",
            "Latencies are assumed: the gain of fewer messages is theirs.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Price every case, and exchange some blocks."""
        found = Measurements()
        every: list[float] = []
        whole = machine(self.machine)
        for nodes in self.nodes:
            ranks, of_nodes = nodes * whole.node, []
            for mib in self.sizes_mib:
                n_bytes = round(mib * _MIB)
                of_nodes.append(n_bytes / system.time_s(whole, ranks, n_bytes))
                found.put("bandwidth_by_case", of_nodes[-1], nodes=nodes, mib=mib)
            found.put("bandwidth_by_nodes", _mean(of_nodes), nodes=nodes)
            every += of_nodes
        found.put("bandwidth_bytes_per_s", _mean(every))
        found.put("messages", system.messages(whole, max(self.nodes) * whole.node))
        found.put("wrong_blocks", wrong_blocks(system, seed))
        for factor in (1.0, *self.latencies):
            other = whole.with_latencies(factor)
            rates = [
                round(mib * _MIB) / system.time_s(other, nodes * whole.node, round(mib * _MIB))
                for nodes in self.nodes
                for mib in self.sizes_mib
            ]
            found.put("bandwidth_by_latency", _mean(rates), factor=factor)
        return found


def wrong_blocks(system: Any, seed: int) -> int:
    """Return how many blocks of drawn lengths do not end where they should, among 16 ranks on four nodes.

    Parameters
    ----------
    system : an exchange
    seed : int
    """
    draws = stream(seed, "token exchange")
    blocks = {
        (source, target): draws.normal(size=int(draws.integers(6))) for source in range(16) for target in range(16)
    }
    found = system.exchanged(blocks, 16, 4)
    lacking = len(blocks.keys() ^ found.keys())
    return lacking + sum(
        not np.array_equal(content, found[pair]) for pair, content in blocks.items() if pair in found
    )


def _mean(values: list[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))
