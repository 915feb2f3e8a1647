"""What a scheme of an all-reduce says: what is summed, what travels, and what that costs.

A scheme turns a rank's numbers into something that can be summed, says how a part of it travels and how what arrived is
added, and turns the total back.  :mod:`~wavetank.training.compression.ring` does the rest, the same for all schemes.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.training.compression.frames import Speeds

Floats = NDArray[np.float32]

# What a codec does to numbers, each of four bytes; ``costs`` says how fast.
WORK = (
    "quantise", "restore", "add", "cast", "choose", "pack", "unpack", "block-pack", "block-unpack", "rans-encode",
    "rans-decode", "sz-encode", "sz-decode", "zfp-encode", "zfp-decode",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be summed.

    Parameters
    ----------
    size : int
        Ranks.
    shape : tuple of int
        Of the numbers, the same on all ranks; neighbours along the last two dimensions are alike, if any.
    bound : float
        Largest error of one rank's number; the sum may be off by ``size`` times as much.
    levels : int
        0: numbers are quantised by the bound; otherwise by chance, to that number of multiples of a unit at most.
    bucket : int
        Numbers that share a unit.
    speeds : Speeds
        Of the link and the codecs, by which modes of frames are chosen.
    times : float
        How many times as large the message really is, where this one stands for a larger one like it.
    seed : int
        Of what is left to chance.
    """

    size: int
    shape: tuple[int, ...]
    bound: float
    levels: int = 0
    bucket: int = 16384
    speeds: Speeds = field(default_factory=Speeds)
    times: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 1 << 20:
            raise BadValueError("An all-reduce is one of some ranks.", given=self.size, allowed="1 to 2^20",
                                where="size")  # fmt: skip
        if not 1.0 <= self.times < np.inf:
            raise BadValueError("A message stands for one that is no smaller.", given=self.times, allowed="1 or more",
                                where="times")  # fmt: skip
        wholes = (("shape", self.shape, 0), ("levels", (self.levels,), 0), ("bucket", (self.bucket,), 1))
        for name, given, low in wholes:
            if not all(isinstance(each, int | np.integer) and low <= each < 1 << 31 for each in given):
                raise BadValueError("A task has whole numbers.", given=given, allowed=f"{low} to 2^31 - 1",
                                    where=name)  # fmt: skip

    @property
    def count(self) -> int:
        """Numbers of a rank."""
        return math.prod(int(each) for each in self.shape)

    @property
    def key(self) -> int:
        """What all ranks must have in common for their integers to be summed, 32 bits."""
        same = self.size, [int(each) for each in self.shape], float(self.bound), int(self.levels), int(self.bucket)
        return zlib.crc32(repr(same).encode())

    @property
    def parts(self) -> list[slice]:
        """A part for each rank: of whole rows where there are enough of them, else of numbers."""
        row = self.shape[-1] if len(self.shape) > 1 else 1
        if row < 1 or self.count // row < self.size:
            row = 1
        rows = self.count // row
        return [slice(i * rows // self.size * row, (i + 1) * rows // self.size * row) for i in range(self.size)]

    def rows(self, at: slice) -> tuple[int, ...]:
        """Return the shape of a part: whole rows, or one row.

        Parameters
        ----------
        at : slice
        """
        row = self.shape[-1] if len(self.shape) > 1 else 0
        length = at.stop - at.start
        return (length // row, row) if row and at.start % row == 0 and length % row == 0 else (length,)


class Work:
    """What codecs have done: numbers by kind of work, and when.

    ``first`` is what is done to all numbers before the first message, ``before`` what the next message waits for,
    ``after`` what it does not wait for.
    """

    def __init__(self) -> None:
        self.first: Counter[str] = Counter()
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()

    def did(self, kind: str, numbers: int, when: str = "before") -> None:
        """Count work.

        Parameters
        ----------
        kind : str
            One of :data:`WORK`.
        numbers : int
        when : str
            ``first``, ``before`` or ``after``.
        """
        if kind not in WORK or when not in ("first", "before", "after"):
            raise BadValueError("There is no such work of a codec.", given=f"{kind}, {when}", allowed=WORK)
        if numbers:
            getattr(self, when)[kind] += numbers

    def taken(self) -> Work:
        """Return what was counted so far, and count anew."""
        found = Work()
        found.first, found.before, found.after = self.first, self.before, self.after
        self.first, self.before, self.after = Counter(), Counter(), Counter()
        return found


class Message(NamedTuple):
    """What a rank sends in one round, while it receives as much from as far on the other side.

    Parameters
    ----------
    distance : int
        How many places further on the rank is to which it goes.
    data : bytes
    numbers : int
        How many numbers it stands for; 0 for what is no part of the sum.
    """

    distance: int
    data: bytes
    numbers: int


# Yields messages and is sent the data of those that arrive; returns the sum.
Rounds = Generator[Message, bytes, Floats]


class Collective(Protocol):
    """Sums the numbers of all ranks."""

    def rounds(self, values: Floats, place: int, task: Task, work: Work) -> Rounds:
        """Run one rank's part of an all-reduce.

        Parameters
        ----------
        values : float32 array (n,)
        place : int
            The rank's number.
        task : Task
        work : Work
            Counts what codecs do.
        """
        ...


class Scheme(Protocol):
    """Says what travels around a ring.

    ``lossless`` says that what is decoded is what was encoded, to the last bit.
    """

    lossless: ClassVar[bool]

    def begin(self, values: Floats, place: int, task: Task, work: Work) -> Generator[Message, bytes, Any]:
        """Return what is summed, an array (n,) of its own; it may send messages before."""
        ...

    def encode(self, part: Any, at: slice, task: Task, work: Work, *, last: bool) -> bytes:
        """Return what stands for the part ``at`` of all; ``last`` says that it is a whole sum."""
        ...

    def decode(self, data: bytes, at: slice, task: Task, work: Work, *, when: str) -> Any:
        """Return the part that data stand for; ``when`` is that of :meth:`Work.did`."""
        ...

    def end(self, total: Any, task: Task, work: Work) -> Floats:
        """Return the numbers of the total."""
        ...
