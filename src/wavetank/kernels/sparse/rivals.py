"""The sparse products of the libraries that people use today, behind one interface."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.sparse import mkl
from wavetank.kernels.sparse.compressed import compressed_rows
from wavetank.kernels.sparse.engines import torch_rows
from wavetank.machine.cuda import require_torch
from wavetank.machine.threads import allowed_threads
from wavetank.settings import setting


def _scipy_rows(matrix: Any) -> Any:
    from scipy.sparse import csr_array

    given = compressed_rows(matrix)
    return csr_array((given.values, given.columns, given.starts), shape=given.shape)


@dataclass(frozen=True, kw_only=True)
class ScipyCsr:
    """``scipy.sparse.csr_array @ x``, one thread."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments."""
        rows = _scipy_rows(matrix)
        return lambda: rows @ x


@dataclass(frozen=True, kw_only=True)
class ScipyCoo:
    """``scipy.sparse.coo_array @ x``, one thread."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments."""
        entries = _scipy_rows(matrix).tocoo()
        return lambda: entries @ x


def require_sparse_torch(system: str) -> Any:
    """Return torch, or say which system needs it."""
    torch = require_torch(f"The system {system}")
    # Torch announces on every start that its compressed formats may still change.
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    return torch


@dataclass(frozen=True, kw_only=True)
class MklInspectorExecutor:
    """MKL's sparse matrix with a hint of many products, optimised: the counterpart of a plan."""

    threads: int | None = setting(None, says="Threads to use; None for all allowed threads", low=1)

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments: the matrix is optimised here."""
        mkl.require("The system mkl-inspector-executor")
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
        rows, vector = torch_rows(torch, compressed_rows(matrix)), torch.from_numpy(x)
        return lambda: rows @ vector
