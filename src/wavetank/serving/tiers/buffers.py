"""Real arrays: weights of which every degree reads another slice, and paged caches that change hands by heads.

Two layers of a network are divided as tensor parallelism divides them, the first by columns and the second by rows, so
that one sum of partial results ends both.  All slices are views of one buffer: another degree copies nothing.  A cache
is kept in pages; what goes to another rank is gathered into one contiguous buffer, sent, and written into pages there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Array = NDArray[Any]


def weight_slices(first: Array, second: Array, degree: int) -> list[tuple[Array, Array]]:
    """Return each rank's views of two matrices.

    Parameters
    ----------
    first : ndarray, shape (inputs, hidden)
        Divided by columns.
    second : ndarray, shape (hidden, outputs)
        Divided by rows.
    degree : int
        Ranks; must divide ``hidden``.

    Raises
    ------
    BadValueError
        If it does not.
    """
    hidden = first.shape[1]
    if degree < 1 or hidden % degree or second.shape[0] != hidden:
        raise BadValueError(
            "The matrices cannot be divided among this number of ranks.",
            given=f"{degree} ranks, {first.shape} x {second.shape}",
            allowed=f"a divisor of {hidden}, which is the second matrix's number of rows",
        )  # fmt: skip
    own = hidden // degree
    return [(first[:, r * own : (r + 1) * own], second[r * own : (r + 1) * own]) for r in range(degree)]


def block(inputs: Array, slices: list[tuple[Array, Array]]) -> Array:
    """Return what two layers with a rectifier between them give: the sum over ranks of their parts.

    Parameters
    ----------
    inputs : ndarray, shape (tokens, inputs)
    slices : list of (ndarray, ndarray)
        As :func:`weight_slices` returns them.
    """
    return np.sum([np.maximum(inputs @ first, 0) @ second for first, second in slices], axis=0)


class Send(NamedTuple):
    """Heads that one rank gives to another.

    Attributes
    ----------
    to_rank : int
    first, end : int
        Heads of the whole model: ``first`` to ``end - 1``.
    """

    to_rank: int
    first: int
    end: int


def heads_of(heads: int, degree: int, rank: int) -> tuple[int, int]:
    """Return the first head of a rank, and the one after its last."""
    own = heads // degree
    return rank * own, (rank + 1) * own


def sends(heads: int, before: int, after: int, rank: int) -> list[Send]:
    """Return what a rank gives to which rank when a degree changes; what it keeps itself is not among it.

    Parameters
    ----------
    heads : int
        KV heads, which both degrees must divide.
    before, after : int
        Groups are nested: rank r of the smaller one is the first of the ranks that take over its heads, or took them.
    rank : int
        Of the group before, counted on the GPUs of the larger group.

    Raises
    ------
    BadValueError
        If a degree does not divide the heads, or one does not divide the other.
    """
    if before < 1 or after < 1 or heads % before or heads % after or max(before, after) % min(before, after):
        raise BadValueError(
            "These degrees do not nest.", given=f"{before} and {after} for {heads} heads",
            allowed="divisors of the heads, one a multiple of the other",
        )  # fmt: skip
    step = max(before, after) // before
    if rank % step:
        return []
    first, end = heads_of(heads, before, rank // step)
    wide, found = max(before, after) // after, []
    for other in range(after):
        low, high = heads_of(heads, after, other)
        low, high = max(low, first), min(high, end)
        if low < high and other * wide != rank:
            found.append(Send(other * wide, low, high))
    return found


def packed(pages: Array, table: Array, tokens: int, first: int, end: int) -> Array:
    """Gather some heads of a request's pages into one contiguous buffer.

    Parameters
    ----------
    pages : ndarray, shape (pages, layers, 2, page tokens, heads, width)
        Of one rank.
    table : ndarray of int64
        The request's pages, in order.
    tokens : int
        In the cache; the last page may be partial.
    first, end : int
        Heads of this rank.

    Returns
    -------
    ndarray, shape (layers, 2, tokens, end - first, width)
        Contiguous.
    """
    parts = pages[table][..., first:end, :]
    whole = np.moveaxis(parts, 0, 2).reshape(*parts.shape[1:3], -1, *parts.shape[4:])
    return np.ascontiguousarray(whole[:, :, :tokens])


def scatter(buffer: Array, pages: Array, table: Array, first: int) -> None:
    """Write what :func:`packed` gave into the pages of another rank.

    Parameters
    ----------
    buffer : ndarray, shape (layers, 2, tokens, heads, width)
    pages : ndarray, shape (pages, layers, 2, page tokens, heads, width)
    table : ndarray of int64
        The request's pages there.
    first : int
        Head of that rank at which the buffer's heads begin.
    """
    size, heads = pages.shape[3], buffer.shape[3]
    for place, page in enumerate(table):
        part = buffer[:, :, place * size : (place + 1) * size]
        pages[page, :, :, : part.shape[2], first : first + heads] = part
