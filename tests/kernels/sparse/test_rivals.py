"""The libraries' products behind one interface."""

import numpy as np
import pytest

from wavetank.kernels.sparse.rivals import ScipyCoo, ScipyCsr, TorchCsr
from wavetank.workloads import matrices


@pytest.mark.parametrize("peer", [ScipyCsr(), ScipyCoo(), TorchCsr()], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_peer_multiplies(peer, dtype):
    if isinstance(peer, TorchCsr):
        pytest.importorskip("torch")
    matrix = matrices.rmat(9).astype(dtype)
    x = np.random.default_rng(3).standard_normal(512).astype(dtype)
    np.testing.assert_allclose(np.asarray(peer.prepare(matrix, x)()), matrix @ x, rtol=1e-4, atol=1e-4)


def test_torch_is_given_the_32_bit_numbers_that_mkl_takes(monkeypatch):
    torch = pytest.importorskip("torch")
    given = []
    make = torch.sparse_csr_tensor
    monkeypatch.setattr(torch, "sparse_csr_tensor", lambda *parts, **rest: given.extend(parts) or make(*parts, **rest))
    matrix = matrices.rmat(6)
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    TorchCsr().prepare(matrix, np.ones(64))
    assert [part.dtype for part in given] == [torch.int32, torch.int32, torch.float64]
