"""How a sample lies on the processes of a domain, and what divides the work of a network among them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from wavetank.errors import BadValueError


class Layout(NamedTuple):
    """Where a tensor is cut.

    Parameters
    ----------
    axis : int
        The dimension that is cut, from 0.
    sizes : tuple of int
        How much of it each process has, in the order of the processes; some may have nothing.
    """

    axis: int
    sizes: tuple[int, ...]

    @property
    def length(self) -> int:
        """Return the size of the whole dimension."""
        return sum(self.sizes)

    def begins(self) -> tuple[int, ...]:
        """Return where the part of each process begins, and at last where the last one ends."""
        return (0, *accumulate(self.sizes))


def check_sizes(sizes: Sequence[int], processes: int, length: int | None = None) -> tuple[int, ...]:
    """Return sizes of parts that are whole numbers from 0, one for each process.

    Parameters
    ----------
    sizes : sequence of int
    processes : int
    length : int, optional
        What they must add up to.

    Raises
    ------
    BadValueError
        If they are not, or add up to something else.
    """
    wrong = any(isinstance(each, bool) or not isinstance(each, int | np.integer) or each < 0 for each in sizes)
    if wrong or len(sizes) != processes or (length is not None and sum(sizes) != length):
        raise BadValueError(
            "A dimension is cut into a part for each process.", given=list(sizes),
            allowed=f"{processes} whole numbers from 0" + (f" that add up to {length}" if length is not None else ""),
        )  # fmt: skip
    return tuple(int(each) for each in sizes)


def even_sizes(length: int, processes: int) -> tuple[int, ...]:
    """Return parts of one size, as torch cuts: the last ones may have less, or nothing.

    Parameters
    ----------
    length, processes : int
    """
    part = -(-length // processes)
    return tuple(max(0, min(part, length - part * each)) for each in range(processes))


class Windows(NamedTuple):
    """What each process computes of an operation whose outputs look at windows of the cut dimension.

    Parameters
    ----------
    sizes : tuple of int
        Outputs of each process.
    wanted : tuple of tuple of int
        Begin and end of the inputs that each needs.
    padding : tuple of tuple of int
        What each adds before and behind them, at the ends of the whole dimension alone.
    """

    sizes: tuple[int, ...]
    wanted: tuple[tuple[int, int], ...]
    padding: tuple[tuple[int, int], ...]


def windows(
    sizes: Sequence[int], *, window: int, stride: int = 1, padding: tuple[int, int] = (0, 0), dilation: int = 1
) -> Windows:
    """Return who computes which outputs: each process those whose window has its middle in its part.

    With stride 1, odd windows and as many outputs as inputs, parts stay as they are, and each process needs half a
    window from either side; windows that lie next to each other and cut no part need nothing.

    Parameters
    ----------
    sizes : sequence of int
        Parts of the inputs.
    window, stride, dilation : int
    padding : tuple of int
        Before and behind the whole dimension.

    Raises
    ------
    BadValueError
        If no window fits.

    Examples
    --------
    >>> windows((4, 3), window=3, padding=(1, 1))
    Windows(sizes=(4, 3), wanted=((0, 5), (3, 7)), padding=((1, 0), (0, 1)))
    """
    length, reach = sum(sizes), dilation * (window - 1) + 1
    before, behind = padding
    count = (length + before + behind - reach) // stride + 1
    if length < 1 or count < 1:
        raise BadValueError("No window fits into the dimension.", given=reach,
                            allowed=f"1 to {length + before + behind}", where="window")  # fmt: skip
    first = np.arange(count) * stride - before
    middle = np.clip(first + (reach - 1) // 2, 0, length - 1)
    cuts = np.searchsorted(middle, np.cumsum([0, *sizes])).tolist()
    counts, wanted, added = [], [], []
    for begin, end in pairwise(cuts):
        counts.append(end - begin)
        if begin == end:
            wanted.append((0, 0))
            added.append((0, 0))
            continue
        low, high = int(first[begin]), int(first[end - 1]) + reach
        # A window may lie in the padding as a whole.
        wanted.append((min(max(low, 0), length), min(max(high, 0), length)))
        added.append((max(min(high, 0) - low, 0), max(high - max(low, length), 0)))
    return Windows(tuple(counts), tuple(wanted), tuple(added))


def exchanged(sizes: Sequence[int], wanted: Sequence[tuple[int, int]]) -> int:
    """Return how much of the cut dimension goes from one process to another when each gets what it wants.

    Parameters
    ----------
    sizes : sequence of int
    wanted : sequence of tuple of int
        Begin and end, by process.
    """
    begins = (0, *accumulate(sizes))
    return sum(
        max(0, min(high, begins[owner + 1]) - max(low, begins[owner]))
        for taker, (low, high) in enumerate(wanted)
        for owner in range(len(sizes))
        if owner != taker
    )


class Outcome(NamedTuple):
    """What a process has after a step.

    Parameters
    ----------
    loss : float
        Of the whole.
    out : torch.Tensor
        This process's part of the output.
    out_layout : Layout
    grad : torch.Tensor
        This process's part of the sample's gradient.
    grad_layout : Layout
    """

    loss: float
    out: Any
    out_layout: Layout
    grad: Any
    grad_layout: Layout


class Alone(NamedTuple):
    """The domain of a process that shares nothing.

    Parameters
    ----------
    place, size : int
    """

    place: int = 0
    size: int = 1


class Divider(Protocol):
    """Divides a training step on one sample among the processes of a domain.

    ``step(domain, network, sample, target, layout)`` runs in every process, with its part of the sample, the whole
    target and a network with equal weights everywhere.  It leaves the gradients of the weights at the weights, whole in
    every process that holds a part of the output.  ``sizes(length, processes, cuts)``, where there is one, says how the
    sample must be cut instead of by ``cuts``.
    """

    def step(self, domain: Any, network: Any, sample: Any, target: Any, layout: Layout) -> Outcome:
        """Run the step: forward, mean squared error, backward."""
        ...
