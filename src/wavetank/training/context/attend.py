"""Attention as a plan says: every rank computes on its own blocks and on those that each round brings.

What a rank does is a generator: it yields what it sends in a round, and is given what it receives.  :func:`attend` lets
all ranks run in this process; :mod:`wavetank.training.context.live` lets each run in a process of its own.  The
backward pass goes through the rounds again, and then sends the gradients of keys and values back along the same
messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.block_attention import attend_block, block_gradients, merge, nothing
from wavetank.training.context.fcp import Plan, rounds
from wavetank.training.context.interface import Floats, Ints

Message = tuple[int, Floats] | None
"""Receiving rank and content (2, key heads, tokens, dim): keys and values, or their gradients; None for no message."""

Blocks = dict[int, Floats]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention of whole sequences, and its gradients.

    Attributes
    ----------
    out : float64 array (heads, tokens, dim)
    query_grad, key_grad, value_grad : float64 array or None
        None where no gradient of the output was given.
    """

    out: Floats
    query_grad: Floats | None = None
    key_grad: Floats | None = None
    value_grad: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The messages of a plan as one rank sees them.

    Parameters
    ----------
    count : int
        Rounds.
    sends : dict of int to tuple of int
        By round: block and receiver.
    receives : dict of int to tuple of int
        By round: block and sender.
    """

    count: int
    sends: dict[int, tuple[int, int]]
    receives: dict[int, tuple[int, int]]


def schedule(plan: Plan, colours: Ints, rank: int) -> Schedule:
    """Return what one rank sends and receives in each round.

    Parameters
    ----------
    plan : Plan
    colours : int64 array (messages,)
        Round of each message.
    rank : int

    Raises
    ------
    BadValueError
        If a message has no round, or the rank would send or receive two messages in one round.
    """
    blocks, targets = plan.edges
    if colours.shape != blocks.shape or (colours.size and colours.min() < 0):
        raise BadValueError(
            "Every message of the plan has a round from 0.", given=f"rounds of {colours.size} messages, the first "
            f"{int(colours.min(initial=0))}", allowed=f"{blocks.size} messages",
        )  # fmt: skip
    senders = plan.owner[blocks]
    sends: dict[int, tuple[int, int]] = {}
    receives: dict[int, tuple[int, int]] = {}
    for kept, mine, others in ((sends, senders, targets), (receives, targets, senders)):
        for each in np.flatnonzero(mine == rank):
            number = int(colours[each])
            if number in kept:
                raise BadValueError("A rank has one message each way in a round.", given=f"rank {rank}, round {number}")
            kept[number] = int(blocks[each]), int(others[each])
    return Schedule(count=int(colours.max()) + 1 if colours.size else 0, sends=sends, receives=receives)


def pieces(plan: Plan, array: Floats, rank: int) -> Blocks:
    """Return the blocks of one rank.

    Parameters
    ----------
    plan : Plan
    array : float64 array (heads, tokens, dim)
        The tokens of all sequences, one after another.
    rank : int
    """
    ends = np.cumsum(plan.tokens)
    return {
        int(block): array[:, ends[block] - plan.tokens[block] : ends[block]]
        for block in np.flatnonzero(plan.owner == rank)
    }


def attend_rank(
    plan: Plan, own: Schedule, queries: Blocks, keys: Blocks, values: Blocks, out_grads: Blocks | None = None
) -> Generator[Message, Floats | None, tuple[Blocks, Blocks, Blocks, Blocks]]:
    """Compute the attention of one rank's blocks, and yield a message, or None, in every round.

    Parameters
    ----------
    plan : Plan
    own : Schedule
    queries, keys, values : dict of int to float64 array
        The rank's blocks.
    out_grads : dict of int to float64 array, optional
        Gradients of their outputs; without them there is no backward pass.

    Returns
    -------
    tuple of dict
        Outputs, and gradients of queries, keys and values.
    """
    mine: dict[int, list[int]] = defaultdict(list)
    for block in sorted(queries):
        mine[int(plan.sequence[block])].append(block)
    sums = {block: nothing(queries[block]) for block in queries}
    for block in sorted(queries):
        for q, ahead in _later(plan, mine, block):
            sums[q] = merge(sums[q], attend_block(queries[q], keys[block], values[block], ahead))
    for number in range(own.count):
        arrived = yield _outgoing(own, number, keys, values)
        if number in own.receives and arrived is not None:
            for q, ahead in _later(plan, mine, own.receives[number][0]):
                sums[q] = merge(sums[q], attend_block(queries[q], arrived[0], arrived[1], ahead))
    outs = {block: part.out for block, part in sums.items()}
    if out_grads is None:
        return outs, {}, {}, {}
    query_grads = {block: np.zeros(queries[block].shape) for block in queries}
    pair_grads = {block: np.zeros((2, *keys[block].shape)) for block in keys}

    def gradients(block: int, pair: Floats | tuple[Floats, Floats]) -> Floats:
        total = np.zeros((2, *pair[0].shape))
        for q, ahead in _later(plan, mine, block):
            found = block_gradients(queries[q], pair[0], pair[1], sums[q], out_grads[q], ahead)
            query_grads[q] += found[0]
            total += found[1:]
        return total

    for block in sorted(queries):
        pair_grads[block] += gradients(block, (keys[block], values[block]))
    returning: dict[int, Floats] = {}
    for number in range(own.count):
        arrived = yield _outgoing(own, number, keys, values)
        if number in own.receives and arrived is not None:
            returning[number] = gradients(own.receives[number][0], arrived)
    for number in range(own.count):
        back = (own.receives[number][1], returning[number]) if number in own.receives else None
        arrived = yield back
        if number in own.sends and arrived is not None:
            pair_grads[own.sends[number][0]] += arrived
    key_grads, value_grads = ({block: pair[i] for block, pair in pair_grads.items()} for i in (0, 1))
    return outs, query_grads, key_grads, value_grads


def _later(plan: Plan, mine: dict[int, list[int]], block: int) -> list[tuple[int, int]]:
    """Return the rank's blocks that see a block, and how far their queries are ahead."""
    first = plan.first
    return [(q, int(first[q] - first[block])) for q in mine[int(plan.sequence[block])] if q >= block]


def _outgoing(own: Schedule, number: int, keys: Blocks, values: Blocks) -> Message:
    if number not in own.sends:
        return None
    block, target = own.sends[number]
    return target, np.stack([keys[block], values[block]])


def assembled(plan: Plan, shape: tuple[int, ...], parts: Sequence[Blocks]) -> Floats:
    """Return the blocks of all ranks as one array.

    Parameters
    ----------
    plan : Plan
    shape : tuple of int
        Heads, tokens, dim.
    parts : sequence of dict
        The blocks of each rank.
    """
    whole = np.zeros(shape)
    ends = np.cumsum(plan.tokens)
    for part in parts:
        for block, content in part.items():
            whole[:, ends[block] - plan.tokens[block] : ends[block]] = content
    return whole


def check_arrays(plan: Plan, queries: Floats, keys: Floats, values: Floats, out_grad: Floats | None) -> None:
    """Refuse arrays that are not those of the plan's tokens.

    Parameters
    ----------
    plan : Plan
    queries, keys, values : float64 array (heads, tokens, dim)
    out_grad : float64 array or None
    """
    tokens = int(plan.tokens.sum())
    if any(each.ndim != 3 or each.shape[1] != tokens for each in (queries, keys, values)):
        raise BadValueError(
            "The arrays hold other tokens than the plan.", given=(queries.shape, keys.shape, values.shape),
            allowed=f"(heads, {tokens}, dim)",
        )  # fmt: skip
    if out_grad is not None and out_grad.shape != queries.shape:
        raise BadValueError("The gradient has another shape than the output.", given=out_grad.shape,
                            allowed=str(queries.shape))  # fmt: skip


def attend(
    queries: Floats,
    keys: Floats,
    values: Floats,
    plan: Plan,
    *,
    out_grad: Floats | None = None,
    colours: Ints | None = None,
) -> Attention:
    """Return the causal attention of packed sequences as the ranks of a plan compute it, round by round.

    Parameters
    ----------
    queries : float64 array (heads, tokens, dim)
        The tokens of all sequences, one after another.
    keys, values : float64 array (key heads, tokens, dim)
    plan : Plan
    out_grad : float64 array (heads, tokens, dim), optional
        Gradient of the output; the gradients of queries, keys and values are then returned, too.
    colours : int64 array (messages,), optional
        Round of each message; planned when left out.

    Raises
    ------
    BadValueError
        If the arrays do not go together or hold other tokens than the plan, or a round is no matching.
    """
    check_arrays(plan, queries, keys, values, out_grad)
    colours = rounds(plan) if colours is None else colours
    ranks = [
        attend_rank(
            plan, schedule(plan, colours, rank), pieces(plan, queries, rank), pieces(plan, keys, rank),
            pieces(plan, values, rank), None if out_grad is None else pieces(plan, out_grad, rank),
        )
        for rank in range(plan.ranks)
    ]  # fmt: skip
    parts: list[tuple[Blocks, Blocks, Blocks, Blocks]] = []
    mail: list[Floats | None] = [None] * plan.ranks
    started = False
    while not parts:
        posted: list[Message] = []
        for rank, each in enumerate(ranks):
            try:
                posted.append(each.send(mail[rank]) if started else next(each))
            except StopIteration as end:
                parts.append(end.value)
        started = True
        mail = [None] * plan.ranks
        for message in posted:
            if message is not None:
                mail[message[0]] = message[1]
    return joined(plan, queries, keys, parts, out_grad is not None)


def joined(
    plan: Plan,
    queries: Floats,
    keys: Floats,
    parts: Sequence[tuple[Blocks, Blocks, Blocks, Blocks]],
    with_gradients: bool,
) -> Attention:
    """Return what all ranks found as whole arrays.

    Parameters
    ----------
    plan : Plan
    queries, keys : float64 array
        Of whose shapes the results are.
    parts : sequence of tuple of dict
        Of each rank what :func:`attend_rank` returns.
    with_gradients : bool
    """
    outs, query_grads, key_grads, value_grads = zip(*parts, strict=True)
    out = assembled(plan, queries.shape, outs)
    if not with_gradients:
        return Attention(out=out)
    return Attention(
        out=out, query_grad=assembled(plan, queries.shape, query_grads),
        key_grad=assembled(plan, keys.shape, key_grads),
        value_grad=assembled(plan, keys.shape, value_grads),
    )  # fmt: skip
