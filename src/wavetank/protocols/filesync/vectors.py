"""File synchronisation with version vectors: what descends from a version replaces it, what does not stands beside it.

Every version of a file carries how many changes of each device it contains.  If one vector covers the other its version
is newer, whatever the clocks say; if neither does, neither knew of the other, and both are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from wavetank.protocols.filesync.device import CLOUD, Device, Wire
from wavetank.protocols.filesync.items import GONE, FileCloud, FileDevice, ItemSync, Record, Upload

Vector = tuple[tuple[int, int], ...]


def merged(*vectors: Iterable[tuple[int, int]]) -> Vector:
    """Return the least vector that covers all of them.

    Examples
    --------
    >>> merged(((1, 2),), ((1, 1), (2, 5)))
    ((1, 2), (2, 5))
    """
    counts: dict[int, int] = {}
    for vector in vectors:
        for device, count in vector:
            counts[device] = max(counts.get(device, 0), count)
    return tuple(sorted(counts.items()))


def covers(vector: Vector, other: Vector) -> bool:
    """Return whether every change in ``other`` is in ``vector``.

    Examples
    --------
    >>> covers(((1, 2), (2, 5)), ((1, 2),)), covers(((1, 2),), ((2, 1),))
    (True, False)
    """
    counts = dict(vector)
    return all(counts.get(device, 0) >= count for device, count in other)


class VectorCloud(FileCloud):
    """The cloud of :class:`VersionVectorSync`."""

    def judge(self, upload: Upload) -> tuple[bool, Record]:
        """Compare vectors; keep both versions where neither covers the other."""
        record, current = upload.record, self.records.get(upload.record.item)
        if current is None:
            return True, self.take(record, upload.bodies)
        if covers(current.vector, record.vector):
            return current.version == record.version, current
        if covers(record.vector, current.vector):
            return True, self.take(record, upload.bodies)
        both = merged(record.vector, current.vector)
        if record.version in (current.version, GONE):
            if record.version != current.version:
                self.notify(record.item, f"kept, although device {record.origin} removed an earlier version")
            taken = self.take(_with(current, both), self.bodies[record.item])
            return record.version == current.version, taken
        if current.version == GONE:
            self.notify(record.item, f"kept, although device {current.origin} removed an earlier version")
            return True, self.take(_with(record, both), upload.bodies)
        self.keep_copy(record, upload.bodies)
        return False, self.take(_with(current, both), self.bodies[record.item])


def _with(record: Record, vector: Vector) -> Record:
    return msgspec.structs.replace(record, vector=vector, origin=CLOUD)


class VectorDevice(FileDevice):
    """A device of :class:`VersionVectorSync`."""

    def __init__(self, engine: VersionVectorSync) -> None:
        super().__init__(engine)
        self.count = 0
        self.intended: dict[str, tuple[bytes, Vector]] = {}

    def start(self) -> None:
        """Take up what was saved."""
        self.count = self.context.load("count", 0)
        super().start()

    def vector_for(self, item: str) -> Vector:
        """Count one more change of this device, but once only for each version."""
        version, vector = self.intended.get(item, (GONE, ()))
        known = self.known.get(item)
        base = known.vector if known else ()
        if item in self.intended and version == self.local[item] and covers(vector, base):
            return vector
        self.count += 1
        self.context.save("count", self.count)
        vector = merged(base, ((self.context.id, self.count),))
        self.intended[item] = (self.local[item], vector)
        return vector


@dataclass(frozen=True, kw_only=True)
class VersionVectorSync(ItemSync):
    """Single files, each with a version vector; siblings are kept."""

    cloud: ClassVar[type[Wire]] = VectorCloud
    device: ClassVar[type[Device]] = VectorDevice
