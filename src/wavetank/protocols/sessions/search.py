"""The compiled part of the product search: breadth first over configurations, every step looked up in tables.

A configuration is a row of small integers: the local state of each role, then the content of each queue, zero where it
is empty.  What a role does with a message, what it can send, and what a row becomes when a settled mix is forgotten are
tables that the caller fills: where an entry is missing the search stops, says which, and is called again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

# What a role does with the message at the head of a queue; 0 is not known yet.
WAITS, TAKES, DROPS, SWITCHES, SENDS = 1, 2, 3, 4, 5
# Why the search stopped.
DONE, FULL, NO_REACTION, NO_SENDS, NO_LOCAL, NO_MESSAGE, NO_VERDICT = range(7)


class Tables(NamedTuple):
    """What the caller knows so far; a shape's first letter: locals, messages, tags, entries, pairs, sends of a state.

    Parameters
    ----------
    what : ndarray of int8, shape (L, M)
        What a local state does with a message; 0 unknown.
    after : ndarray of int16, shape (L, M)
        The local state after it.
    send_count : ndarray of int16, shape (L,)
        -1 unknown.
    send_pair, send_message, send_after : ndarray of int16, shape (L, S)
    local_tag, message_tag : ndarray of int32
    entry_count : ndarray of int32, shape (T,)
    entries : ndarray of int32, shape (T, K)
        Turns of mixes a tag lists, in order: twice the entry's number, plus one for the right side.
    voids : ndarray of int8, shape (T, T)
        Whether the first tag shows that the second is stale: 1 no, 2 yes, 0 unknown.
    passers : ndarray of uint64, shape (E,)
        Roles that pass every turn of the entry's mix, as bits.
    renamed_local, renamed_message : ndarray of int16, shape (E, L) and (E, M)
        What a local state or a message becomes when the entry is forgotten; -1 unknown.
    pair_from, pair_to : ndarray of int16, shape (P,)
    """

    what: NDArray[np.int8]
    after: NDArray[np.int16]
    send_count: NDArray[np.int16]
    send_pair: NDArray[np.int16]
    send_message: NDArray[np.int16]
    send_after: NDArray[np.int16]
    local_tag: NDArray[np.int32]
    message_tag: NDArray[np.int32]
    entry_count: NDArray[np.int32]
    entries: NDArray[np.int32]
    voids: NDArray[np.int8]
    passers: NDArray[np.uint64]
    renamed_local: NDArray[np.int16]
    renamed_message: NDArray[np.int16]
    pair_from: NDArray[np.int16]
    pair_to: NDArray[np.int16]


class Found(NamedTuple):
    """What was found so far; arrays longer than what they hold.

    Parameters
    ----------
    rows : ndarray of int16, shape (capacity, roles + pairs * bound)
    parents : ndarray of int32, shape (capacity,)
    starts : ndarray of int64, shape (capacity + 1,)
        Where the steps of each configuration begin.
    targets : ndarray of int32, shape (steps,)
    whats, pairs : ndarray of int8 and int16, shape (steps,)
    slots : ndarray of int32
        Hash table of rows: number, or -1; its length is a power of two.
    counts : ndarray of int64, shape (3,)
        Configurations, steps, and how many configurations are expanded.
    """

    rows: NDArray[np.int16]
    parents: NDArray[np.int32]
    starts: NDArray[np.int64]
    targets: NDArray[np.int32]
    whats: NDArray[np.int8]
    pairs: NDArray[np.int16]
    slots: NDArray[np.int32]
    counts: NDArray[np.int64]


@compiled
def _hash(row):  # type: ignore[no-untyped-def]
    found = np.uint64(0x9E3779B97F4A7C15)
    for value in row:
        found = (found ^ np.uint64(np.uint16(value))) * np.uint64(0xD6E8FEB86659FD93)
        found ^= found >> np.uint64(32)
    return found


@compiled
def place(found, row, parent):  # type: ignore[no-untyped-def]
    """Return the number of a row, a new one when it was not met before."""
    rows, slots, counts = found.rows, found.slots, found.counts
    mask = np.uint64(slots.size - 1)
    at = _hash(row) & mask
    while True:
        number = slots[at]
        if number < 0:
            number = counts[0]
            rows[number] = row
            found.parents[number] = parent
            slots[at] = number
            counts[0] += 1
            return number
        same = True
        for position in range(row.size):
            if rows[number, position] != row[position]:
                same = False
                break
        if same:
            return number
        at = (at + np.uint64(1)) & mask


@compiled
def fill_slots(rows, count, slots):  # type: ignore[no-untyped-def]
    """Enter the first ``count`` rows into an empty hash table."""
    mask = np.uint64(slots.size - 1)
    for number in range(count):
        at = _hash(rows[number]) & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = number


@compiled
def _forgettable(row, roles, tables, seen, contested):  # type: ignore[no-untyped-def]
    """Return the lowest turn that nobody can disagree on any more, or -1.

    ``seen`` and ``contested`` are scratch space with a place for each entry: bit 0 left, bit 1 right.
    """
    count = tables.passers.size
    seen[:count] = 0
    for position in range(row.size):
        if position >= roles and row[position] == 0:
            continue
        tag = tables.local_tag[row[position]] if position < roles else tables.message_tag[row[position]]
        for each in range(tables.entry_count[tag]):
            entry = tables.entries[tag, each]
            seen[entry >> 1] |= 1 << (entry & 1)
    some = False
    for entry in range(count):
        contested[entry] = seen[entry] == 3
        some = some or seen[entry] != 0
    if not some:
        return -1
    # What comes after a turn that is contested may belong to a side that was given up.
    for position in range(row.size):
        if position >= roles and row[position] == 0:
            continue
        tag = tables.local_tag[row[position]] if position < roles else tables.message_tag[row[position]]
        after = False
        for each in range(tables.entry_count[tag]):
            entry = tables.entries[tag, each] >> 1
            after = after or contested[entry]
            if after:
                contested[entry] = True
    for entry in range(count):
        if seen[entry] == 0 or contested[entry]:
            continue
        passed = True
        for role in range(roles):
            if (tables.passers[entry] >> np.uint64(role)) & np.uint64(1):
                tag = tables.local_tag[row[role]]
                has = False
                for each in range(tables.entry_count[tag]):
                    has = has or tables.entries[tag, each] >> 1 == entry
                if not has:
                    passed = False
                    break
        if passed:
            return entry
    return -1


@compiled
def _settle(row, roles, tables, seen, contested):  # type: ignore[no-untyped-def]
    """Forget in ``row`` what nobody can disagree on; returns (code, entry, which) where a renaming is missing."""
    while True:
        entry = _forgettable(row, roles, tables, seen, contested)
        if entry < 0:
            return DONE, 0, 0
        for position in range(row.size):
            old = row[position]
            if position < roles:
                if tables.renamed_local[entry, old] < 0:
                    return NO_LOCAL, entry, old
            elif old and tables.renamed_message[entry, old] < 0:
                return NO_MESSAGE, entry, old
        for position in range(row.size):
            old = row[position]
            if position < roles:
                row[position] = tables.renamed_local[entry, old]
            elif old:
                row[position] = tables.renamed_message[entry, old]


@compiled
def _voided(here, head, receiver, roles, bound, tables):  # type: ignore[no-untyped-def]
    """Return whether another message on its way to the receiver shows that ``head`` is stale."""
    tag = tables.message_tag[head]
    for pair in range(tables.pair_to.size):
        if tables.pair_to[pair] != receiver:
            continue
        for position in range(roles + pair * bound, roles + (pair + 1) * bound):
            if here[position]:
                other = tables.message_tag[here[position]]
                if tables.voids[other, tag] == 0:
                    return NO_VERDICT, other, tag
                if tables.voids[other, tag] == 2:
                    return DONE, 1, 0
    return DONE, 0, 0


@compiled
def search(found, tables, roles, bound, tagged, most):  # type: ignore[no-untyped-def]
    """Expand configurations until all are, ``most`` are, space runs out, or a table lacks an entry.

    Returns
    -------
    (int, int, int)
        Why it stopped, and which entry is missing.
    """
    rows, counts = found.rows, found.counts
    width = rows.shape[1]
    queues = tables.pair_from.size
    widest = queues + roles * tables.send_pair.shape[1]
    row = np.empty(width, np.int16)
    seen = np.zeros(max(1, tables.passers.size), np.int64)
    contested = np.zeros(max(1, tables.passers.size), np.bool_)
    while counts[2] < counts[0] and counts[2] < most:
        at = counts[2]
        here = rows[at]
        if counts[0] + widest >= rows.shape[0] or counts[1] + widest >= found.targets.size:
            return FULL, 0, 0
        found.starts[at] = counts[1]
        steps = counts[1]
        only = -1
        for pair in range(queues):
            head = here[roles + pair * bound]
            if head:
                what = tables.what[here[tables.pair_to[pair]], head]
                if what == 0:
                    return NO_REACTION, here[tables.pair_to[pair]], head
                if what == DROPS:
                    only = pair
                    break
        for pair in range(queues):
            begin = roles + pair * bound
            head = here[begin]
            if not head or (only >= 0 and pair != only):
                continue
            receiver = tables.pair_to[pair]
            what = tables.what[here[receiver], head]
            if what == WAITS:
                if not tagged:
                    continue
                code, one, other = _voided(here, head, receiver, roles, bound, tables)
                if code == NO_VERDICT:
                    return code, one, other
                if not one:
                    continue
                what = DROPS
            row[:] = here
            row[receiver] = tables.after[here[receiver], head]
            if what != SWITCHES:
                for position in range(begin, begin + bound - 1):
                    row[position] = row[position + 1]
                row[begin + bound - 1] = 0
            if tagged:
                code, one, other = _settle(row, roles, tables, seen, contested)
                if code:
                    return code, one, other
            found.targets[steps] = place(found, row, at)
            found.whats[steps] = what
            found.pairs[steps] = pair
            steps += 1
        if only < 0:
            for role in range(roles):
                local = here[role]
                if tables.send_count[local] < 0:
                    return NO_SENDS, local, 0
                for each in range(tables.send_count[local]):
                    pair = tables.send_pair[local, each]
                    begin = roles + pair * bound
                    free = begin
                    while free < begin + bound and here[free]:
                        free += 1
                    if free == begin + bound:
                        continue
                    row[:] = here
                    row[role] = tables.send_after[local, each]
                    row[free] = tables.send_message[local, each]
                    if tagged:
                        code, one, other = _settle(row, roles, tables, seen, contested)
                        if code:
                            return code, one, other
                    found.targets[steps] = place(found, row, at)
                    found.whats[steps] = SENDS
                    found.pairs[steps] = pair
                    steps += 1
        counts[1] = steps
        counts[2] += 1
        found.starts[at + 1] = steps
    return DONE, 0, 0
