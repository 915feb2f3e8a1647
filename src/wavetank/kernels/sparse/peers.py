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

from wavetank.errors import MissingExtraError, missing_extra
from wavetank.kernels.sparse.compressed import compressed_rows


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


def _torch(contender: str) -> Any:
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", needed_for=f"The contender {contender}") from None
    # Torch announces on every start that its compressed formats may still change.
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    return torch


@dataclass(frozen=True, kw_only=True)
class TorchCsr:
    """A torch tensor of layout CSR times a vector: MKL, on as many threads as torch takes."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x as a call without arguments."""
        torch = _torch("torch-csr")
        given = compressed_rows(matrix)
        parts = [
            torch.from_numpy(np.require(part, requirements="W"))
            for part in (given.starts.astype(given.columns.dtype), given.columns, given.values)
        ]
        rows = torch.sparse_csr_tensor(*parts, size=given.shape, check_invariants=False)
        vector = torch.from_numpy(x)
        return lambda: rows @ vector


@dataclass(frozen=True, kw_only=True)
class TorchCooGpu:
    """A torch tensor of layout COO times a vector on a CUDA device: cuSPARSE."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Callable[[], Any]:
        """Return the product with x, which is on the device before the first call."""
        torch = _torch("torch-coo-gpu")
        if not torch.cuda.is_available():
            raise MissingExtraError(
                "The contender torch-coo-gpu needs a CUDA device.", hint="leave it out with --systems"
            )
        given = compressed_rows(matrix)
        rows = np.repeat(np.arange(given.shape[0]), np.diff(given.starts))
        entries = (
            torch.sparse_coo_tensor(
                torch.from_numpy(np.stack((rows, given.columns))),
                torch.from_numpy(given.values.copy()),
                size=given.shape,
            )
            .cuda()
            .coalesce()
        )
        vector = torch.from_numpy(x).cuda()

        def product() -> Any:
            found = entries @ vector
            torch.cuda.synchronize()
            return found

        return product
