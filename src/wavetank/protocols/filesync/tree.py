"""A device's files as an engine sees them: a small interface, and the one in memory.

An engine lists, reads, replaces and removes; it never writes over what it has not seen.  Every change says what it
expects to find, and nothing happens when the user was faster.

Source: S. Balasubramaniam, B. Pierce, "What is a File Synchronizer?", MobiCom 1998.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from wavetank.errors import BadValueError, WavetankError

# Where a directory keeps what is the engine's own; never listed, never synchronised.
PRIVATE = ".wavetank-sync"
# A directory that holds a file of this name is one thing: its files belong together.
TOGETHER = ".keep-together"
PACKAGES = (".bundle", ".rtfd", ".pages", ".key")

LONGEST_PATH_BYTES = 1024
LONGEST_NAME_BYTES = 255

# Paths whose grouping is remembered: the same ones are asked about at every look.
_REMEMBERED = 100_000

# How conflict copies are named here, and by Syncthing, which takes part in real runs.
_CONFLICT = re.compile(r" \(conflict of \d+, [0-9a-f]{8}\)|\.sync-conflict-\d{8}-\d{6}-[A-Z2-7]{7}")


# Who may do what with a file: False for what is usual (owner writes, all read), True when it is executable besides, and
# the nine permission bits for everything else.  Most files of a simulation are usual, and cost a byte.
Access = bool | int


def access_of(mode: int) -> Access:
    """Return the access that permission bits give."""
    bits = mode & 0o777
    return {0o644: False, 0o755: True}.get(bits, bits)


def mode_of(access: Access) -> int:
    """Return the permission bits; those of a number that somebody else sent are cut to the nine."""
    if isinstance(access, bool):
        return 0o755 if access else 0o644
    # A device that gets a file must be able to read it.
    return (access & 0o777) | 0o400


def narrowed(access: Access, replaced: int) -> int:
    """Return the permission bits of a file that takes another's place: no wider for others than either was.

    Parameters
    ----------
    access : Access
        What comes with the new file.
    replaced : int
        Permission bits of the file that was there.
    """
    mode = mode_of(access)
    for shift in (0, 3):
        if not replaced >> shift & 4:
            mode &= ~(7 << shift)
        elif not replaced >> shift & 2:
            mode &= ~(2 << shift)
    return mode


class TreeError(WavetankError):
    """Files that cannot be listed, read or written now: no room, no access, the content is elsewhere, no directory."""


class Clock(NamedTuple):
    """A device's clock: true time, plus an offset that may jump.

    Parameters
    ----------
    offset : float
        Rounds ahead of true time.
    jumps : tuple of (float, float)
        True time of a jump, and the rounds by which the clock is further ahead from then on.
    """

    offset: float = 0.0
    jumps: tuple[tuple[float, float], ...] = ()

    def at(self, now: float) -> float:
        """Return what the clock shows at true time ``now``."""
        return now + self.offset + sum(jump for start, jump in self.jumps if now >= start)


class Entry(NamedTuple):
    """One file in a listing.

    Parameters
    ----------
    size_bytes : int
    mtime : float
        When it was last written, in rounds of the device's clock.
    access : Access
        Who may do what with it.
    stamp : tuple of int
        Equal stamps of one path mean equal content.
    dataless : bool
        The content was evicted: it is in the cloud alone.
    """

    size_bytes: int
    mtime: float
    access: Access
    stamp: tuple[int, ...]
    dataless: bool = False


class Incoming(NamedTuple):
    """A file that arrives: its content, its time by the device's clock in rounds, and who may do what with it."""

    content: bytes
    mtime: float
    access: Access


class Tree(Protocol):
    """The files of one device.

    Paths are relative, with ``/`` between names.  A directory without files is listed as its path with a ``/`` at the
    end and no content.

    Attributes
    ----------
    clock : Clock
        The device's.
    revision : int
        Equal revisions mean that nothing changed; -1 for a tree without revisions.
    """

    clock: Clock
    revision: int

    def listing(self) -> Mapping[str, Entry]:
        """Return all files by path; raises TreeError when the tree cannot be reached."""

    def entry(self, path: str) -> Entry | None:
        """Return one file's entry, None when there is no such file."""

    def read(self, path: str) -> bytes:
        """Return the content; raises TreeError when it is not there."""

    def write(self, path: str, content: bytes, *, mtime: float, access: Access, expected: Entry | None) -> Entry | None:
        """Put a file in place, at once or not at all.

        Parameters
        ----------
        path : str
        content : bytes
        mtime : float
            Rounds of the device's clock.
        access : Access
            Who may do what with it; a file that takes another's place is open to no more people than that was.
        expected : Entry or None
            What must be there now; None when nothing may be.

        Returns
        -------
        Entry or None
            The new entry; None when something else was there, which then still is.

        Raises
        ------
        TreeError
            When there is no room or no access.
        """

    def change_group(
        self, root: str, changes: Mapping[str, Incoming | None], expected: Mapping[str, Entry]
    ) -> dict[str, Entry] | None:
        """Change files of a directory, all at once or not at all.

        Parameters
        ----------
        root : str
            The directory.
        changes : mapping
            Path (from the top of the tree) to what arrives, None to remove.
        expected : mapping
            All that must be in the directory now; empty for a new directory, in whose place nothing may be.

        Returns
        -------
        dict or None
            The entries of what arrived; None when the directory held something else, which it then still does.

        Raises
        ------
        TreeError
            When there is no room or no access.
        """

    def remove(self, path: str, expected: Entry) -> bool:
        """Remove a file and the directories this leaves empty; returns False when something else is there."""

    def evict(self, path: str, expected: Entry) -> bool:
        """Give up a file's content and keep its entry, where the tree can do that; returns whether it was done."""

    def free_bytes(self) -> float:
        """Return the room that is left."""

    def time(self, now: float) -> float:
        """Return what the device's clock shows, in rounds on the scale of modification times; ``now`` is the node's."""

    def notify(self, path: str, says: str) -> None:
        """Leave a note where the user finds it."""

    def unknown(self) -> Collection[str]:
        """Return the folders (``/`` at the end) of which the last listing found out nothing, not even what is gone."""

    def unsynced(self) -> Mapping[str, str]:
        """Return what the last listing left out (links, names that are not UTF-8), with the reason."""


@lru_cache(maxsize=_REMEMBERED)
def checked_path(path: str) -> str:
    """Return ``path`` when it stays inside the tree.

    Raises
    ------
    BadValueError
        For an absolute path, ``..``, empty or overlong names, and the engine's own directory.
    """
    names = path.removesuffix("/").split("/")
    problem = ""
    if not path or path.startswith("/") or "\x00" in path:
        problem = "It is not a relative path."
    elif any(name in ("", ".", "..") for name in names):
        problem = "It would leave the tree, or has an empty name in it."
    elif names[0] == PRIVATE:
        problem = "That directory is the engine's own."
    else:
        try:
            lengths = [len(name.encode()) for name in names]
        except UnicodeEncodeError:
            problem = "The name is not UTF-8."
        else:
            if max(lengths) > LONGEST_NAME_BYTES or sum(lengths) + len(lengths) - 1 > LONGEST_PATH_BYTES:
                problem = "It is too long."
    if problem:
        raise BadValueError(
            f"This path cannot be synchronised. {problem}",
            given=repr(path),
            allowed=f"a relative path of names up to {LONGEST_NAME_BYTES} bytes, {LONGEST_PATH_BYTES} in all",
        )
    return path


def group_roots(paths: Iterable[str]) -> frozenset[str]:
    """Return the directories whose files belong together: git repositories, packages, and those that say so."""
    return frozenset({_root_given_by(path) for path in paths} - {""})


@lru_cache(maxsize=_REMEMBERED)
def _root_given_by(path: str) -> str:
    names = path.split("/")
    if ".git" in names[1:]:
        return "/".join(names[: names.index(".git", 1)])
    if names[-1] == TOGETHER and len(names) > 1:
        return "/".join(names[:-1])
    return package_of(path)


@lru_cache(maxsize=_REMEMBERED)
def package_of(path: str) -> str:
    """Return the document package (a directory shown as one document) that holds ``path``, or ""."""
    names = path.split("/")
    for count, name in enumerate(names[:-1], 1):
        if _CONFLICT.sub("", name).endswith(PACKAGES):
            return "/".join(names[:count])
    return ""


def group_of(path: str, roots: frozenset[str]) -> str:
    """Return the outermost of ``roots`` that holds ``path``, or the path itself."""
    if not roots:
        return path
    place = path.find("/")
    while place >= 0:
        if path[:place] in roots:
            return path[:place]
        place = path.find("/", place + 1)
    return path


def changed_at_once(path: str, root: str) -> str:
    """Return the directory in which a file of the group ``root`` is changed at once with its neighbours, or "".

    Of a repository that is ``.git``: people's shells stand in the folder around it, and would be left in an old one.
    """
    if path.startswith(f"{root}/.git/"):
        return f"{root}/.git"
    return root if package_of(path) == root else ""


def is_lock(path: str) -> bool:
    """Return whether a file of a repository says that git is at work in it."""
    return "/.git/" in path and path.endswith((".lock", "/gc.pid"))


def conflict_name(path: str, device: int, digest: bytes) -> str:
    """Return the name of a conflict copy; equal copies get equal names, so that a retry makes no second one.

    Examples
    --------
    >>> conflict_name("notes/a.txt", 2, bytes(16))
    'notes/a (conflict of 2, 00000000).txt'
    """
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    if not stem:
        stem, dot, ending = name, "", ""
    label = f" (conflict of {device}, {digest[:4].hex()})"
    room = LONGEST_NAME_BYTES - len(label) - len((dot + ending).encode())
    stem = stem.encode()[:room].decode(errors="ignore")
    return f"{folder}{slash}{stem}{label}{dot}{ending}"


def original_name(path: str) -> str:
    """Return the path of which ``path`` is a conflict copy, or ``path`` itself."""
    return _CONFLICT.sub("", path)


def is_conflict(path: str) -> bool:
    """Return whether the path is, or lies in, a conflict copy."""
    return _CONFLICT.search(path) is not None


@dataclass
class _File:
    content: bytes | None
    entry: Entry


class MemoryTree:
    """Files in memory, with a disk that may be full.

    Parameters
    ----------
    clock : Clock
        Of the device.
    capacity_bytes : float
        Room for contents.
    """

    def __init__(self, clock: Clock = Clock(), capacity_bytes: float = math.inf) -> None:  # noqa: B008
        self.clock = clock
        self.capacity_bytes = capacity_bytes
        self.revision = 0
        self._used_bytes = 0
        self._files: dict[str, _File] = {}

    def listing(self) -> dict[str, Entry]:
        """See Tree."""
        return {path: file.entry for path, file in self._files.items()}

    def entry(self, path: str) -> Entry | None:
        """See Tree."""
        file = self._files.get(path)
        return file.entry if file else None

    def read(self, path: str) -> bytes:
        """See Tree."""
        file = self._files.get(path)
        if file is None:
            raise TreeError("There is no such file.", given=path)
        if file.content is None:
            raise TreeError("The content of this file is in the cloud alone.", given=path, hint="wait for the network")
        return file.content

    def write(self, path: str, content: bytes, *, mtime: float, access: Access, expected: Entry | None) -> Entry | None:
        """See Tree."""
        checked_path(path)
        known = self._files.get(path)
        if (known.entry if known else None) != expected:
            return None
        grows = len(content) - (len(known.content or b"") if known else 0)
        self._refuse_when_full(path, grows, len(content))
        self._used_bytes += grows
        self.revision += 1
        entry = Entry(len(content), mtime, access, (self.revision,))
        self._files[path] = _File(content, entry)
        return entry

    def _refuse_when_full(self, path: str, grows: int, given: int) -> None:
        room = self.free_bytes()
        if grows > room:
            raise TreeError("The device is full.", given=f"{path}, {given} bytes", allowed=f"{room:.0f} bytes")

    def change_group(
        self, root: str, changes: Mapping[str, Incoming | None], expected: Mapping[str, Entry]
    ) -> dict[str, Entry] | None:
        """See Tree."""
        inside = {path: file.entry for path, file in self._files.items() if path.startswith(root + "/")}
        if inside != dict(expected) or (not inside and root in self._files):
            return None
        grows = sum(len(file.content) for file in changes.values() if file is not None)
        grows -= sum(len(self._files[path].content or b"") for path in changes if path in inside)
        self._refuse_when_full(root, grows, grows)
        placed = {}
        # Removals first: what comes may need their room.
        for path, file in sorted(changes.items(), key=lambda pair: pair[1] is not None):
            if file is None:
                self.remove(path, inside[path])
                continue
            entry = self.write(path, file.content, mtime=file.mtime, access=file.access, expected=inside.get(path))
            if entry is not None:
                placed[path] = entry
        return placed

    def remove(self, path: str, expected: Entry) -> bool:
        """See Tree."""
        known = self._files.get(path)
        if known is None or known.entry != expected:
            return False
        self._used_bytes -= len(known.content or b"")
        self.revision += 1
        del self._files[path]
        return True

    def evict(self, path: str, expected: Entry) -> bool:
        """See Tree."""
        known = self._files.get(path)
        if known is None or known.entry != expected or known.content is None:
            return False
        self._used_bytes -= len(known.content)
        self.revision += 1
        # The stamp stays: what is gone is the content, not the version.
        self._files[path] = _File(None, known.entry._replace(dataless=True))
        return True

    def free_bytes(self) -> float:
        """See Tree."""
        return self.capacity_bytes - self._used_bytes

    def unknown(self) -> tuple[str, ...]:
        """See Tree."""
        return ()

    def unsynced(self) -> dict[str, str]:
        """See Tree."""
        return {}

    def time(self, now: float) -> float:
        """See Tree."""
        return self.clock.at(now)

    def notify(self, path: str, says: str) -> None:
        """See Tree; in a simulation the notices of the node are read."""
