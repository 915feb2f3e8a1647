"""Every sorter in the catalog keeps what the interface promises."""

import inspect

import numpy as np
import pytest

from wavetank.kernels import FractalSort
from wavetank.kernels.sorting import interface as interfaces
from wavetank.ledger import catalog

SORTERS = sorted(entry.name for entry in catalog.everything() if "sort-integers" in entry.studies)
OPTIONAL = {"polars-sort": "polars", "pyarrow-sort": "pyarrow"}


def built(name):
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    return catalog.system(name).build()


def promised(protocol):
    return {name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")}


def test_all_sorters_are_found():
    assert len(SORTERS) == 10


@pytest.mark.parametrize("name", SORTERS)
def test_a_sorter_has_every_method_with_the_promised_parameters(name):
    sorter = built(name)
    for method in promised(interfaces.Sorter) - {"__init__"}:
        wanted = list(inspect.signature(getattr(interfaces.Sorter, method)).parameters)[1:]
        assert list(inspect.signature(getattr(sorter, method)).parameters)[: len(wanted)] == wanted


@pytest.mark.parametrize("name", SORTERS)
def test_a_sorter_returns_a_new_array_and_leaves_its_input_alone(name, make_keys):
    keys = make_keys("sorted", 2000, np.uint16)
    before = keys.copy()
    found = built(name).sort(keys)
    assert not np.shares_memory(found, keys)
    assert np.array_equal(found, before)
    assert np.array_equal(keys, before)


@pytest.mark.parametrize("name", SORTERS)
def test_a_sorter_moves_every_key_in_and_out_at_least(name):
    sorter = built(name)
    for dtype in (np.uint8, np.uint16, np.uint32):
        item = np.dtype(dtype).itemsize
        assert sorter.bytes_moved(1000, dtype) >= 2000 * item
        assert sorter.bytes_moved(2000, dtype) == 2 * sorter.bytes_moved(1000, dtype)
        assert sorter.scratch_bytes(1000, dtype) >= 0


def test_fractal_sort_is_a_pair_sorter():
    assert promised(interfaces.PairSorter) == {"sort_pairs"}
    keys, ids = FractalSort(threads=1).sort_pairs(np.array([2, 1, 2], np.uint16), np.array([7, 8, 9]))
    assert (keys.tolist(), ids.tolist()) == ([1, 2, 2], [8, 7, 9])
