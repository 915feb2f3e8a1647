"""Tokens and the experts that a router chose, drawn with more or less skew."""

from __future__ import annotations

import numpy as np

from wavetank.errors import unknown_name
from wavetank.serving.exchange.interface import Floats, Task
from wavetank.serving.exchange.reference import Routed
from wavetank.sim.rng import stream

LOADS = ("uniform", "zipf", "few", "one")


def routed_tokens(
    load: str, task: Task, experts: int, seed: int, *, tokens: int | None = None, step: int = 0
) -> list[Routed]:  # fmt: skip
    """Return the tokens of each rank.

    Parameters
    ----------
    load : str
        ``uniform``: all experts alike; ``zipf``: the r-th as often as 1 / r, ranks of experts drawn; ``few``: every
        second expert gets nothing, as far as tokens have enough of the others; ``one``: all tokens choose the same
        experts.
    task : Task
    experts : int
        At least the choices of a token, which are different experts.
    seed : int
    tokens : int, optional
        Of each rank; all that the task allows by default.
    step : int
        Other tokens for each.

    Raises
    ------
    UnknownNameError
        If there is no such load.
    """
    if load not in LOADS:
        raise unknown_name("load", load, LOADS)
    rng = stream(seed, f"exchange {load} {step}")
    weights: Floats = np.zeros(experts)
    if load == "zipf":
        weights = -np.log(1.0 + rng.permutation(experts))
    elif load == "few":
        weights[np.arange(experts) % 2 == 1] = -1e9
    elif load == "one":
        weights = -1e9 * np.arange(experts)
    found = []
    for _ in range(task.ranks):
        count = task.tokens if tokens is None else tokens
        # The largest of weights with Gumbel noise are a draw without replacement.
        drawn = weights + rng.gumbel(size=(count, experts))
        chosen = np.argsort(-drawn, axis=1, kind="stable")[:, : task.choices].astype(np.int64)
        gates = rng.random((count, task.choices)) + 0.1
        gates /= gates.sum(axis=1, keepdims=True)
        values = rng.standard_normal((count, task.hidden), dtype=np.float32)
        found.append(Routed(values.astype(task.dtype), chosen, gates.astype(task.dtype)))
    return found


def slopes(expert: int, rows: Floats) -> Floats:
    """Return what a stand-in for an expert gives: other multiples of each number, exact in any order of rows.

    Parameters
    ----------
    expert : int
    rows : float array (rows, hidden)
    """
    kind = rows.dtype.type
    return rows * kind(0.5 + expert / 8) + kind(expert)
