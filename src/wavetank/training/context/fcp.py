"""FCP: equal blocks placed anywhere by their cost, and their keys and values sent in rounds without congestion.

Every sequence is cut into blocks of about the same number of tokens.  Under a causal mask block ``j`` of ``n`` costs
``j + 1/2``; blocks ``j`` and ``n - 1 - j`` together always cost ``n``, so that such pairs are the items of LPT in two
dimensions: the most expensive first, to the rank that would be done first and still has memory.  A rank then needs the
keys and values of earlier blocks of its sequences, each once.  These messages are the edges of a bipartite multigraph,
whose edges can be coloured with as many colours as the busiest rank has messages; each colour is a round in which every
rank sends at most one block and receives at most one.  Short sequences are never cut and cause no traffic at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.kernels.edge_colouring import colour_edges, largest_degree
from wavetank.settings import setting
from wavetank.training.context.costs import PASSES, efficiency, exchange_s, per_rank, whole, work
from wavetank.training.context.interface import Batch, Cluster, Floats, Ints, Step

BLOCKS = (1024, 2048, 4096, 8192)
"""Lengths of blocks among which a plan is chosen by its predicted time."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which block lies where.

    Parameters
    ----------
    ranks : int
    sequence, first, tokens, owner : int64 array (blocks,)
        Of each block its sequence, its first token there, its tokens, and its rank.  Blocks of a sequence stand
        together in their order, and sequences in theirs.
    """

    ranks: int
    sequence: Ints
    first: Ints
    tokens: Ints
    owner: Ints

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Block and receiving rank of every message: each block once to each rank with a later block, but its own."""
        blocks, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for begin, end in self.cut_sequences:
            owner = self.owner[begin:end]
            # The last block of each rank: it needs all blocks before.
            last = np.full(self.ranks, -1)
            last[owner] = np.arange(end - begin)
            ranks = np.flatnonzero(last > 0)
            needs = np.arange(end - begin)[:, None] < last[ranks]
            block, place = np.nonzero(needs & (owner[:, None] != ranks))
            blocks.append(begin + block)
            targets.append(ranks[place])
        return np.concatenate(blocks), np.concatenate(targets)

    @cached_property
    def cut_sequences(self) -> list[tuple[int, int]]:
        """First block, and the block after the last, of every sequence of more than one block."""
        edges = np.flatnonzero(np.diff(self.sequence)) + 1
        begins, ends = np.concatenate([[0], edges]), np.concatenate([edges, [self.sequence.size]])
        return [(int(a), int(b)) for a, b in zip(begins, ends, strict=True) if b - a > 1]

    def works(self, cluster: Cluster) -> tuple[Floats, Floats]:
        """Return the forward work that each rank can do at once, and that each message makes possible.

        Parameters
        ----------
        cluster : Cluster
        """
        tokens = self.tokens.astype(np.float64)
        local = per_rank(self.ranks, self.owner, whole(tokens, cluster))
        blocks, targets = self.edges
        given = np.zeros(blocks.size)
        place = 0
        for begin, end in self.cut_sequences:
            sizes, owner = tokens[begin:end], self.owner[begin:end]
            grid = np.tril(work(sizes[:, None] * sizes, sizes[:, None], sizes, cluster), -1)
            holders, row = np.unique(owner, return_inverse=True)
            needed = np.zeros((holders.size, end - begin))
            np.add.at(needed, row, grid)
            local[holders] += (needed * (holders[:, None] == owner)).sum(1)
            until = int(np.searchsorted(blocks, end))
            given[place:until] = needed[np.searchsorted(holders, targets[place:until]), blocks[place:until] - begin]
            place = until
        return local, given


def cut(lengths: Ints, block: int) -> tuple[Ints, Ints, Ints]:
    """Return sequence, first token and tokens of each block: the fewest blocks of at most ``block`` tokens, equal ones.

    Parameters
    ----------
    lengths : int64 array (sequences,)
    block : int
        Tokens of a block at most.
    """
    counts = -(-lengths // block)
    sequence = np.repeat(np.arange(lengths.size), counts)
    number = np.arange(sequence.size) - np.repeat(np.cumsum(counts) - counts, counts)
    of, length = counts[sequence], lengths[sequence]
    first = number * length // of
    return sequence, first, (number + 1) * length // of - first


def distribute(
    lengths: Ints, ranks: int, *, block: int = 4096, room_tokens: float = np.inf, cluster: Cluster | None = None
) -> Plan:
    """Return where each block lies.  Equal lengths give equal plans on every rank.

    Parameters
    ----------
    lengths : int64 array (sequences,)
        Tokens of each sequence.
    ranks : int
    block : int, default 4096
        Tokens of a block at most.
    room_tokens : float, default inf
        Tokens that a rank may hold.
    cluster : Cluster, optional
        Speeds of the ranks and of their kernels; equal ranks whose kernels are always fast, when left out.

    Raises
    ------
    BadValueError
        If the tokens do not fit, a length is below 1 or no whole number, or the cluster has another number of ranks.

    Examples
    --------
    >>> plan = distribute(np.array([8, 2, 2]), 2, block=2)
    >>> plan.owner.tolist()
    [0, 1, 1, 0, 0, 1]
    """
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or lengths.size == 0 or lengths.dtype.kind not in "iu" or lengths.min() < 1 or block < 1:
        raise BadValueError(
            "Sequences and blocks have whole numbers of tokens, one or more.", given=f"{lengths}, block {block}"[:100]
        )
    lengths = lengths.astype(np.int64)
    if cluster is None:
        speeds = np.ones(max(ranks, 1))
        cluster = Cluster(
            flops_per_s=speeds, network_bytes_per_s=speeds, link_bytes_per_s=speeds, half_tokens=0.0, kernel_share=1.0
        )
    if ranks != cluster.ranks:
        raise BadValueError("The cluster has another number of ranks.", given=ranks, allowed=str(cluster.ranks))
    sequence, first, tokens = cut(lengths, block)
    item, costs = _pairs(sequence, tokens.astype(np.float64), cluster)
    # Pairs of a sequence change places later: each takes the room of the largest.
    sizes = (-(-lengths // -(-lengths // block)))[sequence].astype(np.float64)
    items = int(item.max()) + 1
    # Powers differ in their last digit between processors, and so would the order of pairs of one cost.
    rounded = per_rank(items, item, costs).astype(np.float32).astype(np.float64)
    where = longest_first(rounded, per_rank(items, item, sizes), ranks, room_tokens, cluster.flops_per_s)
    if where.min() < 0:
        raise BadValueError(
            "A block has no room on any rank.", given=f"{int(lengths.sum())} tokens on {ranks} ranks",
            allowed=f"{room_tokens:g} tokens per rank", hint="allow more tokens per rank, or cut smaller blocks",
        )  # fmt: skip
    owner = where[item]
    _even_out_traffic(sequence, owner, ranks, cluster)
    return Plan(ranks=ranks, sequence=sequence, first=first, tokens=tokens, owner=owner)


def _pairs(sequence: Ints, tokens: Floats, cluster: Cluster) -> tuple[Ints, Floats]:
    """Return the item that each block belongs to, and its cost: block j of n together with block n - 1 - j."""
    begins = np.flatnonzero(np.concatenate([[True], np.diff(sequence) > 0]))
    counts = np.diff(np.concatenate([begins, [sequence.size]]))
    begin, count = np.repeat(begins, counts), np.repeat(counts, counts)
    number = np.arange(sequence.size) - begin
    pair = np.minimum(number, count - 1 - number)
    _, item = np.unique(begin + pair, return_inverse=True)
    earlier = number * work(tokens * tokens, tokens, tokens, cluster)
    return item.astype(np.int64), whole(tokens, cluster) + earlier


def _even_out_traffic(sequence: Ints, owner: Ints, ranks: int, cluster: Cluster) -> None:
    """Exchange pairs of one sequence among their ranks, in place: their costs are equal, their traffic is not.

    A pair (j, n - 1 - j) receives about n - 2 - j blocks and sends n / 2 - 1 + j; the rank that receives least for what
    it sends gets the pair that receives most.
    """
    begins = np.flatnonzero(np.concatenate([[True], np.diff(sequence) > 0]))
    ends = np.concatenate([begins[1:], [sequence.size]])
    excess = np.zeros(ranks)
    for begin, end in sorted(zip(begins.tolist(), ends.tolist(), strict=True), key=lambda each: each[0] - each[1]):
        n = end - begin
        if n < 4:
            break
        holders = owner[begin : begin + n // 2].copy()
        order = np.lexsort((holders, excess[holders]))
        gain = n / 2 - 1 - 2 * np.arange(n // 2)
        for pair in range(n // 2):
            rank = holders[order[pair]]
            owner[begin + pair] = owner[end - 1 - pair] = rank
            excess[rank] += gain[pair]


def rounds(plan: Plan) -> Ints:
    """Return the round of every message of a plan: as many as the busiest rank sends or receives.

    Parameters
    ----------
    plan : Plan
    """
    blocks, targets = plan.edges
    return colour_edges(plan.owner[blocks], targets)


def coalescing(plan: Plan, colours: Ints, coalesced: int, cluster: Cluster) -> Floats:
    """Return the share of its work that a message still makes where rounds are coalesced.

    Blocks of one sequence that a rank has received by then are the keys of one kernel, which is as long as all of them.

    Parameters
    ----------
    plan : Plan
    colours : int64 array (messages,)
    coalesced : int
        Rounds of one kernel.
    cluster : Cluster
    """
    blocks, targets = plan.edges
    sequences = int(plan.sequence[-1]) + 1
    key = ((colours // coalesced) * plan.ranks + targets) * sequences + plan.sequence[blocks]
    _, place, count = np.unique(key, return_inverse=True, return_counts=True)
    side = plan.tokens[blocks].astype(np.float64)
    longer = side * np.sqrt(count[place])
    found: Floats = efficiency(side, cluster.half_tokens) / efficiency(longer, cluster.half_tokens)
    return found


def planned_step(plan: Plan, colours: Ints, batch: Batch, coalesced: int) -> Step:
    """Return what a step takes with blocks and messages as planned.

    Parameters
    ----------
    plan : Plan
    colours : int64 array (messages,)
        Round of each message.
    batch : Batch
    coalesced : int
        Rounds of one kernel.
    """
    cluster = batch.cluster
    blocks, targets = plan.edges
    senders = plan.owner[blocks]
    sizes = plan.tokens[blocks].astype(np.float64) * cluster.heads.kv_bytes
    local, given = plan.works(cluster)
    given *= coalescing(plan, colours, coalesced, cluster)
    ends = (senders, targets, sizes, given)
    return Step(
        time_s=sum(exchange_s(cluster, ends, colours, local, factors, coalesced) for factors in PASSES),
        compute_s=sum(compute for compute, _ in PASSES)
        * (local + per_rank(plan.ranks, targets, given))
        / cluster.flops_per_s,
        sent_bytes=per_rank(plan.ranks, senders, sizes),
        received_bytes=per_rank(plan.ranks, targets, sizes),
        rounds=int(colours.max()) + 1 if colours.size else 0,
        degree=largest_degree(senders, targets),
    )


@dataclass(frozen=True, kw_only=True)
class Fcp:
    """Sharer that places blocks by LPT and sends them in coloured rounds."""

    block_tokens: int = setting(
        0, unit="tokens", says="Tokens of a block; 0: of 1024 to 8192 those that are predicted to be fastest", low=0,
        high=1 << 20,
    )  # fmt: skip
    coalesced: int = setting(16, unit="rounds", says="Rounds whose blocks one kernel computes on", low=1, high=1024)

    def plan(self, batch: Batch, block: int) -> Plan:
        """Return the plan with blocks of a length.

        Parameters
        ----------
        batch : Batch
        block : int
        """
        return distribute(
            batch.lengths, batch.cluster.ranks, block=block, room_tokens=batch.room_tokens, cluster=batch.cluster
        )

    def rounds(self, plan: Plan) -> Ints:
        """Return the round of every message.

        Parameters
        ----------
        plan : Plan
        """
        return rounds(plan)

    def step(self, batch: Batch) -> Step:
        """Return what one step takes, with the best length of blocks that find room."""
        best: Step | None = None
        refused: list[BadValueError] = []
        for block in (self.block_tokens,) if self.block_tokens else BLOCKS:
            try:
                plan = self.plan(batch, block)
            except BadValueError as error:
                refused.append(error)
                continue
            step = replace(planned_step(plan, self.rounds(plan), batch, self.coalesced), choice=float(block))
            best = step if best is None or step.time_s < best.time_s else best
        if best is None:
            raise refused[0]
        return best
