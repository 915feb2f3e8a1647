"""All-reduce among real processes, which send each other what a scheme says through torch's gloo.

Each message is its length and its bytes.  Needs the extra ``torch``.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.live.ranks import Ranks
from wavetank.training.compression.frames import BadFrameError, Speeds
from wavetank.training.compression.interface import Collective, Floats, Message, Task, Work

_MOST_BYTES = 1 << 31
SUM, TORCH, POWER_SGD = "sum", "torch", "power-sgd"


def all_reduce(rank: Any, collective: Collective, values: Floats, task: Task) -> tuple[Floats, int]:
    """Sum over the processes; return the sum and how many bytes this one has sent.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    collective : Collective
    values : float32 array (n,)
    task : Task

    Raises
    ------
    BadFrameError
        If a message is damaged.
    """
    running = collective.rounds(values, rank.number, task, Work())
    sent = 0
    try:
        message = next(running)
        while True:
            sent += len(message.data)
            message = running.send(_exchanged(rank, message))
    except StopIteration as end:
        return end.value, sent


def _exchanged(rank: Any, message: Message) -> bytes:
    """Send one message and receive one, both at once."""
    import torch

    to, source = (rank.number + message.distance) % rank.size, (rank.number - message.distance) % rank.size
    lengths = torch.tensor([len(message.data)], dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    waits = [rank.group.send([lengths[0]], to, 0), rank.group.recv([lengths[1]], source, 0)]
    for each in waits:
        each.wait()
    length = int(lengths[1])
    if not 0 <= length <= _MOST_BYTES:
        raise BadFrameError("A message has no length.", given=length, allowed=f"0 to {_MOST_BYTES} bytes")
    arrived = torch.empty(length, dtype=torch.uint8)
    waits = []
    if message.data:
        data = torch.from_numpy(np.frombuffer(message.data, np.uint8).copy())
        waits.append(rank.group.send([data], to, 0))
    if length:
        waits.append(rank.group.recv([arrived], source, 0))
    for each in waits:
        each.wait()
    return bytes(arrived.numpy().tobytes())


def sums_here(
    rank: Any, kind: str, module: str, name: str, settings: dict[str, Any], values: list[Floats], shape: list[int],
    bound: float, levels: int, speeds: dict[str, float], links: list[float], repeats: int, seed: int,
) -> list[Any]:  # fmt: skip
    """Sum in this process on links of several speeds; return the sum, bytes sent, and seconds by link.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    kind : str
        ``sum`` for a scheme of ours, ``torch`` for gloo's own all-reduce, ``power-sgd`` for torch's hook.
    module, name, settings
        Class of the collective, and its parameters.
    values : list of float32 array
        Of all ranks.
    shape, bound, levels, speeds, seed
        Of the task; the speed of the link is that of the throttle.
    links : list of float
        Bytes per second; 0 for no throttle.
    repeats : int
        All-reduces on each link, after one that counts for nothing.
    """
    own = values[rank.number]
    collective = getattr(importlib.import_module(module), name)(**settings) if kind == SUM else None
    found: Any = None
    sent, seconds = 0, []
    for link in links:
        rank.group  # noqa: B018
        rank.throttle(link)
        took_s = []
        for _ in range(repeats + 1):
            task = Task(
                size=rank.size, shape=tuple(shape), bound=bound, levels=levels, seed=seed,
                speeds=Speeds(**{**speeds, "link_bytes_per_s": link or speeds["link_bytes_per_s"]}),
            )  # fmt: skip
            _barrier(rank)
            began_s = time.perf_counter()
            if collective is not None:
                found, sent = all_reduce(rank, collective, own, task)
            else:
                found, sent = _torch_sum(rank, own)
            took_s.append(time.perf_counter() - began_s)
        seconds.append(took_s[1:])
    return [found, sent, seconds]


def _barrier(rank: Any) -> None:
    import torch

    rank.all_reduce(torch.zeros(1))


def _torch_sum(rank: Any, own: Floats) -> tuple[Floats, int]:
    import torch

    tensor = torch.from_numpy(own.copy())
    rank.all_reduce(tensor)
    # A ring: each part goes around twice.
    return np.asarray(tensor.numpy()), 2 * (rank.size - 1) * own.nbytes // rank.size


def sum_on_ranks(
    collective: Any, members: Sequence[Floats], task: Task, *, links: Sequence[float] = (0.0,), repeats: int = 1,
    timeout_s: float = 120.0,
) -> list[tuple[Floats, int, list[list[float]]]]:  # fmt: skip
    """Sum over real processes; return each one's sum, the bytes that it sent, and the seconds of each all-reduce.

    Parameters
    ----------
    collective : Collective or None
        None for gloo's own all-reduce.
    members : sequence of float32 array (n,)
        The numbers of 1 to 16 ranks.
    task : Task
    links : sequence of float
        Limits of each connection, bytes per second; 0 for none (Linux).
    repeats : int
        All-reduces on each link.
    timeout_s : float
        For the whole.

    Raises
    ------
    BadValueError
        If the members are not those of the task.
    WavetankError
        If a process fails or does not end in time.
    """
    if len(members) != task.size:
        raise BadValueError("Each rank has its numbers.", given=len(members), allowed=str(task.size))
    import dataclasses

    settings: Mapping[str, Any] = dataclasses.asdict(collective) if collective is not None else {}
    arguments = {
        "kind": TORCH if collective is None else SUM,
        "module": type(collective).__module__, "name": type(collective).__qualname__, "settings": dict(settings),
        "values": [np.asarray(each, np.float32) for each in members], "shape": list(task.shape), "bound": task.bound,
        "levels": task.levels, "speeds": dataclasses.asdict(task.speeds), "links": [float(each) for each in links],
        "repeats": repeats, "seed": task.seed,
    }  # fmt: skip
    with Ranks(sums_here, task.size, arguments=arguments, timeout_s=timeout_s) as ranks:
        return [(found, sent, seconds) for found, sent, seconds in ranks.values(timeout_s)]
