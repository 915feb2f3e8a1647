"""A dense language model on tiles of a machine: tensor shards in nodes, stages across them, replicas for the rest.

One constant, the share of the peak that products reach, is set by one figure of the source: 57 TFLOP/s per tile of a
model of 175 billion parameters.  All else follows from sizes, bandwidths and the pipeline's bubble.  Activations are
computed again in the backward pass, and those operations count, as in the source's formula.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric
from wavetank.platforms.machines import Machine, machine
from wavetank.training.plans.costs import ring_s, stage_send_s
from wavetank.training.plans.memory import GRADIENT, OPTIMIZER, WEIGHT

TFLOPS_PER_TILE = 57e12
"""What the source reports for 175 billion parameters on 1,024 tiles."""


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """A dense model whose feed-forward part is four times as wide as it.

    Parameters
    ----------
    layers, hidden, heads, vocab : int
    tokens : int
        Of a sequence.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int = 51_200
    tokens: int = 2048

    @property
    def parameters(self) -> int:
        """Weights of all layers and of the embedding."""
        return 12 * self.layers * self.hidden**2 + self.vocab * self.hidden

    def flops(self, sequences: int) -> int:
        """Return the operations of a step, those computed again included: 96 B s l h^2 (1 + s / 6h + V / 16lh).

        Parameters
        ----------
        sequences : int
            Of the batch.
        """
        rows = sequences * self.tokens
        inner = 96 * self.layers * self.hidden**2 + 16 * self.tokens * self.layers * self.hidden
        return rows * (inner + 6 * self.vocab * self.hidden)


MODELS = {
    "3.6B": Gpt(layers=30, hidden=3072, heads=32),
    "20B": Gpt(layers=44, hidden=6144, heads=64),
    "175B": Gpt(layers=96, hidden=12_288, heads=96),
}
"""Sizes of the source; their layers and widths are those usual for such sizes."""


class Recipe(NamedTuple):
    """A configuration.

    Parameters
    ----------
    tensor, pipeline : int
        Tensor shards and stages; what is left of the tiles are replicas.
    micro : int
        Sequences of a microbatch.
    accumulation : int
        Microbatches of a step.
    shards : int
        Stage of ZeRO, 0 or 1.
    """

    tensor: int
    pipeline: int
    micro: int
    accumulation: int
    shards: int


BEST = Recipe(tensor=8, pipeline=16, micro=3, accumulation=100, shards=1)
"""What the source found for 175 billion parameters."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step takes.

    Parameters
    ----------
    time_s : float
    compute_s, tensor_s, send_s : float
        In all microbatches of a stage: computing, sums of tensor shards, messages between stages.
    bubble_s, gradient_s : float
        While the pipeline fills and drains, and for the sums of gradients.
    flops_per_tile : float
        Operations a second.
    """

    time_s: float
    compute_s: float
    tensor_s: float
    send_s: float
    bubble_s: float
    gradient_s: float
    flops_per_tile: float


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A model on some tiles of a machine.

    Parameters
    ----------
    gpt : Gpt
    tiles : int
    machine_name : str
        Of the machines that ship.
    share : float
        Of a tile's peak that products reach on many rows.
    half_rows : float
        Rows at which they reach half of that.
    hidden_share : float
        Of the sums of gradients that hides behind computing.
    memory_share : float
        Of the memory that may be filled.
    """

    gpt: Gpt
    tiles: int
    machine_name: str = "SuperMUC-NG-2"
    share: float = 1.0
    half_rows: float = 256.0
    hidden_share: float = 0.0
    memory_share: float = 0.92

    def __post_init__(self) -> None:
        # Written so that nan fails too.
        right = 0 < self.share <= 1 and 0 <= self.half_rows < float("inf") and 0 <= self.hidden_share <= 1
        if not (right and 0 < self.memory_share <= 1):
            raise BadValueError("A share of the tiles is out of range.", given=(
                self.share, self.half_rows, self.hidden_share, self.memory_share))  # fmt: skip
        _ = self.fabric

    @cached_property
    def machine(self) -> Machine:
        """The machine."""
        return machine(self.machine_name)

    @cached_property
    def fabric(self) -> Fabric:
        """What connects the tiles."""
        return self.machine.fabric(self.tiles)

    @property
    def room_bytes(self) -> int:
        """What a tile may hold."""
        return int(self.machine.device.memory_bytes * self.memory_share)

    def replicas(self, recipe: Recipe) -> int:
        """Return how many replicas a configuration leaves.

        Parameters
        ----------
        recipe : Recipe

        Raises
        ------
        BadValueError
            If its shards and stages do not divide the tiles, layers or heads.
        """
        across = recipe.tensor * recipe.pipeline
        if (
            min(recipe[:4]) < 1
            or recipe.shards not in (0, 1)
            or self.tiles % across
            or self.gpt.layers % recipe.pipeline
            or self.gpt.heads % recipe.tensor
        ):
            raise BadValueError(
                "The configuration does not divide the tiles, layers and heads.", given=recipe,
                allowed=f"divisors of {self.tiles} tiles, {self.gpt.layers} layers, {self.gpt.heads} heads",
            )  # fmt: skip
        return self.tiles // across

    def held_bytes(self, recipe: Recipe) -> int:
        """Return what a tile of the first stage holds, bytes.

        Parameters
        ----------
        recipe : Recipe
        """
        gpt, replicas = self.gpt, self.replicas(recipe)
        layers = gpt.layers // recipe.pipeline
        parameters = -(-(12 * layers * gpt.hidden**2 + gpt.vocab * gpt.hidden) // recipe.tensor)
        optimizer = -(-parameters // replicas) if recipe.shards else parameters
        rows = recipe.micro * gpt.tokens
        in_flight = min(recipe.pipeline, recipe.accumulation)
        kept = layers * in_flight * 2 * rows * gpt.hidden
        divided = 24 * rows * gpt.hidden + 5 * gpt.heads * rows * gpt.tokens
        whole = 10 * rows * gpt.hidden + -(-divided // recipe.tensor)
        return (WEIGHT + GRADIENT) * parameters + OPTIMIZER * optimizer + kept + whole

    def fits(self, recipe: Recipe) -> bool:
        """Return whether a tile has room.

        Parameters
        ----------
        recipe : Recipe
        """
        return self.held_bytes(recipe) <= self.room_bytes

    def step(self, recipe: Recipe) -> Step:
        """Return what a step takes.

        Parameters
        ----------
        recipe : Recipe
        """
        gpt, replicas = self.gpt, self.replicas(recipe)
        layers, rows = gpt.layers // recipe.pipeline, recipe.micro * gpt.tokens
        parameters = (12 * layers * gpt.hidden**2 + gpt.vocab * gpt.hidden // recipe.pipeline) // recipe.tensor
        best = self.machine.device.bf16_flops_per_s * self.share
        compute = gpt.flops(recipe.micro) / (recipe.pipeline * recipe.tensor * best) * ((rows + self.half_rows) / rows)
        n_bytes = 2 * rows * gpt.hidden
        # Two sums forward, two backward, two more when activations are computed again.
        tensor = layers * 6 * 2 * ring_s(self.fabric, recipe.tensor, 1, n_bytes)
        send = 0.0
        if recipe.pipeline > 1:
            send = 2 * stage_send_s(self.fabric, self.tiles // recipe.pipeline, -(-n_bytes // recipe.tensor))
        sums = 2 * ring_s(self.fabric, replicas, recipe.tensor, GRADIENT * parameters)
        gradient = (1.0 - self.hidden_share) * sums
        slot = compute + tensor + send
        time_s = (recipe.accumulation + recipe.pipeline - 1) * slot + gradient
        batch = replicas * recipe.micro * recipe.accumulation
        return Step(
            time_s=time_s, compute_s=recipe.accumulation * compute, tensor_s=recipe.accumulation * tensor,
            send_s=recipe.accumulation * send, bubble_s=(recipe.pipeline - 1) * slot, gradient_s=gradient,
            flops_per_tile=gpt.flops(batch) / (time_s * self.tiles),
        )  # fmt: skip


def calibrated(gpt: Gpt, tiles: int, **words: Any) -> Tiles:
    """Return tiles whose products reach the share of the peak by which the source's best run has its speed.

    Parameters
    ----------
    gpt : Gpt
    tiles : int
    **words : object
        Other parameters of :class:`Tiles`.

    Raises
    ------
    BadValueError
        If no share does.
    """
    low, high = 0.0, 1.0
    large = MODELS["175B"]
    for _ in range(60):
        middle = (low + high) / 2
        reached = Tiles(gpt=large, tiles=1024, share=middle, **words).step(BEST).flops_per_tile
        low, high = (middle, high) if reached < TFLOPS_PER_TILE else (low, middle)
    if high == 1.0:
        raise BadValueError("No share of the peak gives the speed of the source.", given=words)
    return Tiles(gpt=gpt, tiles=tiles, share=high, **words)


def weak_scaling(tiles: Tiles, recipe: Recipe, fewest: int) -> float:
    """Return speed per tile on all tiles / that on the fewest, with as many sequences per replica.

    Parameters
    ----------
    tiles : Tiles
    recipe : Recipe
    fewest : int
    """
    few = Tiles(**(_words(tiles) | {"tiles": fewest}))
    return tiles.step(recipe).flops_per_tile / few.step(recipe).flops_per_tile


def strong_scaling(tiles: Tiles, recipe: Recipe, fewest: int) -> float:
    """Return speed per tile on all tiles / that on the fewest, with as many sequences in all.

    Parameters
    ----------
    tiles : Tiles
    recipe : Recipe
    fewest : int
    """
    few = Tiles(**(_words(tiles) | {"tiles": fewest}))
    more = recipe._replace(accumulation=recipe.accumulation * tiles.replicas(recipe) // few.replicas(recipe))
    return tiles.step(recipe).flops_per_tile / few.step(more).flops_per_tile


def _words(tiles: Tiles) -> dict[str, Any]:
    return {name: getattr(tiles, name) for name in Tiles.__dataclass_fields__}


def recipes(tiles: Tiles) -> Iterator[Recipe]:
    """Yield the configurations that are tried, whether or not they fit into memory.

    Parameters
    ----------
    tiles : Tiles
    """
    for tensor in (1, 2, 4, 8, 16):
        for pipeline in range(1, tiles.gpt.layers + 1):
            if tiles.tiles % (tensor * pipeline) or tiles.gpt.layers % pipeline or tiles.gpt.heads % tensor:
                continue
            for micro in range(1, 9):
                for accumulation in (8, 16, 32, 64, 128):
                    for shards in (0, 1):
                        yield Recipe(tensor, pipeline, micro, accumulation, shards)
