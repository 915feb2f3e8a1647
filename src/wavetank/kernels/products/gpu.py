"""``matmul`` on a GPU: torch's product or, where other errors are allowed, a scheme with fewer products.

A library multiplies slowly where rows begin anywhere in memory, as those of an odd length do: then operands are copied
into rows that are aligned, filled up with zeros, where the profile says that this pays.  Of a scheme, all sums of an
operand are formed in one pass, all products are one batched product of the library, and one more pass
spreads them to the result; or our own kernel multiplies and adds each product to the result while it is in registers.
A GPU multiplies so fast that the passes decide: the profile that ``wavetank profile`` has measured says from which size
on a scheme pays.  A product never measures; without a profile it is torch's.

Differs from the source:
1. Products without the fused kernel go through torch's batched product; the profile decides which.
2. Schemes are for those who ask for the accuracy "normwise".
3. Where a result is not finite, a classical product follows on the device, without waiting for the host.
4. No FP8.

Float32 is multiplied as torch is set: in float32, or rounded to TF32 after
``torch.set_float32_matmul_precision("high")``.  Sums of float16 and bfloat16 are formed in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, MissingExtraError, missing_extra, nearest_of
from wavetank.kernels.products import gpu_profile, gradients
from wavetank.kernels.products.decision import METHODS, Candidate, Chosen, check_accuracy, check_sides, choose
from wavetank.kernels.products.gpu_profile import GpuProfile
from wavetank.kernels.products.gradients import Asked as _Asked
from wavetank.kernels.products.schemes import BUILT_IN, CLASSICAL, Scheme, scheme_of
from wavetank.machine.cuda import found_gpu, free_bytes, require_free, require_torch
from wavetank.machine.limits import require_memory

if TYPE_CHECKING:
    from wavetank.kernels.products.decision import ProductPlan

DTYPES = ("float16", "bfloat16", "float32", "float64")
WAYS = (*METHODS, "padded")
"""How a product can be computed; see :class:`GpuPlan`."""
LARGEST_RANK = 512
"""Products of a scheme: passes are unrolled over them when they are compiled."""
_NEEDED_FOR = "A product on a GPU"
_LEVELS = 2
_LEAST_BLOCK = 512
# Sides of blocks: rows of 16 elements of any type are aligned for the widest loads, which take 16 bytes.
_ALIGNED, _ROW_BYTES = 16, 16
_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# Unit roundoff of what is kept, and of what is summed.  Tensor cores cut off where others round: twice the roundoff.
_KEPT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_SUMMED = {"float16": 2.0**-23, "bfloat16": 2.0**-23, "float32": 2.0**-23, "float64": 2.0**-52}
_TF32 = 2.0**-10


class Sides(NamedTuple):
    """Of a block: rows, inner length and columns, each a multiple of 16."""

    high: int
    deep: int
    wide: int


def sides_of(m: int, k: int, n: int, scheme: Scheme) -> Sides:
    """Return the sides of the blocks of a product; what reaches over an edge counts as zero."""
    pairs = zip((m, k, n), (scheme.m, scheme.k, scheme.n), strict=True)
    return Sides(*(-(-size // (parts * _ALIGNED)) * _ALIGNED for size, parts in pairs))


def is_aligned(k: int, n: int, dtype: str) -> bool:
    """Return whether the rows of contiguous operands with k and n columns begin where the widest loads may."""
    return all(side * _ITEMSIZE[dtype] % _ROW_BYTES == 0 for side in (k, n))


def _filled(side: int) -> int:
    """Return a side filled up until rows of any type are aligned."""
    return -(-side // _ALIGNED) * _ALIGNED


def workspace_bytes(m: int, k: int, n: int, dtype: str, method: str, scheme: Scheme, prepared: bool = False) -> int:
    """Return the most memory of the GPU that a product allocates beside its result, in bytes.

    With R products of blocks of h x d by d x w and s bytes an element: the sums take R s (h d + d w), less R s d w
    where the right operand is prepared. Products take R s h w more where the library multiplies; where our kernel does,
    partial sums of 4 bytes take 4 h w a block of the result for float16 and bfloat16. Sixteen bytes a coefficient
    of the result hold the kernel's table. 0 for a library, whose scratch is its own; copies of what is filled up where
    operands are padded.
    """
    if method == "library":
        return 0
    if method == "padded":
        deep, wide = _filled(k), _filled(n)
        copied = m * deep * (deep != k) + deep * wide * ((deep, wide) != (k, n)) + m * wide * (wide != n)
        return _ITEMSIZE[dtype] * copied
    high, deep, wide = sides_of(m, k, n, scheme)
    size = _ITEMSIZE[dtype]
    need = scheme.rank * size * (high * deep + (0 if prepared else deep * wide))
    if method == "combined":
        need += scheme.rank * size * high * wide
    elif size == 2:
        need += 4 * scheme.m * scheme.n * high * wide
    return need + 16 * (scheme.terms[2] + scheme.rank + 2)


def error_bound(m: int, k: int, n: int, dtype: str, method: str, scheme: Scheme, tf32: bool) -> float:
    """Return a bound of the largest error of an entry, relative to max|A| max|B|.

    For block c of the result the sum over products r of |w| |u|_1 |v|_1 d, with d the inner length of a block, times
    (1 + a)(1 + b)(1 + t)^2 (1 + g(d))(1 + p)(1 + g(l))(1 + e) - 1. Here e is the unit roundoff of the type; a and b are
    0 for a sum of one block and e + g(length) else; t is 2^-10 for TF32, else 0; p is e where products are kept in
    memory, else 0; l is the number of products in the block; g(j) = exp(j s) - 1, which is at least (1 + s)^j - 1 and
    grows without end, with s = 2^-23, or 2^-52 for float64, the roundoff of summing.  It holds for any order, as long
    as nothing over- or underflows and torch sums products of halves in float32:
    ``torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False``, and the like for float16.
    """
    deep = k if scheme.rank == 1 else sides_of(m, k, n, scheme).deep
    kept, summed = _KEPT[dtype], _SUMMED[dtype]

    def grown(lengths: NDArray[Any] | float) -> Any:
        return np.exp(np.asarray(lengths) * summed)

    def formed(table: NDArray[np.int64]) -> NDArray[Any]:
        lengths, weights = np.count_nonzero(table, axis=1), np.abs(table).sum(1)
        return np.where((lengths == 1) & (weights == 1), 1.0, grown(lengths) * (1.0 + kept))

    factor = formed(scheme.u) * formed(scheme.v) * float(grown(deep)) * (1.0 + (_TF32 if tf32 else 0.0)) ** 2
    if method == "combined":
        factor = factor * (1.0 + kept)
    weight = np.abs(scheme.u).sum(1) * np.abs(scheme.v).sum(1) * deep
    lengths = np.count_nonzero(scheme.w, axis=0) if scheme.rank > 1 else np.zeros(1)
    whole = factor[:, None] * grown(lengths)[None, :] * (1.0 + kept) - 1.0
    return float((np.abs(scheme.w) * weight[:, None] * whole).sum(0).max())


@dataclass(frozen=True)
class GpuPlan(Chosen):
    """How one product is going to be computed on a GPU, and what that costs.

    Parameters
    ----------
    m, k, n : int
        Sides: (m x k) times (k x n).
    dtype : str
    tf32 : bool
        Whether float32 is rounded to TF32; always false for other types.
    choice : Candidate
        Method "library" is torch's product, "padded" the same with operands copied into aligned rows, "combined" its
        batched product between our passes, "fused" our kernel.
    candidates : tuple of Candidate
        All that were considered, fastest first; their predicted times are seconds, NaN where a plan was asked for.
    prepared : bool
        Whether the sums of the right operand are there already.
    """

    m: int
    k: int
    n: int
    dtype: str
    tf32: bool
    choice: Candidate
    candidates: tuple[Candidate, ...] = field(default=(), repr=False)
    prepared: bool = False

    @property
    def flops(self) -> float:
        """Return the operations of all block products, edges filled up."""
        if self.method == "library":
            return 2.0 * self.m * self.k * self.n
        if self.method == "padded":
            return 2.0 * self.m * _filled(self.k) * _filled(self.n)
        return 2.0 * math.prod(sides_of(self.m, self.k, self.n, self.scheme)) * self.scheme.rank

    @property
    def workspace_bytes(self) -> int:
        """Return the most memory of the GPU used beside inputs and result; see :func:`workspace_bytes`."""
        return workspace_bytes(self.m, self.k, self.n, self.dtype, self.method, self.scheme, self.prepared)

    @property
    def error_bound(self) -> float:
        """Return a bound of the largest error of an entry, relative to max|A| max|B|; see :func:`error_bound`."""
        return error_bound(self.m, self.k, self.n, self.dtype, self.method, self.scheme, self.tf32)

    def __str__(self) -> str:
        kind = f"{self.dtype} as TF32" if self.tf32 else self.dtype
        product = f"{self.m} x {self.k} x {self.n} {kind}, GPU"
        return self.described(product, self.workspace_bytes, f"{self.error_bound:.3g} max|A| max|B|")


def predict(candidate: Candidate, m: int, k: int, n: int, profile: GpuProfile, prepared: bool = False) -> float:
    """Return the predicted seconds of a candidate on a product of these sides."""
    scheme, size = candidate.scheme, _ITEMSIZE[profile.dtype]
    if candidate.method == "library":
        return profile.product_s("library" if is_aligned(k, n, profile.dtype) else "unaligned", m, k, n)
    if candidate.method == "padded":
        # Each copy reads as much as it writes.
        moved = 2 * workspace_bytes(m, k, n, profile.dtype, "padded", scheme)
        product_s = profile.product_s("library", m, _filled(k), _filled(n))
        return product_s + moved / profile.pass_bytes_per_s + 4 * profile.launch_s
    high, deep, wide = sides_of(m, k, n, scheme)
    moved = size * (m * k + scheme.rank * high * deep)
    if not prepared:
        moved += size * (k * n + scheme.rank * deep * wide)
    # A pass an operand, and the classical product that ends at once.
    launches = 2 if prepared else 3
    if candidate.method == "combined":
        products_s = scheme.rank * profile.product_s("batched", high, deep, wide)
        moved += size * (scheme.rank * high * wide + m * n)
        launches += 1
    else:
        products_s = scheme.rank * profile.product_s("own", high, deep, wide)
        # The profile's products have the contributions of Strassen's; each further one is read and written.
        usual = BUILT_IN["strassen"].terms[2] / BUILT_IN["strassen"].rank
        moved += int(2 * max(size, 4) * max(0.0, scheme.terms[2] - usual * scheme.rank) * high * wide)
    return products_s + moved / profile.pass_bytes_per_s + launches * profile.launch_s


def candidates_of(
    m: int, k: int, n: int, profile: GpuProfile, schemes: Iterable[Scheme] | None = None, prepared: bool = False
) -> tuple[Candidate, ...]:
    """Return all ways to multiply with their predicted times, fastest first.

    Parameters
    ----------
    m, k, n : int
    profile : GpuProfile
    schemes : iterable of Scheme, optional
        By default one and two levels of Strassen's and Winograd's.  A scheme is left out where a block would have a
        side below 512, or where it has more than 512 products.
    prepared : bool
        Whether the right operand's sums are there already; then schemes are taken as they are, without further levels.
    """
    basic = [BUILT_IN["strassen"], BUILT_IN["winograd"]] if schemes is None else list(schemes)
    tried: list[Scheme] = []
    for scheme in basic:
        for levels in range(1, 2 if prepared else _LEVELS + 1):
            if not _is_large(m, k, n, scheme, levels):
                break
            tried.append(scheme.power(levels))
    found = [Candidate("library", "torch", CLASSICAL, math.nan)]
    if not is_aligned(k, n, profile.dtype) and min(m, k, n) >= _LEAST_BLOCK:
        found.append(Candidate("padded", "torch", CLASSICAL, math.nan))
    found += [Candidate("combined", "torch", scheme, math.nan) for scheme in tried]
    found += [Candidate("fused", "", scheme, math.nan) for scheme in tried]
    timed = [each._replace(predicted_s=predict(each, m, k, n, profile, prepared)) for each in found]
    return tuple(sorted(timed, key=lambda each: each.predicted_s))


def _is_large(m: int, k: int, n: int, scheme: Scheme, levels: int) -> bool:
    """Return whether a scheme of this many levels is considered."""
    blocks = (-(-m // scheme.m**levels), -(-k // scheme.k**levels), -(-n // scheme.n**levels))
    return min(blocks) >= _LEAST_BLOCK and 1 < scheme.rank**levels <= LARGEST_RANK


def plan(
    m: int,
    k: int,
    n: int,
    *,
    dtype: Any = "float32",
    device: Any = "cuda",
    accuracy: str = "library",
    schemes: Iterable[Scheme] | None = None,
) -> GpuPlan:
    """Decide how to multiply (m x k) by (k x n) on a GPU; nothing is measured.

    Parameters
    ----------
    m, k, n : int
    dtype : str or torch.dtype
        float16, bfloat16, float32 or float64.
    device : str or torch.device
    accuracy : str
        ``"library"`` for torch's product, or the same of operands in aligned rows; ``"normwise"`` for schemes as well.
    schemes : iterable of Scheme, optional
        Beside the library's product; by default Strassen's and Winograd's in one and two levels.

    Returns
    -------
    GpuPlan
        The fastest by the profile that ``wavetank profile`` has kept and whose workspace the GPU has room for; torch's
        product where none is kept.

    Raises
    ------
    BadValueError
    """
    torch = require_torch(_NEEDED_FOR)
    check_sides(m, k, n)
    kind = _kind(str(dtype).removeprefix("torch."))
    _check_accuracy(accuracy)
    given = () if accuracy == "library" else None if schemes is None else tuple(schemes)
    return _planned(torch, int(m), int(k), int(n), kind, _device(torch, device), given, prepared=False)


def _check_accuracy(accuracy: str) -> None:
    check_accuracy(accuracy)
    if accuracy == "scaled":
        raise BadValueError(
            "Products on a GPU are not scaled by rows and columns.", given=accuracy, allowed="library, normwise",
            where="accuracy",
        )  # fmt: skip


def plan_of(m: int, k: int, n: int, method: str, scheme: Scheme, *, dtype: Any = "float32") -> GpuPlan:
    """Return the plan that uses a given method and scheme, without asking any profile.

    Parameters
    ----------
    m, k, n : int
    method : str
        ``"library"``, ``"padded"``, ``"combined"`` or ``"fused"``.
    scheme : Scheme
        Ignored by ``"library"`` and ``"padded"``.
    dtype
        As of :func:`plan`.
    """
    if method not in WAYS:
        raise BadValueError(
            "There is no such way to multiply.", given=method, allowed=WAYS, nearest=nearest_of(str(method), WAYS)
        )
    plain = method in ("library", "padded")
    if not plain and scheme.rank > LARGEST_RANK:
        raise BadValueError(
            "The scheme has too many products for a GPU.", given=scheme.rank, allowed=f"at most {LARGEST_RANK}",
            where=scheme.name,
        )  # fmt: skip
    kind = _kind(str(dtype).removeprefix("torch."))
    choice = Candidate(method, "" if method == "fused" else "torch", CLASSICAL if plain else scheme, math.nan)
    return GpuPlan(m, k, n, kind, _tf32(require_torch(_NEEDED_FOR), kind), choice, (choice,))


def _planned(
    torch: Any, m: int, k: int, n: int, kind: str, device: Any, schemes: tuple[Scheme, ...] | None, prepared: bool
) -> GpuPlan:
    tf32 = _tf32(torch, kind)
    basic = (BUILT_IN["strassen"], BUILT_IN["winograd"]) if schemes is None else schemes
    odd = not is_aligned(k, n, kind) and min(m, k, n) >= _LEAST_BLOCK
    if not (odd or any(_is_large(m, k, n, scheme, 1) for scheme in basic)) or not _has_kernels():
        measured = None
    else:
        measured = gpu_profile.kept(device, kind, tf32)
    if measured is None:
        choice = Candidate("library", "torch", CLASSICAL, math.nan)
        return GpuPlan(m, k, n, kind, tf32, choice, (choice,), prepared)
    found = _candidates(m, k, n, measured, schemes, prepared)
    fits = found
    choice = choose(fits)
    # To ask the driver takes longer than a small product, and a library needs no workspace.
    if choice.method != "library":
        free = free_bytes(device)
        fits = tuple(
            each for each in found if workspace_bytes(m, k, n, kind, each.method, each.scheme, prepared) <= 0.9 * free
        )
        choice = choose(fits)
    return GpuPlan(m, k, n, kind, tf32, choice, found, prepared)


_candidates = functools.lru_cache(maxsize=4096)(candidates_of)


@dataclass(frozen=True, eq=False)
class PreparedTensor:
    """A right operand on a GPU whose sums are formed once; made by :func:`prepare`.

    ``shape``, ``dtype`` and ``scheme`` say what it is, ``nbytes`` what its sums take.
    """

    source: Any
    scheme: Scheme
    sums: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows and columns of the operand."""
        return int(self.source.shape[0]), int(self.source.shape[1])

    @property
    def dtype(self) -> Any:
        """Return the operand's type."""
        return self.source.dtype

    @property
    def nbytes(self) -> int:
        """Return the bytes of the sums."""
        return int(self.sums.nbytes)


def prepare(b: Any, *, scheme: str | Scheme = "strassen", levels: int = 1) -> PreparedTensor:
    """Form the sums of a right operand that many products share, such as a layer's weights.

    Parameters
    ----------
    b : tensor on a GPU, shape (k, n)
        Kept as well; do not change it afterwards.
    scheme : str or Scheme
    levels : int

    Returns
    -------
    PreparedTensor
        To be given to :func:`matmul` in the place of ``b``; products with it use this scheme, or the library.
    """
    torch = require_torch(_NEEDED_FOR)
    gradients.check_constant(b)
    matrix = _tensor(torch, b, "b").resolve_neg()
    chosen = scheme_of(scheme, levels)
    if 0 in matrix.shape:
        raise BadValueError(
            "An empty matrix cannot be prepared.", given=tuple(matrix.shape), allowed="at least one row and column"
        )
    if chosen.rank > LARGEST_RANK:
        raise BadValueError("The scheme has too many products for a GPU.", given=chosen.rank, where=chosen.name)
    _, deep, wide = sides_of(1, matrix.shape[0], matrix.shape[1], chosen)
    need = chosen.rank * deep * wide * matrix.element_size()
    _require(matrix.device, need, f"Preparing a matrix of {matrix.shape[0]} x {matrix.shape[1]}")
    with _on(torch, matrix.device):
        return PreparedTensor(matrix, chosen, _kernels().form_sums(matrix, chosen, "v", (deep, wide)))


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    accuracy: str | None = None,
    scheme: str | Scheme | None = None,
    levels: int = 1,
    plan: GpuPlan | ProductPlan | None = None,
) -> Any:
    """Return the matrix product ``a @ b`` on the GPU the tensors are on, by default torch's.

    Parameters
    ----------
    a : tensor, shape (m, k)
        float16, bfloat16, float32 or float64, any strides; never modified.
    b : tensor, shape (k, n), or PreparedTensor
        Of the same type, on the same GPU.
    out : tensor, shape (m, n), optional
        Receives the result; must not overlap the inputs.
    accuracy : str, optional
        ``"library"``, the default, for torch's product, of operands in aligned rows where the kept profile predicts
        that copying them pays; ``"normwise"`` for a scheme where the kept profile predicts
        that it saves 5 % of the time, with errors up to :attr:`GpuPlan.error_bound` times max|A| max|B|.
    scheme : str or Scheme, optional
        Use this scheme around the library's batched product: "strassen", "winograd", or one that was read.
    levels : int
        How often to apply ``scheme``: 0 to 3.
    plan : GpuPlan, optional
        From :func:`plan` or :func:`plan_of`, for the same sides and type; a processor's is refused.

    Returns
    -------
    tensor
        Gradients flow through it to tensors that require them.  Work is queued on the current stream; nothing waits for
        it.  With the plan "library" the bits are torch's.  With a scheme, a result that is not finite is computed again
        without one.

    Raises
    ------
    BadValueError
        For shapes, types, devices or plans that do not fit, and when the GPU's memory does not suffice.
    """
    torch = require_torch(_NEEDED_FOR)
    if gradients.are_wanted(a, b, out):
        asked = _Asked(out, None, accuracy, scheme, levels, plan)
        return gradients.matmul(a, b, asked, lambda x, y, threads=None, **options: matmul(x, y, **options))
    if plan is not None and not isinstance(plan, GpuPlan):
        raise BadValueError("The plan is not for a GPU.", given=type(plan).__name__, allowed="GpuPlan",
                            hint="wavetank.kernels.products.gpu.plan(m, k, n, dtype=...)")  # fmt: skip
    left = _tensor(torch, a, "a").resolve_neg()
    prepared = b if isinstance(b, PreparedTensor) else None
    right = prepared.source if prepared is not None else _tensor(torch, b, "b").resolve_neg()
    if right.dtype != left.dtype or right.device != left.device:
        raise BadValueError(
            "Both matrices must have the same type, on the same GPU.",
            given=f"{left.dtype} on {left.device} and {right.dtype} on {right.device}",
            allowed=f"{left.dtype} on {left.device}, twice", hint="convert one with .to(other)",
        )  # fmt: skip
    if left.shape[1] != right.shape[0]:
        raise BadValueError(
            "The inner sides of a product must agree.", given=f"{tuple(left.shape)} and {tuple(right.shape)}",
            allowed=f"a second matrix with {left.shape[1]} rows",
        )  # fmt: skip
    m, k, n = int(left.shape[0]), int(left.shape[1]), int(right.shape[1])
    with _on(torch, left.device):
        result, final = _result(torch, out, left, right)
        chosen = _chosen(torch, m, k, n, left, _Asked(out, None, accuracy, scheme, levels, plan), prepared)
        if min(m, k, n) == 0:
            result.zero_()
        else:
            _multiply(torch, chosen, left, right, result, prepared)
        if final is not None:
            final.copy_(result)
    return result if out is None else out


def _multiply(torch: Any, chosen: GpuPlan, left: Any, right: Any, result: Any, prepared: PreparedTensor | None) -> None:
    if chosen.method == "library":
        torch.mm(left, right, out=result)
        return
    sides = f"{chosen.m} x {chosen.k} x {chosen.n}"
    _require(left.device, chosen.workspace_bytes, f"The workspace of a product of {sides}")
    if chosen.method == "padded":
        _multiply_padded(torch, left, right, result)
        return
    kernels, scheme = _kernels(), chosen.scheme
    high, deep, wide = sides_of(chosen.m, chosen.k, chosen.n, scheme)
    tile = kernels.tile_for(left.dtype, chosen.tf32, gpu_profile.shared_bytes(left.device))
    flag = torch.zeros(1, dtype=torch.int32, device=left.device)
    sums = kernels.form_sums(left, scheme, "u", (high, deep))
    others = kernels.form_sums(right, scheme, "v", (deep, wide)) if prepared is None else prepared.sums
    if chosen.method == "combined":
        kernels.spread(torch.bmm(sums, others), result, scheme, flag)
    else:
        kernels.multiply_and_spread(sums, others, result, scheme, flag, tile, chosen.tf32)
    # A scheme spreads one infinite entry over a whole block; the classical product keeps it in its row and column.
    kernels.multiply_again(left, right, result, flag, tile, chosen.tf32)


def _multiply_padded(torch: Any, left: Any, right: Any, result: Any) -> None:
    """Write the library's product of operands that were copied into rows of a multiple of 16 elements."""
    (m, k), n = left.shape, right.shape[1]
    deep, wide = _filled(k), _filled(n)
    if deep != k:
        longer = left.new_empty((m, deep))
        longer[:, :k].copy_(left)
        # Zeros in both operands: what an empty tensor holds may not be finite.
        longer[:, k:].zero_()
        left = longer
    if (deep, wide) != (k, n):
        larger = right.new_empty((deep, wide))
        larger[:k, :n].copy_(right)
        larger[k:].zero_()
        larger[:k, n:].zero_()
        right = larger
    if wide == n:
        torch.mm(left, right, out=result)
    else:
        result.copy_(torch.mm(left, right)[:, :n])


def _chosen(torch: Any, m: int, k: int, n: int, left: Any, asked: _Asked, prepared: PreparedTensor | None) -> GpuPlan:
    kind = _kind(str(left.dtype).removeprefix("torch."))
    given, scheme = asked.plan, asked.scheme
    if asked.accuracy is not None:
        _check_accuracy(asked.accuracy)
    if isinstance(given, GpuPlan):
        tf32 = _tf32(torch, kind)
        wanted, has = (m, k, n, kind, tf32), (given.m, given.k, given.n, given.dtype, given.tf32)
        alone = scheme is None and asked.accuracy is None
        if wanted != has or not alone or (prepared is not None and prepared.scheme is not given.scheme):
            raise BadValueError(
                "The plan is for another product.", given=has,
                allowed=f"{wanted} (sides, type, TF32), and no other scheme or accuracy",
                hint="plan(m, k, n, dtype=...)",
            )  # fmt: skip
        return given
    if prepared is not None:
        if scheme is not None:
            raise BadValueError("A prepared matrix brings its own scheme.", given=scheme, allowed="no scheme")
        if asked.accuracy == "library":
            return plan_of(m, k, n, "library", CLASSICAL, dtype=kind)
        if left.device.type == "cuda":
            return _planned(torch, m, k, n, kind, left.device, (prepared.scheme,), prepared=True)
        return plan_of(m, k, n, "combined", prepared.scheme, dtype=kind)
    if scheme is not None:
        found = scheme_of(scheme, asked.levels)
        if asked.accuracy == "library" and found.rank > 1:
            raise BadValueError(
                "A scheme does not have the accuracy of a library.", given=f"{found.name}, accuracy='library'",
                allowed="a scheme with accuracy 'normwise'", where="accuracy",
            )  # fmt: skip
        return plan_of(m, k, n, "combined", found, dtype=kind)
    if left.device.type != "cuda":
        return plan_of(m, k, n, "library", CLASSICAL, dtype=kind)
    schemes = () if asked.accuracy in (None, "library") else None
    return _planned(torch, m, k, n, kind, left.device, schemes, prepared=False)


@functools.cache
def _has_kernels() -> bool:
    try:
        _kernels()
    except MissingExtraError:
        return False
    return True


def _kernels() -> Any:
    try:
        from wavetank.kernels.products import gpu_passes
    except ImportError as error:
        if error.name is not None and error.name.startswith("triton"):
            raise missing_extra("triton", "torch", needed_for="A product with a scheme on a GPU") from None
        raise
    return gpu_passes


def _device(torch: Any, device: Any) -> Any:
    try:
        found = torch.device(device)
        if found.type != "cuda" or not found_gpu():
            raise BadValueError("The device is no GPU that torch can use.", given=str(device), allowed="cuda, cuda:1")
        return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    except RuntimeError as error:
        raise BadValueError(
            "There is no such device.", given=str(device), allowed="cuda, cuda:1", hint=str(error).splitlines()[0]
        ) from None


def _on(torch: Any, device: Any) -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    if device.type == "cuda":
        stack.enter_context(torch.cuda.device(device))
    return stack


def _tf32(torch: Any, kind: str) -> bool:
    if kind != "float32":
        return False
    try:
        return bool(torch.get_float32_matmul_precision() != "highest")
    except RuntimeError:
        # A program that sets the precision of its matrix products by the newer names cannot be asked by the old one.
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def rounds_to_tf32(tensor: Any) -> bool:
    """Return whether torch, as it is set, rounds a product of such tensors to TF32."""
    return _tf32(require_torch(_NEEDED_FOR), str(tensor.dtype).removeprefix("torch."))


def _kind(name: str) -> str:
    if name not in DTYPES:
        raise BadValueError(
            "The product on a GPU is for floating-point numbers.", given=name, allowed=DTYPES,
            nearest=nearest_of(name, DTYPES), hint="convert with .to(torch.float32), or use torch.matmul",
        )  # fmt: skip
    return name


def _tensor(torch: Any, value: Any, name: str) -> Any:
    if not isinstance(value, torch.Tensor):
        raise BadValueError("A matrix on a GPU is a torch tensor.", given=type(value).__name__, where=name)
    if value.layout != torch.strided:
        raise BadValueError("The tensor is not dense.", given=str(value.layout), allowed="torch.strided", where=name)
    if value.device.type != "cuda" and not (value.device.type == "cpu" and _has_kernels() and _kernels().INTERPRETED):
        raise BadValueError(
            "The tensor is not on a GPU that this product supports.", given=str(value.device), allowed="cuda",
            where=name, hint="move it with .cuda(); wavetank.kernels.matmul takes tensors in main memory",
        )  # fmt: skip
    if value.ndim != 2:
        raise BadValueError(
            "A matrix has two dimensions.", given=f"shape {tuple(value.shape)}", allowed="(rows, columns)",
            where=name, hint="loop over the leading dimensions, or reshape them into rows",
        )  # fmt: skip
    _kind(str(value.dtype).removeprefix("torch."))
    return value.detach()


def _result(torch: Any, out: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Return the tensor to compute into and, if that is not the caller's, the caller's."""
    shape = (int(left.shape[0]), int(right.shape[1]))
    need = shape[0] * shape[1] * left.element_size()
    if out is None:
        _require(left.device, need, f"A result of {shape[0]} x {shape[1]}")
        return torch.empty(shape, dtype=left.dtype, device=left.device), None
    target = _tensor(torch, out, "out")
    if tuple(target.shape) != shape or target.dtype != left.dtype or target.device != left.device:
        raise BadValueError(
            "The tensor for the result does not fit.", given=f"{tuple(target.shape)} {target.dtype} on {target.device}",
            allowed=f"{shape} {left.dtype} on {left.device}", where="out",
        )  # fmt: skip
    if any(_overlap(target, matrix) for matrix in (left, right)):
        raise BadValueError("The tensor for the result overlaps an input.", where="out", allowed="memory of its own")
    if target.stride(1) == 1 and target.stride(0) >= shape[1] and not target.is_neg():
        return target, None
    _require(left.device, need, f"A result of {shape[0]} x {shape[1]}")
    return torch.empty(shape, dtype=left.dtype, device=left.device), target


def _overlap(x: Any, y: Any) -> bool:
    def span(tensor: Any) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    if x.numel() == 0 or y.numel() == 0:
        return False
    (start, stop), (begin, end) = span(x), span(y)
    return start < end and begin < stop


def _require(device: Any, need: int, purpose: str) -> None:
    """Refuse what does not fit into the GPU's memory, before anything is allocated."""
    hint = "take a smaller product, or free memory first"
    if device.type != "cuda":
        require_memory(need, purpose, hint)
        return
    # To ask the driver takes longer than a small product.
    if need >= 1 << 24:
        require_free(device, need, purpose, hint=hint)
