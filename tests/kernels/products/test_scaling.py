"""Scaling by powers of two: errors follow rows and columns, whatever their units."""

import numpy as np
import pytest

from wavetank.kernels.products import scaling
from wavetank.kernels.products.product import matmul, plan_of
from wavetank.kernels.products.schemes import STRASSEN

METHODS = ("fused", "combined")


def componentwise(a, b, result):
    """Return the worst error relative to |A||B|, entry by entry."""
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    return float((np.abs(result - exact) / (np.abs(a.astype(float)) @ np.abs(b.astype(float)))).max())


def uneven(n, dtype=np.float32, seed=0):
    """Positive matrices with half the rows of A scaled by 1e-7 and the columns of B in units 1e6 apart."""
    rng = np.random.default_rng(seed)
    a, b = (rng.random((n, n)) + 0.1 for _ in range(2))
    # By halves, so that a scheme adds small rows to large ones.
    a[: n // 2] *= 1e-7
    b[:, n // 2 :] *= 1e6
    return a.astype(dtype), b.astype(dtype)


EXTREMES = {
    "uneven": lambda dtype: uneven(160, dtype),
    "identity": lambda dtype: (uneven(160, dtype)[0], np.eye(160, dtype=dtype)),
    "graded inside": lambda dtype: tuple(
        (x * 2.0 ** (sign * np.arange(160) / 8)).astype(dtype) if sign > 0
        else (x * 2.0 ** (sign * np.arange(160) / 8)[:, None]).astype(dtype)
        for x, sign in zip(uneven(160, np.float64), (1, -1), strict=True)
    ),
    "subnormal": lambda dtype: tuple(
        (x * float(np.finfo(dtype).tiny) / 8 if i == 0 else x).astype(dtype)
        for i, x in enumerate(np.random.default_rng(1).random((2, 160, 160)))
    ),
    "huge": lambda dtype: tuple(
        (x * float(np.finfo(dtype).max) ** (0.9, 0.05)[i]).astype(dtype)
        for i, x in enumerate(np.random.default_rng(2).random((2, 160, 160)) - 0.5)
    ),
    "zero rows and columns": lambda dtype: tuple(
        np.where(np.arange(160)[:, None] % 3 == 0, 0, x).astype(dtype) for x in uneven(160, np.float64)
    ),
    "one entry": lambda dtype: tuple(
        np.where(np.arange(160 * 160).reshape(160, 160) == 7 * i, 1e-20, 0).astype(dtype) for i in (3, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", EXTREMES)
def test_scaled_schemes_err_by_row_and_column_only(case, method, levels, dtype):
    a, b = EXTREMES[case](dtype)
    chosen = plan_of(*a.shape, b.shape[1], method, STRASSEN.power(levels), dtype=dtype, threads=2, accuracy="scaled")
    result = matmul(a, b, plan=chosen)
    scales = scaling.scales_of(a, b)
    limit = np.ldexp(
        np.longdouble(chosen.error_bound), scales.rows[:, None].astype(int) + scales.columns[None, :].astype(int)
    )
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    assert (np.abs(result - exact) <= limit + np.finfo(dtype).smallest_subnormal).all()
    if case == "uneven":
        assert (result > 0).all()
        assert componentwise(a, b, result) < 1e3 * float(np.finfo(dtype).eps)


def test_scaling_bounds_rows_and_columns_by_twice_their_largest_entries():
    a, b = uneven(130, np.float64)
    scales = scaling.scales_of(a, b, threads=2)
    if not scales.inside.any():
        assert (2.0**scales.rows <= 2 * np.abs(a).max(1)).all()
        assert (2.0**scales.columns <= 2 * np.abs(b).max(0)).all()
    left, right = np.ldexp(a, scales.inside[None] - scales.rows[:, None]), np.ldexp(
        b, -scales.inside[:, None] - scales.columns[None]
    )  # fmt: skip
    assert ((np.abs(left).max(1) < 1) & (np.abs(left).max(1) >= 0.5)).all()
    assert ((np.abs(right).max(0) < 1) & (np.abs(right).max(0) >= 0.5)).all()


def test_the_inside_step_is_used_where_it_makes_scales_smaller():
    grades = 2.0 ** np.arange(64)
    a, b = np.ones((40, 64)) * grades, np.ones((64, 50)) / grades[:, None]
    scales = scaling.scales_of(a, b)
    assert np.array_equal(scales.inside, -np.arange(64) + scales.inside[0])
    assert set(scales.rows[:, None].ravel() + scales.columns[0]) == {2}
    assert not scaling.scales_of(np.ones((9, 9)), np.ones((9, 9))).inside.any()


def test_powers_of_two_change_no_digit_even_where_halves_are_needed():
    a = np.array([[1e300, -3e-300], [5e-324, 0.0]])
    out = np.empty_like(a)
    scaling.scaled(a, np.array([-1000, 1050]), np.array([3, -4]), out, 1)
    assert np.array_equal(out, [[np.ldexp(1e300, -997), 0.0], [np.ldexp(5e-324, 1053), 0.0]])
    scaling.scaled(a[:1], np.array([-500]), np.array([0, 700]), a[:1], 2)
    assert a[0, 0] == np.ldexp(1e300, -500)
    # What is lost on the way is nothing beside its row.
    assert abs(a[0, 1]) <= abs(a[0, 0]) * 2.0**-1000


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_entry_that_is_not_finite_is_seen_wherever_it_is(dtype):
    matrix = np.full((7, 33), np.finfo(dtype).max, dtype)
    assert scaling.is_finite(matrix)
    for value in (np.nan, np.inf, -np.inf):
        other = matrix.copy()
        other[6, 32] = value
        assert not scaling.is_finite(other)
