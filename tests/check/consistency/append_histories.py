"""Histories of transactions on lists, made from a seed."""

from __future__ import annotations

import heapq

from wavetank.sim.history import History, Operation
from wavetank.sim.rng import stream


def append_history(
    *,
    transactions: int,
    seed: int,
    clients: int = 20,
    keys: int = 10,
    per_key: int = 32,
    longest: int = 4,
) -> History:
    """Return a strictly serializable history of transactions on lists.

    Parameters
    ----------
    transactions, seed : int
    clients : int
    keys : int
        Lists in use at a time.
    per_key : int
        Appends after which a list gives way to a new one.
    longest : int
        Most steps of a transaction; half of them append.
    """
    rng = stream(seed, "append-history")
    free = [(float(rng.exponential(0.05)), client) for client in range(clients)]
    heapq.heapify(free)
    drawn: list[tuple[float, float, float, int]] = []
    for _ in range(transactions):
        invoked, client = heapq.heappop(free)
        took = float(rng.exponential(1.0)) + 1e-6
        drawn.append((invoked + took * float(rng.random()), invoked, invoked + took, client))
        heapq.heappush(free, (invoked + took + 1e-6 + float(rng.exponential(0.05)), client))
    in_use, newest = list(range(keys)), keys
    held: dict[int, list[int]] = {}
    made = []
    for _, invoked, returned, client in sorted(drawn):
        asked: list[list[object]] = []
        answered: list[list[object]] = []
        for _ in range(1 + int(rng.integers(longest))):
            at = int(rng.integers(keys))
            key = in_use[at]
            if rng.random() < 0.5:
                asked.append(["read", str(key), None])
                answered.append(["read", str(key), list(held[key]) if key in held else None])
                continue
            items = held.setdefault(key, [])
            items.append(len(items) + 1)
            asked.append(["append", str(key), len(items)])
            answered.append(asked[-1])
            if len(items) == per_key:
                in_use[at], newest = newest, newest + 1
        made.append(
            Operation(process=str(client), action="transaction", value=asked, result=answered, invoked=invoked,
                      returned=returned)
        )  # fmt: skip
    made.sort(key=lambda operation: operation.invoked)
    return History(operations=tuple(made))
