"""Functions that tests run in ranks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from wavetank.live.rank_process import GroupBrokenError, Rank


def echo(rank: Rank, array: Any) -> Any:
    rank.report({"rank": rank.number})
    return array * rank.number


def writes_what_all_see(rank: Rank) -> Any:
    if rank.shared is None:
        return None
    rank.shared[rank.number] = 10 + rank.number
    while not all(rank.shared[: rank.size]):
        time.sleep(0.001)
    return rank.shared[: rank.size].copy()


def fails(rank: Rank) -> None:
    if rank.number == 1:
        raise ValueError("no such thing")


def sleeps(rank: Rank, seconds: float) -> None:
    rank.report("ready")
    time.sleep(seconds)


def reports(rank: Rank, count: int) -> None:
    """Report whole numbers, as fast as can be."""
    for number in range(count):
        rank.report(number)


def is_busy(rank: Rank, seconds: float) -> float:
    """Return the share of a time for which this process had a processor."""
    rank.report("ready")
    rank.command(None)
    begin, used = time.monotonic(), time.process_time()
    while time.monotonic() - begin < seconds:
        pass
    return (time.process_time() - used) / (time.monotonic() - begin)


def joins_unless(rank: Rank, absent: int) -> str:
    if rank.number == absent:
        time.sleep(60)
    try:
        rank.join()
    except GroupBrokenError as error:
        return error.problem
    return "joined"


def shares_the_default_group(rank: Rank) -> str:
    try:
        rank.default_group()
    except GroupBrokenError as error:
        return error.problem
    return "joined"


def sums(rank: Rank, length: int, steps: int) -> list[Any]:
    """All-reduce until every step counts; a step that breaks is done again among those who are left."""
    import torch

    found, step, took = [], 0, []
    while step < steps:
        tensor = torch.full((length,), float(rank.number + 1), dtype=torch.float64)
        rank.point("before", step=step)
        begin = time.monotonic()
        try:
            rank.all_reduce(tensor, step=step)
            well = True
        except GroupBrokenError:
            well = False
        decision = rank.agree(well)
        took.append(time.monotonic() - begin)
        if decision.commit:
            found.append([float(tensor.min()), float(tensor.max())])
            step += 1
        else:
            rank.report(["again", step, [float(tensor.min()), float(tensor.max())], list(decision.members)])
    return [found, list(rank.members), took]


def paced(rank: Rank, length: int) -> list[float]:
    """Return how long an all-reduce takes before and after the launcher's word."""
    import torch

    tensor = torch.from_numpy(np.ones(length))
    rank.all_reduce(tensor)
    took = []
    for _ in range(2):
        rank.report("ready")
        rank.command(None)
        begin = time.monotonic()
        rank.all_reduce(tensor)
        took.append(time.monotonic() - begin)
    return took
