"""Keeps what a native library prints by itself out of a program's output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator

_STDOUT = 1
# The file descriptor belongs to the whole process.
_lock = threading.Lock()


@contextlib.contextmanager
def native_output_dropped() -> Iterator[None]:
    """Drop what is written to the process's standard output in a block, by any thread and any language.

    Python's own output is kept if it is still in a buffer.  Where the process has no standard output, nothing is done.
    """
    with _lock:
        try:
            kept = os.dup(_STDOUT)
        except OSError:
            yield
            return
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, _STDOUT)
            os.close(nowhere)
            yield
        finally:
            # What the library still holds in its buffer would come out afterwards.
            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, _STDOUT)
            os.close(kept)
