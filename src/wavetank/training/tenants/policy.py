"""A small policy: a frozen base that all tasks share, and for each task an adapter of low rank that alone is trained.

Two layers, ``tanh(x W1) W2``, give the logits of a few actions; an adapter adds ``A1 B1`` to the first and ``A2 B2``
to the second, with ``B1`` and ``B2`` zero at first.  One batch may hold rows of several adapters: the base's products
are computed for all rows at once, the adapters' for each row with its own.

All sums run in one order for each row, whatever else is in the batch, so that an answer does not depend on who was
served with it, to the last bit.  An update makes a new adapter and leaves the old one as it was.

The update is that of GRPO (arXiv 2402.03300): rewards normalised within a group, ratios clipped, without a term for the
distance from the base; Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

Floats = NDArray[np.float64]

INPUTS, ACTIONS = 16, 8
_HIDDEN = 32
NAMES = ("a1", "b1", "a2", "b2")
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8


class Weights(NamedTuple):
    """One number for each weight of an adapter: its weights, a gradient, or a moment.

    Attributes
    ----------
    a1 : ndarray of float64, shape (inputs, rank)
    b1 : ndarray of float64, shape (rank, hidden)
    a2 : ndarray of float64, shape (hidden, rank)
    b2 : ndarray of float64, shape (rank, actions)
    """

    a1: Floats
    b1: Floats
    a2: Floats
    b2: Floats


def shapes(rank: int) -> tuple[tuple[int, int], ...]:
    """Return the shapes of an adapter's weights, in their order."""
    return (INPUTS, rank), (rank, _HIDDEN), (_HIDDEN, rank), (rank, ACTIONS)


class Base:
    """The frozen weights that all tasks share.

    Parameters
    ----------
    seed : int
    """

    def __init__(self, seed: int = 0) -> None:
        draws = stream(seed, "base of tenants")
        self.first = _frozen(draws.normal(size=(INPUTS, _HIDDEN)))
        self.second = _frozen(draws.normal(size=(_HIDDEN, ACTIONS)) / 8)

    def bytes(self) -> bytes:
        """Return all weights as bytes."""
        return self.first.tobytes() + self.second.tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapter:
    """What one task has learnt.

    Parameters
    ----------
    version : int
        Updates that it has had.
    weights, mean, square : Weights
        The weights, and Adam's two moments of their gradients; read-only.
    """

    version: int
    weights: Weights
    mean: Weights
    square: Weights

    @property
    def rank(self) -> int:
        """Rank of the products that it adds."""
        return self.weights.a1.shape[1]

    def bytes(self) -> bytes:
        """Return version, weights and moments as bytes."""
        arrays = [*self.weights, *self.mean, *self.square]
        return self.version.to_bytes(8, "little") + b"".join(each.tobytes() for each in arrays)


def new_adapter(seed: int, rank: int = 4) -> Adapter:
    """Return an adapter that changes nothing yet.

    Parameters
    ----------
    seed : int
    rank : int
    """
    draws = stream(seed, "adapter")
    a1, b1, a2, b2 = shapes(rank)
    weights = Weights(
        _frozen(draws.normal(size=a1) / 4), _frozen(np.zeros(b1)),
        _frozen(draws.normal(size=a2) / 4), _frozen(np.zeros(b2)),
    )  # fmt: skip
    zeros = Weights(*(_frozen(np.zeros(each)) for each in shapes(rank)))
    return Adapter(version=0, weights=weights, mean=zeros, square=zeros)


def _frozen(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


def _product(rows: Floats, matrix: Floats) -> Floats:
    """Return rows times one matrix, or times one for each row, summed in the order of the matrix's rows."""
    found: Floats = (rows[:, :, None] * matrix).sum(1)
    return found


def _outer(left: Floats, right: Floats) -> Floats:
    """Return the sum of outer products of rows, in their order."""
    found: Floats = (left[:, :, None] * right[:, None, :]).sum(0)
    return found


class _Forward(NamedTuple):
    inner: Floats
    hidden: Floats
    outer: Floats
    log_probabilities: Floats


def _forward(base: Base, inputs: Floats, w: Weights) -> _Forward:
    inner = _product(inputs, w.a1)
    hidden = np.tanh(_product(inputs, base.first) + _product(inner, w.b1))
    outer = _product(hidden, w.a2)
    logits = _product(hidden, base.second) + _product(outer, w.b2)
    logits = logits - logits.max(1, keepdims=True)
    # One by one, as a sum along the last axis may be split otherwise for another number of rows.
    total = np.exp(logits[:, 0])
    for action in range(1, ACTIONS):
        total = total + np.exp(logits[:, action])
    return _Forward(inner, hidden, outer, logits - np.log(total)[:, None])


def log_probabilities(base: Base, inputs: Floats, adapters: Sequence[Adapter], of: Sequence[int]) -> Floats:
    """Return the logarithms of the probabilities of all actions, for rows of several adapters.

    Parameters
    ----------
    base : Base
    inputs : ndarray of float64, shape (rows, INPUTS)
    adapters : sequence of Adapter
        Of equal rank.
    of : sequence of int
        Adapter of each row.

    Returns
    -------
    ndarray of float64, shape (rows, ACTIONS)

    Raises
    ------
    BadValueError
        If the ranks differ.
    """
    if len({each.rank for each in adapters}) != 1:
        raise BadValueError("One batch holds adapters of one rank.", given=[each.rank for each in adapters])
    places = np.asarray(of)
    stacked = (np.stack(each)[places] for each in zip(*(adapter.weights for adapter in adapters), strict=True))
    return _forward(base, inputs, Weights(*stacked)).log_probabilities


def chosen(log_probability: Floats, draw: float) -> int:
    """Return the action that a number from [0, 1) draws.

    Parameters
    ----------
    log_probability : ndarray of float64, shape (ACTIONS,)
    draw : float
    """
    total = 0.0
    for action, each in enumerate(log_probability):
        total += float(np.exp(each))
        if draw < total:
            return action
    return ACTIONS - 1


class Samples(NamedTuple):
    """What an adapter is trained on: one row a turn, in the order of answers.

    Attributes
    ----------
    inputs : ndarray of float64, shape (turns, INPUTS)
    actions : ndarray of int64, shape (turns,)
    log_probability : ndarray of float64, shape (turns,)
        Of the action, under the adapter that chose it.
    advantage : ndarray of float64, shape (turns,)
    """

    inputs: Floats
    actions: NDArray[np.int64]
    log_probability: Floats
    advantage: Floats


def advantages(rewards: Sequence[float]) -> Floats:
    """Return the rewards of a group less their mean, over their standard deviation; 0 where all are equal.

    Parameters
    ----------
    rewards : sequence of float
    """
    given = np.array(rewards, dtype=np.float64)
    if given.size == 0 or (given == given[0]).all():
        return np.zeros(given.size)
    with np.errstate(over="ignore", invalid="ignore"):
        found: Floats = (given - given.mean()) / (given.std() + 1e-6)
    return found


def objective(base: Base, w: Weights, samples: Samples, clip: float) -> float:
    """Return what an update increases: the mean over turns of the clipped ratio times the advantage.

    Parameters
    ----------
    base : Base
    w : Weights
    samples : Samples
    clip : float
        How far a ratio of probabilities may be from 1.
    """
    new = _forward(base, samples.inputs, w).log_probabilities[np.arange(samples.actions.size), samples.actions]
    ratio = np.exp(new - samples.log_probability)
    cut = np.clip(ratio, 1 - clip, 1 + clip)
    return float(np.minimum(ratio * samples.advantage, cut * samples.advantage).mean())


def gradient(base: Base, w: Weights, samples: Samples, clip: float) -> Weights:
    """Return the gradient of :func:`objective`.

    Parameters
    ----------
    base : Base
    w : Weights
    samples : Samples
    clip : float
    """
    x = samples.inputs
    with np.errstate(over="ignore", invalid="ignore"):
        inner, hidden, outer, logs = _forward(base, x, w)
        rows = np.arange(samples.actions.size)
        ratio = np.exp(logs[rows, samples.actions] - samples.log_probability)
        flat = (samples.advantage > 0) & (ratio > 1 + clip) | (samples.advantage < 0) & (ratio < 1 - clip)
        weight = np.where(flat, 0.0, ratio * samples.advantage) / rows.size
        by_logit = -np.exp(logs) * weight[:, None]
        by_logit[rows, samples.actions] += weight
        by_outer = _product(by_logit, w.b2.T)
        by_hidden = (_product(by_logit, base.second.T) + _product(by_outer, w.a2.T)) * (1 - hidden**2)
        by_inner = _product(by_hidden, w.b1.T)
        return Weights(_outer(x, by_inner), _outer(inner, by_hidden), _outer(hidden, by_outer), _outer(outer, by_logit))


def updated(base: Base, adapter: Adapter, samples: Samples, *, rate: float, clip: float = 0.2) -> Adapter | None:
    """Return the adapter after one step of Adam, or None where a weight would not be a finite number.

    Parameters
    ----------
    base : Base
    adapter : Adapter
        Stays as it is.
    samples : Samples
    rate : float
        Learning rate.
    clip : float
    """
    found = gradient(base, adapter.weights, samples, clip)
    version = adapter.version + 1
    weights, means, squares = [], [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for value, mean, square, slope in zip(adapter.weights, adapter.mean, adapter.square, found, strict=True):
            mean = _BETA_1 * mean + (1 - _BETA_1) * slope
            square = _BETA_2 * square + (1 - _BETA_2) * slope**2
            root = np.sqrt(square / (1 - _BETA_2**version)) + _TINY
            value = value + rate * (mean / (1 - _BETA_1**version)) / root
            if not all(np.isfinite(each).all() for each in (value, mean, square)):
                return None
            weights.append(_frozen(value))
            means.append(_frozen(mean))
            squares.append(_frozen(square))
    return Adapter(version=version, weights=Weights(*weights), mean=Weights(*means), square=Weights(*squares))
