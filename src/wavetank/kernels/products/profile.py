"""What products cost on this machine: measured when the user asks for it, by type and number of threads, and kept.

Each way to multiply is timed on a small grid of shapes, from thin to square; between grid points the rate is
interpolated in the logarithms of the sides.  Two more figures say what each further block in a sum costs.  This module
is the measuring border: it reads the clock, which the products never do.

Source: the closed-form model of H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026.

Differs from the source:
1. The rate of a plain product comes from a measured grid instead of a roofline, since libraries are far from it when
thin.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.products import libraries, priors
from wavetank.kernels.products.schemes import CLASSICAL, STRASSEN, repeated
from wavetank.machine import profiles
from wavetank.machine.limits import cpu_model, others_cores
from wavetank.machine.threads import libraries_limited, usable_cores
from wavetank.terminal import say
from wavetank.units import show

OURS = ("own", "block")
"""Ways that every profile has, beside libraries."""
GRID = (16, 128, 768, 2304)
"""Sides on which plain products are timed."""
# Sums are timed where they do not stay in a cache; less on a smaller grid.
_TERM_SIDE = 3456
_ROUNDS = 5
# Products inside a scheme are timed several per call, about this many operations together.
_REPEATED_FLOPS = 1e10
# A shorter call is repeated within a round.
_SHORTEST_S = 5e-4
# Threads of a library spin on for about 20 ms after a product; large products of others are timed after that.
_REST_S = 0.03
# Rounds that differ by more are measured again, as long as the profile as a whole takes no longer than the budget.
_CALM, _BUDGET_S = 0.04, 35.0
LARGEST_SPREAD = 0.1
"""Above this spread a profile says more of what else ran than of the machine, and is refused."""
# Products from this size on are those for which schemes come into question: their spread counts.
_LARGE_FLOPS = 2.0 * 2304 * 2304 * 768


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
        Way to floating-point operations per second on the grid: libraries by name, "own" for our product, "block" for
        one of the products inside a scheme, which does not pay for the call.
    term_s : float
        Seconds an element of a further block in a sum costs the fused product.
    pass_s : float
        Seconds an element of a block costs the separate passes around a library's product.
    spread : float
        By what share ratios of times differed between rounds, at worst among large products: a lead below it is
        none.
    others_cores : float
        Cores that other processes used meanwhile, on average.
    versions : mapping
        Library to the version that was measured: others are not judged by these figures.
    conditions : mapping
        What all figures hold for, as of :func:`conditions_of`.
    """

    dtype: str
    threads: int
    grid: tuple[int, ...]
    rates: Mapping[str, Any] = field(repr=False)
    term_s: float
    pass_s: float
    spread: float = 0.0
    others_cores: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict, repr=False)
    conditions: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def disturbed(self) -> str:
        """Why the machine was too busy for figures that are worth keeping; empty where it was calm."""
        return profiles.disturbance(self.spread, LARGEST_SPREAD, self.others_cores, usable_cores())

    def covers(self, library: str) -> bool:
        """Return whether a library was measured, in the version that is loaded."""
        return library in self.rates and libraries.versions([library]).get(library) == self.versions.get(library)

    def product_s(self, way: str, m: int, k: int, n: int) -> float:
        """Return the seconds of a plain product of these sides by ``way``."""
        return interpolated_s(self.rates[way], self.grid, (m, k, n))

    # By identity: profiles hold lists, and the kept one is the same object until it is forgotten.
    __hash__ = object.__hash__


def interpolated_s(rates: Any, grid: tuple[int, ...], sides: tuple[int, int, int]) -> float:
    """Return the seconds of a product from rates on a grid, interpolated in the logarithms of the sides.

    Below the grid the call itself takes the time: a side of 1 costs as much as the grid's least.

    Parameters
    ----------
    rates : nested list of float
        Operations/s over rows, inner dimension and columns.
    grid : tuple of int
        Sides, ascending, at least two.
    sides : tuple of int
        Rows, inner dimension and columns.
    """
    table, marks = np.log(np.asarray(rates, dtype=float)), np.log(np.asarray(grid, dtype=float))
    sides = (max(sides[0], grid[0]), max(sides[1], grid[0]), max(sides[2], grid[0]))
    for place in map(math.log, sides):
        low = int(np.clip(np.searchsorted(marks, place) - 1, 0, len(marks) - 2))
        share = float(np.clip((place - marks[low]) / (marks[low + 1] - marks[low]), 0.0, 1.0))
        table = table[low] * (1.0 - share) + table[low + 1] * share
    return 2.0 * math.prod(sides) / math.exp(float(table))


def _rounds(calls: Mapping[str, Callable[[], object]], rest_s: float) -> dict[str, NDArray[np.float64]]:
    """Return the seconds of each call, round by round; in a round all are called in turn, short ones many times."""
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = int(np.clip(_SHORTEST_S / max(time.perf_counter() - start, 1e-9), 1, 200))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            if rest_s > 0:
                time.sleep(rest_s)
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: np.array(taken) for name, taken in times.items()}


def _times(m: int, k: int, n: int) -> int:
    """Return how many products of these sides are timed in one call: more where they are short."""
    return int(np.clip(_REPEATED_FLOPS / (2.0 * m * k * n), 2, 8))


def spread_of(times: Mapping[str, NDArray[np.float64]]) -> float:
    """Return by what share ratios of times differ between rounds, the two outermost rounds left aside.

    Parameters
    ----------
    times : mapping
        Seconds of each call, round by round. Calls of a round follow each other, so that their ratio does not feel a
        machine that is slower as a whole; with a single call the times themselves are compared.
    """
    first, *others = times.values()
    ratios = [each / first for each in others] or [first]
    return max(float(np.ptp(np.sort(each)[1:-1]) / np.median(each)) for each in ratios)


class _Clock:
    """Measures until the machine was calm, as far as the time allowed for the whole profile goes."""

    def __init__(self, threads: int) -> None:
        self._rest_s = _REST_S if threads > 1 else 0.0
        self._end = time.perf_counter() + _BUDGET_S
        self.spread = 0.0

    def times(
        self, calls: Mapping[str, Callable[[], object]], counts: bool, aside: Iterable[str] = ()
    ) -> dict[str, NDArray[np.float64]]:
        """Return the calmest of up to three measurements.

        ``counts`` says whether its spread is the profile's; ways named in ``aside`` are timed, but may be unsteady.
        """

        def spread_in(times: Mapping[str, NDArray[np.float64]]) -> float:
            return spread_of({name: taken for name, taken in times.items() if name not in aside})

        rest_s = self._rest_s if counts else 0.0
        best = _rounds(calls, rest_s)
        spread = spread_in(best)
        for _ in range(2):
            if spread <= _CALM or time.perf_counter() > self._end:
                break
            again = _rounds(calls, rest_s)
            if spread_in(again) < spread:
                best, spread = again, spread_in(again)
        if counts:
            self.spread = max(self.spread, spread)
        return best


Report = Callable[[str], object]


def measure(
    dtype: str,
    threads: int,
    ways: tuple[str, ...] | None = None,
    grid: tuple[int, ...] = GRID,
    report: Report = lambda _: None,
) -> ProductProfile:
    """Time plain products and sums: 15 to 45 seconds per type on one core, less on more.

    All ways are timed in turn, round by round, so that a busy machine slows them alike; a measurement whose rounds
    disagree is made again.

    Parameters
    ----------
    dtype : str
        ``"float32"`` or ``"float64"``.
    threads : int
    ways : tuple of str, optional
        Libraries beside our own; by default those that are loaded.
    grid : tuple of int, optional
        Sides on which to time plain products, ascending, at least two.
    report : callable, optional
        Called with what is being measured.
    """
    with libraries_limited(threads):
        return _measured(dtype, threads, libraries.available() if ways is None else ways, grid, report)


def _measured(dtype: str, threads: int, ways: tuple[str, ...], grid: tuple[int, ...], report: Report) -> ProductProfile:
    # Reading a kept profile needs no compiler.
    from wavetank.kernels.products.combined import combined_product
    from wavetank.kernels.products.fused import fused_product

    others = others_cores()
    kind = np.dtype(dtype)
    largest = max(grid)
    rng = np.random.default_rng(0)
    a, b = (rng.random((largest, largest), dtype=kind.type) - kind.type(0.5) for _ in range(2))
    out = np.empty_like(a)
    clock = _Clock(threads)

    def call(way: str, m: int, k: int, n: int) -> Callable[[], object]:
        # Contiguous pieces of the same size as the shape: strides are those of real operands.
        left, right = a.reshape(-1)[: m * k].reshape(m, k), b.reshape(-1)[: k * n].reshape(k, n)
        target = out.reshape(-1)[: m * n].reshape(m, n)
        if way in ("own", "block"):
            scheme = CLASSICAL if way == "own" else repeated(_times(m, k, n))
            return lambda: fused_product(left, right, target, scheme, threads)

        return lambda: libraries.multiply(way, left, right, target)

    names = (*ways, *OURS)
    rates = {way: np.zeros((len(grid),) * 3).tolist() for way in names}
    for i, m in enumerate(grid):
        for j, k in enumerate(grid):
            for p, n in enumerate(grid):
                report(f"{dtype}, {threads} thread(s): {m} x {k} x {n}")
                counts = 2.0 * m * k * n >= _LARGE_FLOPS
                times = clock.times({way: call(way, m, k, n) for way in names}, counts, aside=ways[1:])
                for way in names:
                    products = _times(m, k, n) if way == "block" else 1
                    rates[way][i][j][p] = 2.0 * m * k * n * products / float(np.median(times[way]))
    side = _TERM_SIDE * largest // max(GRID)
    report(f"{dtype}, {threads} thread(s): sums of {side} x {side}")
    x, y, z = (np.resize(array, (side, side)) for array in (a, b, out))
    library = ways[0] if ways else "own"

    def inner(p: Any, q: Any, o: Any) -> None:
        if library == "own":
            fused_product(p, q, o, CLASSICAL, threads)
        else:
            libraries.multiply(library, p, q, o)

    # What a scheme costs beyond its products, one after the other in the same round.
    twice = STRASSEN.power(2)
    quarter, half = -(-side // twice.m), -(-side // STRASSEN.m)
    share = twice.rank / _times(quarter, quarter, quarter)
    fused = clock.times(
        {"products": call("block", quarter, quarter, quarter),
         "scheme": lambda: fused_product(x, y, z, twice, threads)}, counts=True,
    )  # fmt: skip
    passes = clock.times(
        {"product": call(library, half, half, half),
         "scheme": lambda: combined_product(x, y, z, STRASSEN, inner, threads)}, counts=True,
    )  # fmt: skip
    # The results' blocks are read and written, so each counts twice; one block of each kind is part of any product.
    left, right, result = twice.terms
    terms = (left + right + 2 * result - 4 * twice.rank) * quarter * quarter
    left, right, result = STRASSEN.terms
    moved = (left + right + 2 * result + 3 * STRASSEN.rank) * half * half
    # Noise can make a difference negative; a hundredth of a nanosecond is less than any memory takes.
    least = 1e-11
    return ProductProfile(
        dtype=dtype, threads=threads, grid=grid, rates=rates,
        term_s=max(float(np.median(fused["scheme"] - share * fused["products"])) / terms, least),
        pass_s=max(float(np.median(passes["scheme"] - STRASSEN.rank * passes["product"])) / moved, least),
        spread=clock.spread, versions=libraries.versions(ways), conditions=conditions_of(threads),
        others_cores=others(),
    )  # fmt: skip


def conditions_of(threads: int) -> dict[str, str]:
    """Return what a profile holds for: processor, cores, threads, numpy's BLAS, and variables that steer libraries."""
    found = {"cpu": cpu_model(), "cores": str(usable_cores()), "threads": str(threads)}
    return found | libraries.conditions(["numpy"])


_KEPT: dict[tuple[str, int, Path | None], ProductProfile | None] = {}
_ANY: dict[str, bool] = {}


def is_any_kept(dtype: str) -> bool:
    """Return whether any profile of a type is in the store, whatever it holds for; looked up once per process."""
    if dtype not in _ANY:
        _ANY[dtype] = profiles.is_any_kept(_kind(dtype))
    return _ANY[dtype]


def kept(dtype: str, threads: int, folder: Path | None = None) -> ProductProfile | None:
    """Return the profile that was measured and kept under the present conditions; None where there is none.

    Nothing is measured, and a file that is no good counts as none.  What was found is used until the process ends or
    :func:`forget` is called.

    Parameters
    ----------
    dtype : str
    threads : int
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.
    """
    key = (dtype, threads, folder)
    if key not in _KEPT:
        # To look is cheap where nobody ever measured; to ask the libraries what they are is not.
        look = folder is not None or is_any_kept(dtype)
        _KEPT[key] = ProductCosts().read(_kind(dtype), conditions_of(threads), folder) if look else None
    return _KEPT[key]


def forget() -> None:
    """Look at the store again when the next profile is wanted."""
    _KEPT.clear()
    _ANY.clear()


def keep(profile: ProductProfile, folder: Path | None = None) -> Path | None:
    """Keep a profile for later processes, and use it in this one.

    Parameters
    ----------
    profile : ProductProfile
        Rates in operations/s on its grid, costs of sums in seconds per element.
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.

    Returns
    -------
    Path or None
        None, after a warning, where no file can be written.

    Raises
    ------
    BadValueError
        If the machine was too busy while it was measured: what is kept already stays.
    """
    if profile.disturbed:
        raise BadValueError(
            f"The machine was busy while products were measured: {profile.disturbed}.",
            given=f"{profile.dtype}, {profile.threads} thread(s)",
            hint="stop what else runs and measure again; until then products go by what was kept or shipped before",
        )
    content = asdict(profile)
    conditions = content.pop("conditions")
    path = profiles.keep(profiles.Profile(_kind(profile.dtype), ProductCosts.version, conditions, content), folder)
    forget()
    if path is None:
        _KEPT[profile.dtype, profile.threads, folder] = profile
        _ANY[profile.dtype] = True
    return path


def _kind(dtype: str) -> str:
    return f"products-{dtype}"


class ProductCosts(profiles.ProfileKind[ProductProfile]):
    """The profiles of this module."""

    version = 3

    def parsed(self, found: profiles.Profile) -> ProductProfile | None:
        """Return the costs in a profile."""
        given = dict(found.content)
        profile = ProductProfile(**{**given, "grid": tuple(given["grid"]), "conditions": dict(found.conditions)})
        shape = (len(profile.grid),) * 3
        rates = [np.asarray(table, dtype=float) for table in profile.rates.values()]
        sound = len(profile.grid) > 1 and list(profile.grid) == sorted(set(profile.grid)) and profile.grid[0] > 0
        sound = sound and set(OURS) <= set(profile.rates) and isinstance(profile.versions, dict)
        sound = sound and all(table.shape == shape and bool((table > 0).all()) for table in rates)
        sound = sound and profile.term_s > 0 and profile.pass_s > 0 and profile.spread >= 0 and not profile.disturbed
        return profile if sound else None

    def words(self, figures: ProductProfile) -> str:
        """Return the speed of each way on the largest product, and how far rounds differed."""
        return f"largest product: {largest_rates(figures.rates)}; rounds differed by up to {figures.spread:.1%}"

    def steps(
        self, threads: tuple[int, ...], dtypes: tuple[str, ...], named: bool, report: Report
    ) -> Iterator[profiles.Step]:
        """Yield a measurement for each type and number of threads, of every library that can be loaded."""
        for name in libraries.present():
            try:
                libraries.load(name)
            except WavetankError as error:
                say(f"left out: {name}: {error.problem} {error.given or ''}".rstrip(), err=True)

        def step(dtype: str, count: int) -> tuple[Path | None, str]:
            found = measure(dtype, count, report=report)
            return keep(found), self.words(found)

        for count in threads:
            for dtype in dtypes or ("float32", "float64"):
                yield profiles.Step(f"products, {dtype}, {count} thread(s)", functools.partial(step, dtype, count))

    def fallback(self) -> str:
        """Return which shipped figures serve without a profile."""
        prior = priors.here()
        return f"Where no profile holds, products go by what ships for {prior.name} ({prior.basis})."


def largest_rates(rates: Mapping[str, Any]) -> str:
    """Return the speed of each way on the largest shape of its grid, in words.

    Parameters
    ----------
    rates : mapping of str to nested list of float
        Way to operations/s over rows, inner dimension and columns.
    """
    return ", ".join(f"{way} {show(float(table[-1][-1][-1]), 'FLOP/s')}" for way, table in sorted(rates.items()))
