"""What a sparse matrix may be given as, and the compressed rows that everything here starts from.

Source: the format is that of Y. Saad, "Iterative Methods for Sparse Linear Systems", section 3.4 (CSR).
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.as_array import array_of, is_tensor, refuse_gradients
from wavetank.sim.compiled import compiled

VALUE_TYPES = (np.dtype(np.float64), np.dtype(np.float32))
_MOST_COLUMNS = 1 << 31


class CompressedRows(NamedTuple):
    """A checked matrix in compressed rows; columns within a row may be in any order and occur more than once."""

    starts: NDArray[Any]
    """Shape (rows + 1,): row i holds the nonzeros ``starts[i]`` to ``starts[i + 1] - 1``; int32 or int64."""
    columns: NDArray[Any]
    """Shape (nonzeros,), int32 or int64."""
    values: NDArray[Any]
    """Shape (nonzeros,), float32 or float64."""
    shape: tuple[int, int]

    @property
    def nonzeros(self) -> int:
        """Return the number of stored entries, explicit zeros and duplicates included."""
        return int(self.columns.size)


@compiled(nogil=True)
def _first_falling(starts: NDArray[Any]) -> int:
    for i in range(starts.size - 1):
        if starts[i] > starts[i + 1]:
            return i
    return -1


@compiled(nogil=True)
def _range(columns: NDArray[Any]) -> tuple[int, int]:
    low, high = columns[0], columns[0]
    for i in range(columns.size):
        low, high = min(low, columns[i]), max(high, columns[i])
    return low, high


def _refuse(problem: str, **said: Any) -> BadValueError:
    return BadValueError(problem, where="sparse matrix", **said)


def compressed_rows(matrix: Any) -> CompressedRows:
    """Check a matrix and return it in compressed rows, without a copy where it has them already.

    Parameters
    ----------
    matrix : scipy sparse matrix or array, torch sparse tensor, or tuple
        Any scipy format; a two-dimensional torch tensor of layout CSR, COO or CSC, copied where it is on a GPU; or
        ``(starts, columns, values, shape)``.  Values are float32 or float64; integers and booleans become float64.
        Entries need not be sorted; entries of the same row and column are summed.

    Raises
    ------
    BadValueError
        If it is something else, an index is out of range, or arrays do not fit together; if it is a tensor that
        requires its gradient where gradients are recorded, since none flows.
    """
    if isinstance(matrix, CompressedRows):
        return matrix
    if isinstance(matrix, tuple):
        if len(matrix) != 4:
            raise _refuse(
                "A matrix as a tuple has four parts.",
                given=f"{len(matrix)}",
                allowed="(starts, columns, values, shape)",
            )
        return _checked(*matrix)
    if is_tensor(matrix):
        return _of_torch(matrix)
    import scipy.sparse as sp

    if not sp.issparse(matrix):
        raise _refuse(
            "This is no sparse matrix.",
            given=type(matrix).__name__,
            allowed="a scipy sparse matrix, a torch sparse tensor, or (starts, columns, values, shape)",
            hint="scipy.sparse.csr_array(matrix) makes one of a dense array",
        )
    if matrix.ndim != 2:
        raise _refuse("A matrix has two dimensions.", given=f"{matrix.ndim} dimensions")
    if matrix.format == "coo":
        for axis, name in enumerate(("row", "column")):
            indices = matrix.coords[axis]
            if indices.size:
                _check_range(np.asarray(indices), matrix.shape[axis], name)
    if matrix.format in ("csc", "bsr"):
        _check_range(matrix.indices, matrix.shape[0 if matrix.format == "csc" else 1], "index")
    rows = matrix if matrix.format == "csr" else matrix.tocsr()
    return _checked(rows.indptr, rows.indices, rows.data, rows.shape)


def _of_torch(tensor: Any) -> CompressedRows:
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout == torch.strided or tensor.ndim != 2:
        raise _refuse(
            "This is no sparse matrix.",
            given=f"torch {type(tensor).__name__}",
            allowed="a two-dimensional sparse tensor",
            hint="tensor.to_sparse_csr() makes one of a dense tensor",
        )
    refuse_gradients(tensor, "sparse matrix")
    try:
        rows = tensor.detach().to("cpu")
        rows = rows if rows.layout == torch.sparse_csr else rows.to_sparse_csr()
        starts, columns, values = rows.crow_indices().numpy(), rows.col_indices().numpy(), rows.values().numpy()
    except (RuntimeError, TypeError) as error:
        # Blocks, tensors of vectors, and types that numpy lacks, such as bfloat16.
        raise _refuse(
            "torch does not give the rows of this tensor.",
            given=f"{tensor.dtype}, {tensor.layout}",
            allowed="float32 or float64 of layout CSR, CSC or COO",
            hint=f"torch says: {str(error).splitlines()[0]}",
        ) from None
    return _checked(starts, columns, values, tuple(tensor.shape))


def _check_range(indices: NDArray[Any], size: int, name: str) -> None:
    if not indices.size:
        return
    low, high = _range(indices)
    if low < 0 or high >= size:
        wrong = int(np.flatnonzero((indices < 0) | (indices >= size))[0])
        raise _refuse(
            f"A {name} is out of range.",
            given=f"{int(indices[wrong])} at position {wrong:,}",
            allowed=f"0 to {size - 1}" if size else "none: the matrix has no such side",
        )


def _checked(starts: Any, columns: Any, values: Any, shape: Any) -> CompressedRows:
    try:
        rows, width = (operator.index(side) for side in shape)
    except (TypeError, ValueError):
        raise _refuse("The shape of a matrix is two whole numbers.", given=shape) from None
    if rows < 0 or not 0 <= width < _MOST_COLUMNS:
        raise _refuse(
            "The shape is out of range.", given=f"({rows}, {width})", allowed=f"up to {_MOST_COLUMNS - 1} columns"
        )
    starts, columns, values = _integers(starts, "starts"), _integers(columns, "columns"), array_of(values, "values")
    if values.dtype.kind in "iub":
        values = values.astype(np.float64)
    if values.dtype not in VALUE_TYPES:
        raise _refuse(
            "Values of this type cannot be multiplied here.", given=str(values.dtype), allowed="float32, float64"
        )
    if starts.shape != (rows + 1,):
        raise _refuse("starts has the wrong length.", given=str(starts.shape), allowed=f"({rows + 1},): rows + 1")
    if columns.ndim != 1 or columns.shape != values.shape:
        raise _refuse(
            "columns and values differ in length.",
            given=f"{columns.shape} and {values.shape}",
            allowed="one of each a nonzero",
        )
    falling = _first_falling(starts)
    if starts[0] != 0 or falling >= 0 or starts[-1] > columns.size:
        at = 0 if starts[0] != 0 else falling if falling >= 0 else rows
        raise _refuse(
            "starts does not rise from 0 to at most the number of nonzeros.",
            given=f"starts[{at}] = {int(starts[at])}"
            + (f", starts[{at + 1}] = {int(starts[at + 1])}" if falling >= 0 else ""),
            allowed=f"0 to {columns.size}, rising",
        )
    # scipy keeps room behind the last entry in some of its matrices.
    columns, values = columns[: int(starts[-1])], values[: int(starts[-1])]
    _check_range(columns, width, "column")
    return CompressedRows(starts, np.ascontiguousarray(columns), np.ascontiguousarray(values), (rows, width))


def _integers(array: Any, name: str) -> NDArray[Any]:
    found = array_of(array, name)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise _refuse(f"{name} must be a vector of integers.", given=f"{found.dtype}, shape {found.shape}")
    if found.dtype not in (np.int32, np.int64):
        found = found.astype(np.int64)
    return np.ascontiguousarray(found)
