"""Threads that share one product: each has its own range of parts, and who is done helps the others.

A product of a small matrix takes ten microseconds, less than waking a thread through the operating system.  Threads
that have just helped therefore keep looking for more work for a moment before they leave, and the caller never waits
for one that has not begun: it claims the remaining parts itself.  A thread's range is the same in every product, so
that its share of the matrix and of the result stays in its core's cache.  Which thread works on a part changes nothing
in the result.

Source: the ranges are those of E. P. Markatos and T. J. LeBlanc, "Using Processor Affinity in Loop Scheduling on
Shared-Memory Multiprocessors", IEEE TPDS 5(4), 1994.

Differs from the source:
1. Owner and helpers claim from opposite ends of a range, both counts and the number of the loop being one word.
2. A caller that was kept waiting, by a thread whose core is busy with something else, works alone for some products.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from wavetank.kernels.sparse.lanes import add_carries, multiply_segments, take
from wavetank.machine.atomic_words import load_word as _load
from wavetank.machine.atomic_words import store_word as _store
from wavetank.machine.threads import forks, start_helpers
from wavetank.sim.compiled import compiled

# Words of the board: what changes within a product, the product, the matrix (which never changes), and for every thread
# a cache line with the claims of its range and whether it is here.
_DONE, _ALONE = 0, 1
_KIND, _X, _Y = 8, 9, 10
_THREADS, _PARTS, _WIDTH, _ROWS, _NONZEROS, _SEGMENTS, _GATHER, _SCALE = range(16, 24)
_FIRST_ROW, _FIRST_PIECE, _LOWEST, _MASKS, _OFFSETS, _ORDER, _CARRIES = range(24, 31)
_CLAIMS, _LINE, _HERE = 32, 8, 1
# A claim: parts taken by the owner, parts taken by others, number of the product.
_COUNT_BITS = 16
_COUNT_MASK = (1 << _COUNT_BITS) - 1
_TICKET = 1 << (2 * _COUNT_BITS)
_TICKETS = 1 << 30
MOST_PARTS_A_THREAD = _COUNT_MASK
TAKE, MULTIPLY = 1, 2
# Looks at the board, 50 ns each, before a thread leaves: about half a millisecond.
PATIENCE = 10_000
# Where the caller looks so often for each nonzero, and that often in all, until the others are done, one of them does
# not run: its core is busy with something else.
_SLOW_LOOKS, _FEW_LOOKS = 4, 20_000


def _word(context: Any, builder: Any, kind: Any, board: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, board).data, [index])


@intrinsic  # type: ignore[misc, unused-ignore]
def _exchange(context: Any, board: Any, index: Any, expected: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature.args[0], arguments[0], arguments[1])
        done = builder.cmpxchg(word, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(done, 1)

    return types.boolean(board, types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def _add(context: Any, board: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.atomic_rmw("add", word, arguments[2], "seq_cst")

    return types.int64(board, types.int64, types.int64), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def _pointer(context: Any, address: Any, like: Any) -> Any:
    pointer = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(context.get_value_type(like.dtype)))

    return pointer(types.int64, like), generate


@compiled(nogil=True)
def _do(board: Any, part: int, columns: Any, values: Any, moved: NDArray[Any]) -> None:
    """Do one part of what the board describes."""
    parts, width, segments = board[_PARTS], board[_WIDTH], board[_SEGMENTS]
    if board[_KIND] == TAKE:
        begin, end = moved.size * part // parts, moved.size * (part + 1) // parts
        x = carray(_pointer(board[_X], moved), width)
        scale = moved.dtype.type(board.view(np.float64)[_SCALE])
        if board[_ORDER] == 0:
            take(x, None, scale, moved, begin, end)
        else:
            take(x, carray(_pointer(board[_ORDER], np.uint32), moved.size), scale, moved, begin, end)
        return
    multiply_segments(
        board[_NONZEROS],
        segments * part // parts,
        segments * (part + 1) // parts,
        carray(_pointer(board[_FIRST_ROW], np.int64), segments + 1),
        carray(_pointer(board[_FIRST_PIECE], np.int64), segments + 1),
        carray(_pointer(board[_LOWEST], np.uint32), segments + 1),
        values,
        columns,
        # As bytes, whatever their type: only the address matters.
        carray(_pointer(board[_MASKS], np.uint8), segments),
        carray(_pointer(board[_OFFSETS], np.uint16), 1),
        carray(_pointer(board[_X], moved), width),
        board[_GATHER] != 0,
        carray(_pointer(board[_Y], moved), board[_ROWS]),
        carray(_pointer(board[_CARRIES], moved), segments),
    )


@compiled(nogil=True)
def _work(board: Any, worker: int, columns: Any, values: Any, moved: NDArray[Any]) -> int:
    """Claim and do parts until none is left, those of the own range first; return how many this thread did."""
    did, threads, parts = 0, board[_THREADS], board[_PARTS]
    for turn in range(threads):
        owner = (worker + turn) % threads
        word = _CLAIMS + _LINE * owner
        low, high = parts * owner // threads, parts * (owner + 1) // threads
        while True:
            claim = _load(board, word)
            front, back = claim & _COUNT_MASK, (claim >> _COUNT_BITS) & _COUNT_MASK
            if front + back >= high - low:
                break
            # The board describes this claim's product: nobody writes it before all parts are claimed and done.
            if _exchange(board, word, claim, claim + (1 if turn == 0 else 1 << _COUNT_BITS)):
                _do(board, low + front if turn == 0 else high - 1 - back, columns, values, moved)
                did += 1
    return did


@compiled(nogil=True)
def _share(board: Any, kind: int, columns: Any, values: Any, moved: NDArray[Any]) -> int:
    """Offer one kind of work, share in it, and return the parts that the caller did when all are done.

    After others kept the caller waiting, it works alone for a number of products.
    """
    board[_KIND] = kind
    parts = board[_PARTS]
    if board[_ALONE]:
        for part in range(parts):
            _do(board, part, columns, values, moved)
        return parts
    _store(board, _DONE, 0)
    threads = board[_THREADS]
    ticket = (_load(board, _CLAIMS) // _TICKET + 1) % _TICKETS * _TICKET
    for owner in range(threads - 1, -1, -1):
        _store(board, _CLAIMS + _LINE * owner, ticket)
    did = _work(board, 0, columns, values, moved)
    looks, nonzeros = 0, board[_NONZEROS]
    while _load(board, _DONE) + did < parts:
        looks += 1
    if looks > _SLOW_LOOKS * nonzeros + _FEW_LOOKS:
        # Alone for several times what was lost, so that a busy core costs little.
        board[_ALONE] = 1 + _SLOW_LOOKS * looks // nonzeros
    return did


@compiled(nogil=True)
def lead(
    board: Any, kind: int, x: NDArray[Any], y: NDArray[Any], columns: Any, values: Any, moved: NDArray[Any]
) -> int:
    """Multiply x, sharing the work with the threads that are here, and return when all is done.

    Parameters
    ----------
    board : ndarray of int64
        As written by :class:`Team`.
    kind : {TAKE, MULTIPLY}
        TAKE: move x into ``moved`` first, and multiply that.
    x, y : ndarray
    columns, values, moved : ndarray
        ``values`` may be None.

    Returns
    -------
    int
        Parts that the caller did itself.
    """
    board[_X], board[_Y] = x.ctypes.data, y.ctypes.data
    board[_ALONE] = max(0, board[_ALONE] - 1)
    did = 0
    if kind == TAKE:
        did = _share(board, TAKE, columns, values, moved)
        board[_X] = moved.ctypes.data
    did += _share(board, MULTIPLY, columns, values, moved)
    parts, segments = board[_PARTS], board[_SEGMENTS]
    first_row = carray(_pointer(board[_FIRST_ROW], np.int64), segments + 1)
    carries = carray(_pointer(board[_CARRIES], moved), segments)
    y[0] = 0
    for part in range(parts):
        add_carries(segments * part // parts, segments * (part + 1) // parts, first_row, carries, y)
    return did


@compiled(nogil=True)
def follow(board: Any, worker: int, patience: int, columns: Any, values: Any, moved: NDArray[Any]) -> int:
    """Share in what is offered until nothing was for ``patience`` looks; return the parts done."""
    idle, did = 0, 0
    while idle < patience:
        some = _work(board, worker, columns, values, moved)
        if some:
            _add(board, _DONE, some)
        did += some
        idle = 0 if some else idle + 1
    _store(board, _CLAIMS + _LINE * worker + _HERE, 0)
    return did


class Team:
    """The caller and the threads that help it with the products of one plan.

    Parameters
    ----------
    threads : int
        The caller included.
    parts : int
        Into how many parts a product is cut, at least one per thread and at most :data:`MOST_PARTS_A_THREAD`; the more,
        the less a slow thread matters.
    form : tuple
        Columns, rows and nonzeros of the matrix, then what :func:`wavetank.kernels.sparse.lanes.multiply_segments`
        takes: first rows, first pieces, lowest columns, values, columns, masks, offsets, whether to gather; then the
        order of the columns or None, and the factor of x.
    carries : ndarray, shape (segments,)
    moved : ndarray, shape (columns that are used,) or (0,)
        Where x goes when it is moved.
    """

    def __init__(
        self, threads: int, parts: int, form: tuple[Any, ...], carries: NDArray[Any], moved: NDArray[Any]
    ) -> None:
        self.threads, self.parts, self.form, self.carries, self.moved = threads, parts, form, carries, moved
        self._prepare()

    def _prepare(self) -> None:
        width, rows, nonzeros, first_row, first_piece, lowest, values, columns, masks, offsets, gather, order, scale = (
            self.form
        )
        board = np.zeros(_CLAIMS + _LINE * self.threads, np.int64)
        board[_THREADS : _GATHER + 1] = (
            self.threads, self.parts, width, rows, nonzeros, self.carries.size, gather,
        )  # fmt: skip
        board.view(np.float64)[_SCALE] = scale
        arrays = (first_row, first_piece, lowest, masks, offsets, order, self.carries)
        board[_FIRST_ROW : _CARRIES + 1] = [0 if each is None else each.ctypes.data for each in arrays]
        # Nothing is left to claim of a product that never was.
        board[_CLAIMS::_LINE] = _COUNT_MASK
        self._board, self._given = board, (columns, values, self.moved)
        self._here = [_CLAIMS + _LINE * worker + _HERE for worker in range(self.threads)]
        self._forks = forks()
        # One product at a time: they share the carries.
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: everything but the threads."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_board", "_given", "_here", "_forks", "lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without threads."""
        self.__dict__.update(state)
        self._prepare()

    def run(self, x: NDArray[Any], y: NDArray[Any], most: int | None = None) -> int:
        """Multiply x into y together, moving x first if it is to be, and return how many parts the caller did.

        Parameters
        ----------
        x, y : ndarray
        most : int, optional
            Threads that may work on this product, the caller included; by default as many as there are.
        """
        board = self._board
        threads = self.threads if most is None else min(most, self.threads)
        if threads == 1:
            # Those that have just helped would go on otherwise.
            board[_ALONE] = max(board[_ALONE], 2)
        for worker in range(1, threads if board[_ALONE] <= 1 else 1):
            if not board[self._here[worker]]:
                board[self._here[worker]] = 1
                start_helpers(partial(follow, board, worker, PATIENCE, *self._given), 1)
        return int(lead(board, TAKE if self.moved.size else MULTIPLY, x, y, *self._given))

    def after_fork(self) -> None:
        """Forget the helpers of the process that this one was forked from; done before a product."""
        if self._forks != forks():
            self._prepare()
