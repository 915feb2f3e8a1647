"""Rotary positions: pairs of coordinates turned by the position, so that scores depend on distances alone.

A key at position p has its j-th pair turned by ``p * frequency[j]``.  To move a row from one position to another,
turn it by the difference: nothing else of it depends on the position.  A longer window comes from lower frequencies,
which a scaling rule names; what moves a row needs the frequencies that the layer really has.  Pairs are the two
halves of a row.

References
----------
J. Su and others, "RoFormer", arXiv 2104.09864, 2021; S. Chen and others, "Extending context window of large language
models via positional interpolation", arXiv 2306.15595, 2023 (``linear``); B. Peng and others, "YaRN", arXiv
2309.00071, 2023, which also describes ``ntk``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, unknown_name

Floats = NDArray[np.float64]

SCALINGS = ("none", "linear", "ntk", "yarn")
# Pairs that turn more often than the first in the original window stay as they are, below the second all are slowed.
_FAST, _SLOW = 32.0, 1.0


def frequencies(
    width: int, *, base: float = 10_000.0, scaling: str = "none", factor: float = 1.0, original_window: int = 2_048
) -> Floats:
    """Return by how much each pair turns from one position to the next.

    Parameters
    ----------
    width : int
        Coordinates that are turned; even.
    base : float
        Pair j turns by ``base ** (-2 j / width)`` where nothing is scaled.
    scaling : str
        ``none``; ``linear``: all pairs slower by the factor; ``ntk``: by a larger base, so that the slowest pair is
        slower by the factor and the fastest one as it was; ``yarn``: slower where a pair turns rarely in the original
        window.
    factor : float
        New window / original window, in [1, 1e6].
    original_window : int
        In tokens; of effect in ``yarn``.

    Returns
    -------
    float64 array (width / 2,)
        In radians per position.

    Raises
    ------
    UnknownNameError
        For another rule.
    BadValueError
        For a number that makes no sense.
    """
    if scaling not in SCALINGS:
        raise unknown_name("scaling rule", scaling, SCALINGS)
    if width < 2 or width % 2:
        raise BadValueError("Coordinates are turned in pairs.", given=width, allowed="2, 4, 6, ...", where="width")
    if not (1.0 < base <= 1e12 and 1.0 <= factor <= 1e6 and original_window >= 1):
        raise BadValueError(
            "Rotary positions have other numbers.", given=f"base {base}, factor {factor}, window {original_window}",
            allowed="1 < base <= 1e12, 1 <= factor <= 1e6, window >= 1",
        )  # fmt: skip
    powers = np.arange(0, width, 2) / width
    if scaling == "ntk" and width > 2:
        base *= factor ** (width / (width - 2))
    plain: Floats = np.float64(base) ** -powers
    if scaling == "linear":
        return plain / factor
    if scaling == "yarn":
        first, last = (
            width * math.log(original_window / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (_FAST, _SLOW)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), width - 1)
        slowed = np.clip((np.arange(width // 2) - first) / max(last - first, 1e-3), 0.0, 1.0)
        return plain / factor * slowed + plain * (1.0 - slowed)
    return plain


def magnitude(scaling: str, factor: float) -> float:
    """Return by what YaRN multiplies queries and keys alike, wherever they stand; 1 for the other rules.

    Parameters
    ----------
    scaling : str
    factor : float
        New window / original window.
    """
    return 0.1 * math.log(factor) + 1.0 if scaling == "yarn" else 1.0


def rotated(rows: Any, by: Any, turns: Floats) -> Any:
    """Return rows turned by positions: at a position if they were at none, elsewhere if ``by`` is a difference.

    Angles and their sines are taken in float64 whatever the rows are, so that far positions are as exact as near
    ones.

    Parameters
    ----------
    rows : numpy array or torch.Tensor (..., tokens, width)
    by : int array (tokens,)
        Positions, or differences of them; may be negative.
    turns : float64 array (width / 2,)
        As :func:`frequencies` gives them.

    Returns
    -------
    numpy array or torch.Tensor
        As ``rows``.

    Raises
    ------
    BadValueError
        If shapes do not go together.
    """
    by, half = np.asarray(by), len(turns)
    if rows.shape[-1] != 2 * half or by.shape != (rows.shape[-2],):
        raise BadValueError(
            "These rows cannot be turned so.", given=f"rows {tuple(rows.shape)}, positions {by.shape}",
            allowed=f"rows (..., tokens, {2 * half}), positions (tokens,)",
        )  # fmt: skip
    angles = np.multiply.outer(by.astype(np.float64), turns)
    cosine, sine = np.cos(angles), np.sin(angles)
    if isinstance(rows, np.ndarray):
        cosine, sine = cosine.astype(rows.dtype), sine.astype(rows.dtype)
        one, two = rows[..., :half], rows[..., half:]
        return np.concatenate([one * cosine - two * sine, two * cosine + one * sine], -1)
    import torch

    cosine, sine = (torch.from_numpy(each).to(rows) for each in (cosine, sine))
    one, two = rows[..., :half], rows[..., half:]
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)
