"""Long-short sequence parallelism on real processes, which exchange heads for rows through torch's gloo.

Needs the extra ``torch``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wavetank.live.ranks import run_ranks
from wavetank.training.sections.lssp import Layer, joined, rank_work
from wavetank.training.sections.placement import Floats


def encoded_on_ranks(
    samples: list[Floats], grads: list[Floats], layer: Layer, ranks: int, threshold: float, *, timeout_s: float = 120.0
) -> tuple[list[Floats], list[Floats], Floats, Floats]:
    """Return outputs, gradients of inputs, of qkv and of out, computed by processes.

    Parameters
    ----------
    samples, grads : list of float64 array (rows, width)
    layer : Layer
    ranks : int
        Processes, 1 to 16.
    threshold : float
        Rows above which a sample is shared.
    timeout_s : float
        For the whole.

    Raises
    ------
    WavetankError
        If a process fails or does not end in time.
    """
    arguments = {
        "samples": list(samples), "grads": list(grads), "qkv": layer.qkv, "out": layer.out,
        "threshold": float(threshold),
    }  # fmt: skip
    found = run_ranks(encode_here, ranks, arguments=arguments, timeout_s=timeout_s)
    ended = [({int(i): (out, back) for i, out, back in results}, *rest) for results, *rest in found]
    return joined(ended, len(samples))


def encode_here(
    rank: Any, samples: list[Floats], grads: list[Floats], qkv: Floats, out: Floats, threshold: float
) -> list[Any]:
    """Do this process's part; return number, outputs and input gradients of its samples, and gradients of weights.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    samples, grads, qkv, out, threshold
        As for :func:`encoded_on_ranks`.
    """
    import torch

    layer = Layer(qkv=np.asarray(qkv), out=np.asarray(out))
    steps = rank_work(rank.number, rank.size, samples, grads, layer, threshold)
    if rank.size > 1:
        # All are there before anybody is done.
        rank.join()
    arrived: list[Floats] | None = None
    try:
        while True:
            parts, shapes = next(steps) if arrived is None else steps.send(arrived)
            arrived = _exchanged(rank, parts, shapes)
    except StopIteration as end:
        results, of_qkv, of_out = end.value
    if rank.size > 1:
        rank.all_reduce(torch.zeros(1))
    return [[[i, *each] for i, each in results.items()], of_qkv, of_out]


def _exchanged(rank: Any, parts: list[Floats], shapes: list[tuple[int, ...]]) -> list[Floats]:
    """Send a part to every rank and receive one from each; what is empty stays."""
    import torch

    tensors = [torch.from_numpy(np.array(each, np.float64)) for each in parts]
    arrived = [torch.empty(shape, dtype=torch.float64) for shape in shapes]
    arrived[rank.number] = tensors[rank.number]
    waits = []
    for other in range(rank.size):
        if other != rank.number and tensors[other].numel():
            waits.append(rank.group.send([tensors[other]], other, 0))
        if other != rank.number and arrived[other].numel():
            waits.append(rank.group.recv([arrived[other]], other, 0))
    for each in waits:
        each.wait()
    return [np.asarray(each.numpy()) for each in arrived]
