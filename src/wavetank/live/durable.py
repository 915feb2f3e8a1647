"""What a node saves: an append-only file that survives kill -9 and a power cut at any instruction.

All that a node saved since the last write becomes one record, so it is there whole or not at all.  An endpoint writes
and synchronises before it lets any message, decision or reply of the node out, so nobody ever knows more of a node than
its own file does.  When most of a file is outdated it is replaced, atomically, by one that holds the last values.

A record is a mark, its length, its number, a checksum of its content and a checksum of these four together with the
salt of the file; then the content.  Records are written one after the other, each synchronised before the next one is
begun.  So a crash tears the last record alone, which is then short or has parts that were never written; anything else
is damage, and a node that would forget a vote because of it does not start.  What a crash tore off is cut away at the
next start and kept beside the file under ``.torn``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import struct
import zlib
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError
from wavetank.live.locks import lock
from wavetank.live.values import ValueCodec

# Magic, version, node; then the salt and the checksum of all before it.
_START = struct.Struct(">8sHI")
_SALT_BYTES = 8
_CHECKSUM = struct.Struct(">I")
_HEADER_BYTES = _START.size + _SALT_BYTES + _CHECKSUM.size
# Mark, length and number of the record, checksum of the content, checksum of the salt and all before it.
_FIELDS = struct.Struct(">4sIQI")
_RECORD_BYTES = _FIELDS.size + _CHECKSUM.size
_MAGIC = b"wavetank"
_MARK = b"\xf7rec"
VERSION = 2
# What a disk writes whole or not at all.
_SECTOR_BYTES = 512
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
        If the file is in use, belongs to another node or version, or is damaged; the byte is named.

    Attributes
    ----------
    torn_bytes : int
        What a crash had left of a record that was never synchronised; kept in :attr:`torn_path`.
    synchronised : int
        Writes that waited for the disk.
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
        self._next = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file, self._salt = self._opened()
        except OSError as error:
            raise BadFileError(
                "A node cannot open its file.", given=error.strerror or str(error), where=str(path)
            ) from error
        try:
            self._size = self._recover()
        except BaseException:
            os.close(self._file)
            raise

    @property
    def torn_path(self) -> Path:
        """Where bytes are kept that a crash tore off."""
        return self.path.with_name(f"{self.path.name}.torn")

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
        record = self._record(self._pending, self._salt, self._next)
        self._account(self._pending)
        self._pending = {}
        _write_all(self._file, record, self._size)
        _synchronise(self._file)
        self._size += len(record)
        self._next += 1
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

    def _record(self, values: dict[str, bytes], salt: bytes, number: int) -> bytes:
        content = self._codec.encode(values)
        if len(content) > LARGEST_RECORD_BYTES:
            raise BadValueError("A node saves too much at once.", given=f"{len(content)} bytes", where=str(self.path))
        fields = _FIELDS.pack(_MARK, len(content), number, zlib.crc32(content))
        return fields + _CHECKSUM.pack(zlib.crc32(salt + fields)) + content

    def _header(self, salt: bytes) -> bytes:
        text = _START.pack(_MAGIC, VERSION, self.node) + salt
        return text + _CHECKSUM.pack(zlib.crc32(text))

    def _opened(self) -> tuple[int, bytes]:
        """Open the file, or make it with its header at once, and lock it; return its descriptor and salt."""
        while True:
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                made = self._made()
                if made is not None:
                    return made
                continue
            try:
                lock(file, self.path, "The file of a node")
                # Another process may have replaced it by a smaller one before it let go.
                if os.path.samestat(os.fstat(file), self.path.stat()):
                    return file, self._read_header(file)
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def _made(self) -> tuple[int, bytes] | None:
        """Make the file; a name only ever leads to a file with a whole header.  None when somebody was faster."""
        salt = secrets.token_bytes(_SALT_BYTES)
        beside, file = self._beside()
        try:
            _write_all(file, self._header(salt), 0)
            os.fsync(file)
            lock(file, self.path, "The file of a node")
            os.link(beside, self.path)
        except BaseException as error:
            os.close(file)
            if isinstance(error, FileExistsError):
                return None
            raise
        finally:
            beside.unlink()
        _synchronise_folder(self.path.parent)
        return file, salt

    def _beside(self) -> tuple[Path, int]:
        """Return a new file in the same folder, under a name of its own."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        with contextlib.suppress(FileNotFoundError):
            # Left by a process of this number that was killed.
            beside.unlink()
        return beside, os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _read_header(self, file: int) -> bytes:
        header = _read_all(file, _HEADER_BYTES, 0)
        magic, version, node = _START.unpack(header[: _START.size].ljust(_START.size, b"\0"))
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
        if len(header) < _HEADER_BYTES or _CHECKSUM.unpack(header[-_CHECKSUM.size :])[0] != zlib.crc32(
            header[: -_CHECKSUM.size]
        ):
            raise self._damaged(0)
        return header[_START.size : -_CHECKSUM.size]

    def _damaged(self, at: int) -> BadFileError:
        return BadFileError(
            "The file of a node is damaged.",
            where=f"{self.path}, byte {at}",
            hint="bring it back from a copy; a node without it may forget what it promised",
        )

    def _recover(self) -> int:
        """Read the file, cut a torn end off, and return the size."""
        size = os.fstat(self._file).st_size
        at = _HEADER_BYTES
        while at < size:
            whole = self._recover_record(at, size)
            if not whole:
                self._cut(at, size)
                break
            at += whole
        self._values = {key: self._codec.decode(data) for key, data in self._encoded.items()}
        return at

    def _recover_record(self, at: int, size: int) -> int:
        """Take in the record at a place; return its length, 0 for one that a crash tore."""
        fields = self._fields(_read_all(self._file, _RECORD_BYTES, at))
        if fields is None:
            if self._torn(at, size):
                return 0
            raise self._damaged(at)
        length, number, checksum = fields
        if number != self._next:
            raise self._damaged(at)
        end = at + _RECORD_BYTES + length
        if end > size:
            return 0
        content = _read_all(self._file, length, at + _RECORD_BYTES)
        if zlib.crc32(content) != checksum:
            # The next record is begun when this one is on the disk: then it had been whole.
            if end == size and self._torn(at, size):
                return 0
            raise self._damaged(at)
        self._account(self._codec.decode(content))
        self._next += 1
        return _RECORD_BYTES + length

    def _fields(self, text: bytes) -> tuple[int, int, int] | None:
        """Return length, number and checksum of the content from a record's first bytes, None unless they are right."""
        if len(text) < _RECORD_BYTES:
            return None
        fields = text[: _FIELDS.size]
        mark, length, number, checksum = _FIELDS.unpack(fields)
        if mark != _MARK or _CHECKSUM.unpack(text[_FIELDS.size : _RECORD_BYTES])[0] != zlib.crc32(self._salt + fields):
            return None
        return length, number, checksum

    def _torn(self, at: int, size: int) -> bool:
        """Return whether what stands from a place on is a record that a crash tore: short, or in part never written."""
        rest = _read_all(self._file, size - at, at)
        place = rest.find(_MARK, 1)
        while place >= 0:
            if self._fields(rest[place : place + _RECORD_BYTES]) is not None:
                return False
            place = rest.find(_MARK, place + 1)
        if len(rest) < _RECORD_BYTES:
            return True
        # What is never written of a file that has its length already reads as zeros, sector by sector.
        edges = [at, *range(at - at % _SECTOR_BYTES + _SECTOR_BYTES, size, _SECTOR_BYTES), size]
        return any(not any(rest[start - at : end - at]) for start, end in itertools.pairwise(edges))

    def _cut(self, at: int, size: int) -> None:
        self.torn_bytes = size - at
        kept = os.open(self.torn_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(kept, "ab") as file:
                file.write(_read_all(self._file, size - at, at))
                file.flush()
                os.fsync(file.fileno())
            os.ftruncate(self._file, at)
            os.fsync(self._file)
        except OSError as error:
            raise BadFileError(
                "A node cannot mend its file.", given=error.strerror or str(error), where=str(self.path)
            ) from error

    def _compact(self) -> None:
        # The length of a record is limited; for a node with more live values _record raises an error.
        salt = secrets.token_bytes(_SALT_BYTES)
        content = self._header(salt) + self._record(self._encoded, salt, 0)
        beside, new = self._beside()
        try:
            lock(new, self.path, "The file of a node")
            _write_all(new, content, 0)
            os.fsync(new)
            beside.replace(self.path)
            _synchronise_folder(self.path.parent)
        except BaseException:
            os.close(new)
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        os.close(self._file)
        self._file, self._size, self._salt, self._next = new, len(content), salt, 1


def make_state(folder: Path, node: int, codec: ValueCodec) -> None:
    """Make the file of a node that has none: made at its first vote, it could not be missed before."""
    path = folder / f"node-{node}.state"
    if not path.exists():
        DurableState(path, node, codec).close()


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
