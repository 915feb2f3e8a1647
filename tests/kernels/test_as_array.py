"""What users hand in becomes an array, or is refused in words."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from wavetank.errors import BadValueError
from wavetank.kernels.as_array import array_of, is_tensor

torch = pytest.importorskip("torch")


def test_an_array_is_handed_on_without_a_copy():
    array = np.arange(6.0).reshape(2, 3)[:, ::2]
    assert array_of(array, "a") is array


def test_sequences_and_numbers_become_arrays():
    assert array_of([[1, 2], [3, 4]], "a").tolist() == [[1, 2], [3, 4]]
    assert array_of(2.5, "a").shape == ()


def test_a_tensor_shares_its_memory_and_one_that_requires_its_gradient_does_so_where_none_is_recorded():
    tensor = torch.arange(4.0, requires_grad=True)
    with torch.no_grad():
        array = array_of(tensor, "a")
        tensor += 1
    assert array.tolist() == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(BadValueError, match="No gradient"):
        array_of(tensor, "a")
    assert array_of(tensor.detach(), "a").tolist() == [1.0, 2.0, 3.0, 4.0]


def test_views_that_negate_or_conjugate_are_resolved():
    tensor = torch.tensor([1 + 2j]).conj()
    assert array_of(tensor, "a").tolist() == [1 - 2j]
    assert array_of(tensor.imag, "a").tolist() == [-2.0]


def test_a_subclass_of_a_tensor_is_a_tensor():
    assert is_tensor(torch.nn.Parameter(torch.ones(2)))
    with torch.no_grad():
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
        (sparse.eye(3, format="csr"), "A sparse matrix is not an array"),
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
        "import sys, numpy as np\nfrom wavetank.kernels.as_array import array_of\narray_of(np.ones(2), 'a')\n"
        "assert 'torch' not in sys.modules and 'scipy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tensor_that_would_not_be_written_or_lose_its_gradient_is_refused_as_a_target():
    torch = pytest.importorskip("torch")
    from wavetank.kernels.products.product import matmul
    from wavetank.kernels.sorting.fractal_sort import sort

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


def calls_without_gradients():
    """Kernels through which no gradient flows, by name: each takes one tensor of (4, 4) or (4,)."""
    from wavetank.kernels.solvers.solve import solve_spd
    from wavetank.kernels.sorting.fractal_sort import FractalSort, sort, sort_pairs
    from wavetank.kernels.sparse.pagerank import pagerank
    from wavetank.kernels.sparse.products import SpMVPlan, spmv
    from wavetank.kernels.stencils.pattern import Stencil
    from wavetank.kernels.stencils.sweep import stencil

    eye = np.eye(4)
    rows = sparse.csr_array(eye)
    parts = (rows.indptr, rows.indices, rows.shape)
    plan = SpMVPlan(rows)
    return {
        "spmv, x": (1, lambda x: spmv(rows, x)),
        "plan @ x": (1, lambda x: plan @ x),
        "plan.multiply(x)": (1, lambda x: plan.multiply(x)),
        "spmv, values": (1, lambda x: spmv((*parts[:2], x, parts[2]), eye[0])),
        "solve_spd, a": (2, lambda a: solve_spd(a, eye[0])),
        "solve_spd, b": (1, lambda b: solve_spd(eye, b)),
        "sort": (1, sort),
        "sort_pairs": (1, sort_pairs),
        "histogram": (1, lambda x: FractalSort().histogram(x.half())),
        "stencil": (2, lambda x: stencil(x, Stencil.star(1))),
        "spmv, CSR": (2, lambda a: spmv(a.to_sparse_csr(), eye[0])),
        "SpMVPlan, COO": (2, lambda a: SpMVPlan(a.to_sparse())),
        "pagerank": (2, lambda a: pagerank(a.to_sparse_csr())),
    }


NAMES = (
    "spmv, x", "plan @ x", "plan.multiply(x)", "spmv, values", "solve_spd, a", "solve_spd, b", "sort", "sort_pairs",
    "histogram", "stencil", "spmv, CSR", "SpMVPlan, COO", "pagerank",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_loses_a_gradient_silently(name):
    dimensions, call = calls_without_gradients()[name]
    given = torch.eye(4, dtype=torch.float64)
    given = given if dimensions == 2 else given[0].contiguous()
    tensor = given.clone().requires_grad_()
    with pytest.raises(BadValueError, match="No gradient flows") as caught:
        call(tensor)
    assert "detach" in caught.value.hint
    # Whoever wants none is served, and what was given is not changed.
    with torch.no_grad():
        call(tensor)
    call(tensor.detach())
    assert torch.equal(tensor.detach(), given)
    assert tensor.grad is None
    if not name.startswith(("spmv, CSR", "SpMVPlan, COO", "pagerank")):
        # torch has no forward differentiation of sparse tensors.
        forward = torch.autograd.forward_ad
        with forward.dual_level(), pytest.raises(BadValueError, match="No gradient flows"):
            call(forward.make_dual(given, torch.ones_like(given)))
