"""The products of the libraries at hand, behind one signature.

numpy is always there.  scipy and torch count once the program has imported them, MKL (the package ``mkl``) and AOCL's
BLIS once they are loaded, so that nobody waits for a library they did not ask for; :func:`load` loads one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from wavetank.errors import MissingExtraError, missing_extra

LIBRARIES = ("numpy", "scipy", "torch", "mkl", "aocl")

# Where the two that are called directly may lie, beside what the system finds by name.
_FILES = {
    "mkl": ("libmkl_rt.so*", "libmkl_rt*.dylib", "mkl_rt*.dll"),
    "aocl": ("libblis-mt.so*", "libaocl-blas-mt.so*"),
}
_ROOTS = {"mkl": ("MKLROOT",), "aocl": ("AOCL_ROOT", "AOCLROOT")}
_ROW_MAJOR, _PLAIN, _TURNED = 101, 111, 112


def available() -> tuple[str, ...]:
    """Return the libraries that can multiply now without loading anything."""
    return tuple(name for name in LIBRARIES if _is_loaded(name))


def present() -> tuple[str, ...]:
    """Return the libraries on this machine, loaded or not."""
    return tuple(name for name in LIBRARIES if _is_loaded(name) or _is_installed(name))


def _is_loaded(name: str) -> bool:
    if name == "scipy":
        return "scipy.linalg.blas" in sys.modules
    if name == "torch":
        # A module that another thread is just importing is there without its functions.
        return hasattr(sys.modules.get("torch"), "matmul")
    return name == "numpy" or name in _LOADED


def _is_installed(name: str) -> bool:
    if name in _FILES:
        return _file_of(name) is not None
    return importlib.util.find_spec(name) is not None


def load(name: str) -> None:
    """Make a library available for products of this process.

    Raises
    ------
    MissingExtraError
        If it is not on this machine.
    """
    if _is_loaded(name):
        return
    if name in _FILES:
        path = _file_of(name)
        if path is None:
            raise _missing(name)
        _LOADED[name] = _Cblas(name, path)
        return
    try:
        importlib.import_module("scipy.linalg.blas" if name == "scipy" else name)
    except ImportError:
        raise missing_extra(name, name, needed_for=f"A product by {name}") from None


def _missing(name: str) -> MissingExtraError:
    if name == "mkl":
        return missing_extra("mkl", "mkl", needed_for="A product by MKL")
    return MissingExtraError("AOCL's BLIS is not on this machine.", hint="install AOCL and set AOCL_ROOT to its folder")


def _file_of(name: str) -> str | None:
    folders = [Path(os.environ[root]) / "lib" for root in _ROOTS[name] if os.environ.get(root)]
    folders += [Path(sys.prefix) / "lib", Path(sys.prefix) / "Library" / "bin"]
    for folder in folders:
        for pattern in _FILES[name]:
            found = sorted(folder.glob(pattern))
            if found:
                return str(found[-1])
    return ctypes.util.find_library("mkl_rt" if name == "mkl" else "blis-mt")


class _Cblas:
    """A library with the C interface to BLAS, called directly."""

    def __init__(self, name: str, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
            functions = {size: getattr(self._library, f"cblas_{letter}gemm") for size, letter in ((4, "s"), (8, "d"))}
        except (OSError, AttributeError) as error:
            raise MissingExtraError(f"The library {name} cannot be loaded.", given=str(error), where=path) from None
        # MKL counts in 64 bits where this variable says so.
        whole = ctypes.c_int64 if "ILP64" in os.environ.get("MKL_INTERFACE_LAYER", "") else ctypes.c_int32
        for size, function in functions.items():
            number = ctypes.c_float if size == 4 else ctypes.c_double
            matrix = [ctypes.c_void_p, whole]
            function.argtypes = [ctypes.c_int] * 3 + [whole] * 3 + [number, *matrix, *matrix, number, *matrix]
            function.restype = None
        self._functions = functions

    def version(self) -> str:
        """Return the version that the library states; the file's name where it states none."""
        room = ctypes.create_string_buffer(256)
        try:
            self._library.mkl_get_version_string(room, 256)
            return room.value.decode(errors="replace").strip()
        except AttributeError:
            pass
        try:
            version_of = self._library.bli_info_get_version_str
        except AttributeError:
            return Path(self.path).name
        version_of.restype = ctypes.c_char_p
        return (version_of() or b"").decode(errors="replace")

    def multiply(self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
        (m, k), n = a.shape, b.shape[1]
        # Held until the call returns: a copy is freed with its name.
        (a, turn_a, step_a), (b, turn_b, step_b) = _stepped(a), _stepped(b)
        target = out if _step(out) else np.empty(out.shape, out.dtype)
        self._functions[a.itemsize](
            _ROW_MAJOR, turn_a, turn_b, m, n, k, 1.0, a.ctypes.data, step_a, b.ctypes.data, step_b, 0.0,
            target.ctypes.data, _step(target),
        )  # fmt: skip
        if target is not out:
            out[:] = target


def _step(matrix: NDArray[Any]) -> int:
    """Return the elements from one row to the next where rows lie together in memory, else 0."""
    down, across = matrix.strides
    size = matrix.itemsize
    if (across != size and matrix.shape[1] > 1) or not matrix.flags.aligned:
        return 0
    if matrix.shape[0] <= 1:
        return max(1, matrix.shape[1])
    return down // size if down >= matrix.shape[1] * size and down % size == 0 else 0


def _stepped(matrix: NDArray[Any]) -> tuple[NDArray[Any], int, int]:
    """Return a matrix as BLAS takes it: itself or a copy, whether it is turned, and the elements of a step."""
    if step := _step(matrix):
        return matrix, _PLAIN, step
    if step := _step(matrix.T):
        return matrix, _TURNED, step
    # Rows that lie together may still begin at an odd address, which is copied as well.
    matrix = np.require(matrix, requirements=("C", "A"))
    step = _step(matrix)
    if step < 1:
        raise RuntimeError("BLAS computes anything with a step of 0.")
    return matrix, _PLAIN, step


_LOADED: dict[str, _Cblas] = {}


def multiply(library: str, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the library's product of ``a`` and ``b`` to ``out``.

    Parameters
    ----------
    library : str
        Of :func:`available`.
    a, b, out : arrays of one type, shapes (..., m, k), (..., k, n) and (..., m, n)
        Leading dimensions as ``numpy.matmul`` takes them; no side is 0.
    """
    if library == "numpy":
        np.matmul(a, b, out=out)
    elif library == "torch":
        torch = sys.modules["torch"]
        target = out if _suits_torch(out) else np.empty(out.shape, out.dtype)
        with torch.no_grad():
            torch.matmul(_tensor(torch, a), _tensor(torch, b), out=_tensor(torch, target))
        if target is not out:
            out[...] = target
    elif out.ndim > 2:
        whole = out.shape[:-2]
        a, b = np.broadcast_to(a, whole + a.shape[-2:]), np.broadcast_to(b, whole + b.shape[-2:])
        for place in np.ndindex(whole):
            multiply(library, a[place], b[place], out[place])
    elif library == "scipy":
        _by_scipy(a, b, out)
    else:
        _LOADED[library].multiply(a, b, out)


def _by_scipy(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    blas = sys.modules["scipy.linalg.blas"]
    call = blas.sgemm if a.itemsize == 4 else blas.dgemm
    # Fortran's order: the turned product of turned operands, which are no copies where rows lie together.
    turned = out.T if out.T.flags.f_contiguous else np.empty(out.T.shape, out.dtype, order="F")
    found = call(1.0, b.T, a.T, beta=0.0, c=turned, overwrite_c=True)
    if not np.may_share_memory(found, out):
        out[:] = found.T


def _suits_torch(array: NDArray[Any]) -> bool:
    """Return whether torch can have this array as it lies: it knows neither negative strides nor parts of an item."""
    return array.flags.aligned and all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)


def _tensor(torch: Any, array: NDArray[Any]) -> Any:
    """Return an array as a tensor, a copy where torch cannot have it as it lies."""
    if not _suits_torch(array):
        array = np.array(array, order="C")
    if array.flags.writeable:
        return torch.from_numpy(array)
    # torch has no read-only tensors and says so at every conversion; this one is only read.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


@functools.cache
def _blas_of_numpy() -> tuple[str, ...]:
    # Other packages bring a BLAS of their own, which may be loaded or not.
    own = [each for each in threadpool_info() if each["user_api"] == "blas" and "numpy" in str(each["filepath"])]
    return tuple(sorted({str(each.get("architecture") or "") for each in own} - {""}))


def blas_kernels() -> str:
    """Return the names of the kernels that numpy's BLAS uses on this processor; empty where it does not say."""
    return ", ".join(_blas_of_numpy())


# Variables that make a BLAS choose other kernels or other block sizes than by itself.
STEERING = (
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_BLOCK_FACTOR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR", "MKL_DYNAMIC", "MKL_THREADING_LAYER", "MKL_INTERFACE_LAYER", "ATEN_CPU_CAPABILITY", "BLIS_ARCH_TYPE",
    "NVPL_BLAS_DEBUG_CPU_TYPE", "NPY_DISABLE_CPU_FEATURES", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES",
)  # fmt: skip


def steering() -> dict[str, str]:
    """Return the variables of this process that make a BLAS choose otherwise than by itself."""
    return {name: os.environ[name] for name in STEERING if name in os.environ}


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of libraries that are loaded."""
    return {name: _LOADED[name].version() if name in _FILES else str(sys.modules[name].__version__) for name in names}


def conditions(names: Iterable[str]) -> dict[str, str]:
    """Return what decides how fast these libraries are: versions, BLAS kernels, and variables that steer them."""
    return versions(names) | {"blas_kernels": blas_kernels()} | steering()
