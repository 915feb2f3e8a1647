"""Named tuples lent to compiled code by their address."""

import gc
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit, typeof

from wavetank.sim.lent import borrower, words

ROW = np.dtype([("a", np.int64), ("b", np.int32)], align=True)


class Several(NamedTuple):
    table: Any
    rows: Any
    number: int
    last: Any
    cube: Any


def several(side=3):
    return Several(
        np.arange(2.0 * side).reshape(2, side),
        np.zeros(4, ROW),
        7,
        np.arange(5),
        np.arange(24, dtype=np.int8).reshape(2, 3, 4),
    )


at = borrower(typeof(several()._replace(number=np.int64(0))))


@njit
def _changed(lent, i):
    lent.rows[i].b += 5
    lent.table[1, 2] += lent.number
    return lent.table[1, 2] + lent.last[4] + lent.rows.size + lent.cube[1, 2, 3]


@njit
def _all(given):
    lent = at(given)
    total = 0.0
    for i in range(lent.rows.size):
        total += _changed(lent, i)
    lent.last[:] = lent.cube.shape[2]
    return total


@pytest.mark.parametrize("side", [3, 4])
def test_what_compiled_code_does_to_a_lent_tuple_is_done_to_its_arrays(side):
    lent, expected = several(side), several(side)
    total = 0.0
    for row in expected.rows:
        row["b"] += 5
        expected.table[1, 2] += 7
        total += expected.table[1, 2] + 4 + 4 + 23
    given = words(lent)
    assert _all(given) == total
    assert lent.table.tolist() == expected.table.tolist()
    assert lent.rows.tolist() == expected.rows.tolist()
    assert lent.last.tolist() == [4] * 5
    assert lent.cube.tolist() == expected.cube.tolist()


def test_an_array_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match="table"):
        words(several()._replace(table=np.zeros((4, 4))[:, ::2]))
    words(several()._replace(table=np.zeros((0, 3)), last=np.zeros(0, np.int64)))


def test_words_keep_their_tuple_alive_and_no_longer():
    lent = several()
    alive = weakref.ref(lent.table)
    given = words(lent)
    del lent
    gc.collect()
    assert alive() is not None and _all(given) == _all(words(several()))
    del given
    gc.collect()
    assert alive() is None
