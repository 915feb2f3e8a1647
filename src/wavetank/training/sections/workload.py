"""Samples of a multimodal job: texts, and texts with images, whose encoder has a given share of the model's work.

Times come from operations: six for each parameter and token of the model, forward and backward, and those of causal
attention; of the encoder's patches a part that grows with their number and one that grows with its square.
"""

from __future__ import annotations

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Device, Model
from wavetank.sim.rng import stream
from wavetank.training.context.workload import sequence_lengths
from wavetank.training.sections.interface import Batch, Floats, Ints

PATCHES_PER_TOKEN = 4
"""Patches of an image that become one token of the model."""

_PS = 1e12
_SQUARE_AT = 4096.0  # Patches with which attention costs the encoder as much as everything else.


def critical_ps(tokens: Ints, model: Model, device: Device, gpus: int, share: float) -> Ints:
    """Return what a model takes for samples, forward and backward, if it is spread evenly over GPUs.

    Parameters
    ----------
    tokens : int64 array
    model : Model
    device : Device
    gpus : int
    share : float
        Of the device's peak that is reached.
    """
    each = tokens.astype(np.float64)
    flops = 6.0 * model.active_parameters * each + 3.0 * model.prefill_flops_per_pair * each * each / 2
    found: Ints = np.maximum(flops / (gpus * device.bf16_flops_per_s * share) * _PS, 1.0).astype(np.int64)
    return found


def draw(
    seed: int,
    *,
    ranks: int,
    per_rank: int,
    images: float,
    work: float,
    model: Model,
    device: Device,
    stages: int,
    stage_gpus: int,
    encoder_gpus: int,
    queue: int,
    median_tokens: float = 4096.0,
    sigma: float = 0.7,
    lengths: str = "lognormal",
    longest_tokens: int = 32_768,
    share: float = 0.4,
) -> Batch:
    """Return the batch of a seed.

    Parameters
    ----------
    seed, ranks, per_rank : int
    images : float
        Share of samples with images, in (0, 1) rounded to whole samples; 0: none.
    work : float
        Work of the encoder, forward and backward, over that of one stage of the model, sum of the batch.
    model : Model
    device : Device
    stages, stage_gpus, encoder_gpus, queue : int
        As for :class:`~wavetank.training.sections.interface.Batch`.
    median_tokens, sigma : float
        Of log-normal lengths of texts; of patches the median is the same, and so is sigma.
    lengths : str
        ``lognormal`` or ``documents``.
    longest_tokens : int
    share : float
        Of the device's peak that is reached.

    Raises
    ------
    BadValueError
        If the stages do not divide the model's layers, or a share is out of range.
    """
    if model.layers % stages or not 0 <= images <= 1 or not work >= 0 or ranks < 1 or per_rank < 1:
        raise BadValueError(
            "A batch has samples, shares and stages of as many layers.", given=(ranks, per_rank, images, work, stages),
            allowed=f"shares from 0 to 1, stages that divide {model.layers} layers",
        )  # fmt: skip
    count = ranks * per_rank
    draws = stream(seed, "samples of a multimodal job")
    text = np.clip(median_tokens * np.exp(sigma * draws.normal(size=count)), 64, longest_tokens).astype(np.int64)
    patches = np.clip(median_tokens * np.exp(sigma * draws.normal(size=count)), 64, 4 * longest_tokens).astype(np.int64)
    ranked = draws.permutation(count)
    if lengths == "documents":
        drawn = sequence_lengths(
            count * longest_tokens, seed, mix=lengths, longest=longest_tokens, median=1.0, sigma=1.0
        )
        text = drawn[:count]
    with_image = ranked < max(round(images * count), int(images > 0))
    tokens = text + np.where(with_image, patches // PATCHES_PER_TOKEN, 0)
    critical = critical_ps(tokens, model, device, stages * stage_gpus, share)
    weight = np.where(with_image, patches * (1 + patches / _SQUARE_AT), 0.0)
    forward = np.zeros(count, np.int64)
    if with_image.any() and work > 0:
        forward = (weight / weight.sum() * (work * float(critical.sum()) / 3)).astype(np.int64)
        forward[with_image] = np.maximum(forward[with_image], 1)
    return Batch(
        tokens=tokens, forward_ps=forward, critical_ps=critical, backward_ps=2 * forward,
        ranks=ranks, stages=stages, stage_gpus=stage_gpus,
        stage_layers=model.layers // stages, encoder_gpus=encoder_gpus, queue=queue,
    )  # fmt: skip


def disturbed(batch: Batch, seed: int, noise: float) -> Batch:
    """Return a batch whose real times differ from those that were predicted.

    Parameters
    ----------
    batch : Batch
        Predicted.
    seed : int
    noise : float
        Standard deviation of the logarithm of each factor; a sample has one for the encoder and one for the model.

    Raises
    ------
    BadValueError
        If the noise is negative or no number.
    """
    if not 0 <= noise < np.inf:
        raise BadValueError("Noise is a number from 0.", given=noise)
    if noise == 0:
        return batch
    factors = np.exp(noise * stream(seed, "times that were not predicted").normal(size=(2, batch.tokens.size)))

    def times(given: Ints, factor: Floats) -> Ints:
        return np.where(given > 0, np.maximum(given * factor, 1.0), 0.0).astype(np.int64)

    return Batch(
        tokens=batch.tokens, forward_ps=times(batch.forward_ps, factors[0]),
        critical_ps=times(batch.critical_ps, factors[1]), backward_ps=times(batch.backward_ps, factors[0]),
        ranks=batch.ranks, stages=batch.stages, stage_gpus=batch.stage_gpus, stage_layers=batch.stage_layers,
        encoder_gpus=batch.encoder_gpus, queue=batch.queue,
    )  # fmt: skip
