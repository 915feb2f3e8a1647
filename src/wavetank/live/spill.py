"""Mappings and lists that keep their newest items in memory and the others in a file.

A launcher that runs for hours takes in millions of decisions and answers.  Its verdict needs them all, but not all at
once in memory: what is older than the newest few thousand goes to a file beside what the nodes save.  The file has no
name from its first moment on, so nothing is left behind, however the process ends, and it can be read as long as the
mapping is there.
"""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Callable, ItemsView, Iterator, MutableMapping, Sequence, ValuesView
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from wavetank.errors import BadFileError, BadValueError
from wavetank.live.values import ValueCodec

K = TypeVar("K")
V = TypeVar("V")

RECENT = 4096
# Pages of the file that stay in memory, in KiB.
_CACHE_KIB = 2048
_AT_ONCE = 1024
_HASHES = 2**22
_LEAST, _GREATEST = -(2**63), 2**63 - 1
# A key that is written in no one way.
_NONE = object()


def _itself(value: Any) -> Any:
    return value


class SpillFile:
    """A file for the older items of several mappings; made when the first of them needs it.

    Parameters
    ----------
    folder : callable
        Returns where the file is made.
    codec : ValueCodec
        Writes and reads the values.
    """

    def __init__(self, folder: Callable[[], Path], codec: ValueCodec) -> None:
        self._codec = codec
        self._folder = folder
        self._database: sqlite3.Connection | None = None

    def written(self, value: Any) -> bytes | int | float:
        """Return what stands for a value in the file; raises BadValueError for one that the codec does not know."""
        kind = type(value)
        if (kind is int and _LEAST <= value <= _GREATEST) or (kind is float and value == value):
            # As the file's own numbers: these are most of all there is.
            return value
        return self._codec.encode(value)

    def read(self, written: bytes | float) -> Any:
        """Return the value."""
        return self._codec.decode(written) if isinstance(written, bytes) else written

    @property
    def database(self) -> sqlite3.Connection:
        """The open file; raises BadFileError when it cannot be made."""
        if self._database is None:
            try:
                with tempfile.NamedTemporaryFile(dir=self._folder(), prefix=".spilled-") as named:
                    opened = sqlite3.connect(named.name, isolation_level=None, check_same_thread=False)
                    # Nobody reads it after a crash, so nothing is synchronised or journalled.
                    for pragma in (
                        "journal_mode=OFF",
                        "synchronous=OFF",
                        "locking_mode=EXCLUSIVE",
                        "temp_store=MEMORY",
                        f"cache_size=-{_CACHE_KIB}",
                    ):
                        opened.execute(f"PRAGMA {pragma}").fetchall()
                    opened.execute("CREATE TABLE begun (it INTEGER)")
            except (OSError, sqlite3.Error) as error:
                raise _cannot(error) from error
            self._database = opened
        return self._database


def _cannot(error: Exception) -> BadFileError:
    return BadFileError(
        "The saved requests of a run cannot be written or read.",
        given=str(error),
        hint="is the disk of the run's folder full?",
    )


class Spilled(MutableMapping[K, V], Generic[K, V]):
    """A mapping in the order of insertion; a key or value that a file would not give back as it was stays in memory.

    Parameters
    ----------
    file : SpillFile
    name : str
        A table of the file.
    recent : int
        Items that stay in memory at least.
    pack, unpack : callable
        From a value to one that the codec knows, and back.

    Raises
    ------
    BadFileError
        From any access, when the file cannot be written or read.
    """

    def __init__(
        self,
        file: SpillFile,
        name: str,
        *,
        recent: int = RECENT,
        pack: Callable[[V], Any] = _itself,
        unpack: Callable[[Any], V] = _itself,
    ) -> None:
        self._file = file
        self._table = '"' + name.replace('"', '""') + '"'
        self._limit = recent
        self._pack, self._unpack = pack, unpack
        self._recent: dict[K, V] = {}
        # What cannot leave memory.
        self._kept: dict[K, V] = {}
        self._spilled = 0
        # One bit for all keys of a hash, set when one of them goes to the file: most keys are new and need no look.
        self._seen = bytearray()

    def __len__(self) -> int:
        return len(self._recent) + len(self._kept) + self._spilled

    @property
    def in_memory(self) -> int:
        """How many items are in memory."""
        return len(self._recent) + len(self._kept)

    def __getitem__(self, key: K) -> V:
        for place in (self._recent, self._kept):
            if key in place:
                return place[key]
        found = self._read(key)
        if found is None:
            raise KeyError(key)
        return self._unpack(self._file.read(found))

    def __contains__(self, key: object) -> bool:
        return key in self._recent or key in self._kept or self._read(key) is not None

    def __setitem__(self, key: K, value: V) -> None:
        if key in self._kept:
            self._kept[key] = value
        elif key in self._recent or self._read(key) is None:
            self._recent[key] = value
            # Few at a time, so that no answer is delayed for long.
            if len(self._recent) > self._limit + min(self._limit, _AT_ONCE // 4):
                self._spill()
        else:
            data = self._file.written(self._pack(value))
            self._run(f"UPDATE {self._table} SET value = ? WHERE key = ?", (data, self._written(key)))

    def __delitem__(self, key: K) -> None:
        for place in (self._recent, self._kept):
            if key in place:
                del place[key]
                return
        if self._read(key) is None:
            raise KeyError(key)
        self._run(f"DELETE FROM {self._table} WHERE key = ?", (self._written(key),))
        self._spilled -= 1

    def __iter__(self) -> Iterator[K]:
        read = self._file.read
        for key, _ in self._rows():
            yield read(key)
        yield from list(self._kept)
        yield from list(self._recent)

    def rows(self) -> Iterator[tuple[K, V]]:
        """Yield keys with their values; what is set meanwhile may be missing."""
        read = self._file.read
        for key, value in self._rows():
            yield read(key), self._unpack(read(value))
        yield from list(self._kept.items())
        yield from list(self._recent.items())

    def _rows(self) -> Iterator[tuple[bytes | float, bytes | float]]:
        last = 0
        while self._spilled:
            found = self._run(
                f"SELECT rowid, key, value FROM {self._table} WHERE rowid > ? ORDER BY rowid LIMIT {_AT_ONCE}",
                (last,),
            )
            if not found:
                return
            for last, key, value in found:  # noqa: B007  (the last one is where the next page begins)
                yield key, value

    def _read(self, key: Any) -> bytes | float | None:
        place = hash(key) & _HASHES - 1
        if not self._spilled or not self._seen[place >> 3] & 1 << (place & 7):
            return None
        try:
            written = self._written(key)
        except BadValueError:
            return None
        found = self._run(f"SELECT value FROM {self._table} WHERE key = ?", (written,))
        return found[0][0] if found else None

    def _written(self, key: Any) -> bytes | int | float:
        if type(key) is int:
            return self._file.written(key)
        found = _canonical(key)
        if found is _NONE:
            raise BadValueError("This key may equal one that is written in another way.", given=type(key).__name__)
        return self._file.written(found)

    def _spill(self) -> None:
        written = self._file.written
        old = list(itertools.islice(self._recent.items(), len(self._recent) - self._limit))
        rows = []
        for key, value in old:
            try:
                rows.append((self._written(key), written(self._pack(value))))
            except BadValueError:
                self._kept[key] = value
        try:
            database = self._file.database
            database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} (key BLOB UNIQUE, value BLOB)")
            database.execute("BEGIN")
            database.executemany(f"INSERT INTO {self._table} VALUES (?, ?)", rows)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            raise _cannot(error) from error
        self._spilled += len(rows)
        self._seen = self._seen or bytearray(_HASHES >> 3)
        for key, _ in old:
            del self._recent[key]
            place = hash(key) & _HASHES - 1
            self._seen[place >> 3] |= 1 << (place & 7)

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._file.database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _cannot(error) from error

    def items(self) -> ItemsView[K, V]:
        """Return a view of keys and values that reads the file once."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return a view of the values that reads the file once."""
        return _Values(self)


class _Items(ItemsView[Any, Any]):
    """The items of a mapping, which reads its file page by page."""

    _mapping: Spilled[Any, Any]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.rows()


class _Values(ValuesView[Any]):
    """The values of a mapping, which reads its file page by page."""

    _mapping: Spilled[Any, Any]

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.rows())


def _canonical(key: Any) -> Any:
    """Return what all keys that equal this one are written as, or _NONE: 1, True and 1.0 are one key."""
    if isinstance(key, float) and key.is_integer():
        return int(key)
    if isinstance(key, int):
        return int(key)
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes):
        return bytes(key)
    if key is None or (isinstance(key, float) and key == key):
        return key
    if isinstance(key, tuple):
        parts = tuple(map(_canonical, key))
        return _NONE if _NONE in parts else parts
    return _NONE


class SpilledList(Sequence[V], Generic[V]):
    """A list that grows at its end; the parameters are those of :class:`Spilled`."""

    def __init__(self, file: SpillFile, name: str, **options: Any) -> None:
        self._items: Spilled[int, V] = Spilled(file, name, **options)

    def append(self, item: V) -> None:
        """Add an item."""
        self._items[len(self._items)] = item

    def extend(self, items: Sequence[V]) -> None:
        """Add items."""
        for item in items:
            self.append(item)

    @property
    def in_memory(self) -> int:
        """How many items are in memory."""
        return self._items.in_memory

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> V: ...

    @overload
    def __getitem__(self, place: slice) -> list[V]: ...

    def __getitem__(self, place: int | slice) -> V | list[V]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        number = place + len(self) if place < 0 else place
        if not 0 <= number < len(self):
            raise IndexError(place)
        return self._items[number]

    def __iter__(self) -> Iterator[V]:
        # Not by its rows: what could not leave memory would come out of its turn.
        return (self._items[number] for number in range(len(self)))
