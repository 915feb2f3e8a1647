"""Relay-free exchange: a token's vector is written once, to its final row, and an output is read once, where it lies.

Ranks that address each other's memory need no buffer in between. Every source can work out in which row of its expert's
window a token belongs, so it writes the vector there; after the experts, the token's owner reads the output rows from
the windows of other ranks straight into a weighted sum. What travels beside are counts and words that say who has come
how far.

For many tokens counts are exchanged first and windows are packed without gaps. For few, each source has a fixed
room at each expert, so that nothing need be known before writing, and the counts come with the word that says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetank.serving.exchange.interface import (
    BUFFERS,
    Areas,
    Arrived,
    Batch,
    CapacityError,
    Floats,
    Piece,
    Program,
    Task,
    pieces_of,
)
from wavetank.serving.exchange.moves import take_places
from wavetank.serving.exchange.port import Port, encoded_rows
from wavetank.settings import setting

SCHEDULES = ("auto", "packed", "fixed")
# With more tokens of a rank, a room of fixed size at each expert is mostly empty.
FEW_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class RelayFree:
    """Exchange by direct placement and direct reading.

    Parameters
    ----------
    schedule : str
        The paper's prefill schedule is ``packed``, its decode schedule ``fixed``.
    """

    schedule: str = setting("auto", says="packed windows after an exchange of counts, fixed room of each source at "
                            "each expert, or auto: fixed up to 256 tokens of a rank", choices=SCHEDULES)  # fmt: skip

    def fixed(self, task: Task) -> bool:
        """Return whether sources have fixed rooms."""
        return self.schedule == "fixed" or (self.schedule == "auto" and task.tokens <= FEW_TOKENS)

    def _rows(self, task: Task) -> int:
        return task.slots * task.ranks * task.fixed_rows if self.fixed(task) else task.packed_rows

    def areas(self, task: Task) -> Areas:
        """Return the windows of all ranks, and counts: of a source's own tokens at each slot, for every reader."""
        rows, each = self._rows(task), (BUFFERS, task.ranks)
        return {
            "input rows": ((*each, rows, task.row_bytes // 8), "int64"),
            "output rows": ((*each, rows, task.hidden), task.dtype),
            "counts": ((*each, task.ranks, task.ranks * task.slots), "int64"),
        }

    def private_rows(self, task: Task) -> list[tuple[int, int]]:
        """Return rows and bytes of a row of encoded tokens, for both steps."""
        return encoded_rows(task)

    def dispatch(self, port: Port, batch: Batch) -> Program[Arrived]:
        """Write each vector to its row in its expert's window.

        Raises
        ------
        CapacityError
            If a window has no room for what comes; nothing is written then.
        """
        return (yield from (self._fixed if self.fixed(port.task) else self._packed)(port, batch))

    def _packed(self, port: Port, batch: Batch) -> Program[Arrived]:
        task, me = port.task, port.number
        vectors, keys = port.encoded(batch.values), batch.slots.reshape(-1)
        window, output, table = port.area("input rows"), port.area("output rows"), port.area("counts")
        # The windows of this step are those of two steps ago: all readers must have said that they are done.
        yield from port.wait("done", back=BUFFERS)
        table[:, me, :] = np.bincount(keys[keys >= 0], minlength=task.ranks * task.slots)
        yield from port.signal("counted")
        yield from port.wait("counted")
        # Of each source; of ranks that do not take part there is nothing.
        counts = np.zeros_like(table[me])
        counts[list(port.members)] = table[me][list(port.members)]
        totals = counts.sum(axis=0).reshape(task.ranks, task.slots)
        if totals.sum(axis=1).max() > task.packed_rows:
            raise CapacityError(
                "More tokens go to a rank than its window has rows.", given=int(totals.sum(axis=1).max()),
                allowed=f"{task.packed_rows} rows", where=f"rank {int(totals.sum(axis=1).argmax())}",
                hint="raise window_rows, or send fewer tokens in a step",
            )  # fmt: skip
        before = np.cumsum(totals, axis=1) - totals + np.arange(task.ranks)[:, None] * task.packed_rows
        following = before.reshape(-1) + counts[:me].sum(axis=0)
        places = yield from self._place(port, batch, vectors, following)
        yield from port.wait("placed")
        return Arrived(pieces_of(totals[me], window[me], output[me]), places)

    def _fixed(self, port: Port, batch: Batch) -> Program[Arrived]:
        task, me, room = port.task, port.number, port.task.fixed_rows
        vectors, keys = port.encoded(batch.values), batch.slots.reshape(-1)
        window, output, table = port.area("input rows"), port.area("output rows"), port.area("counts")
        own = np.bincount(keys[keys >= 0], minlength=task.ranks * task.slots)
        if own.max() > room:
            raise CapacityError(
                "More tokens of a rank go to an expert than it has room there.", given=int(own.max()),
                allowed=f"{room} rows", where=f"slot {int(own.argmax())}",
                hint="raise source_rows, or take the packed schedule",
            )  # fmt: skip
        yield from port.wait("done", back=BUFFERS)
        following = (np.arange(task.ranks * task.slots, dtype=np.int64) * task.ranks + me) * room
        places = yield from self._place(port, batch, vectors, following, table, own)
        yield from port.wait("placed")
        pieces = []
        for slot in range(task.slots):
            for source in port.members:
                count, begin = int(table[me, source, me * task.slots + slot]), (slot * task.ranks + source) * room
                if count:
                    part = slice(begin, begin + count)
                    pieces.append(Piece(slot, window[me, part], output[me, part]))
        return Arrived(pieces, places)

    def _place(
        self, port: Port, batch: Batch, vectors: np.ndarray, following: np.ndarray,
        table: np.ndarray | None = None, own: np.ndarray | None = None,
    ) -> Program[np.ndarray]:  # fmt: skip
        task, keys = port.task, batch.slots.reshape(-1)
        window = port.area("input rows")
        places = np.empty(keys.size, np.int64)
        take_places(keys, np.ascontiguousarray(following), places)
        tokens = np.repeat(np.arange(batch.slots.shape[0], dtype=np.int64), task.choices)
        far = int(np.count_nonzero((keys >= 0) & (keys // task.slots != port.number)))
        yield from port.move("dispatch", vectors, tokens, window.reshape(-1, window.shape[-1]), places, far)
        if table is not None:
            # The counts come with the word.
            table[:, port.number, :] = own
        yield from port.signal("placed")
        return places.reshape(batch.slots.shape)

    def combine(self, port: Port, batch: Batch, arrived: Arrived, output: Floats) -> Program[None]:
        """Read the outputs where they lie, into the token's sum."""
        yield from port.signal("computed")
        yield from port.wait("computed")
        rows, task = port.area("output rows"), port.task
        far = int(np.count_nonzero((batch.slots >= 0) & (batch.slots // task.slots != port.number)))
        yield from port.add_up(rows.reshape(-1, task.hidden), arrived.places, batch.gates, output, far)
        yield from port.signal("done")
