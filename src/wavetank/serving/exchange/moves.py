"""The copies that all exchanges are made of, compiled once, so that none has better ones than another.

A row travels as words of eight bytes, whatever it holds.  A sum is computed choice by choice in their order, so that it
is the same to the last digit wherever the rows lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

Integers = NDArray[np.int64]
_LINE, _ROWS = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
_OUTPUTS = [types.Array(each, 2, "C") for each in (types.float32, types.float64)]


@compiled(types.void(_ROWS, _LINE, _ROWS, _LINE))
def copy_rows(source: Integers, from_rows: Integers, target: Integers, to_rows: Integers) -> None:
    """Copy rows from some places to others; a place below 0 is skipped.

    Parameters
    ----------
    source, target : int64 array (rows, words)
    from_rows, to_rows : int64 array (n,)
    """
    words = source.shape[1]
    for number in range(to_rows.size):
        begin, end = from_rows[number], to_rows[number]
        if begin >= 0 and end >= 0:
            for word in range(words):
                target[end, word] = source[begin, word]


@compiled(types.void(_LINE, _LINE, _LINE))
def take_places(keys: Integers, following: Integers, places: Integers) -> None:
    """Give each key the next free place of its kind, and move what follows on; a key below 0 gets the place -1.

    Parameters
    ----------
    keys : int64 array (n,)
    following : int64 array (kinds,)
        The next free place of each kind, which changes.
    places : int64 array (n,)
        What comes out.
    """
    for number in range(keys.size):
        key = keys[number]
        if key < 0:
            places[number] = -1
        else:
            places[number] = following[key]
            following[key] += 1


@compiled([types.void(each, _ROWS, each, each) for each in _OUTPUTS], at_first_call=True)
def weighted_sums(outputs: NDArray[Any], places: Integers, gates: NDArray[Any], sums: NDArray[Any]) -> None:
    """Write for each token the sum of its rows times its gates, in the order of its choices.

    Parameters
    ----------
    outputs : float array (rows, hidden)
    places : int64 array (tokens, choices)
        Rows; one below 0 adds nothing.
    gates : float array (tokens, choices)
    sums : float array (tokens, hidden)
    """
    for token in range(sums.shape[0]):
        sums[token, :] = 0.0
        for choice in range(places.shape[1]):
            row, gate = places[token, choice], gates[token, choice]
            if row >= 0:
                for number in range(sums.shape[1]):
                    sums[token, number] += gate * outputs[row, number]


_WHOLE, _SCALES = types.Array(types.int8, 2, "C"), types.Array(types.float64, 2, "C")


# Without numbers that are none, the largest of a row may be looked for in any order: it is the same.
@compiled(types.void(_OUTPUTS[0], _WHOLE, _SCALES), at_first_call=True, fastmath={"nnan", "nsz"})
def quantise(values: NDArray[Any], whole: NDArray[np.int8], scales: NDArray[np.float64]) -> None:
    """Write each row as whole numbers from -127 to 127, and behind them the number that one of them stands for.

    Parameters
    ----------
    values : float32 array (rows, hidden)
    whole : int8 array (rows, hidden + 8)
    scales : float64 array (rows, hidden / 8 + 1)
        The same memory.
    """
    for row in range(values.shape[0]):
        most = np.float32(0.0)
        for number in range(values.shape[1]):
            size = abs(values[row, number])
            most = size if size > most else most
        largest = float(most)
        scales[row, scales.shape[1] - 1] = largest / 127.0
        unit = 127.0 / largest if largest > 0.0 else 0.0
        for number in range(values.shape[1]):
            whole[row, number] = np.int8(np.rint(values[row, number] * unit))
