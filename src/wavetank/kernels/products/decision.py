"""Which way to multiply: the library's product, our own, or one to three levels of a scheme, by predicted time.

Every candidate's time is predicted from a measured profile: the products of its blocks, plus what the sums move. The
least wins; a library is left only for a clear gain, so that errors of the prediction do not cost the user anything.

Source: H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026, decision module.

Differs from the source:
1. Rates come from a measured grid of shapes; sums formed while packing cost by the element instead of by bandwidth.
2. A plan states a bound of its error, from the coefficients of its scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError, nearest_of
from wavetank.kernels.products import combined, fused
from wavetank.kernels.products.profile import ProductProfile
from wavetank.kernels.products.schemes import BUILT_IN, CLASSICAL, LARGEST_LEVELS, Scheme

METHODS = ("library", "fused", "combined")
# A predicted lead has to be this large at least, however calm the machine was when it was measured.
_CLEAR_GAIN = 0.03
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


def check_method(method: str) -> None:
    """Refuse a way to multiply that does not exist."""
    if method not in METHODS:
        raise BadValueError(
            "There is no such way to multiply.", given=method, allowed=METHODS, nearest=nearest_of(str(method), METHODS)
        )


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

    def told(self, product: str, workspace_bytes: int, error_bound: float) -> str:
        """Return the choice, what it costs and the fastest candidates, a line each."""
        rows = "\n".join(f"  {each.label:<32} {each.predicted_s:.4g} s" for each in self.candidates[:8])
        return (
            f"{product}: {self.choice.label}\n"
            f"  workspace {workspace_bytes} bytes, error bound {error_bound:.3g} max|A| max|B|\n{rows}"
        )


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
        All that were considered, fastest first; their predicted times are seconds, NaN where a plan was asked for.
    """

    m: int
    k: int
    n: int
    dtype: str
    threads: int
    choice: Candidate
    candidates: tuple[Candidate, ...] = field(default=(), repr=False)

    @property
    def flops(self) -> float:
        """Return the operations of all block products, 2 m k n R / (blocks) up to padding."""
        high, deep, wide = _block(self.m, self.k, self.n, self.scheme)
        return 2.0 * high * deep * wide * self.scheme.rank

    @property
    def workspace_bytes(self) -> int:
        """Return the most memory used beside inputs and result; 0 for a library, whose scratch is its own."""
        if self.method == "library":
            return 0
        if self.method == "fused":
            return fused.workspace_bytes(self.m, self.k, self.n, self.dtype, self.scheme, self.threads)
        return combined.workspace_bytes(self.m, self.k, self.n, self.dtype, self.scheme)

    @property
    def error_bound(self) -> float:
        """Return a bound of the largest error of an entry, relative to max|A| max|B|.

        For every block c of the result: the sum over products of |w| |u|_1 |v|_1 K gamma(K + sums), with K the inner
        length of a block, gamma(j) = j u / (1 - j u), u the unit roundoff and the sums' lengths added. It holds for any
        order of summation, as long as nothing overflows.
        """
        scheme = self.scheme
        _, deep, _ = _block(self.m, self.k, self.n, scheme)
        unit = float(np.finfo(self.dtype).eps) / 2
        lengths = (np.count_nonzero(scheme.u, axis=1) + np.count_nonzero(scheme.v, axis=1))[:, None]
        lengths = lengths + np.count_nonzero(scheme.w, axis=0)[None, :] + deep
        gamma = lengths * unit / (1.0 - lengths * unit)
        weight = np.abs(scheme.u).sum(1) * np.abs(scheme.v).sum(1)
        return float((np.abs(scheme.w) * weight[:, None] * deep * gamma).sum(0).max())

    def __str__(self) -> str:
        product = f"{self.m} x {self.k} x {self.n} {self.dtype}, {self.threads} thread(s)"
        return self.told(product, self.workspace_bytes, self.error_bound)


def _block(m: int, k: int, n: int, scheme: Scheme) -> tuple[int, int, int]:
    return -(-m // scheme.m), -(-k // scheme.k), -(-n // scheme.n)


def predict(candidate: Candidate, m: int, k: int, n: int, profile: ProductProfile) -> float:
    """Return the predicted seconds of a candidate on a product of these sides."""
    if candidate.method == "library":
        return profile.product_s(candidate.library, m, k, n)
    scheme = candidate.scheme
    high, deep, wide = _block(m, k, n, scheme)
    left, right, result = scheme.terms
    ours = "own" if scheme.rank == 1 else "block"
    products_s = scheme.rank * profile.product_s(candidate.library or ours, high, deep, wide)
    if candidate.method == "fused":
        # One block of each kind is part of any plain product; the results' are read and written.
        moved = (left - scheme.rank) * high * deep + (right - scheme.rank) * deep * wide
        moved += 2 * (result - scheme.rank) * high * wide
        return products_s + profile.term_s * moved
    moved = (left + scheme.rank) * high * deep + (right + scheme.rank) * deep * wide
    moved += (2 * result + scheme.rank) * high * wide
    return products_s + profile.pass_s * moved


def candidates_of(
    m: int, k: int, n: int, profile: ProductProfile, libraries: Iterable[str], schemes: Iterable[Scheme] | None = None
) -> tuple[Candidate, ...]:
    """Return all ways to multiply with their predicted times, fastest first.

    Parameters
    ----------
    m, k, n : int
    profile : ProductProfile
    libraries : iterable of str
        Those that may be used.
    schemes : iterable of Scheme, optional
        By default one to three levels of Strassen's and Winograd's.  Levels are added while blocks are large enough.
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
    timed = [each._replace(predicted_s=predict(each, m, k, n, profile)) for each in found]
    return tuple(sorted(timed, key=lambda each: each.predicted_s))


def choose(candidates: tuple[Candidate, ...], library: str | None = None, spread: float = 0.0) -> Candidate:
    """Return the fastest candidate if it is clearly ahead, else the library's product.

    Parameters
    ----------
    candidates : tuple of Candidate
        As of :func:`candidates_of`.
    library : str, optional
        Whose product stays where nothing is clearly ahead of it; by default the fastest library's.
    spread : float
        Of the profile's measurements: a lead has to be larger.
    """
    plain = next(each for each in candidates if each.method == "library" and library in (None, each.library))
    best = candidates[0]
    clear = best.predicted_s < (1.0 - max(_CLEAR_GAIN, spread)) * plain.predicted_s
    return best if clear else plain
