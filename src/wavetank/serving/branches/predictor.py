"""The linear predictor of step times: fitted to a profile before the first request, refitted while the engine runs.

Steps without and with prompt tokens are fitted apart, because the weights are read once for both: ::

    decode only:   T = a + b sequences + c context
    with prompts:  T = a' + b' sequences + c' context + d' prompt tokens

A *blind* line in the number of sequences alone stands beside them: what a controller has that takes every branch for
equally dear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import StepTime
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]

# Where the coefficients stand: the two lines, then the blind ones.
MIXED, BLIND, BLIND_MIXED, SIZE = 3, 7, 9, 12
# What is kept of the latest steps for a refit, and how strongly a refit is held to the coefficients before.
LATEST = 200
_HELD = 0.01

SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)
# Contexts of the profile, and the part of a prompt that lies before a profiled chunk, tokens.
_BEFORE = 512
_CONTEXTS, _SHORTEST, _LONGEST = 25, 128, 8192


@njit(inline="always")
def predicted_s(predictor: Floats, sequences: float, context_tokens: float, prefill_tokens: float) -> float:
    """Return the predicted time of a step, s."""
    if prefill_tokens > 0:
        return predictor[3] + predictor[4] * sequences + predictor[5] * context_tokens + predictor[6] * prefill_tokens
    return predictor[0] + predictor[1] * sequences + predictor[2] * context_tokens


@njit(inline="always")
def blind_s(predictor: Floats, sequences: float, prefill_tokens: float) -> float:
    """Return what the line without contexts predicts, s."""
    if prefill_tokens > 0:
        return predictor[9] + predictor[10] * sequences + predictor[11] * prefill_tokens
    return predictor[7] + predictor[8] * sequences


def grid_of(kv_tokens: int, sequences: Sequence[int] = SEQUENCES) -> list[tuple[int, int]]:
    """Return the steps that are profiled: sequences, and the context of each, as far as the KV cache holds them.

    Parameters
    ----------
    kv_tokens : int
    sequences : sequence of int
        25 contexts from 128 to 8,192 tokens, or to what fits, are tried with each.
    """
    found: list[tuple[int, int]] = []
    for n in sequences:
        longest = min(_LONGEST, kv_tokens // n)
        if longest >= _SHORTEST:
            ratio = (longest / _SHORTEST) ** (1 / (_CONTEXTS - 1))
            found += [(n, round(_SHORTEST * ratio**i)) for i in range(_CONTEXTS)]
    return found


def profiled(
    step_time: StepTime, grid: Sequence[tuple[int, int]], prefill_tokens: Sequence[int] = (64, 128, 192, 256)
) -> Floats:
    """Return the coefficients that a profile of steps gives, by ordinary least squares.

    Parameters
    ----------
    step_time : StepTime
        What is profiled.
    grid : sequence of (int, int)
        Sequences, and the context of each.
    prefill_tokens : sequence of int
        Chunks of prompts that the second line is fitted to.

    Raises
    ------
    BadValueError
        If the grid is too small for the lines.
    """
    if len({n for n, _ in grid}) < 2 or len({c for _, c in grid}) < 2 or len(set(prefill_tokens)) < 2:
        raise BadValueError("The grid of the profile is too small.", given=f"{len(grid)} steps",
                            allowed="two numbers of sequences, of contexts and of prompt tokens")  # fmt: skip
    found = np.empty(SIZE)
    steps = np.array([(n, n * context, step_time.seconds(n, n * context)) for n, context in grid])
    ones = np.ones(len(steps))
    found[:MIXED] = _least_squares(np.column_stack([ones, steps[:, 0], steps[:, 1]]), steps[:, 2])
    found[BLIND:BLIND_MIXED] = _least_squares(np.column_stack([ones, steps[:, 0]]), steps[:, 2])
    mixed = np.array([
        (n, n * context, p, step_time.seconds(n, n * context, p, p * _BEFORE + p * (p + 1) // 2))
        for n, context in grid for p in prefill_tokens
    ])  # fmt: skip
    ones = np.ones(len(mixed))
    found[MIXED:BLIND] = _least_squares(np.column_stack([ones, mixed[:, :3]]), mixed[:, 3])
    found[BLIND_MIXED:] = _least_squares(np.column_stack([ones, mixed[:, [0, 2]]]), mixed[:, 3])
    return found


def _least_squares(design: Floats, seconds: Floats) -> Floats:
    # Columns differ by six orders of magnitude.
    scale = np.abs(design).max(axis=0)
    solution: Floats = np.linalg.lstsq(design / scale, seconds, rcond=None)[0]
    return solution / scale


def mean_error(predictor: Floats, step_time: StepTime, grid: Sequence[tuple[int, int]]) -> float:
    """Return the mean of |predicted / actual - 1| over decode steps.

    Parameters
    ----------
    predictor : float64 array
    step_time : StepTime
    grid : sequence of (int, int)
        Sequences, and the context of each.
    """
    actual = np.array([step_time.seconds(n, n * context) for n, context in grid])
    predicted = np.array([predictor[0] + predictor[1] * n + predictor[2] * n * context for n, context in grid])
    return float(np.abs(predicted / actual - 1).mean())


@compiled("void(float64[::1], int64, float64[:, ::1], int64)")
def refit(predictor: Floats, at: int, steps: Floats, count: int) -> None:
    """Fit one of the two lines anew to the latest steps.

    The latest steps of a busy engine are much alike, and plain least squares would take noise for slopes: the change of
    each coefficient is held by a small weight.

    Parameters
    ----------
    predictor : float64 array
        Changed in place.
    at : int
        0 for steps without prompts, ``MIXED`` for the others.
    steps : float64 array (>= count, 4)
        Sequences, context, prompt tokens and seconds of each.
    count : int
        How many of them there are.
    """
    width = 3 if at == 0 else 4
    if count < 2 * width:
        return
    normal = np.zeros((width, width))
    right = np.zeros(width)
    scale = np.ones(width)
    for k in range(1, width):
        largest = 0.0
        for i in range(count):
            largest = max(largest, steps[i, k - 1])
        scale[k] = largest if largest > 0.0 else 1.0
    row = np.ones(width)
    for i in range(count):
        fitted = predictor[at]
        for k in range(1, width):
            row[k] = steps[i, k - 1] / scale[k]
            fitted += predictor[at + k] * steps[i, k - 1]
        miss = steps[i, 3] - fitted
        for k in range(width):
            right[k] += row[k] * miss
            for m in range(width):
                normal[k, m] += row[k] * row[m]
    for k in range(width):
        normal[k, k] += _HELD * count
    change = np.linalg.solve(normal, right)
    for k in range(width):
        predictor[at + k] += change[k] / scale[k]
