"""What products cost on this machine: measured once a type and number of threads, kept in the user's cache.

Each way to multiply is timed on a small grid of shapes, from thin to square; between grid points the rate is
interpolated in the logarithms of the sides.  Two more figures say what each further block in a sum costs.  This module
is the measuring border: it reads the clock, which the products never do.

Source: the closed-form model of H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026.

Differs from the source:
1. The rate of a plain product comes from a measured grid instead of a roofline, since libraries are far from it when
thin.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.kernels.machine import cache_folder, cpu_model, usable_cores
from wavetank.kernels.products import libraries
from wavetank.kernels.products.combined import combined_product
from wavetank.kernels.products.fused import fused_product
from wavetank.kernels.products.schemes import CLASSICAL, STRASSEN

PROFILE_VERSION = 1
GRID = (16, 128, 768, 2304)
"""Sides on which plain products are timed."""
# Sums are timed where they do not stay in a cache, as a multiple of the largest side of the grid.
_TERM_SIDE = 3456


@dataclass(frozen=True, kw_only=True)
class ProductProfile:
    """What products cost on one machine, for one type and number of threads.

    Parameters
    ----------
    dtype : str
    threads : int
    grid : tuple of int
        Sides; rates are nested lists over rows, inner dimension and columns.
    rates : mapping
        Way ("own", "numpy", "torch") to floating-point operations per second on the grid.
    term_s : float
        Seconds an element of a further block in a sum costs the fused product.
    pass_s : float
        Seconds an element of a block costs the separate passes around a library's product.
    """

    dtype: str
    threads: int
    grid: tuple[int, ...]
    rates: Mapping[str, Any] = field(repr=False)
    term_s: float
    pass_s: float
    version: int = PROFILE_VERSION

    def product_s(self, way: str, m: int, k: int, n: int) -> float:
        """Return the seconds of a plain product of these sides by ``way``."""
        rates = np.log(np.asarray(self.rates[way], dtype=float))
        sides = np.log(np.asarray(self.grid, dtype=float))
        for side in (m, k, n):
            place = math.log(max(side, 1))
            low = int(np.clip(np.searchsorted(sides, place) - 1, 0, len(sides) - 2))
            share = float(np.clip((place - sides[low]) / (sides[low + 1] - sides[low]), 0.0, 1.0))
            rates = rates[low] * (1.0 - share) + rates[low + 1] * share
        flops = 2.0 * m * k * n
        # Below the grid the call itself takes the time, and a side of 1 costs as much as the grid's least.
        least = 2.0 * math.prod(max(side, self.grid[0]) for side in (m, k, n))
        return (least if min(m, k, n) < self.grid[0] else flops) / math.exp(float(rates))


def _least_s(call: Callable[[], object], at_least_s: float = 0.04, repeats: int = 3) -> float:
    """Return the least time of a few calls; short ones are repeated for a while."""
    call()
    best, spent, done = math.inf, 0.0, 0
    while done < repeats or (spent < at_least_s and done < 50):
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best, spent, done = min(best, took), spent + took, done + 1
        if spent > 0.5:
            break
    return best


def measure(
    dtype: str, threads: int, ways: tuple[str, ...] | None = None, grid: tuple[int, ...] = GRID
) -> ProductProfile:
    """Time plain products and sums; some ten seconds a type.

    Parameters
    ----------
    dtype : str
        ``"float32"`` or ``"float64"``.
    threads : int
    ways : tuple of str, optional
        Libraries beside our own; by default those that are loaded.
    grid : tuple of int, optional
        Sides on which to time plain products, ascending, at least two.
    """
    ways = libraries.available() if ways is None else ways
    kind = np.dtype(dtype)
    largest = max(grid)
    rng = np.random.default_rng(0)
    a, b = (rng.random((largest, largest), dtype=kind.type) - kind.type(0.5) for _ in range(2))
    out = np.empty_like(a)

    def call(way: str, m: int, k: int, n: int) -> Callable[[], object]:
        # Contiguous pieces of the same size as the shape: strides are those of real operands.
        left, right = a.reshape(-1)[: m * k].reshape(m, k), b.reshape(-1)[: k * n].reshape(k, n)
        target = out.reshape(-1)[: m * n].reshape(m, n)
        if way == "own":
            return lambda: fused_product(left, right, target, CLASSICAL, threads)

        def multiply() -> None:
            with libraries.held_to(way, threads):
                libraries.multiply(way, left, right, target)

        return multiply

    names = ("own", *ways)
    rates = {way: np.zeros((len(grid),) * 3).tolist() for way in names}
    for i, m in enumerate(grid):
        for j, k in enumerate(grid):
            for p, n in enumerate(grid):
                for way in names:
                    rates[way][i][j][p] = 2.0 * m * k * n / _least_s(call(way, m, k, n))
    side = _TERM_SIDE * largest // max(GRID)
    x, y, z = (np.resize(array, (side, side)) for array in (a, b, out))
    library = ways[0] if ways else "own"
    over, elements = 0.0, 0.0
    for scheme in (STRASSEN.power(2), STRASSEN.power(3)):
        block = -(-side // scheme.m)
        took = _least_s(lambda scheme=scheme: fused_product(x, y, z, scheme, threads), 0.3)  # type: ignore[misc]
        over += took - scheme.rank * _least_s(call("own", block, block, block))
        # The results' blocks are read and written, so each counts twice; one block of each kind is part of any product.
        left, right, result = scheme.terms
        elements += (left + right + 2 * result - 4 * scheme.rank) * block * block

    def inner(p: Any, q: Any, o: Any) -> None:
        if library == "own":
            fused_product(p, q, o, CLASSICAL, threads)
        else:
            with libraries.held_to(library, threads):
                libraries.multiply(library, p, q, o)

    block = -(-side // 2)
    took = _least_s(lambda: combined_product(x, y, z, STRASSEN, inner, threads), 0.3)
    passes = took - STRASSEN.rank * _least_s(call(library, block, block, block))
    left, right, result = STRASSEN.terms
    moved = (left + right + 2 * result + 3 * STRASSEN.rank) * block * block
    # Noise can make a difference negative; a tenth of a nanosecond is less than any memory takes.
    least = 1e-11
    return ProductProfile(
        dtype=dtype, threads=threads, grid=grid, rates=rates, term_s=max(over / elements, least),
        pass_s=max(passes / moved, least),
    )  # fmt: skip


_KEPT: dict[tuple[str, ...], ProductProfile] = {}


def cached(dtype: str, threads: int, folder: Path | None = None) -> ProductProfile:
    """Return the profile measured earlier on this processor under the same libraries, or measure and keep it.

    A file that is damaged or of another version, and a folder that cannot be written, only cost a new measurement.

    Parameters
    ----------
    dtype : str
    threads : int
    folder : Path, optional
        Where profiles are kept; the user's cache folder by default.
    """
    ways = libraries.available()
    kernels = libraries.blas_kernels()
    parts = ["products", cpu_model(), str(usable_cores()), dtype, str(threads), *ways, kernels]
    name = "".join(letter if letter.isalnum() else "-" for letter in "-".join(parts).lower())
    path = (folder or cache_folder()) / f"{name}.json"
    key = (str(path),)
    if key in _KEPT:
        return _KEPT[key]
    profile = _read(path, ways)
    if profile is None:
        profile = measure(dtype, threads, ways)
        _write(path, profile)
    _KEPT[key] = profile
    return profile


def _read(path: Path, ways: tuple[str, ...]) -> ProductProfile | None:
    try:
        kept = json.loads(path.read_text())
        if kept["version"] != PROFILE_VERSION:
            return None
        profile = ProductProfile(**{**kept, "grid": tuple(kept["grid"])})
        shape = (len(profile.grid),) * 3
        rates = [np.asarray(profile.rates[way], dtype=float) for way in ("own", *ways)]
        sound = all(table.shape == shape and bool((table > 0).all()) for table in rates)
        return profile if sound and profile.term_s > 0 and profile.pass_s > 0 else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, profile: ProductProfile) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
            json.dump(asdict(profile), part)
        Path(part.name).replace(path)
    except OSError:
        return
