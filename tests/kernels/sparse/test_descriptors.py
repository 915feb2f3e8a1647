"""Segments as bits: counts, identities and the reference product."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from wavetank.kernels.sparse.descriptors import describe, reference_spmv


def bits_of(described):
    total = described.rows + described.nonzeros
    return np.unpackbits(described.bits.astype("<u8").view(np.uint8), bitorder="little")[:total]


@given(st.lists(st.integers(0, 200), max_size=60), st.sampled_from([64, 128, 256]))
def test_ones_count_rows_and_zeros_count_nonzeros(lengths, steps):
    starts = np.concatenate(([0], np.cumsum(np.array(lengths, np.int64)))).astype(np.int64)
    described = describe(starts, steps)
    bits = bits_of(described)
    assert bits.sum() == len(lengths)
    assert (bits == 0).sum() == starts[-1]
    before = np.concatenate(([0], np.cumsum(bits, dtype=np.int64)))
    heads = np.minimum(np.arange(described.first_row.size) * steps, bits.size)
    assert np.array_equal(described.first_row, before[heads])
    assert np.array_equal(described.first_nonzero, heads - before[heads])
    rows = before[:-1][bits == 0]
    assert np.array_equal(rows, np.repeat(np.arange(len(lengths)), lengths))


@pytest.mark.parametrize("steps", [64, 256])
def test_the_reference_product_is_that_of_scipy(steps):
    rng = np.random.default_rng(1)
    for shape, density in (((1, 1), 1.0), ((40, 900), 0.3), ((900, 40), 0.01), ((300, 300), 0.0), ((3, 5000), 0.9)):
        matrix = sp.random(*shape, density, format="csr", rng=rng)
        x = rng.standard_normal(shape[1])
        found = reference_spmv(describe(matrix.indptr, steps), matrix.indices, matrix.data, x)
        np.testing.assert_allclose(found, matrix @ x, rtol=1e-12, atol=1e-12)


def test_bits_take_less_room_than_row_pointers():
    starts = np.arange(0, 100_001 * 5, 5)
    assert describe(starts).nbytes < starts.astype(np.int32).nbytes
