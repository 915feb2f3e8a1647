"""Other ways to share attention: rings, exchanged heads, groups by length, and blocks without a plan for messages.

A group of ``u * r`` ranks shares whole sequences.  Of them ``u`` neighbours exchange tokens for heads before attention
and back after it (Ulysses); keys and values travel ``r - 1`` times around a ring of such neighbourhoods, while each
rank computes on the first and the last of ``2 r`` chunks, so that causal work is even (zig-zag).  Every choice that a
rival leaves open is made for each batch by its own predicted time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.settings import setting
from wavetank.sim.compiled import compiled
from wavetank.training.context.costs import PASSES, per_rank, whole, work
from wavetank.training.context.fcp import Fcp, Plan, cut
from wavetank.training.context.interface import Batch, Cluster, Floats, Ints, Step


def powers_of_two(most: int) -> Iterator[int]:
    """Yield 1, 2, 4 and so on up to ``most``."""
    size = 1
    while size <= most:
        yield size
        size *= 2


def group_s(
    lengths: Floats, heads: int, ring: int, cluster: Cluster, flops_per_s: float, network_bytes_per_s: float
) -> tuple[Floats, Floats, Floats]:
    """Return what each sequence takes a group in the forward pass, s: computing, ring messages, exchanged heads.

    Parameters
    ----------
    lengths : float64 array
        Tokens of each sequence.
    heads, ring : int
        Ranks that exchange heads, and rings' length; the group has their product.
    cluster : Cluster
    flops_per_s, network_bytes_per_s : float
        Of the group's slowest rank.

    Returns
    -------
    tuple of float64 array
        The computing of one of ``ring`` equal steps, the message of one step, and the exchange, which has no steps.
    """
    shared = lengths / (heads * ring)
    if ring == 1:
        compute = whole(lengths, cluster) / heads
    else:
        # Two queries of a chunk meet one chunk of keys, or one of them two: both are as long as sqrt(2) chunks.
        chunk = np.maximum(lengths / (2 * ring), 1.0)
        compute = work(lengths * (lengths + 1) / 2 / ring**2, 2 * chunk, chunk, cluster) / heads
    link = float(cluster.link_bytes_per_s.min())
    across = heads * ring > cluster.node
    # Where there are more ranks than heads of keys, these are copied, and each copy goes around.
    copies = max(1.0, heads / cluster.heads.keys)
    around = shared * copies * cluster.heads.kv_bytes / (network_bytes_per_s if across else link)
    exchanged = np.zeros(lengths.size)
    if heads > 1:
        sent = shared * (cluster.heads.qo_bytes + copies * cluster.heads.kv_bytes)
        inside = min(heads, cluster.node)
        exchanged = sent * np.maximum((inside - 1) / heads / link, (heads - inside) / heads / network_bytes_per_s)
    return compute / flops_per_s, around, exchanged


def received_bytes(tokens: Floats, heads: int, ring: int, cluster: Cluster) -> Floats:
    """Return what a rank receives in the forward pass: others' blocks of the ring, and others' part of its heads.

    Parameters
    ----------
    tokens : float64 array
        Of the rank.
    heads, ring : int
        As for :func:`group_s`.
    cluster : Cluster
    """
    keys = max(1.0, heads / cluster.heads.keys) * cluster.heads.kv_bytes
    found: Floats = tokens * ((ring - 1) * keys + (heads - 1) / heads * (cluster.heads.qo_bytes + keys))
    return found


def passes_s(compute: Floats, around: Floats, exchanged: Floats, ring: int, latency_s: float) -> Floats:
    """Return forward and backward pass of what takes such times.

    Parameters
    ----------
    compute, around, exchanged : float64 array
        As :func:`group_s` returns them.
    ring : int
    latency_s : float
    """
    total = np.zeros(compute.size)
    for computing, traffic in PASSES:
        step = computing * compute
        steps = (ring - 1) * np.maximum(step, traffic * around + latency_s * (ring > 1)) + step
        # Backward, gradients of the output come in and those of queries, keys and values go out: as many bytes.
        total += steps + exchanged + 4 * latency_s * (exchanged > 0)
    return total


@dataclass(frozen=True, kw_only=True)
class HeadsAndRings:
    """Sharer whose ranks are divided into equal groups; every sequence is shared by all ranks of its group."""

    heads: str = setting("any", says="Whether a group exchanges heads", choices=("none", "only", "any"))

    def step(self, batch: Batch) -> Step:
        """Return what one step takes with the best groups that hold the longest sequence."""
        cluster, best = batch.cluster, None
        for ring in powers_of_two(1 if self.heads == "only" else cluster.ranks):
            most = min(cluster.ranks // ring, cluster.heads.queries)
            for heads in powers_of_two(1 if self.heads == "none" else most):
                step = grouped(batch, heads, ring)
                if step is not None and (best is None or step.time_s < best.time_s):
                    best = step
        if best is None:
            raise BadValueError(
                "No group of ranks holds the longest sequence.", given=f"{int(batch.lengths.max())} tokens",
                allowed=f"{batch.room_tokens} tokens per rank, {cluster.heads.queries} heads",
                hint="take shorter sequences, or more tokens per rank",
            )  # fmt: skip
        return best


def grouped(batch: Batch, heads: int, ring: int) -> Step | None:
    """Return a step with groups of ``heads * ring`` ranks; None where sequences find no room, or ranks none of them.

    Parameters
    ----------
    batch : Batch
    heads, ring : int
    """
    cluster, size = batch.cluster, heads * ring
    groups = cluster.ranks // size
    lengths = batch.lengths.astype(np.float64)
    if groups * size != cluster.ranks or lengths.max() > size * batch.room_tokens:
        return None
    speed = cluster.flops_per_s.reshape(groups, size).min(1)
    network = cluster.network_bytes_per_s.reshape(groups, size).min(1)
    compute, around, exchanged = group_s(lengths, heads, ring, cluster, 1.0, 1.0)
    where = longest_first(compute, lengths, groups, size * batch.room_tokens, speed)
    if where.min() < 0:
        return None
    _, around, exchanged = group_s(lengths, heads, ring, cluster, 1.0, float(network.min()))
    sums = [per_rank(groups, where, each) for each in (compute, around, exchanged)]
    times = passes_s(sums[0] / speed, sums[1], sums[2], ring, cluster.latency_s)
    computed = sum(each for each, _ in PASSES) * np.repeat(sums[0] / speed, size) * ring
    tokens = np.repeat(per_rank(groups, where, lengths) / size, size)
    sent = received_bytes(tokens, heads, ring, cluster)
    return Step(time_s=float(times.max()), compute_s=computed, sent_bytes=sent, received_bytes=sent, choice=float(size))


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Sharer that gives each sequence a group of ranks by its length; short ones stay on one rank."""

    spread: str = setting(
        "length", says="Ranks of a group: as few as hold the sequence, or some times as many, chosen for the batch",
        choices=("length", "chosen"),
    )  # fmt: skip
    heads: bool = setting(False, says="Whether groups may exchange heads")

    def step(self, batch: Batch) -> Step:
        """Return what one step takes."""
        best: Step | None = None
        for times in powers_of_two(64 if self.spread == "chosen" else 1):
            step = self._spread(batch, times)
            if step is not None and (best is None or step.time_s < best.time_s):
                best = step
        if best is None:
            raise BadValueError(
                "A sequence finds no room in any group.", given=f"{batch.tokens} tokens",
                allowed=f"{batch.room_tokens} tokens per rank", hint="allow more tokens per rank",
            )  # fmt: skip
        return best

    def _spread(self, batch: Batch, times: int) -> Step | None:
        cluster, lengths = batch.cluster, batch.lengths.astype(np.float64)
        sizes = 2 ** np.ceil(np.log2(np.maximum(times * lengths / batch.room_tokens, 1.0))).astype(np.int64)
        # What is shared by many although one would hold it gains only if it is long.
        sizes = np.minimum(sizes, cluster.ranks)
        slowest = float(cluster.flops_per_s.min())
        network = float(cluster.network_bytes_per_s.min())
        time_s, compute_s = np.zeros(lengths.size), np.zeros(lengths.size)
        sent = np.zeros(lengths.size)
        for size in np.unique(sizes):
            of = sizes == size
            best = np.full(int(of.sum()), np.inf)
            kept, kept_sent = np.zeros(best.size), np.zeros(best.size)
            for heads in powers_of_two(min(size, cluster.heads.queries) if self.heads else 1):
                ring = int(size) // heads
                compute, around, exchanged = group_s(lengths[of], heads, ring, cluster, slowest, network)
                spent = passes_s(compute, around, exchanged, ring, cluster.latency_s)
                better = spent < best
                best = np.where(better, spent, best)
                kept = np.where(better, sum(each for each, _ in PASSES) * compute * ring, kept)
                kept_sent = np.where(better, received_bytes(lengths[of] / size, heads, ring, cluster), kept_sent)
            time_s[of], compute_s[of], sent[of] = best, kept, kept_sent
        order = np.lexsort((-time_s, -sizes))
        relative = cluster.flops_per_s / slowest
        where, busy = _on_blocks(time_s, lengths, sizes, order, relative, float(batch.room_tokens))
        if where.min() < 0:
            return None
        computed, traffic = np.zeros(cluster.ranks), np.zeros(cluster.ranks)
        for place, size, seconds, given in zip(where, sizes, compute_s, sent, strict=True):
            computed[place : place + size] += seconds / relative[place : place + size].min()
            traffic[place : place + size] += given
        return Step(
            time_s=float(busy.max()), compute_s=computed, sent_bytes=traffic, received_bytes=traffic,
            choice=float(times),
        )  # fmt: skip


@compiled
def _on_blocks(time_s, tokens, sizes, order, relative, room):  # type: ignore[no-untyped-def]
    """Put each sequence on the aligned block of ranks that would be done first and has room."""
    ranks = relative.size
    busy, taken = np.zeros(ranks), np.zeros(ranks)
    where = np.full(sizes.size, -1, np.int64)
    for each in order:
        size = sizes[each]
        best, ends = -1, np.inf
        for place in range(0, ranks - size + 1, size):
            if taken[place : place + size].max() + tokens[each] / size > room:
                continue
            end = busy[place : place + size].max() + time_s[each] / relative[place : place + size].min()
            if end < ends:
                best, ends = place, end
        if best >= 0:
            where[each] = best
            busy[best : best + size] += time_s[each] / relative[best : best + size].min()
            taken[best : best + size] += tokens[each] / size
    return where, busy


@dataclass(frozen=True, kw_only=True)
class BestOfBoth:
    """Sharer that knows for each batch whether rings or groups by length will be faster."""

    def step(self, batch: Batch) -> Step:
        """Return the faster of both steps."""
        return min(_both(batch), key=lambda each: each.time_s)


def _both(batch: Batch) -> tuple[Step, Step]:
    return HeadsAndRings(heads="none").step(batch), Grouping().step(batch)


@dataclass(frozen=True, kw_only=True)
class Unplanned(Fcp):
    """FCP's blocks, sent by every rank in an order of its own: a receiver takes one block at a time, others wait."""

    def rounds(self, plan: Plan) -> Ints:
        """Return the round in which each message gets through."""
        blocks, targets = plan.edges
        return contended(plan.owner[blocks], targets, plan.ranks)


@dataclass(frozen=True, kw_only=True)
class MinHeap(Unplanned):
    """Sharer that deals chunks, the most expensive first, to the least loaded rank that has room."""

    def plan(self, batch: Batch, block: int) -> Plan:
        """Return the plan with chunks of a length."""
        cluster = batch.cluster
        sequence, first, tokens = cut(batch.lengths, block)
        begins = np.flatnonzero(np.concatenate([[True], np.diff(sequence) > 0]))
        number = np.arange(sequence.size) - np.repeat(begins, np.diff(np.concatenate([begins, [sequence.size]])))
        sides = tokens.astype(np.float64)
        costs = whole(sides, cluster) + number * work(sides * sides, sides, sides, cluster)
        where = longest_first(costs, sides, cluster.ranks, batch.room_tokens, cluster.flops_per_s)
        if where.min() < 0:
            raise BadValueError("A chunk has no room on any rank.", given=batch.tokens, where=f"{block} tokens")
        return Plan(ranks=cluster.ranks, sequence=sequence, first=first, tokens=tokens, owner=where)


def contended(senders: Ints, receivers: Ints, ranks: int) -> Ints:
    """Return when each message gets through if every sender offers its own in turn, beginning after its own number.

    In each round a sender offers one message.  A receiver takes that of the sender that has waited longest for it, the
    nearest before it in number among equals; the others offer the same again.

    Parameters
    ----------
    senders, receivers : int64 array (messages,)
    ranks : int
    """
    # The usual order of an exchange: first to the next rank, then to the one after it.
    distance = (receivers - senders) % ranks
    occurrence = np.zeros(senders.size, np.int64)
    order = np.lexsort((np.arange(senders.size), receivers, senders))
    same = np.concatenate([[False], (np.diff(senders[order]) == 0) & (np.diff(receivers[order]) == 0)])
    starts = np.flatnonzero(~same)
    occurrence[order] = np.arange(senders.size) - np.repeat(starts, np.diff(np.concatenate([starts, [senders.size]])))
    queue = np.lexsort((distance, occurrence, senders))
    found: Ints = _contended(senders, receivers, queue, ranks)
    return found


@compiled
def _contended(senders, receivers, queue, ranks):  # type: ignore[no-untyped-def]
    ends = np.zeros(ranks + 1, np.int64)
    for each in senders:
        ends[each + 1] += 1
    ends = np.cumsum(ends)
    head = ends[:-1].copy()
    waited = np.zeros(ranks, np.int64)
    colours = np.zeros(senders.size, np.int64)
    left, now = senders.size, 0
    while left > 0:
        chosen = np.full(ranks, -1, np.int64)
        for rank in range(ranks):
            if head[rank] < ends[rank + 1]:
                target = receivers[queue[head[rank]]]
                other = chosen[target]
                if (
                    other < 0
                    or waited[rank] > waited[other]
                    or (waited[rank] == waited[other] and (target - rank) % ranks < (target - other) % ranks)
                ):
                    chosen[target] = rank
        for rank in range(ranks):
            waited[rank] += 1
        for target in range(ranks):
            rank = chosen[target]
            if rank >= 0:
                colours[queue[head[rank]]] = now
                head[rank] += 1
                waited[rank] = 0
                left -= 1
        now += 1
    return colours
