"""A rank's access to the memory that all share: areas, words that say who has come how far, copies that are counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.machine.atomic_words import publish
from wavetank.serving.exchange.interface import (
    BUFFERS,
    Areas,
    Arrived,
    Batch,
    Exchange,
    Floats,
    Integers,
    Point,
    Program,
    Task,
    Traffic,
    Wait,
    checked,
)
from wavetank.serving.exchange.moves import copy_rows, quantise, weighted_sums

# In the order of a step.  A word has one writer, and holds the last step in which it came there.
STAGES = ("counted", "placed", "computed", "done")
# A cache line each: ranks that wait must not slow down one that writes beside them.
_LINE = 8
_PAGE = 4096
_FAILED = "failed"


def _room(task: Task) -> Areas:
    words = (len(STAGES), task.ranks, task.ranks, _LINE)
    return {"words": (words, "int64"), _FAILED: ((task.ranks, _LINE), "int64")}


def _sizes(areas: Areas) -> dict[str, int]:
    found = {}
    for name, (shape, dtype) in areas.items():
        size = int(np.prod([int(each) for each in shape], dtype=object)) * np.dtype(dtype).itemsize
        found[name] = -(-size // _PAGE) * _PAGE
    return found


def memory_bytes(exchange: Exchange, task: Task) -> int:
    """Return the memory that an exchange needs, of all ranks together, with the words that they wait for.

    Parameters
    ----------
    exchange : Exchange
    task : Task
    """
    return sum(_sizes({**_room(task), **exchange.areas(task)}).values())


def reserved_bytes(exchange: Exchange, task: Task) -> int:
    """Return the bytes that a rank holds for vectors and outputs on their way, at the task's capacities.

    Its part of the shared memory counts, and what it keeps to itself; words and counts are no vectors.
    """
    shared = {name: size for name, size in exchange.areas(task).items() if name.endswith("rows")}
    own = sum(rows * row for rows, row in getattr(exchange, "private_rows", _nothing)(task))
    return sum(_sizes(shared).values()) // task.ranks + own


def encoded_rows(task: Task) -> list[tuple[int, int]]:
    """Return rows and bytes of a row of what :meth:`Port.encoded` keeps where vectors do not travel as they are."""
    return [] if task.wire == "plain" else [(BUFFERS * task.tokens, task.row_bytes)]


def _nothing(task: Task) -> list[tuple[int, int]]:
    return []


class Port:
    """What the program of one rank works with.

    Parameters
    ----------
    memory : uint8 array (n,)
        Shared by all ranks, all zero before the first step; ``memory_bytes`` of it are used.
    exchange : Exchange
    task : Task
    number : int
        This rank.
    members : tuple of int
        The ranks that take part; all by default.  Change it between steps alone, on all ranks alike.
    grain : int
        Rows of a copy after which another rank may go on, where ranks take turns in one process; 0: none.
    """

    def __init__(
        self,
        memory: NDArray[np.uint8],
        exchange: Exchange,
        task: Task,
        number: int,
        *,
        members: tuple[int, ...] | None = None,
        grain: int = 0,
    ) -> None:
        if not 0 <= number < task.ranks:
            raise BadValueError("There is no such rank.", given=number, allowed=f"0 to {task.ranks - 1}")
        needed = memory_bytes(exchange, task)
        if memory.dtype != np.uint8 or memory.size < needed:
            raise BadValueError("The shared memory is too small for the exchange.", given=f"{memory.size} bytes",
                                allowed=f"{needed} bytes or more")  # fmt: skip
        self.task, self.number = task, number
        self.members = tuple(range(task.ranks)) if members is None else members
        self.grain = grain
        self.step = 0
        self.traffic: dict[str, Traffic] = {}
        self._private: dict[str, NDArray[Any]] = {}
        self._areas: dict[str, NDArray[Any]] = {}
        areas, begin = {**_room(task), **exchange.areas(task)}, 0
        for name, size in _sizes(areas).items():
            shape, dtype = areas[name]
            used = int(np.prod(shape)) * np.dtype(dtype).itemsize
            self._areas[name] = memory[begin : begin + used].view(dtype).reshape(shape)
            begin += size
        self.words: Integers = self._areas["words"].reshape(-1)
        self.failed: Integers = self._areas[_FAILED].reshape(-1)

    # -- memory --------------------------------------------------------------------------------------------------------

    def area(self, name: str) -> NDArray[Any]:
        """Return the part of an area that belongs to this step: steps take turns in it."""
        return self._areas[name][self.step % BUFFERS]

    def private(self, name: str, rows: int, width: int, dtype: Any) -> NDArray[Any]:
        """Return memory of this rank alone, for this step; it is kept for the steps that come.

        Parameters
        ----------
        name : str
        rows, width : int
        dtype : dtype
        """
        key = f"{name} {self.step % BUFFERS}"
        held = self._private.get(key)
        if held is None or held.shape[0] < rows:
            held = self._private[key] = np.zeros((rows, width), dtype)
        return held[:rows]

    # -- words ---------------------------------------------------------------------------------------------------------

    def _place(self, stage: str, reader: int, writer: int) -> int:
        return ((STAGES.index(stage) * self.task.ranks + reader) * self.task.ranks + writer) * _LINE

    def signal(self, stage: str) -> Program[None]:
        """Say to each rank that this one has come to a stage of the step: one that joins later reads it, too."""
        yield Point(stage, self.step)
        for reader in range(self.task.ranks):
            publish(self.words, self._place(stage, reader, self.number), self.step)
            if self.grain:
                yield Point(stage, self.step)

    def wait(self, stage: str, back: int = 0) -> Program[None]:
        """Wait until all members have come to a stage, of this step or of the one ``back`` before it."""
        places = [self._place(stage, self.number, writer) for writer in self.members]
        yield Wait(stage, self.members, self.step - back, np.array(places, np.int64))

    def regroup(self, members: tuple[int, ...], step: int) -> None:
        """Go on among other ranks, as if all steps before one had been done: one that joins does the same.

        Parameters
        ----------
        members : tuple of int
            The ranks that take part from now on, the same on all of them.
        step : int
            The next step, later than any that a rank had begun, the same on all of them.  Nobody may be within a step
            when the first rank regroups: a step that was given up is done again under the new number.  The process of
            a rank that is left out must have ended: one that was merely stopped would go on writing, into windows of
            the new steps.

        Raises
        ------
        BadValueError
            If this rank is none of the members, or had begun the step: words and rows of it would be taken for new.
        """
        if self.number not in members:
            raise BadValueError("A rank regroups with those that it is one of.", given=members, where="members",
                                allowed=f"rank {self.number} among them")  # fmt: skip
        if step <= self.step:
            raise BadValueError("Ranks regroup at a step that none had begun.", given=step, where="step",
                                allowed=f"{self.step + 1} or later")  # fmt: skip
        self.members = members
        for stage in STAGES:
            for reader in range(self.task.ranks):
                publish(self.words, self._place(stage, reader, self.number), step - 1)
        publish(self.failed, self.number * _LINE, 0)
        self.step = step - 1

    def begin(self, batch: Batch) -> Batch:
        """Begin the next step, and return the checked batch.

        Raises
        ------
        BadValueError
            If the batch does not fit the task, or a token goes to a rank that does not take part.
        """
        batch = checked(batch, self.task)
        owners = np.unique(batch.slots[batch.slots >= 0] // self.task.slots)
        away = [int(owner) for owner in owners if owner not in self.members]
        if away:
            raise BadValueError(
                "A token goes to a rank that does not take part.",
                given=f"rank {away[0]}",
                allowed=f"one of {self.members}",
                hint="take slots from the table of this epoch",
            )
        self.step += 1
        return batch

    def fail(self) -> None:
        """Say to all that this rank does not go on, so that none waits for it."""
        publish(self.failed, self.number * _LINE, 1)

    def failures(self) -> tuple[int, ...]:
        """Return the members that said so."""
        return tuple(member for member in self.members if self.failed[member * _LINE])

    # -- copies --------------------------------------------------------------------------------------------------------

    def move(
        self, phase: str, source: Integers, from_rows: Integers, target: Integers, to_rows: Integers, far: int = 0
    ) -> Program[None]:
        """Copy rows and count their bytes.

        Parameters
        ----------
        phase : str
            ``dispatch`` or ``combine``.
        source, target : int64 array (rows, words)
        from_rows, to_rows : int64 array (n,)
            None of them below 0, or both.
        far : int
            How many of them go between ranks.
        """
        size = source.shape[1] * 8
        rows = int(np.count_nonzero(to_rows >= 0))
        counted = self.traffic.setdefault(phase, Traffic())
        counted.read_bytes += rows * size
        counted.written_bytes += rows * size
        counted.far_bytes += far * size
        if not self.grain:
            copy_rows(source, from_rows, target, to_rows)
            return
        for begin in range(0, to_rows.size, self.grain):
            part = slice(begin, begin + self.grain)
            copy_rows(source, from_rows[part], target, to_rows[part])
            yield Point(f"{phase} copy", self.step)

    def add_up(self, outputs: Floats, places: Integers, gates: Floats, sums: Floats, far: int = 0) -> Program[None]:
        """Write weighted sums of rows, and count the bytes that are read for them; the sums are no copies of rows.

        Parameters
        ----------
        outputs : float array (rows, hidden)
        places, gates, sums
            As for :func:`~wavetank.serving.exchange.moves.weighted_sums`.
        far : int
            How many rows are another rank's.
        """
        counted = self.traffic.setdefault("combine", Traffic())
        counted.read_bytes += int(np.count_nonzero(places >= 0)) * self.task.output_bytes
        counted.far_bytes += far * self.task.output_bytes
        step = self.grain or max(1, sums.shape[0])
        for begin in range(0, sums.shape[0], step):
            part = slice(begin, begin + step)
            weighted_sums(outputs, places[part], gates[part], sums[part])
            if self.grain:
                yield Point("combine sums", self.step)

    def encoded(self, values: Floats, room: Integers | None = None) -> Integers:
        """Return vectors as they travel: the same memory where they are plain, else whole numbers and their scales.

        Parameters
        ----------
        values : float array (tokens, hidden)
        room : int64 array (tokens, words), optional
            Where they are to stand, even if they are plain: then that copy is counted.
        """
        task, words = self.task, self.task.row_bytes // 8
        if task.wire == "plain":
            rows = values.view(np.int64).reshape(values.shape[0], words)
            if room is None:
                return rows
            every = np.arange(values.shape[0], dtype=np.int64)
            for _ in self.move("dispatch", rows, every, room, every):
                # Nobody else sees this memory yet: there is no other order to try.
                continue
            return room
        room = self.private("encoded", values.shape[0], words, np.int64) if room is None else room
        quantise(values, room.view(np.int8), room.view(np.float64))
        return room

    def decoded(self, rows: Integers) -> Floats:
        """Return vectors that travelled as numbers of the task's type."""
        task = self.task
        if task.wire == "plain":
            return rows.view(task.dtype)
        whole = rows.view(np.int8)[:, : task.hidden]
        return (whole * rows[:, -1:].view(np.float64)).astype(task.dtype)

    def run_experts(self, arrived: Arrived, experts: Mapping[int, Any]) -> Program[None]:
        """Let each expert compute its rows.

        Parameters
        ----------
        arrived : Arrived
        experts : mapping of int to callable
            By slot of this rank: rows of vectors to rows of outputs.
        """
        for piece in arrived.pieces:
            yield Point("experts", self.step)
            piece.output[:] = experts[piece.slot](self.decoded(piece.given))
