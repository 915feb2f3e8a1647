"""What a sorter promises.  One definition, used by studies, peers and our own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Sorter(Protocol):
    """Sorts a vector of keys.

    ``bytes_moved`` and ``scratch_bytes`` are exact formulas of the algorithm, not measurements: a time divided by
    ``bytes_moved / bandwidth`` says how far the implementation is from what the machine allows its algorithm.
    """

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return a new array with ``keys``, shape (n,), in ascending order; the input is never modified."""
        ...

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the zero-argument call to time: converts to the library's own container first, once."""
        ...

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the most memory used beyond input and output, in bytes."""
        ...

    def bytes_moved(self, n: int, dtype: DTypeLike) -> int:
        """Return the bytes that must cross between memory and caches to sort ``n`` keys of ``dtype``."""
        ...


class PairSorter(Protocol):
    """Sorts keys and carries a row id with each, stably."""

    def sort_pairs(
        self, keys: NDArray[Any], row_ids: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return (sorted keys, their row ids), both of shape (n,); equal keys keep the order they came in."""
        ...
