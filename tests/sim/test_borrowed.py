"""Functions that own no array: they compute the same, count no references, and may make none."""

import sys
from typing import NamedTuple

import numba
import numpy as np
import pytest

from wavetank.sim.borrowed import BORROWED


class Two(NamedTuple):
    left: np.ndarray
    right: np.ndarray


@numba.njit(forceinline=True, **BORROWED)
def _add(two, place):
    two.left[place] += two.right[place]


@numba.njit(**BORROWED)
def add_all(two):
    for place in range(two.left.size):
        _add(two, place)


def test_what_is_borrowed_is_changed_in_place_and_given_back():
    two = Two(np.arange(5), np.full(5, 10))
    counts = []
    for _ in range(3):
        add_all(two)
        counts.append(sys.getrefcount(two.left))
    assert two.left.tolist() == [30, 31, 32, 33, 34]
    assert len(set(counts)) == 1


def test_no_reference_is_counted():
    two = Two(np.arange(5), np.full(5, 10))
    add_all(two)
    (code,) = add_all.inspect_llvm().values()
    assert "NRT_incref" not in code


def test_a_function_that_makes_an_array_is_refused():
    @numba.njit(**BORROWED)
    def twice(values):
        return (values + values).sum()

    with pytest.raises(Exception, match="NRT"):
        twice(np.arange(3))
