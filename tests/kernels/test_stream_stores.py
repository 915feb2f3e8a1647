"""Whole-line stores."""

import numpy as np
from numba import njit

from wavetank.kernels.stream_stores import LINE_BYTES, copy_line, fence, store_line


@njit
def _fill(address, word):
    store_line(address, word)
    fence()


@njit
def _copy(destination, source):
    copy_line(destination, source)
    fence()


def aligned(lines):
    room = np.zeros((lines + 1) * LINE_BYTES, np.uint8)
    skip = -room.ctypes.data % LINE_BYTES
    return room[skip : skip + lines * LINE_BYTES]


def test_a_stored_line_holds_its_word_eight_times_and_touches_nothing_else():
    memory = aligned(3)
    _fill(np.uintp(memory.ctypes.data + LINE_BYTES), np.uint64(0x0102030405060708))
    words = memory.view(np.uint64).reshape(3, 8)
    assert (words[1] == 0x0102030405060708).all()
    assert not words[[0, 2]].any()


def test_a_copied_line_equals_its_source_wherever_that_starts():
    source = np.arange(200, dtype=np.uint8)
    memory = aligned(2)
    _copy(np.uintp(memory.ctypes.data), np.uintp(source.ctypes.data + 8))
    np.testing.assert_array_equal(memory[:LINE_BYTES], source[8 : 8 + LINE_BYTES])
    assert not memory[LINE_BYTES:].any()
