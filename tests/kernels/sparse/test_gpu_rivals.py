"""The libraries' products on a GPU: what can be held without one."""

import ctypes
import gc

import numpy as np
import pytest

from wavetank.errors import MissingExtraError, WavetankError
from wavetank.kernels.sparse import gpu_rivals as gpu_peers
from wavetank.kernels.sparse.compressed import compressed_rows
from wavetank.kernels.sparse.gpu_rivals import Cusparse, TorchGpu, cusparse
from wavetank.workloads import matrices

torch = pytest.importorskip("torch")


class Library:
    """Stands for cuSPARSE: notes what it is asked for, and describes nothing."""

    def __init__(self):
        self.asked, self.status = [], 0

    def __getattr__(self, name):
        if not name.startswith("cusparse"):
            raise AttributeError(name)

        def function(*arguments):
            self.asked.append((name, arguments))
            return self.status

        return function


@pytest.fixture
def library(monkeypatch):
    """Put a library that notes everything in the place of cuSPARSE."""
    stand_in = Library()
    monkeypatch.setattr(gpu_peers, "cusparse", lambda: stand_in)
    return stand_in


@pytest.mark.parametrize("layout", ["coordinates", "rows"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_torch_multiplies_in_both_layouts(layout, dtype):
    matrix = matrices.rmat(9).astype(dtype)
    x = np.random.default_rng(3).standard_normal(512).astype(dtype)
    found = TorchGpu(layout=layout).prepare(matrix, x, "cpu")()
    np.testing.assert_allclose(found.numpy(), matrix @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("system", [Cusparse(), TorchGpu()], ids=str)
def test_without_a_gpu_the_error_says_what_runs(system):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(MissingExtraError, match="needs a CUDA device"):
        system.prepare(matrices.rmat(4), np.ones(16))


@pytest.mark.parametrize(("layout", "create"), [("coordinates", "cusparseCreateCoo"), ("rows", "cusparseCreateCsr")])
def test_a_matrix_is_described_with_its_sizes_and_types_and_forgotten_with_its_owner(library, layout, create):
    matrix = matrices.rmat(6).astype(np.float32)
    described = gpu_peers._Described(compressed_rows(matrix), layout, torch, torch.ones(64))
    (name, (_, rows, columns, nonzeros, *addresses, index, base, value)), *_ = library.asked
    assert (name, rows, columns, nonzeros) == (create, 64, 64, matrix.nnz)
    # 32-bit numbers from 0, values of 32 bits; compressed rows have two types of index.
    assert (index, base, value) == (2, 0, 0)
    firsts, found_columns, values, _ = described.kept
    assert addresses[:3] == [firsts.data_ptr(), found_columns.data_ptr(), values.data_ptr()]
    expected = matrix.indptr if layout == "rows" else matrix.tocoo().coords[0]
    assert np.array_equal(firsts.numpy(), expected)
    assert np.array_equal(found_columns.numpy(), matrix.indices)
    library.asked.clear()
    del described
    gc.collect()
    assert [name for name, _ in library.asked] == [
        "cusparseDestroyDnVec", "cusparseDestroyDnVec", "cusparseDestroySpMat"
    ]  # fmt: skip


def test_a_refusal_of_the_library_is_told(library):
    library.status = 3
    with pytest.raises(WavetankError, match="refused cusparseCreateCoo") as caught:
        gpu_peers._Described(compressed_rows(matrices.rmat(4)), "coordinates", torch, torch.ones(16))
    assert caught.value.given == "status 3"


def test_the_library_itself_keeps_the_description_that_it_is_given():
    try:
        found = cusparse()
    except MissingExtraError:
        pytest.skip("cuSPARSE is not on this machine")
    matrix = matrices.rmat(6)
    described = gpu_peers._Described(compressed_rows(matrix), "coordinates", torch, torch.ones(64, dtype=torch.float64))
    sizes = [ctypes.c_int64() for _ in range(3)]
    addresses, kinds = [ctypes.c_void_p() for _ in range(3)], [ctypes.c_int() for _ in range(3)]
    status = found.cusparseCooGet(described.matrix, *map(ctypes.byref, [*sizes, *addresses, *kinds]))
    assert status == 0
    assert [size.value for size in sizes] == [64, 64, matrix.nnz]
    assert [kind.value for kind in kinds] == [2, 0, 1]
    assert [address.value for address in addresses] == [part.data_ptr() for part in described.kept[:3]]
    gpu_peers._Described(compressed_rows(matrix), "rows", torch, torch.ones(64, dtype=torch.float64))


def test_without_the_library_the_error_names_it(monkeypatch):
    monkeypatch.setattr(gpu_peers, "_LIBRARIES", ("libno-such-thing.so",))
    with pytest.raises(MissingExtraError, match="cuSPARSE is not on this machine"):
        cusparse.__wrapped__()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("system", [
    Cusparse(), Cusparse(deterministic=True), Cusparse(layout="rows"), Cusparse(layout="rows", deterministic=True),
    TorchGpu(), TorchGpu(layout="rows"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_on_the_gpu_are_those_of_scipy(system, dtype):
    matrix = matrices.rmat(12).astype(dtype)
    x = np.random.default_rng(3).standard_normal(4096).astype(dtype)
    bound = (np.diff(matrix.indptr) + 8) * np.finfo(dtype).eps * (abs(matrix) @ abs(x))
    assert (np.abs(system.prepare(matrix, x)().cpu().numpy() - matrix @ x) <= bound).all()
