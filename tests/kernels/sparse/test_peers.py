"""The libraries' products behind one interface."""

import numpy as np
import pytest

from wavetank.errors import MissingExtraError
from wavetank.kernels.sparse.peers import ScipyCoo, ScipyCsr, TorchCooGpu, TorchCsr
from wavetank.workloads import matrices


@pytest.mark.parametrize("peer", [ScipyCsr(), ScipyCoo(), TorchCsr()], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_peer_multiplies(peer, dtype):
    if isinstance(peer, TorchCsr):
        pytest.importorskip("torch")
    matrix = matrices.rmat(9).astype(dtype)
    x = np.random.default_rng(3).standard_normal(512).astype(dtype)
    np.testing.assert_allclose(np.asarray(peer.prepare(matrix, x)()), matrix @ x, rtol=1e-4, atol=1e-4)


def test_the_gpu_peer_says_what_it_needs():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has what it needs")
    with pytest.raises(MissingExtraError, match="needs a CUDA device"):
        TorchCooGpu().prepare(matrices.rmat(4), np.ones(16))
