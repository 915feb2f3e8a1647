"""What native code prints by itself."""

import ctypes
import os

import pytest

from wavetank.machine.native_output import native_output_dropped


def test_what_native_code_prints_is_dropped_within_and_kept_outside(capfd):
    libc = ctypes.CDLL(None)
    with native_output_dropped():
        libc.puts(b"from a library")
        os.write(1, b"at once")
    libc.puts(b"afterwards")
    libc.fflush(None)
    assert capfd.readouterr().out == "afterwards\n"


def test_standard_output_comes_back_after_an_error(capfd):
    with pytest.raises(KeyError), native_output_dropped():
        raise KeyError
    os.write(1, b"there")
    assert capfd.readouterr().out == "there"
