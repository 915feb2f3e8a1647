"""Exchanges with buffers between sources and experts, made of the same copies as the one without."""

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
    Integers,
    Program,
    Task,
    exclusive_sums,
    pieces_of,
)
from wavetank.serving.exchange.moves import take_places
from wavetank.serving.exchange.port import Port, encoded_rows


def _sorted_places(keys: Integers, kinds: int) -> tuple[Integers, Integers]:
    """Return how many keys there are of each kind, and the place of each when they stand kind after kind."""
    counts = np.bincount(keys[keys >= 0], minlength=kinds)
    places = np.empty(keys.size, np.int64)
    take_places(keys, exclusive_sums(counts), places)
    return counts, places


def _tokens(batch: Batch) -> Integers:
    return np.repeat(np.arange(batch.slots.shape[0], dtype=np.int64), batch.slots.shape[1])


def _from_blocks(counts: Integers) -> Integers:
    """Return where rows stand that came source after source, each source's slot after slot, in the order of slots.

    Parameters
    ----------
    counts : int64 array (sources, slots)

    Returns
    -------
    int64 array (rows,)
        For each row in the order in which it came, its place in the order of slots, then sources.
    """
    begins = exclusive_sums(np.ascontiguousarray(counts.T)).T.reshape(-1)
    each = counts.reshape(-1)
    return np.repeat(begins - exclusive_sums(each), each) + np.arange(int(each.sum()), dtype=np.int64)


def _counts_here(port: Port) -> Integers:
    """Return how many rows each member has for each slot of this rank, those of others being none."""
    task, table = port.task, port.area("counts")[port.number]
    counts = np.zeros((task.ranks, task.slots), np.int64)
    here = slice(port.number * task.slots, (port.number + 1) * task.slots)
    counts[list(port.members)] = table[list(port.members), here]
    return counts


@dataclass(frozen=True, kw_only=True)
class RelayBuffers:
    """Vectors are packed by expert, sent to a buffer of the expert's rank, put in order there; outputs go back alike.

    The order of tokens is restored by the weighted sum itself, which reads the rows where they came.
    """

    def areas(self, task: Task) -> Areas:
        """Return the relay buffers there and back, with room for all tokens of each source at each rank."""
        each, rows = (BUFFERS, task.ranks, task.ranks), task.tokens * task.choices
        return {
            "relay rows": ((*each, rows, task.row_bytes // 8), "int64"),
            "back rows": ((*each, rows, task.hidden), task.dtype),
            "counts": ((*each, task.ranks * task.slots), "int64"),
        }

    def private_rows(self, task: Task) -> list[tuple[int, int]]:
        """Return rows and bytes of a row of send buffers, inputs and outputs of experts, and encoded tokens."""
        sent, come = BUFFERS * task.tokens * task.choices, BUFFERS * task.packed_rows
        return [(sent, task.row_bytes), (come, task.row_bytes), (2 * come, task.output_bytes), *encoded_rows(task)]

    def dispatch(self, port: Port, batch: Batch) -> Program[Arrived]:
        """Pack, send, put in order."""
        task, me, keys = port.task, port.number, batch.slots.reshape(-1)
        words, relay = task.row_bytes // 8, port.area("relay rows")
        vectors = port.encoded(batch.values)
        counts, places = _sorted_places(keys, task.ranks * task.slots)
        packed = port.private("packed", keys.size, words, np.int64)
        yield from port.move("dispatch", vectors, _tokens(batch), packed, places)
        yield from port.wait("done", back=BUFFERS)
        begin = 0
        for to in range(task.ranks):
            rows = int(counts[to * task.slots : (to + 1) * task.slots].sum())
            if rows:
                far = rows * (to != me)
                block = np.arange(rows, dtype=np.int64)
                yield from port.move("dispatch", packed, block + begin, relay[to, me], block, far)
            begin += rows
        port.area("counts")[:, me, :] = counts
        yield from port.signal("placed")
        yield from port.wait("placed")
        come = _counts_here(port)
        each, order = come.sum(axis=1), _from_blocks(come)
        rows = int(each.sum())
        if rows > task.packed_rows:
            raise CapacityError("More tokens go to a rank than its window has rows.", given=rows,
                                allowed=f"{task.packed_rows} rows", where=f"rank {me}",
                                hint="raise window_rows, or send fewer tokens in a step")  # fmt: skip
        given = port.private("given", max(1, rows), words, np.int64)
        begin = 0
        for source in port.members:
            block = np.arange(int(each[source]), dtype=np.int64)
            yield from port.move("dispatch", relay[me, source], block, given, order[begin : begin + block.size])
            begin += block.size
        output = port.private("output", max(1, rows), task.hidden, task.dtype)
        # A token's row comes back where it stood in its rank's block.
        owners = np.repeat(np.arange(task.ranks), counts.reshape(task.ranks, -1).sum(axis=1))
        starts = exclusive_sums(counts.reshape(task.ranks, -1).sum(axis=1))
        back = np.full(keys.size, -1, np.int64)
        used = places >= 0
        at = places[used]
        back[used] = owners[at] * (task.tokens * task.choices) + at - starts[owners[at]]
        return Arrived(pieces_of(come.sum(axis=0), given, output), back.reshape(batch.slots.shape),
                       {"output": output, "order": order, "each": each})  # fmt: skip

    def combine(self, port: Port, batch: Batch, arrived: Arrived, output: Floats) -> Program[None]:
        """Pack outputs by source, send them, add them up."""
        task, me, relay = port.task, port.number, port.area("back rows")
        words = task.output_bytes // 8
        rows = arrived.kept["order"].size
        made = arrived.kept["output"].view(np.int64)
        packed = port.private("packed outputs", max(1, rows), words, np.int64)
        every = np.arange(rows, dtype=np.int64)
        yield from port.move("combine", made, arrived.kept["order"], packed, every)
        begin = 0
        for to in port.members:
            block = np.arange(int(arrived.kept["each"][to]), dtype=np.int64)
            room = relay[to, me].view(np.int64)
            far = block.size * (to != me)
            yield from port.move("combine", packed, block + begin, room, block, far)
            begin += block.size
        yield from port.signal("computed")
        yield from port.wait("computed")
        yield from port.add_up(relay[me].reshape(-1, task.hidden), arrived.places, batch.gates, output)
        yield from port.signal("done")


@dataclass(frozen=True, kw_only=True)
class AllToAll:
    """Vectors are packed by expert where they are; each rank gathers what is its own, in the order of its experts."""

    def areas(self, task: Task) -> Areas:
        """Return what each rank has packed, and the outputs of its experts."""
        each = (BUFFERS, task.ranks)
        return {
            "packed rows": ((*each, task.tokens * task.choices, task.row_bytes // 8), "int64"),
            "output rows": ((*each, task.packed_rows, task.hidden), task.dtype),
            "counts": ((*each, task.ranks, task.ranks * task.slots), "int64"),
        }

    def private_rows(self, task: Task) -> list[tuple[int, int]]:
        """Return rows and bytes of a row of inputs of experts, outputs that came back, and encoded tokens."""
        sent, come = BUFFERS * task.tokens * task.choices, BUFFERS * task.packed_rows
        return [(come, task.row_bytes), (sent, task.output_bytes), *encoded_rows(task)]

    def dispatch(self, port: Port, batch: Batch) -> Program[Arrived]:
        """Pack by expert, and gather."""
        task, me, keys = port.task, port.number, batch.slots.reshape(-1)
        packed, table = port.area("packed rows"), port.area("counts")
        vectors = port.encoded(batch.values)
        own, places = _sorted_places(keys, task.ranks * task.slots)
        yield from port.wait("done", back=BUFFERS)
        yield from port.move("dispatch", vectors, _tokens(batch), packed[me], places)
        table[:, me, :] = own
        yield from port.signal("placed")
        yield from port.wait("placed")
        counts = np.zeros_like(table[me])
        counts[list(port.members)] = table[me][list(port.members)]
        come = np.ascontiguousarray(counts.reshape(task.ranks, task.ranks, task.slots)[:, me])
        rows = int(come.sum())
        if rows > task.packed_rows:
            raise CapacityError("More tokens go to a rank than its window has rows.", given=rows,
                                allowed=f"{task.packed_rows} rows", where=f"rank {me}",
                                hint="raise window_rows, or send fewer tokens in a step")  # fmt: skip
        given = port.private("given", max(1, rows), task.row_bytes // 8, np.int64)
        order, begin = _from_blocks(come), 0
        for source in port.members:
            first = int(counts[source, : me * task.slots].sum())
            block = np.arange(int(come[source].sum()), dtype=np.int64)
            part, far = order[begin : begin + block.size], block.size * (source != me)
            yield from port.move("dispatch", packed[source], block + first, given, part, far)
            begin += block.size
        # Where each of this rank's packed rows has its output: rank, then slot, then source.
        per_rank = counts.reshape(task.ranks, task.ranks, task.slots)
        begins = np.stack([exclusive_sums(np.ascontiguousarray(per_rank[:, to].T)).T[me] for to in range(task.ranks)])
        begins += np.arange(task.ranks)[:, None] * task.packed_rows
        back = np.repeat(begins.reshape(-1) - exclusive_sums(own), own) + np.arange(int(own.sum()), dtype=np.int64)
        output = port.area("output rows")[me]
        return Arrived(pieces_of(come.sum(axis=0), given, output), places.reshape(batch.slots.shape), {"back": back})

    def combine(self, port: Port, batch: Batch, arrived: Arrived, output: Floats) -> Program[None]:
        """Gather outputs, and add them up."""
        task, rows = port.task, port.area("output rows")
        yield from port.signal("computed")
        yield from port.wait("computed")
        back = arrived.kept["back"]
        come = port.private("come back", max(1, back.size), task.hidden, task.dtype)
        every = np.arange(back.size, dtype=np.int64)
        far = int(np.count_nonzero(back // task.packed_rows != port.number))
        source = rows.view(np.int64).reshape(-1, task.output_bytes // 8)
        yield from port.move("combine", source, back, come.view(np.int64), every, far)
        yield from port.signal("done")
        yield from port.add_up(come, arrived.places, batch.gates, output)


@dataclass(frozen=True, kw_only=True)
class LowLatencyLayout:
    """A source stages its tokens, puts each into a room of fixed size at its expert, which packs them; outputs are put
    into a room of their token.
    """

    def areas(self, task: Task) -> Areas:
        """Return rooms of each source at each expert, and of each token and choice at its owner."""
        each, room = (BUFFERS, task.ranks), task.fixed_rows
        return {
            "room rows": ((*each, task.slots * task.ranks * room, task.row_bytes // 8), "int64"),
            "back rows": ((*each, task.tokens * task.choices, task.hidden), task.dtype),
            "homes": ((*each, task.slots * task.ranks * room), "int64"),
            "counts": ((*each, task.ranks, task.ranks * task.slots), "int64"),
        }

    def private_rows(self, task: Task) -> list[tuple[int, int]]:
        """Return rows and bytes of a row of staged tokens, inputs and outputs of experts, for both steps."""
        come = BUFFERS * task.packed_rows
        return [(BUFFERS * task.tokens, task.row_bytes), (come, task.row_bytes), (come, task.output_bytes)]

    def dispatch(self, port: Port, batch: Batch) -> Program[Arrived]:
        """Stage, put, pack.

        Raises
        ------
        CapacityError
            If a source has no room at an expert; nothing is written then.
        """
        task, me, room, keys = port.task, port.number, port.task.fixed_rows, batch.slots.reshape(-1)
        own = np.bincount(keys[keys >= 0], minlength=task.ranks * task.slots)
        if own.max() > room:
            raise CapacityError("More tokens of a rank go to an expert than it has room there.", given=int(own.max()),
                                allowed=f"{room} rows", where=f"slot {int(own.argmax())}",
                                hint="raise source_rows")  # fmt: skip
        rooms, homes, table = port.area("room rows"), port.area("homes"), port.area("counts")
        words, tokens = task.row_bytes // 8, _tokens(batch)
        staged = port.encoded(batch.values, port.private("staged", batch.values.shape[0], words, np.int64))
        places = np.empty(keys.size, np.int64)
        following = (np.arange(task.ranks * task.slots, dtype=np.int64) * task.ranks + me) * room
        take_places(keys, following, places)
        yield from port.wait("done", back=BUFFERS)
        far = int(np.count_nonzero((keys >= 0) & (keys // task.slots != me)))
        yield from port.move("dispatch", staged, tokens, rooms.reshape(-1, words), places, far)
        used = places >= 0
        # The home of a row travels with it: where its output belongs.
        homes.reshape(-1)[places[used]] = np.flatnonzero(used)
        table[:, me, :] = own
        yield from port.signal("placed")
        yield from port.wait("placed")
        come = _counts_here(port)
        each = come.T.reshape(-1)
        begins = np.arange(each.size, dtype=np.int64) * room
        from_rows = np.repeat(begins - exclusive_sums(each), each) + np.arange(int(each.sum()), dtype=np.int64)
        rows = from_rows.size
        if rows > task.packed_rows:
            raise CapacityError("More tokens go to a rank than its window has rows.", given=rows,
                                allowed=f"{task.packed_rows} rows", where=f"rank {me}",
                                hint="raise window_rows, or send fewer tokens in a step")  # fmt: skip
        given = port.private("given", max(1, rows), words, np.int64)
        yield from port.move("dispatch", rooms[me], from_rows, given, np.arange(rows, dtype=np.int64))
        sources = np.repeat(np.tile(np.arange(task.ranks), task.slots), each)
        home = sources * (task.tokens * task.choices) + homes[me][from_rows]
        output = port.private("output", max(1, rows), task.hidden, task.dtype)
        back = np.where(used, np.arange(keys.size), -1).reshape(batch.slots.shape)
        return Arrived(pieces_of(come.sum(axis=0), given, output), back, {"output": output, "home": home})

    def combine(self, port: Port, batch: Batch, arrived: Arrived, output: Floats) -> Program[None]:
        """Put each output into its token's room, and add them up there."""
        task, back, home = port.task, port.area("back rows"), arrived.kept["home"]
        words = task.output_bytes // 8
        far = int(np.count_nonzero(home // (task.tokens * task.choices) != port.number))
        made, every = arrived.kept["output"].view(np.int64), np.arange(home.size, dtype=np.int64)
        yield from port.move("combine", made, every, back.view(np.int64).reshape(-1, words), home, far)
        yield from port.signal("computed")
        yield from port.wait("computed")
        yield from port.add_up(back[port.number], arrived.places, batch.gates, output)
        yield from port.signal("done")
