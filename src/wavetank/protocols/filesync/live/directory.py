"""A real directory as a tree: files are replaced atomically, nothing outside is touched, nothing unseen is lost.

New contents are staged beside the tree and put in place by exchanging names, so what stood there is in hand when it
turns out to be something else, and goes back.  Every folder on the way is opened without following links.

Sources: ``renameat2(2)``, ``openat(2)``; P. Hunt and others on atomic replacement by ``rename(2)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from wavetank.errors import BadValueError
from wavetank.protocols.filesync.tree import (
    PRIVATE,
    Access,
    Clock,
    Entry,
    Incoming,
    TreeError,
    access_of,
    checked_path,
    mode_of,
    narrowed,
)

_EXCHANGE = 2
_MARK = "this-is-the-tree"
_STAGING = "staging"
_RESCUED = "rescued"
_DISPLACED = "displaced"
# How long a program may go on in a directory that was exchanged.
_DISPLACED_S = 5.0
NOTICES = "notices.jsonl"
LARGEST_FILE_BYTES = 128 * 2**20


class DirectoryTree:
    """The files below a directory.

    Parameters
    ----------
    root : Path
        It must exist.  The engine's own files live in ``.wavetank-sync`` below it.
    clock : Clock
        What the device's clock is said to be off; the machine's own clock is not touched.
    round_s : float
        Seconds of a round, for modification times.

    Raises
    ------
    TreeError
        When the directory is not there or cannot be written.
    """

    revision = -1

    def __init__(self, root: Path, clock: Clock = Clock(), round_s: float = 1.0) -> None:  # noqa: B008
        self.root = root
        self.clock = clock
        self.round_s = round_s
        self._unsynced: dict[str, str] = {}
        self._unknown: set[str] = set()
        self._numbers = itertools.count()
        self._displaced: list[tuple[Path, str, dict[str, Entry], float]] = []
        private = root / PRIVATE
        try:
            if not root.is_dir() or root.is_symlink():
                raise TreeError("The directory to synchronise is not there.", given=str(root), hint="make it first")
            # Whatever is on its way through here may be private, and so may its name.
            with contextlib.suppress(FileExistsError):
                private.mkdir(mode=0o700)
            _refuse_links(private)
            private.chmod(0o700)
            for name in (_STAGING, _RESCUED, _DISPLACED):
                (private / name).mkdir(mode=0o700, exist_ok=True)
            (private / _MARK).touch()
        except OSError as error:
            raise TreeError("The directory cannot be used.", given=f"{root}: {error.strerror}") from error
        for left in [*(private / _STAGING).iterdir(), *(private / _DISPLACED).iterdir()]:
            # Cut off in the middle of a change: what was displaced may be the user's.
            left.replace(private / _RESCUED / left.name)

    def listing(self) -> dict[str, Entry]:
        """See Tree."""
        if not (self.root / PRIVATE / _MARK).exists():
            raise TreeError("The directory is gone, or another one is in its place.", given=str(self.root))
        self._unsynced, self._unknown = {}, set()
        found: dict[str, Entry] = {}
        try:
            self._list(self.root, "", found)
        except OSError as error:
            raise TreeError("The directory cannot be listed.", given=f"{error.filename}: {error.strerror}") from error
        self._look_after_displaced()
        return found

    def _list(self, folder: Path, prefix: str, into: dict[str, Entry]) -> None:
        empty = True
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except PermissionError:
            if not prefix:
                raise
            self._unknown.add(prefix)
            self._unsynced[prefix] = "is not synchronised now: the folder cannot be read"
            return
        for each in entries:
            path = prefix + each.name
            if path == PRIVATE:
                continue
            empty = False
            try:
                checked_path(path)
            except BadValueError:
                shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
                self._unsynced[shown] = "stays on this device: its name is not UTF-8, or too long"
                continue
            if each.is_dir(follow_symlinks=False):
                self._list(folder / each.name, path + "/", into)
            elif each.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    try:
                        status = each.stat(follow_symlinks=False)
                    except PermissionError:
                        # Its names can be read, but nothing behind them.
                        self._unknown.add(prefix)
                        self._unsynced[prefix] = "is not synchronised now: the folder cannot be entered"
                        return
                    if status.st_size > LARGEST_FILE_BYTES:
                        self._unsynced[path] = f"stays on this device: more than {LARGEST_FILE_BYTES} bytes"
                    else:
                        into[path] = self._entry_of(status)
            else:
                self._unsynced[path] = "stays on this device: it is neither file nor folder"
        if empty and prefix:
            into[prefix] = Entry(0, 0.0, False, ())

    def _entry_of(self, status: os.stat_result) -> Entry:
        return Entry(
            status.st_size,
            status.st_mtime_ns / 1e9 / self.round_s + self.clock.offset,
            access_of(stat.S_IMODE(status.st_mode)),
            (status.st_mtime_ns, status.st_size, status.st_ino),
        )

    def entry(self, path: str) -> Entry | None:
        """See Tree."""
        checked_path(path)
        try:
            with self._folder(path) as (folder, name):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    return self._entry_of(status)
                if path.endswith("/") and stat.S_ISDIR(status.st_mode):
                    return None if any((self.root / path).iterdir()) else Entry(0, 0.0, False, ())
                return None
        except (OSError, TreeError):
            return None

    @contextlib.contextmanager
    def _folder(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder a path lies in, name by name, following no link."""
        *names, last = checked_path(path).removesuffix("/").split("/")
        opened = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in names:
                if make:
                    with contextlib.suppress(FileExistsError):
                        # How open the folder is where the file comes from is not known: as closed as it can be.
                        os.mkdir(name, 0o700, dir_fd=opened)
                try:
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise TreeError(
                            "A link or a file stands where a folder should be.", given=path, where=str(self.root)
                        ) from error
                    raise
                os.close(opened)
                opened = inner
            yield opened, last
        finally:
            os.close(opened)

    @contextlib.contextmanager
    def _reported(self, problem: str, path: str) -> Iterator[None]:
        """Turn an OSError into a TreeError."""
        try:
            yield
        except OSError as error:
            raise TreeError(problem, given=f"{path}: {error.strerror}", where=str(self.root)) from error

    def read(self, path: str) -> bytes:
        """See Tree."""
        if path.endswith("/"):
            return b""
        with self._reported("A file cannot be read.", path), self._folder(path) as (folder, name):
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(opened, "rb") as file:
                return file.read(LARGEST_FILE_BYTES + 1)

    def write(self, path: str, content: bytes, *, mtime: float, access: Access, expected: Entry | None) -> Entry | None:
        """See Tree."""
        staged: Path | None = None
        try:
            with self._reported("A file cannot be written.", path), self._folder(path, make=True) as (folder, name):
                if path.endswith("/"):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=folder)
                    return Entry(0, 0.0, False, ())
                replaced = None if expected is None else _mode_at(folder, name)
                staged = self._fresh()
                self._fill(staged, content, mtime, _mode_in_place_of(replaced, access))
                if expected is None:
                    # A hard link refuses to replace: whatever stands there stays.
                    try:
                        os.link(staged, name, dst_dir_fd=folder, follow_symlinks=False)
                    except FileExistsError:
                        return None
                elif not self._exchanged(staged, folder, name, expected):
                    return None
                return self._entry_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
        finally:
            if staged is not None:
                staged.unlink(missing_ok=True)

    def change_group(
        self, root: str, changes: Mapping[str, Incoming | None], expected: Mapping[str, Entry]
    ) -> dict[str, Entry] | None:
        """See Tree; a directory is exchanged for one with the changes, in which the other files are the same ones."""
        staged = self._fresh()
        try:
            with self._reported(f"A folder cannot be {'changed' if expected else 'written'}.", root):
                if not expected:
                    staged.mkdir(0o700)
                elif not self._twin(self.root / checked_path(root), staged, root, changes, expected):
                    return None
                for path, file in changes.items():
                    if file is None:
                        continue
                    place = staged / checked_path(path).removeprefix(root + "/")
                    _make_folders(place if path.endswith("/") else place.parent, staged)
                    if not path.endswith("/"):
                        replaced = _mode_at(None, self.root / path) if expected else None
                        self._fill(place, file.content, file.mtime, _mode_in_place_of(replaced, file.access))
                if not (self._swap(staged, root, expected) if expected else self._appear(staged, root)):
                    return None
                entries = {path: self.entry(path) for path, file in changes.items() if file is not None}
                return {path: entry for path, entry in entries.items() if entry is not None}
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _appear(self, staged: Path, root: str) -> bool:
        """Put a new directory in place; returns False when something is there."""
        with self._folder(root, make=True) as (folder, name):
            # Renaming onto an empty directory would be allowed; onto anything else it is refused.
            try:
                os.rename(staged, name, dst_dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    return False
                raise
        return True

    def _swap(self, staged: Path, root: str, expected: Mapping[str, Entry]) -> bool:
        """Exchange a directory with the staged one; returns False when it held something else."""
        ours = self._listed(staged, root)
        with self._folder(root) as (folder, name):
            _exchange(staged, folder, name)
            if self._listed(staged, root) != expected:
                # The user was faster: back with it.
                _exchange(staged, folder, name)
                if self._listed(staged, root) != ours:
                    staged.replace(self.root / PRIVATE / _RESCUED / staged.name)
                return False
        # A program that began before may still work in the old directory: it is looked at again later.
        displaced = self.root / PRIVATE / _DISPLACED / staged.name
        staged.replace(displaced)
        self._displaced.append((displaced, root, dict(expected), time.monotonic()))
        return True

    def _twin(
        self,
        here: Path,
        staged: Path,
        root: str,
        changes: Mapping[str, Incoming | None],
        expected: Mapping[str, Entry],
    ) -> bool:
        """Make a directory of the same files, without those that change; returns False when there are unknown ones."""
        staged.mkdir(0o700)
        staged.chmod(stat.S_IMODE(here.stat().st_mode))
        for folder, names, files in os.walk(here, onerror=_raised):
            inner = Path(folder).relative_to(here)
            prefix = f"{root}/" if inner == Path() else f"{root}/{inner.as_posix()}/"
            for name in names + files:
                place, path = Path(folder) / name, prefix + name
                if place.is_symlink():
                    (staged / inner / name).symlink_to(place.readlink())
                elif name in names:
                    kept = any(each.startswith(path + "/") and changes.get(each, each) is not None for each in expected)
                    if kept or not any(each.startswith(path + "/") for each in expected):
                        twin = staged / inner / name
                        _make_folders(twin, staged)
                        twin.chmod(stat.S_IMODE(place.stat().st_mode) | 0o700)
                elif path not in changes:
                    if path not in expected and path not in self._unsynced:
                        return False
                    _make_folders(staged / inner, staged)
                    os.link(place, staged / inner / name, follow_symlinks=False)
        return True

    def _listed(self, folder: Path, root: str) -> dict[str, Entry]:
        unsynced, self._unsynced = self._unsynced, {}
        unknown, self._unknown = self._unknown, set()
        found: dict[str, Entry] = {}
        self._list(folder, root + "/", found)
        self._unsynced, self._unknown = unsynced, unknown
        found.pop(root + "/", None)
        return found

    def _look_after_displaced(self) -> None:
        """Give back what was still written into directories that were exchanged; forget those that rest."""
        for each in list(self._displaced):
            displaced, root, expected, since = each
            if time.monotonic() - since < _DISPLACED_S:
                continue
            self._displaced.remove(each)
            late = [
                path
                for path, entry in self._listed(displaced, root).items()
                # What has another name is the same file in the new directory: nothing of it is lost.
                if entry != expected.get(path) and (displaced / path.removeprefix(root + "/")).lstat().st_nlink == 1
            ]
            if not late:
                shutil.rmtree(displaced, ignore_errors=True)
            else:
                displaced.replace(self.root / PRIVATE / _RESCUED / displaced.name)
                self._unsynced[root] = f"was written while it was replaced: see {PRIVATE}/{_RESCUED}/{displaced.name}"

    def _fresh(self) -> Path:
        return self.root / PRIVATE / _STAGING / f"{os.getpid()}-{next(self._numbers)}"

    def _fill(self, staged: Path, content: bytes, mtime: float, mode: int) -> None:
        # Nobody else sees a byte of it before it is known who may.
        opened = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            nanoseconds = max(round((mtime - self.clock.offset) * self.round_s * 1e9), 0)
            os.utime(staged, ns=(nanoseconds, nanoseconds))
        except OSError:
            staged.unlink()
            raise

    def _exchanged(self, staged: Path, folder: int, name: str, expected: Entry) -> bool:
        """Exchange the staged file with the one in place, which is then looked at; put it back if it is another."""
        before = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(before.st_mode) or self._entry_of(before).stamp != expected.stamp:
            return False
        ours = staged.lstat().st_ino
        _exchange(staged, folder, name)
        if self._entry_of(staged.lstat()).stamp == expected.stamp:
            return True
        _exchange(staged, folder, name)
        if staged.lstat().st_ino != ours:
            # Not what was staged came back but what was written in between: that is kept.
            staged.replace(self.root / PRIVATE / _RESCUED / staged.name)
        return False

    def remove(self, path: str, expected: Entry) -> bool:
        """See Tree."""
        with self._reported("A file cannot be removed.", path), contextlib.suppress(FileNotFoundError):
            with self._folder(path) as (folder, name):
                if path.endswith("/"):
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=folder)
                    return True
                staged = self._fresh()
                os.rename(name, staged, src_dir_fd=folder)
                same = self._entry_of(staged.lstat()).stamp == expected.stamp
                if not same:
                    try:
                        os.link(staged, name, dst_dir_fd=folder, follow_symlinks=False)
                    except FileExistsError:
                        staged.replace(self.root / PRIVATE / _RESCUED / staged.name)
                        return False
                staged.unlink()
            if same:
                self._prune(path)
            return same
        return False

    def _prune(self, path: str) -> None:
        parent = Path(path).parent
        while parent != Path():
            try:
                with self._folder(str(parent)) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except (OSError, TreeError):
                return
            parent = parent.parent

    def evict(self, path: str, expected: Entry) -> bool:
        """Return False: a directory has no files without content."""
        return False

    def free_bytes(self) -> float:
        """See Tree."""
        room = os.statvfs(self.root)
        return float(room.f_bavail * room.f_frsize)

    def unknown(self) -> tuple[str, ...]:
        """See Tree."""
        return tuple(sorted(self._unknown))

    def unsynced(self) -> dict[str, str]:
        """See Tree."""
        return self._unsynced

    def time(self, now: float) -> float:
        """See Tree; modification times count from 1970."""
        return time.time() / self.round_s + self.clock.offset

    def notify(self, path: str, says: str) -> None:
        """Add a line of JSON to ``.wavetank-sync/notices.jsonl``."""
        with contextlib.suppress(OSError):
            add_notice(self.root, path, says)


def add_notice(folder: Path, path: str, says: str) -> None:
    """Add a notice to the user to those of a synchronised folder."""
    with (folder / PRIVATE / NOTICES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"path": path, "says": says}) + "\n")


def _raised(error: OSError) -> None:
    # A folder that cannot be read must not be taken for an empty one.
    raise error


def _refuse_links(private: Path) -> None:
    """Raise TreeError when the engine's own folder, or something in it, is a link.

    A tree that came from elsewhere may bring the folder along; through a link in it files outside of the tree would be
    moved and changed.
    """
    for each in [private, *(private.iterdir() if not private.is_symlink() else ())]:
        if each.is_symlink():
            raise TreeError(
                "A link stands where the synchronisation keeps its own files.",
                given=str(each),
                hint="remove it; the engine makes the folder anew",
            )


def _mode_in_place_of(replaced: int | None, access: Access) -> int:
    return mode_of(access) if replaced is None else narrowed(access, replaced)


def _mode_at(folder: int | None, name: str | Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return None


def _make_folders(folder: Path, below: Path) -> None:
    """Make a folder and those between it and another one, closed to others."""
    if folder != below and not folder.is_dir():
        _make_folders(folder.parent, below)
        folder.mkdir(0o700, exist_ok=True)


_libc = ctypes.CDLL(None, use_errno=True)


def _exchange(one: Path, folder: int, name: str) -> None:
    """Exchange two names at once; where the system cannot, replace and keep the old file under the other name."""
    try:
        call = _libc.renameat2
    except AttributeError:
        call = None
    if call is not None:
        here = ctypes.c_int(-100)
        if call(here, os.fsencode(one), ctypes.c_int(folder), os.fsencode(name), ctypes.c_uint(_EXCHANGE)) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number), name)
    kept = one.with_name(f"{one.name}.kept")
    if one.is_dir():
        # Two renames: for an instant the name is free.
        os.rename(name, kept, src_dir_fd=folder)
        os.rename(one, name, dst_dir_fd=folder)
        kept.replace(one)
        return
    os.link(name, kept, src_dir_fd=folder, follow_symlinks=False)
    os.replace(one, name, dst_dir_fd=folder)
    kept.replace(one)
