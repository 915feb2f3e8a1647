"""What a node saves: an append-only file that survives kill -9 and a power cut at any instruction.

All that a node saved since the last write becomes one record of length, checksum and content, so it is there whole or
not at all; a record that a crash tore off is cut away at the next start.  An endpoint writes and synchronises before it
lets any message, decision or reply of the node out, so nobody ever knows more of a node than its own file does.
When most of a file is outdated it is replaced, atomically, by one that holds the last values.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError
from wavetank.protocols.live.values import ValueCodec

_HEADER = struct.Struct(">8sHI")
_RECORD = struct.Struct(">II")
_MAGIC = b"wavetank"
VERSION = 1
LARGEST_RECORD_BYTES = 2**28
# Below this nothing is gained by a smaller file.
_COMPACTED_FROM_BYTES = 2**20

_synchronise = getattr(os, "fdatasync", os.fsync)


class DurableState:
    """The saved values of one node.

    Parameters
    ----------
    path : Path
        Its file; made when it is not there.
    node : int
        Whose it is.
    codec : ValueCodec

    Raises
    ------
    BadFileError
        If the file belongs to another node or version, or is damaged before its end.
    """

    def __init__(self, path: Path, node: int, codec: ValueCodec) -> None:
        self.path = path
        self.node = node
        self.torn_bytes = 0
        self.synchronised = 0
        self._codec = codec
        self._values: dict[str, Any] = {}
        self._encoded: dict[str, bytes] = {}
        self._pending: dict[str, bytes] = {}
        self._live_bytes = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BadFileError(
                "A node cannot open its file.", given=error.strerror or str(error), where=str(path)
            ) from error
        try:
            self._size = self._recover()
        except BaseException:
            os.close(self._file)
            raise

    def save(self, key: str, value: Any) -> bool:
        """Take a value; it is on disk after :meth:`synchronise`.  Returns whether anything was clean before."""
        encoded = self._codec.encode(value)
        if len(encoded) > LARGEST_RECORD_BYTES // 2:
            raise BadValueError("The value is too large to save.", given=f"{len(encoded)} bytes", where=key)
        self._values[key] = value
        clean = not self._pending
        self._pending[key] = encoded
        return clean

    def load(self, key: str, default: Any = None) -> Any:
        """Return what was last saved under a key."""
        return self._values.get(key, default)

    def synchronise(self) -> None:
        """Write what is new as one record and wait until it is on disk."""
        if not self._pending:
            return
        record = self._record(self._pending)
        self._account(self._pending)
        self._pending = {}
        _write_all(self._file, record, self._size)
        _synchronise(self._file)
        self._size += len(record)
        self.synchronised += 1
        if self._size > _COMPACTED_FROM_BYTES and self._size > 4 * self._live_bytes:
            self._compact()

    def close(self) -> None:
        """Close the file; what was not synchronised is lost."""
        os.close(self._file)

    def _account(self, new: dict[str, bytes]) -> None:
        for key, data in new.items():
            self._live_bytes += len(data) - len(self._encoded.get(key, b""))
            self._encoded[key] = data

    def _record(self, values: dict[str, bytes]) -> bytes:
        content = self._codec.encode(values)
        if len(content) > LARGEST_RECORD_BYTES:
            raise BadValueError("A node saves too much at once.", given=f"{len(content)} bytes", where=str(self.path))
        return _RECORD.pack(len(content), zlib.crc32(content)) + content

    def _header(self) -> bytes:
        return _HEADER.pack(_MAGIC, VERSION, self.node)

    def _recover(self) -> int:
        """Read the file, cut a torn end off, and return the size."""
        size = os.fstat(self._file).st_size
        if size < _HEADER.size:
            # Not even the header had arrived: nothing had been promised yet.
            self.torn_bytes = size
            os.ftruncate(self._file, 0)
            _write_all(self._file, self._header(), 0)
            os.fsync(self._file)
            _synchronise_folder(self.path.parent)
            return _HEADER.size
        magic, version, node = _HEADER.unpack(_read_all(self._file, _HEADER.size, 0))
        for what, found, wanted in (
            ("is no file of a node", magic, _MAGIC),
            ("is of a version that this Wavetank does not read", version, VERSION),
            ("belongs to another node", node, self.node),
        ):
            if found != wanted:
                raise BadFileError(
                    f"The file {what}.",
                    given=found,
                    allowed=str(wanted),
                    where=str(self.path),
                    hint="start the cluster with a new folder",
                )
        at = _HEADER.size
        while at < size:
            whole = self._recover_record(at, size)
            if not whole:
                self.torn_bytes = size - at
                os.ftruncate(self._file, at)
                os.fsync(self._file)
                break
            at += whole
        self._values = {key: self._codec.decode(data) for key, data in self._encoded.items()}
        return at

    def _recover_record(self, at: int, size: int) -> int:
        """Take in the record at a place; return its length, 0 for one that a crash tore."""
        if size - at < _RECORD.size:
            return 0
        length, checksum = _RECORD.unpack(_read_all(self._file, _RECORD.size, at))
        end = at + _RECORD.size + length
        if end > size:
            return 0
        content = _read_all(self._file, length, at + _RECORD.size)
        if zlib.crc32(content) != checksum or not length:
            if end == size or not length:
                return 0
            # Records are synchronised one by one, so what lies before another record had been whole.
            raise BadFileError("The file of a node is damaged.", where=f"{self.path}, byte {at}")
        self._account(self._codec.decode(content))
        return _RECORD.size + length

    def _compact(self) -> None:
        # A record holds at most so much; a node with more live values than that is told so by _record.
        content = self._header() + self._record(self._encoded)
        beside = self.path.with_suffix(".new")
        new = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(new, content, 0)
            os.fsync(new)
            beside.replace(self.path)
            _synchronise_folder(self.path.parent)
        except BaseException:
            os.close(new)
            raise
        os.close(self._file)
        self._file, self._size = new, len(content)


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _read_all(file: int, length: int, at: int) -> bytes:
    parts = []
    while length:
        part = os.pread(file, length, at)
        if not part:
            break
        parts.append(part)
        length, at = length - len(part), at + len(part)
    return b"".join(parts)


def _synchronise_folder(folder: Path) -> None:
    # The name of a new file is part of its folder.
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
