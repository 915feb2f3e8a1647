"""Schemes around a library's product: in fused passes and with separate additions."""

import numpy as np
import pytest

from wavetank.kernels.products.combined import combined_product, separate_product, workspace_bytes
from wavetank.kernels.products.schemes import STRASSEN, WINOGRAD


def library(x, y, out):
    np.matmul(x, y, out=out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(64, 48, 80), (61, 47, 83), (1, 2, 3)])
@pytest.mark.parametrize("scheme", [STRASSEN, WINOGRAD.power(2)], ids=["strassen", "winograd^2"])
def test_both_forms_multiply_whole_numbers_exactly(dtype, shape, scheme):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, shape[:2]).astype(dtype), rng.integers(-4, 5, shape[1:]).astype(dtype)
    kept = a.copy(), b.copy()
    for multiply in (
        lambda out: combined_product(a, b, out, scheme, library, 2),
        lambda out: separate_product(a, b, out, scheme, library),
    ):
        out = np.full((shape[0], shape[2]), np.nan, dtype)
        multiply(out)
        assert np.array_equal(out, a @ b)
    assert np.array_equal(a, kept[0])
    assert np.array_equal(b, kept[1])


def test_the_library_is_called_once_a_product_of_the_scheme():
    calls = []

    def counted(x, y, out):
        calls.append((x.shape, y.shape))
        np.matmul(x, y, out=out)

    a = np.ones((256, 256), np.float32)
    combined_product(a, a, np.empty_like(a), STRASSEN.power(2), counted, 1)
    assert calls == [((64, 64), (64, 64))] * 49


def test_the_workspace_is_three_blocks():
    assert workspace_bytes(512, 256, 128, "float32", STRASSEN) == (256 * 128 + 128 * 64 + 256 * 64) * 4
