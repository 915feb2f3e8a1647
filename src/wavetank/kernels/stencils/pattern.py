"""What a stencil computes: which neighbours of a cell count, with which weights, and what lies beyond the grid's edge.

A stencil replaces every cell of a grid by a weighted sum of the cells around it.  The description here is shared by the
reference sweep, the fast kernel, its rivals and the machine models, so that all of them compute the same thing with the
additions in the same order.

Source: finite-difference weights of central second derivatives as in B. Fornberg, "Generation of Finite Difference
Formulas on Arbitrarily Spaced Grids", Mathematics of Computation 51, 1988.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from wavetank.errors import BadValueError, nearest_of, unknown_name

MAX_RADIUS = 4
BOUNDARIES = ("dirichlet", "periodic", "reflect")
"""``dirichlet``: the outermost ``radius`` rows and columns keep their values.  ``periodic``: the grid is a torus.
``reflect``: the grid is mirrored at its edge, the edge cell repeated, as ``scipy.ndimage`` has it."""

# Second derivative, central, of order 2 r: the weight of the cell itself, then those of distance 1, 2, ...
_SECOND_DERIVATIVE: Mapping[int, tuple[float, ...]] = {
    1: (-2.0, 1.0),
    2: (-5 / 2, 4 / 3, -1 / 12),
    3: (-49 / 18, 3 / 2, -3 / 20, 1 / 90),
    4: (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560),
}


@dataclass(frozen=True)
class Stencil:
    """A weighted sum over the neighbours of a cell in two dimensions.

    The terms are kept sorted by row, then column, of the offset.  Code that evaluates the sum in this order with one
    rounding a product and one an addition gets the bits of the reference sweep.

    Parameters
    ----------
    offsets : tuple of (int, int)
        Row and column of each neighbour relative to the cell, each at most :data:`MAX_RADIUS` away, none twice.
    coefficients : tuple of float
        One finite weight for each offset.

    Raises
    ------
    BadValueError
        If there are no offsets, one is too far away or given twice, or the weights do not fit them.

    Examples
    --------
    >>> Stencil.star(1).points
    5
    >>> Stencil.heat(0.25, radius=2).radius
    2
    """

    offsets: tuple[tuple[int, int], ...]
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        offsets, weights = tuple(self.offsets), tuple(self.coefficients)
        if not offsets or len(offsets) != len(weights):
            raise BadValueError(
                "A stencil has one coefficient for each of its offsets, and at least one.",
                given=f"{len(offsets)} offsets, {len(weights)} coefficients",
            )
        terms: dict[tuple[int, int], float] = {}
        for offset, weight in zip(offsets, weights, strict=True):
            place = _offset(offset)
            if place in terms:
                raise BadValueError("An offset is given twice.", given=str(place), hint="add the two coefficients")
            if not isfinite(weight):
                raise BadValueError("A coefficient is not finite.", given=weight, where=f"offset {place}")
            terms[place] = float(weight)
        ordered = sorted(terms)
        object.__setattr__(self, "offsets", tuple(ordered))
        object.__setattr__(self, "coefficients", tuple(terms[place] for place in ordered))

    @property
    def points(self) -> int:
        """Return the number of terms of the sum."""
        return len(self.offsets)

    @property
    def radius(self) -> int:
        """Return the largest distance of a neighbour along either axis; 0 for the cell alone."""
        return max(max(abs(dy), abs(dx)) for dy, dx in self.offsets)

    @property
    def shape(self) -> str:
        """Return ``"star"`` (all cells on the axes), ``"box"`` (all cells of the square) or ``"custom"``."""
        if self.offsets == tuple(_star_offsets(self.radius)):
            return "star"
        return "box" if self.offsets == tuple(_box_offsets(self.radius)) else "custom"

    @property
    def flops_per_point(self) -> int:
        """Return multiplications plus additions of one update of one cell, evaluated term by term."""
        return 2 * self.points - 1

    def coefficients_as(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return the coefficients rounded to ``dtype``, shape (points,), in the order of the offsets."""
        return np.array(self.coefficients, dtype)

    def matrix(self) -> NDArray[np.float64]:
        """Return the weights as a square, shape (2 radius + 1, 2 radius + 1), zero where no neighbour counts."""
        radius = self.radius
        weights = np.zeros((2 * radius + 1, 2 * radius + 1))
        for (dy, dx), weight in zip(self.offsets, self.coefficients, strict=True):
            weights[radius + dy, radius + dx] = weight
        return weights

    @classmethod
    def from_matrix(cls, weights: ArrayLike) -> Stencil:
        """Build a stencil from a square of odd side; cells of weight zero are left out, except the middle one.

        Raises
        ------
        BadValueError
            If the array is no square of odd side up to 2 :data:`MAX_RADIUS` + 1.
        """
        square = np.asarray(weights, np.float64)
        if square.ndim != 2 or square.shape[0] != square.shape[1] or square.shape[0] % 2 == 0:
            raise BadValueError(
                "The weights of a stencil are a square of odd side.",
                given=f"shape {square.shape}",
                allowed=", ".join(f"{side} x {side}" for side in range(1, 2 * MAX_RADIUS + 2, 2)),
            )
        middle = square.shape[0] // 2
        kept = [(int(y), int(x)) for y, x in np.ndindex(square.shape) if square[y, x] or (y, x) == (middle, middle)]
        return cls(tuple((y - middle, x - middle) for y, x in kept), tuple(float(square[at]) for at in kept))

    @classmethod
    def identity(cls) -> Stencil:
        """Build the stencil that leaves every cell as it is."""
        return cls(((0, 0),), (1.0,))

    @classmethod
    def star(cls, radius: int, coefficients: Iterable[float] | None = None) -> Stencil:
        """Build a star: the cells on both axes up to ``radius`` away.

        Parameters
        ----------
        radius : int
            1 to :data:`MAX_RADIUS`.
        coefficients : iterable of float, optional
            4 radius + 1 weights by row, then column; equal ones of sum 1 by default.
        """
        return cls._of(_star_offsets(_radius(radius)), coefficients)

    @classmethod
    def box(cls, radius: int, coefficients: Iterable[float] | None = None) -> Stencil:
        """Build a box: all cells of the square up to ``radius`` away.

        Parameters
        ----------
        radius : int
            1 to :data:`MAX_RADIUS`.
        coefficients : iterable of float, optional
            (2 radius + 1) squared weights by row, then column; equal ones of sum 1 by default.
        """
        return cls._of(_box_offsets(_radius(radius)), coefficients)

    @classmethod
    def laplace(cls, radius: int = 1) -> Stencil:
        """Build the sum of both second derivatives on a grid of spacing 1, of order 2 ``radius``."""
        along = _SECOND_DERIVATIVE[_radius(radius)]
        offsets = _star_offsets(radius)
        return cls(
            tuple(offsets),
            tuple(2.0 * along[0] if place == (0, 0) else along[abs(place[0] + place[1])] for place in offsets),
        )

    @classmethod
    def heat(cls, ratio: float = 0.125, radius: int = 1) -> Stencil:
        """Build one explicit step of the heat equation: the cell plus ``ratio`` times :meth:`laplace`.

        Parameters
        ----------
        ratio : float
            Diffusivity times time step over spacing squared; stable up to 0.25 at radius 1.
        radius : int
        """
        change = cls.laplace(radius)
        return cls(
            change.offsets,
            tuple(
                ratio * weight + (place == (0, 0))
                for place, weight in zip(change.offsets, change.coefficients, strict=True)
            ),
        )

    @classmethod
    def named(cls, name: str) -> Stencil:
        """Build ``star-2``, ``box-4``, ``laplace-1``, ``heat-3`` and so on: a constructor's name and a radius.

        Raises
        ------
        UnknownNameError
            If there is none of that name.
        """
        if name not in STENCILS:
            raise unknown_name("stencil", name, STENCILS)
        return STENCILS[name]()

    @classmethod
    def _of(cls, offsets: list[tuple[int, int]], coefficients: Iterable[float] | None) -> Stencil:
        weights = [1.0 / len(offsets)] * len(offsets) if coefficients is None else list(coefficients)
        return cls(tuple(offsets), tuple(weights))


def _constructor(build: Callable[..., Stencil], radius: int) -> Callable[[], Stencil]:
    return lambda: build(radius=radius)


STENCILS: Mapping[str, Callable[[], Stencil]] = {
    "identity": Stencil.identity,
    **{
        f"{name}-{radius}": _constructor(getattr(Stencil, name), radius)
        for name in ("star", "box", "laplace", "heat")
        for radius in range(1, MAX_RADIUS + 1)
    },
}
"""The stencils that have a name, for settings of studies."""


def check_grid(grid: NDArray[Any], pattern: Stencil, boundary: str) -> None:
    """Refuse what cannot be swept.

    Parameters
    ----------
    grid : ndarray
    pattern : Stencil
    boundary : str
        One of :data:`BOUNDARIES`.

    Raises
    ------
    BadValueError
        If the grid is not two-dimensional, not of float32 or float64, or a side is shorter than 2 radius + 1; or if
        there is no such boundary.
    """
    if not isinstance(pattern, Stencil):
        raise BadValueError(
            "The pattern is not a stencil.",
            given=type(pattern).__name__,
            allowed="a wavetank.kernels.stencils.pattern.Stencil",
            hint="Stencil.star(1), Stencil.box(2), Stencil.from_matrix(weights)",
        )
    if boundary not in BOUNDARIES:
        raise BadValueError(
            "There is no such boundary.",
            given=boundary,
            allowed=BOUNDARIES,
            nearest=nearest_of(str(boundary), BOUNDARIES),
            where="boundary",
        )
    if grid.ndim != 2:
        raise BadValueError("A grid has two dimensions.", given=f"shape {grid.shape}", where="grid")
    if grid.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise BadValueError(
            "Grids hold floating-point numbers in the machine's byte order.",
            given=str(grid.dtype),
            allowed="float32 or float64",
            where="grid",
            hint="convert it first: grid.astype(np.float32)",
        )
    least = 2 * pattern.radius + 1
    if min(grid.shape) < least:
        raise BadValueError(
            "The stencil reaches beyond the grid on both sides.",
            given=f"shape {grid.shape}, radius {pattern.radius}",
            allowed=f"sides of at least {least}",
            where="grid",
        )


def check_steps(steps: Any) -> int:
    """Return a number of sweeps, or refuse what is none.

    Raises
    ------
    BadValueError
        If it is no whole number or below 0.
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
        raise BadValueError("Steps are counted from 0.", given=steps, allowed="0, 1, 2, ...", where="steps")
    return int(steps)


def _star_offsets(radius: int) -> list[tuple[int, int]]:
    return [(dy, dx) for dy, dx in _box_offsets(radius) if dy == 0 or dx == 0]


def _box_offsets(radius: int) -> list[tuple[int, int]]:
    reach = range(-radius, radius + 1)
    return [(dy, dx) for dy in reach for dx in reach]


def _radius(radius: int) -> int:
    if not isinstance(radius, int | np.integer) or isinstance(radius, bool) or not 1 <= radius <= MAX_RADIUS:
        raise BadValueError(
            "There are no such stencils.", given=radius, allowed=f"a radius of 1 to {MAX_RADIUS}", where="radius"
        )
    return int(radius)


def _offset(offset: Any) -> tuple[int, int]:
    try:
        dy, dx = offset
        place = (int(dy), int(dx))
        right = place == (dy, dx) and max(abs(place[0]), abs(place[1])) <= MAX_RADIUS
    except (TypeError, ValueError):
        right = False
    if not right:
        raise BadValueError(
            "This is not an offset of a stencil.",
            given=repr(offset),
            allowed=f"a row and a column, each from -{MAX_RADIUS} to {MAX_RADIUS}",
        )
    return place
