"""Libraries behind one signature, with their threads held."""

import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from wavetank.errors import MissingExtraError
from wavetank.kernels.products import libraries


def at_an_odd_address(x):
    room = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    room[:] = x
    return room


def beside_a_byte(x):
    records = np.zeros(x.shape, [("value", x.dtype), ("byte", np.uint8)])
    records["value"] = x
    return records["value"]


LAYOUTS = {
    "odd address": at_an_odd_address, "parts of an item apart": beside_a_byte,
    "rows": lambda x: x, "columns": np.asfortranarray, "part": lambda x: np.pad(x, 3)[3:-3, 3:-3],
    "every other": lambda x: np.repeat(x, 2, 1)[:, ::2], "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", libraries.present())
def test_each_library_on_this_machine_multiplies_any_layout(name, dtype):
    libraries.load(name)
    rng = np.random.default_rng(0)
    for shape in ((2, 3, 4), (1, 3, 1), (5, 1, 7), (30, 40, 50)):
        m, k, n = shape
        a, b = (rng.integers(-4, 5, sides).astype(dtype) for sides in ((m, k), (k, n)))
        for left in LAYOUTS.values():
            for right in LAYOUTS.values():
                x, y = left(a), right(b)
                x.flags.writeable = False
                for out in (np.empty((m, n), dtype), np.empty((m, 2 * n), dtype)[:, ::-2]):
                    libraries.multiply(name, x, y, out)
                    assert np.array_equal(out, a @ b)
    batch = rng.integers(-4, 5, (3, 4, 5)).astype(dtype)
    out = np.empty((3, 4, 4), dtype)
    libraries.multiply(name, batch, batch[0].T, out)
    assert np.array_equal(out, batch @ batch[0].T)


def test_a_library_that_is_not_on_this_machine_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(libraries, "_file_of", lambda name: None)
    monkeypatch.setattr(libraries, "_LOADED", {})
    assert not {"mkl", "aocl"} & set(libraries.present())
    with pytest.raises(MissingExtraError, match="mkl"):
        libraries.load("mkl")
    with pytest.raises(MissingExtraError, match="AOCL_ROOT"):
        libraries.load("aocl")


def test_a_file_that_is_no_such_library_is_refused(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmkl_rt.so.2").write_text("no library")
    monkeypatch.setenv("MKLROOT", str(tmp_path))
    monkeypatch.setattr(libraries, "_LOADED", {})
    assert "mkl" in libraries.present()
    assert "mkl" not in libraries.available()
    with pytest.raises(MissingExtraError, match="cannot be loaded"):
        libraries.load("mkl")


def test_a_library_that_is_not_loaded_is_not_available(monkeypatch):
    for name in ("torch", "scipy.linalg.blas"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(libraries, "_LOADED", {})
    assert libraries.available() == ("numpy",)


def test_the_kernels_of_numpys_blas_have_a_name():
    own = [pool for pool in threadpool_info() if pool["user_api"] == "blas" and "numpy" in pool["filepath"]]
    # However many copies of the BLAS other packages have brought along.
    assert libraries.blas_kernels() == ", ".join(sorted({str(pool.get("architecture") or "") for pool in own} - {""}))


def test_conditions_name_versions_and_variables_that_steer_the_blas(monkeypatch):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    plain = libraries.conditions(("numpy",))
    assert plain["numpy"] == np.__version__
    assert plain["blas_kernels"] == libraries.blas_kernels()
    assert "torch" not in plain
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert libraries.conditions(("numpy",)) == plain | {"OPENBLAS_CORETYPE": "Haswell"}
