"""A device that works with snapshots: it takes closed ones of its own files and brings others' in.

A group of files is taken into a snapshot when it was left alone for a while and did not change while it was read (two
equal listings around the reading make it one instant); a lock of git counts as use.  Bringing a snapshot in adds first,
then replaces, then removes, and touches no group that its user is working on.

Sources: Y. Afek and others, "Atomic Snapshots of Shared Memory", JACM 40(4), 1993, for the two equal collects;
``git-checkout(1)`` for times of arrival.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from wavetank.errors import BadFileError
from wavetank.protocols.filesync.applications import Seen
from wavetank.protocols.filesync.device import Device, FileSyncSettings
from wavetank.protocols.filesync.snapshots import NOTHING, Graph, Leaf, changed, merge, same
from wavetank.protocols.filesync.tree import Incoming, TreeError, changed_at_once, group_of, group_roots, is_lock
from wavetank.settings import setting
from wavetank.sim.node import Context

# Between two files that arrive together, so that what was written later also looks later.
_TICK_ROUNDS = 1e-6
_FORGET_EVERY = 16


def graph_of(context: Context) -> Graph:
    """Return a graph that is kept in a node's durable memory."""
    return Graph(context.save, context.load)


@dataclass(frozen=True, kw_only=True)
class SnapshotSync(FileSyncSettings):
    """What the engines that carry snapshots have in common.

    Parameters
    ----------
    patience_rounds : float
        After that time a file that is never left alone is taken all the same; for a group the user gets a notice.
    """

    patience_rounds: float = setting(
        60.0, unit="rounds", low=0, says="Time after which a file that is always in use is sent"
    )


class Replica(Device, ABC):
    """A device with snapshots; engines add how snapshots travel.

    Attributes
    ----------
    base : bytes
        The other side's snapshot that was brought in last, or the own one that it took.
    head : bytes
        The latest snapshot of the own files; NOTHING before the first.
    incoming : bytes
        A snapshot that waits to be brought in; NOTHING for none.
    """

    engine: SnapshotSync

    def __init__(self, engine: SnapshotSync) -> None:
        super().__init__(engine)
        self.base = NOTHING
        self.head = NOTHING
        self.incoming = NOTHING
        self.present: dict[str, Leaf] = {}
        self.pending: dict[str, float] = {}
        self.forgetting = 0

    def start(self) -> None:
        """Take up what was saved."""
        self.graph = graph_of(self.context)
        self.base, self.head, self.incoming = self.context.load("snapshots", (NOTHING, NOTHING, NOTHING))
        self.present = dict(self.graph.files(self.head))
        self.compare_all = bool(self.head)
        super().start()

    def remember(self) -> None:
        """Keep where this device is, and forget objects that nothing needs."""
        self.context.save("snapshots", (self.base, self.head, self.incoming))
        self.forgetting += 1
        if self.forgetting % _FORGET_EVERY == 0:
            self.graph.retain([commit for commit in self.needed() if commit])

    def needed(self) -> list[bytes]:
        """Return the snapshots whose objects are still needed."""
        return [self.base, self.head, self.incoming]

    def scanned(self) -> None:
        """Take what is settled into a snapshot, then bring in what waits."""
        if self.compare_all:
            # After a restart a file that went while the engine was down shows by its absence alone.
            self.touched.update(self.present)
            self.compare_all = False
        if self.touched:
            self._notice()
        if self.pending:
            self._take_settled()
        if self.incoming and not self._bring_in():
            self.context.record("postponed")
        self.exchange()

    @abstractmethod
    def exchange(self) -> None:
        """Send what there is to send."""

    def _notice(self) -> None:
        roots = group_roots({*self.looked, *self.present})
        for path in self.touched:
            self.pending.setdefault(group_of(path, roots), self.context.now)
        self.touched.clear()

    def _take_settled(self) -> None:
        roots = group_roots({*self.looked, *self.present})
        members: dict[str, list[str]] = {group: [] for group in self.pending}
        for path in {*self.looked, *self.present}:
            group = group_of(path, roots)
            if group in members:
                members[group].append(path)
        new = dict(self.present)
        for group, paths in members.items():
            impatient = self.context.now - self.pending[group] > self.engine.patience_rounds
            locked = any(is_lock(path) and path in self.looked for path in paths)
            settled = not locked and all(self.settled(path) for path in paths)
            if impatient and not settled and group in roots:
                # Taking it in the middle of something could tear it.
                self.notify(group, "is in use all the time and was not synchronised yet")
                impatient = False
            if (settled or impatient) and self._read_group(paths, new):
                del self.pending[group]
        if changed(self.present, new):
            parents = tuple(commit for commit in (self.head,) if commit)
            self.present = new
            self.head = self.graph.commit(new, parents, self.context.id)
            self.remember()

    def _read_group(self, paths: list[str], into: dict[str, Leaf]) -> bool:
        """Read the files of a group; returns False when they changed meanwhile, which is then seen at the next look."""
        found: dict[str, Leaf] = {}
        for path in paths:
            looked = self.looked.get(path)
            if looked is None:
                if self.is_unknown(path) and path in into:
                    found[path] = into[path]
                continue
            try:
                content = self.tree.read(path)
            except TreeError as error:
                self.notify(path, error.problem)
                return False
            found[path] = Leaf(self.graph.put(content), looked[0].access, looked[0].mtime)
        for path in paths:
            looked = self.looked.get(path)
            if not self.is_unknown(path) and self.tree.entry(path) != (looked[0] if looked else None):
                self.revision = -1
                return False
        for path in paths:
            leaf = found.get(path)
            if leaf is None:
                into.pop(path, None)
            elif not same(leaf, into.get(path)):
                into[path] = leaf
        return True

    def _bring_in(self) -> bool:
        """Merge the waiting snapshot with the own files and make the tree so; returns False when that must wait."""
        try:
            theirs = self.graph.files(self.incoming)
            found = merge(self.graph.files(self.base), theirs, self.present, self.context.id)
        except BadFileError as error:
            self.notify("", error.problem)
            return False
        different = changed(self.present, found.files)
        if different:
            # Look once more: nothing that changed a moment ago may be replaced.
            if not self.look():
                return False
            roots = group_roots({*self.looked, *found.files})
            self._notice()
            in_use = {*self.pending, *(group_of(path, roots) for path in self.looked if is_lock(path))}
            if any(group_of(path, roots) in in_use for path in different):
                return False
            if not self._make(different, found.files, roots):
                return False
        for path, says in found.notices:
            self.notify(path, says)
        if found.copies:
            self.context.record("conflict_copies", found.copies)
        if changed(theirs, found.files):
            parents = tuple(commit for commit in (self.incoming, self.head) if commit)
            self.head = self.graph.commit(found.files, parents, self.context.id)
        else:
            self.head = self.incoming
        self.present = found.files
        self.base, self.incoming = self.incoming, NOTHING
        self.remember()
        return True

    def _make(self, different: set[str], files: Mapping[str, Leaf], roots: frozenset[str]) -> bool:
        """Add, replace, remove; returns False when the user was faster or there is no room."""
        clock = self.tree.time(self.context.now)
        adds = {path for path in different if path in files and path not in self.present}
        order = sorted(
            different,
            key=lambda path: (path not in files, path not in adds, files[path].mtime if path in files else 0.0, path),
        )
        arrival = {
            path: clock + _TICK_ROUNDS * rank
            for rank, path in enumerate(sorted(different & files.keys(), key=lambda path: (files[path].mtime, path)))
        }
        made = dict(self.present)
        path = ""
        try:
            for path in self._new_groups(files, roots):
                inside = [each for each in order if each.startswith(path + "/")]
                if not self._change_group(path, inside, files, arrival, made):
                    return False
            at_once: dict[str, list[str]] = {}
            for path in order:
                part = changed_at_once(path, group_of(path, roots))
                if part and not (path in made and path not in self.present):
                    at_once.setdefault(part, []).append(path)
            for path, inside in at_once.items():
                if not self._change_group(path, inside, files, arrival, made):
                    return False
            done = {path for inside in at_once.values() for path in inside}
            for path in order:
                if path in done:
                    continue
                leaf = files.get(path)
                looked = self.looked.get(path)
                there = looked[0] if looked else None
                if leaf is None:
                    if there is not None and not self.tree.remove(path, there):
                        return False
                    self.placed(path, None)
                    made.pop(path, None)
                    continue
                if path in made and path not in self.present:
                    continue
                mtime = leaf.mtime if group_of(path, roots) == path else arrival[path]
                placed = self.tree.write(
                    path, self.graph.object(leaf.digest), mtime=mtime, access=leaf.access, expected=there
                )
                if placed is None:
                    return False
                self.placed(path, placed)
                made[path] = leaf
        except (TreeError, BadFileError) as error:
            self.notify(path, error.problem)
            return False
        finally:
            self.present = made
        return True

    def _change_group(
        self,
        part: str,
        paths: list[str],
        files: Mapping[str, Leaf],
        arrival: Mapping[str, float],
        made: dict[str, Leaf],
    ) -> bool:
        expected = {path: entry for path, (entry, _) in self.looked.items() if path.startswith(part + "/")}
        changes: dict[str, Incoming | None] = {}
        for path in paths:
            leaf = files.get(path)
            if leaf is not None:
                changes[path] = Incoming(self.graph.object(leaf.digest), arrival[path], leaf.access)
            elif path in expected:
                changes[path] = None
        entries = self.tree.change_group(part, changes, expected)
        if entries is None:
            return False
        for path in paths:
            self.placed(path, entries.get(path))
            if path in files:
                made[path] = files[path]
            else:
                made.pop(path, None)
        return True

    def _new_groups(self, files: Mapping[str, Leaf], roots: frozenset[str]) -> list[str]:
        """Return the groups of which nothing is here yet."""
        here = {group_of(path, roots) for path in {*self.present, *self.looked}}
        groups = {group_of(path, roots) for path in files} & roots
        return sorted(group for group in groups - here if not any(group.startswith(other + "/") for other in groups))

    def backed_up(self) -> dict[str, Seen]:
        """Return the latest snapshot: a backup of it is a backup of one instant."""
        found = {}
        for path, leaf in self.present.items():
            looked = self.looked.get(path)
            found[path] = Seen(self.graph.object(leaf.digest), looked[0].mtime if looked else leaf.mtime)
        return found
