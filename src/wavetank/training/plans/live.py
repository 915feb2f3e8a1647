"""The exchange in three phases among real processes, which send and receive through torch's gloo.

Processes stand for the ranks of several nodes.  In a phase every pair of partners has one message, with the blocks that
go that way and a header that names them; who is whose partner follows from the numbers alone.  Needs the extra
``torch``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.live.ranks import run_ranks
from wavetank.training.plans.exchange import Blocks, check_group, partners, route

Floats = NDArray[np.float64]


def exchange_on_ranks(blocks: Blocks, *, size: int, node: int, lanes: int, timeout_s: float = 120.0) -> Blocks:
    """Return the blocks that each process holds in the end; keys are (source, process that holds it).

    Parameters
    ----------
    blocks : dict of (int, int) to float64 array
        What each has for each, of any lengths; a process is given its own only.
    size : int
        Processes, 1 to 16.
    node, lanes : int
        Processes of a node, and network cards that they share.
    timeout_s : float
        For the whole.

    Raises
    ------
    BadValueError
        If nodes do not divide the processes, or lanes a node.
    WavetankError
        If a process fails or does not end in time.
    """
    check_group(size, node, lanes)
    given = [
        [[target, content] for (source, target), content in blocks.items() if source == number]
        for number in range(size)
    ]
    arguments = {"blocks": given, "node": node, "lanes": lanes}
    found = run_ranks(exchange_here, size, arguments=arguments, timeout_s=timeout_s)
    return {(source, number): content for number, of in enumerate(found) for source, content in of}


def exchange_here(rank: Any, blocks: list[list[Any]], node: int, lanes: int) -> list[list[Any]]:
    """Exchange the blocks of this process; return source and content of those that it holds in the end.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    blocks : list of list of (int, float64 array)
        Target and content, by process.
    node, lanes : int
    """
    number, size = rank.number, rank.size
    held = [(number, target, content) for target, content in blocks[number]]
    for phase in range(3):
        pairs = partners(phase, size, node, lanes)
        goes = [
            (route(source, target, node, lanes)[phase], source, target, content) for source, target, content in held
        ]
        held = [(source, target, content) for to, source, target, content in goes if to == number]
        messages = {to: _packed([each[1:] for each in goes if each[0] == to]) for of, to in pairs if of == number}
        for arrived in _swapped(rank, messages, [of for of, to in pairs if to == number]):
            held += _unpacked(arrived)
    return [[source, content] for source, _, content in held]


def _packed(blocks: list[tuple[int, int, Floats]]) -> Floats:
    header = [float(len(blocks))]
    for source, target, content in blocks:
        header += [float(source), float(target), float(content.size)]
    return np.concatenate([np.array(header), *(content for _, _, content in blocks)])


def _unpacked(message: Floats) -> list[tuple[int, int, Floats]]:
    count = int(message[0])
    found, at = [], 1 + 3 * count
    for source, target, length in message[1:at].reshape(count, 3).astype(np.int64).tolist():
        found.append((source, target, message[at : at + length]))
        at += length
    return found


def _swapped(rank: Any, messages: dict[int, Floats], sources: list[int]) -> list[Floats]:
    """Send messages and return those of the sources; lengths go before."""
    import torch

    group = rank.group
    lengths = {to: torch.tensor([content.size]) for to, content in messages.items()}
    expected = {of: torch.zeros(1, dtype=torch.int64) for of in sources}
    waits = [group.send([lengths[to]], to, 0) for to in messages]
    waits += [group.recv([expected[of]], of, 0) for of in sources]
    for each in waits:
        each.wait()
    arrived = {of: torch.empty(int(expected[of]), dtype=torch.float64) for of in sources}
    sent = {to: torch.from_numpy(np.ascontiguousarray(content)) for to, content in messages.items()}
    waits = [group.send([sent[to]], to, 1) for to in messages]
    waits += [group.recv([arrived[of]], of, 1) for of in sources]
    for each in waits:
        each.wait()
    return [np.asarray(arrived[of].numpy()) for of in sources]
