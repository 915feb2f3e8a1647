"""Memory that processes share and that has no name, so that nothing of it can be left behind.

A segment with a name outlives the process that is killed before it can remove it.  This one is a descriptor that
children inherit: the kernel frees the pages when the last process that has it has ended, however that happened.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError

MOST_BYTES = 1 << 40


def shared_pages(size: int) -> int:
    """Return a descriptor of that much shared memory, all zero; pages that are never touched take none.

    Parameters
    ----------
    size : int
        Bytes, 1 to ``MOST_BYTES``.

    Returns
    -------
    int
        The descriptor, which the caller closes.

    Raises
    ------
    BadValueError
        If the size is out of its range.
    WavetankError
        If the system gives no such memory.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_BYTES:
        raise BadValueError("Shared memory has a size.", given=size, allowed=f"1 to {MOST_BYTES} bytes")
    try:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("wavetank", os.MFD_CLOEXEC)
        else:
            # The file loses its name before anything is written to it.
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise WavetankError("The system gives no shared memory.", given=f"{size} bytes: {error}") from error
    return descriptor


def mapped(descriptor: int) -> NDArray[np.uint8]:
    """Return the memory of a descriptor as bytes; it stays mapped as long as the array or a view of it is there.

    Parameters
    ----------
    descriptor : int
        Of :func:`shared_pages`; it may be closed afterwards.
    """
    return np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), np.uint8)
