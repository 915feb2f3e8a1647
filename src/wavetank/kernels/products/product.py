"""``matmul``: a matrix product that plans before it multiplies.

For every product the ways to compute it are compared by a profile measured on the machine: a library's product, our
own, or a lower-complexity scheme of one to three levels.  Large products gain from fewer multiplications, small and
thin ones stay with the library.

Source: H. Zhu et al., "FalconGEMM: Surpassing Hardware Peaks with Lower-Complexity Matrix Multiplication", arXiv
2605.06057, 2026.

Differs from the source:
1. For the CPU, compiled by numba for the host's vector width, with its own micro-kernel; no code generator beside it.
2. A result that is not finite is computed again without a scheme, so that NaN and infinities land where a library puts
them.
3. Half precision is refused on the CPU, where nothing is gained.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, nearest_of
from wavetank.kernels.given import array_of, is_tensor
from wavetank.kernels.machine import require_memory, usable_cores
from wavetank.kernels.products import combined, decision, fused, libraries, profile
from wavetank.kernels.products.decision import Candidate, ProductPlan, check_method
from wavetank.kernels.products.schemes import CLASSICAL, Scheme, scheme_of
from wavetank.sim.compiled import compiled

if TYPE_CHECKING:
    from wavetank.kernels.products.gpu import GpuPlan, PreparedTensor

# Below this many operations no scheme pays, and asking for a plan would be felt: the product takes under 0.5 ms.
_SMALL_FLOPS = 2.0 * 384**3
# Elements; 16 MB of float64, for which memory is not looked up either.
_SMALL_RESULT = 1 << 21
_KINDS = (np.dtype(np.float32), np.dtype(np.float64))


def plan(
    m: int,
    k: int,
    n: int,
    *,
    dtype: Any = np.float32,
    threads: int | None = None,
    schemes: Iterable[Scheme] | None = None,
    library: str | None = None,
) -> ProductPlan:
    """Decide how to multiply (m x k) by (k x n).

    Parameters
    ----------
    m, k, n : int
    dtype : dtype
        float32 or float64.
    threads : int, optional
        All usable cores by default.
    schemes : iterable of Scheme, optional
        Beside plain products; by default Strassen's and Winograd's in up to three levels.
    library : str, optional
        Compare with this library only; by default with all that are loaded.

    Returns
    -------
    ProductPlan
        The choice, all candidates with predicted times, workspace and error bound.  The first plan of a type and
        number of threads measures the machine for some ten seconds and keeps the profile in the user's cache.

    Raises
    ------
    BadValueError
    """
    for name, side in (("m", m), ("k", k), ("n", n)):
        if isinstance(side, bool) or not isinstance(side, int | np.integer) or side < 0:
            raise BadValueError(
                "A side of a product must be a whole number.", given=side, allowed="0 or more", where=name
            )
    kind, threads = _kind(np.dtype(dtype)), _threads(threads)
    names = libraries.available() if library is None else (_library(library),)
    if 2.0 * m * k * n <= _SMALL_FLOPS:
        choice = Candidate("library", names[0], CLASSICAL, math.nan)
        return ProductPlan(int(m), int(k), int(n), kind, threads, choice, (choice,))
    given = None if schemes is None else tuple(schemes)
    return _planned(int(m), int(k), int(n), kind, threads, given, names)


@functools.lru_cache(maxsize=4096)
def _planned(
    m: int, k: int, n: int, kind: str, threads: int, schemes: tuple[Scheme, ...] | None, names: tuple[str, ...]
) -> ProductPlan:
    measured = profile.cached(kind, threads)
    found = decision.candidates_of(m, k, n, measured, names, schemes)
    return ProductPlan(m, k, n, kind, threads, decision.choose(found, names[0], measured.spread), found)


def plan_of(
    m: int, k: int, n: int, method: str, scheme: Scheme, *, dtype: Any = np.float32, threads: int | None = None,
    library: str = "numpy",
) -> ProductPlan:  # fmt: skip
    """Return the plan that uses a given method and scheme, without asking any profile.

    Parameters
    ----------
    m, k, n : int
    method : str
        ``"library"``, ``"fused"`` or ``"combined"``.
    scheme : Scheme
        Ignored by ``"library"``.
    dtype, threads, library
        As of :func:`plan`.
    """
    check_method(method)
    name = "" if method == "fused" else _library(library)
    choice = Candidate(method, name, CLASSICAL if method == "library" else scheme, math.nan)
    return ProductPlan(m, k, n, _kind(np.dtype(dtype)), _threads(threads), choice, (choice,))


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    threads: int | None = None,
    scheme: str | Scheme | None = None,
    levels: int = 1,
    plan: ProductPlan | GpuPlan | None = None,
) -> Any:
    """Return the matrix product ``a @ b``, computed in the way that is predicted to be fastest.

    Tensors on a GPU are multiplied there, by :func:`wavetank.kernels.products.gpu.matmul`, also float16 and bfloat16.

    Parameters
    ----------
    a : array or torch tensor, shape (m, k)
        float32 or float64, any strides, read-only or not; never modified.  A matrix without neighbours in memory along
        either direction is copied first.
    b : array or torch tensor, shape (k, n), or PreparedMatrix
        Of the same type; see :func:`prepare`.
    out : array or torch tensor, shape (m, n), optional
        Receives the result; must not overlap the inputs.
    threads : int, optional
        All usable cores by default.
    scheme : str or Scheme, optional
        Use this scheme in our own product: "classical", "strassen", "winograd", or one that was read.
    levels : int
        How often to apply ``scheme``: 0 to 3.
    plan : ProductPlan, optional
        From :func:`plan` or :func:`plan_of`, for the same sides, type and threads.

    Returns
    -------
    array or torch tensor
        A tensor when ``a`` is one.  With the plan "library" the bits are the library's.  With a scheme, errors are
        bounded by :attr:`ProductPlan.error_bound`; where the result is not finite it is computed again without a
        scheme.

    Raises
    ------
    BadValueError
        For shapes, types or plans that do not fit, and when memory does not suffice.
    """
    if out is None and scheme is None and plan is None and type(a) is np.ndarray and type(b) is np.ndarray:
        # Small matrices that need no preparation: whatever is odd about them is looked at below, this must be quick.
        shape, other = a.shape, b.shape
        small = len(shape) == 2 == len(other) and 2.0 * shape[0] * shape[1] * other[-1] <= _SMALL_FLOPS
        small = small and shape[0] * other[1] <= _SMALL_RESULT
        if small and shape[1] == other[0] and a.dtype is b.dtype and (a.dtype is _KINDS[0] or a.dtype is _KINDS[1]):
            wanted = _threads(threads)
            if libraries.holds_to("numpy", wanted):
                return np.matmul(a, b)
            with libraries.held_to("numpy", wanted):
                return np.matmul(a, b)
    if getattr(a, "is_cuda", False):
        from wavetank.kernels.products import gpu

        if threads is not None:
            raise BadValueError("A product on a GPU takes no threads.", given=threads, allowed="None", where="threads")
        return gpu.matmul(a, b, out=out, scheme=scheme, levels=levels, plan=plan)
    if plan is not None and not isinstance(plan, ProductPlan):
        raise BadValueError("The plan is not for the processor.", given=type(plan).__name__, allowed="ProductPlan")
    left, as_tensor = _matrix(a, "a")
    prepared = b if isinstance(b, PreparedMatrix) else None
    right = None if isinstance(b, PreparedMatrix) else _matrix(b, "b")[0]
    shape_b, kind_b = (b.shape, b.dtype) if prepared is not None else (right.shape, right.dtype)  # type: ignore[union-attr]
    kind = _kind(left.dtype)
    if np.dtype(kind_b) != left.dtype:
        raise BadValueError(
            "Both matrices must have the same type.", given=f"{left.dtype} and {kind_b}",
            allowed="float32 or float64, twice",
            hint="convert one with .astype",
        )  # fmt: skip
    if left.shape[1] != shape_b[0]:
        raise BadValueError(
            "The inner sides of a product must agree.", given=f"{left.shape} and {tuple(shape_b)}",
            allowed=f"a second matrix with {left.shape[1]} rows",
        )  # fmt: skip
    (m, k), n = left.shape, int(shape_b[1])
    threads = plan.threads if plan is not None and threads is None else _threads(threads)
    result, final = _result(out, (m, n), left.dtype, [left] if right is None else [left, right])
    chosen = _chosen(m, k, n, kind, threads, scheme, levels, plan, prepared, as_tensor)
    if min(m, k, n) == 0:
        result[:] = 0
    elif chosen.method == "library" and right is not None:
        with libraries.held_to(chosen.choice.library, threads):
            libraries.multiply(chosen.choice.library, left, right, result)
    else:
        _multiply(left, right, result, chosen, prepared)
    if final is not None:
        final[:] = result
    if out is not None:
        return out
    return sys.modules["torch"].from_numpy(result) if as_tensor else result


def _multiply(
    left: NDArray[Any],
    right: NDArray[Any] | None,
    result: NDArray[Any],
    chosen: ProductPlan,
    prepared: PreparedMatrix | None,
) -> None:
    sides = f"{chosen.m} x {chosen.k} x {chosen.n}"
    require_memory(chosen.workspace_bytes, f"The workspace of a product of {sides}")
    left = _with_neighbours(left)
    if prepared is not None:
        fused.fused_product(left, None, result, prepared.scheme, chosen.threads, prepared.packed)
    elif right is not None:
        right = _with_neighbours(right)
        if chosen.method == "fused":
            fused.fused_product(left, right, result, chosen.scheme, chosen.threads)
        else:

            def multiply(x: NDArray[Any], y: NDArray[Any], z: NDArray[Any]) -> None:
                with libraries.held_to(chosen.choice.library, chosen.threads):
                    libraries.multiply(chosen.choice.library, x, y, z)

            combined.combined_product(left, right, result, chosen.scheme, multiply, chosen.threads)
    if chosen.scheme.rank > 1 and not _finite(result):
        # A scheme spreads one infinite entry over a whole block; the classical product keeps it in its row and column.
        if right is None and prepared is not None:
            right = prepared.source
        if right is not None:
            fused.fused_product(left, right, result, CLASSICAL, chosen.threads)


@compiled(nogil=True, fastmath={"reassoc"})
def _deviation(rows: NDArray[Any]) -> float:
    """Return 0 for finite rows: anything else times zero is not zero."""
    total = 0.0
    for i in range(rows.shape[0]):
        part = rows.dtype.type(0)
        for j in range(rows.shape[1]):
            part += rows[i, j] * rows.dtype.type(0)
        total += part
    return total


def _finite(matrix: NDArray[Any]) -> bool:
    return bool(_deviation(matrix) == 0.0)


@dataclass(frozen=True, eq=False)
class PreparedMatrix:
    """A right operand whose sums are formed and packed once; made by :func:`prepare`.

    ``shape``, ``dtype`` and ``scheme`` say what it is, ``nbytes`` what the packed sums take.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    scheme: Scheme
    source: NDArray[Any]
    packed: fused.PackedRight

    @property
    def nbytes(self) -> int:
        """Return the bytes of the packed sums: rank over blocks times those of the matrix, and padding."""
        return int(self.packed.room.nbytes)


def prepare(
    b: Any, *, scheme: str | Scheme = "strassen", levels: int = 1, threads: int | None = None
) -> PreparedMatrix | PreparedTensor:
    """Form and pack the sums of a right operand that many products share, such as a layer's weights.

    Parameters
    ----------
    b : array or torch tensor, shape (k, n)
        Kept as well, for results that are not finite; do not change it afterwards.
    scheme : str or Scheme
    levels : int
    threads : int, optional

    Returns
    -------
    PreparedMatrix
        To be given to :func:`matmul` in the place of ``b``; products with it use our own kernel and this scheme.  Of a
        tensor on a GPU a :class:`~wavetank.kernels.products.gpu.PreparedTensor`.
    """
    if getattr(b, "is_cuda", False):
        from wavetank.kernels.products import gpu

        return gpu.prepare(b, scheme=scheme, levels=levels)
    matrix = _with_neighbours(_matrix(b, "b")[0])
    _kind(matrix.dtype)
    chosen = scheme_of(scheme, levels)
    need = 2 * matrix.nbytes * chosen.rank // (chosen.k * chosen.n)
    require_memory(need, f"Preparing a matrix of {matrix.shape[0]} x {matrix.shape[1]}")
    if min(matrix.shape) == 0:
        raise BadValueError(
            "An empty matrix cannot be prepared.", given=matrix.shape, allowed="at least one row and column"
        )
    packed = fused.PackedRight(matrix, chosen, _threads(threads))
    return PreparedMatrix(matrix.shape, matrix.dtype, chosen, matrix, packed)


def _chosen(
    m: int, k: int, n: int, kind: str, threads: int, scheme: str | Scheme | None, levels: int,
    given: ProductPlan | None, prepared: PreparedMatrix | None, as_tensor: bool,
) -> ProductPlan:  # fmt: skip
    if given is not None:
        wanted, has = (m, k, n, kind, threads), (given.m, given.k, given.n, given.dtype, given.threads)
        if wanted != has or scheme is not None or prepared is not None:
            raise BadValueError(
                "The plan is for another product.", given=has,
                allowed=f"{wanted}, and neither scheme nor prepared matrix",
                hint="plan(m, k, n, dtype=..., threads=...)",
            )  # fmt: skip
        return given
    if prepared is not None:
        if scheme is not None:
            raise BadValueError("A prepared matrix brings its own scheme.", given=scheme, allowed="no scheme")
        return plan_of(m, k, n, "fused", prepared.scheme, dtype=kind, threads=threads)
    if scheme is not None:
        return plan_of(m, k, n, "fused", scheme_of(scheme, levels), dtype=kind, threads=threads)
    # A tensor's library first: where nothing else is said, its bits are what the caller expects.
    preferred = "torch" if as_tensor else None
    if 2.0 * m * k * n <= _SMALL_FLOPS:
        return plan_of(m, k, n, "library", CLASSICAL, dtype=kind, threads=threads, library=preferred or "numpy")
    return plan(m, k, n, dtype=kind, threads=threads)


def _threads(threads: int | None) -> int:
    if threads is None:
        return usable_cores()
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or not 1 <= threads <= 1024:
        raise BadValueError("The number of threads is wrong.", given=threads, allowed="1 to 1024", where="threads")
    return int(threads)


def _library(name: str) -> str:
    if name not in libraries.LIBRARIES:
        raise BadValueError(
            "There is no such library.", given=name, allowed=libraries.LIBRARIES,
            nearest=nearest_of(str(name), libraries.LIBRARIES),
        )  # fmt: skip
    if name not in libraries.available():
        raise BadValueError("The library is not loaded.", given=name, hint=f"import {name} first")
    return name


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype not in (np.dtype(np.float32), np.dtype(np.float64)) or not dtype.isnative:
        raise BadValueError(
            "The product is for float32 and float64 in the machine's byte order.", given=str(dtype),
            allowed="float32, float64", hint="convert with .astype(np.float32), or use numpy.matmul for integers",
        )  # fmt: skip
    return dtype.name


def _matrix(value: Any, name: str) -> tuple[NDArray[Any], bool]:
    tensor = is_tensor(value)
    array = array_of(value, name)
    if array.ndim != 2:
        raise BadValueError(
            "A matrix has two dimensions.", given=f"shape {array.shape}", allowed="(rows, columns)", where=name,
            hint="loop over the leading dimensions, or reshape them into rows",
        )  # fmt: skip
    return array, tensor


def _with_neighbours(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix that has neighbours in memory along one direction at least; a copy only where it must be."""
    size = matrix.itemsize
    down, across = matrix.strides
    if (across == size or matrix.shape[1] == 1) and down >= 0 and down % size == 0 and matrix.flags.aligned:
        if across == size:
            return matrix
    elif down == size and across >= 0 and across % size == 0 and matrix.flags.aligned:
        return matrix
    return np.ascontiguousarray(matrix)


def _result(
    out: Any, shape: tuple[int, int], dtype: np.dtype[Any], inputs: list[NDArray[Any]]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the array to compute into and, if that is not the caller's, the caller's."""
    if out is None:
        require_memory(shape[0] * shape[1] * dtype.itemsize, f"A result of {shape[0]} x {shape[1]}")
        return np.empty(shape, dtype), None
    if not (isinstance(out, np.ndarray) or is_tensor(out)):
        raise BadValueError(
            "The result is written into an array or a tensor.", given=type(out).__name__, where="out",
            hint="leave it out, and take what is returned",
        )  # fmt: skip
    target, _ = _matrix(out, "out")
    if target.shape != shape or target.dtype != dtype:
        raise BadValueError(
            "The array for the result does not fit.", given=f"{target.shape} {target.dtype}",
            allowed=f"{shape} {dtype}",
            where="out",
        )  # fmt: skip
    if not target.flags.writeable:
        raise BadValueError("The array for the result is read-only.", where="out")
    if any(np.may_share_memory(target, matrix) for matrix in inputs):
        raise BadValueError("The array for the result overlaps an input.", where="out", allowed="memory of its own")
    if target.strides[1] == dtype.itemsize and target.strides[0] >= 0 and target.flags.aligned:
        return target, None
    return np.empty(shape, dtype), target


@dataclass(frozen=True, kw_only=True)
class FalconGemm:
    """:func:`matmul` as a contender: the plan that the machine's profile predicts to be fastest."""

    def planned(self, m: int, k: int, n: int, dtype: Any, threads: int) -> ProductPlan:
        """Return the plan for these sides."""
        return plan(m, k, n, dtype=dtype, threads=threads)

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Callable[[], Any]:
        """Return the call to time; planning is part of it, the profile is not."""
        self.planned(a.shape[0], a.shape[1], b.shape[1], a.dtype, threads)
        return lambda: matmul(a, b, threads=threads)
