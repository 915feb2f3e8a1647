"""Long-short sequence parallelism: short samples whole on one rank each, long ones shared by all, and exact.

A long sample's rows are divided over the ranks.  Each rank projects its rows, exchanges them for some heads of all
rows, attends, and exchanges back (Ulysses).  What a rank does is a generator that yields what goes to whom and gets
what comes: the same code runs in one process and in several.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.training.sections.placement import Floats, Ints

Shapes = list[tuple[int, ...]]
Exchange = Generator[tuple[list[Floats], Shapes], list[Floats], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Weights of one attention layer whose rows attend to each other.

    Parameters
    ----------
    qkv : float64 array (3, width, heads, dim)
    out : float64 array (heads, dim, width)
    """

    qkv: Floats
    out: Floats

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return int(self.qkv.shape[2])


def attended(q: Floats, k: Floats, v: Floats) -> tuple[Floats, Floats]:
    """Return outputs of heads, and the weights of the rows that they attend to.

    Parameters
    ----------
    q, k, v : float64 array (rows, heads, dim)
    """
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(max(q.shape[2], 1))
    scores = np.exp(scores - scores.max(2, keepdims=True)) if scores.size else scores
    weights = scores / scores.sum(2, keepdims=True) if scores.size else scores
    return np.einsum("hij,jhd->ihd", weights, v), weights


def attended_back(q: Floats, k: Floats, v: Floats, weights: Floats, grad: Floats) -> Floats:
    """Return gradients of queries, keys and values.

    Parameters
    ----------
    q, k, v, grad : float64 array (rows, heads, dim)
    weights : float64 array (heads, rows, rows)

    Returns
    -------
    float64 array (3, rows, heads, dim)
    """
    of_weights = np.einsum("ihd,jhd->hij", grad, v)
    scores = weights * (of_weights - (of_weights * weights).sum(2, keepdims=True)) / np.sqrt(max(q.shape[2], 1))
    return np.stack([
        np.einsum("hij,jhd->ihd", scores, k), np.einsum("hij,ihd->jhd", scores, q),
        np.einsum("hij,ihd->jhd", weights, grad),
    ])  # fmt: skip


def shared(rank: int, size: int, rows: Floats, count: int, layer: Layer, grad: Floats) -> Exchange:
    """Do a rank's part of a long sample; return its outputs, and gradients of its rows, of qkv and of out.

    Parameters
    ----------
    rank, size : int
    rows, grad : float64 array (rows of the rank, width)
        Inputs, and gradients of outputs.
    count : int
        Rows of the whole sample.
    layer : Layer
    """
    parts = [each.size for each in np.array_split(np.arange(count), size)]
    heads = np.array_split(np.arange(layer.heads), size)
    dim = layer.qkv.shape[3]

    def for_heads(each: Floats) -> tuple[list[Floats], Shapes]:
        lead, mine = each.shape[0], heads[rank].size
        return [each[:, :, h] for h in heads], [(lead, part, mine, dim) for part in parts]

    def for_rows(each: Floats) -> tuple[list[Floats], Shapes]:
        lead, ends = each.shape[0], np.cumsum(parts)[:-1]
        return np.split(each, ends, axis=1), [(lead, parts[rank], h.size, dim) for h in heads]

    qkv = np.einsum("iw,cwhd->cihd", rows, layer.qkv)
    q, k, v = np.concatenate((yield for_heads(qkv)), axis=1)
    out, weights = attended(q, k, v)
    mine = np.concatenate((yield for_rows(out[None])), axis=2)[0]
    result = np.einsum("ihd,hdw->iw", mine, layer.out)
    of_out = np.einsum("ihd,iw->hdw", mine, grad)
    back = np.einsum("iw,hdw->ihd", grad, layer.out)
    (back,) = np.concatenate((yield for_heads(back[None])), axis=1)
    back = np.concatenate((yield for_rows(attended_back(q, k, v, weights, back))), axis=2)
    of_qkv = np.einsum("cihd,iw->cwhd", back, rows)
    return result, np.einsum("cihd,cwhd->iw", back, layer.qkv), of_qkv, of_out


def owners(lengths: Ints, ranks: int, threshold: float) -> Ints:
    """Return the rank of each short sample by LPT, and -1 for those above the threshold.

    Parameters
    ----------
    lengths : int64 array (samples,)
    ranks : int
    threshold : float
        Rows; 0 shares all samples, infinity none.

    Raises
    ------
    BadValueError
        If there is no rank, or the threshold is no number from 0.
    """
    if ranks < 1 or not threshold >= 0:
        raise BadValueError("There are ranks, and a threshold from 0.", given=(ranks, threshold))
    costs = lengths.astype(np.float64) ** 2
    short = lengths <= threshold
    found = np.full(lengths.size, -1, np.int64)
    found[short] = longest_first(costs[short], costs[short], ranks)
    return found


def rank_work(
    rank: int, size: int, samples: list[Floats], grads: list[Floats], layer: Layer, threshold: float
) -> Exchange:
    """Do all that a rank does; return outputs and input gradients by sample, and its gradients of qkv and of out.

    Parameters
    ----------
    rank, size : int
    samples, grads : list of float64 array (rows, width)
        All samples; only the rank's own rows are read.
    layer : Layer
    threshold : float
        As for :func:`owners`.
    """
    owner = owners(np.array([len(each) for each in samples], np.int64), size, threshold)
    results: dict[int, tuple[Floats, Floats]] = {}
    of_qkv, of_out = np.zeros_like(layer.qkv), np.zeros_like(layer.out)
    for i, (rows, grad) in enumerate(zip(samples, grads, strict=True)):
        if owner[i] == rank:
            steps = shared(0, 1, rows, len(rows), layer, grad)
        elif owner[i] < 0:
            mine = np.array_split(np.arange(len(rows)), size)[rank]
            steps = shared(rank, size, rows[mine], len(rows), layer, grad[mine])
        else:
            continue
        if owner[i] == rank:
            found = _alone(steps)
        else:
            found = yield from steps
        results[i] = found[0], found[1]
        of_qkv += found[2]
        of_out += found[3]
    return results, of_qkv, of_out


def _alone(steps: Exchange) -> Any:
    """Run a part whose only partner is itself."""
    try:
        parts, _ = next(steps)
        while True:
            parts, _ = steps.send(parts)
    except StopIteration as end:
        return end.value


def encoded(
    samples: list[Floats], grads: list[Floats], layer: Layer, ranks: int, threshold: float
) -> tuple[list[Floats], list[Floats], Floats, Floats]:
    """Return outputs, gradients of inputs, of qkv and of out, computed by ranks that take turns in this process.

    Parameters
    ----------
    samples, grads : list of float64 array (rows, width)
    layer : Layer
    ranks : int
    threshold : float
        As for :func:`owners`.
    """
    works = [rank_work(rank, ranks, samples, grads, layer, threshold) for rank in range(ranks)]
    ended: list[Any] = [None] * ranks
    arrived: list[Any] = [None] * ranks
    running = True
    while running:
        sent: list[list[Floats]] = []
        for rank, work in enumerate(works):
            try:
                sent.append(work.send(arrived[rank])[0])
            except StopIteration as end:
                ended[rank] = end.value
        running = bool(sent)
        if running:
            arrived = [[sent[source][rank] for source in range(ranks)] for rank in range(ranks)]
    return joined(ended, len(samples))


def joined(found: list[Any], count: int) -> tuple[list[Floats], list[Floats], Floats, Floats]:
    """Return what ranks found, put together.

    Parameters
    ----------
    found : list
        Of each rank, what :func:`rank_work` returns.
    count : int
        Of samples.
    """
    outputs, inputs = (
        [np.concatenate([results[i][k] for results, *_ in found if i in results]) for i in range(count)] for k in (0, 1)
    )
    return outputs, inputs, sum(each[1] for each in found), sum(each[2] for each in found)
