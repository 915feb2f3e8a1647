"""File synchronisation on one time line: single files, in any order, and the latest modification time wins.

Every version is a point on one line of time, put there by the clock of the device that wrote it.  The cloud keeps the
latest; what is earlier gives way without a word unless both versions are close in time, in which case the earlier one
is kept as a conflict copy.  This is a model of documented behaviour of services like iCloud Drive, not their code.

Source: P. Borrill, "Why iCloud Fails: The Category Mistake of Cloud Synchronization", arXiv 2602.19433, 2026, for the
five incompatibilities; Apple's "NSFileCoordinator" and "NSFileVersion" references for coordinated writes and versions.

Differs from the source:

1. The paper argues from incidents; the rules here are our reading of what it documents, stated as parameters.
2. Coordinated writes are respected, and a document package travels as one item, as Apple's own documents do.
3. Two versions with equal content are no conflict, and a retry that arrives twice makes no second conflict copy.
4. With ``careful`` the cloud takes whatever was made from its current version, whatever the clock says; with a wide
   ``conflict_rounds`` nothing gives way silently.  Both together are the fairest rival of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.filesync.device import CLOUD, Part, checked_size, digest_of
from wavetank.protocols.filesync.items import GONE, MESSAGES, Feed, FileCloud, FileDevice, Poll, Record, Upload
from wavetank.protocols.filesync.tree import TreeError
from wavetank.protocols.interfaces import Message, Node, Snapshot
from wavetank.settings import setting


class TimelineCloud(FileCloud):
    """The cloud of :class:`TimelineSync`."""

    def __init__(self, conflict_rounds: float, careful: bool) -> None:
        super().__init__()
        self.conflict_rounds = conflict_rounds
        self.careful = careful

    def judge(self, upload: Upload) -> tuple[bool, Record]:
        """Let the latest win; keep the other where both changed within the window."""
        record, current = upload.record, self.records.get(upload.record.item)
        if current is None:
            return True, self.take(record, upload.bodies)
        if current.version == record.version:
            return True, current
        both_changed = upload.base != current.serial
        if self.careful and not both_changed:
            return True, self.take(record, upload.bodies)
        wins = record.mtime > current.mtime
        if both_changed and abs(record.mtime - current.mtime) <= self.conflict_rounds:
            loser, bodies = (current, self.bodies[current.item]) if wins else (record, upload.bodies)
            if loser.version != GONE:
                self.keep_copy(loser, bodies)
        if wins:
            return True, self.take(record, upload.bodies)
        return False, current


class TimelineDevice(FileDevice):
    """A device of :class:`TimelineSync`: it may start over, and evict."""

    def __init__(self, engine: TimelineSync) -> None:
        super().__init__(
            engine.scan_rounds, engine.settle_rounds, engine.poll_rounds, engine.retry_rounds, engine.batch
        )
        self.reset_rounds = engine.reset_rounds
        self.reserve_bytes = engine.reserve_bytes
        self.starting_over = False
        self.evicted: dict[str, bytes] = {}

    def arrived(self, sender: int, message: Any) -> None:
        """Start over after a long silence; the rest is the file device's."""
        if self.context.now - self.heard_at > self.reset_rounds:
            self.starting_over = True
            self.cursor = 0
            self.known.clear()
            self.uploading.clear()
            self.to_fetch.clear()
            self.heard_at = self.context.now
            self.context.record("resets")
            self.transmit(CLOUD, Poll(0))
            return
        super().arrived(sender, message)

    def heard(self, record: Record) -> None:
        """Take the cloud's word, also over local changes when starting over."""
        if self.starting_over and self.local.get(record.item, GONE) != record.version:
            mine = Record(record.item, self.local.get(record.item, GONE), 0.0, self.context.id)
            self.agree(mine)
        super().heard(record)

    def fed(self, feed: Feed) -> None:
        """Take a page of changes; after the last one starting over is done."""
        current = feed.after == self.cursor
        super().fed(feed)
        if self.starting_over and current and feed.last:
            self.starting_over = False
            self.unsettled.update(self.local)

    def exchange(self) -> None:
        """Send nothing after a long silence: first the cloud's word is taken."""
        if self.context.now - self.heard_at <= self.reset_rounds:
            super().exchange()

    def scanned(self) -> None:
        """Exchange files, then make room."""
        if self.starting_over:
            return
        super().scanned()
        if self.tree.free_bytes() < self.reserve_bytes:
            self._make_room()

    def _make_room(self) -> None:
        for path, (entry, _) in sorted(self.looked.items(), key=lambda pair: (pair[1][0].mtime, pair[0])):
            if self.tree.free_bytes() >= self.reserve_bytes:
                return
            if path in self.dirty or path not in self.known or path in self.unsettled or entry.dataless:
                continue
            try:
                version = digest_of(self.tree.read(path))
            except TreeError:
                continue
            if self.tree.evict(path, entry):
                self.evicted[path] = version
                self.placed(path, self.tree.entry(path))
                self.context.record("evicted")

    def evicted_version(self, path: str) -> bytes:
        """See FileDevice."""
        return self.evicted.get(path, b"")


@dataclass(frozen=True, kw_only=True)
class TimelineSync:
    """Single files, the latest modification time wins.

    Parameters
    ----------
    conflict_rounds : float
        Two versions that both changed are a visible conflict when their times are at most this far apart.
    careful : bool
        Whether the cloud takes what was made from its current version whatever its time.
    reset_rounds : float
        A device that heard nothing for longer drops what it knew and takes the cloud's copy.
    reserve_bytes : float
        A device with less room than this evicts the contents of its oldest files.
    scan_rounds, settle_rounds, poll_rounds, retry_rounds : float
    batch : int
    """

    messages: ClassVar[tuple[type[Message], ...]] = (*MESSAGES, Part)
    # How a node tells whether a link works; the study holds the two ways against a flapping link.
    believes_by: ClassVar[str] = "timeout"

    conflict_rounds: float = setting(10.0, unit="rounds", low=0, says="window within which a clash is shown")
    careful: bool = setting(False, says="take what was made from the current version, whatever its time")
    reset_rounds: float = setting(600.0, unit="rounds", low=1, says="silence after which a device starts over")
    reserve_bytes: float = setting(16384.0, unit="bytes", low=0, says="room below which contents are evicted")
    scan_rounds: float = setting(1.0, unit="rounds", low=0.01, says="between two looks at the tree")
    settle_rounds: float = setting(2.0, unit="rounds", low=0, says="a change is finished after that long")
    poll_rounds: float = setting(10.0, unit="rounds", low=0.1, says="between two polls of the cloud")
    retry_rounds: float = setting(8.0, unit="rounds", low=0.1, says="an answer is late after that long")
    batch: int = setting(8, low=1, high=1000, says="items under way at a time, in each direction")

    def node(self, index: int, size: int) -> Node:
        """Return the cloud (0) or a device."""
        checked_size(size)
        return TimelineCloud(self.conflict_rounds, self.careful) if index == CLOUD else TimelineDevice(self)

    def bears(self, size: int) -> int:
        """Return 0: a participant that lies is not foreseen."""
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return "": what it promises is judged by the oracles."""
        return ""
