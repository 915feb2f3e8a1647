"""The products of the libraries at hand, behind one signature, with their threads held to a number.

numpy is always there; torch counts once the program has imported it, so that nobody waits for an import they did not
ask for.  Thread pools of two libraries would fight over the cores, so the number of threads is set around each call.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARIES = ("numpy", "torch")


def available() -> tuple[str, ...]:
    """Return the libraries that can multiply now without importing anything."""
    return tuple(name for name in LIBRARIES if name == "numpy" or name in sys.modules)


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _thread_counts(library: str) -> tuple[Callable[[], int], ...]:
    pools = [_TorchThreads()] if library == "torch" else _controller().lib_controllers
    return tuple(pool.get_num_threads for pool in pools)


def holds_to(library: str, threads: int) -> bool:
    """Return whether a library's products use this number of threads already."""
    return all(count() == threads for count in _thread_counts(library))


@contextmanager
def held_to(library: str, threads: int) -> Iterator[None]:
    """Hold a library's products to a number of threads; costs next to nothing where that is the number already."""
    pools = [_TorchThreads()] if library == "torch" else _controller().lib_controllers
    before = [pool.get_num_threads() for pool in pools]
    changed = [(pool, number) for pool, number in zip(pools, before, strict=True) if number != threads]
    for pool, _ in changed:
        pool.set_num_threads(threads)
    try:
        yield
    finally:
        for pool, number in changed:
            pool.set_num_threads(number)


class _TorchThreads:
    """torch's pool behind the two calls that threadpoolctl's have."""

    def get_num_threads(self) -> int:
        return int(sys.modules["torch"].get_num_threads())

    def set_num_threads(self, threads: int) -> None:
        sys.modules["torch"].set_num_threads(threads)


def multiply(library: str, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the library's product of ``a`` and ``b`` to ``out``."""
    if library == "torch":
        torch = sys.modules["torch"]
        torch.matmul(_tensor(torch, a), _tensor(torch, b), out=_tensor(torch, out))
    else:
        np.matmul(a, b, out=out)


def _tensor(torch: Any, array: NDArray[Any]) -> Any:
    if array.flags.writeable:
        return torch.from_numpy(array)
    # torch has no read-only tensors and says so at every conversion; this one is only read.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def blas_kernels() -> str:
    """Return the names of the kernels that numpy's BLAS uses on this processor; empty where it does not say."""
    found = {str(each.get("architecture") or "") for each in _controller().info()}
    return ", ".join(sorted(name for name in found if name))


# Variables that make a BLAS choose other kernels or other block sizes than by itself.
_STEERING = (
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_BLOCK_FACTOR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR", "ATEN_CPU_CAPABILITY", "BLIS_ARCH_TYPE", "NPY_DISABLE_CPU_FEATURES", "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)  # fmt: skip


def conditions(names: Iterable[str]) -> dict[str, str]:
    """Return what decides how fast these libraries are: versions, BLAS kernels, and variables that steer them."""
    found = {name: str(sys.modules[name].__version__) for name in names}
    found["blas_kernels"] = blas_kernels()
    return found | {name: os.environ[name] for name in _STEERING if name in os.environ}
