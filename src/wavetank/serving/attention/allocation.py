"""Which head gets blocks of which length: the most recall for a given number of summaries.

A head whose important tokens stand alone needs short blocks, and one whose important tokens stand in runs does not.
Recall of each head and length is measured beforehand; a choice is a length a head, and the summaries of all heads
together may be no more than with blocks of ``average`` tokens everywhere.

Recalls are compared as whole millionths, so that no choice hangs on the last digit of a float.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.attention.interface import Ints

_MILLION = 1_000_000


def check_lengths(lengths: Sequence[int], average: int) -> None:
    """Refuse lengths that cannot be compared by the summaries that they need.

    Parameters
    ----------
    lengths : sequence of int
    average : int

    Raises
    ------
    BadValueError
        If there are none, they do not ascend, or one of them or the average does not divide the longest.
    """
    longest = max(lengths, default=0)
    ascend = list(lengths) == sorted(set(lengths))
    if not longest or not ascend or lengths[0] < 1 or any(longest % each for each in (*lengths, average)):
        raise BadValueError(
            "Lengths ascend, and they and the average divide the longest.", given=(tuple(lengths), average),
            allowed="such as 16, 32, 64, 128 and 32", where="allocation",
        )  # fmt: skip


def _checked(recalls: NDArray[np.float64], lengths: Sequence[int], average: int) -> tuple[Ints, Ints, int]:
    """Return recalls in millionths, costs of lengths, and what all heads together may cost."""
    found = np.asarray(recalls, np.float64)
    check_lengths(lengths, average)
    longest = max(lengths)
    right = found.ndim == 2 and found.shape[0] > 0 and found.shape[1] == len(lengths)
    # Written so that nan fails too.
    if not right or not np.all((found >= 0) & (found <= 1)):
        raise BadValueError(
            "There is one recall from 0 to 1 for each head and length.", given=f"{found.shape}",
            allowed=f"(heads, {len(lengths)})", where="allocation",
        )  # fmt: skip
    costs = np.array([longest // each for each in lengths], np.int64)
    # Nothing costs less than the longest.
    budget = found.shape[0] * longest // average
    return np.rint(found * _MILLION).astype(np.int64), costs, budget


def total(recalls: NDArray[np.float64], chosen: Ints) -> int:
    """Return the recall of all heads together, in millionths.

    Parameters
    ----------
    recalls : float64 array (heads, lengths)
    chosen : int64 array (heads,)
        Which of the lengths each head has.
    """
    return int(np.rint(np.take_along_axis(recalls, chosen[:, None], 1) * _MILLION).sum())


def greedy(recalls: NDArray[np.float64], lengths: Sequence[int], average: int) -> Ints:
    """Return which length each head gets, chosen step by step.

    All heads begin with the longest.  The shortening that gains most recall for a further summary is made, over
    several lengths at once where a single step gains less.  Where one length for all is better in the end, all have it.
    With few heads this can be some hundredths below the best choice, with 32 it is within a few thousandths.

    Parameters
    ----------
    recalls : float64 array (heads, lengths)
        From 0 to 1.
    lengths : sequence of int
        Tokens of a block, ascending.
    average : int
        Summaries are as many as with blocks of this length everywhere.

    Returns
    -------
    int64 array (heads,)
        Numbers of lengths.

    Raises
    ------
    BadValueError
        If there is not one recall for each head and length, or a length does not divide the longest.
    """
    gains, costs, left = _checked(recalls, lengths, average)
    heads = np.arange(gains.shape[0])
    chosen = np.full(heads.size, len(lengths) - 1, np.int64)
    left -= int(costs[chosen].sum())
    while True:
        more_cost = costs[None] - costs[chosen][:, None]
        more = gains - gains[heads, chosen][:, None]
        allowed = (more_cost > 0) & (more_cost <= left) & (more > 0)
        if not allowed.any():
            break
        # Compared as fractions over one denominator: whole numbers.
        unit = int(np.lcm.reduce(np.arange(1, int(costs.max()) + 1))) if costs.max() <= 16 else 0
        worth = more * unit // np.maximum(more_cost, 1) if unit else more / np.maximum(more_cost, 1)
        head, length = np.unravel_index(int(np.where(allowed, worth, -1).argmax()), worth.shape)
        left -= int(more_cost[head, length])
        chosen[head] = length
    if average in lengths:
        same = np.full(heads.size, list(lengths).index(average), np.int64)
        if gains[heads, same].sum() > gains[heads, chosen].sum():
            return same
    return chosen


def exact(recalls: NDArray[np.float64], lengths: Sequence[int], average: int) -> Ints:
    """Return the best lengths, by dynamic programming over heads and summaries.

    Parameters
    ----------
    recalls, lengths, average
        As for :func:`greedy`.

    Returns
    -------
    int64 array (heads,)
        Numbers of lengths; of equally good choices for a head the longest blocks.
    """
    gains, costs, budget = _checked(recalls, lengths, average)
    best = np.zeros(budget + 1, np.int64)
    picks = np.zeros((gains.shape[0], budget + 1), np.int64)
    for head, own in enumerate(gains):
        table = np.full((len(lengths), budget + 1), -_MILLION * (gains.shape[0] + 1), np.int64)
        for length, cost in enumerate(costs.tolist()):
            if cost <= budget:
                table[length, cost:] = best[: budget + 1 - cost] + own[length]
        picks[head] = len(lengths) - 1 - table[::-1].argmax(0)
        best = table.max(0)
    chosen = np.zeros(gains.shape[0], np.int64)
    for head in range(gains.shape[0] - 1, -1, -1):
        chosen[head] = picks[head, budget]
        budget -= int(costs[chosen[head]])
    return chosen
