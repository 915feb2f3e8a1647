"""Sums in two numbers: right where plain ones lose every digit."""

from fractions import Fraction

import numpy as np

from wavetank.kernels.products.compensated import compensated_product


def test_digits_that_plain_sums_lose_are_kept():
    a = np.array([[1e16, 1.0, -1e16, 0.1]])
    b = np.array([[1.0, 3.0], [1.0, 1.0], [1.0, 3.0], [1.0, 0.1]])
    wanted = [[float(sum(Fraction(x) * Fraction(y) for x, y in zip(a[0], column, strict=True))) for column in b.T]]
    assert compensated_product(a, b).tolist() == wanted
    assert (a @ b).tolist() != wanted


def test_any_matrices_are_multiplied_to_the_last_digit():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 300)), rng.standard_normal((300, 7))
    exact = [[float(sum(Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True))) for column in b.T]
             for row in a]  # fmt: skip
    assert np.abs(compensated_product(a, b) - exact).max() <= 2.0**-52 * np.abs(exact).max()
    assert compensated_product(a[:, :0], b[:0]).tolist() == np.zeros((5, 7)).tolist()
