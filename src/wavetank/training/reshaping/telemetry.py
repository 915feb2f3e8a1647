"""Steps of a job as a watch sees them: lengths of sequences, how long each group computed, how long the step took.

The truth behind them is planted: what a layer costs per token, per pair of tokens and per micro-batch, which group is
slow from when on, when the mix of lengths changes and when layers move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.training.reshaping.interface import Floats
from wavetank.training.reshaping.pipeline_clock import PS, slowest_ps


class Observation(NamedTuple):
    """One step.

    Attributes
    ----------
    tokens, squares : float64 array (replicas, microbatches)
        Sum of the lengths of each micro-batch's sequences, and of their squares; 0 fills the rows of replicas that have
        fewer micro-batches than others.
    busy_s : float64 array (replicas, stages)
        For which each group computed, waits excluded, s.
    step_s : float
        From begin to end, s.
    layers : tuple of int
        Of each stage.
    """

    tokens: Floats
    squares: Floats
    busy_s: Floats
    step_s: float
    layers: tuple[int, ...]


class Cost(NamedTuple):
    """What one layer costs a group: seconds per token, per squared token, and per micro-batch."""

    token_s: float
    square_s: float
    batch_s: float

    def of(self, tokens: Floats, squares: Floats) -> Floats:
        """Return what micro-batches cost, s."""
        return self.token_s * tokens + self.square_s * squares + self.batch_s * (tokens > 0)


def step_time_s(chunk_s: Floats, send_s: float) -> float:
    """Return when the last pass of the slowest pipeline ends, s.

    Parameters
    ----------
    chunk_s : float64 array (replicas, stages, microbatches)
        Forward and backward pass together.
    send_s : float
        What a boundary between stages takes.
    """
    return slowest_ps(np.rint(chunk_s * PS).astype(np.int64), round(send_s * PS)) / PS


class Noise(NamedTuple):
    """What blurs a step.

    Attributes
    ----------
    chunk : float
        Standard deviation of the logarithm of a pass's time.
    spikes : float
        Share of the steps that something else delays.
    spike : float
        By which share of the step at most.
    """

    chunk: float = 0.02
    spikes: float = 0.005
    spike: float = 0.5


def observe(
    cost: Cost, layers: tuple[int, ...], lengths: tuple[Floats, Floats], slow: NDArray[np.float64], send_s: float,
    rest_s: float, noise: Noise, draws: np.random.Generator,
) -> Observation:
    """Return what is seen of one step.

    Parameters
    ----------
    cost : Cost
    layers : tuple of int
        Of each stage.
    lengths : (float64 array, float64 array)
        Tokens and squares of each micro-batch, (replicas, microbatches).
    slow : float64 array (replicas, stages)
        By which factor each group is slower than a healthy one.
    send_s, rest_s : float
        A boundary between stages, and what follows the pipelines, s.
    noise : Noise
    draws : numpy.random.Generator
    """
    tokens, squares = lengths
    replicas, count = tokens.shape
    chunk = cost.of(tokens, squares)[:, None, :] * np.array(layers, np.float64)[None, :, None] * slow[:, :, None]
    chunk = chunk * np.exp(noise.chunk * draws.standard_normal((replicas, len(layers), count)))
    step_s = step_time_s(chunk, send_s) + rest_s * np.exp(0.05 * draws.standard_normal())
    delayed, by = draws.random(2)
    if delayed < noise.spikes:
        step_s *= 1 + by * noise.spike
    return Observation(tokens, squares, chunk.sum(axis=2), float(step_s), layers)
