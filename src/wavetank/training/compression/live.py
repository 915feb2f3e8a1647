"""All-reduce among real processes, which send each other what a scheme says through torch's gloo.

Each message is its length and its bytes.  Needs the extra ``torch``.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.live.rank_process import GroupBrokenError
from wavetank.live.ranks import Fault, Ranks
from wavetank.training.compression.frames import BadFrameError, Speeds
from wavetank.training.compression.interface import Collective, Floats, Message, Task, Work

# What a message may take beside eight bytes for each number: heads of frames, and what a library writes of few numbers.
_BESIDE_BYTES = 1 << 16


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
        If a message is damaged, or longer than any of the task.
    GroupBrokenError
        If another process is gone or late.
    """
    running = collective.rounds(values, rank.number, task, Work())
    sent, most = 0, _BESIDE_BYTES + 8 * task.count
    try:
        message = next(running)
        while True:
            sent += len(message.data)
            rank.point("exchange", sent=sent)
            try:
                arrived = _exchanged(rank, message, most)
            except RuntimeError as error:
                first = str(error).partition("\n")[0][:300]
                raise GroupBrokenError("Another process is gone or late.", given=first) from error
            message = running.send(arrived)
    except StopIteration as end:
        return end.value, sent


def _exchanged(rank: Any, message: Message, most: int) -> bytes:
    """Send one message and receive one of ``most`` bytes at most, both at once."""
    import torch

    to, source = (rank.number + message.distance) % rank.size, (rank.number - message.distance) % rank.size
    lengths = torch.tensor([len(message.data)], dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    # What is awaited is said first: behind a message that is sent it would be a message late.
    waits = [rank.group.recv([lengths[1]], source, 0), rank.group.send([lengths[0]], to, 0)]
    for each in waits:
        each.wait()
    length = int(lengths[1])
    if not 0 <= length <= most:
        raise BadFrameError("A message has another length than any of its task.", given=length,
                            allowed=f"0 to {most} bytes")  # fmt: skip
    arrived = torch.empty(length, dtype=torch.uint8)
    waits = []
    if length:
        waits.append(rank.group.recv([arrived], source, 0))
    if message.data:
        data = torch.from_numpy(np.frombuffer(message.data, np.uint8).copy())
        waits.append(rank.group.send([data], to, 0))
    for each in waits:
        each.wait()
    return bytes(arrived.numpy().tobytes())


def sums_here(
    rank: Any, module: str, name: str, settings: dict[str, Any], values: list[Floats], task: dict[str, Any],
    links: list[float], repeats: int,
) -> list[Any]:  # fmt: skip
    """Sum in this process on links of several speeds; return the sum, and by link the bytes sent and the seconds.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    module, name, settings
        Class of the collective, and its parameters.
    values : list of float32 array
        Of all ranks.
    task : dict
        Parameters of the task; the speed of its link is that of the throttle, where there is one.
    links : list of float
        Bytes per second; 0 for no throttle.
    repeats : int
        All-reduces on each link, after one that does not count.
    """
    own = values[rank.number]
    collective = getattr(importlib.import_module(module), name)(**settings)
    speeds, shape = task.pop("speeds"), tuple(task.pop("shape"))
    found: Any = None
    sent: list[int] = []
    seconds: list[list[float]] = []
    peer: Any = None
    _barrier(rank)
    for link in links:
        known = Speeds(**(speeds | ({"link_bytes_per_s": link} if link else {})))
        given = Task(**task, shape=shape, speeds=known)
        if hasattr(collective, "summing"):
            peer = peer or collective.summing(rank, own, given)
        rank.throttle(link)
        took_s = []
        for _ in range(repeats + 1):
            _barrier(rank)
            began_s = time.perf_counter()
            found, sent_bytes = peer() if peer else all_reduce(rank, collective, own, given)
            took_s.append(time.perf_counter() - began_s)
        rank.throttle(0.0)
        seconds.append(took_s[1:])
        sent.append(sent_bytes)
    return [found, sent, seconds]


def _barrier(rank: Any) -> None:
    import torch

    rank.all_reduce(torch.zeros(1))


def sum_on_ranks(
    collective: Any, members: Sequence[Floats], task: Task, *, links: Sequence[float] = (0.0,), repeats: int = 1,
    timeout_s: float = 120.0, faults: Sequence[Fault] = (),
) -> list[tuple[Floats, list[int], list[list[float]]]]:  # fmt: skip
    """Sum over real processes; return each one's sum, and by link the bytes that it sent and its seconds.

    Parameters
    ----------
    collective : Collective, or a peer with ``summing``
    members : sequence of float32 array (n,)
        The numbers of 1 to 16 ranks.
    task : Task
    links : sequence of float
        Limits of each connection, bytes per second; 0 for none (Linux).
    repeats : int
        All-reduces on each link.
    timeout_s : float
        For the whole.
    faults : sequence of Fault
        What is to happen at points: ``exchange``, which a rank reaches before every message, with the bytes that it
        will have ``sent``.

    Raises
    ------
    BadValueError
        If the members are not those of the task, or there is no link or repeat.
    WavetankError
        If a process fails or does not end in time.
    """
    if len(members) != task.size:
        raise BadValueError("Each rank has its numbers.", given=len(members), allowed=str(task.size))
    if not links or not all(0 <= each < 2**32 - 1 for each in links):
        raise BadValueError("A connection sends bytes per second.", given=links, allowed="0 to 4.29e9, one at least",
                            where="links")  # fmt: skip
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise BadValueError("An all-reduce is timed once at least.", given=repeats, allowed="1 or more",
                            where="repeats")  # fmt: skip
    arguments = {
        "module": type(collective).__module__, "name": type(collective).__qualname__,
        "settings": dataclasses.asdict(collective), "values": [np.asarray(each, np.float32) for each in members],
        "task": dataclasses.asdict(task), "links": [float(each) for each in links], "repeats": repeats,
    }  # fmt: skip
    with Ranks(sums_here, task.size, arguments=arguments, timeout_s=timeout_s, faults=faults) as ranks:
        return [(found, sent, seconds) for found, sent, seconds in ranks.values(timeout_s)]
