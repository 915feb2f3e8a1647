"""Study ``context-parallel``: sharing the attention of sequences of very different lengths among many ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.block_attention import attend_block, block_gradients
from wavetank.platforms.catalog import device
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.context.attend import attend
from wavetank.training.context.costs import useful_flops
from wavetank.training.context.interface import Batch, Cluster, Floats, Sharer, Step, imbalance
from wavetank.training.context.workload import DATA, FILE, document_classes, sequence_lengths
from wavetank.units import show
from wavetank.workloads import datasets

_ERROR = 1e-9
# Of the batch that is computed, not simulated.
_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class ContextParallel(Study):
    """Ranks share the causal attention of one layer, forward and backward, of batches of sequences.  All sharers get
    the same batches; kernels are slow on short blocks, messages of a rank go one at a time through its network card,
    and what a sharer leaves open is chosen for each batch by its own prediction.
    """

    name: ClassVar[str] = "context-parallel"
    baseline: ClassVar[str] = "ring-zigzag"
    primary: ClassVar[str] = "tokens_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("imbalance_compute", "imbalance_received", "planning_s")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "higher", "simulated",
               "tokens of the batch / time of forward and backward pass of one layer's attention, until the last rank "
               "is done"),
        Metric("mfu", "", "higher", "simulated",
               "operations of causal attention, forward and backward / (time * peak of all devices)",
               words="model FLOPs utilisation"),
        Metric("imbalance_compute", "", "lower", "simulated", "computing of a rank: max / mean - 1",
               words="imbalance of computing"),
        Metric("imbalance_sent", "", "lower", "counted", "bytes that a rank sends in the forward pass: max / mean - 1",
               words="imbalance of sent bytes"),
        Metric("imbalance_received", "", "lower", "counted",
               "bytes that a rank receives in the forward pass: max / mean - 1", words="imbalance of received bytes"),
        Metric("received_bytes_per_token", "bytes", "lower", "counted",
               "bytes that all ranks receive in the forward pass / tokens of the batch", words="bytes per token"),
        Metric("rounds_over_degree", "", "lower", "counted",
               "rounds of messages of the forward pass / the most messages that one rank sends or receives; of sharers "
               "with rounds"),
        Metric("executed_error", "", "lower", "counted",
               "largest difference of outputs and gradients from dense attention, in float64, of a small batch that "
               "four ranks compute block by block as planned; of sharers with plans", words="error of attention"),
        Metric("choice", "", "", "simulated", "tokens of a block, ranks of a group, or ranks over the fewest that hold "
               "a sequence, as chosen for the batch", table=False),
        Metric("planning_s", "s", "lower", "measured", "planning one batch on this machine, all that was tried for its "
               "choice included", words="time to plan"),
        Metric("tokens_per_s_by_ranks", "tokens/s", "higher", "simulated", "tokens per second by number of ranks, with "
               "as many tokens per rank", table=False, words="tokens per second"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Tokens per second", y="tokens_per_s", says="Longer is better."),
        Chart("sweep", "Tokens per second by number of ranks", y="tokens_per_s_by_ranks", by="ranks", log="xy",
              says="A sharer that wastes nothing would be a straight line, as long as batches are alike."),
        Chart("bars", "How much more the busiest rank computes than the mean", y="imbalance_compute",
              says="Shorter is better."),
    )  # fmt: skip

    ranks: int = setting(256, unit="ranks", says="Devices that share a batch; a power of two", low=2, high=1024)
    platform: str = setting(
        "uniform", says="Devices: all alike, or the second half of them slower ones", choices=("uniform", "mixed")
    )
    lengths: str = setting(
        "documents", says="Lengths: those of counted documents with a log-normal tail, drawn ones, or all the longest",
        choices=("documents", "lognormal", "equal"),
    )  # fmt: skip
    longest_tokens: int = setting(524_288, unit="tokens", says="Longest sequence", low=64, high=1 << 24)
    median_tokens: float = setting(1500.0, unit="tokens", says="Median of log-normal lengths", low=1.0, high=1e6)
    sigma: float = setting(1.8, says="Standard deviation of the logarithm of log-normal lengths", low=0.01, high=5.0)
    tokens_per_rank: int = setting(32_768, unit="tokens", says="Tokens of the batch per rank", low=64, high=1 << 22)
    slack: float = setting(0.05, says="Share by which a rank may hold more tokens than the mean", low=0.0, high=4.0)
    half_tokens: float = setting(
        1024.0, unit="tokens", says="Length of blocks on which a kernel reaches half of its best speed; 0: always fast",
        low=0.0, high=1e6,
    )  # fmt: skip
    kernel_share: float = setting(
        0.65, says="Share of a device's peak that attention reaches at best", low=0.01, high=1.0
    )
    network_bytes_per_s: float = setting(
        0.0, unit="bytes/s", says="Bandwidth of a device to other nodes; 0: its data sheet's", low=0.0, high=1e15
    )
    latency_s: float = setting(1e-5, unit="s", says="Start-up time of one message", low=0.0, high=1.0)
    device: str = setting("H100-SXM", says="Device")
    slower_device: str = setting("A100-SXM-80GB", says="Device of the second half of a mixed platform")
    sweep: tuple[int, ...] = setting((16, 64), says="Further numbers of ranks; powers of two", low=2, high=1024)

    def check(self) -> None:
        """Refuse numbers of ranks that groups do not divide, and batches that hold no whole sequence."""
        for ranks in (self.ranks, *self.sweep):
            if ranks & (ranks - 1):
                raise BadValueError("Groups divide the ranks by two again and again.", given=ranks,
                                    allowed="2, 4, 8 and so on", where="ranks")  # fmt: skip
        for ranks in (self.ranks, *self.sweep):
            self.batch(0, ranks)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the documents' lengths."""
        if self.lengths != "documents" or document_classes() is None:
            return {}
        return {DATA: next(file.sha256 for file in datasets.entry(DATA).files if file.path == FILE)}

    def cluster(self, ranks: int) -> Cluster:
        """Return the ranks.

        Parameters
        ----------
        ranks : int
        """
        slower = self.slower_device if self.platform == "mixed" else self.device
        kinds = [device(self.device)] * (ranks - ranks // 2) + [device(slower)] * (ranks // 2)

        def of(name: str) -> Floats:
            return np.array([getattr(each, name) for each in kinds], np.float64)

        network = of("network_bytes_per_s")
        return Cluster(
            flops_per_s=of("bf16_flops_per_s"), link_bytes_per_s=of("link_bytes_per_s"),
            network_bytes_per_s=np.full(ranks, self.network_bytes_per_s) if self.network_bytes_per_s else network,
            latency_s=self.latency_s, kernel_share=self.kernel_share, half_tokens=self.half_tokens,
        )  # fmt: skip

    def batch(self, seed: int, ranks: int) -> Batch:
        """Return the batch of a seed.

        Parameters
        ----------
        seed, ranks : int
        """
        tokens = ranks * self.tokens_per_rank
        lengths = sequence_lengths(
            tokens, seed, mix=self.lengths, longest=min(self.longest_tokens, tokens), median=self.median_tokens,
            sigma=self.sigma,
        )  # fmt: skip
        return Batch(
            lengths=lengths, cluster=self.cluster(ranks), room_tokens=int(self.tokens_per_rank * (1 + self.slack))
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        lengths = self.batch(0, self.ranks).lengths
        share = float(lengths[lengths > self.tokens_per_rank].sum()) / float(lengths.sum())
        source = "drawn, as the data set seq-lengths is absent" if document_classes() is None else "counted"
        cluster = self.cluster(self.ranks)
        return (
            f"{show(int(lengths.sum()), 'tokens')} in {lengths.size} sequences (seed 0) up to "
            f"{show(int(lengths.max()), 'tokens')}; {share:.0%} of the tokens are in sequences longer than one rank "
            "holds." + (f" Lengths of documents are {source}." if self.lengths == "documents" else ""),
            f"Attention of 64 heads of queries and 8 of keys; kernels reach {self.kernel_share:.0%} of the peak, half "
            f"of that on blocks of {show(self.half_tokens, 'tokens')}; "
            f"{show(float(cluster.network_bytes_per_s.min()), 'bytes/s')} between nodes of {cluster.node}.",
            "Tokens lie where the sharer wants them before and after attention; moving them is counted for none.",
        )

    def measure(self, system: Sharer, seed: int) -> Measurements:
        """Share the batch of a seed, and those of other numbers of ranks."""
        found = Measurements()
        batch = self.batch(seed, self.ranks)
        began = time.perf_counter()
        step = system.step(batch)
        planning_s = time.perf_counter() - began
        _check(step, batch)
        found.put("tokens_per_s", batch.tokens / step.time_s)
        peak = float(batch.cluster.flops_per_s.sum())
        found.put("mfu", useful_flops(batch.lengths, batch.cluster) / (step.time_s * peak))
        found.put("imbalance_compute", imbalance(step.compute_s))
        found.put("imbalance_sent", imbalance(step.sent_bytes))
        found.put("imbalance_received", imbalance(step.received_bytes))
        found.put("received_bytes_per_token", float(step.received_bytes.sum()) / batch.tokens)
        if step.degree:
            found.put("rounds_over_degree", step.rounds / step.degree)
        if hasattr(system, "plan"):
            found.put("executed_error", executed_error(system, self.cluster(4), seed))
        found.put("choice", step.choice)
        found.put("planning_s", planning_s)
        found.put("tokens_per_s_by_ranks", batch.tokens / step.time_s, ranks=self.ranks)
        for ranks in self.sweep:
            if ranks != self.ranks:
                batch = self.batch(seed, ranks)
                found.put("tokens_per_s_by_ranks", batch.tokens / system.step(batch).time_s, ranks=ranks)
        return found


def executed_error(system: Any, cluster: Cluster, seed: int) -> float:
    """Return how far the attention that a plan computes is from dense attention, forward and backward.

    Parameters
    ----------
    system : sharer with ``plan`` and ``rounds``
    cluster : Cluster
        Of a few ranks.
    seed : int
    """
    lengths = sequence_lengths(_TOKENS, seed, mix="lognormal", longest=_TOKENS // 2, median=60.0, sigma=1.5)
    batch = Batch(lengths=lengths, cluster=cluster, room_tokens=_TOKENS)
    plan = system.plan(batch, _TOKENS // 32)
    draws = stream(seed, "executed attention")
    queries, out_grad = draws.normal(size=(2, 4, _TOKENS, 8))
    keys, values = draws.normal(size=(2, 2, _TOKENS, 8))
    found = attend(queries, keys, values, plan, out_grad=out_grad, colours=system.rounds(plan))
    worst = 0.0
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        at = (slice(None), slice(end - length, end))
        whole = attend_block(queries[at], keys[at], values[at], 0)
        wanted = whole.out, *block_gradients(queries[at], keys[at], values[at], whole, out_grad[at], 0)
        for name, other in zip(("out", "query_grad", "key_grad", "value_grad"), wanted, strict=True):
            worst = max(worst, float(np.abs(getattr(found, name)[at] - other).max()))
    return worst


def _check(step: Step, batch: Batch) -> None:
    """Refuse a step that computes less than is asked for, or is done before its ranks are."""
    least = useful_flops(batch.lengths, batch.cluster) / batch.cluster.kernel_share
    done = float((step.compute_s * batch.cluster.flops_per_s).sum())
    if done < least * (1 - _ERROR) or step.time_s < float(step.compute_s.max()) * (1 - _ERROR):
        raise BadValueError(
            "The step does less than the batch asks for.", given=f"{done:g} operations in {step.time_s:g} s",
            allowed=f"{least:g} or more, in {float(step.compute_s.max()):g} s or more",
        )  # fmt: skip
