"""The sparse products of the libraries that people use today, behind one interface.

Source: the libraries' own documentation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.cuda import require_torch
from wavetank.kernels.sparse import mkl
from wavetank.kernels.sparse.compressed import compressed_rows
from wavetank.machine.threads import allowed_threads
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class ScipyCsr:
    """``scipy.sparse.csr_array @ x``, one thread."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments."""
        import scipy.sparse as sp

        given = compressed_rows(matrix)
        rows = sp.csr_array((given.values, given.columns, given.starts), shape=given.shape)
        return lambda: rows @ x


@dataclass(frozen=True, kw_only=True)
class ScipyCoo:
    """``scipy.sparse.coo_array @ x``, one thread."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments."""
        import scipy.sparse as sp

        given = compressed_rows(matrix)
        entries = sp.csr_array((given.values, given.columns, given.starts), shape=given.shape).tocoo()
        return lambda: entries @ x


def require_sparse_torch(contender: str) -> Any:
    """Return torch, or say which contender needs it."""
    torch = require_torch(f"The contender {contender}")
    # Torch announces on every start that its compressed formats may still change.
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    return torch


@dataclass(frozen=True, kw_only=True)
class MklInspectorExecutor:
    """MKL's sparse matrix with a hint of many products, optimised: the counterpart of a plan.

    Parameters
    ----------
    threads : int, optional
        Threads to use; by default what the user's limits allow.
    """

    threads: int | None = setting(None, says="threads to use; None for what is allowed", low=1)

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments: the matrix is optimised here."""
        mkl.require()
        given = compressed_rows(matrix)
        threads = allowed_threads(self.threads)
        optimised = mkl.Optimised(given, threads)

        def product() -> NDArray[Any]:
            y = np.empty(given.shape[0], given.values.dtype)
            optimised.multiply(x, y, threads)
            return y

        return product


@dataclass(frozen=True, kw_only=True)
class TorchCsr:
    """A torch tensor of layout CSR times a vector: MKL, on as many threads as torch takes."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments."""
        torch = require_sparse_torch("torch-csr")
        given = compressed_rows(matrix)
        # MKL takes numbers of 32 bits: with 64 torch falls back to a loop of its own, several times slower.
        short = max(given.nonzeros, given.shape[1]) <= np.iinfo(np.int32).max
        kind = np.dtype(np.int32 if short else np.int64)
        parts = [
            torch.from_numpy(np.require(part, requirements="W"))
            for part in (given.starts.astype(kind), given.columns.astype(kind, copy=False), given.values)
        ]
        rows = torch.sparse_csr_tensor(*parts, size=given.shape, check_invariants=False)
        vector = torch.from_numpy(x)
        return lambda: rows @ vector
