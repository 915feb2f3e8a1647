"""HexiSeq: unequal shares of tokens and heads for ranks of unequal devices.

Equal shares let fast devices wait for slow ones.  Three stages look for better ones: groups whose exchanges stay inside
of a node, of a size for each kind of device; tokens of the groups by a rule (equal, in proportion to their devices'
speed, or to its root); then steps that move tokens or heads from the slowest rank or group to another one, kept where
the predicted time falls, with smaller and smaller steps until none helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.training.context.interface import Floats, Ints
from wavetank.training.context.shards import LongSequence, Shards, layer_s

RULES = (0.0, 0.5, 1.0)
"""Powers of the devices' speed in proportion to which groups first get their tokens."""


def groupings(problem: LongSequence) -> Iterator[Ints]:
    """Yield groups of neighbours: inside of nodes each size for each kind of device, and equal ones across nodes.

    Parameters
    ----------
    problem : LongSequence
    """
    cluster = problem.cluster
    kinds, kind = np.unique(cluster.flops_per_s, return_inverse=True)
    sizes = [each for each in (1, 2, 4, 8) if each <= cluster.node and problem.layer.heads >= each]
    for chosen in product(sizes, repeat=kinds.size):
        size = np.array(chosen)[kind]
        node = np.arange(cluster.ranks) // cluster.node
        # Unequal devices of one node may share a group: then its size is that of its first.
        label, group, last = np.zeros(cluster.ranks, np.int64), -1, (-1, -1)
        for rank in range(cluster.ranks):
            first = int(size[node[rank] * cluster.node])
            key = (int(node[rank]), (rank % cluster.node) // first)
            if key != last:
                group, last = group + 1, key
            label[rank] = group
        yield label
    for wide in (16, 32, 64, 128):
        if cluster.ranks % wide == 0 and problem.layer.heads >= wide:
            yield np.arange(cluster.ranks) // wide


def even_shares(problem: LongSequence, group: Ints, power: float) -> Shards:
    """Return shares in proportion to a power of the devices' speed, within their memory.

    Parameters
    ----------
    problem : LongSequence
    group : int64 array (ranks,)
    power : float
        0: equal tokens and heads.

    Raises
    ------
    BadValueError
        If the sequence does not fit into the memory of all ranks.
    """
    weight = problem.cluster.flops_per_s**power
    heads = problem.layer.heads * weight / np.bincount(group, weight)[group]
    return Shards(group=group, tokens=filled(problem.tokens, weight, problem.room_tokens), heads=_whole(heads, group))


def filled(tokens: float, weight: Floats, room: Floats) -> Floats:
    """Return tokens in proportion to weights; what a rank has no room for goes to the others.

    Parameters
    ----------
    tokens : float
    weight, room : float64 array (ranks,)

    Raises
    ------
    BadValueError
        If there is no room for all.
    """
    if room.sum() < tokens:
        raise BadValueError(
            "The sequence does not fit into the memory of all ranks.", given=f"{tokens:g} tokens",
            allowed=f"{float(room.sum()):g} tokens", hint="take more or larger devices, or a shorter sequence",
        )  # fmt: skip
    found, open_ = np.zeros(room.size), np.ones(room.size, bool)
    while (left := tokens - found.sum()) > 1e-9 * tokens:
        found[open_] += left * weight[open_] / weight[open_].sum()
        open_ &= found < room
        found = np.minimum(found, room)
    return found


def _whole(heads: Floats, group: Ints) -> Floats:
    """Return heads as whole numbers with the same sums: the largest remainders of a group are rounded up."""
    found = np.floor(heads)
    for each in np.unique(group):
        of = np.flatnonzero(group == each)
        missing = round(float(heads[of].sum() - found[of].sum()))
        found[of[np.argsort(found[of] - heads[of], kind="stable")[:missing]]] += 1
    return found


@dataclass(frozen=True, kw_only=True)
class HexiSeq:
    """Scheduler in three stages: groups, tokens of groups, then steps downhill on tokens and heads."""

    quantum: float = setting(1 / 2048, says="Smallest move, as a share of a rank's mean tokens", low=1e-6, high=1.0)

    def shards(self, problem: LongSequence) -> Shards:
        """Return the fastest shares that were found."""
        best: tuple[float, Shards] | None = None
        for group in groupings(problem):
            for power in RULES:
                start = even_shares(problem, group, power)
                found = self.descend(problem, start)
                time_s = float(layer_s(problem, found).max())
                if best is None or time_s < best[0] * (1 - 1e-9):
                    best = time_s, found
        if best is None:
            raise BadValueError("There are no groups of ranks.", given=problem.cluster.ranks)
        return best[1]

    def descend(self, problem: LongSequence, shards: Shards) -> Shards:
        """Return shares that no move of tokens or heads makes faster; the predicted time never rises on the way.

        Parameters
        ----------
        problem : LongSequence
        shards : Shards
        """
        mean = problem.tokens / problem.cluster.ranks
        share, best = 0.25, float(layer_s(problem, shards).max())
        while share >= self.quantum:
            better = self._moved(problem, shards, share * mean, best)
            if better is None:
                share /= 2
                continue
            shards, best = better, float(layer_s(problem, better).max())
        return shards

    def _moved(self, problem: LongSequence, shards: Shards, tokens: float, best: float) -> Shards | None:
        """Return shares after the first move away from what is slowest that helps; None where none does."""
        times = layer_s(problem, shards)
        # All that are as slow move together, or none of them would be the slowest any more.
        slow = times > best * (1 - 1e-6)
        fast = times < best * (1 - 1e-4)
        speed = problem.cluster.flops_per_s
        room = problem.room_tokens - shards.tokens
        for kind in np.unique(speed[fast & (room > 0)]):
            take = fast & (speed == kind) & (room > 0)
            given = np.minimum(np.full(shards.tokens.size, tokens), shards.tokens) * slow
            moved = shards.tokens - given
            if given.sum() <= 0 or room[take].sum() < given.sum():
                continue
            moved[take] += filled(float(given.sum()), np.ones(int(take.sum())), room[take])
            each = replace(shards, tokens=moved)
            if float(layer_s(problem, each).max()) < best * (1 - 1e-9):
                return each
        for rank in np.flatnonzero(slow & (shards.heads > 0)):
            for other in np.flatnonzero((shards.group == shards.group[rank]) & fast):
                heads = shards.heads.copy()
                heads[rank] -= 1
                heads[other] += 1
                each = replace(shards, heads=heads)
                after = layer_s(problem, each)
                # Among several that are as slow, one less is a step, too.
                if after.max() < best * (1 - 1e-9) or (
                    after.max() <= best and (after > best * (1 - 1e-6)).sum() < slow.sum()
                ):
                    return each
        return None


@dataclass(frozen=True, kw_only=True)
class EqualShares:
    """Scheduler that gives every rank as many tokens and heads as any other, in the best groups."""

    heads: str = setting("any", says="Whether a group exchanges heads", choices=("none", "only", "any"))

    def shards(self, problem: LongSequence) -> Shards:
        """Return equal shares in the best groups of neighbours.

        Raises
        ------
        BadValueError
            If no rank may hold as many tokens, or no group has as many heads.
        """
        ranks, layer = problem.cluster.ranks, problem.layer
        sizes = [each for each in range(1, ranks + 1) if ranks % each == 0 and layer.heads % each == 0]
        if self.heads != "any":
            sizes = [each for each in sizes if each == (1 if self.heads == "none" else ranks)]
        tokens = np.full(ranks, problem.tokens / ranks)
        if not sizes or np.any(tokens > problem.room_tokens):
            raise BadValueError(
                "Equal shares do not fit.", given=f"{tokens[0]:g} tokens a rank, groups of {self.heads} heads",
                allowed=f"{float(problem.room_tokens.min()):g} tokens, and groups that divide {layer.heads} heads",
            )  # fmt: skip
        tried = [
            Shards(group=np.arange(ranks) // size, tokens=tokens, heads=np.full(ranks, layer.heads / size))
            for size in sizes
        ]
        return min(tried, key=lambda each: float(layer_s(problem, each).max()))


@dataclass(frozen=True, kw_only=True)
class TokensBySpeed:
    """Scheduler that gives ranks tokens in proportion to their speed, and the ranks of a group as many heads."""

    heads: str = setting("none", says="Whether groups inside of a node exchange heads", choices=("none", "any"))

    def shards(self, problem: LongSequence) -> Shards:
        """Return the shares in the best groups of one size."""
        ranks, cluster, layer = np.arange(problem.cluster.ranks), problem.cluster, problem.layer
        tokens = filled(problem.tokens, cluster.flops_per_s, problem.room_tokens)
        several = (2, 4, 8) if self.heads == "any" else ()
        sizes = [1, *(each for each in several if ranks.size % each == layer.heads % each == 0)]
        tried = [
            Shards(group=ranks // each, tokens=tokens, heads=np.full(ranks.size, layer.heads / each)) for each in sizes
        ]
        return min(tried, key=lambda each: float(layer_s(problem, each).max()))
