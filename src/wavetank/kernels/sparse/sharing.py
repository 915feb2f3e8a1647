"""Threads that share one product: parts of it are claimed from a word in memory, by whoever comes first.

A product of a small matrix takes ten microseconds, less than waking a thread through the operating system.  Threads
that have just helped therefore keep looking for more work for a moment before they leave, and the caller never waits
for one that has not begun: it claims the remaining parts itself.  Which thread works on a part changes nothing in the
result.

Source: the claim is the fetch-and-add self-scheduling of P. Tang and P.-C. Yew, "Processor Self-Scheduling for Multiple
Nested Parallel Loops", ICPP 1986, with the number of the loop in the same word.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from wavetank.kernels.sparse.lanes import multiply_segments, take

# Words of the board, each often-written one in a cache line of its own.
_NEXT, _DONE, _PARTS, _KIND, _X, _Y = 0, 8, 16, 17, 18, 19
_WORDS = 24
_PART_BITS = 32
_PART_MASK = (1 << _PART_BITS) - 1
TAKE, MULTIPLY = 1, 2
# Looks at the board before a thread leaves: about half a millisecond.
PATIENCE = 1 << 18


def _word(context: Any, builder: Any, kind: Any, board: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, board).data, [index])


@intrinsic  # type: ignore[misc, unused-ignore]
def _load(context: Any, board: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(word, "acquire", 8)

    return types.int64(board, types.int64), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def _store(context: Any, board: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], word, "release", 8)
        return context.get_dummy_value()

    return types.void(board, types.int64, types.int64), generate


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


@njit(cache=True, nogil=True)
def _work(board: Any, form: Any, carries: NDArray[Any], moved: NDArray[Any]) -> int:
    """Claim and do parts until none is left; return how many this thread did."""
    did = 0
    while True:
        claim = _load(board, _NEXT)
        part, parts = claim & _PART_MASK, _load(board, _PARTS)
        kind, x_address, y_address = _load(board, _KIND), _load(board, _X), _load(board, _Y)
        if part >= parts:
            return did
        # What was read above belongs to this claim: nobody writes it before all parts are claimed and done.
        if not _exchange(board, _NEXT, claim, claim + 1):
            continue
        width, rows, nonzeros, first_row, first_piece, lowest, values, columns, masks, offsets, gather, order, scale = (
            form
        )
        x = carray(_pointer(x_address, carries), width)
        if kind == TAKE:
            take(x, order, scale, moved, width * part // parts, width * (part + 1) // parts)
        else:
            y = carray(_pointer(y_address, carries), rows)
            segments = carries.size
            multiply_segments(
                nonzeros, segments * part // parts, segments * (part + 1) // parts, first_row, first_piece, lowest,
                values, columns, masks, offsets, x, gather, y, carries,
            )  # fmt: skip
        _add(board, _DONE, 1)
        did += 1


@njit(cache=True, nogil=True)
def lead(
    board: Any, kind: int, parts: int, x_address: int, y_address: int, form: Any, carries: NDArray[Any],
    moved: NDArray[Any],
) -> int:  # fmt: skip
    """Offer a product, or the moving of x, in ``parts`` parts, share in it and return when all are done.

    Returns
    -------
    int
        Parts that the caller did itself.
    """
    ticket = (((_load(board, _NEXT) >> _PART_BITS) + 1) & (_PART_MASK >> 1)) << _PART_BITS
    # Closed before anything else changes, so that nobody claims a part of what is half described.
    _store(board, _NEXT, ticket | _PART_MASK)
    _store(board, _DONE, 0)
    _store(board, _KIND, kind)
    _store(board, _X, x_address)
    _store(board, _Y, y_address)
    _store(board, _PARTS, parts)
    _store(board, _NEXT, ticket)
    did = _work(board, form, carries, moved)
    while _load(board, _DONE) < parts:
        pass
    return did


@njit(cache=True, nogil=True)
def follow(board: Any, patience: int, form: Any, carries: NDArray[Any], moved: NDArray[Any]) -> int:
    """Share in what is offered until nothing was for ``patience`` looks; return the parts done."""
    idle, did = 0, 0
    while idle < patience:
        some = _work(board, form, carries, moved)
        did += some
        idle = 0 if some else idle + 1
    return did


class Team:
    """The caller and the threads that help it with the products of one plan.

    Parameters
    ----------
    threads : int
        The caller included.
    parts : int
        Into how many parts a product is cut; the more, the less a slow thread matters.
    form : tuple
        What :func:`lead` and :func:`follow` work on.
    carries : ndarray, shape (segments,)
    moved : ndarray, shape (columns,) or (0,)
        Where x goes when it is moved.
    """

    def __init__(
        self, threads: int, parts: int, form: tuple[Any, ...], carries: NDArray[Any], moved: NDArray[Any]
    ) -> None:
        self.threads, self.parts, self.form, self.carries, self.moved = threads, parts, form, carries, moved
        self._prepare()

    def _prepare(self) -> None:
        self._board = np.zeros(_WORDS, np.int64)
        self._pool: Any = None
        self._following: list[Any] = []
        # One product at a time: they share the carries.
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: everything but the threads."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_board", "_pool", "_following", "lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without threads."""
        self.__dict__.update(state)
        self._prepare()

    def run(self, kind: int, x: NDArray[Any], y: NDArray[Any]) -> int:
        """Do one kind of work on x and y together, and return how many parts the caller did itself."""
        if self.threads > 1:
            self._following = [each for each in self._following if not each.done()]
            for _ in range(self.threads - 1 - len(self._following)):
                work = (self._board, PATIENCE, self.form, self.carries, self.moved)
                self._following.append(self._helpers().submit(follow, *work))
        return int(
            lead(self._board, kind, self.parts, x.ctypes.data, y.ctypes.data, self.form, self.carries, self.moved)
        )

    def _helpers(self) -> Any:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self.threads - 1)
        return self._pool
