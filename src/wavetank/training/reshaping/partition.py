"""Whole layers for stages and whole micro-batches for replicas, so that the slowest is as fast as it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

_MOST = 2**62


def linear_partition(work: Sequence[int], pace: Sequence[int], most: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return how many consecutive items each stage gets: the largest ``items' work * pace`` is as small as it can be.

    By dynamic programming over items and stages; among equal ones the earlier stages have fewer items.  Items that are
    all alike are given out one by one, each to the stage that is done first with it.

    Parameters
    ----------
    work : sequence of int
        Of each layer, in order.
    pace : sequence of int
        Of each stage: time per unit of work.
    most : sequence of int, optional
        Items that fit into each stage.

    Returns
    -------
    tuple of int
        One or more items for each stage; empty where they do not fit.

    Raises
    ------
    BadValueError
        Without a stage, or for negative figures.

    Examples
    --------
    >>> linear_partition([1] * 8, [10, 10, 30])
    (3, 4, 1)
    """
    if not pace or min(*pace, *work, 0) < 0:
        raise BadValueError("Items are divided among stages.", given=f"work {work!r}, pace {pace!r}"[:100],
                            allowed="1 or more stages, nothing below 0")  # fmt: skip
    items, stages = len(work), len(pace)
    limits = [items] * stages if most is None else [min(items, int(each)) for each in most]
    if len(set(work)) == 1 and max(work[0], 1) * max(pace) * items < _MOST:
        found = unit_partition(items, np.array(pace, np.int64), np.array(limits, np.int64))
        return tuple(int(each) for each in found)
    before = [0]
    for each in work:
        before.append(before[-1] + int(each))
    never = -1
    # best[i]: the least possible maximum for the first i items on the stages so far.
    best = [0] + [never] * items
    choices: list[list[int]] = []
    for stage in range(stages):
        now, chosen = [never] * (items + 1), [0] * (items + 1)
        for end in range(stage + 1, items + 1):
            for count in range(1, min(limits[stage], end) + 1):
                rest = best[end - count]
                if rest == never:
                    continue
                slowest = max(rest, (before[end] - before[end - count]) * pace[stage])
                if now[end] == never or slowest <= now[end]:
                    now[end], chosen[end] = slowest, count
        best = now
        choices.append(chosen)
    if best[items] == never:
        return ()
    counts, end = [], items
    for chosen in reversed(choices):
        counts.append(chosen[end])
        end -= chosen[end]
    return tuple(reversed(counts))


@compiled
def unit_partition(items, pace, most):  # type: ignore[no-untyped-def]
    """Return how many of some items, all alike, each stage gets; an empty array where they do not fit."""
    stages = pace.size
    counts = np.ones(stages, np.int64)
    if items < stages or most.min() < 1:
        return counts[:0]
    for _ in range(items - stages):
        best = -1
        for stage in range(stages):
            if counts[stage] < most[stage] and (
                best < 0 or (counts[stage] + 1) * pace[stage] <= (counts[best] + 1) * pace[best]
            ):
                best = stage
        if best < 0:
            return counts[:0]
        counts[best] += 1
    return counts


def quotas(count: int, time_ps: Sequence[Callable[[int], int]]) -> tuple[int, ...]:
    """Return whole quotas that sum to ``count`` and of which the slowest takes the least time.

    Each micro-batch goes to the replica that would be done first with it.  With times that only rise, no other
    division has an earlier end: a replica that ends last would end as late with its last micro-batch elsewhere.

    Parameters
    ----------
    count : int
        Micro-batches of a step.
    time_ps : sequence of callable
        Of each replica: micro-batches to ps, never falling.

    Raises
    ------
    BadValueError
        Without a replica or a micro-batch.

    Examples
    --------
    >>> quotas(10, [lambda n: 2 * n, lambda n: 3 * n])
    (6, 4)
    """
    if count < 1 or not time_ps:
        raise BadValueError("A step needs micro-batches and replicas.", given=f"{count}, {len(time_ps)} replicas",
                            allowed="1 or more of both")  # fmt: skip
    found = [0] * len(time_ps)
    ends = [time(1) for time in time_ps]
    for _ in range(count):
        place = min(range(len(ends)), key=ends.__getitem__)
        found[place] += 1
        ends[place] = time_ps[place](found[place] + 1)
    return tuple(found)
