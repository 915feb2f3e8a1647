"""Ways to multiply a matrix in compressed rows, one of which a plan may take instead of its own layout.

The compiled rows of this module, scipy's, torch's where the program has imported it, and MKL's inspector-executor where
it is installed.  Which one is fastest differs by matrix and processor, so a short trial decides
when a plan is made that will be used often; a trial never happens within a product.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError, missing_extra, unknown_name
from wavetank.kernels.sparse import mkl
from wavetank.kernels.sparse.compressed import CompressedRows
from wavetank.machine.threads import together
from wavetank.sim.compiled import compiled

_now = time.perf_counter
ENGINES = ("auto", "own", "rows", "scipy", "torch", "mkl")
ROUNDS = 7
"""Products that a trial times by each engine, beside two that check it."""
# After four rounds what takes twice as long as the fastest is out, and a lead of a quarter decides.
_LEAST_ROUNDS, _HOPELESS, _PLAIN_LEAD = 4, 2.0, 0.75
# scipy's product is left only for one that takes at most this share of its time: it is there in every process, on one
# thread, and two runs that are compared give the same digits.
_CLEARLY = 0.95
# What a timed call should take at least, by repeating short products.
_TIMED_S = 50e-6
_MOST_REPEATS = 100
# Below these many nonzeros waking another thread through the operating system takes longer than it saves.
_NONZEROS_WORTH_A_THREAD = 1 << 17
_PARTS_A_THREAD = 4
# A product in one part would keep an interrupt waiting.
_NONZEROS_OF_A_PART = 1 << 26


class Engine(Protocol):
    """A matrix ready for products."""

    words: str
    """How the matrix lies, and who multiplies it."""

    def multiply(self, x: NDArray[Any], y: NDArray[Any], threads: int) -> None:
        """Write the product with ``x`` to ``y``, both contiguous and of the type of the values."""
        ...


# The additions of a row may be ordered as the processor likes them; NaN and infinity stay what they are.  AMD's
# processors gather a vector's elements one by one: there the plain loop is faster, by a third on random columns.
_GATHERS_ARE_SLOW = llvm.get_host_cpu_name().startswith(("znver", "bdver", "btver"))


@compiled(nogil=True, fastmath=False if _GATHERS_ARE_SLOW else {"reassoc", "contract", "nsz"})
def _multiply_rows(begin: int, end: int, starts: Any, columns: Any, values: Any, x: Any, y: Any) -> None:
    for row in range(begin, end):
        total = x.dtype.type(0)
        # Unsigned numbers need no test for negative ones.
        for at in range(np.uint64(starts[row]), np.uint64(starts[row + 1])):
            total += values[at] * x[columns[at]]
        y[row] = total


class Rows:
    """Compressed rows as they are, in ranges with as many nonzeros; the same result for any number of threads."""

    words = "compressed rows"

    def __init__(self, given: CompressedRows, threads: int) -> None:
        self._columns = given.columns.view(f"u{given.columns.itemsize}")
        self._starts, self._values = given.starts, given.values
        worth = min(threads, max(1, given.nonzeros // _NONZEROS_WORTH_A_THREAD))
        parts = max(1 if worth == 1 else worth * _PARTS_A_THREAD, -(-given.nonzeros // _NONZEROS_OF_A_PART))
        self._worth = worth
        places = np.linspace(0, given.nonzeros, parts + 1)[1:-1]
        edges = [0, *np.searchsorted(given.starts, places).tolist(), given.shape[0]]
        self._parts = [(begin, min(end, given.shape[0])) for begin, end in pairwise(edges)]

    def multiply(self, x: NDArray[Any], y: NDArray[Any], threads: int) -> None:
        """Write the product with ``x`` to ``y``."""
        rest = (self._starts, self._columns, self._values, x, y)
        together(_multiply_rows, [(*part, *rest) for part in self._parts], min(threads, self._worth))


class Scipy:
    """``scipy.sparse.csr_array``, one thread."""

    words = "compressed rows, by scipy"

    def __init__(self, given: CompressedRows, threads: int) -> None:
        from scipy.sparse import csr_array

        self._rows = csr_array((given.values, given.columns, given.starts), shape=given.shape)
        try:
            from scipy.sparse._sparsetools import csr_matvec
        except ImportError:
            csr_matvec = None
        self._add_product = csr_matvec

    def multiply(self, x: NDArray[Any], y: NDArray[Any], threads: int) -> None:
        """Write the product with ``x`` to ``y``."""
        if self._add_product is None:
            y[:] = self._rows @ x
            return
        # What scipy's own operator calls, without a result to copy from.
        rows = self._rows
        y[:] = 0
        self._add_product(*rows.shape, rows.indptr, rows.indices, rows.data, x, y)


class _Process:
    """Whether this process was forked: torch's OpenMP then waits for threads that only the parent has."""

    def __init__(self) -> None:
        self.is_forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._note)

    def _note(self) -> None:
        self.is_forked = True


_process = _Process()


def torch_rows(torch: Any, given: CompressedRows) -> Any:
    """Return a matrix as a torch tensor of layout CSR."""
    # MKL takes numbers of 32 bits: with 64 torch falls back to a loop of its own, several times slower.
    short = max(given.nonzeros, *given.shape) <= np.iinfo(np.int32).max
    kind = np.dtype(np.int32 if short else np.int64)
    parts = [
        torch.from_numpy(np.require(part, requirements="W"))
        for part in (given.starts.astype(kind), given.columns.astype(kind, copy=False), given.values)
    ]
    with warnings.catch_warnings():
        # Torch announces that its compressed formats may still change.
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(*parts, size=given.shape, check_invariants=False)


class Torch:
    """A torch tensor of layout CSR: MKL without optimisation, on as many threads as torch takes."""

    words = "compressed rows, by torch"

    def __init__(self, given: CompressedRows, threads: int) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            raise WavetankError("torch takes part only where the program has imported it.", hint="import torch first")
        self._rows = torch_rows(torch, given)
        self._torch = torch
        self._set_rest(given, threads)

    def _set_rest(self, given: CompressedRows, threads: int) -> None:
        self._given, self._threads = given, threads
        self._instead: Rows | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _torch_again, (self._rows, self._given, self._threads)

    def multiply(self, x: NDArray[Any], y: NDArray[Any], threads: int) -> None:
        """Write the product with ``x`` to ``y``; by :class:`Rows` in a process that was forked."""
        if _process.is_forked:
            self._instead = self._instead or Rows(self._given, self._threads)
            self._instead.multiply(x, y, threads)
            return
        self._torch.mv(self._rows, self._torch.from_numpy(x), out=self._torch.from_numpy(y))


def _torch_again(rows: Any, given: CompressedRows, threads: int) -> Torch:
    import torch

    found = Torch.__new__(Torch)
    found._rows, found._torch = rows, torch
    found._set_rest(given, threads)
    return found


class Mkl:
    """MKL's inspector-executor."""

    words = "as MKL arranges it"

    def __init__(self, given: CompressedRows, threads: int) -> None:
        self._given, self._threads = given, threads
        self._matrix = mkl.Optimised(given, threads)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mkl, (self._given, self._threads)

    def multiply(self, x: NDArray[Any], y: NDArray[Any], threads: int) -> None:
        """Write the product with ``x`` to ``y``."""
        self._matrix.multiply(x, y, threads)


_CLASSES: dict[str, Callable[[CompressedRows, int], Engine]] = {
    "rows": Rows, "scipy": Scipy, "torch": Torch, "mkl": Mkl,
}  # fmt: skip


def engine_of(name: str, given: CompressedRows, threads: int) -> Engine:
    """Return the engine of a name, ready.

    Raises
    ------
    UnknownNameError, MissingExtraError, WavetankError
        If there is none of this name, it is not installed, or cannot take this matrix.
    """
    if name not in _CLASSES:
        raise unknown_name("choice of engine", name, ENGINES, where="SpMVPlan, engine")
    if name == "mkl" and mkl.library() is None:
        raise missing_extra("mkl", "mkl", needed_for="The engine mkl", where="SpMVPlan, engine")
    if name == "mkl" and not mkl.fits(given):
        raise WavetankError("MKL's 32-bit numbers do not reach for this matrix.", where="SpMVPlan, engine")
    return _CLASSES[name](given, threads)


def _candidates(given: CompressedRows, threads: int) -> list[str]:
    found = ["rows", "scipy"]
    torch = sys.modules.get("torch")
    # torch's threads are the program's to set: it takes part where they are no more than the plan may use.
    if not _process.is_forked and hasattr(torch, "sparse_csr_tensor") and torch.get_num_threads() <= threads:  # type: ignore[union-attr]
        found.append("torch")
    if mkl.library() is not None and mkl.fits(given):
        found.append("mkl")
    return found


def chosen(
    given: CompressedRows, own: Callable[[NDArray[Any], NDArray[Any]], None], threads: int
) -> tuple[str, Engine | None]:
    """Return the name of the fastest engine and the engine; ``("own", None)`` for the plan's own layout.

    An engine takes part if it gives the plan's own product within rounding, and NaN in the same rows.  Each is timed
    at most :data:`ROUNDS` times; no limit of time ends a trial, so that a busy machine does not cut it short.

    Parameters
    ----------
    given : CompressedRows
    own : callable
        ``own(x, y)`` writes the product by the plan's own layout.
    threads : int
    """
    dice = np.random.default_rng(given.nonzeros)
    x = dice.standard_normal(given.shape[1]).astype(given.values.dtype)
    holes = np.where(dice.random(given.shape[1]) < 0.5, given.values.dtype.type(np.nan), x)
    expected, missing, y = (np.empty(given.shape[0], given.values.dtype) for _ in range(3))
    # Compiles at its first call.
    own(holes, missing)
    start = _now()
    own(x, expected)
    own_s = _now() - start
    calls: dict[str, Callable[[], None]] = {"own": lambda: own(x, y)}
    ready: dict[str, Engine] = {}
    for name in _candidates(given, threads):
        try:
            engine = engine_of(name, given, threads)
            y.fill(np.nan)
            engine.multiply(holes, y, threads)
            same = np.array_equal(np.isfinite(y), np.isfinite(missing))
            engine.multiply(x, y, threads)
        except (WavetankError, MemoryError, RuntimeError):
            continue
        if same and _close(y, expected):
            ready[name] = engine
            calls[name] = _call(engine, x, y, threads)
    repeats = min(_MOST_REPEATS, max(1, math.ceil(_TIMED_S / max(own_s, 1e-9))))
    name = _clearly_fastest(_timed(calls, repeats))
    return name, ready.get(name)


def _call(engine: Engine, x: NDArray[Any], y: NDArray[Any], threads: int) -> Callable[[], None]:
    return lambda: engine.multiply(x, y, threads)


def _close(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    # Values that are not finite leave nothing to compare.
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    error = float(np.abs(found[finite] - expected[finite]).max(initial=0.0))
    return bool(np.isfinite(found[finite]).all() and error <= 1e4 * np.finfo(found.dtype).eps * scale)


def _timed(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each call, round by round; those that were left out early have fewer."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(ROUNDS):
        # Each is first, and each follows another, in its turn: what comes and goes does not always meet the same one.
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else order[::-1]:
            start = _now()
            for _ in range(repeats):
                calls[name]()
            took[name].append(_now() - start)
        if turn + 1 < _LEAST_ROUNDS:
            continue
        quick = {name: _undisturbed(took[name]) for name in names}
        best = min(quick, key=quick.__getitem__)
        names = [name for name in names if min(took[name]) <= _HOPELESS * quick[best]]
        others = [quick[name] for name in names if name != best]
        if quick[best] <= _PLAIN_LEAD * min(others, default=math.inf) and _clearly_fastest(took) == best:
            break
    return took


def _undisturbed(seconds: list[float]) -> float:
    """Return the time of a call that nothing disturbed: the second least, for one round may be a lucky one."""
    return sorted(seconds)[1]


def _clearly_fastest(took: dict[str, list[float]]) -> str:
    """Return which call takes least where nothing disturbs it, scipy's where none is clearly ahead of it.

    What else uses the machine makes a call longer, hardly ever shorter, so of several rounds the short ones count.
    """
    quick = {name: _undisturbed(seconds) for name, seconds in took.items()}
    stays = "scipy" if "scipy" in quick else "own"
    best = min(quick, key=quick.__getitem__)
    return best if quick[best] <= _CLEARLY * quick[stays] else stays
