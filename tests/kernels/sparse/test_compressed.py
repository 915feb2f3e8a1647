"""What a matrix may be given as, and what is refused with the place of the fault."""

import numpy as np
import pytest
import scipy.sparse as sp

from wavetank.errors import BadValueError
from wavetank.kernels.sparse.compressed import compressed_rows

STARTS, COLUMNS, VALUES = np.array([0, 2, 3]), np.array([1, 0, 2]), np.array([1.0, 2.0, 3.0])
DENSE = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]])


def dense_of(matrix):
    return sp.csr_array((matrix.values, matrix.columns, matrix.starts), shape=matrix.shape).toarray()


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.lil_array, sp.bsr_array])
def test_every_format_of_scipy_is_taken(kind):
    assert np.array_equal(dense_of(compressed_rows(kind(DENSE))), DENSE)


def test_arrays_are_taken_unsorted_and_as_they_lie():
    found = compressed_rows((STARTS, COLUMNS, VALUES, (2, 3)))
    assert np.array_equal(dense_of(found), DENSE)
    assert np.shares_memory(found.values, VALUES)
    assert compressed_rows(found) is found


def test_whole_numbers_become_float64_and_float32_stays():
    assert compressed_rows((STARTS, COLUMNS, VALUES.astype(np.int8), (2, 3))).values.dtype == np.float64
    assert compressed_rows((STARTS, COLUMNS, VALUES.astype(np.float32), (2, 3))).values.dtype == np.float32


def test_torch_tensors_are_taken():
    torch = pytest.importorskip("torch")
    dense = torch.from_numpy(DENSE)
    for tensor in (dense.to_sparse_csr(), dense.to_sparse(), dense.to_sparse_csc()):
        assert np.array_equal(dense_of(compressed_rows(tensor)), DENSE)
    with pytest.raises(BadValueError, match="no sparse matrix"):
        compressed_rows(dense)


def test_torch_tensors_without_plain_rows_are_refused():
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.eye(4).to_sparse_bsr((2, 2)), torch.eye(4).to_sparse_bsc((2, 2)), torch.eye(4).to_sparse(1),
        torch.eye(4, dtype=torch.bfloat16).to_sparse_csr(),
    ):  # fmt: skip
        with pytest.raises(BadValueError, match="does not give the rows"):
            compressed_rows(tensor)


@pytest.mark.parametrize(
    ("matrix", "says", "given"),
    [
        (DENSE, "no sparse matrix", "ndarray"),
        ((STARTS, COLUMNS, VALUES), "four parts", "3"),
        ((STARTS, np.array([1, 0, 3]), VALUES, (2, 3)), "column is out of range", "3 at position 2"),
        ((STARTS, np.array([1, -1, 2]), VALUES, (2, 3)), "column is out of range", "-1 at position 1"),
        ((np.array([0, 3, 2]), COLUMNS, VALUES, (2, 3)), "does not rise", "starts[1] = 3, starts[2] = 2"),
        ((np.array([1, 2, 3]), COLUMNS, VALUES, (2, 3)), "does not rise", "starts[0] = 1"),
        ((np.array([0, 2, 9]), COLUMNS, VALUES, (2, 3)), "does not rise", "starts[2] = 9"),
        ((np.array([0, 3]), COLUMNS, VALUES, (2, 3)), "wrong length", "(2,)"),
        ((STARTS, COLUMNS[:2], VALUES, (2, 3)), "differ in length", "(2,) and (3,)"),
        ((STARTS.astype(float), COLUMNS, VALUES, (2, 3)), "vector of integers", "float64, shape (3,)"),
        ((STARTS, COLUMNS, VALUES.astype(complex), (2, 3)), "cannot be multiplied", "complex128"),
        ((STARTS, COLUMNS, VALUES, (2,)), "two whole numbers", "(2,)"),
        ((STARTS, COLUMNS, VALUES, (2.7, 3)), "two whole numbers", "(2.7, 3)"),
        ((STARTS, COLUMNS, VALUES, (np.inf, 3)), "two whole numbers", "(inf, 3)"),
        ((STARTS, COLUMNS, VALUES, "23"), "two whole numbers", "23"),
        ((STARTS, COLUMNS, VALUES, (2, 1 << 40)), "shape is out of range", f"(2, {1 << 40})"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(matrix, says, given):
    with pytest.raises(BadValueError, match=says) as caught:
        compressed_rows(matrix)
    assert str(caught.value.given).strip("'") in (given, str(given))


def test_an_index_of_coordinates_out_of_range_is_refused():
    broken = sp.coo_array(DENSE)
    broken.coords = (np.array([0, 0, 7]), broken.coords[1])
    with pytest.raises(BadValueError, match="row is out of range"):
        compressed_rows(broken)
