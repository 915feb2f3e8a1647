"""Files of text: written so that a reader sees the old text or the new one, read with limits and exact errors."""

from __future__ import annotations

import gzip
import io
import os
import select
import zlib
from pathlib import Path

from wavetank.errors import BadFileError


def write_atomic(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never a part.

    Parameters
    ----------
    path : Path
        Replaced as a whole; a pipe or a device, such as ``/dev/stdout``, is written in place.
    text : str
        Written as UTF-8.

    Raises
    ------
    OSError
        If the file cannot be written; a file of that name stays as it was.
    """
    if path.exists() and not path.is_file():
        # A pipe or a device, such as /dev/stdout: nothing can take its place.
        path.write_text(text, encoding="utf-8")
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_bytes(path: Path, *, largest_bytes: int, what: str = "The file", wait_s: float = 5.0) -> bytes:
    """Return what a small file holds; neither a pipe that nobody writes to nor an endless device holds it up.

    Parameters
    ----------
    path : Path
    largest_bytes : int
        The most that is read.
    what : str
        What it is, for the message.
    wait_s : float
        Longest wait for the next bytes of a pipe, in s.

    Raises
    ------
    BadFileError
        If it is missing, cannot be read, is larger than allowed, or is a pipe that brings nothing.
    """
    pieces, left = [], largest_bytes + 1
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            while left > 0:
                try:
                    piece = os.read(file, min(left, 1 << 20))
                except BlockingIOError:
                    _wait_for(file, wait_s)
                    continue
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise BadFileError(f"{what} cannot be read.", given=reason, where=str(path)) from error
    if left <= 0:
        raise BadFileError(f"{what} is too large.", allowed=f"up to {largest_bytes} bytes", where=str(path))
    return b"".join(pieces)


def _wait_for(pipe: int, wait_s: float) -> None:
    """Wait until a pipe that somebody may write to brings something, or its end.

    Raises
    ------
    TimeoutError
        If neither comes.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not poll.poll(wait_s * 1000.0):
        raise TimeoutError(f"nothing comes out of it for {wait_s:g} s")


def read_text(path: Path, *, largest_bytes: int) -> str:
    """Return the text of a file, unpacked when it is gzipped, without a mark of byte order.

    Parameters
    ----------
    path : Path
    largest_bytes : int
        The most that is read and unpacked, in bytes.

    Raises
    ------
    BadFileError
        If it is missing, damaged, larger than allowed, or not UTF-8: with line and column.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        # A bomb unpacks to far more than its size, so the limit holds for what comes out.
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(largest_bytes + 1) if size <= largest_bytes else b""
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError("The file cannot be read.", given=str(error), where=str(path)) from error
    if max(size, len(content)) > largest_bytes:
        raise BadFileError("The file is too large.", allowed=f"up to {largest_bytes} bytes unpacked", where=str(path))
    try:
        # Editors on Windows begin a text with a mark.
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8").removeprefix("\ufeff")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise BadFileError(
            "The file is not UTF-8 text.", given=error.reason, where=f"{path}, line {line}, column {column}"
        ) from error


def unpacked(content: bytes, *, largest_bytes: int) -> bytes:
    """Return what was packed with gzip.

    Parameters
    ----------
    content : bytes
    largest_bytes : int
        A file that unpacks to more is refused before it fills the memory.

    Raises
    ------
    ValueError, OSError, EOFError, zlib.error
        If it is damaged or cut off, or unpacks to more.
    """
    found = gzip.GzipFile(fileobj=io.BytesIO(content)).read(largest_bytes + 1)
    if len(found) > largest_bytes:
        raise ValueError(f"it unpacks to more than {largest_bytes} bytes")
    return found


def head_of(path: Path, size: int = 1 << 16) -> bytes:
    """Return the first bytes of a file, unpacked; what can be had of it where it is damaged.

    Parameters
    ----------
    path : Path
    size : int
        In bytes.

    Raises
    ------
    BadFileError
        If it cannot be read at all.
    """
    try:
        with path.open("rb") as raw:
            head = raw.read(size)
    except OSError as error:
        raise BadFileError("The file cannot be read.", given=str(error.strerror or error), where=str(path)) from error
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(head)).read1(size)
    except (OSError, EOFError, zlib.error):
        return b""
