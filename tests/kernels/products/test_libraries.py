"""Libraries behind one signature, with their threads held."""

import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from wavetank.kernels.products import libraries


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_threads_are_held_and_given_back():
    before = blas_threads()
    with libraries.held_to("numpy", 1):
        assert set(blas_threads()) == {1}
    assert blas_threads() == before
    with pytest.raises(ZeroDivisionError), libraries.held_to("numpy", 1):
        raise ZeroDivisionError
    assert blas_threads() == before


def test_whether_a_library_holds_to_a_number_of_threads_is_known():
    with libraries.held_to("numpy", 1):
        assert libraries.holds_to("numpy", 1)
        assert not libraries.holds_to("numpy", 2)


def test_torch_threads_are_held_and_given_back():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    with libraries.held_to("torch", 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_each_library_multiplies_read_only_matrices():
    pytest.importorskip("torch")
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
    a.flags.writeable = False
    for name in libraries.available():
        out = np.empty((2, 4), np.float32)
        libraries.multiply(name, a, b, out)
        assert np.array_equal(out, a @ b)


def test_a_library_that_is_not_loaded_is_not_available(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert libraries.available() == ("numpy",)


def test_the_kernels_of_the_blas_have_a_name():
    names = {str(pool.get("architecture") or "") for pool in threadpool_info() if pool["user_api"] == "blas"}
    # However many copies of the BLAS other packages have brought along.
    assert libraries.blas_kernels() == ", ".join(sorted(name for name in names if name))


def test_conditions_name_versions_and_variables_that_steer_the_blas(monkeypatch):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    plain = libraries.conditions(("numpy",))
    assert plain["numpy"] == np.__version__
    assert plain["blas_kernels"] == libraries.blas_kernels()
    assert "torch" not in plain
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert libraries.conditions(("numpy",)) == plain | {"OPENBLAS_CORETYPE": "Haswell"}
