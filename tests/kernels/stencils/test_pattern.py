"""Stencils as data: shapes, weights, names, and what is refused."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.kernels.stencils.pattern import BOUNDARIES, MAX_RADIUS, STENCILS, Stencil, check_grid, check_steps

RADII = range(1, MAX_RADIUS + 1)


@pytest.mark.parametrize("radius", RADII)
def test_a_star_has_four_arms_and_a_box_is_full(radius):
    star, box = Stencil.star(radius), Stencil.box(radius)
    assert (star.points, box.points) == (4 * radius + 1, (2 * radius + 1) ** 2)
    assert (star.radius, box.radius) == (radius, radius)
    assert (star.shape, box.shape) == ("star", "box")
    assert star.flops_per_point == 8 * radius + 1
    assert all(dy == 0 or dx == 0 for dy, dx in star.offsets)


@pytest.mark.parametrize("name", STENCILS)
def test_names_build_their_stencils(name):
    pattern = Stencil.named(name)
    kind, _, radius = name.partition("-")
    assert pattern.radius == int(radius or 0)
    assert sum(pattern.coefficients) == pytest.approx(0.0 if kind == "laplace" else 1.0, abs=1e-14)


def test_terms_are_sorted_by_row_then_column():
    pattern = Stencil(((1, 0), (0, 1), (0, -1)), (3.0, 2.0, 1.0))
    assert pattern.offsets == ((0, -1), (0, 1), (1, 0))
    assert pattern.coefficients == (1.0, 2.0, 3.0)
    assert pattern == Stencil(((0, -1), (1, 0), (0, 1)), (1.0, 3.0, 2.0))
    assert pattern.shape == "custom"


def test_a_stencil_is_its_matrix():
    weights = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
    pattern = Stencil.from_matrix(weights)
    assert pattern.offsets == ((-1, 0), (0, 0), (1, 1))
    assert np.array_equal(pattern.matrix(), weights)
    for name in STENCILS:
        assert np.array_equal(Stencil.named(name).matrix(), Stencil.from_matrix(Stencil.named(name).matrix()).matrix())


@pytest.mark.parametrize("radius", RADII)
def test_laplace_is_exact_for_polynomials_of_its_order(radius):
    pattern = Stencil.laplace(radius)
    for power in range(2 * radius + 2):
        found = sum(w * dx**power for (_, dx), w in zip(pattern.offsets, pattern.coefficients, strict=True))
        assert found == pytest.approx(2.0 if power == 2 else 0.0, abs=1e-11)


def test_heat_is_the_cell_plus_a_share_of_laplace():
    found = Stencil.heat(0.1, radius=3).matrix() - 0.1 * Stencil.laplace(3).matrix()
    middle = np.zeros((7, 7))
    middle[3, 3] = 1.0
    assert np.allclose(found, middle)


def test_coefficients_are_rounded_to_the_type_asked_for():
    assert Stencil.star(1).coefficients_as(np.float32).dtype == np.float32
    assert Stencil.star(1).coefficients_as("float64").tolist() == [0.2] * 5


@pytest.mark.parametrize("radius", [0, 5, -1, 1.5, True, "1"])
@pytest.mark.parametrize("build", [Stencil.star, Stencil.box, Stencil.laplace])
def test_other_radii_are_refused(build, radius):
    with pytest.raises(BadValueError, match="no such stencils"):
        build(radius)


@pytest.mark.parametrize(
    ("offsets", "weights", "problem"),
    [
        ((), (), "at least one"),
        (((0, 0),), (1.0, 2.0), "one coefficient for each"),
        (((0, 0), (0, 0)), (1.0, 2.0), "given twice"),
        (((0, 5),), (1.0,), "not an offset"),
        (((0, 0.5),), (1.0,), "not an offset"),
        (((0, 0, 0),), (1.0,), "not an offset"),
        ((3,), (1.0,), "not an offset"),
        (((0, 0),), (float("nan"),), "not finite"),
    ],
)
def test_what_is_no_stencil_is_refused(offsets, weights, problem):
    with pytest.raises(BadValueError, match=problem):
        Stencil(offsets, weights)


@pytest.mark.parametrize("shape", [(2, 2), (3, 5), (11, 11), (3,)])
def test_a_matrix_that_is_no_odd_square_is_refused(shape):
    with pytest.raises(BadValueError):
        Stencil.from_matrix(np.ones(shape))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        Stencil.named("star-11")
    assert caught.value.nearest == "star-1"


@pytest.mark.parametrize(
    ("grid", "boundary", "problem"),
    [
        (np.zeros(9), "dirichlet", "two dimensions"),
        (np.zeros((3, 3, 3)), "dirichlet", "two dimensions"),
        (np.zeros((9, 9), np.int32), "dirichlet", "floating-point"),
        (np.zeros((9, 9), np.float16), "dirichlet", "floating-point"),
        (np.zeros((9, 9), ">f8"), "dirichlet", "floating-point"),
        (np.zeros((9, 4)), "reflect", "beyond the grid"),
        (np.zeros((0, 0)), "periodic", "beyond the grid"),
        (np.zeros((9, 9)), "perodic", "no such boundary"),
    ],
)
def test_grids_that_cannot_be_swept_are_refused(grid, boundary, problem):
    with pytest.raises(BadValueError, match=problem):
        check_grid(grid, Stencil.star(2), boundary)


def test_a_misspelt_boundary_gets_the_nearest_and_a_non_stencil_an_example():
    with pytest.raises(BadValueError) as caught:
        check_grid(np.zeros((9, 9)), Stencil.star(1), "perodic")
    assert (caught.value.nearest, caught.value.allowed) == ("periodic", BOUNDARIES)
    with pytest.raises(BadValueError, match="not a stencil") as caught:
        check_grid(np.zeros((9, 9)), np.ones((3, 3)), "periodic")
    assert "from_matrix" in caught.value.hint


@pytest.mark.parametrize("steps", [-1, 1.5, True, "2", None])
def test_steps_that_cannot_be_counted_are_refused(steps):
    with pytest.raises(BadValueError, match="counted from 0") as caught:
        check_steps(steps)
    assert caught.value.where == "steps"


def test_steps_are_whole_numbers_of_any_kind():
    assert [check_steps(steps) for steps in (0, 3, np.int64(4))] == [0, 3, 4]
    assert type(check_steps(np.uint8(4))) is int
