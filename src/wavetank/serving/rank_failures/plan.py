"""Which weights go where after a fault: lost experts into free slots, from the cheapest source, as early as can be.

An expert that a live rank holds needs no copy.  Every other one is read from the cheapest source that has it: a process
that does not take part yet and holds it, the host's memory, the disk.  The largest come first, each to the rank where
it is done earliest (LPT).  All is counted in whole numbers and ties go to the lower rank, so that every survivor that
knows the same makes the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.interface import InfeasibleError, Integers, Plan, Rates, Transfer


def spread(experts: int, ranks: int, slots: int, replicas: int) -> Integers:
    """Return who holds what at first: replica k of expert e on rank (e + k) modulo the ranks.

    Parameters
    ----------
    experts, ranks, slots : int
        Slots are those of one rank.
    replicas : int
        Of each expert, on different ranks: at most as many as there are ranks.

    Returns
    -------
    int64 array (ranks * slots,)

    Raises
    ------
    BadValueError
        If a rank lacks slots, or replicas would share a rank.
    """
    if not 1 <= replicas <= ranks:
        raise BadValueError("Replicas of an expert are on different ranks.", given=replicas,
                            allowed=f"1 to {ranks}", where="replicas")  # fmt: skip
    held: list[list[int]] = [[] for _ in range(ranks)]
    for copy in range(replicas):
        for expert in range(experts):
            held[(expert + copy) % ranks].append(expert)
    most = max(map(len, held))
    if most > slots:
        raise BadValueError("The experts and their replicas do not fit the slots.", given=f"{most} for a rank",
                            allowed=f"{slots} slots", hint="raise slots or ranks, or lower replicas")  # fmt: skip
    found = np.full((ranks, slots), -1, np.int64)
    for rank, here in enumerate(held):
        found[rank, : len(here)] = here
    return found.reshape(-1)


def coverage_plan(
    held: Integers, active: Sequence[int] | Integers, sizes: Sequence[int] | Integers, *, rates: Rates,
    host: bool = True, disk: bool = True, standby: Sequence[int] = (),
) -> Plan:  # fmt: skip
    """Return how every expert gets a live slot again.

    Parameters
    ----------
    held : int64 array (ranks * slots,)
        The expert whose weights each slot holds; -1: none.  What slots of dead ranks held does not matter.
    active : sequence of int (ranks,)
        1 for a rank that takes part.
    sizes : sequence of int (experts,)
        Bytes of each expert's weights.
    rates : Rates
    host, disk : bool
        Whether all weights are in the hosts' memory, and on the disk.
    standby : sequence of int
        Ranks that do not take part, and whose weights can be read nevertheless.

    Raises
    ------
    BadValueError
        If the arrays do not fit each other, or no rank is active.
    InfeasibleError
        If an expert has no source or no slot; it names these experts.
    """
    alive, weights = np.asarray(active, np.int64), [int(size) for size in sizes]
    ranks = alive.size
    if not alive.any() or not np.isin(alive, (0, 1)).all() or held.size % ranks or min(weights, default=0) < 1:
        raise BadValueError("A plan needs live ranks, slots of each, and the bytes of each expert.",
                            given=f"{alive.sum()} of {ranks} ranks, {held.size} slots, {len(weights)} experts",
                            allowed="at least one active rank, and sizes of 1 byte or more")  # fmt: skip
    if held.size and not -1 <= held.min() <= held.max() < len(weights):
        raise BadValueError("A slot holds one of the experts, or none.", given=f"{held.min()} to {held.max()}",
                            allowed=f"-1 to {len(weights) - 1}", where="held")  # fmt: skip
    slots = held.size // ranks
    after = np.where(np.repeat(alive, slots) == 1, held, -1).astype(np.int64)
    counts = np.bincount(after[after >= 0], minlength=len(weights))
    lost = sorted(np.flatnonzero(counts == 0).tolist(), key=lambda expert: (-weights[expert], expert))
    waiting = {
        int(held[slot]): slot for rank in sorted(standby, reverse=True) if not alive[rank]
        for slot in range(rank * slots, (rank + 1) * slots) if held[slot] >= 0
    }  # fmt: skip
    without = [] if host or disk else [expert for expert in lost if expert not in waiting]
    if without:
        raise InfeasibleError("Weights of experts are nowhere any more.", experts=tuple(sorted(without)),
                              given=f"experts {sorted(without)}", allowed="a live replica, a host copy or the disk",
                              hint="keep replicas, host copies or a file")  # fmt: skip
    free = _free(after, alive, slots, counts)
    if len(lost) > len(free):
        short = tuple(sorted(lost[len(free) :]))
        raise InfeasibleError("The live ranks have too few slots for all experts.", experts=short,
                              given=f"experts {list(short)}", allowed=f"{int(alive.sum())} ranks of {slots} slots",
                              hint="raise slots, or wait for a replacement")  # fmt: skip
    busy: dict[tuple[str, int], int] = {}
    transfers, ends = [], 0
    for expert in lost:
        source = "peer" if expert in waiting else "host" if host else "disk"
        links = {"peer": [("sends", waiting.get(expert, 0) // slots)], "host": [], "disk": [("disk", 0)]}[source]
        took, best = rates.picoseconds(source, weights[expert]), (0, -1)
        for place, slot in enumerate(free):
            every = [*links, ("takes", slot // slots)]
            end = max(busy.get(link, 0) for link in every) + took
            if best[1] < 0 or end < best[0]:
                best = (end, place)
        end, slot = best[0], free.pop(best[1])
        for link in (*links, ("takes", slot // slots)):
            busy[link] = end
        after[slot], ends = expert, max(ends, end)
        transfers.append(Transfer(expert, slot, source, waiting.get(expert, -1) if source == "peer" else -1))
    return Plan(after, tuple(transfers), ends)


def _free(after: Integers, alive: Integers, slots: int, counts: Integers) -> list[int]:
    """Return the slots that may be filled: empty ones first, then those of replicas that are not the last."""
    live = np.flatnonzero(np.repeat(alive, slots) == 1).tolist()
    empty, left = [slot for slot in live if after[slot] < 0], counts.copy()
    surplus = []
    for slot in sorted((slot for slot in live if after[slot] >= 0), key=lambda slot: (-counts[after[slot]], slot)):
        if left[after[slot]] > 1:
            left[after[slot]] -= 1
            surplus.append(slot)
    return empty + surplus


def trimmed(expert_of: Integers, ranks: int, replicas: int, home: Integers) -> Integers:
    """Return a map without the replicas that only a fault had made necessary.

    Parameters
    ----------
    expert_of : int64 array (ranks * slots,)
        Of active ranks; -1 elsewhere.
    ranks : int
    replicas : int
        How many of an expert may stay at least; those at home stay in any case.
    home : int64 array (ranks * slots,)
        Who holds what when nothing is wrong.
    """
    slots, found = expert_of.size // ranks, expert_of.copy()
    counts = np.bincount(found[found >= 0], minlength=int(home.max()) + 1)
    at_home = {(slot // slots, int(home[slot])) for slot in np.flatnonzero(home >= 0).tolist()}
    for slot in np.flatnonzero(found >= 0)[::-1].tolist():
        expert = int(found[slot])
        if counts[expert] > replicas and (slot // slots, expert) not in at_home:
            found[slot] = -1
            counts[expert] -= 1
    return found


def rebalanced(plan: Plan, ranks: int, loads: Sequence[int] | Integers, most: int) -> Plan:
    """Return a plan with more replicas of busy experts, as long as each lowers the load of the busiest rank.

    The load of an expert is shared by its replicas; only live ranks take part, which are those that hold anything.

    Parameters
    ----------
    plan : Plan
    ranks : int
    loads : sequence of int (experts,)
        Tokens that chose each.
    most : int
        Transfers that may be added.
    """
    after, added = plan.expert_of.copy(), []
    slots = after.size // ranks
    live = [rank for rank in range(ranks) if (after[rank * slots : (rank + 1) * slots] >= 0).any()]
    scale = 27720  # Every number of replicas up to 12 divides it, so that shares are whole.
    given = [int(load) * scale for load in loads]
    for _ in range(most):
        now = _busiest(after, slots, live, given)
        best: tuple[int, int, int] | None = None
        counts = np.bincount(after[after >= 0], minlength=len(given))
        here = after[now[1] * slots : (now[1] + 1) * slots]
        for expert in sorted({int(each) for each in here if each >= 0}, key=lambda each: -given[each] // counts[each]):
            for rank in live:
                block = after[rank * slots : (rank + 1) * slots]
                empty = np.flatnonzero(block < 0)
                if not empty.size or (block == expert).any():
                    continue
                slot = rank * slots + int(empty[0])
                after[slot] = expert
                load = _busiest(after, slots, live, given)[0]
                after[slot] = -1
                if load < now[0] and (best is None or load < best[0]):
                    best = (load, expert, slot)
        if best is None:
            break
        _, expert, slot = best
        added.append(Transfer(expert, slot, "peer", int(np.flatnonzero(after == expert)[0])))
        after[slot] = expert
    return Plan(after, (*plan.transfers, *added), plan.picoseconds)


def _busiest(after: Integers, slots: int, live: Sequence[int], given: Sequence[int]) -> tuple[int, int]:
    counts = np.bincount(after[after >= 0], minlength=len(given)).tolist()
    loads = [
        (sum(given[each] // counts[each] for each in after[rank * slots : (rank + 1) * slots].tolist() if each >= 0),
         -rank) for rank in live
    ]  # fmt: skip
    load, rank = max(loads)
    return load, -rank
