"""A store of token blocks: found by key, verified by their tokens, the least recently used out first.

The store knows which blocks it holds, not what is cached for them: a row of its table is where a caller keeps keys
and values, or, in a simulation, nothing.  Blocks may be chained, each to the one before it in its prompt, as prefix
caches do; a chained block is found only behind the block that it followed.  What uses a block uses all before it, and
later in the order of use, so that the oldest block is never one that others stand behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import int64, typeof, uint32, uint64, void
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.reuse.segments import Ends, Keys, Tokens
from wavetank.sim.compiled import compiled

Ints = NDArray[np.int64]

NOWHERE = -1
_KEY, _START, _LENGTH, _POSITION, _OWNER, _SERIAL, _PARENT, _HELD, _CALL, _OLDER, _NEWER, _NEXT = range(12)
_OLDEST, _NEWEST, _FREE, _USED, _TOKENS, _END, _DEAD, _CALLS, _EVICTED, _COLLISIONS, _SERIALS = range(11)


class _State(NamedTuple):
    rows: Ints  # (rows, 12): the table; a key is kept as the same 64 bits
    buckets: Ints  # (a power of two): first row of each
    heads: Ints  # (11,): see above
    arena: Tokens  # the tokens of all blocks, with holes


@dataclass(frozen=True, slots=True)
class Counts:
    """What a store did so far.

    Attributes
    ----------
    blocks, tokens : int
        In the store now.
    evicted : int
        Blocks that had to go.
    collisions : int
        Blocks of another content, or behind another block, that had the same key.
    """

    blocks: int
    tokens: int
    evicted: int
    collisions: int


class BlockStore:
    """Blocks of tokens within a budget.

    Parameters
    ----------
    budget_tokens : int, optional
        Tokens that fit: a budget of bytes divided by what a token's state takes.  No limit when it is left out.
    chained : bool
        Whether a block is found only behind the block that it followed.

    Raises
    ------
    BadValueError
        For a budget below 0.
    """

    def __init__(self, *, budget_tokens: int | None = None, chained: bool = False) -> None:
        if budget_tokens is not None and budget_tokens < 0:
            raise BadValueError("A store has room for tokens.", given=budget_tokens, allowed=">= 0",
                                where="budget_tokens")  # fmt: skip
        self.budget_tokens = np.iinfo(np.int64).max if budget_tokens is None else budget_tokens
        self.chained = chained
        self._state = _State(
            np.zeros((0, 12), np.int64), np.full(1, NOWHERE, np.int64), np.zeros(11, np.int64), np.zeros(0, np.uint32)
        )
        self._state.heads[[_OLDEST, _NEWEST, _FREE]] = NOWHERE

    def find(self, tokens: Tokens, ends: Ends, keys: Keys) -> Ints:
        """Return the row of each segment that the store holds, -1 for others; those found count as used.

        Parameters
        ----------
        tokens : uint32 array (tokens,)
        ends : int64 array (segments,)
            Where segments end.
        keys : uint64 array (segments,)
            Of the segments.  A segment with the key of another one is not taken for it.

        Returns
        -------
        int64 array (segments,)
            In a chained store nothing is found behind the first segment that is missing.
        """
        rows = np.full(len(ends), NOWHERE, np.int64)
        _find(self._state, tokens, ends, keys, self.chained, rows)
        return rows

    def add(self, tokens: Tokens, ends: Ends, keys: Keys, rows: Ints, *, owner: int = 0) -> int:
        """Put in the segments that were not found, in the order of the prompt, and return how many had no room.

        Parameters
        ----------
        tokens, ends, keys
            As for :meth:`find`.
        rows : int64 array (segments,)
            As :meth:`find` returned them just before; rows of new blocks are filled in.
        owner : int
            Kept with new blocks.
        """
        missing = int(np.count_nonzero(rows < 0))
        if missing:
            self._reserve(missing, int(ends[-1]))
        return int(_add(self._state, tokens, ends, keys, self.chained, rows, self.budget_tokens, owner))

    def hold(self, rows: Ints) -> None:
        """Keep blocks from being evicted until they are released as often.

        Parameters
        ----------
        rows : int64 array (blocks,)
            Entries below 0 are passed over.
        """
        _hold(self._state, self._checked(rows), 1)

    def release(self, rows: Ints) -> None:
        """Give up blocks that were held.

        Parameters
        ----------
        rows : int64 array (blocks,)

        Raises
        ------
        BadValueError
            For a block that is not held as often as it is given up; nothing is released then.
        """
        rows = self._checked(rows)
        asked, times = np.unique(rows[rows >= 0], return_counts=True)
        if np.any(self._state.rows[asked, _HELD] < times):
            raise BadValueError("A block is released that is not held.",
                                given=asked[self._state.rows[asked, _HELD] < times][:5].tolist())  # fmt: skip
        _hold(self._state, rows, -1)

    def positions(self, rows: Ints) -> Ints:
        """Return at which token of its prompt each block stood when it was put in.

        Parameters
        ----------
        rows : int64 array (blocks,)
        """
        found: Ints = self._state.rows[self._checked(rows), _POSITION]
        return found

    def serials(self, rows: Ints) -> Ints:
        """Return the number of each block, which no other block ever has; -1 where a row holds none.

        Parameters
        ----------
        rows : int64 array (blocks,)
            Entries below 0 hold none.
        """
        found: Ints = np.full(len(rows), NOWHERE, np.int64)
        held = self._checked(rows) >= 0
        held[held] = self._state.rows[rows[held], _LENGTH] >= 0
        found[held] = self._state.rows[rows[held], _SERIAL]
        return found

    def owners(self, rows: Ints) -> Ints:
        """Return the owner of each block.

        Parameters
        ----------
        rows : int64 array (blocks,)
        """
        found: Ints = self._state.rows[self._checked(rows), _OWNER]
        return found

    def counts(self) -> Counts:
        """Return what is in the store and what happened in it."""
        heads = self._state.heads
        return Counts(*(int(heads[each]) for each in (_USED, _TOKENS, _EVICTED, _COLLISIONS)))

    def _checked(self, rows: Ints) -> Ints:
        if len(rows) and not rows.max() < len(self._state.rows):
            raise BadValueError("There is no such block.", given=int(rows.max()),
                                allowed=f"below {len(self._state.rows)}")  # fmt: skip
        return rows

    def _reserve(self, blocks: int, tokens: int) -> None:
        """Make room in the tables, whatever the budget says: it is a prompt's own length at most that is too much."""
        rows, buckets, heads, arena = self._state
        if heads[_USED] + blocks > len(rows):
            more = max(2 * len(rows), int(heads[_USED]) + blocks, 64)
            grown = np.zeros((more, rows.shape[1]), np.int64)
            grown[: len(rows)] = rows
            grown[len(rows) :, _LENGTH] = -1
            grown[len(rows) :, _NEXT] = np.r_[np.arange(len(rows) + 1, more), heads[_FREE]]
            heads[_FREE] = len(rows)
            rows, buckets = grown, np.full(1 << (more - 1).bit_length(), NOWHERE, np.int64)
            _hash_again(rows, buckets)
        if heads[_END] + tokens > len(arena):
            live = int(heads[_END] - heads[_DEAD])
            packed = np.zeros(max(2 * live, live + tokens, 1024), np.uint32)
            _pack(rows, arena, packed)
            heads[_END], heads[_DEAD], arena = live, 0, packed
        self._state = _State(rows, buckets, heads, arena)


_STATE = typeof(
    _State(np.zeros((0, 12), np.int64), np.zeros(1, np.int64), np.zeros(11, np.int64), np.zeros(0, np.uint32))
)


@compiled(void(int64[:, ::1], int64[::1]))
def _hash_again(rows: Ints, buckets: Ints) -> None:
    for row in range(len(rows)):
        if rows[row, _LENGTH] >= 0:
            place = rows[row, _KEY] & (len(buckets) - 1)
            rows[row, _NEXT] = buckets[place]
            buckets[place] = row


@compiled(void(int64[:, ::1], uint32[::1], uint32[::1]))
def _pack(rows: Ints, arena: Tokens, packed: Tokens) -> None:
    end = 0
    for row in range(len(rows)):
        if rows[row, _LENGTH] > 0:
            start, length = rows[row, _START], rows[row, _LENGTH]
            packed[end : end + length] = arena[start : start + length]
            rows[row, _START] = end
            end += length


@compiled(void(int64[:, ::1], int64[::1], int64))
def _unlink(rows: Ints, heads: Ints, row: int) -> None:
    older, newer = rows[row, _OLDER], rows[row, _NEWER]
    if older >= 0:
        rows[older, _NEWER] = newer
    else:
        heads[_OLDEST] = newer
    if newer >= 0:
        rows[newer, _OLDER] = older
    else:
        heads[_NEWEST] = older


@compiled(void(int64[:, ::1], int64[::1], int64))
def _append(rows: Ints, heads: Ints, row: int) -> None:
    rows[row, _OLDER], rows[row, _NEWER] = heads[_NEWEST], NOWHERE
    if heads[_NEWEST] >= 0:
        rows[heads[_NEWEST], _NEWER] = row
    else:
        heads[_OLDEST] = row
    heads[_NEWEST] = row


@compiled(int64(_STATE, uint32[::1], int64, int64, uint64, int64, int64))
def _row_of(state: _State, tokens: Tokens, start: int, end: int, key: int, parent: int, chained: int) -> np.int64:
    rows, arena = state.rows, state.arena
    bits = np.int64(key)
    row = state.buckets[bits & (len(state.buckets) - 1)]
    while row >= 0:
        if rows[row, _KEY] == bits:
            same = rows[row, _LENGTH] == end - start and (not chained or rows[row, _PARENT] == parent)
            if same:
                begin = rows[row, _START]
                for at in range(end - start):
                    if arena[begin + at] != tokens[start + at]:
                        same = False
                        break
            if same:
                return row
            state.heads[_COLLISIONS] += 1
        row = rows[row, _NEXT]
    return np.int64(NOWHERE)


@compiled(void(_STATE, int64[::1], int64))
def _used(state: _State, found: Ints, chained: int) -> None:
    """Make blocks the newest ones; of a chain, the first is the very newest."""
    rows, heads = state.rows, state.heads
    for place in range(len(found)):
        row = found[len(found) - 1 - place] if chained else found[place]
        if row >= 0:
            rows[row, _CALL] = heads[_CALLS]
            if not rows[row, _HELD]:
                _unlink(rows, heads, row)
                _append(rows, heads, row)


@compiled(void(_STATE, uint32[::1], int64[::1], uint64[::1], int64, int64[::1]), nogil=True)
def _find(state: _State, tokens: Tokens, ends: Ends, keys: Keys, chained: int, found: Ints) -> None:
    state.heads[_CALLS] += 1
    start, parent = 0, NOWHERE
    for segment in range(len(ends)):
        row = _row_of(state, tokens, start, ends[segment], keys[segment], parent, chained)
        found[segment] = row
        if chained and row < 0:
            break
        # A row is used again for other blocks, a serial number never: a parent that had to go is no other's.
        start, parent = ends[segment], state.rows[row, _SERIAL] if row >= 0 else NOWHERE
    _used(state, found, chained)


@compiled(int64(_STATE, int64, int64))
def _make_room(state: _State, tokens: int, budget: int) -> int:
    """Evict until tokens fit; 0 where what is held or used by this very call leaves no room."""
    rows, buckets, heads, _ = state
    if tokens > budget:
        return 0
    while heads[_TOKENS] > budget - tokens:
        row = heads[_OLDEST]
        if row < 0 or rows[row, _CALL] == heads[_CALLS]:
            return 0
        _unlink(rows, heads, row)
        place = rows[row, _KEY] & (len(buckets) - 1)
        if buckets[place] == row:
            buckets[place] = rows[row, _NEXT]
        else:
            before = buckets[place]
            while rows[before, _NEXT] != row:
                before = rows[before, _NEXT]
            rows[before, _NEXT] = rows[row, _NEXT]
        heads[_USED] -= 1
        heads[_TOKENS] -= rows[row, _LENGTH]
        heads[_DEAD] += rows[row, _LENGTH]
        heads[_EVICTED] += 1
        rows[row, _LENGTH] = -1
        rows[row, _NEXT] = heads[_FREE]
        heads[_FREE] = row
    return 1


@compiled(
    int64(_STATE, uint32[::1], int64[::1], uint64[::1], int64, int64[::1], int64, int64), nogil=True
)
def _add(
    state: _State, tokens: Tokens, ends: Ends, keys: Keys, chained: int, found: Ints, budget: int, owner: int
) -> np.int64:  # fmt: skip
    rows, buckets, heads, arena = state
    start, parent, refused = 0, NOWHERE, 0
    for segment in range(len(ends)):
        end, row = ends[segment], found[segment]
        if row < 0 and not (chained and refused):
            # The same segment may have been put in a moment ago, from an earlier place of this prompt.
            row = _row_of(state, tokens, start, end, keys[segment], parent, chained)
            if row < 0 and _make_room(state, end - start, budget):
                row = heads[_FREE]
                heads[_FREE] = rows[row, _NEXT]
                bits = np.int64(keys[segment])
                place = bits & (len(buckets) - 1)
                begin = heads[_END]
                arena[begin : begin + end - start] = tokens[start:end]
                rows[row, _KEY], rows[row, _START], rows[row, _LENGTH] = bits, begin, end - start
                rows[row, _POSITION], rows[row, _OWNER], rows[row, _PARENT] = start, owner, parent
                rows[row, _HELD], rows[row, _CALL], rows[row, _SERIAL] = 0, heads[_CALLS], heads[_SERIALS]
                heads[_SERIALS] += 1
                rows[row, _NEXT] = buckets[place]
                buckets[place] = row
                _append(rows, heads, row)
                heads[_END] += end - start
                heads[_USED] += 1
                heads[_TOKENS] += end - start
            found[segment] = row
        if row < 0:
            refused += 1
        start, parent = end, rows[row, _SERIAL] if row >= 0 else NOWHERE
    if chained:
        _used(state, found, chained)
    return np.int64(refused)


@compiled(void(_STATE, int64[::1], int64))
def _hold(state: _State, found: Ints, by: int) -> None:
    rows, heads = state.rows, state.heads
    for place in range(len(found)):
        # Released from the last to the first, so that the first of a chain is the newest.
        row = found[place] if by > 0 else found[len(found) - 1 - place]
        if row < 0:
            continue
        before = rows[row, _HELD]
        rows[row, _HELD] = before + by
        if by > 0 and before == 0:
            _unlink(rows, heads, row)
        elif by < 0 and before == 1:
            _append(rows, heads, row)
