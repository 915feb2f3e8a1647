"""What a serving engine adds to the layers of its model: named terms that layer profiles and rooflines lack.

Kernels measured one by one add up to less than a step of a running engine.  The rest has causes that any engine of this
kind shares, and each is a term of its own here, so that a measured run says which one it takes:

steps             what is left of launches and scheduling in every step when the host works beside the device
sequences         preparing, sampling and handing out a token of each sequence in the batch
captured graphs   a batch is rounded up to the next size for which a CUDA graph was captured, and linear layers pay for
                  the padding; workers that share experts are padded to the largest of them, if it fits a graph

Source: vLLM 0.19, ``CompilationConfig.cudagraph_capture_sizes`` and ``GPUModelRunner``.

Differs from the source:

1. A worker of a group takes the others to have as many tokens where they are padded to each other, and otherwise as
   many sequences and no prompt; what they really have is not looked at, beyond that the slowest of them counts.
2. Padding counts in the linear layers alone: padded rows of attention return at once.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError


@dataclass(frozen=True, kw_only=True)
class EngineOverheads:
    """Named terms that an engine adds to every step; each is zero, or absent, by default.

    Parameters
    ----------
    step_s : float, default 0
        Every step: launches and scheduling that the device waits for, s.
    sequence_s : float, default 0
        Each sequence that a step gives a token, s.
    graph_sizes : tuple of int, default ()
        Batch sizes, in tokens, for which a CUDA graph was captured, ascending; empty for no padding.
    """

    step_s: float = 0.0
    sequence_s: float = 0.0
    graph_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("step_s", "sequence_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise BadValueError("An overhead is a time.", given=value, allowed="0 or more, finite", where=name)
        sizes = self.graph_sizes
        if any(size < 1 for size in sizes[:1]) or any(b <= a for a, b in itertools.pairwise(sizes)):
            raise BadValueError(
                "Captured sizes must be positive and ascend.", given=sizes, allowed="such as 1, 2, 4, 8",
                where="graph_sizes",
            )  # fmt: skip


def vllm_graph_sizes(max_running: int) -> tuple[int, ...]:
    """Return the batch sizes for which vLLM captures CUDA graphs when nobody says otherwise.

    1, 2, 4, every 8 up to 256 and every 16 beyond, up to twice the most running requests and at most 512.

    Parameters
    ----------
    max_running : int
        vLLM's ``max_num_seqs``, at least 1.

    Examples
    --------
    >>> vllm_graph_sizes(16)
    (1, 2, 4, 8, 16, 24, 32)
    """
    if max_running < 1:
        raise BadValueError("An engine runs at least one request.", given=max_running, where="max_running")
    largest = min(2 * max_running, 512)
    sizes = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
    return tuple(size for size in sizes if size <= largest)


def padded(sizes: tuple[int, ...], axis: NDArray[np.float64], line: NDArray[np.float64]) -> tuple[
    NDArray[np.float64], NDArray[np.float64]
]:  # fmt: skip
    """Return a piecewise linear function of a whole number of tokens as it is after padding to captured sizes.

    Parameters
    ----------
    sizes : tuple of int
        Captured sizes, ascending, not empty.
    axis, line : ndarray of float64, shape (points,)
        The function: ascending counts and values; constant below the first, its last trend beyond the last.

    Returns
    -------
    ndarray, ndarray
        Axis and values of the padded function: at whole numbers up to the largest size the value at the next size,
        beyond it the function itself.
    """
    largest = sizes[-1]
    firsts = np.array((1, *(size + 1 for size in sizes[:-1])), np.float64)
    lasts = np.array(sizes, np.float64)
    steps = np.column_stack([firsts, lasts]).ravel()
    values = np.repeat(_at(lasts, axis, line), 2)
    wide = firsts < lasts
    kept = np.column_stack([wide, np.ones_like(wide)]).ravel()
    beyond = np.concatenate(([largest + 1.0], axis[axis > largest + 1.0]))
    if beyond.size == 1:
        beyond = np.array([largest + 1.0, 2.0 * largest + 2.0])
    return np.concatenate([steps[kept], beyond]), np.concatenate([values[kept], _at(beyond, axis, line)])


def _at(x: NDArray[np.float64], axis: NDArray[np.float64], line: NDArray[np.float64]) -> NDArray[np.float64]:
    slope = (line[-1] - line[-2]) / (axis[-1] - axis[-2])
    return np.where(x > axis[-1], line[-1] + slope * (x - axis[-1]), np.interp(x, axis, line))
