"""Arrays without reference counts."""

import gc
import re
import weakref
from typing import NamedTuple

import numpy as np
from numba import njit

from wavetank.sim.borrow import borrowed


class Pair(NamedTuple):
    values: np.ndarray
    total: np.ndarray


@njit
def _add(pair, i):
    values, total = pair.values, pair.total
    total[0] += values[i]


@njit
def _sum_borrowed(pair):
    pair = Pair(borrowed(pair.values), borrowed(pair.total))
    for i in range(pair.values.size):
        _add(pair, i)
    return pair.total[0]


@njit
def _write_borrowed(array):
    own = borrowed(array)
    own[1:3] = 7
    return own.shape, own.strides, own.size


def test_a_borrowed_array_shares_memory_shape_and_strides():
    array = np.zeros((4, 5))[:, ::2]
    assert _write_borrowed(array) == (array.shape, array.strides, array.size)
    assert array[1:3].tolist() == [[7] * 3] * 2
    assert array[0].tolist() == [0] * 3


def test_what_is_computed_on_borrowed_arrays_is_what_is_computed_on_the_arrays():
    values = np.arange(100.0)
    assert _sum_borrowed(Pair(values, np.zeros(1))) == values.sum()


def test_structured_arrays_can_be_borrowed():
    rows = np.zeros(3, np.dtype([("a", np.int64), ("b", np.float64)]))

    @njit
    def fill(rows):
        own = borrowed(rows)
        own[1].a = 5
        return own[1].a + own[0].a

    assert fill(rows) == 5
    assert rows["a"].tolist() == [0, 5, 0]


def test_the_owner_is_neither_kept_alive_nor_freed_early():
    values = np.ones(10)
    gone = weakref.ref(values)
    for _ in range(100):
        _sum_borrowed(Pair(values, np.zeros(1)))
    assert values.sum() == 10
    del values
    gc.collect()
    assert gone() is None


def test_compiled_code_counts_no_reference_to_a_borrowed_array_that_is_taken_out_of_a_tuple():
    def record(pair, i):
        values, total = pair.values, pair.total
        if values[i] > 0:
            total[0] += values[i]
        else:
            values[i] += total[0]

    def counted(function):
        compiled = njit(function)
        assert compiled(Pair(np.ones(3), np.zeros(1))) == 3.0
        (code,) = compiled.inspect_llvm().values()
        return len(re.findall(r"call void @NRT_incref", code))

    step = njit(record)

    def plain(pair):
        for i in range(pair.values.size):
            step(pair, i)
        return pair.total[0]

    def lent(pair):
        pair = Pair(borrowed(pair.values), borrowed(pair.total))
        for i in range(pair.values.size):
            step(pair, i)
        return pair.total[0]

    assert counted(lent) == 0 < counted(plain)
