"""Snapshots of a tree as a graph of content-addressed objects, and how two of them become one.

A snapshot names a tree, a tree names its files and folders by digest, so equal folders are one object and a snapshot
cannot be had in part without that being seen.  Two snapshots with a common ancestor are merged file by file; the files
of one group (a git repository, a package) are taken from one side together, and where both sides changed, both stay.

Source: R. Merkle, "A Digital Signature Based on a Conventional Encryption Function", CRYPTO 1987, for hash trees;
``gitglossary(7)`` for trees and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from wavetank.errors import BadFileError
from wavetank.protocols.filesync.device import digest_of
from wavetank.protocols.filesync.tree import Access, checked_path, conflict_name, group_of, group_roots
from wavetank.sim.node import Message

NOTHING = b""
_FILE, _FOLDER = 0, 1


class Leaf(NamedTuple):
    """A file in a snapshot.

    Parameters
    ----------
    digest : bytes
        Of its content.
    access : Access
    mtime : float
        By the clock of the device that wrote it; no part of what makes two files equal.
    """

    digest: bytes
    access: Access
    mtime: float


Flat = Mapping[str, Leaf]


class Commit(Message, frozen=True):
    """A snapshot and what it comes from.

    Parameters
    ----------
    tree : bytes
    parents : tuple of bytes
    device : int
        Who made it.
    """

    tree: bytes
    parents: tuple[bytes, ...]
    device: int


_Row = tuple[str, int, bytes, Access, float]


class Graph:
    """Objects by digest, kept where a crash does not reach them.

    Parameters
    ----------
    save, load : callable
        The context's: how an object is kept under a name, and found again.
    """

    def __init__(self, save: Callable[[str, bytes | None], None], load: Callable[[str], bytes | None]) -> None:
        self._save = save
        self._load = load
        self._objects: dict[bytes, bytes] = {}
        # What was worked out about objects: all of it follows from them.
        self._flat: dict[bytes, dict[str, Leaf]] = {NOTHING: {}}
        self._closures: dict[bytes, set[bytes]] = {NOTHING: set()}
        self._rows: dict[bytes, list[_Row]] = {}

    def __contains__(self, digest: bytes) -> bool:
        return self.get(digest) is not None

    def get(self, digest: bytes) -> bytes | None:
        """Return an object, None when it is not here."""
        found = self._objects.get(digest)
        if found is None:
            found = self._load(f"object {digest.hex()}")
            if found is not None:
                self._objects[digest] = found
        return found

    def put(self, content: bytes) -> bytes:
        """Keep an object; return its digest."""
        digest = digest_of(content)
        if digest not in self._objects:
            self._objects[digest] = content
            self._save(f"object {digest.hex()}", content)
        return digest

    def object(self, digest: bytes) -> bytes:
        """Return an object; raises BadFileError when it is missing."""
        found = self.get(digest)
        if found is None:
            raise BadFileError("An object of a snapshot is missing.", given=digest.hex())
        return found

    def commit(self, files: Flat, parents: tuple[bytes, ...], device: int) -> bytes:
        """Make a snapshot of files whose contents are here; return its digest."""
        digest = self.put(msgspec.msgpack.encode(Commit(self._tree(files), parents, device)))
        self._flat[digest] = dict(files)
        return digest

    def _tree(self, files: Flat) -> bytes:
        rows: list[_Row] = []
        folders: dict[str, dict[str, Leaf]] = {}
        for path, leaf in files.items():
            name, slash, rest = path.partition("/")
            if slash and rest:
                folders.setdefault(name, {})[rest] = leaf
            else:
                # A folder without files keeps the slash at the end of its name.
                rows.append((path, _FILE, *leaf))
        rows += [(name, _FOLDER, self._tree(inside), False, 0.0) for name, inside in folders.items()]
        return self.put(msgspec.msgpack.encode(sorted(rows)))

    def files(self, commit: bytes) -> dict[str, Leaf]:
        """Return the files of a snapshot by path.

        Raises
        ------
        BadFileError
            When an object is missing or damaged.
        """
        found = self._flat.get(commit)
        if found is None:
            try:
                tree = msgspec.msgpack.decode(self.object(commit), type=Commit).tree
                found = {}
                self._collect("", tree, found)
            except msgspec.DecodeError as error:
                raise BadFileError("An object of a snapshot is damaged.", given=commit.hex()) from error
            self._flat[commit] = found
        return found

    def _collect(self, prefix: str, tree: bytes, into: dict[str, Leaf]) -> None:
        for name, kind, digest, access, mtime in self._rows_of(tree):
            if kind == _FOLDER:
                self._collect(f"{prefix}{name}/", digest, into)
            else:
                into[checked_path(prefix + name)] = Leaf(digest, access, mtime)

    def _rows_of(self, tree: bytes) -> list[_Row]:
        found = self._rows.get(tree)
        if found is None:
            found = self._rows[tree] = msgspec.msgpack.decode(self.object(tree), type=list[_Row])
        return found

    def closure(self, commit: bytes) -> set[bytes]:
        """Return the digests of a snapshot, its trees and its contents, without its ancestors."""
        found = self._closures.get(commit)
        if found is not None:
            return found
        found = {commit}
        pending = [msgspec.msgpack.decode(self.object(commit), type=Commit).tree]
        while pending:
            tree = pending.pop()
            if tree in found:
                continue
            found.add(tree)
            for _, kind, digest, _, _ in self._rows_of(tree):
                if kind == _FOLDER:
                    pending.append(digest)
                else:
                    found.add(digest)
        self._closures[commit] = found
        return found

    def missing(self, commit: bytes, base: bytes) -> tuple[bytes, ...]:
        """Return the objects that make ``commit`` complete for someone who has ``base``, in the order of digests."""
        wanted = self.closure(commit) - self.closure(base)
        return tuple(self.object(digest) for digest in sorted(wanted))

    def is_complete(self, commit: bytes) -> bool:
        """Return whether every object of a snapshot is here and every path stays inside the tree."""
        try:
            return all(leaf.digest in self for leaf in self.files(commit).values())
        except BadFileError:
            return False

    def retain(self, commits: Iterable[bytes]) -> None:
        """Forget every object that none of these snapshots needs."""
        kept: set[bytes] = set()
        for commit in commits:
            kept |= self.closure(commit)
        for digest in [digest for digest in self._objects if digest not in kept]:
            del self._objects[digest]
            for worked_out in (self._flat, self._closures, self._rows):
                worked_out.pop(digest, None)
            self._save(f"object {digest.hex()}", None)


def same(one: Leaf | None, other: Leaf | None) -> bool:
    """Return whether two files are equal but for their times."""
    if one is None or other is None:
        return one is other
    return one.digest == other.digest and one.access == other.access


def changed(base: Flat, files: Flat) -> set[str]:
    """Return the paths at which two snapshots differ."""
    return {path for path in {*base, *files} if not same(base.get(path), files.get(path))}


class Merge(NamedTuple):
    """What became of two snapshots.

    Parameters
    ----------
    files : dict
        The merged snapshot.
    notices : tuple of (str, str)
        Path and text of every clash: nothing gives way without a word.
    copies : int
        Conflict copies made.
    """

    files: dict[str, Leaf]
    notices: tuple[tuple[str, str], ...]
    copies: int


def merge(base: Flat, kept: Flat, other: Flat, device: int) -> Merge:
    """Merge what was done to ``base`` on two sides.

    Parameters
    ----------
    base, kept, other : mapping
        Files of the common ancestor and of the two snapshots.  Where both changed a thing, ``kept`` keeps the name.
    device : int
        Where ``other`` comes from, for the names of conflict copies.
    """
    ours, theirs = changed(base, kept), changed(base, other)
    if not theirs:
        return Merge(dict(kept), (), 0)
    if not ours:
        return Merge(dict(other), (), 0)
    roots = group_roots({*kept, *other})
    touched = {group_of(path, roots) for path in ours}
    files, notices, copies = dict(kept), [], 0
    groups: dict[str, set[str]] = {}
    for path in theirs:
        groups.setdefault(group_of(path, roots), set()).add(path)
    for group, paths in sorted(groups.items()):
        if group not in touched:
            _take(files, other, paths)
            continue
        mine, yours = _members(kept, group, roots), _members(other, group, roots)
        if not changed(mine, yours):
            continue
        if not mine:
            _take(files, other, set(yours))
            notices.append((group, f"kept, although it was removed while device {device} changed it"))
        elif not yours:
            notices.append((group, f"kept, although device {device} removed an earlier version"))
        else:
            version = digest_of(msgspec.msgpack.encode(sorted((p, f.digest, f.access) for p, f in yours.items())))
            name = conflict_name(group, device, version)
            for path, leaf in yours.items():
                files[name + path[len(group) :]] = leaf
            notices.append((group, f"kept the version of device {device} as {name}"))
            copies += 1
    return Merge(_without_clashes(files), tuple(notices), copies)


def _take(files: dict[str, Leaf], other: Flat, paths: set[str]) -> None:
    for path in paths:
        leaf = other.get(path)
        if leaf is None:
            files.pop(path, None)
        else:
            files[path] = leaf


def _members(files: Flat, group: str, roots: frozenset[str]) -> dict[str, Leaf]:
    if group not in roots:
        leaf = files.get(group)
        return {} if leaf is None else {group: leaf}
    return {path: leaf for path, leaf in files.items() if path.startswith(group + "/")}


def _without_clashes(files: dict[str, Leaf]) -> dict[str, Leaf]:
    """Give a file another name where the other side made a folder of the same name; drop the mark of folders in use."""
    folders = set()
    for path in files:
        place = path.find("/")
        while place >= 0:
            if place < len(path) - 1:
                folders.add(path[:place])
            place = path.find("/", place + 1)
    found = {}
    for path, leaf in files.items():
        if path.endswith("/") and path[:-1] in folders:
            continue
        found[conflict_name(path, 0, leaf.digest) if path in folders else path] = leaf
    return found
