"""Peers sort like numpy; a library that is not there is named with the command that brings it."""

import sys

import numpy as np
import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.extras import install_command
from wavetank.kernels.sorting.rivals import (
    CountingSort,
    DuckDBSort,
    NumpySort,
    NumpyStableSort,
    PolarsSort,
    PyarrowSort,
    RadixSort,
)

LIBRARIES = (NumpySort, NumpyStableSort, PolarsSort, PyarrowSort, DuckDBSort)
TEXTBOOK = (CountingSort, RadixSort)
NEEDS = {PolarsSort: "polars", PyarrowSort: "pyarrow"}


def built(kind):
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    return kind()


@pytest.mark.parametrize("distribution", ["uniform", "sorted", "reversed", "constant", "one hot"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("kind", [*LIBRARIES, *TEXTBOOK])
def test_a_peer_sorts_like_numpy(kind, dtype, distribution, make_keys):
    keys = make_keys(distribution, 3001, dtype)
    before = keys.copy()
    found = built(kind).sort(keys)
    assert found.dtype == keys.dtype
    assert np.array_equal(found, np.sort(keys))
    assert np.array_equal(keys, before)


@pytest.mark.parametrize("kind", [*LIBRARIES, RadixSort])
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_wide_keys_are_sorted_like_numpy(kind, dtype, make_keys):
    keys = make_keys("uniform", 3001, dtype)
    keys.flags.writeable = False
    assert np.array_equal(built(kind).sort(keys), np.sort(keys))


@pytest.mark.parametrize("kind", LIBRARIES)
def test_libraries_take_signed_keys(kind, make_keys):
    keys = make_keys("uniform", 3001, np.int16)
    assert np.array_equal(built(kind).sort(keys), np.sort(keys))


@pytest.mark.parametrize("kind", [*LIBRARIES, *TEXTBOOK])
def test_the_prepared_call_sorts_and_can_be_repeated(kind, make_keys):
    keys = make_keys("uniform", 3001, np.uint16)
    keys.flags.writeable = False
    call = built(kind).prepare(keys)
    first, second = call(), call()
    for result in (first, second, call()):
        assert np.array_equal(np.asarray(result), np.sort(keys))


@pytest.mark.parametrize("kind", [*LIBRARIES, *TEXTBOOK])
def test_nothing_sorts_to_nothing(kind):
    assert built(kind).sort(np.empty(0, np.uint16)).shape == (0,)


def test_prepared_duckdb_calls_do_not_disturb_each_other(make_keys):
    one, other = make_keys("uniform", 500, np.uint16, 1), make_keys("uniform", 400, np.uint16, 2)
    calls = DuckDBSort().prepare(one), DuckDBSort().prepare(other)
    results = [call() for call in calls]
    for result, keys in zip(results, (one, other), strict=True):
        assert np.array_equal(np.asarray(result), np.sort(keys))


@pytest.mark.parametrize("kind", NEEDS)
def test_a_missing_library_is_told_with_the_command_that_installs_it(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, NEEDS[kind], None)
    with pytest.raises(MissingExtraError, match=NEEDS[kind]) as caught:
        kind().sort(np.zeros(3, np.uint16))
    assert caught.value.hint == install_command("kernels")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (CountingSort, "int16"),
        (CountingSort, "uint32"),
        (CountingSort, "float16"),
        (RadixSort, "int32"),
        (RadixSort, "float64"),
        (RadixSort, "bool"),
    ],
)
def test_the_textbook_sorts_refuse_what_they_cannot_sort(kind, dtype):
    with pytest.raises(BadValueError, match="takes unsigned keys of up to") as caught:
        kind().sort(np.zeros(3, dtype))
    assert caught.value.given == dtype
    assert "--systems" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "scratch"),
    [
        (NumpySort, 0),
        (NumpyStableSort, 2000),
        (PyarrowSort, 8000),
        (CountingSort, 8 * 65_536),
        (RadixSort, 2000),
    ],
)
def test_scratch_follows_the_algorithm(kind, scratch):
    assert kind().scratch_bytes(1000, np.uint16) == scratch


def test_bytes_moved_are_at_least_a_read_and_a_write():
    for kind in (*LIBRARIES, CountingSort):
        assert kind().bytes_moved(1000, np.uint16) == 4000
    assert RadixSort().bytes_moved(1000, np.uint16) == 16_000


@pytest.mark.parametrize("distribution", ["uniform", "two-valued"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float64"])
@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_library_sorts_row_ids_along_stably(kind, dtype, distribution, make_keys):
    keys = np.nan_to_num(make_keys(distribution, 3001, dtype))
    found, ids = built(kind).prepare_pairs(keys)()
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(np.asarray(ids), order)
    assert np.array_equal(np.asarray(found), keys[order])
