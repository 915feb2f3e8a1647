"""``matmul``: a matrix product as accurate as the library's by default, and by a scheme where that is allowed.

By default a product is the caller's library's, another library's or our own plain one, whichever is known to be
fastest; each rounds like any plain product.  Where the caller allows other errors, large products may go through a
lower-complexity scheme of one to three levels.  What is fastest comes from a profile that ``wavetank profile`` has
measured, else from what ships for the family of processors.  A product never measures.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, nearest_of
from wavetank.kernels.as_array import array_of, is_tensor, overlaps_itself, target_of
from wavetank.kernels.products import decision, gradients, libraries, profile
from wavetank.kernels.products.decision import Candidate, ProductPlan, check_accuracy, check_method, check_sides
from wavetank.kernels.products.gradients import Asked
from wavetank.kernels.products.schemes import CLASSICAL, STRASSEN, Scheme, scheme_of
from wavetank.machine.limits import require_memory
from wavetank.machine.quota import cpu_quota
from wavetank.machine.threads import allowed_threads, libraries_limited, usable_cores
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.kernels.products.fused import PackedRight
    from wavetank.kernels.products.gpu import GpuPlan, PreparedTensor

# Below this many operations nothing but the caller's library pays: the product takes under 0.5 ms.
_SMALL_FLOPS = 2.0 * 384**3
# Below this many, to ask every library for its threads would be felt in a program's first product.
_QUICK_FLOPS = 2.0 * 1024**3
# Bytes; below them memory is not looked up either.
_SMALL_BYTES = 1 << 24
_KINDS = (np.dtype(np.float32), np.dtype(np.float64))
# Libraries know the variables and the cores that they were started with, but no quota: where there is one below the
# cores, even a small product asks.
_QUOTA_BINDS = (cpu_quota() or sys.maxsize) < usable_cores()


def plan(
    m: int,
    k: int,
    n: int,
    *,
    dtype: Any = np.float32,
    threads: int | None = None,
    accuracy: str = "library",
    schemes: Iterable[Scheme] | None = None,
    library: str | None = None,
) -> ProductPlan:
    """Decide how to multiply (m x k) by (k x n); nothing is measured.

    Parameters
    ----------
    m, k, n : int
    dtype : dtype
        float32 or float64.
    threads : int, optional
        As many as the program may use by default, and never more.
    accuracy : str
        ``"library"``, ``"scaled"`` or ``"normwise"``, see :func:`matmul`.
    schemes : iterable of Scheme, optional
        Beside plain products, where the accuracy allows any; by default Strassen's and Winograd's in up to three
        levels.
    library : str, optional
        Compare with this library only; by default with all that are loaded, and numpy's stays in doubt.

    Returns
    -------
    ProductPlan
        The choice, workspace and error bound; with a kept profile all candidates with predicted times, too.

    Raises
    ------
    BadValueError
    """
    check_sides(m, k, n)
    check_accuracy(accuracy)
    kind, threads = _kind(np.dtype(dtype)), _threads(threads)
    given = None if schemes is None else tuple(schemes)
    names = None if library is None else (_library(library),)
    return _planned(int(m), int(k), int(n), kind, threads, accuracy, library or "numpy", names, given)


def _planned(
    m: int, k: int, n: int, kind: str, threads: int, accuracy: str, caller: str,
    names: tuple[str, ...] | None = None, schemes: tuple[Scheme, ...] | None = None,
) -> ProductPlan:  # fmt: skip
    """Return the plan for a caller whose operands belong to a library."""
    if 2.0 * m * k * n <= _SMALL_FLOPS:
        choice = Candidate("library", caller, CLASSICAL, math.nan)
        return ProductPlan(m, k, n, kind, threads, choice, (choice,), accuracy, "the size: it is small")
    loaded = libraries.available() if names is None else names
    if caller not in loaded:
        loaded = (caller, *loaded)
    measured = profile.kept(kind, threads)
    return _decided(m, k, n, kind, threads, accuracy, caller, loaded, schemes, measured)


@functools.lru_cache(maxsize=4096)
def _decided(
    m: int, k: int, n: int, kind: str, threads: int, accuracy: str, caller: str, loaded: tuple[str, ...],
    schemes: tuple[Scheme, ...] | None, measured: profile.ProductProfile | None,
) -> ProductPlan:  # fmt: skip
    """Return the plan by the kept profile, or by what ships where none is kept."""
    if measured is not None and measured.covers(caller):
        # The caller's own first: it stays in doubt.
        names = (caller, *(name for name in loaded if name != caller and measured.covers(name)))
        tried = () if accuracy == "library" else schemes
        found = decision.candidates_of(m, k, n, measured, names, tried, accuracy == "scaled")
        choice = decision.choose(found, caller, measured.spread)
        return ProductPlan(m, k, n, kind, threads, choice, found, accuracy, "the profile measured on this machine")
    if accuracy == "library" and loaded == (caller,):
        choice, basis = Candidate("library", caller, CLASSICAL, math.nan), "the libraries that are loaded: there is one"
        return ProductPlan(m, k, n, kind, threads, choice, (choice,), accuracy, basis)
    from wavetank.kernels.products import priors

    prior = priors.here()
    levels = prior.levels(m, k, n, kind, threads) if accuracy != "library" and schemes is None else 0
    choice = Candidate("library", prior.library(caller, loaded), CLASSICAL, math.nan)
    if levels:
        choice = Candidate("fused", "", STRASSEN.power(levels), math.nan)
    return ProductPlan(m, k, n, kind, threads, choice, (choice,), accuracy, f"what ships for {prior.name}")


def plan_of(
    m: int, k: int, n: int, method: str, scheme: Scheme, *, dtype: Any = np.float32, threads: int | None = None,
    library: str = "numpy", accuracy: str = "normwise",
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
    accuracy : str
        ``"scaled"`` to scale rows and columns around the scheme, else ``"normwise"``; ``"library"`` for a plain
        product.
    """
    check_method(method)
    check_accuracy(accuracy)
    name = "" if method == "fused" else _library(library)
    choice = Candidate(method, name, CLASSICAL if method == "library" else scheme, math.nan)
    _check_allowed(choice.scheme, accuracy)
    return ProductPlan(
        m, k, n, _kind(np.dtype(dtype)), _threads(threads), choice, (choice,), accuracy, "what was asked for"
    )


def _check_allowed(scheme: Scheme, accuracy: str) -> None:
    if scheme.rank > 1 and accuracy == "library":
        raise BadValueError(
            "A scheme does not have the accuracy of a library.", given=f"{scheme.name}, accuracy='library'",
            allowed="a scheme with accuracy 'scaled' or 'normwise'", where="accuracy",
        )  # fmt: skip


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    threads: int | None = None,
    accuracy: str | None = None,
    scheme: str | Scheme | None = None,
    levels: int = 1,
    plan: ProductPlan | GpuPlan | None = None,
) -> Any:
    """Return the matrix product ``a @ b``, by default with the accuracy of the library's.

    Shapes are those of ``numpy.matmul``: vectors count as a row or a column, leading dimensions broadcast.  Tensors on
    a GPU are multiplied there, by :func:`wavetank.kernels.products.gpu.matmul`, also float16 and bfloat16.  Nothing is
    measured: what is fastest comes from the profile that ``wavetank profile`` has kept, else from what ships for the
    family of processors.

    Parameters
    ----------
    a : array or torch tensor, shape (..., m, k) or (k,)
        float32 or float64, any strides, read-only or not; never modified.
    b : array or torch tensor, shape (..., k, n) or (k,), or PreparedMatrix
        Of the same type; see :func:`prepare`.
    out : array or torch tensor, shape (..., m, n), optional
        Receives the result; must not overlap the inputs, nor itself.
    threads : int, optional
        The most to use; never more than the program may use.  By default a product that takes some milliseconds at most
        leaves a library the threads that it has.
    accuracy : str, optional
        What errors are bounded by.

        ``"library"``, the default
            Only plain products, of a library or our own: entry (i, j) errs by at most k u sum_l |a_il| |b_lj|, with the
            unit roundoff u, whatever the scales of rows and columns are.
        ``"scaled"``
            Schemes with rows, inner indices and columns scaled by powers of two: entry (i, j) errs by at most the
            plan's ``error_bound`` times 2^(r_i + c_j) with the exponents of
            :func:`wavetank.kernels.products.scaling.scales_of`.  Without the inside step 2^r_i is at most twice the
            largest entry of row i of A, and 2^c_j of column j of B, so that small rows and columns keep their digits;
            small entries within a row and column do not.
        ``"normwise"``
            Schemes as they are: every entry errs by at most ``error_bound`` times max|A| max|B|.  Rows and columns that
            are small beside others lose their digits, and a product of positive matrices may have negative entries.

        A scheme is taken only where it is predicted to save 5 % of the time of every plain product.
    scheme : str or Scheme, optional
        Use this scheme in our own product: "classical", "strassen", "winograd", or one that was read.  The accuracy is
        then "normwise" unless "scaled" is asked for.
    levels : int
        How often to apply ``scheme``: 0 to 3.
    plan : ProductPlan, optional
        From :func:`plan` or :func:`plan_of`, for the same sides, type and threads; sides of a batch are those of each
        of its products.

    Returns
    -------
    array or torch tensor
        A tensor when ``a`` is one; gradients flow through it to tensors that require them, by products of the same
        kind.  With the plan "library" the bits are the library's.  With a scheme, a result that is not finite is
        computed again without one.

    Raises
    ------
    BadValueError
        For shapes, types or plans that do not fit, and when memory does not suffice.  float16 and bfloat16 are refused
        on the processor, and so are two types in one product.
    """
    if (
        type(a) is np.ndarray and type(b) is np.ndarray and out is None and threads is None and accuracy is None
        and scheme is None and plan is None and _is_small(a, b)
    ):  # fmt: skip
        # Small matrices that need no preparation: whatever is odd about them is looked at below, this must be quick.
        return np.matmul(a, b)
    asked = Asked(out, threads, accuracy, scheme, levels, plan)
    if (is_tensor(a) or is_tensor(b)) and gradients.are_wanted(a, b, out):
        return gradients.matmul(a, b, asked, matmul)
    if getattr(a, "is_cuda", False):
        from wavetank.kernels.products import gpu

        if threads is not None:
            raise BadValueError("A product on a GPU takes no threads.", given=threads, allowed="None", where="threads")
        return gpu.matmul(a, b, out=out, accuracy=accuracy, scheme=scheme, levels=levels, plan=plan)
    return _on_processor(a, b, asked)


def _is_small(a: NDArray[Any], b: NDArray[Any]) -> bool:
    shape, other = a.shape, b.shape
    return (
        len(shape) == 2 == len(other)
        and shape[1] == other[0]
        and 2.0 * shape[0] * shape[1] * other[1] <= _SMALL_FLOPS
        and shape[0] * other[1] * 8 <= _SMALL_BYTES
        and a.dtype is b.dtype
        and (a.dtype is _KINDS[0] or a.dtype is _KINDS[1])
        and not _QUOTA_BINDS
    )


class _Sides(NamedTuple):
    """Of a product, after vectors became matrices: sides, leading dimensions, and the shape of the result."""

    m: int
    k: int
    n: int
    batch: tuple[int, ...]
    shape: tuple[int, ...]


def _on_processor(a: Any, b: Any, asked: Asked) -> Any:
    if asked.plan is not None and not isinstance(asked.plan, ProductPlan):
        raise BadValueError("The plan is not for the processor.", given=type(asked.plan).__name__,
                            allowed="ProductPlan")  # fmt: skip
    prepared = b if isinstance(b, PreparedMatrix) else None
    _check_types(a, b)
    as_tensor, left = is_tensor(a), array_of(a, "a")
    right = prepared.source if prepared is not None else array_of(b, "b")
    kind = _kind(left.dtype)
    if right.dtype != left.dtype:
        raise _of_two_types(left.dtype, right.dtype)
    sides = _sides(left.shape, right.shape)
    result, final = _result(asked.out, sides.shape, left.dtype, [left, right])
    whole = _as_matrices(result, left.ndim == 1, right.ndim == 1)
    left, right = (left[None] if left.ndim == 1 else left), (right[:, None] if right.ndim == 1 else right)
    together = left.flags.c_contiguous and whole.flags.c_contiguous
    if left.ndim > 2 and right.ndim == 2 and asked.plan is None and together:
        # Matrices below each other that share the right one are one long matrix.
        rows = math.prod(left.shape[:-1])
        left, whole = left.reshape(rows, sides.k), whole.reshape(rows, sides.n)
        sides = sides._replace(m=rows, batch=())
    chosen, limited = _chosen(sides, kind, asked, prepared, as_tensor)
    if 0 in (sides.m, sides.k, sides.n, *sides.batch):
        whole[...] = 0
    else:
        _multiply_all(left, right, whole, chosen, prepared, limited)
    if final is not None:
        final[...] = result
    if asked.out is not None:
        return asked.out
    return sys.modules["torch"].from_numpy(result) if as_tensor else result[()] if result.ndim == 0 else result


def _as_matrices(result: NDArray[Any], row: bool, column: bool) -> NDArray[Any]:
    """Return a view of the result with the sides that vectors lack."""
    if column:
        result = result[..., None]
    return result[..., None, :] if row else result


def _multiply_all(
    left: NDArray[Any], right: NDArray[Any], whole: NDArray[Any], chosen: ProductPlan, prepared: PreparedMatrix | None,
    limited: bool,
) -> None:  # fmt: skip
    """Multiply every pair of matrices of a batch."""
    if chosen.method == "library" and prepared is None:
        name = chosen.choice.library
        if not limited:
            libraries.multiply(name, left, right, whole)
            return
        with libraries_limited(chosen.threads):
            libraries.multiply(name, left, right, whole)
        return
    batch = whole.shape[:-2]
    left, right = (np.broadcast_to(each, batch + each.shape[-2:]) for each in (left, right))
    for place in np.ndindex(batch):
        _multiply(left[place], right[place], whole[place], chosen, prepared)


def _multiply(
    left: NDArray[Any], right: NDArray[Any], result: NDArray[Any], chosen: ProductPlan, prepared: PreparedMatrix | None
) -> None:
    from wavetank.kernels.products import combined, fused, scaling

    sides = f"{chosen.m} x {chosen.k} x {chosen.n}"
    require_memory(chosen.workspace_bytes, f"The workspace of a product of {sides}")
    left, right = _with_neighbours(left), _with_neighbours(right)
    x, y = left, right
    scales = None
    if chosen.is_scaled:
        scales = scaling.scales_of(left, right, chosen.threads)
        x, y = np.empty(left.shape, left.dtype), np.empty(right.shape, right.dtype)
        scaling.scaled(left, -scales.rows, scales.inside, x, chosen.threads)
        scaling.scaled(right, -scales.inside, -scales.columns, y, chosen.threads)
    if prepared is not None:
        fused.fused_product(x, None, result, prepared.scheme, chosen.threads, prepared.packed)
    elif chosen.method == "fused":
        fused.fused_product(x, y, result, chosen.scheme, chosen.threads)
    else:

        def multiply(p: NDArray[Any], q: NDArray[Any], o: NDArray[Any]) -> None:
            libraries.multiply(chosen.choice.library, p, q, o)

        with libraries_limited(chosen.threads):
            combined.combined_product(x, y, result, chosen.scheme, multiply, chosen.threads)
    if scales is not None:
        scaling.scaled(result, scales.rows, scales.columns, result, chosen.threads)
    if chosen.scheme.rank > 1 and not scaling.is_finite(result):
        # A scheme spreads one infinite entry over a whole block; the classical product keeps it in its row and column.
        fused.fused_product(left, right, result, CLASSICAL, chosen.threads)


@dataclass(frozen=True, eq=False)
class PreparedMatrix:
    """A right operand whose sums are formed and packed once; made by :func:`prepare`.

    ``shape``, ``dtype`` and ``scheme`` say what it is, ``nbytes`` what the packed sums take.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    scheme: Scheme
    source: NDArray[Any]
    packed: PackedRight

    @property
    def nbytes(self) -> int:
        """Return the bytes of the packed sums: rank over blocks times those of the matrix, and padding."""
        return int(self.packed.room.nbytes)


def prepare(
    b: Any, *, scheme: str | Scheme = "classical", levels: int = 1, threads: int | None = None
) -> PreparedMatrix | PreparedTensor:
    """Pack a right operand that many products share, such as a layer's weights, or its sums for a scheme.

    Parameters
    ----------
    b : array or torch tensor, shape (k, n)
        Kept as well, for results that are not finite; do not change it afterwards.
    scheme : str or Scheme
        Errors of products with another than "classical" are those of the accuracy "normwise", see :func:`matmul`.
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
    if is_tensor(b):
        gradients.check_constant(b)
    _check_types(b, b)
    matrix = array_of(b, "b")
    _kind(matrix.dtype)
    if matrix.ndim != 2:
        raise BadValueError(
            "Only a matrix can be prepared.", given=f"shape {matrix.shape}", allowed="(rows, columns)", where="b",
            hint="prepare each matrix of a batch",
        )  # fmt: skip
    matrix = _with_neighbours(matrix)
    chosen = scheme_of(scheme, levels)
    need = 2 * matrix.nbytes * chosen.rank // (chosen.k * chosen.n)
    require_memory(need, f"Preparing a matrix of {matrix.shape[0]} x {matrix.shape[1]}")
    if min(matrix.shape) == 0:
        raise BadValueError(
            "An empty matrix cannot be prepared.", given=matrix.shape, allowed="at least one row and column"
        )
    from wavetank.kernels.products import fused

    packed = fused.PackedRight(matrix, chosen, _threads(threads))
    return PreparedMatrix(matrix.shape, matrix.dtype, chosen, matrix, packed)


def _chosen(
    sides: _Sides, kind: str, asked: Asked, prepared: PreparedMatrix | None, as_tensor: bool
) -> tuple[ProductPlan, bool]:
    """Return the plan, and whether libraries are to be limited to its threads."""
    m, k, n = sides.m, sides.k, sides.n
    given = asked.plan
    if asked.accuracy is not None:
        check_accuracy(asked.accuracy)
    if isinstance(given, ProductPlan):
        threads = given.threads if asked.threads is None else _threads(asked.threads)
        wanted, has = (m, k, n, kind, threads), (given.m, given.k, given.n, given.dtype, given.threads)
        alone = asked.scheme is None and prepared is None and asked.accuracy in (None, given.accuracy)
        if wanted != has or not alone:
            raise BadValueError(
                "The plan is for another product.", given=has,
                allowed=f"{wanted}, and neither scheme, accuracy nor prepared matrix",
                hint="plan(m, k, n, dtype=..., threads=..., accuracy=...)",
            )  # fmt: skip
        return given, True
    # A tensor's library first: where nothing else is said, its bits are what the caller expects.
    caller = "torch" if as_tensor else "numpy"
    if prepared is None and asked.scheme is None:
        accuracy = asked.accuracy or "library"
        quick = asked.threads is None and 2.0 * m * k * n <= _QUICK_FLOPS and accuracy == "library"
        if quick and not _QUOTA_BINDS and not profile.is_any_kept(kind):
            return _planned(m, k, n, kind, usable_cores(), accuracy, caller), False
        return _planned(m, k, n, kind, _threads(asked.threads), accuracy, caller), True
    if prepared is not None and asked.scheme is not None:
        raise BadValueError("A prepared matrix brings its own scheme.", given=asked.scheme, allowed="no scheme")
    scheme = prepared.scheme if prepared is not None else scheme_of(asked.scheme or "classical", asked.levels)
    if prepared is not None and asked.accuracy == "scaled" and scheme.rank > 1:
        raise BadValueError(
            "A prepared matrix cannot be scaled.", given="accuracy='scaled'", allowed="normwise", where="accuracy",
            hint="scaling depends on the left matrix; give the matrix itself, or prepare it with scheme='classical'",
        )  # fmt: skip
    accuracy = asked.accuracy or ("library" if scheme.rank == 1 else "normwise")
    threads = _threads(asked.threads)
    return plan_of(m, k, n, "fused", scheme, dtype=kind, threads=threads, accuracy=accuracy), True


def _threads(threads: int | None) -> int:
    if threads is None:
        return allowed_threads()
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or not 1 <= threads <= 1024:
        raise BadValueError("The number of threads is wrong.", given=threads, allowed="1 to 1024", where="threads")
    return allowed_threads(int(threads))


def _library(name: str) -> str:
    if name not in libraries.LIBRARIES:
        raise BadValueError(
            "There is no such library.", given=name, allowed=libraries.LIBRARIES,
            nearest=nearest_of(str(name), libraries.LIBRARIES),
        )  # fmt: skip
    if name not in libraries.available():
        raise BadValueError(
            "The library is not loaded.", given=name,
            hint=f"wavetank.kernels.products.libraries.load({name!r}) loads it",
        )  # fmt: skip
    return name


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype not in _KINDS or not dtype.isnative:
        raise BadValueError(
            "The product is for float32 and float64 in the machine's byte order.", given=str(dtype),
            allowed="float32, float64", hint="convert with .astype(np.float32), or use numpy.matmul for integers",
        )  # fmt: skip
    return dtype.name


def _type_name(value: Any) -> str:
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


def _check_types(a: Any, b: Any) -> None:
    """Refuse half precision and two types by name, before anything is converted."""
    for value, name in ((a, "a"), (b, "b")):
        kind = _type_name(value)
        if kind in ("float16", "bfloat16"):
            hint = ".float() converts; on a GPU both are multiplied" if is_tensor(value) else ".astype(np.float32)"
            raise BadValueError(
                f"{kind} is not multiplied on the processor, where it would be slower than float32.", given=kind,
                allowed="float32, float64", where=name, hint=hint,
            )  # fmt: skip
    if {_type_name(a), _type_name(b)} == {"float32", "float64"}:
        raise _of_two_types(_type_name(a), _type_name(b))


def _of_two_types(one: object, other: object) -> BadValueError:
    return BadValueError(
        "Both matrices must have the same type.", given=f"{one} and {other}", allowed="float32 or float64, twice",
        hint="convert one: .astype(np.float64) of an array or .double() of a tensor keeps every digit",
    )  # fmt: skip


def _sides(a: tuple[int, ...], b: tuple[int, ...]) -> _Sides:
    for shape, name in ((a, "a"), (b, "b")):
        if not shape:
            raise BadValueError("A number is not a matrix.", given="shape ()", allowed="one dimension or more",
                                where=name, hint="* multiplies by a number")  # fmt: skip
    rows, inner = (a[-2] if len(a) > 1 else 1), a[-1]
    deep, columns = (b[0], 1) if len(b) == 1 else (b[-2], b[-1])
    if inner != deep:
        raise BadValueError(
            "The inner sides of a product must agree.", given=f"{a} and {b}",
            allowed=f"a second matrix with {inner} rows",
        )  # fmt: skip
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise BadValueError(
            "The leading dimensions of a product must broadcast.", given=f"{a} and {b}",
            allowed="equal lengths, or 1, from the right", hint="as numpy.matmul has it",
        ) from None  # fmt: skip
    shape = batch + ((rows,) if len(a) > 1 else ()) + ((columns,) if len(b) > 1 else ())
    return _Sides(rows, inner, columns, batch, shape)


def _with_neighbours(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix that has neighbours in memory along one direction at least; a copy only where it must be."""
    size = matrix.itemsize
    down, across = matrix.strides
    if (across == size or matrix.shape[1] == 1) and down >= 0 and down % size == 0 and matrix.flags.aligned:
        if across == size:
            return matrix
    elif down == size and across >= 0 and across % size == 0 and matrix.flags.aligned:
        return matrix
    return np.require(matrix, requirements=("C", "A"))


def _result(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], inputs: list[NDArray[Any]]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the array to compute into and, if that is not the caller's, the caller's."""
    if out is None:
        require_memory(math.prod(shape) * dtype.itemsize, f"A result of {' x '.join(map(str, shape))}")
        return np.empty(shape, dtype), None
    if not (isinstance(out, np.ndarray) or is_tensor(out)):
        raise BadValueError(
            "The result is written into an array or a tensor.", given=type(out).__name__, where="out",
            hint="leave it out, and take what is returned",
        )  # fmt: skip
    target = target_of(out, "out")
    if target.shape != shape or target.dtype != dtype:
        raise BadValueError(
            "The array for the result does not fit.", given=f"{target.shape} {target.dtype}",
            allowed=f"{shape} {dtype}", where="out",
        )  # fmt: skip
    if not target.flags.writeable:
        raise BadValueError("The array for the result is read-only.", where="out")
    if any(np.may_share_memory(target, matrix) for matrix in inputs):
        raise BadValueError("The array for the result overlaps an input.", where="out", allowed="memory of its own")
    if overlaps_itself(target):
        raise BadValueError(
            "Entries of the array for the result share memory.", given=f"strides {target.strides}", where="out",
            allowed="an entry of its own for each of the result",
        )  # fmt: skip
    rows_together = target.ndim == 0 or (target.strides[-1] == dtype.itemsize and min(target.strides) >= 0)
    if rows_together and target.flags.aligned:
        return target, None
    return np.empty(shape, dtype), target


@dataclass(frozen=True, kw_only=True)
class FalconGemm:
    """:func:`matmul` as a system, at one accuracy.

    Parameters
    ----------
    accuracy : str
        "library" as by default, "scaled" or "normwise"; see :func:`matmul`.
    """

    accuracy: str = setting("normwise", says="Kind of error bound", choices=decision.ACCURACIES)

    def planned(self, m: int, k: int, n: int, dtype: Any, threads: int) -> ProductPlan:
        """Return the plan for these sides."""
        return plan(m, k, n, dtype=dtype, threads=threads, accuracy=self.accuracy)

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Callable[[], Any]:
        """Return the call to time; planning is part of it."""
        return lambda: matmul(a, b, threads=threads, accuracy=self.accuracy)
