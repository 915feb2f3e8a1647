"""The job whose mix changes: packed micro-batches of a model, images of an encoder, and GPUs that hold both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, unknown_name
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.platforms.catalog import Device
from wavetank.sim.rng import stream

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PATCHES_PER_TOKEN = 4
_PS = 1e12
# Bytes of a layer for each patch and number of its width, with the usual selective recomputation of attention.
_KEPT = 34.0


@dataclass(frozen=True, kw_only=True)
class Network:
    """A transformer, as far as its work counts.

    Parameters
    ----------
    layers, hidden : int
    causal : bool
        Whether a token attends to those before it only.
    """

    layers: int
    hidden: int
    causal: bool = False

    def flops(self, tokens: Floats) -> Floats:
        """Return the operations of a forward pass over sequences of some tokens.

        Parameters
        ----------
        tokens : float64 array
        """
        pairs = tokens * tokens / (2 if self.causal else 1)
        return self.layers * (24.0 * self.hidden**2 * tokens + 4.0 * self.hidden * pairs)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, its encoder, and how they are run.

    Parameters
    ----------
    encoder, model : Network
    sequence : int
        Tokens of a micro-batch.
    """

    encoder: Network
    model: Network
    sequence: int


SHAPES = {
    "A": Shape(
        encoder=Network(layers=40, hidden=1408), model=Network(layers=40, hidden=5120, causal=True), sequence=16_384
    ),
    "B": Shape(
        encoder=Network(layers=48, hidden=2048), model=Network(layers=80, hidden=8192, causal=True), sequence=16_384
    ),
    "C": Shape(
        encoder=Network(layers=64, hidden=3584), model=Network(layers=80, hidden=8192, causal=True), sequence=8_192
    ),
    "D": Shape(
        encoder=Network(layers=64, hidden=3584), model=Network(layers=96, hidden=12_288, causal=True), sequence=8_192
    ),
}  # fmt: skip
"""The source's workloads: encoders of 1, 2.4, 10 and 10 billion weights, models of 12, 70, 70 and 175."""


def shape(name: str) -> Shape:
    """Return a shape by name.

    Parameters
    ----------
    name : str

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    if name not in SHAPES:
        raise unknown_name("shape", name, SHAPES)
    return SHAPES[name]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One step of a group of data-parallel replicas.

    Parameters
    ----------
    layers : int
        Of the model.
    layer_ps : int
        Forward pass of one layer and one micro-batch on the GPUs of a stage; the backward pass takes twice as long.
    image_ps : int64 array (images,)
        Forward pass of each image on one GPU; backward twice.
    bin : int64 array (images,)
        The micro-batch of each image: replica * microbatches + number.
    replicas, microbatches, stages, stage_gpus : int
    tokens : int
        Of the step.
    exchange_ps : int64 array (images,)
        What exchanging heads for patches takes where an image is shared by the GPUs of a stage.
    image_bytes : float64 array (images,)
        What the encoder keeps of each image for its backward pass, if nothing is computed again.
    """

    layers: int
    layer_ps: int
    image_ps: Ints
    bin: Ints
    replicas: int
    microbatches: int
    stages: int
    stage_gpus: int
    tokens: int
    exchange_ps: Ints
    image_bytes: Floats

    def __post_init__(self) -> None:
        numbers = (self.layers, self.layer_ps, self.replicas, self.microbatches, self.stages, self.stage_gpus)
        bins = self.replicas * self.microbatches
        right = (
            self.image_ps.shape == self.bin.shape == self.exchange_ps.shape == self.image_bytes.shape
            and self.image_ps.ndim == 1
        )
        if min(numbers) < 1 or not right or self.layers < self.stages:
            raise BadValueError("A job has layers for each stage, micro-batches and GPUs.", given=numbers)
        if self.image_ps.size and (self.image_ps.min() < 0 or self.bin.min() < 0 or self.bin.max() >= bins):
            raise BadValueError("Images take time and have a micro-batch.", given=int(self.bin.max()),
                                allowed=f"below {bins}")  # fmt: skip

    @property
    def work_ps(self) -> Ints:
        """Forward work of the encoder on one GPU for each replica and micro-batch."""
        sums = np.zeros(self.replicas * self.microbatches, np.int64)
        np.add.at(sums, self.bin, self.image_ps)
        return sums.reshape(self.replicas, self.microbatches)

    @property
    def oracle_ps(self) -> int:
        """Work of encoder and model, forward and backward, over all GPUs."""
        model = 3 * self.layers * self.layer_ps * self.microbatches * self.stage_gpus * self.replicas
        gpus = self.stages * self.stage_gpus * self.replicas
        return (model + 3 * int(self.image_ps.sum())) // gpus


class Placed(NamedTuple):
    """How a step ran.

    Parameters
    ----------
    time_ps : int
        Until the last replica is done.
    held : int
        The most micro-batches of a replica whose encoder outputs are in memory at once.
    gpus : int
        Those of a replica that the encoder is spread over.
    """

    time_ps: int
    held: int
    gpus: int


class Placer(Protocol):
    """Decides where the encoder runs."""

    def step(self, job: Job, planned: Job) -> Placed:
        """Return how a step runs.

        Parameters
        ----------
        job : Job
        planned : Job
            One of the mix that was expected when the run began.
        """
        ...


def draw_job(
    seed: int,
    *,
    name: str,
    images: float,
    replicas: int,
    microbatches: int,
    stages: int,
    stage_gpus: int,
    device: Device,
    share: float,
    skew: float = 0.0,
    patches: tuple[int, int] = (256, 4096),
) -> Job:
    """Return a step of a mix, its images in micro-batches as they come.

    Parameters
    ----------
    seed : int
    name : str
        Of the shape.
    images : float
        Share of the model's tokens that come from images.
    replicas, microbatches, stages, stage_gpus : int
        As for :class:`Job`.
    device : Device
    share : float
        Of the device's peak that is reached.
    skew : float
        Standard deviation of the logarithm of how many images come to a replica's loader; 0: chance alone.
    patches : tuple of int
        Fewest and most patches of an image, log-uniform between.

    Raises
    ------
    BadValueError
        If the share of images is out of range, or stages do not divide the layers.
    """
    chosen = shape(name)
    if not 0 <= images < 1 or chosen.model.layers % stages:
        raise BadValueError("A mix has texts, and stages have as many layers.", given=(images, stages),
                            allowed=f"shares below 1, divisors of {chosen.model.layers}")  # fmt: skip
    bins = replicas * microbatches
    wanted = images * bins * chosen.sequence
    draws = stream(seed, "images of a shifting mix")
    weights = np.exp(skew * draws.normal(size=replicas))
    least = max(patches[0] // PATCHES_PER_TOKEN, 1)
    sizes = np.exp(draws.uniform(np.log(patches[0]), np.log(patches[1]), int(wanted // least) + 1)).astype(np.int64)
    sizes = sizes[np.cumsum(sizes // PATCHES_PER_TOKEN) <= wanted]
    per_s = device.bf16_flops_per_s * share
    image_ps = (chosen.encoder.flops(sizes.astype(np.float64)) / per_s * _PS).astype(np.int64)
    # Queries, keys, values and outputs, two bytes each, over the links of a node.
    sent = 4.0 * chosen.encoder.layers * 2 * sizes * chosen.encoder.hidden / stage_gpus * (stage_gpus - 1) / stage_gpus
    exchange = 4.0 * chosen.encoder.layers * device.link_latency_s * (stage_gpus > 1)
    layer = Network(layers=1, hidden=chosen.model.hidden, causal=True).flops(np.array([chosen.sequence], np.float64))
    return Job(
        layers=chosen.model.layers, layer_ps=int(layer[0] / (per_s * stage_gpus) * _PS), image_ps=image_ps,
        bin=_as_they_come(draws, sizes // PATCHES_PER_TOKEN, weights, microbatches, chosen.sequence),
        replicas=replicas,
        microbatches=microbatches, stages=stages, stage_gpus=stage_gpus, tokens=bins * chosen.sequence,
        image_bytes=(_KEPT * sizes * chosen.encoder.hidden * chosen.encoder.layers).astype(np.float64),
        exchange_ps=((sent / device.link_bytes_per_s + exchange) * _PS).astype(np.int64),
    )  # fmt: skip


def _as_they_come(draws: np.random.Generator, tokens: Ints, weights: Floats, microbatches: int, room: int) -> Ints:
    """Put images into micro-batches that are drawn, or the next one with room."""
    bins = weights.size * microbatches
    replica = draws.choice(weights.size, tokens.size, p=weights / weights.sum())
    starts = replica * microbatches + draws.integers(microbatches, size=tokens.size)
    left = np.full(bins, room, np.int64)
    found = np.zeros(tokens.size, np.int64)
    for i, (size, start) in enumerate(zip(tokens.tolist(), starts.tolist(), strict=True)):
        where = start
        while left[where] < size:
            where = (where + 1) % bins
            if where == start:
                where = int(np.argmax(left))
                break
        left[where] -= size
        found[i] = where
    return found


def regrouped(job: Job, group: int) -> Job:
    """Return a step whose images are dealt again, so that micro-batches have as much encoder work.

    The most expensive image comes first, to the micro-batch with least work, among the replicas of its own group;
    within a group, sizes are all that is exchanged before.  Texts fill what images leave, so that the model's work
    stays.

    Parameters
    ----------
    job : Job
    group : int
        Replicas of a group, neighbours in number.

    Raises
    ------
    BadValueError
        If groups do not divide the replicas.
    """
    if group < 1 or job.replicas % group:
        raise BadValueError("Groups divide the replicas.", given=group, allowed=f"divisors of {job.replicas}")
    found = job.bin.copy()
    bins = group * job.microbatches
    for first in range(0, job.replicas, group):
        mine = np.flatnonzero(job.bin // job.microbatches // group == first // group)
        costs = job.image_ps[mine].astype(np.float64)
        found[mine] = first * job.microbatches + longest_first(costs, costs, bins)
    return replace(job, bin=found)


def stage_layers(job: Job, first: int) -> Ints:
    """Return the layers of each stage, if the first has some number and the others share the rest evenly.

    Parameters
    ----------
    job : Job
    first : int

    Raises
    ------
    BadValueError
        If the first stage has more than an even share, or less than none.
    """
    if not 0 <= first <= job.layers // job.stages or job.stages < 2:
        raise BadValueError("The first stage has an even share of layers at most.", given=first,
                            allowed=f"0 to {job.layers // job.stages}")  # fmt: skip
    left, others = job.layers - first, job.stages - 1
    return np.array([first, *((left * (k + 1)) // others - (left * k) // others for k in range(others))], np.int64)
