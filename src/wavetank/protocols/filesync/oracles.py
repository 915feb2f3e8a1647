"""What was lost, torn, brought back or left different: one account for every engine, simulated or real.

The truth is what programs did and what they saw when they did it.  A version is safe when something visible at the end
descends from it, or when someone who saw it removed it; everything else was lost, and lost silently when no device gave
a notice.

Sources: B. Pierce, J. Vouillon, "What's in Unison? A Formal Specification and Reference Implementation of a File
Synchronizer", 2004, for what a synchroniser may change; L. Lamport, "Time, Clocks, and the Ordering of Events in a
Distributed System", CACM 21(7), 1978, for descent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from wavetank.protocols.filesync.applications import Files, torn_groups
from wavetank.protocols.filesync.device import FileOperation, Notice, digest_of
from wavetank.protocols.filesync.tree import group_of, group_roots, is_conflict, original_name

Version = tuple[str, bytes]

_time = attrgetter("at")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What the oracles found.

    Parameters
    ----------
    writes : int
        Files that programs wrote.
    lost : frozenset of (str, bytes)
        Versions that nothing visible descends from and nobody removed.
    silent : frozenset of (str, bytes)
        Those of them for whose path there is no notice.
    resurrected : frozenset of str
        Paths that hold a version which someone who had seen it removed.
    divergence_bytes : int
        Bytes of files that differ between devices at the end, the largest version of each.
    conflict_copies : int
        Things that stand beside their original at the end under a name that says so.
    looks, torn : int
        Looks of readers, and groups found torn in them.
    torn_at_end : tuple of (str, str)
        Groups torn at the end, and what is wrong.
    backups, failed_restores : int
        Backups taken, and those that lack a content or hold a torn group.
    """

    writes: int
    lost: frozenset[Version]
    silent: frozenset[Version]
    resurrected: frozenset[str]
    divergence_bytes: int
    conflict_copies: int
    looks: int
    torn: int
    torn_at_end: tuple[tuple[str, str], ...]
    backups: int
    failed_restores: int


def judge(
    operations: Sequence[FileOperation],
    notices: Iterable[Notice],
    at_end: Mapping[int, Files],
    looks: Iterable[Files] = (),
    backups: Iterable[Files] = (),
) -> Damage:
    """Return what was lost, torn, brought back or left different.

    Parameters
    ----------
    operations : sequence of FileOperation
        Of all devices, in any order; those of one device and one instant as they were done.
    notices : iterable of Notice
        Notices to users.
    at_end : mapping
        Device to its files after everything came to rest.
    looks, backups : iterable of mapping
        What readers saw, and what was copied away.
    """
    lost = lost_versions(operations, at_end)
    noticed = {notice.path for notice in notices}
    roots = group_roots(path for path, _ in lost)
    looks = list(looks)
    backups = list(backups)
    torn_at_end = {item for files in at_end.values() for item in torn_groups(files).items()}
    return Damage(
        writes=sum(bool(operation.version) for operation in operations),
        lost=lost,
        silent=frozenset(version for version in lost if not {version[0], group_of(version[0], roots)} & noticed),
        resurrected=resurrected_paths(operations, at_end),
        divergence_bytes=divergence_bytes(at_end),
        conflict_copies=conflict_copies(at_end),
        looks=len(looks),
        torn=sum(len(torn_groups(files)) for files in looks),
        torn_at_end=tuple(sorted(torn_at_end)),
        backups=len(backups),
        failed_restores=sum(not restores(files) for files in backups),
    )


def lost_versions(operations: Sequence[FileOperation], at_end: Mapping[int, Files]) -> frozenset[Version]:
    """Return the versions that nothing visible descends from and that nobody who saw them removed."""
    saw = _ancestry(operations)
    # A conflict copy holds a version of the original; a program may also have written the copy itself.
    pending = [
        (name, digest_of(seen.content))
        for files in at_end.values()
        for path, seen in files.items()
        if seen.content is not None
        for name in {path, original_name(path)}
    ]
    # A file whose content is in the cloud alone is still there; its version is the one that was last written there.
    dataless = {
        original_name(path) for files in at_end.values() for path, seen in files.items() if seen.content is None
    }
    for operation in operations:
        if not operation.version or operation.path in dataless:
            pending += operation.saw
    safe: set[Version] = set()
    while pending:
        version = pending.pop()
        if version not in safe:
            safe.add(version)
            pending += saw.get(version, ())
    latest = {
        operation.path: (operation.path, operation.version)
        for operation in sorted(operations, key=_time)
        if operation.path in dataless
    }
    return frozenset(saw.keys() - safe - set(latest.values()))


def _ancestry(operations: Iterable[FileOperation]) -> dict[Version, set[Version]]:
    saw: dict[Version, set[Version]] = {}
    for operation in operations:
        if operation.version:
            saw.setdefault((operation.path, operation.version), set()).update(operation.saw)
    return saw


def resurrected_paths(operations: Sequence[FileOperation], at_end: Mapping[int, Files]) -> frozenset[str]:
    """Return the paths that hold a version every writing of which was removed by someone who had seen it.

    Two devices may put the same content under the same name without knowing of each other, as when both move a file;
    who removes the one has not removed the other.  Where it is not known which of several such writings a program
    saw, it saw what all of them have in their past, and no more: nothing is called brought back on suspicion.
    Where both versions of a group were kept and the other one lacks the file, the removal is as visible as the file.
    """
    removed = {operation.path for operation in operations if not operation.version}
    held = [
        (device, path, digest_of(seen.content))
        for device, files in at_end.items()
        for path, seen in files.items()
        if path in removed and seen.content is not None
    ]
    past = _Past(operations, {path for _, path, _ in held})
    return frozenset(
        path
        for device, path, version in held
        if past.is_all_removed(path, version) and not _is_removed_in_a_copy(path, at_end[device])
    )


class _Past:
    """What programs had surely seen when they wrote or removed some files.

    Operations are numbered in the order of time; a set of them is an integer with a bit for each.

    Parameters
    ----------
    operations : sequence of FileOperation
    paths : set of str
        The files; what was moved there from elsewhere is looked at as well.
    """

    def __init__(self, operations: Sequence[FileOperation], paths: set[str]) -> None:
        sources: dict[str, set[str]] = {}
        for operation in operations:
            sources.setdefault(operation.path, set()).update(path for path, _ in operation.saw)
        wanted, pending = set(paths), list(paths)
        while pending:
            new = sources.get(pending.pop(), set()) - wanted
            wanted |= new
            pending += new
        self.operations = sorted((operation for operation in operations if operation.path in wanted), key=_time)
        self.writings: dict[Version, list[int]] = {}
        self.removals: dict[str, list[int]] = {}
        self.removed_by: dict[tuple[int, str], int] = {}
        self.seen: list[int] = []
        for number, operation in enumerate(self.operations):
            self.seen.append(self._seen_by(operation))
            if operation.version:
                self.writings.setdefault((operation.path, operation.version), []).append(number)
            else:
                self.removals.setdefault(operation.path, []).append(number)
                self.removed_by[operation.device, operation.path] = number

    def _seen_by(self, operation: FileOperation) -> int:
        # Who writes where it removed something knows what that was.
        earlier = self.removed_by.get((operation.device, operation.path)) if operation.version else None
        found = 0 if earlier is None else self.seen[earlier]
        for place, version in enumerate(operation.saw):
            found |= self._seen_in(
                operation.device, version, operation.since[place] if operation.since else operation.at
            )
        return found

    def _seen_in(self, device: int, version: Version, since: float) -> int:
        """Return what is surely in the past of a version that a device has had since then."""
        latest: dict[int, int] = {}
        for number in reversed(self.writings.get(version, ())):
            writing = self.operations[number]
            if writing.device == device and writing.at == since:
                return self.seen[number] | 1 << number
            if writing.at < since:
                # Who wrote it twice replaced the first by the second.
                latest.setdefault(writing.device, number)
        candidates = list(latest.values())
        sources = [number for number in candidates if not any(self.seen[other] >> number & 1 for other in candidates)]
        surely = -1 if sources else 0
        for number in sources:
            surely &= self.seen[number] | 1 << number
        return surely

    def is_all_removed(self, path: str, version: bytes) -> bool:
        """Return whether a version was written, and every writing of it was seen by someone who removed it."""
        left = sum(1 << number for number in self.writings.get((path, version), ()))
        written = left > 0
        for number in self.removals.get(path, ()):
            left &= ~self.seen[number]
        return written and not left


def _is_removed_in_a_copy(path: str, files: Files) -> bool:
    root = group_of(path, group_roots(files))
    copies = {_copy_of(other) for other in files if is_conflict(other)}
    return root != path and any(
        original_name(copy) == root and copy + path[len(root) :] not in files for copy in copies
    )


def divergence_bytes(at_end: Mapping[int, Files]) -> int:
    """Return the bytes of files that differ between devices, the largest version of each; evicted files are equal."""
    total = 0
    for path in {path for files in at_end.values() for path in files}:
        versions = [files.get(path) for files in at_end.values()]
        contents = [None if seen is None else seen.content for seen in versions]
        present = [content for content in contents if content is not None]
        somewhere_missing = any(seen is None for seen in versions)
        if somewhere_missing or len(set(present)) > 1:
            total += max((len(content) for content in present), default=0)
    return total


def conflict_copies(at_end: Mapping[int, Files]) -> int:
    """Return how many things stand beside their original under a name that says so, each once for all devices."""
    return len({_copy_of(path) for files in at_end.values() for path in files if is_conflict(path)})


def restores(files: Files) -> bool:
    """Return whether a backup, put back, gives everything: no content missing, no group torn."""
    return all(seen.content is not None for seen in files.values()) and not torn_groups(files)


def _copy_of(path: str) -> str:
    names = path.split("/")
    return next("/".join(names[:count]) for count in range(1, len(names) + 1) if is_conflict(names[count - 1]))
