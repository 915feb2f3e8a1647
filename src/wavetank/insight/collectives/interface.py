"""What an analyser of collectives sees, the frames of a window, and what it answers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FAULTS = ("H1", "H2", "H3", "S1", "S2", "S3")
MEANING = {
    "H1": "a rank does not enter the operation",
    "H2": "a rank calls another operation than the others",
    "H3": "all have entered, and a rank or a link stands still",
    "S1": "a rank comes late each time",
    "S2": "a rank or a link transfers slowly",
    "S3": "late ranks and slow transfers at once",
}
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "other")
ABSENT = -1
# A time that is none: no clock is set so far back.
NEVER = -(1 << 62)


class Frames(NamedTuple):
    """Probing frames, one row for each operation that a rank has launched; arrays of shape (rows,).

    Rows of a rank stand together, in the order in which it launched them.  Times are nanoseconds of the rank's own
    clock: only differences within a rank mean anything.

    Parameters
    ----------
    rank, comm, seq : int64
        Who, in which communicator, the how many-th operation of it.
    op, size, dtype, root : int64
        Index in :data:`OPERATIONS`, bytes, a code of the type of elements, the root: all members must agree on them.
    entered_ns, ended_ns : int64
        When the operation began and ended; ``NEVER`` where it has not.
    moved_ns : int64
        When a counter changed last; when it entered, before that.
    polled_ns : int64
        When the loop that waits looked last; ``NEVER`` where the probe does not say.
    posted, received : int64
        Chunks of which sending has begun, and chunks that have arrived.
    wait_ns : int64
        Waiting for peers inside the operation.
    send_ns, recv_ns : int64
        On the wire, without waiting for the peer to be ready.
    sent_bytes, received_bytes : int64
    """

    rank: Ints
    comm: Ints
    seq: Ints
    op: Ints
    size: Ints
    dtype: Ints
    root: Ints
    entered_ns: Ints
    ended_ns: Ints
    moved_ns: Ints
    polled_ns: Ints
    posted: Ints
    received: Ints
    wait_ns: Ints
    send_ns: Ints
    recv_ns: Ints
    sent_bytes: Ints
    received_bytes: Ints

    @property
    def entered(self) -> Bools:
        """Which rows have entered."""
        return self.entered_ns != NEVER

    @property
    def done(self) -> Bools:
        """Which rows have ended."""
        return self.ended_ns != NEVER

    def chosen(self, rows: Bools | Ints) -> Frames:
        """Return some of the rows.

        Parameters
        ----------
        rows : array of bool or of int64
        """
        return Frames(*(column[rows] for column in self))


CLOCKS = ("entered_ns", "ended_ns", "moved_ns", "polled_ns")


@dataclass(frozen=True, eq=False)
class Window:
    """What is known of a job when it is looked at.

    Parameters
    ----------
    frames : Frames
    members : tuple of int64 array
        Ranks of each communicator, in the order of its ring; a communicator's number is its place here.
    now_ns : int64 array, shape (ranks,)
        Each rank's own clock when its frames were read; ``NEVER`` for a rank of which nothing was read.
    trees : frozenset of int
        Communicators whose operations follow a binary tree instead of a ring.
    """

    frames: Frames
    members: tuple[Ints, ...]
    now_ns: Ints
    trees: frozenset[int] = field(default_factory=frozenset)

    def shifted(self, offsets_ns: Ints) -> Window:
        """Return the same window with other clocks.

        Parameters
        ----------
        offsets_ns : int64 array, shape (ranks,)
            Added to every time of a rank.
        """
        moved = {
            name: np.where(column == NEVER, NEVER, column + offsets_ns[self.frames.rank])
            for name in CLOCKS
            for column in [getattr(self.frames, name)]
        }
        now_ns = np.where(self.now_ns == NEVER, NEVER, self.now_ns + offsets_ns)
        return Window(self.frames._replace(**moved), self.members, now_ns, self.trees)

    @functools.cached_property
    def slots(self) -> tuple[Ints, Ints, Ints]:
        """Members of all communicators in a row: communicator and rank of each slot, and where each one begins."""
        sizes = np.array([len(each) for each in self.members], np.int64)
        comm = np.repeat(np.arange(len(self.members)), sizes)
        rank = np.concatenate(self.members) if self.members else np.zeros(0, np.int64)
        return comm, rank, np.concatenate([[0], np.cumsum(sizes)])

    @functools.cached_property
    def slot_of(self) -> Ints:
        """The slot of each row."""
        comm, rank, _ = self.slots
        many = int(self.now_ns.size)
        keys = comm * many + rank
        order = np.argsort(keys, kind="stable")
        wanted = self.frames.comm * many + self.frames.rank
        return order[np.searchsorted(keys[order], wanted)]

    def check(self) -> None:
        """Refuse frames that contradict the communicators.

        Raises
        ------
        BadValueError
            If a rank or a communicator does not exist, or a rank is no member of the communicator of one of its frames.
        """
        frames, many = self.frames, int(self.now_ns.size)
        if len({column.shape for column in frames}) != 1 or frames.rank.ndim != 1:
            raise BadValueError("Columns of frames have one length.", given=[column.shape for column in frames])
        for name, column, limit in (("rank", frames.rank, many), ("communicator", frames.comm, len(self.members))):
            if column.size and not (column.min() >= 0 and column.max() < limit):
                raise BadValueError(f"A frame names a {name} that there is not.", given=int(column.max()),
                                    allowed=f"0 to {limit - 1}")  # fmt: skip
        comm, rank, _ = self.slots
        if rank.size and not (rank.min() >= 0 and rank.max() < many):
            raise BadValueError("A communicator has a member that is no rank.", given=int(rank.max()))
        known = np.unique(comm * many + rank)
        if known.size != rank.size:
            raise BadValueError("A rank is a member of a communicator once.", given="a rank twice")
        strange = ~np.isin(frames.comm * many + frames.rank, known)
        if strange.any():
            row = int(np.flatnonzero(strange)[0])
            raise BadValueError(
                "A rank has a frame of a communicator of which it is no member.",
                given=f"rank {frames.rank[row]}, communicator {frames.comm[row]}",
            )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an analyser says of a window.

    Parameters
    ----------
    fault : str
        One of :data:`FAULTS`; empty where nothing is wrong.
    ranks : tuple of int
        Whom it names, in rising order.
    link : tuple of int
        Sender and receiver where it is a link; empty where it is a rank, or nothing is said.
    comm, seq : int
        The communicator, and of a hang the operation; ``ABSENT`` for none.
    sure : bool
        False where the frames leave the culprit open, as with two halves that contradict each other.
    """

    fault: str = ""
    ranks: tuple[int, ...] = ()
    link: tuple[int, ...] = ()
    comm: int = ABSENT
    seq: int = ABSENT
    sure: bool = True


class FaultFinder(Protocol):
    """What the studies ask of an analyser."""

    def find(self, window: Window) -> Verdict:
        """Return what is wrong in a window, and who it is."""


def by_rank(frames: Frames) -> Frames:
    """Return frames in the order that :class:`Frames` asks for: by rank, then as launched.

    Parameters
    ----------
    frames : Frames
        In any order of ranks; those of one rank are in order.
    """
    if frames.rank.size and (np.diff(frames.rank) < 0).any():
        return frames.chosen(np.argsort(frames.rank, kind="stable"))
    return frames


def joined(parts: Sequence[Frames]) -> Frames:
    """Return frames of several ranks as one.

    Parameters
    ----------
    parts : sequence of Frames
    """
    if not parts:
        return Frames(*(np.zeros(0, np.int64) for _ in Frames._fields))
    return Frames(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
