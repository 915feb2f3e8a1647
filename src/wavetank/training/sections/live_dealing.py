"""Grouped reordering on real processes: loaders give those of their group the lengths of samples, and exchange samples.

Every process deals the samples of its group by the same rule, so that sizes are all that is exchanged before samples.
Processes of different groups never talk.  Needs the extra ``torch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.live.ranks import run_ranks
from wavetank.training.sections.placement import Floats, Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Dealt:
    """What a process has after the exchange.

    Parameters
    ----------
    samples : list of float64 array
    labels : int64 array (samples,)
    size_bytes : int
        What it sent to others before any sample.
    """

    samples: list[Floats]
    labels: Ints
    size_bytes: int


def dealt_on_ranks(
    samples: list[list[Floats]], labels: list[list[int]], group: int, *, timeout_s: float = 120.0
) -> list[Dealt]:
    """Return what each process has after groups of neighbours have dealt their samples by the square of their lengths.

    Parameters
    ----------
    samples : list of list of float64 array
        What each process's loader has read.
    labels : list of list of int
        Of each sample.
    group : int
        Processes of a group.
    timeout_s : float
        For the whole.

    Raises
    ------
    BadValueError
        If groups do not divide the processes, or labels and samples differ in number.
    WavetankError
        If a process fails or does not end in time.
    """
    ranks = len(samples)
    if group < 1 or not ranks or ranks % group:
        raise BadValueError("Groups divide the processes.", given=group, allowed=f"divisors of {ranks}")
    if [len(each) for each in samples] != [len(each) for each in labels]:
        raise BadValueError("Every sample has a label.", given=str([len(each) for each in labels])[:80])
    arguments = {"samples": samples, "labels": labels, "group": group}
    found = run_ranks(deal_here, ranks, arguments=arguments, timeout_s=timeout_s)
    return [
        Dealt(samples=list(mine), labels=np.asarray(names, np.int64), size_bytes=int(sent))
        for mine, names, sent in found
    ]


def deal_here(rank: Any, samples: list[list[Floats]], labels: list[list[int]], group: int) -> list[Any]:
    """Exchange this process's samples with those of its group.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    samples, labels, group
        As for :func:`dealt_on_ranks`; only the process's own are read.
    """
    import torch

    mine, names = samples[rank.number], labels[rank.number]
    first = rank.number // group * group
    others = [each for each in range(first, first + group) if each != rank.number]
    if rank.size > 1:
        # All are there before anybody is done.
        rank.join()
    lengths = {rank.number: np.array([len(each) for each in mine], np.int64)}
    counts = _swapped(rank, {each: np.array([len(mine)], np.int64) for each in others}, dict.fromkeys(others, 1))
    sizes = _swapped(rank, dict.fromkeys(others, lengths[rank.number]), {k: int(counts[k][0]) for k in others})
    lengths |= sizes
    owner = np.concatenate([np.full(lengths[k].size, k) for k in range(first, first + group)])
    number = np.concatenate([np.arange(lengths[k].size) for k in range(first, first + group)])
    every = np.concatenate([lengths[k] for k in range(first, first + group)])
    costs = every.astype(np.float64) ** 2
    target = first + longest_first(costs, costs, group)
    kept: list[Floats] = []
    kept_names: list[int] = []
    waits, held = [], []
    # Between two processes samples come in one order, each with its label in front, bit by bit: all 64 of them.
    for source, k, length, goal in zip(owner.tolist(), number.tolist(), every.tolist(), target.tolist(), strict=True):
        if source == rank.number and goal == rank.number:
            kept.append(np.asarray(mine[k], np.float64))
            kept_names.append(int(names[k]))
        elif source == rank.number:
            label = np.array([names[k]], np.int64).view(np.float64)
            message = torch.from_numpy(np.concatenate([label, np.asarray(mine[k], np.float64)]))
            held.append(message)
            waits.append(rank.group.send([message], goal, 1))
        elif goal == rank.number:
            arrived = torch.empty(length + 1, dtype=torch.float64)
            rank.group.recv([arrived], source, 1).wait()
            kept.append(np.asarray(arrived.numpy()[1:]))
            kept_names.append(int(arrived[:1].view(torch.int64)[0]))
    for each in waits:
        each.wait()
    if rank.size > 1:
        rank.all_reduce(torch.zeros(1))
    return [kept, kept_names, len(others) * 8 * (1 + len(mine))]


def _swapped(rank: Any, given: dict[int, Ints], counts: dict[int, int]) -> dict[int, Ints]:
    """Send whole numbers to some processes, and return those that come from each."""
    import torch

    tensors = {other: torch.from_numpy(np.array(numbers, np.int64)) for other, numbers in given.items()}
    arrived = {other: torch.empty(count, dtype=torch.int64) for other, count in counts.items()}
    waits = []
    for other in given:
        if tensors[other].numel():
            waits.append(rank.group.send([tensors[other]], other, 0))
        if arrived[other].numel():
            waits.append(rank.group.recv([arrived[other]], other, 0))
    for each in waits:
        each.wait()
    return {other: np.asarray(each.numpy()) for other, each in arrived.items()}
