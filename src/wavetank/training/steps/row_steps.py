"""How long a measured row's step should take, by what it says of itself: a step graph on the platforms' figures.

Every stage of the pipeline is one rank of the graph, as all ranks of a stage do the same at once.  A rank has a stream
for computing, with the collectives of tensor and expert parallelism in between, which it waits for; one for weights,
which are gathered as soon as it is free; one for gradients, which are scattered or summed; and two for messages to
other stages.  Passes run in the order of 1F1B.  Devices compute at a share of their peak that falls with fewer rows,
and collectives take what the fabric says: hierarchical ones of whole units, rings of others.

No number is fitted to the rows, though their times were known when these rules were written.  What software adds
(launches, copies, waits of the host) is not in it, so that only the order of steps is to be looked at; it hangs on the
share of the peak that products are taken to reach: at a tenth of the peak, computing hides the differences of plans.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Device, Model, device, model
from wavetank.platforms.fabric import Fabric, Level
from wavetank.platforms.step_time import PS_PER_S
from wavetank.settings import check_ranges, setting
from wavetank.training.steps.gpu_rows import GpuRow
from wavetank.workloads.operations import Operation, StepGraph
from wavetank.workloads.pipelines import passes

_COMPUTE, _GATHER, _SCATTER, _FORTH, _BACK = range(5)
_WEIGHT_BYTES, _GRADIENT_BYTES = 2, 4

Name = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class FlopsOverPeak:
    """Six operations for each parameter that a token meets, at the peak of all devices; the baseline of the study.

    A predictor of the study has ``seconds(row)``, and looks at the row's configuration alone.
    """

    def seconds(self, row: GpuRow) -> float:
        """Return the time of the row's step, s.

        Parameters
        ----------
        row : GpuRow
        """
        flops = 6.0 * model(row.model).active_parameters * row.batch * row.tokens
        return flops / (row.ranks * device(row.device).bf16_flops_per_s)


@dataclass(frozen=True, kw_only=True)
class RowSteps:
    """The step graph of a row on its fabric."""

    product_share: float = setting(0.7, says="Share of the peak that large products reach", low=0.01, high=1.0)
    half_rows: float = setting(
        256.0, unit="rows", says="Rows of a product at which it reaches half of that", low=0.0, high=1e6
    )

    def __post_init__(self) -> None:
        check_ranges(self)

    def seconds(self, row: GpuRow) -> float:
        """Return the time of the row's step, s.

        Parameters
        ----------
        row : GpuRow

        Raises
        ------
        BadValueError
            For more stages than layers.
        """
        return self.graph(row).times().makespan_ps / PS_PER_S

    def graph(self, row: GpuRow) -> StepGraph:
        """Return the step graph, a rank for each stage.

        Parameters
        ----------
        row : GpuRow

        Raises
        ------
        BadValueError
            For more stages than layers.
        """
        costs = _Costs(row, model(row.model), device(row.device), self.product_share, self.half_rows)
        layers = costs.model.layers
        if row.stages > layers:
            raise BadValueError("A stage has a layer at least.", given=row.stages, allowed=f"{layers} at most")
        # What an operation comes after is named, as it may stand further on.
        found: dict[Name, tuple[Operation, list[Name]]] = {}
        for stage in range(row.stages):
            own = range(stage * layers // row.stages, (stage + 1) * layers // row.stages)
            found |= _stage(costs, stage, own)
        number = {name: i for i, name in enumerate(found)}
        return StepGraph.of([
            dataclasses.replace(one, after=tuple(number[name] for name in after)) for one, after in found.values()
        ])  # fmt: skip


def _stage(costs: _Costs, stage: int, own: range) -> dict[Name, tuple[Operation, list[Name]]]:
    """Return what one stage does, streams in their order, each with the names of what it comes after."""
    found: dict[Name, tuple[Operation, list[Name]]] = {}
    row, last = costs.row, costs.row.stages - 1
    for each in passes("1f1b", stage, stages=row.stages, microbatches=row.microbatches):
        way, batch = int(each.backward), each.microbatch
        # Without a pipeline, weights are given up after the forward pass; with one, they are kept through the step.
        gathers = row.stages == 1 or not (way or batch)
        after: list[Name] = []
        if stage > 0 and not way:
            after = [("forth", batch, stage - 1)]
        elif stage < last and way:
            after = [("back", batch, stage + 1)]
        for layer in reversed(own) if way else own:
            if gathers and (took_ps := costs.gather_ps(layer)):
                name: Name = ("gather", way, batch, layer)
                found[name] = Operation(rank=stage, stream=_GATHER, duration_ps=took_ps), []
                after.append(name)
            ends: Name = ("pass", way, batch, layer)
            found[ends] = Operation(rank=stage, stream=_COMPUTE, duration_ps=costs.pass_ps(layer, way)), after
            after = []
            if way and batch == row.microbatches - 1 and (took_ps := costs.scatter_ps(layer)):
                found["scatter", layer] = Operation(rank=stage, stream=_SCATTER, duration_ps=took_ps), [ends]
        if (way and stage > 0) or (not way and stage < last):
            found["back" if way else "forth", batch, stage] = (
                Operation(rank=stage, stream=_BACK if way else _FORTH, kind="send", duration_ps=costs.send_ps), [ends],
            )  # fmt: skip
    return found


class _Costs:
    """What the parts of a row's step take, ps."""

    def __init__(self, row: GpuRow, of: Model, on: Device, product_share: float, half_rows: float) -> None:
        self.row, self.model = row, of
        self.rows = row.micro * row.tokens
        self._half_rows = half_rows
        self._flops_per_s = on.bf16_flops_per_s * product_share * row.tensor
        self._stage_ranks = row.ranks // row.stages
        inside = min(row.node, row.ranks)
        levels = [Level(name="node", size=inside, alpha_s=on.link_latency_s, bytes_per_s=row.node_bytes_per_s)]
        if row.ranks > inside:
            levels.append(Level(name="network", size=row.ranks // inside, alpha_s=on.link_latency_s,
                                bytes_per_s=row.network_bytes_per_s))  # fmt: skip
        self._fabric = Fabric(levels=tuple(levels))

    def _dense(self, layer: int) -> int:
        """Weights of a layer that every token meets, with the embedding before the first and the head after the last"""
        of = self.model
        inner = of.shared_experts * of.expert_ffn if self._routed(layer) else of.ffn
        return (
            of.attention_parameters // of.layers + 3 * of.hidden * inner
            + of.head_parameters * ((layer == 0) + (layer == of.layers - 1))
        )  # fmt: skip

    def _routed(self, layer: int) -> bool:
        return bool(self.model.experts) and layer >= self.model.dense_layers

    def pass_ps(self, layer: int, backward: int) -> int:
        """Return what a microbatch takes in a layer, twice as much computing and as many collectives backward."""
        return round(PS_PER_S * ((1 + backward) * self._compute_s(layer) + self._waits_s(layer)))

    def _compute_s(self, layer: int) -> float:
        of, row = self.model, self.row
        # An embedding is looked up.
        met = self._dense(layer) - (of.head_parameters if layer == 0 else 0)
        pairs = row.micro * row.tokens * (row.tokens + 1) / 2
        took = 2.0 * met * (self.rows + self._half_rows) + of.prefill_flops_per_pair / of.layers * pairs
        if self._routed(layer):
            # Rows of one expert, from all ranks that divide the experts; tensor shards bring different ones.
            each = self.rows / row.tensor * of.experts_per_token * row.experts / of.experts
            expert = 3 * of.hidden * of.expert_ffn
            took += 2.0 * of.experts_per_token * expert * self.rows * (each + self._half_rows) / each
        return took / self._flops_per_s

    def _waits_s(self, layer: int) -> float:
        of, row = self.model, self.row
        n_bytes = 2 * self.rows * of.hidden
        # Rows are gathered before attention and feed-forward block, and scattered after.
        found = 2 * (self._s("all-gather", 1, row.tensor, n_bytes) + self._s("reduce-scatter", 1, row.tensor, n_bytes))
        if self._routed(layer):
            found += 2 * self._s("all-to-all", 1, row.experts, n_bytes * of.experts_per_token // row.tensor)
        return found

    def gather_ps(self, layer: int) -> int:
        """Return what the gathering of a layer's weights takes."""
        return round(PS_PER_S * self._sharded_s("all-gather", layer, _WEIGHT_BYTES))

    def scatter_ps(self, layer: int) -> int:
        """Return what the sums of a layer's gradients take, over shards and replicas."""
        row = self.row
        found = self._sharded_s("reduce-scatter", layer, _GRADIENT_BYTES)
        weights = self._dense(layer) // (row.tensor * row.shards)
        if self._routed(layer):
            # The experts' shards have the rest of the ranks that hold them.
            weights += self._experts // (row.tensor * row.shards)
        found += self._s("all-reduce", row.tensor * row.shards, row.replicas, _GRADIENT_BYTES * weights)
        return round(PS_PER_S * found)

    @cached_property
    def _experts(self) -> int:
        return self.model.experts * 3 * self.model.hidden * self.model.expert_ffn

    def _sharded_s(self, collective: str, layer: int, each_bytes: int) -> float:
        row = self.row
        found = self._s(collective, row.tensor, row.shards, each_bytes * self._dense(layer) // row.tensor)
        if self._routed(layer):
            holders = row.tensor * row.shards // row.experts
            found += self._s(collective, row.experts, holders, each_bytes * self._experts // row.experts)
        return found

    @cached_property
    def send_ps(self) -> int:
        """What a message to the next stage takes."""
        n_bytes = 2 * self.rows * self.model.hidden // self.row.tensor
        return self._fabric.message_ps(0, self._stage_ranks, n_bytes)

    def _s(self, collective: str, stride: int, size: int, n_bytes: int) -> float:
        return _collective_s(self._fabric, collective, stride, size, n_bytes)


@lru_cache(maxsize=4096)
def _collective_s(fabric: Fabric, collective: str, stride: int, size: int, n_bytes: int) -> float:
    """Return what a collective of ranks at equal distances takes, s."""
    if size == 1:
        return 0.0
    units = [fabric.levels[0].size, fabric.ranks]
    whole = stride == 1 and size in units and collective != "all-to-all"
    algorithm = "hierarchical" if whole else "ring"
    return fabric.collective_ps(collective, range(0, size * stride, stride), n_bytes, algorithm) / PS_PER_S
