"""Sparse matrix times vector for matrices that are used often: laid out once, multiplied many times.

The matrix becomes segments of equal work with a bit for every row end (MERBIT), so that threads finish together and the
inner loop has no branch on row lengths.  Columns are stored in 16 bits where a segment spans few, values not at all
where they are equal, and where the misses of x are the limit the hottest columns come first and x is read by gathers.

The segment's form is that of :mod:`wavetank.kernels.sparse.lanes`; plans on a GPU are tiles of
:mod:`wavetank.kernels.sparse.gpu`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, unknown_name
from wavetank.kernels.as_array import array_of, is_tensor
from wavetank.kernels.sparse import engines, gpu, sharing
from wavetank.kernels.sparse import lanes as kernel
from wavetank.kernels.sparse.compressed import CompressedRows, compressed_rows
from wavetank.kernels.sparse.ordering import choose_order
from wavetank.machine.limits import require_memory
from wavetank.machine.thread_pool import cuts
from wavetank.machine.threads import allowed_threads, together
from wavetank.settings import setting

ROW_CHOICES = ("auto", "keep", "leave-out")
COLUMN_CHOICES = ("auto", "whole")
VALUE_CHOICES = ("auto", "stored")
ORDER_CHOICES = ("auto", "given", "hottest-first")
READ_CHOICES = ("auto", "gather", "load")
# Below these many nonzeros waking another thread costs more than it saves.
NONZEROS_WORTH_A_THREAD = 1 << 13
# Threads that lay out are woken anew each time.
_NONZEROS_WORTH_WAKING = 1 << 18
_PARTS_A_THREAD = 8
_MOST_OFFSET = np.iinfo(np.uint16).max
# With this share of rows without nonzeros, skipping them saves more than the detour over the others costs.
_EMPTY_SHARE = 0.75
# From these many nonzeros on the user's limits on threads are looked up at every product.
_NONZEROS_WORTH_ASKING = 1 << 21
# What belongs to the plan's own layout.
_LAYOUT = (
    "_kept", "_first_row", "_first_piece", "_gather", "_order", "_scale", "_lowest", "_columns", "_values", "_masks",
    "_offsets", "_compact", "_team",
)  # fmt: skip


def _check_choice(name: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise unknown_name(f"choice of {name}", str(given), choices)


def _check_threads(threads: int | None) -> int:
    if threads is None:
        return allowed_threads()
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1:
        raise BadValueError(
            "A product needs at least one thread.", given=threads, allowed="1 or more, or None for all usable cores",
            where="SpMVPlan, threads",
        )  # fmt: skip
    return allowed_threads(int(threads))


class SpMVPlan:
    """A matrix laid out for repeated products with vectors.

    Parameters
    ----------
    matrix : scipy sparse matrix or array, torch sparse tensor, or tuple
        As for :func:`wavetank.kernels.sparse.compressed.compressed_rows`; never modified, and not needed afterwards:
        the plan keeps none of its arrays, which may change.
    threads : int, optional
        Threads to use at most, fewer for small matrices; by default, and never more than, what
        :func:`~wavetank.machine.threads.allowed_threads` allows when the plan is made.  A product of 2 million
        nonzeros or more takes fewer where fewer are allowed by then.
    rows : {"auto", "keep", "leave-out"}
        What to do with rows without nonzeros.
    columns : {"auto", "whole"}
        Column numbers in 16 bits relative to their segment where they fit, or always in 32.
    values : {"auto", "stored"}
        Drop the values where all are equal, or store them always.
    order : {"auto", "given", "hottest-first"}
        Order of the columns.
    read : {"auto", "gather", "load"}
        How x is read.
    engine : {"auto", "own", "rows", "scipy", "torch", "mkl"}
        Who multiplies: this layout (``"own"``), compressed rows on threads (``"rows"``), or a library.  By default the
        one that is fastest in a trial while the plan is made, scipy where none takes at least 5 % less time than it: of
        those here, torch if the program has imported it, MKL if the package ``mkl`` is installed.  The trial takes at
        most nine products by each, about 30 in all, and loading MKL where that comes first.  Where one of the choices
        above is made, it is ``"own"``.  With ``"own"`` and ``"rows"`` the result is the same in every run and for any
        number of threads; two libraries round differently.
        After a fork the child multiplies by ``"rows"`` where the plan has taken torch, whose threads do not outlive it.
    device : torch.device or str, optional
        ``"cuda"`` for a plan on a GPU, of which only ``values`` can be chosen; by default that of a torch matrix, and
        the processor for any other.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        float32 or float64, that of the values and the result.
    nonzeros : int
        Stored entries, duplicates included.
    segments : int
        Of equal work; tiles on a GPU.
    engine : str
        Who multiplies.

    Raises
    ------
    BadValueError, UnknownNameError
        If the matrix or a choice is not allowed, or memory is too short.
    MissingExtraError
        If a plan on a GPU lacks torch or Triton.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> SpMVPlan(csr_array([[1.0, 2.0], [0.0, 3.0]])) @ [1.0, 1.0]
    array([3., 3.])
    """

    _copies = True

    def __init__(
        self, matrix: Any, *, threads: int | None = None, rows: str = "auto", columns: str = "auto",
        values: str = "auto", order: str = "auto", read: str = "auto", engine: str = "auto", device: Any = None,
    ) -> None:  # fmt: skip
        _check_choice("engine", engine, engines.ENGINES)
        _check_choice("rows", rows, ROW_CHOICES)
        _check_choice("columns", columns, COLUMN_CHOICES)
        _check_choice("values", values, VALUE_CHOICES)
        _check_choice("order", order, ORDER_CHOICES)
        _check_choice("read", read, READ_CHOICES)
        wanted = _check_threads(threads)
        device = gpu.device_of(matrix) if device is None else device
        self._tiled: gpu.TiledMatrix | None = None
        if device is not None and not _is_processor(device):
            if threads is not None or {rows, columns, order, read} != {"auto"}:
                raise BadValueError(
                    "Of a plan on a GPU only values can be chosen.", given="threads, rows, columns, order or read",
                    allowed="values", where="SpMVPlan", hint="leave the others out, or leave out device",
                )  # fmt: skip
            self.engine = "own"
            self._tiled = tiled = gpu.TiledMatrix(matrix, device=device, values=values)
            self.shape, self.dtype, self.nonzeros, self.segments = tiled.shape, tiled.dtype, tiled.nonzeros, tiled.tiles
            self._x_shape = self.shape[1:]
            return
        given = compressed_rows(matrix)
        if self._copies and engine != "own" and given.nonzeros:
            # An engine multiplies by the arrays it is given: what their owner does with them must not reach it.
            require_memory(_bytes_of(given), f"A copy of {given.nonzeros:,} nonzeros")
            given = CompressedRows(given.starts.copy(), given.columns.copy(), given.values.copy(), given.shape)
        self.shape, self.dtype, self.nonzeros = given.shape, given.values.dtype, given.nonzeros
        self._x_shape = self.shape[1:]
        self._lanes = kernel.lanes_of(self.dtype)
        size = kernel.STEPS * self._lanes
        self.segments = -(-self.nonzeros // size)
        self._threads = min(wanted, max(1, self.nonzeros // NONZEROS_WORTH_A_THREAD), max(1, self.segments))
        self._engine: engines.Engine | None = None
        self.engine = "own"
        if not self.nonzeros:
            return
        if engine not in ("auto", "own"):
            self._engine, self.engine = engines.engine_of(engine, given, wanted), engine
            self._threads, self._given_bytes = wanted, _bytes_of(given)
            return
        need = self.segments * size * (self.dtype.itemsize + 4) + 4 * self.nonzeros + 24 * sum(self.shape)
        require_memory(need, f"Laying out {self.nonzeros:,} nonzeros")
        self._kept: NDArray[Any] | None = None
        self._lay_out(given, rows, columns, values, order, read)
        if engine == "auto" and {rows, columns, values, order, read} == {"auto"}:
            self.engine, self._engine = engines.chosen(given, self._multiply_own, wanted)
            if self._engine is not None:
                # The layout is of no use any more.
                self._threads, self._given_bytes = wanted, _bytes_of(given)
                for name in _LAYOUT:
                    delattr(self, name)

    def _lay_out(self, given: CompressedRows, rows: str, columns: str, values: str, order: str, read: str) -> None:
        starts, segments, lanes = given.starts, self.segments, self._lanes
        first_row, pieces = np.zeros(segments + 1, np.int64), np.zeros(segments + 1, np.int64)
        if rows == "leave-out" or (
            rows == "auto" and np.count_nonzero(np.diff(starts)) < (1 - _EMPTY_SHARE) * given.shape[0]
        ):
            starts = self._without_empty_rows(starts)
        self._count(starts, first_row, pieces)
        if np.diff(first_row).max() > _MOST_OFFSET:
            if rows == "keep":
                raise BadValueError(
                    "A run of rows without nonzeros is too long to be kept.",
                    given=f"{int(np.diff(first_row).max()):,} rows in a segment", allowed=f"{_MOST_OFFSET:,}",
                    where="SpMVPlan, rows", hint='rows="auto" leaves them out',
                )  # fmt: skip
            starts = self._without_empty_rows(starts)
            self._count(starts, first_row, pieces)
        self._first_row = first_row
        self._first_piece = np.concatenate(([0], np.cumsum(pieces[:-1])))
        chosen = choose_order(given.columns, given.shape[1], self.dtype.itemsize, order)
        self._gather = chosen.gather if read == "auto" else read == "gather"
        self._order = chosen.columns
        equal = values == "auto" and _all_equal(given.values)
        self._scale = given.values[0] if equal else self.dtype.type(1)
        self._lowest = np.zeros(segments + 1, np.uint32)
        narrow = columns == "auto" and chosen.columns is None and self._fits_16_bits(given.columns)
        size = segments * kernel.STEPS * lanes
        # Places behind the last nonzero are read, and what they give is never emitted: they must hold a valid column.
        self._columns = np.empty(size, np.uint16 if narrow else np.uint32)
        self._columns[-kernel.STEPS * lanes :] = 0
        self._values: NDArray[Any] | None = None
        if not equal:
            self._values = np.empty(size, self.dtype)
            self._values[-kernel.STEPS * lanes :] = 0
        self._masks = np.zeros(segments * kernel.STEPS, np.uint8 if lanes == 8 else np.uint16)
        self._offsets = np.empty(int(self._first_piece[-1]), np.uint16)
        weights = None if equal else given.values
        arguments = (
            first_row,
            self._first_piece,
            self._lowest,
            self._values,
            self._columns,
            self._masks,
            self._offsets,
        )
        self._each_part(
            lambda begin, end: kernel.lay_out(
                starts, given.columns, weights, chosen.ranks, lanes, begin, end, *arguments
            )
        )
        height = starts.size - 1
        self._compact = np.empty(height if self._kept is not None else 0, self.dtype)
        moved = 0
        if self._order is not None:
            moved = self._order.size
        elif self._scale != 1:
            moved = given.shape[1]
        form = (given.shape[1], height, self.nonzeros, *arguments, self._gather, self._order, self._scale)
        self._team = sharing.Team(
            self._threads,
            min(segments, self._threads * _PARTS_A_THREAD) if self._threads > 1 else 1,
            form,
            np.empty(segments, self.dtype),
            np.empty(moved, self.dtype),
        )

    def _without_empty_rows(self, starts: NDArray[Any]) -> NDArray[Any]:
        self._kept = np.flatnonzero(np.diff(starts))
        return np.append(starts[self._kept], starts[-1])

    def _count(self, starts: NDArray[Any], first_row: NDArray[Any], pieces: NDArray[Any]) -> None:
        self._each_part(lambda begin, end: kernel.count_pieces(starts, self._lanes, begin, end, first_row, pieces))
        first_row[0], first_row[-1] = 0, starts.size - 2

    def _fits_16_bits(self, columns: NDArray[Any]) -> bool:
        if self.shape[1] <= _MOST_OFFSET + 1:
            return True
        lowest = np.zeros_like(self._lowest)
        # A few segments decide for most matrices without a pass over all columns.
        few = [(s, s + 1) for s in np.linspace(0, self.segments - 1, 8).astype(int).tolist()]
        ranges = partial(kernel.column_ranges, columns, self._lanes)
        if max(ranges(begin, end, lowest) for begin, end in few) > _MOST_OFFSET:
            return False
        if max(self._each_part(lambda begin, end: ranges(begin, end, lowest))) > _MOST_OFFSET:
            return False
        self._lowest = lowest
        return True

    def _each_part(self, work: Callable[[int, int], Any]) -> list[Any]:
        """Return what ``work`` gives for each part of the segments, one per thread."""
        threads = min(self._threads, 1 + self.nonzeros // _NONZEROS_WORTH_WAKING)
        return together(work, cuts(self.segments, threads), threads)

    @property
    def threads(self) -> int:
        """Return the threads of this machine that work on a product: of a plan on a GPU the one that asks for it."""
        return self._threads if self._tiled is None else 1

    @property
    def bytes_stored(self) -> int:
        """Return the bytes of the laid-out matrix, all of which a product reads."""
        if self._tiled is not None:
            return self._tiled.bytes_stored
        if not self.nonzeros:
            return 0
        if self._engine is not None:
            return self._given_bytes
        arrays = [self._columns, self._masks, self._offsets, self._first_row, self._first_piece, self._lowest]
        optional = [each for each in (self._values, self._kept, self._order) if each is not None]
        return sum(each.nbytes for each in arrays + optional)

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that cross between memory and caches if every item of x is read from memory once."""
        if self._tiled is not None:
            return self._tiled.bytes_moved
        moved = self._team.moved.size if self.nonzeros and self._engine is None else 0
        return self.bytes_stored + self.dtype.itemsize * (2 * moved + sum(self.shape))

    @property
    def flops(self) -> int:
        """Return the additions and multiplications of a product."""
        return 2 * self.nonzeros

    @property
    def form(self) -> str:
        """Return how the matrix lies, in words."""
        if self._tiled is not None:
            return self._tiled.form
        if not self.nonzeros:
            return "no nonzeros"
        if self._engine is not None:
            return self._engine.words
        words = [f"{8 * self._columns.itemsize}-bit columns", "gathers" if self._gather else "loads"]
        words += ["hottest columns first"] * (self._order is not None)
        words += ["rows without nonzeros left out"] * (self._kept is not None)
        words += ["equal values dropped"] * (self._values is None)
        return ", ".join(words)

    def multiply(self, x: Any, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the product with a vector.

        NaN and infinity in ``x`` reach exactly the rows that have an entry in that column, an explicit zero included.

        Parameters
        ----------
        x : array_like, shape (columns,)
            Of the plan's type or one that it holds exactly; never modified.  Gradients do not flow: a tensor that
            requires its own is refused unless under ``torch.no_grad()``, and so is a matrix.  For a plan on a GPU also
            a torch tensor there: the result is one then, and any other ``x`` is moved there and the result back.
        out : ndarray, shape (rows,), optional
            Where to write, contiguous and of the plan's type; a new array by default.

        Raises
        ------
        BadValueError
            If ``x`` or ``out`` does not fit.
        """
        if self._tiled is not None:
            return self._multiply_on_device(self._tiled, x, out)
        vector = self._checked(x)
        y = np.empty(self.shape[0], self.dtype) if out is None else self._checked_out(out, vector)
        if not y.flags.aligned:
            # Not every engine can write there.
            y[:] = self.multiply(vector)
            return y
        if not self.nonzeros:
            y[:] = 0
            return y
        if self._engine is None:
            self._multiply_own(vector, y)
        else:
            self._engine.multiply(vector, y, self._threads_now())
        return y

    def _threads_now(self) -> int:
        # To ask costs some ten microseconds.
        worth = self._threads > 1 and self.nonzeros >= _NONZEROS_WORTH_ASKING
        return allowed_threads(self._threads) if worth else self._threads

    def _multiply_own(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        threads = self._threads_now()
        self._team.after_fork()
        with self._team.lock:
            if self._kept is None:
                self._team.run(x, y, threads)
            else:
                self._team.run(x, self._compact, threads)
                kernel.spread(self._compact, self._kept, y)

    def _multiply_on_device(self, tiled: gpu.TiledMatrix, x: Any, out: Any) -> Any:
        if gpu.device_of(x) is not None:
            return tiled.multiply(x, out=out)
        vector = self._checked(x)
        found = tiled.multiply_array(vector)
        if out is None:
            return found
        self._checked_out(out, vector)[:] = found
        return out

    def __matmul__(self, x: Any) -> Any:
        """Return the product with a vector; a torch tensor, where it lies, for a torch tensor."""
        if is_tensor(x) and gpu.device_of(x) is None:
            import torch

            return torch.from_numpy(self.multiply(x))
        return self.multiply(x)

    def _checked(self, x: Any) -> NDArray[Any]:
        if type(x) is np.ndarray and x.dtype is self.dtype and x.shape == self._x_shape and x.flags.carray:
            return x
        exact = not isinstance(x, list | tuple)
        if is_tensor(x) and gpu.device_of(x) is not None:
            raise BadValueError(
                "The vector is on a GPU, the plan is not.", given=f"a vector on {x.device}", where="SpMVPlan",
                hint=f'SpMVPlan(matrix, device="{x.device}") is one there',
            )  # fmt: skip
        array = array_of(x, "SpMVPlan, vector")
        if array.shape != (self.shape[1],):
            raise BadValueError(
                "The vector does not fit the matrix.", given=f"shape {array.shape}",
                allowed=f"({self.shape[1]},): one item per column", where="SpMVPlan",
                hint="multiply the columns of a matrix one at a time" if array.ndim == 2 else None,
            )  # fmt: skip
        if array.dtype.kind not in "fiub" or not (np.can_cast(array.dtype, self.dtype) or not exact):
            raise BadValueError(
                "The vector is of a type that the product cannot hold.", given=str(array.dtype),
                allowed=f"{self.dtype} or what it holds exactly", where="SpMVPlan",
                hint=f"x.astype('{self.dtype}') rounds it",
            )  # fmt: skip
        array = np.ascontiguousarray(array, self.dtype)
        # A read-only or misaligned array is another type for the compiler: a copy costs less than compiling for it.
        return array if array.flags.carray else array.copy()

    def _checked_out(self, out: Any, vector: NDArray[Any]) -> NDArray[Any]:
        fits = isinstance(out, np.ndarray) and out.shape == (self.shape[0],) and out.dtype == self.dtype
        if not fits or not out.flags.c_contiguous or not out.flags.writeable:
            raise BadValueError(
                "The result does not fit into out.",
                given=f"{getattr(out, 'dtype', type(out).__name__)} {np.shape(out)}",
                allowed=f"{self.dtype} ({self.shape[0]},), contiguous and writeable", where="SpMVPlan, out",
            )  # fmt: skip
        if np.may_share_memory(out, vector):
            raise BadValueError("out overlaps the vector.", where="SpMVPlan, out", hint="write into another array")
        checked: NDArray[Any] = out
        return checked


def _bytes_of(given: CompressedRows) -> int:
    return given.starts.nbytes + given.columns.nbytes + given.values.nbytes


def _is_processor(device: Any) -> bool:
    return str(device) == "cpu"


def _all_equal(values: NDArray[Any]) -> bool:
    # A look at the first few settles it for most matrices.
    first = values[0]
    return bool(np.isfinite(first) and (values[:256] == first).all() and (values == first).all())


class _Passing(SpMVPlan):
    """A plan for one product, which needs no copy of the matrix."""

    _copies = False


def spmv(matrix: Any, x: Any, *, threads: int | None = None) -> Any:
    """Return a sparse matrix times a vector, once; for repeated products keep a :class:`SpMVPlan`.

    Parameters
    ----------
    matrix : scipy sparse matrix or array, torch sparse tensor, tuple, or SpMVPlan
        As for :class:`SpMVPlan`.
    x : array_like or torch tensor, shape (columns,)
        Where it is a tensor on a GPU, or the matrix is, the product is computed there.  A tensor that requires its
        gradient is refused as by :meth:`SpMVPlan.multiply`.
    threads : int, optional
        As for :class:`SpMVPlan`; a plan has its own.

    Returns
    -------
    ndarray or torch tensor, shape (rows,)
        A tensor where ``x`` is one.

    Raises
    ------
    BadValueError
        If matrix and vector do not fit together or are not allowed.
    """
    if isinstance(matrix, SpMVPlan):
        if threads is not None:
            raise BadValueError("A plan has its threads.", given=threads, where="spmv, threads", hint="leave it out")
        return matrix @ x
    device = gpu.device_of(x) or gpu.device_of(matrix)
    if device is not None:
        return SpMVPlan(matrix, threads=threads, device=device) @ x
    return _Passing(matrix, threads=threads, engine="rows") @ x


@dataclass(frozen=True, kw_only=True)
class Merbit:
    """Segments of equal work with a bit for each row end, laid out once for many products.

    Parameters are those of :class:`SpMVPlan`.

    References
    ----------
    Q. Zhang et al., arXiv 2605.07391, 2026.
    """

    threads: int | None = setting(None, says="Threads to use; all usable cores by default", low=1)
    rows: str = setting("auto", says="How rows without nonzeros are treated", choices=ROW_CHOICES)
    columns: str = setting("auto", says="Width of column numbers: 16 bits if they fit, or 32", choices=COLUMN_CHOICES)
    values: str = setting("auto", says="Whether values that are all equal are dropped or stored", choices=VALUE_CHOICES)
    order: str = setting("auto", says="Order of the columns", choices=ORDER_CHOICES)
    read: str = setting("auto", says="How x is read", choices=READ_CHOICES)
    engine: str = setting(
        "own", says="Implementation of the product: this layout or a library", choices=engines.ENGINES
    )

    def plan(self, matrix: Any) -> SpMVPlan:
        """Return the matrix laid out."""
        return SpMVPlan(
            matrix, threads=self.threads, rows=self.rows, columns=self.columns, values=self.values, order=self.order,
            read=self.read, engine=self.engine,
        )  # fmt: skip

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], NDArray[Any]]:
        """Return the product with x as a call without arguments: the matrix is laid out here."""
        plan = self.plan(matrix)
        return lambda: plan.multiply(x)
