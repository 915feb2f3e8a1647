"""What every exchange must give: each token's own sum over its experts, computed without any exchange."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.exchange.interface import Batch, Experts, Floats, Task
from wavetank.serving.exchange.table import ExpertTable

_MOST_WHOLE = 127.0


class Routed(NamedTuple):
    """A rank's tokens and the experts that a router chose for them.

    Attributes
    ----------
    values : float array (tokens, hidden)
    experts : int64 array (tokens, choices)
    gates : float array (tokens, choices)
    """

    values: Floats
    experts: NDArray[np.int64]
    gates: Floats


def batch_of(routed: Routed, table: ExpertTable, rank: int) -> Batch:
    """Return the batch of a rank under a table of experts."""
    return Batch(routed.values, table.slots_of(routed.experts, rank), routed.gates)


def as_travelled(values: Floats, task: Task) -> Floats:
    """Return vectors as experts see them: the same, or rounded to whole numbers of a unit for each token."""
    if task.wire == "plain":
        return values
    largest = np.abs(values).max(axis=1, keepdims=True, initial=0.0).astype(np.float64)
    unit = np.divide(_MOST_WHOLE, largest, out=np.zeros_like(largest), where=largest > 0)
    return (np.rint(values * unit) * (largest / _MOST_WHOLE)).astype(values.dtype)


def dense(routed: Routed, experts: Experts, task: Task) -> Floats:
    """Return each token's sum of gates times outputs of its experts, in the order of its choices.

    Parameters
    ----------
    routed : Routed
    experts : callable
        Number of an expert and its rows to their outputs.
    task : Task
    """
    values = as_travelled(routed.values, task)
    outputs: NDArray[Any] = np.zeros((*routed.experts.shape, task.hidden), task.dtype)
    for expert in np.unique(routed.experts):
        token, choice = np.nonzero(routed.experts == expert)
        outputs[token, choice] = experts(int(expert), values[token])
    sums = np.zeros((values.shape[0], task.hidden), task.dtype)
    for place in range(routed.experts.shape[1]):
        sums += routed.gates[:, place : place + 1].astype(task.dtype) * outputs[:, place]
    return sums
