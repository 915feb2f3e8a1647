"""Advisory locks on files and folders, so that two runs never write to one place.

A lock belongs to an open file and ends with the process that holds it, however that ends; nothing is left to clean up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from wavetank.errors import BadFileError


def lock(opened: int, path: Path, what: str) -> None:
    """Lock an open file for this process alone.

    Parameters
    ----------
    opened : int
        Its descriptor.
    path : Path
        Its name, for the error.
    what : str
        What the file or folder is, as a noun: ``"The file of a node"``.

    Raises
    ------
    BadFileError
        If another open file holds the lock; the process is named where the system says which one it is.
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            reason = error.strerror or str(error)
            raise BadFileError(f"{what} cannot be locked: {reason}.", where=str(path)) from error
        holder = holder_of(opened)
        by = f"pid {holder}" if holder else "another process"
        raise BadFileError(
            f"{what} is in use by {by}.",
            where=str(path),
            hint="wait until that run has ended, or name another folder",
        ) from None


def holder_of(opened: int) -> int | None:
    """Return the process that holds the lock of an open file, None where the system does not say."""
    status = os.fstat(opened)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            # "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"
            words = line.split()
            if words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
                return int(words[4])
    return None
