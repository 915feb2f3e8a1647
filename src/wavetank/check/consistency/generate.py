"""Histories made from a seed: clients of one store that is linearizable, or that lost an append.

Every operation takes effect at a moment drawn between its invocation and its return, so that a history made this way is
linearizable whatever its shape; a lost append then makes one that is not.

Source: the shape (clients, a few keys, gets, puts and appends of unlike strings) is that of the key-value tests of
github.com/anishathalye/porcupine.
"""

from __future__ import annotations

import heapq

from wavetank.errors import BadValueError
from wavetank.sim.history import History, Operation
from wavetank.sim.rng import stream


def kv_history(
    *,
    clients: int,
    operations: int,
    keys: int,
    seed: int,
    reads: float = 0.45,
    puts: float = 0.05,
    rounds: int = 1,
    lost: bool = False,
) -> History:
    """Return a history of a key-value store of strings.

    Parameters
    ----------
    clients, operations, keys, seed : int
        ``operations`` are those of all clients together.
    reads, puts : float
        Shares; the rest are appends.
    rounds : int
        In each round clients begin to number their values anew, so that with more than one values come again.
    lost : bool
        Whether one read misses the last append that it must have seen.

    Raises
    ------
    BadValueError
        If nothing was read after an append, so that none can be lost.
    """
    rng = stream(seed, "kv-history")
    per_round = -(-operations // rounds)
    free = [(float(rng.exponential(0.05)), client) for client in range(clients)]
    heapq.heapify(free)
    counts = [0] * clients
    drawn: list[tuple[float, float, float, int, str, str, str]] = []
    for number in range(operations):
        if number % per_round == 0:
            counts = [0] * clients
        invoked, client = heapq.heappop(free)
        took = float(rng.exponential(1.0)) + 1e-6
        effect = invoked + took * float(rng.random())
        key = str(int(rng.integers(keys)))
        draw = float(rng.random())
        action = "read" if draw < reads else "write" if draw < reads + puts else "append"
        drawn.append((effect, invoked, invoked + took, client, key, action, f"x {client} {counts[client]} y"))
        counts[client] += 1
        heapq.heappush(free, (invoked + took + 1e-6 + float(rng.exponential(0.05)), client))
    held: dict[str, str] = {}
    made = []
    for _, invoked, returned, client, key, action, value in sorted(drawn):
        result = held.get(key, "") if action == "read" else None
        if action != "read":
            held[key] = value if action == "write" else held.get(key, "") + value
        made.append(
            Operation(
                process=str(client), action=action, key=key, value=None if action == "read" else value, result=result,
                invoked=invoked, returned=returned,
            )
        )  # fmt: skip
    made.sort(key=lambda operation: operation.invoked)
    if lost:
        _lose(made)
    return History(operations=tuple(made), store="kv", initial="")


def _lose(made: list[Operation]) -> None:
    """Take the last append out of a read in the second half that another read surely saw before it."""
    for at in range(len(made) // 2, len(made)):
        read = made[at]
        if read.action != "read" or not read.result:
            continue
        if any(
            other.action == "read" and other.key == read.key and other.result == read.result
            and other.returned is not None and other.returned < read.invoked
            for other in made[:at]
        ):  # fmt: skip
            made[at] = Operation(
                process=read.process, action="read", key=read.key, result=read.result[: read.result[:-1].rfind("x")],
                invoked=read.invoked, returned=read.returned,
            )  # fmt: skip
            return
    raise BadValueError("No append can be lost: nothing was read twice.", where="kv_history", hint="more operations")
