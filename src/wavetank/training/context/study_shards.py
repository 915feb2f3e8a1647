"""Study ``sequence-shards``: a long sequence's tokens and heads on ranks of unequal devices."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.context.interface import Cluster, Floats, imbalance
from wavetank.training.context.shards import Layer, LongSequence, Scheduler, layer_s, step_s

# Kinds of devices, each with as many ranks as the others.
_CLUSTERS = {
    "uniform": ("H100-SXM",),
    "two-kinds": ("H100-SXM", "A100-SXM-80GB"),
    "four-kinds": ("H100-SXM", "A100-SXM-80GB", "A100-PCIe-80GB", "L40S"),
}


@dataclass(frozen=True, kw_only=True)
class SequenceShards(Study):
    """Ranks of several kinds of devices share one long sequence.  Each scheduler says which ranks form groups, and how
    many tokens and heads each rank has; a step is modelled from peak speeds, bandwidths and bytes, the same for all.
    """

    name: ClassVar[str] = "sequence-shards"
    baseline: ClassVar[str] = "ring-equal-shares"
    primary: ClassVar[str] = "tokens_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("imbalance_time", "planning_s")
    exact: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "higher", "modelled",
               "tokens / time of a step, geometric mean over numbers of ranks and lengths"),
        Metric("imbalance_time", "", "lower", "modelled", "time of a rank's layer: max / mean - 1, mean over the cases",
               words="imbalance"),
        Metric("planning_s", "s", "lower", "measured", "planning one case on this machine, the slowest of all"),
        Metric("tokens_per_s_by_tokens", "tokens/s", "higher", "modelled", "tokens per second by length of the "
               "sequence, geometric mean over numbers of ranks", table=False, words="tokens per second"),
        Metric("tokens_per_s_by_ranks", "tokens/s", "higher", "modelled", "tokens per second by number of ranks, "
               "geometric mean over lengths", table=False, words="tokens per second"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Tokens per second", y="tokens_per_s", says="Longer is better."),
        Chart("sweep", "Tokens per second by length", y="tokens_per_s_by_tokens", by="tokens", log="xy",
              says="The gap between lines is what equal shares lose."),
    )  # fmt: skip

    cluster: str = setting(
        "two-kinds", says="Kinds of devices: H100 alone, or with A100, A100 PCIe and L40S", choices=tuple(_CLUSTERS)
    )
    ranks: tuple[int, ...] = setting((32, 64, 128), unit="ranks", says="Numbers of devices; multiples of 32", low=32,
                                     high=1024)  # fmt: skip
    tokens: tuple[int, ...] = setting(
        (131_072, 262_144, 524_288, 1_048_576), unit="tokens", says="Lengths of the sequence", low=1024, high=1 << 24
    )
    heads: int = setting(40, unit="heads", says="Heads of a layer, of 128 numbers", low=8, high=256)
    layers: int = setting(40, unit="layers", says="Layers of the model", low=1, high=256)
    network_bytes_per_s: float = setting(
        0.0, unit="bytes/s", says="Bandwidth of a device to other nodes; 0: its data sheet's", low=0.0, high=1e15
    )
    latency_s: float = setting(1e-5, unit="s", says="Start-up time of an exchange", low=0.0, high=1.0)

    def check(self) -> None:
        """Refuse numbers of ranks that kinds and nodes do not divide."""
        wrong = [each for each in self.ranks if each % 32]
        if wrong or not self.ranks or not self.tokens:
            raise BadValueError("Kinds of devices have whole nodes of 8.", given=wrong or "none",
                                allowed="multiples of 32", where="ranks")  # fmt: skip

    def problem(self, ranks: int, tokens: int) -> LongSequence:
        """Return one case.

        Parameters
        ----------
        ranks, tokens : int
        """
        names = _CLUSTERS[self.cluster]
        kinds = [device(name) for name in names for _ in range(ranks // len(names))]

        def of(name: str) -> Floats:
            return np.array([getattr(each, name) for each in kinds], np.float64)

        network = of("network_bytes_per_s")
        return LongSequence(
            tokens=tokens, memory_bytes=of("memory_bytes"),
            cluster=Cluster(
                flops_per_s=of("bf16_flops_per_s"), link_bytes_per_s=of("link_bytes_per_s"),
                network_bytes_per_s=np.full(ranks, self.network_bytes_per_s) if self.network_bytes_per_s else network,
                latency_s=self.latency_s,
            ),
            layer=Layer(heads=self.heads, ffn=4 * 128 * self.heads, layers=self.layers),
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        layer = self.problem(self.ranks[0], self.tokens[0]).layer
        return (
            f"A model of {layer.parameters * layer.layers / 1e9:.0f} billion weights in {layer.layers} layers; equal "
            f"numbers of {', '.join(dict.fromkeys(_CLUSTERS[self.cluster]))} in nodes of 8.",
            "Times are formulas: peak speeds times a share that is the same for all devices, bytes over bandwidths.",
        )

    def measure(self, system: Scheduler, seed: int) -> Measurements:
        """Model every case."""
        found = Measurements()
        rates: dict[tuple[int, int], float] = {}
        uneven = []
        planning_s = 0.0
        for ranks in self.ranks:
            for tokens in self.tokens:
                problem = self.problem(ranks, tokens)
                began = time.perf_counter()
                shards = system.shards(problem)
                planning_s = max(planning_s, time.perf_counter() - began)
                shards.check(problem)
                rates[ranks, tokens] = tokens / step_s(problem, shards)
                uneven.append(imbalance(layer_s(problem, shards)))
        found.put("tokens_per_s", _mean(list(rates.values())))
        found.put("imbalance_time", float(np.mean(uneven)))
        found.put("planning_s", planning_s)
        for tokens in self.tokens:
            found.put("tokens_per_s_by_tokens", _mean([rates[each, tokens] for each in self.ranks]), tokens=tokens)
        for ranks in self.ranks:
            found.put("tokens_per_s_by_ranks", _mean([rates[ranks, each] for each in self.tokens]), ranks=ranks)
        return found


def _mean(values: list[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))
