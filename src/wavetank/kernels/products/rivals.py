"""The rivals of ``matmul``: libraries as they are, a library of another process, and schemes without a choice.

Each has ``prepare(a, b, threads)``, which returns the call to time; the call returns the product.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import shared_memory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.products import libraries
from wavetank.kernels.products.combined import separate_product
from wavetank.kernels.products.decision import ProductPlan
from wavetank.kernels.products.fused import fused_product
from wavetank.kernels.products.product import matmul, plan_of
from wavetank.kernels.products.schemes import BUILT_IN, Scheme, read_scheme, scheme_of
from wavetank.live.processes import ChildProcess, python_code
from wavetank.machine.cuda import require_torch
from wavetank.machine.threads import libraries_limited
from wavetank.settings import setting

Call = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class FixedScheme:
    """Our fused product with a scheme that is used whatever the shape."""

    scheme: str = setting("strassen", says="Name of the built-in scheme", choices=("classical", "strassen", "winograd"))
    levels: int = setting(1, says="Levels of the scheme", low=0, high=3)

    def __post_init__(self) -> None:
        scheme_of(self.scheme, self.levels)

    def planned(self, m: int, k: int, n: int, dtype: Any, threads: int) -> ProductPlan:
        """Return the plan for these sides."""
        return plan_of(m, k, n, "fused", scheme_of(self.scheme, self.levels), dtype=dtype, threads=threads)

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Call:
        """Return the call to time."""
        fixed = self.planned(a.shape[0], a.shape[1], b.shape[1], a.dtype, threads)
        return lambda: matmul(a, b, plan=fixed)


@dataclass(frozen=True, kw_only=True)
class NumpyMatmul:
    """``numpy.matmul`` in this process, with the BLAS kernels that it was started with."""

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Call:
        """Return the call to time."""
        return _limited(lambda: np.asarray(np.matmul(a, b)), threads)


def _into_new(a: NDArray[Any], b: NDArray[Any], write: Callable[[NDArray[Any]], object]) -> Call:
    """Return the call that has the product written into a new array, and returns that."""

    def call() -> NDArray[Any]:
        out = np.empty((a.shape[0], b.shape[1]), a.dtype)
        write(out)
        return out

    return call


def _limited(call: Call, threads: int) -> Call:
    """Return a call within a limit on the threads of libraries."""

    def within() -> Any:
        with libraries_limited(threads):
            return call()

    return within


@dataclass(frozen=True, kw_only=True)
class LibraryMatmul:
    """The product of a library that is called directly.

    Parameters
    ----------
    library : str
        "scipy" for the BLAS that scipy brings, "mkl" for the package of that name, "aocl" for AMD's BLIS.
    """

    library: str = setting("mkl", says="Library that computes the product", choices=("scipy", "mkl", "aocl"))

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Call:
        """Return the call to time."""
        libraries.load(self.library)
        return _limited(_into_new(a, b, lambda out: libraries.multiply(self.library, a, b, out)), threads)


@dataclass(frozen=True, kw_only=True)
class TorchMatmul:
    """``torch.matmul`` on the CPU: MKL on x86."""

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Call:
        """Return the call to time."""
        torch = require_torch("The system torch-matmul")
        # A read-only array becomes a tensor only by a copy.
        left, right = (torch.from_numpy(matrix if matrix.flags.writeable else matrix.copy()) for matrix in (a, b))
        return _limited(lambda: torch.matmul(left, right).numpy(), threads)


_WORKER = """
import contextlib, ctypes, sys
from multiprocessing import resource_tracker, shared_memory
import numpy as np
from threadpoolctl import threadpool_limits
name, kind, m, k, n, threads = sys.argv[1:]
m, k, n = int(m), int(k), int(n)
with contextlib.suppress(OSError, TypeError, AttributeError):
    # Freed memory stays with the process, as it does with the one that times.
    set_option = ctypes.CDLL(None).mallopt
    set_option(-4, 0)
    set_option(-1, 2**31 - 1)
room = shared_memory.SharedMemory(name)
resource_tracker.unregister(room._name, "shared_memory")
size = np.dtype(kind).itemsize
a = np.frombuffer(room.buf, kind, m * k).reshape(m, k)
b = np.frombuffer(room.buf, kind, k * n, m * k * size).reshape(k, n)
c = np.frombuffer(room.buf, kind, m * n, (m * k + k * n) * size).reshape(m, n)
result = None
with threadpool_limits(int(threads)):
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "copy\\n":
            c[:] = result
        else:
            result = None
            result = np.matmul(a, b)
        print("done", flush=True)
del a, b, c
room.close()
"""


@dataclass(frozen=True, kw_only=True)
class NumpyProcess:
    """numpy in a process of its own, whose OpenBLAS chooses its kernels itself or is given their name.

    A variable in the environment can hold OpenBLAS to older kernels; what it chooses by itself is what users get.
    """

    kernels: str = setting("", says="OPENBLAS_CORETYPE of the process; empty: OpenBLAS chooses")

    def __post_init__(self) -> None:
        if not self.kernels.isalnum() and self.kernels:
            raise BadValueError("The name of the kernels is wrong.", given=self.kernels, allowed="letters and digits")

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Call:
        """Return the call to time: a line through a pipe, a product of operands in shared memory, a line back."""
        (m, k), n = a.shape, b.shape[1]
        room = shared_memory.SharedMemory(create=True, size=max(1, (m * k + k * n + m * n) * a.itemsize))
        environment: dict[str, str | None] = {key: None for key in os.environ if key.startswith("OPENBLAS_")}
        if self.kernels:
            environment["OPENBLAS_CORETYPE"] = self.kernels
        command = python_code(_WORKER, room.name, a.dtype.name, *map(str, (m, k, n, threads)))
        process = ChildProcess(command, name="numpy's process", environment=environment, pipes=True)
        at = 0
        for matrix in (a, b):
            # No view outlives its line: shared memory closes only without them.
            np.frombuffer(_bytes_of(room), a.dtype, matrix.size, at).reshape(matrix.shape)[:] = matrix
            at += matrix.nbytes
        call = _ProcessCall(process, room, at, (m, n), a.dtype)
        weakref.finalize(call, _close, process, room)
        call.expect("ready")
        return call


class _ProcessCall:
    def __init__(
        self,
        process: ChildProcess,
        room: shared_memory.SharedMemory,
        at: int,
        shape: tuple[int, int],
        dtype: Any,
    ) -> None:
        self._process, self._room, self._at, self._shape, self._dtype = process, room, at, shape, dtype

    def expect(self, word: str) -> None:
        line = self._process.stdout.readline().decode().strip()
        if line != word:
            said = line or self._process.output()[-500:].strip()
            raise WavetankError("The process with numpy's product ended.", given=said or "no answer", allowed=word)

    def _tell(self, word: str) -> None:
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        self.expect("done")

    def __call__(self) -> _ProcessCall:
        self._tell("multiply")
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the latest product, copied from the other process."""
        self._tell("copy")
        shared = np.frombuffer(_bytes_of(self._room), self._dtype, math.prod(self._shape), self._at)
        return np.array(shared.reshape(self._shape), dtype=dtype)


def _bytes_of(room: shared_memory.SharedMemory) -> memoryview:
    if room.buf is None:
        raise WavetankError("The memory shared with numpy's process is closed.")
    return room.buf


def _close(process: ChildProcess, room: shared_memory.SharedMemory) -> None:
    process.stop()
    with contextlib.suppress(BufferError):
        room.close()
    room.unlink()


@dataclass(frozen=True, kw_only=True)
class SeparateScheme:
    """A scheme around numpy's product, each addition a pass of its own: what fusing is held against."""

    levels: int = setting(1, says="Levels of Winograd's scheme", low=1, high=3)

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Call:
        """Return the call to time."""
        return _separate(a, b, BUILT_IN["winograd"].power(self.levels), threads)


def _separate(a: NDArray[Any], b: NDArray[Any], scheme: Scheme, threads: int) -> Call:
    def write(out: NDArray[Any]) -> None:
        separate_product(a, b, out, scheme, lambda x, y, z: np.matmul(x, y, out=z))

    return _limited(_into_new(a, b, write), threads)


@dataclass(frozen=True, kw_only=True)
class AlphaTensor:
    """AlphaTensor's <4,4,4;49> of the data set ``lcma-schemes``, around numpy's product or in our fused one."""

    fused: bool = setting(False, says="Form sums inside the product instead of in separate passes")

    def prepare(self, a: NDArray[Any], b: NDArray[Any], threads: int) -> Call:
        """Return the call to time."""
        from wavetank.workloads import datasets

        scheme = read_scheme(datasets.find("lcma-schemes", "4x4x4_m49_ZT.json"))
        if not self.fused:
            return _separate(a, b, scheme, threads)
        return _into_new(a, b, lambda out: fused_product(a, b, out, scheme, threads))
