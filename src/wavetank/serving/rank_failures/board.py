"""The memory that all ranks of an instance share: who is fenced, who is alive, letters, and the weights of all slots.

Every word has one writer.  Letters from one rank to another stand in a ring that nobody waits for: a reader that is
dead is written over, and one that fell behind by a whole ring has been fenced long before.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.machine.atomic_words import first_below, publish
from wavetank.serving.rank_failures.agreement import Apply, Join, Propose, Ready, Refused
from wavetank.serving.rank_failures.interface import Integers

LINE = 8
_PAGE = 4096
_RING = 64
_LETTERS = msgspec.msgpack.Decoder(Propose | Ready | Refused | Apply | Join)
_CHUNK = 1024


def _areas(ranks: int, slots: int, experts: int, numbers: int) -> dict[str, tuple[tuple[int, ...], str]]:
    letter = 64 + 2 * ranks * slots
    return {
        # By the launcher: how many processes in a rank's place have been fenced.
        "fences": ((ranks, LINE), "int64"),
        # By the launcher: requests that are not answered.
        "work": ((1, LINE), "int64"),
        # By each rank: a sign of life, and the epoch in which all its weights are there.
        "beats": ((ranks, LINE), "int64"),
        "whole": ((ranks, LINE), "int64"),
        # To, from.
        "heads": ((ranks, ranks, LINE), "int64"),
        "letters": ((ranks, ranks, _RING, letter), "int64"),
        # By each rank; the last number is a check of the others.
        "weights": ((ranks, slots, numbers + 1), "float64"),
        # By the launcher.
        "host": ((experts, numbers), "float64"),
    }


def board_bytes(ranks: int, slots: int, experts: int, numbers: int) -> int:
    """Return the memory of a board.

    Parameters
    ----------
    ranks, slots : int
        Slots are those of one rank.
    experts, numbers : int
        How many experts there are, and the float64 numbers of each.
    """
    areas = _areas(ranks, slots, experts, numbers)
    return sum(-(-int(np.prod(shape)) * 8 // _PAGE) * _PAGE for shape, _ in areas.values())


def check_of(weights: NDArray[np.float64]) -> float:
    """Return a number that other weights would hardly have."""
    return float(zlib.crc32(weights.tobytes()))


class Board:
    """Access to the shared memory of an instance.

    Parameters
    ----------
    memory : uint8 array (n,)
        All zero at first; :func:`board_bytes` of it are used.
    ranks, slots, experts, numbers : int
        As for :func:`board_bytes`.
    """

    def __init__(self, memory: NDArray[np.uint8], ranks: int, slots: int, experts: int, numbers: int) -> None:
        self.ranks, self.slots = ranks, slots
        found, begin = {}, 0
        for name, (shape, dtype) in _areas(ranks, slots, experts, numbers).items():
            size = int(np.prod(shape)) * 8
            found[name] = memory[begin : begin + size].view(dtype).reshape(shape)
            begin += -(-size // _PAGE) * _PAGE
        self.fences: Integers = found["fences"].reshape(-1)
        self.work: Integers = found["work"].reshape(-1)
        self.beats: Integers = found["beats"].reshape(-1)
        self.whole: Integers = found["whole"].reshape(-1)
        self.heads: Integers = found["heads"].reshape(-1)
        self.letters, self.weights, self.host = found["letters"], found["weights"], found["host"]

    # -- words ---------------------------------------------------------------------------------------------------------

    def fenced(self, rank: int) -> int:
        """Return how many processes in a rank's place are fenced."""
        return int(self.fences[rank * LINE])

    def fence(self, rank: int, count: int) -> None:
        """Say to all that a rank's first ``count`` processes will never do anything again."""
        publish(self.fences, rank * LINE, count)

    def beat(self, rank: int) -> None:
        """Give a sign of life."""
        publish(self.beats, rank * LINE, int(self.beats[rank * LINE]) + 1)

    def complete(self, rank: int, epoch: int) -> None:
        """Say that a rank has all its weights of an epoch."""
        publish(self.whole, rank * LINE, epoch)

    def incomplete(self, members: tuple[int, ...], epoch: int) -> int:
        """Return a member that does not have all its weights of an epoch yet, or -1."""
        places = np.array(members, np.int64) * LINE
        missing = first_below(self.whole, places, epoch, 1)
        return members[missing] if missing >= 0 else -1

    # -- letters -------------------------------------------------------------------------------------------------------

    def send(self, sender: int, incarnation: int, to: int, message: Any) -> None:
        """Write a letter.

        Parameters
        ----------
        sender, incarnation : int
            Which of the processes in the sender's place it is, from 0.
        to : int
        message : Message
        """
        place = (to * self.ranks + sender) * LINE
        head, data = int(self.heads[place]), msgspec.msgpack.encode(message)
        room = self.letters[to, sender, head % _RING]
        if len(data) > (room.size - 2) * 8:
            raise WavetankError("A letter is too long for its place.", given=f"{len(data)} bytes")
        room[0], room[1] = incarnation, len(data)
        room[2:].view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        publish(self.heads, place, head + 1)

    def head(self, to: int, sender: int) -> int:
        """Return how many letters a rank has been written by another one."""
        return int(self.heads[(to * self.ranks + sender) * LINE])

    def read(self, to: int, sender: int, number: int) -> tuple[int, Any]:
        """Return a letter and which of the sender's processes wrote it.

        Parameters
        ----------
        to, sender, number : int
            Letters are numbered from 0.

        Raises
        ------
        WavetankError
            If it has been written over.
        """
        place = np.array([(to * self.ranks + sender) * LINE], np.int64)
        first_below(self.heads, place, number + 1, 1)
        room = self.letters[to, sender, number % _RING]
        incarnation, message = int(room[0]), _LETTERS.decode(room[2:].view(np.uint8)[: int(room[1])].tobytes())
        if self.head(to, sender) - number >= _RING:
            raise WavetankError("A rank did not read its letters in time.", given=f"{number} from rank {sender}")
        return incarnation, message

    # -- weights -------------------------------------------------------------------------------------------------------

    def put(self, rank: int, slot: int, weights: NDArray[np.float64], look: Callable[[], None] | None = None) -> None:
        """Copy weights into a slot, with their check.

        Parameters
        ----------
        rank, slot : int
        weights : float64 array (numbers,)
        look : callable, optional
            Called between parts; what it raises ends the copy.
        """
        room = self.weights[rank, slot]
        room[-1] = np.nan
        for begin in range(0, weights.size, _CHUNK):
            room[begin : min(begin + _CHUNK, weights.size)] = weights[begin : begin + _CHUNK]
            if look is not None:
                look()
        room[-1] = check_of(weights)

    def sound(self, rank: int, slot: int) -> bool:
        """Return whether a slot's weights are those that were put there."""
        room = self.weights[rank, slot]
        return bool(room[-1] == check_of(room[:-1]))

    def spoil(self, rank: int) -> None:
        """Lose the weights of a rank that is dead, as its own memory would be."""
        self.weights[rank] = np.nan
