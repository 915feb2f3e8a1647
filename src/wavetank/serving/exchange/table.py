"""Which experts are where, and which ranks take part: tables that stay where they are in memory, with an epoch.

Who holds the arrays sees a change without being given new ones.  Ranks change them between two steps, all alike;
the epoch rises with each change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.exchange.interface import Integers


class ExpertTable:
    """Experts and the slots that hold them.

    Parameters
    ----------
    experts : int
        How many there are.
    ranks : int
    slots : int
        Places for experts on each rank.
    replicas : int
        Slots that may hold the same expert at most.

    Attributes
    ----------
    active : int64 array (ranks,)
        1 for a rank that takes part.
    expert_of : int64 array (ranks * slots,)
        The expert of each slot; -1: none.
    slots_with : int64 array (experts, replicas)
        The slots of active ranks with each expert, in rising order; -1 behind them.
    replicas : int64 array (experts,)
        How many these are.
    """

    def __init__(self, experts: int, ranks: int, slots: int, replicas: int = 1) -> None:
        for name, value in (("experts", experts), ("ranks", ranks), ("slots", slots), ("replicas", replicas)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
                raise BadValueError("A table of experts has other sizes.", given=value, allowed="1 or more", where=name)
        if experts > ranks * slots:
            raise BadValueError("There are more experts than slots.", given=experts, allowed=f"{ranks * slots} slots",
                                hint="raise slots or ranks")  # fmt: skip
        self.ranks, self.slots = ranks, slots
        self._epoch = np.zeros(1, np.int64)
        self.active = np.ones(ranks, np.int64)
        self.expert_of = np.full(ranks * slots, -1, np.int64)
        self.slots_with = np.full((experts, replicas), -1, np.int64)
        self.replicas = np.zeros(experts, np.int64)

    @property
    def epoch(self) -> int:
        """Return how often the table has changed."""
        return int(self._epoch[0])

    @property
    def members(self) -> tuple[int, ...]:
        """Return the ranks that take part."""
        return tuple(int(rank) for rank in np.flatnonzero(self.active))

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the experts that no active rank has."""
        return tuple(int(expert) for expert in np.flatnonzero(self.replicas == 0))

    def change(self, *, active: Sequence[int] | None = None, expert_of: Sequence[int] | Integers | None = None) -> None:
        """Change who takes part or what slots hold, in place.

        Parameters
        ----------
        active : sequence of int (ranks,)
            0 or 1 each.
        expert_of : sequence of int (ranks * slots,)

        Raises
        ------
        BadValueError
            If a rank is neither in nor out, a slot holds no expert that there is, or an expert is in more slots of
            active ranks than the table has room for.  Nothing is changed then.
        """
        given = [np.asarray(old if new is None else new) for old, new in
                 ((self.active, active), (self.expert_of, expert_of))]  # fmt: skip
        if any(each.dtype.kind not in "biu" for each in given):
            raise BadValueError("A table of experts holds whole numbers.", given=[str(each.dtype) for each in given])
        now, held = (each.astype(np.int64) for each in given)
        if now.shape != self.active.shape or not np.isin(now, (0, 1)).all() or not now.any():
            raise BadValueError("Each rank takes part or not, and one does at least.", given=list(now),
                                allowed=f"{self.ranks} times 0 or 1", where="active")  # fmt: skip
        if held.shape != self.expert_of.shape or held.min() < -1 or held.max() >= self.replicas.size:
            raise BadValueError("A slot holds one of the experts, or none.", given=list(held[:32]), where="expert_of",
                                allowed=f"{self.expert_of.size} of -1 to {self.replicas.size - 1}")  # fmt: skip
        there = np.where(np.repeat(now, self.slots) == 1, held, -1)
        counts = np.bincount(there[there >= 0], minlength=self.replicas.size)
        if counts.max() > self.slots_with.shape[1]:
            raise BadValueError("An expert is in more slots than the table has room for.", given=int(counts.max()),
                                allowed=f"{self.slots_with.shape[1]}",
                                where=f"expert {int(counts.argmax())}")  # fmt: skip
        self.active[:], self.expert_of[:], self.replicas[:] = now, held, counts
        self.slots_with[:] = -1
        following = np.zeros(self.replicas.size, np.int64)
        for slot in np.flatnonzero(there >= 0):
            expert = there[slot]
            self.slots_with[expert, following[expert]] = slot
            following[expert] += 1
        self._epoch[0] += 1

    def slots_of(self, experts: Integers, rank: int) -> Integers:
        """Return a slot for each expert: of several, the rank's own, else another one for each token in turn.

        Parameters
        ----------
        experts : int64 array (tokens, choices)
        rank : int
            Who asks.

        Raises
        ------
        BadValueError
            If there is no such expert.
        WavetankError
            If no active rank has one.
        """
        if experts.size == 0:
            return np.empty(experts.shape, np.int64)
        if experts.min() < 0 or experts.max() >= self.replicas.size:
            raise BadValueError("There is no such expert.", given=f"{experts.min()} to {experts.max()}",
                                allowed=f"0 to {self.replicas.size - 1}")  # fmt: skip
        lost = np.unique(experts[self.replicas[experts] == 0])
        if lost.size:
            raise WavetankError("No rank that takes part has an expert that tokens go to.", given=f"expert {lost[0]}",
                                hint="load it into a slot of an active rank and change the table")  # fmt: skip
        turns = (np.arange(experts.shape[0])[:, None] + rank) % self.replicas[experts]
        found = self.slots_with[experts, turns]
        own = np.full(self.replicas.size, -1, np.int64)
        here = self.expert_of[rank * self.slots : (rank + 1) * self.slots]
        if self.active[rank]:
            for place in np.flatnonzero(here >= 0)[::-1]:
                own[here[place]] = rank * self.slots + place
        return np.where(own[experts] >= 0, own[experts], found)


def contiguous(experts: int, ranks: int) -> ExpertTable:
    """Return the table in which each rank has the same number of experts in their order, or one more or less.

    Parameters
    ----------
    experts : int
        Fewer than ranks are possible: some ranks then have none.
    ranks : int
    """
    slots = -(-experts // ranks) if ranks > 0 else 0
    table = ExpertTable(experts, ranks, slots)
    held: NDArray[np.int64] = np.full((ranks, slots), -1, np.int64)
    for rank, part in enumerate(np.array_split(np.arange(experts), ranks)):
        held[rank, : part.size] = part
    table.change(expert_of=held.reshape(-1))
    return table
