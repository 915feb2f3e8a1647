"""File synchronisation on one time line: single files, in any order, and the latest modification time wins.

Every version is a point on one line of time, put there by the clock of the device that wrote it.  The cloud keeps the
latest; what is earlier gives way without a word unless both versions are close in time, in which case the earlier one
is kept as a conflict copy.  This is a model of documented behaviour of services like iCloud Drive, not their code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.filesync.device import CLOUD, Device, Wire, digest_of
from wavetank.protocols.filesync.items import GONE, Feed, FileCloud, FileDevice, ItemSync, Poll, Record, Upload
from wavetank.protocols.filesync.tree import TreeError
from wavetank.settings import setting


class TimelineCloud(FileCloud):
    """The cloud of :class:`TimelineSync`."""

    engine: TimelineSync

    def judge(self, upload: Upload) -> tuple[bool, Record]:
        """Let the latest win; keep the other where both changed within the window."""
        record, current = upload.record, self.records.get(upload.record.item)
        if current is None:
            return True, self.take(record, upload.bodies)
        if current.version == record.version:
            return True, current
        both_changed = upload.base != current.serial
        if self.engine.careful and not both_changed:
            return True, self.take(record, upload.bodies)
        wins = record.mtime > current.mtime
        if both_changed and abs(record.mtime - current.mtime) <= self.engine.conflict_rounds:
            loser, bodies = (current, self.bodies[current.item]) if wins else (record, upload.bodies)
            if loser.version != GONE:
                self.keep_copy(loser, bodies)
        if wins:
            return True, self.take(record, upload.bodies)
        return False, current


class TimelineDevice(FileDevice):
    """A device of :class:`TimelineSync`: it may start over, and evict."""

    engine: TimelineSync

    def __init__(self, engine: TimelineSync) -> None:
        super().__init__(engine)
        self.starting_over = False
        self.evicted: dict[str, bytes] = {}

    def arrived(self, sender: int, message: Any) -> None:
        """Start over after a long silence; the rest is the file device's."""
        if self.context.now - self.heard_at > self.engine.reset_rounds:
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
        if self.context.now - self.heard_at <= self.engine.reset_rounds:
            super().exchange()

    def scanned(self) -> None:
        """Exchange files, then make room."""
        if self.starting_over:
            return
        super().scanned()
        if self.tree.free_bytes() < self.engine.reserve_bytes:
            self._make_room()

    def _make_room(self) -> None:
        for path, (entry, _) in sorted(self.looked.items(), key=lambda pair: (pair[1][0].mtime, pair[0])):
            if self.tree.free_bytes() >= self.engine.reserve_bytes:
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
class TimelineSync(ItemSync):
    """Single files, the latest modification time wins.

    Parameters
    ----------
    conflict_rounds : float
        Two versions that both changed are a visible conflict when their times are at most this far apart.
    reset_rounds : float
        A device that heard nothing for longer drops what it knew and takes the cloud's copy.
    """

    cloud: ClassVar[type[Wire]] = TimelineCloud
    device: ClassVar[type[Device]] = TimelineDevice

    conflict_rounds: float = setting(10.0, unit="rounds", low=0, says="Window within which a conflict is reported")
    careful: bool = setting(
        False, says="Whether a write that was made from the current version is accepted, whatever its time"
    )
    reset_rounds: float = setting(600.0, unit="rounds", low=1, says="Silence after which a device starts over")
    reserve_bytes: float = setting(16384.0, unit="bytes", low=0, says="Free capacity below which contents are evicted")
