"""Attention as a plan says, each rank a real process that sends and receives blocks through torch's gloo.

Every rank makes the plan itself out of the lengths: equal lengths give equal plans, so that nothing about it is sent.
Needs the extra ``torch``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wavetank.live.ranks import run_ranks
from wavetank.training.context.attend import Attention, Blocks, attend_rank, check_arrays, joined, pieces, schedule
from wavetank.training.context.fcp import Plan, distribute, rounds
from wavetank.training.context.interface import Floats, Ints


def attend_on_ranks(
    queries: Floats,
    keys: Floats,
    values: Floats,
    lengths: Ints,
    ranks: int,
    *,
    block: int,
    out_grad: Floats | None = None,
    timeout_s: float = 120.0,
) -> Attention:
    """Return the causal attention of packed sequences, computed by processes that exchange blocks in rounds.

    Parameters
    ----------
    queries : float64 array (heads, tokens, dim)
        The tokens of all sequences, one after another.
    keys, values : float64 array (key heads, tokens, dim)
    lengths : int64 array (sequences,)
        Tokens of each.
    ranks : int
        Processes, 1 to 16.
    block : int
        Tokens of a block at most.
    out_grad : float64 array (heads, tokens, dim), optional
        Gradient of the output.
    timeout_s : float
        For the whole.

    Raises
    ------
    BadValueError
        If the arrays hold other tokens than the lengths.
    WavetankError
        If a process fails or does not end in time.
    """
    plan = distribute(lengths, ranks, block=block)
    check_arrays(plan, queries, keys, values, out_grad)
    arguments = {
        "lengths": np.asarray(lengths, np.int64), "block": block, "queries": queries, "keys": keys, "values": values,
        "out_grad": out_grad,
    }  # fmt: skip
    found = run_ranks(attend_here, ranks, arguments=arguments, timeout_s=timeout_s)
    parts = [tuple({int(block): part for block, part in each} for each in of) for of in found]
    return joined(plan, queries, keys, parts, out_grad is not None)  # type: ignore[arg-type]


def attend_here(
    rank: Any, lengths: Ints, block: int, queries: Floats, keys: Floats, values: Floats, out_grad: Floats | None
) -> list[list[list[Any]]]:
    """Compute the blocks of this process; return block and content of outputs and gradients.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    lengths, block, queries, keys, values, out_grad
        As for :func:`attend_on_ranks`; only the rank's own blocks are read.
    """
    plan = distribute(lengths, rank.size, block=block)
    own = schedule(plan, rounds(plan), rank.number)
    mine, own_keys, own_values = (pieces(plan, each, rank.number) for each in (queries, keys, values))
    grads = None if out_grad is None else pieces(plan, out_grad, rank.number)
    steps = attend_rank(plan, own, mine, own_keys, own_values, grads)
    passes = [False] if out_grad is None else [False, False, True]
    arrived: Floats | None = None
    try:
        message = next(steps)
        for back in passes:
            for number in range(own.count):
                expects = own.sends.get(number) if back else own.receives.get(number)
                arrived = _exchanged(rank, plan, message, expects, keys)
                message = steps.send(arrived)
    except StopIteration as end:
        results: tuple[Blocks, ...] = end.value
    return [[[each, content] for each, content in part.items()] for part in results]


def _exchanged(rank: Any, plan: Plan, message: Any, expects: tuple[int, int] | None, keys: Floats) -> Floats | None:
    """Send one message and receive one, both at once."""
    import torch

    waits, arrived = [], None
    if message is not None:
        target, content = message
        waits.append(rank.group.send([torch.from_numpy(np.ascontiguousarray(content))], target, 0))
    if expects is not None:
        block, sender = expects
        arrived = torch.empty((2, keys.shape[0], int(plan.tokens[block]), keys.shape[2]), dtype=torch.float64)
        waits.append(rank.group.recv([arrived], sender, 0))
    for each in waits:
        each.wait()
    return None if arrived is None else np.asarray(arrived.numpy())
