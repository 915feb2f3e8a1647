"""Streamed lines arrive whole, where they belong and nowhere else."""

import numpy as np
import pytest
from numba import njit

from wavetank.machine.stream_stores import LINE_BYTES, copy_line, fence, store_line


@njit
def _fill(address, word, lines):
    for line in range(lines):
        store_line(address + np.uint64(line * 64), word)
    fence()


@njit
def _copy(destination, source, lines):
    for line in range(lines):
        copy_line(destination + np.uint64(line * 64), source + np.uint64(line * 64))
    fence()


def lines_of(number):
    """Return zeros that begin at a line of the cache."""
    room = np.zeros((number + 1) * LINE_BYTES // 8, np.uint64)
    skip = -room.ctypes.data % LINE_BYTES // 8
    return room[skip : skip + number * LINE_BYTES // 8]


def test_a_line_is_eight_words():
    assert np.empty(8, np.uint64).nbytes == LINE_BYTES


@pytest.mark.parametrize("word", [0x0123_4567_89AB_CDEF, (1 << 64) - 1])
@pytest.mark.parametrize("lines", [1, 5])
def test_a_stored_word_fills_its_lines_and_no_neighbour(word, lines):
    room = lines_of(lines + 2)
    _fill(np.uint64(room[8:].ctypes.data), np.uint64(word), lines)
    assert room[8:-8].tolist() == [word] * 8 * lines
    assert not room[:8].any()
    assert not room[-8:].any()


@pytest.mark.parametrize("offset", [0, 3])
def test_a_line_is_copied_from_any_word_to_a_line(offset):
    source = np.arange(1, 33, dtype=np.uint64)
    room = lines_of(4)
    _copy(np.uint64(room[8:].ctypes.data), np.uint64(source[offset:].ctypes.data), 2)
    assert np.array_equal(room[8:24], source[offset : offset + 16])
    assert not room[:8].any()
    assert not room[24:].any()


def test_stores_are_compiled_as_non_temporal_ones():
    _fill(np.uint64(lines_of(1).ctypes.data), np.uint64(1), 1)
    assert all("!nontemporal" in text for text in _fill.inspect_llvm().values())
