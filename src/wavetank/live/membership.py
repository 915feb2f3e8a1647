"""Which ranks are still there, and whether what they did together counts: decided in one place, once.

Ranks that worked together vote whether all went well.  When every living member has voted, they get one decision: the
work counts (*commit*), or it does not, and the living members go on in the next *epoch*.  A rank that has not voted for
too long is overdue: the launcher ends it, so that nobody waits for it and it cannot come back with an old state.
This takes the place of the agreement of fault-tolerant MPI (ULFM), with the launcher as the one that cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wavetank.errors import BadValueError


@dataclass(frozen=True)
class Decision:
    """The answer that all living members of an epoch get.

    Parameters
    ----------
    commit : bool
        Whether the work counts: all who are alive said that it went well.
    epoch : int
        Epoch from now on; it rises whenever the members change or the work did not go well.
    members : tuple of int
        Ranks of the epoch, in rising order.
    lost : tuple of int
        Ranks that were members before and are not any more.
    """

    commit: bool
    epoch: int
    members: tuple[int, ...]
    lost: tuple[int, ...]


@dataclass
class Membership:
    """The living ranks of a job and their votes.

    Parameters
    ----------
    size : int
        Ranks 0 to size - 1 are the first members.
    patience_s : float
        How long after the first vote of a round the others may take.
    """

    size: int
    patience_s: float = 10.0
    epoch: int = 0
    members: tuple[int, ...] = field(init=False)
    _gone: set[int] = field(default_factory=set)
    _votes: dict[int, bool] = field(default_factory=dict)
    _first_s: float | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise BadValueError("A job has at least one rank.", given=self.size, allowed="1 or more")
        self.members = tuple(range(self.size))

    @property
    def alive(self) -> tuple[int, ...]:
        """Return the members that are not known to be gone."""
        return tuple(rank for rank in self.members if rank not in self._gone)

    def vote(self, rank: int, well: bool, now_s: float) -> None:
        """Take down what a member says of the work of this epoch; who is gone or was ended has no vote."""
        if rank in self.alive:
            self._votes[rank] = well
            self._first_s = now_s if self._first_s is None else self._first_s

    def lose(self, rank: int) -> None:
        """Take notice that a rank is gone: its vote is void, as it may have come before the work was whole."""
        self._gone.add(rank)
        self._votes.pop(rank, None)

    def overdue(self, now_s: float) -> tuple[int, ...]:
        """Return the members that the others have waited for too long."""
        if self._first_s is None or now_s - self._first_s < self.patience_s:
            return ()
        return tuple(rank for rank in self.alive if rank not in self._votes)

    def decide(self) -> Decision | None:
        """Return the decision once all living members have voted, and begin the next round; None before."""
        alive = self.alive
        if not alive or any(rank not in self._votes for rank in alive):
            return None
        # A member that is gone had given its part to all who are alive, or one of them would not have said well.
        commit = all(self._votes.values())
        lost = tuple(rank for rank in self.members if rank in self._gone)
        if lost or not commit:
            self.epoch += 1
        self.members = alive
        self._votes.clear()
        self._first_s = None
        return Decision(commit, self.epoch, self.members, lost)
