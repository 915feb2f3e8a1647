"""Every rival gives the product, and a process of its own ends with its call."""

import gc

import numpy as np
import pytest

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.kernels.products import rivals as peers
from wavetank.kernels.products.product import FalconGemm

RIVALS = {
    "planned": FalconGemm(accuracy="library"),
    "normwise": FalconGemm(),
    "scaled": FalconGemm(accuracy="scaled"),
    "scipy": peers.LibraryMatmul(library="scipy"),
    "plain": peers.FixedScheme(scheme="classical", levels=0),
    "strassen": peers.FixedScheme(levels=2),
    "numpy": peers.NumpyMatmul(),
    "torch": peers.TorchMatmul(),
    "process": peers.NumpyProcess(),
    "separate": peers.SeparateScheme(),
    "alpha-tensor": peers.AlphaTensor(),
    "alpha-tensor fused": peers.AlphaTensor(fused=True),
}


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_multiplies(name):
    if name == "torch":
        pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((50, 60), (60, 70)))
    try:
        call = RIVALS[name].prepare(a, b, 1)
        for _ in range(2):
            assert np.array_equal(np.asarray(call()), a @ b)
    except DataUnavailableError as error:
        pytest.skip(str(error))


def test_the_process_ends_with_its_call_and_is_told_which_kernels_to_use(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nonsense")
    a = np.ones((4, 4), np.float64)
    call = peers.NumpyProcess(kernels="Haswell").prepare(a, a, 1)
    process = call._process
    assert np.array_equal(np.asarray(call()), a @ a)
    del call
    gc.collect()
    assert process.returncode == 0


def test_names_that_cannot_be_are_refused():
    with pytest.raises(BadValueError, match="kernels"):
        peers.NumpyProcess(kernels="a b")
    with pytest.raises(BadValueError, match="scheme"):
        peers.FixedScheme(scheme="none")
