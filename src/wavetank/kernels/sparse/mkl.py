"""MKL's inspector-executor, where the package ``mkl`` is installed: a matrix that is optimised for many products.

A handle is made of compressed rows, is given the number of products that will follow, and arranges the matrix itself.
That is MKL as its manual wants it used; torch makes a new handle for every product, and none is optimised.

Source: "Developer Reference for Intel oneAPI Math Kernel Library", inspector-executor sparse BLAS routines.

Differs from the source:

1. Called by ctypes, through the library ``mkl_rt`` with 32-bit numbers of rows and columns.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError, missing_extra
from wavetank.kernels.sparse.compressed import CompressedRows

# Names of the C interface.
_NOT_TRANSPOSED, _GENERAL, _FROM_ZERO = 10, 20, 0
# Products that are announced: enough for every optimisation to be worth it.
EXPECTED_PRODUCTS = 1000
_MOST = np.iinfo(np.int32).max


class _Description(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int))


@cache
def library() -> Any | None:
    """Return the library, loaded; None where it is not installed."""
    names = [*Path(sys.prefix).glob("lib/libmkl_rt.so*"), *Path(sys.prefix).glob("Library/bin/mkl_rt*.dll")]
    for path in sorted(names):
        try:
            found = ctypes.CDLL(str(path))
            # What is needed is there, or this is another library.
            _ = found.mkl_sparse_d_mv, found.mkl_sparse_set_mv_hint, found.MKL_Set_Num_Threads_Local
        except (OSError, AttributeError):
            continue
        return found
    return None


def require(needed_for: str) -> Any:
    """Return the library.

    Parameters
    ----------
    needed_for : str
        What cannot be done without it, for the error.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    found = library()
    if found is None:
        raise missing_extra("mkl", "mkl", needed_for=needed_for)
    return found


def fits(rows: CompressedRows) -> bool:
    """Return whether MKL's 32-bit numbers reach for this matrix."""
    return max(rows.nonzeros, *rows.shape) <= _MOST and min(*rows.shape, rows.nonzeros) > 0


class Optimised:
    """A matrix in MKL's own arrangement.

    Parameters
    ----------
    rows : CompressedRows
        As :func:`fits` has it.
    threads : int
        That a product uses; a number set for the calling thread alone, and only while it multiplies.

    Raises
    ------
    WavetankError
        If MKL refuses the matrix.
    """

    def __init__(self, rows: CompressedRows, threads: int) -> None:
        self._library = require("MKL's own arrangement of a matrix")
        self.threads = threads
        # MKL reads these as long as there is a handle.
        self._starts = np.ascontiguousarray(rows.starts, np.int32)
        self._columns = np.ascontiguousarray(rows.columns, np.int32)
        self._values = rows.values
        letter = "d" if rows.values.dtype == np.float64 else "s"
        self._real = ctypes.c_double if letter == "d" else ctypes.c_float
        self._multiply = getattr(self._library, f"mkl_sparse_{letter}_mv")
        self._multiply.argtypes = [
            ctypes.c_int, self._real, ctypes.c_void_p, _Description, ctypes.c_void_p, self._real, ctypes.c_void_p,
        ]  # fmt: skip
        handle = ctypes.c_void_p()
        self._limited(
            threads, getattr(self._library, f"mkl_sparse_{letter}_create_csr"), ctypes.byref(handle), _FROM_ZERO,
            *(ctypes.c_int(side) for side in rows.shape), ctypes.c_void_p(self._starts.ctypes.data),
            ctypes.c_void_p(self._starts.ctypes.data + self._starts.itemsize),
            ctypes.c_void_p(self._columns.ctypes.data), ctypes.c_void_p(self._values.ctypes.data),
        )  # fmt: skip
        self._handle = handle
        self._end = weakref.finalize(self, self._library.mkl_sparse_destroy, handle)
        self._description = _Description(_GENERAL, 0, 0)
        hint = self._library.mkl_sparse_set_mv_hint
        hint.argtypes = [ctypes.c_void_p, ctypes.c_int, _Description, ctypes.c_int]
        # A hint that is not taken leaves the matrix as it is.
        hint(handle, _NOT_TRANSPOSED, self._description, EXPECTED_PRODUCTS)
        self._limited(threads, self._library.mkl_sparse_optimize, handle)

    def _limited(self, threads: int, call: Any, *arguments: Any) -> None:
        before = self._library.MKL_Set_Num_Threads_Local(threads)
        try:
            status = call(*arguments)
        finally:
            self._library.MKL_Set_Num_Threads_Local(before)
        if status != 0:
            raise WavetankError("MKL refuses this matrix.", given=f"status {status}", where="MKL, inspector-executor")

    def multiply(self, x: NDArray[Any], y: NDArray[Any], threads: int | None = None) -> None:
        """Write the product with ``x``, contiguous, to ``y``; both of the type of the values."""
        self._limited(
            threads or self.threads, self._multiply, _NOT_TRANSPOSED, 1.0, self._handle, self._description,
            x.ctypes.data, 0.0, y.ctypes.data,
        )  # fmt: skip
