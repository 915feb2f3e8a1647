"""The few BLAS and LAPACK routines of a tiled factorisation, called so that other threads go on meanwhile.

scipy's Python wrappers hold the interpreter's lock while they compute, which makes two threads take turns.  Here the
same compiled routines are called through their addresses, which scipy publishes for Cython, by ctypes, which lets the
lock go.  Matrices are row-major; the routines take them as their transposes.

Source: J. Dongarra, J. Du Croz, S. Hammarling, I. Duff, "A set of level 3 basic linear algebra subprograms", ACM TOMS
16(1), 1990; the routines are those that scipy brings along.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@cache
def _routine(module: str, name: str) -> Callable[..., None]:
    from importlib import import_module

    capsule = import_module(f"scipy.linalg.{module}").__pyx_capi__[name]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = name_of(capsule)
    # Every argument is a pointer, so the number of commas says how many there are.
    kinds = [ctypes.c_void_p] * (signature.count(b",") + 1)
    return ctypes.CFUNCTYPE(None, *kinds)(pointer_of(capsule, signature))


def load() -> None:
    """Load the library with the routines, so that its thread pool can be found."""
    _routine("cython_lapack", "dpotrf")


@cache
def _char(letter: bytes) -> Any:
    return ctypes.byref(ctypes.c_char(letter))


@cache
def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


@cache
def _real(value: float) -> Any:
    return ctypes.byref(ctypes.c_double(value))


def _at(array: Matrix) -> int:
    return array.ctypes.data


def subtract_product(c: Matrix, a: Matrix, b: Matrix) -> None:
    """Compute ``c -= a @ b.T`` in place.

    Parameters
    ----------
    c : float64 array, shape (m, n), row-major
    a : float64 array, shape (m, k), row-major
    b : float64 array, shape (n, k), row-major
    """
    (m, n), k = c.shape, a.shape[1]
    _routine("cython_blas", "dgemm")(
        _char(b"T"), _char(b"N"), _int(n), _int(m), _int(k), _real(-1.0), _at(b), _int(k), _at(a), _int(k), _real(1.0),
        _at(c), _int(n),
    )  # fmt: skip


def subtract_square(c: Matrix, a: Matrix) -> None:
    """Compute the lower triangle of ``c -= a @ a.T`` in place; both of shape (b, b), row-major."""
    n, k = a.shape
    _routine("cython_blas", "dsyrk")(
        _char(b"U"), _char(b"T"), _int(n), _int(k), _real(-1.0), _at(a), _int(k), _real(1.0), _at(c), _int(n)
    )


def solve_right(c: Matrix, lower: Matrix) -> None:
    """Compute ``c = c @ inv(lower).T`` in place.

    Parameters
    ----------
    c : float64 array, shape (m, b), row-major
    lower : float64 array, shape (b, b), row-major
        Only its lower triangle is read.
    """
    m, n = c.shape
    _routine("cython_blas", "dtrsm")(
        _char(b"L"), _char(b"U"), _char(b"T"), _char(b"N"), _int(n), _int(m), _real(1.0), _at(lower), _int(n), _at(c),
        _int(n),
    )  # fmt: skip


def factor(c: Matrix) -> int:
    """Replace the lower triangle of ``c``, shape (b, b), row-major, by its Cholesky factor.

    Returns
    -------
    int
        0, or the number of the first pivot, counted from 1, that is not positive; its row holds its value.
    """
    n = c.shape[0]
    info = ctypes.c_int(0)
    _routine("cython_lapack", "dpotrf")(_char(b"U"), _int(n), _at(c), _int(n), ctypes.byref(info))
    return info.value


def solve_lower(lower: Matrix, x: Matrix, transposed: bool = False) -> None:
    """Compute ``x = inv(lower) @ x``, or ``inv(lower).T @ x``, in place; ``x`` has shape (b,)."""
    n = lower.shape[0]
    _routine("cython_blas", "dtrsv")(
        _char(b"U"), _char(b"N" if transposed else b"T"), _char(b"N"), _int(n), _at(lower), _int(n), _at(x), _int(1)
    )


def subtract_times(y: Matrix, a: Matrix, x: Matrix, transposed: bool = False) -> None:
    """Compute ``y -= a @ x``, or ``y -= a.T @ x``, in place; ``a`` has shape (m, n), row-major."""
    m, n = a.shape
    _routine("cython_blas", "dgemv")(
        _char(b"N" if transposed else b"T"), _int(n), _int(m), _real(-1.0), _at(a), _int(n), _at(x), _int(1),
        _real(1.0), _at(y), _int(1),
    )  # fmt: skip
