"""Study ``sort-pairs``: sorting a long column of keys with the row id of each, stably."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.kernels.sorting.study_integers import BITS, SortIntegers, keys_of
from wavetank.ledger import catalog
from wavetank.settings import setting
from wavetank.study.timing import Case


class Pairs(NamedTuple):
    """The keys of a case, and what sorting them with their row ids must give."""

    keys: NDArray[Any]
    expected: NDArray[Any]
    order: NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class SortPairs(SortIntegers):
    """Every system returns the sorted keys and where each came from, in new memory.  What they return is compared
    with numpy's stable argsort before anything is timed.
    """

    name = "sort-pairs"

    size_mb: int = setting(
        16, unit="MB", says="Size of the keys (10^6 bytes); row ids of 8 bytes are additional", low=1, high=16_000
    )
    bits: int = setting(32, says="Bits per key", choices=BITS)

    def array_bytes(self) -> int:
        """Return the bytes of keys and ids together."""
        return self.size_mb * 1_000_000 * (self.bits + 64) // self.bits

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "share_of_copy and copies hold a system against a copy that reads and writes every key and id once.",
            "numpy-sort is numpy's stable argsort and a gather; DuckDB orders by key and id.",
            *super().notes()[1:],
        )

    def case(self, name: str, seed: int) -> Case:
        """Return a column of that distribution."""
        keys = keys_of(name, self.size_mb * 1_000_000 * 8 // self.bits, self.bits, seed)
        keys.flags.writeable = False
        order = np.argsort(keys, kind="stable")
        return Case(name, Pairs(keys, keys[order], order), bytes_moved=2.0 * (keys.nbytes + order.nbytes))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the sorter's prepared call; raises WavetankError for a sorter of keys alone."""
        if not hasattr(system, "prepare_pairs"):
            raise WavetankError(
                f"{type(system).__name__} sorts keys alone.",
                allowed=", ".join(catalog.everything().systems_of(self.name)),
                hint="leave it out with --systems, or compare keys alone with sort-integers",
            )
        call: Callable[[], object] = system.prepare_pairs(case.data.keys)
        return call

    def verify(self, case: Case, system: str, result: Any) -> None:
        """Compare with numpy's stable argsort."""
        keys, ids = result
        if not (
            np.array_equal(np.asarray(keys), case.data.expected) and np.array_equal(np.asarray(ids), case.data.order)
        ):
            raise WavetankError(f"{system} did not sort {case.name} keys and their row ids.")
