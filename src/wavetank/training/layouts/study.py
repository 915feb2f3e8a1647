"""Study ``fsdp-layout``: where the parameters of large models are cut when many ranks share them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device, model
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.layouts.costs import Machine, peak_bytes, step_s
from wavetank.training.layouts.exhaustive import shortest_slice
from wavetank.training.layouts.interface import Footprint, Sharder, Tensor
from wavetank.training.layouts.parameters import Bucket, buckets

_INSTANCES = 40


@dataclass(frozen=True, kw_only=True)
class FsdpLayout(Study):
    """The parameters of language models, in their published shapes, are shared by many ranks: embedding, layers and
    head are a bucket each.  Layouts are computed exactly; what gathering and scattering take is modelled, by the same
    rules for all: collectives level by level, copies at the bandwidth of the device's memory, nothing overlapped.
    Planners are held against trying everything on small random buckets, which seeds draw.
    """

    name: ClassVar[str] = "fsdp-layout"
    baseline: ClassVar[str] = "fsdp2"
    primary: ClassVar[str] = "gather_scatter_s"
    secondary: ClassVar[tuple[str, ...]] = ("padding", "peak_bytes")
    must_be_zero: ClassVar[tuple[str, ...]] = ("blocks_cut",)
    cases_by: ClassVar[str] = "model"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("gather_scatter_s", "s", "lower", "modelled",
               "all gathers (two a bucket) and scatters (one) of a step, one after another, copies and casts included",
               words="time to gather and scatter"),
        Metric("padding", "", "lower", "counted", "elements of all buffers / elements of all parameters - 1"),
        Metric("blocks_cut", "blocks", "lower", "counted", "blocks that lie on more than one rank", words="cut blocks"),
        Metric("peak_bytes", "bytes", "lower", "modelled",
               "of a rank in its backward pass: master weights, moments, gradients, what is gathered, and activations",
               words="peak memory"),
        Metric("buffers", "", "lower", "counted", "buffers of the bucket with most, each with collectives of its own"),
        Metric("plan_s", "s", "lower", "measured", "deciding all layouts of a model once, on this machine, loaded",
               words="time to plan"),
        Metric("padding_by_ranks", "", "lower", "counted", "padding by number of ranks", table=False, words="padding"),
        Metric("padding_by_rows", "", "lower", "counted", "padding by rows of a block", table=False, words="padding"),
        Metric("gather_scatter_by_rows_s", "s", "lower", "modelled", "time to gather and scatter by rows of a block",
               table=False, words="time to gather and scatter"),
        Metric("share_shortest", "", "higher", "counted",
               "random small buckets whose slices are the shortest possible in the given order; of planners",
               table=False, words="share of shortest slices"),
        Metric("over_any_order", "", "lower", "counted",
               "mean of slice / shortest slice in any order - 1, over the same buckets", table=False,
               words="length over the best order"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Time to gather and scatter", y="gather_scatter_s", by="model", says="Shorter is faster."),
        Chart("bars", "Padding", y="padding", by="model", says="Shorter wastes less memory and traffic."),
        Chart("bars", "Blocks that are cut", y="blocks_cut", by="model", log="y",
              says="A cut block must be put together before it can be quantised."),
    )  # fmt: skip

    ranks: int = setting(256, unit="ranks", says="Devices that share the parameters", low=2, high=65_536)
    block_rows: int = setting(
        16, unit="rows", says="Rows of a block that must stay whole; 0: whole matrices", low=0, high=4096
    )
    models: tuple[str, ...] = setting(
        ("Llama-3.1-70B", "DeepSeek-V3", "GPT-OSS-120B"), says="Models, by their names in platforms/models.toml"
    )
    experts: str = setting(
        "fused", says="Experts of a layer: one tensor of three dimensions, or matrices of their own",
        choices=("fused", "separate"),
    )  # fmt: skip
    sweep_ranks: tuple[int, ...] = setting(
        (64, 1024), unit="ranks", says="Further numbers of ranks", low=2, high=65_536
    )
    sweep_rows: tuple[int, ...] = setting((1, 32, 128), unit="rows", says="Further heights of blocks", low=0, high=4096)
    device: str = setting("H100-SXM", says="Device")
    node: int = setting(8, unit="devices", says="Devices of a node", low=1, high=1024)
    latency_s: float = setting(5e-6, unit="s", says="Start-up time of one message", low=0.0, high=1.0)
    network_bytes_per_s: float = setting(
        0.0, unit="bytes/s", says="Bandwidth of a device to other nodes; 0: its data sheet's", low=0.0, high=1e15
    )
    reduce_bytes: int = setting(4, unit="bytes", says="Of a gradient's element while it is summed", choices=(2, 4))
    tokens: int = setting(8192, unit="tokens", says="Tokens of a rank, for its activations", low=1, high=1 << 24)

    def check(self) -> None:
        """Refuse ranks that fill no nodes, and bandwidths of next to nothing."""
        if not self.models:
            raise BadValueError("There are no models to lay out.", given=self.models, where="models")
        if 0 < self.network_bytes_per_s < 1:
            raise BadValueError("A device sends a byte per second at least.", given=self.network_bytes_per_s,
                                where="network_bytes_per_s")  # fmt: skip
        for name in self.models:
            model(name)
        for ranks in (self.ranks, *self.sweep_ranks):
            self.machine(ranks)

    def machine(self, ranks: int) -> Machine:
        """Return the devices and what connects them.

        Parameters
        ----------
        ranks : int
        """
        return Machine(
            device=device(self.device), ranks=ranks, node=self.node, latency_s=self.latency_s,
            reduce_bytes=self.reduce_bytes, network_bytes_per_s=self.network_bytes_per_s,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        reach = self.machine(self.ranks)
        gathered_s = reach.collective_s("all-gather", 10**9)
        return (
            f"A gigabyte is gathered from {self.ranks} ranks in {gathered_s * 1e3:.2f} ms; memory moves "
            f"{reach.device.hbm_bytes_per_s / 1e12:.2f} TB/s.",
            "Nothing hides behind computing here, so that ratios of whole training steps are nearer to 1.",
            "What allocators lose is in no figure of memory.",
        )

    def measure(self, system: Sharder, seed: int) -> Measurements:
        """Lay out all models, those of other heights of blocks and numbers of ranks, and small random buckets."""
        found = Measurements()
        machine = self.machine(self.ranks)
        system.shard([Tensor("first", (4,))], 2)
        for name in self.models:
            parts = self.buckets(name, self.block_rows)
            began = time.perf_counter()
            shared = _shared(system, parts, self.ranks)
            found.put("plan_s", time.perf_counter() - began, model=name)
            _check(shared, parts, self.ranks)
            spent_s, pad = step_s(shared, machine), _padding(shared, self.ranks)
            found.put("gather_scatter_s", spent_s, model=name)
            found.put("padding", pad, model=name)
            found.put("blocks_cut", sum(times * each.blocks_cut for each, times in shared), model=name)
            held, _ = peak_bytes(shared, machine, model=model(name), tokens=self.tokens)
            found.put("peak_bytes", held, model=name)
            found.put("buffers", max(each.buffers for each, _ in shared), model=name)
            for ranks in sorted({self.ranks, *self.sweep_ranks}):
                at = pad if ranks == self.ranks else _padding(_shared(system, parts, ranks), ranks)
                found.put("padding_by_ranks", at, model=name, ranks=ranks)
            for rows in sorted({self.block_rows, *self.sweep_rows}):
                other = _shared(system, self.buckets(name, rows), self.ranks)
                found.put("padding_by_rows", _padding(other, self.ranks), model=name, rows=rows)
                found.put("gather_scatter_by_rows_s", step_s(other, machine), model=name, rows=rows)
        if hasattr(system, "order"):
            equal, longer = held_against_all(system, seed)
            found.put("share_shortest", equal)
            found.put("over_any_order", longer)
        return found

    def buckets(self, name: str, rows: int) -> tuple[Bucket, ...]:
        """Return the buckets of a model.

        Parameters
        ----------
        name : str
        rows : int
            Of a block.
        """
        return buckets(model(name), block_rows=rows, experts=self.experts)


def _shared(system: Sharder, parts: tuple[Bucket, ...], ranks: int) -> list[tuple[Footprint, int]]:
    return [(system.shard(each.tensors, ranks), each.times) for each in parts]


def _padding(shared: list[tuple[Footprint, int]], ranks: int) -> float:
    held = sum(times * each.slice_elements * ranks for each, times in shared)
    return held / sum(times * each.elements for each, times in shared) - 1


def _check(shared: list[tuple[Footprint, int]], parts: tuple[Bucket, ...], ranks: int) -> None:
    """Refuse an answer that holds less than the parameters."""
    for (footprint, _), part in zip(shared, parts, strict=True):
        wanted = sum(each.size for each in part.tensors)
        if footprint.elements != wanted or footprint.slice_elements * ranks < wanted:
            raise BadValueError("The sharder leaves parameters out.", where=part.name,
                                given=f"{footprint.slice_elements} a rank", allowed=f"{wanted} in all")  # fmt: skip


def small_bucket(draws: np.random.Generator) -> tuple[list[Tensor], int]:
    """Return a random bucket that everything can be tried on, and its number of ranks.

    Parameters
    ----------
    draws : numpy.random.Generator
    """
    tensors = [
        Tensor(str(i), (int(draws.integers(1, 25)),), int(draws.integers(1, 7))) for i in range(draws.integers(1, 5))
    ]
    return tensors, int(draws.integers(2, 6))


def held_against_all(system: Any, seed: int) -> tuple[float, float]:
    """Return the share of small buckets with the shortest slice in the given order, and the length over any order.

    Parameters
    ----------
    system : VescaleFsdp
    seed : int
    """
    draws, equal, longer = stream(seed, "small buckets"), 0, 0.0
    planner = type(system)(order=system.order, unit=1, buffers="one")
    for _ in range(_INSTANCES):
        tensors, ranks = small_bucket(draws)
        length = planner.shard(tensors, ranks).slice_elements
        equal += length <= shortest_slice(tensors, ranks)
        longer += length / shortest_slice(tensors, ranks, any_order=True) - 1
    return equal / _INSTANCES, longer / _INSTANCES
