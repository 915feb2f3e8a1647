"""What users hand in becomes an array, or is refused in words."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from wavetank.errors import BadValueError
from wavetank.kernels.given import array_of, is_tensor

torch = pytest.importorskip("torch")


def test_an_array_is_handed_on_without_a_copy():
    array = np.arange(6.0).reshape(2, 3)[:, ::2]
    assert array_of(array, "a") is array


def test_sequences_and_numbers_become_arrays():
    assert array_of([[1, 2], [3, 4]], "a").tolist() == [[1, 2], [3, 4]]
    assert array_of(2.5, "a").shape == ()


def test_a_tensor_shares_its_memory_whether_it_records_gradients_or_not():
    tensor = torch.arange(4.0, requires_grad=True)
    array = array_of(tensor, "a")
    with torch.no_grad():
        tensor += 1
    assert array.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_views_that_negate_or_conjugate_are_resolved():
    tensor = torch.tensor([1 + 2j]).conj()
    assert array_of(tensor, "a").tolist() == [1 - 2j]
    assert array_of(tensor.imag, "a").tolist() == [-2.0]


def test_a_subclass_of_a_tensor_is_a_tensor():
    assert is_tensor(torch.nn.Parameter(torch.ones(2)))
    assert array_of(torch.nn.Parameter(torch.ones(2)), "a").tolist() == [1.0, 1.0]
    assert not is_tensor(np.ones(2))


def test_unmasked_masked_arrays_are_arrays():
    assert array_of(np.ma.masked_array([1, 2]), "a").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.eye(3).to_sparse(), "cannot be seen as an array"),
        (torch.ones(3, dtype=torch.bfloat16), "cannot be seen as an array"),
        (torch.ones(3, device="meta"), "not in main memory"),
        (np.ma.masked_array([1, 2], [0, 1]), "Masked values"),
        (sparse.eye(3, format="csr"), "A sparse matrix is no array"),
        ([[1, 2], [3]], "cannot be seen as an array"),
    ],
)
def test_what_is_no_array_is_refused_with_its_place(value, message):
    with pytest.raises(BadValueError, match=message) as caught:
        array_of(value, "the argument")
    assert caught.value.where == "the argument"
    assert len(str(caught.value)) < 500


def test_nothing_is_imported_to_look_at_an_array():
    code = (
        "import sys, numpy as np\nfrom wavetank.kernels.given import array_of\narray_of(np.ones(2), 'a')\n"
        "assert 'torch' not in sys.modules and 'scipy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tensor_that_would_not_be_written_or_lose_its_gradient_is_refused_as_a_target():
    torch = pytest.importorskip("torch")
    from wavetank.kernels.fractal_sort import sort
    from wavetank.kernels.products.product import matmul

    negated = torch.zeros(3, dtype=torch.complex128).conj().imag
    assert negated.is_neg()
    ones = torch.ones(3, 3, dtype=torch.float64)
    with pytest.raises(BadValueError, match="negated"):
        matmul(ones, ones[0], out=negated)
    with pytest.raises(BadValueError, match="negated"):
        sort(ones[0], out=torch.zeros(3, dtype=torch.float64)._neg_view())
    leaf = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(BadValueError, match="gradient"):
        sort(ones[0], out=leaf)
    assert not leaf.any()
