"""Which way to multiply: a library's product, our own, or one to three levels of a scheme, by predicted time.

What may be chosen depends on the accuracy that is asked for.  At the accuracy of the libraries only plain products are
candidates; schemes come in with bounds by rows and columns, or by the norm.  Every candidate's time is predicted from a
measured profile: the products of its blocks, plus what the sums move.  The least wins; a library is left only for a
clear gain, so that errors of the prediction do not cost the user anything.

Source: H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026, decision module; C.-P. Jeannerod, S. Rump, "Improved Error
Bounds for Inner Products in Floating-Point Arithmetic", SIAM J. Matrix Anal. Appl. 34(2), 2013 (the bounds).

Differs from the source:
1. Rates come from a measured grid of shapes; sums formed while packing cost by the element instead of by bandwidth.
2. A plan states a bound of its error, from the coefficients of its scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, nearest_of
from wavetank.kernels.products.schemes import BUILT_IN, CLASSICAL, LARGEST_LEVELS, Scheme

if TYPE_CHECKING:
    from wavetank.kernels.products.profile import ProductProfile

METHODS = ("library", "fused", "combined")
ACCURACIES = ("library", "scaled", "normwise")
"""What errors are bounded by: those of a plain product, entry by entry; row times column; or the norm of the whole."""
# A predicted lead has to be this large at least, however calm the machine was when it was measured: of one library over
# another, of our own plain product, of a scheme.
_LIBRARY_GAIN, _OWN_GAIN, _SCHEME_GAIN = 0.02, 0.03, 0.05
_LEAST_BLOCK = 128


class Candidate(NamedTuple):
    """One way to multiply.

    ``method`` is "library", "fused" (our own product, sums formed while packing) or "combined" (passes around a
    library's product).
    """

    method: str
    library: str
    """Empty for our own product."""
    scheme: Scheme
    predicted_s: float

    @property
    def label(self) -> str:
        """Return the name in tables: method and scheme, or the library."""
        if self.method == "library":
            return self.library
        return f"{self.method} {self.scheme.name}" + (f" on {self.library}" if self.library else "")


def check_sides(m: int, k: int, n: int) -> None:
    """Refuse sides of a product that are no whole numbers."""
    for name, side in (("m", m), ("k", k), ("n", n)):
        if isinstance(side, bool) or not isinstance(side, int | np.integer) or side < 0:
            raise BadValueError(
                "A side of a product must be a whole number.", given=side, allowed="0 or more", where=name
            )


def check_method(method: str) -> None:
    """Refuse a way to multiply that does not exist."""
    if method not in METHODS:
        raise BadValueError(
            "There is no such way to multiply.", given=method, allowed=METHODS, nearest=nearest_of(str(method), METHODS)
        )


def check_accuracy(accuracy: str) -> None:
    """Refuse an accuracy that does not exist."""
    if accuracy not in ACCURACIES:
        raise BadValueError(
            "There is no such accuracy.", given=accuracy, allowed=ACCURACIES,
            nearest=nearest_of(str(accuracy), ACCURACIES), where="accuracy",
        )  # fmt: skip


class Chosen:
    """What the plans of processors and GPUs have in common: a choice, and what it was chosen from."""

    choice: Candidate
    candidates: tuple[Candidate, ...]

    @property
    def method(self) -> str:
        """Return "library", "fused" or "combined"."""
        return self.choice.method

    @property
    def scheme(self) -> Scheme:
        """Return the scheme, classical for a plain product."""
        return self.choice.scheme

    @property
    def multiplications(self) -> int:
        """Return the number of block products."""
        return self.scheme.rank

    def described(self, product: str, workspace_bytes: int, bound: str) -> str:
        """Return the choice, what it costs and the fastest candidates, a line each."""
        timed = [each for each in self.candidates[:8] if not math.isnan(each.predicted_s)]
        rows = "".join(f"\n  {each.label:<32} {each.predicted_s:.4g} s" for each in timed)
        return f"{product}: {self.choice.label}\n  workspace {workspace_bytes} bytes, error bound {bound}{rows}"


@dataclass(frozen=True)
class ProductPlan(Chosen):
    """How one product is going to be computed, and what that costs.

    Parameters
    ----------
    m, k, n : int
        Sides: (m x k) times (k x n).
    dtype : str
    threads : int
    choice : Candidate
    candidates : tuple of Candidate
        All that were considered, fastest first; their predicted times are seconds, NaN where nothing was measured.
    accuracy : str
        What errors are bounded by: "library", "scaled" or "normwise", see :func:`wavetank.kernels.matmul`.
    basis : str
        What the choice was made from.
    """

    m: int
    k: int
    n: int
    dtype: str
    threads: int
    choice: Candidate
    candidates: tuple[Candidate, ...] = field(default=(), repr=False)
    accuracy: str = "normwise"
    basis: str = field(default="", compare=False)

    @property
    def is_scaled(self) -> bool:
        """Return whether rows and columns are scaled around the scheme."""
        return self.accuracy == "scaled" and self.scheme.rank > 1

    @property
    def flops(self) -> float:
        """Return the operations of all block products, 2 m k n R / (blocks) up to padding."""
        high, deep, wide = _block(self.m, self.k, self.n, self.scheme)
        return 2.0 * high * deep * wide * self.scheme.rank

    @property
    def workspace_bytes(self) -> int:
        """Return the most memory used beside inputs and result; 0 for a library, whose scratch is its own.

        Scaling takes copies of both operands and 200 bytes per row, column and inner index.
        """
        if self.method == "library":
            return 0
        sides = (self.m, self.k, self.n)
        if self.method == "fused":
            from wavetank.kernels.products import fused

            need = fused.workspace_bytes(*sides, self.dtype, self.scheme, self.threads)
        else:
            from wavetank.kernels.products import combined

            need = combined.workspace_bytes(*sides, self.dtype, self.scheme)
        if self.is_scaled:
            size = np.dtype(self.dtype).itemsize
            need += (self.m + self.n) * self.k * size + 200 * (self.threads + 1) * sum(sides)
        return need

    @property
    def error_bound(self) -> float:
        """Return a bound of the largest error of an entry; see :func:`error_bound` and ``accuracy``.

        Relative to the largest entry of A times that of B; with the accuracy "scaled" relative to the scales of the
        entry's row and column, as :func:`wavetank.kernels.products.scaling.scales_of` returns them.
        """
        return error_bound(self.k, self.dtype, self.scheme)

    def __str__(self) -> str:
        product = f"{self.m} x {self.k} x {self.n} {self.dtype}, {self.threads} thread(s)"
        of = "a row's scale times a column's" if self.is_scaled else "max|A| max|B|"
        described = self.described(product, self.workspace_bytes, f"{self.error_bound:.3g} {of}")
        return described + (f"\n  from {self.basis}" if self.basis else "")


def error_bound(k: int, dtype: str, scheme: Scheme) -> float:
    """Return a bound of the largest error of an entry of a product, relative to max|A| max|B|.

    For block c of the result, with the unit roundoff e and the inner length d of a block, the sum over products r of
    |w| |u|_1 |v|_1 d ((1 + e l(u)) (1 + e l(v)) (1 + e d) (1 + e l(w)) - 1), where l counts coefficients that are not
    zero, and of the blocks the largest.  A plain product errs by at most k e times the sum of the terms' absolute
    values.  A sum of l terms errs by at most l e times the sum of their absolute values, in whatever order it is formed
    and however large l e is (Jeannerod and Rump), so the bound is positive and grows with k without end; above 1 / e it
    says nothing more than that of a sum of which every digit may be wrong.  It holds as long as nothing over- or
    underflows.

    Parameters
    ----------
    k : int
        Inner dimension of the whole product.
    dtype : str
        ``"float32"`` or ``"float64"``.
    scheme : Scheme
    """
    unit = float(np.finfo(dtype).eps) / 2
    deep = -(-k // scheme.k)
    if scheme.rank == 1:
        return k * (k * unit)
    formed = np.log1p(unit * np.count_nonzero(scheme.u, axis=1)) + np.log1p(unit * np.count_nonzero(scheme.v, axis=1))
    spread = np.log1p(unit * np.count_nonzero(scheme.w, axis=0))
    grown = np.expm1(formed[:, None] + spread[None, :] + math.log1p(unit * deep))
    weight = np.abs(scheme.u).sum(1) * np.abs(scheme.v).sum(1) * float(deep)
    return float((np.abs(scheme.w) * weight[:, None] * grown).sum(0).max())


def _block(m: int, k: int, n: int, scheme: Scheme) -> tuple[int, int, int]:
    return -(-m // scheme.m), -(-k // scheme.k), -(-n // scheme.n)


# Passes over operands and result around a scaled scheme: exponents of both before and after the inside step and once
# more, the copies, read and written, and the result, read and written.
_SCALING_PASSES, _RESULT_PASSES = 5, 2


def predict(candidate: Candidate, m: int, k: int, n: int, profile: ProductProfile, scaled: bool = False) -> float:
    """Return the predicted seconds of a candidate on a product of these sides."""
    if candidate.method == "library":
        return profile.product_s(candidate.library, m, k, n)
    scheme = candidate.scheme
    high, deep, wide = _block(m, k, n, scheme)
    left, right, result = scheme.terms
    ours = "own" if scheme.rank == 1 else "block"
    products_s = scheme.rank * profile.product_s(candidate.library or ours, high, deep, wide)
    if scaled and scheme.rank > 1:
        products_s += profile.pass_s * (_SCALING_PASSES * k * (m + n) + _RESULT_PASSES * m * n)
    if candidate.method == "fused":
        # One block of each kind is part of any plain product; the results' are read and written.
        moved = (left - scheme.rank) * high * deep + (right - scheme.rank) * deep * wide
        moved += 2 * (result - scheme.rank) * high * wide
        return products_s + profile.term_s * moved
    moved = (left + scheme.rank) * high * deep + (right + scheme.rank) * deep * wide
    moved += (2 * result + scheme.rank) * high * wide
    return products_s + profile.pass_s * moved


def candidates_of(
    m: int,
    k: int,
    n: int,
    profile: ProductProfile,
    libraries: Iterable[str],
    schemes: Iterable[Scheme] | None = None,
    scaled: bool = False,
) -> tuple[Candidate, ...]:
    """Return all ways to multiply with their predicted times, fastest first.

    Parameters
    ----------
    m, k, n : int
    profile : ProductProfile
    libraries : iterable of str
        Those that may be used.
    schemes : iterable of Scheme, optional
        By default one to three levels of Strassen's and Winograd's, none with an empty one.  Levels are added while
        blocks are large enough.
    scaled : bool
        Whether schemes are scaled by rows and columns, which costs passes over operands and result.
    """
    basic = [BUILT_IN["strassen"], BUILT_IN["winograd"]] if schemes is None else list(schemes)
    tried = []
    for scheme in basic:
        for levels in range(1, LARGEST_LEVELS + 1):
            # Blocks grow fewer by the level, and a catalog's large schemes are for one level.
            if min(_block(m, k, n, scheme)) < _LEAST_BLOCK or scheme.rank**levels > 512:
                break
            powered = scheme.power(levels)
            if min(_block(m, k, n, powered)) < _LEAST_BLOCK:
                break
            tried.append(powered)
    found = [Candidate("library", name, CLASSICAL, math.nan) for name in libraries]
    found += [Candidate("fused", "", scheme, math.nan) for scheme in (CLASSICAL, *tried)]
    found += [Candidate("combined", name, scheme, math.nan) for scheme in tried for name in libraries]
    timed = [each._replace(predicted_s=predict(each, m, k, n, profile, scaled)) for each in found]
    return tuple(sorted(timed, key=lambda each: each.predicted_s))


def choose(candidates: tuple[Candidate, ...], library: str | None = None, spread: float = 0.0) -> Candidate:
    """Return the fastest candidate if it is clearly ahead, else a plain product, the library's in doubt.

    A plain product leaves the library for a lead of 2 %, if it is another library's, or 3 %, if it is ours.  A scheme
    is taken only if it is predicted to take at most 95 % of the time of every plain product.

    Parameters
    ----------
    candidates : tuple of Candidate
        As of :func:`candidates_of`.
    library : str, optional
        Whose product stays where nothing is clearly ahead of it; by default the fastest library's.
    spread : float
        Of the profile's measurements: a lead has to be larger.
    """
    plain = [each for each in candidates if each.scheme.rank == 1]
    stays = next(each for each in plain if each.method == "library" and library in (None, each.library))
    chosen = stays
    for each in sorted(plain, key=lambda each: each.predicted_s):
        gain = _LIBRARY_GAIN if each.method == "library" else _OWN_GAIN
        if each.predicted_s <= (1.0 - max(gain, spread)) * stays.predicted_s:
            chosen = each
            break
    schemes = [each for each in candidates if each.scheme.rank > 1]
    best = min(schemes, key=lambda each: each.predicted_s, default=None)
    least = min(each.predicted_s for each in plain)
    if best is not None and best.predicted_s <= (1.0 - max(_SCHEME_GAIN, spread)) * least:
        return best
    return chosen
