"""The sparse products of the libraries for GPUs, behind one interface: cuSPARSE called directly, and through torch.

torch's own product of coordinates turns 64-bit row numbers into row pointers every time, so it says little about
cuSPARSE: :class:`Cusparse` calls the library that torch has loaded, in 32-bit numbers, with everything prepared.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import MissingExtraError, WavetankError
from wavetank.kernels.sparse.compressed import CompressedRows, compressed_rows
from wavetank.kernels.sparse.rivals import require_sparse_torch
from wavetank.machine.cuda import require_cuda
from wavetank.settings import setting

# Of the header cusparse.h: indices of 32 and 64 bits, values, host scalars, and the ways to multiply.
_INDEX_32, _INDEX_64 = 2, 3
_FLOAT_32, _FLOAT_64 = 0, 1
_DEFAULT = 0
_DETERMINISTIC = {"coordinates": 4, "rows": 3}
_LIBRARIES = ("libcusparse.so.12", "libcusparse.so.11", "libcusparse.so")
_LONG, _INT, _AT = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
_SPMV = (_AT, _INT, _AT, _AT, _AT, _AT, _AT, _INT, _INT)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseCreate": (_AT,),
    "cusparseDestroy": (_AT,),
    "cusparseSetStream": (_AT, _AT),
    "cusparseCreateCoo": (_AT, _LONG, _LONG, _LONG, _AT, _AT, _AT, _INT, _INT, _INT),
    "cusparseCreateCsr": (_AT, _LONG, _LONG, _LONG, _AT, _AT, _AT, _INT, _INT, _INT, _INT),
    "cusparseDestroySpMat": (_AT,),
    "cusparseCreateDnVec": (_AT, _LONG, _AT, _INT),
    "cusparseDestroyDnVec": (_AT,),
    "cusparseSpMV_bufferSize": (*_SPMV, _AT),
    "cusparseSpMV_preprocess": (*_SPMV, _AT),
    "cusparseSpMV": (*_SPMV, _AT),
}


_HINT = "wavetank compare spmv runs on the processor"


@cache
def cusparse() -> Any:
    """Return the library cuSPARSE with its signatures, the one that torch has loaded where torch came with CUDA."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for function, arguments in _SIGNATURES.items():
            # Versions before 12.3 prepare nothing.
            if hasattr(library, function):
                getattr(library, function).argtypes = arguments
        return library
    raise MissingExtraError(
        "The library cuSPARSE is not on this machine.", allowed=_LIBRARIES,
        hint="a torch built for CUDA comes with it",
    )  # fmt: skip


def _call(function: str, *arguments: Any) -> None:
    status = getattr(cusparse(), function)(*arguments)
    if status:
        raise WavetankError(f"cuSPARSE refused {function}.", given=f"status {status}")


def _made(function: str, *arguments: Any) -> ctypes.c_void_p:
    """Return what a function creates at its first argument."""
    made = ctypes.c_void_p()
    _call(function, ctypes.byref(made), *arguments)
    return made


def _destroy_with(owner: object, made: list[tuple[str, ctypes.c_void_p]]) -> None:
    """Call what destroys each thing made, the last one first, when its owner is gone."""

    def destroy() -> None:
        for function, each in reversed(made):
            getattr(cusparse(), function)(each)

    # At the end of the process the device is gone before Python's objects are.
    weakref.finalize(owner, destroy).atexit = False


class _Described:
    """A matrix, a vector and a result, as cuSPARSE wants them described; keeps the memory they lie in."""

    def __init__(self, given: CompressedRows, layout: str, torch: Any, vector: Any) -> None:
        device = vector.device
        narrow = max(given.nonzeros, *given.shape) <= np.iinfo(np.int32).max
        kind, index = (torch.int32, _INDEX_32) if narrow else (torch.int64, _INDEX_64)
        value = _FLOAT_64 if given.values.dtype == np.float64 else _FLOAT_32
        starts = torch.from_numpy(given.starts.astype(np.int64)).to(device)
        if layout == "coordinates":
            rows = torch.arange(given.shape[0], device=device)
            firsts = torch.repeat_interleave(rows, torch.diff(starts)).to(kind)
        else:
            firsts = starts.to(kind)
        columns = torch.from_numpy(given.columns.astype(np.int64)).to(device).to(kind)
        values = torch.from_numpy(given.values.copy()).to(device)
        y = torch.empty(given.shape[0], dtype=vector.dtype, device=device)
        self.kept, self.y = (firsts, columns, values, vector), y
        parts = (*given.shape, given.nonzeros, firsts.data_ptr(), columns.data_ptr(), values.data_ptr())
        made: list[tuple[str, ctypes.c_void_p]] = []
        _destroy_with(self, made)
        if layout == "coordinates":
            self.matrix = _made("cusparseCreateCoo", *parts, index, 0, value)
        else:
            self.matrix = _made("cusparseCreateCsr", *parts, index, index, 0, value)
        made.append(("cusparseDestroySpMat", self.matrix))
        self.vector = _made("cusparseCreateDnVec", vector.numel(), vector.data_ptr(), value)
        made.append(("cusparseDestroyDnVec", self.vector))
        self.result = _made("cusparseCreateDnVec", y.numel(), y.data_ptr(), value)
        made.append(("cusparseDestroyDnVec", self.result))
        self.value = value


@dataclass(frozen=True, kw_only=True)
class Cusparse:
    """cuSPARSE's product, called directly, everything prepared."""

    captures: ClassVar[bool] = True

    layout: str = setting(
        "coordinates", says="Layout of the matrix: coordinates or compressed rows", choices=("coordinates", "rows")
    )
    deterministic: bool = setting(False, says="Whether the method with repeatable results is used")

    def prepare(self, matrix: Any, x: NDArray[Any], device: str = "cuda") -> Callable[[], Any]:
        """Return the call that queues the product with x on the device."""
        torch = require_cuda(f"The system cuSPARSE, {self.layout},", device, _HINT)
        given = compressed_rows(matrix)
        vector = torch.from_numpy(np.require(x, requirements="W")).to(device)
        described = _Described(given, self.layout, torch, vector)
        handle = _made("cusparseCreate")
        _destroy_with(described, [("cusparseDestroy", handle)])
        scalar = ctypes.c_double if given.values.dtype == np.float64 else ctypes.c_float
        one, zero = scalar(1), scalar(0)
        way = _DETERMINISTIC[self.layout] if self.deterministic else _DEFAULT
        arguments = (
            handle, 0, ctypes.addressof(one), described.matrix, described.vector, ctypes.addressof(zero),
            described.result, described.value, way,
        )  # fmt: skip
        size = ctypes.c_size_t()
        _call("cusparseSpMV_bufferSize", *arguments, ctypes.byref(size))
        room = torch.empty(max(1, size.value), dtype=torch.uint8, device=device)
        _call("cusparseSetStream", handle, torch.cuda.current_stream(vector.device).cuda_stream)
        if self.layout == "rows" and hasattr(cusparse(), "cusparseSpMV_preprocess"):
            _call("cusparseSpMV_preprocess", *arguments, room.data_ptr())
        # Addresses alone would not keep these alive.
        kept = (one, zero, room)

        def product() -> Any:
            _call("cusparseSetStream", handle, torch.cuda.current_stream(vector.device).cuda_stream)
            _call("cusparseSpMV", *arguments, kept[-1].data_ptr())
            return described.y

        return product


@dataclass(frozen=True, kw_only=True)
class TorchGpu:
    """A sparse torch tensor on a GPU times a vector."""

    # Not known of every version of torch.
    captures: ClassVar[bool] = False

    layout: str = setting(
        "coordinates", says="Layout of the matrix: coordinates or compressed rows", choices=("coordinates", "rows")
    )

    def prepare(self, matrix: Any, x: NDArray[Any], device: str = "cuda") -> Callable[[], Any]:
        """Return the call that queues the product with x on the device."""
        system = f"torch, {self.layout},"
        require_cuda(f"The system {system}", device, _HINT)
        torch = require_sparse_torch(system)
        given = compressed_rows(matrix)
        columns = torch.from_numpy(given.columns.astype(np.int64))
        values = torch.from_numpy(given.values.copy())
        starts = torch.from_numpy(given.starts.astype(np.int64))
        if self.layout == "coordinates":
            rows = torch.repeat_interleave(torch.arange(given.shape[0]), torch.diff(starts))
            entries = torch.sparse_coo_tensor(
                torch.stack((rows, columns)), values, size=given.shape, check_invariants=False
            )
            entries = entries.to(device).coalesce()
        else:
            narrow = torch.int32 if max(given.nonzeros, *given.shape) <= np.iinfo(np.int32).max else torch.int64
            entries = torch.sparse_csr_tensor(
                starts.to(narrow), columns.to(narrow), values, size=given.shape, check_invariants=False
            ).to(device)
        vector = torch.from_numpy(np.require(x, requirements="W")).to(device)
        return lambda: entries @ vector
