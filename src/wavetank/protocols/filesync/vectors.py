"""File synchronisation with version vectors: what descends from a version replaces it, what does not stands beside it.

Every version of a file carries how many changes of each device it contains.  If one vector covers the other its version
is newer, whatever the clocks say; if neither does, neither knew of the other, and both are kept.

Source: D. Parker and others, "Detection of Mutual Inconsistency in Distributed Systems", IEEE TSE 9(3), 1983.

Differs from the source:

1. The cloud compares; devices never talk to each other.
2. A sibling is kept as a conflict copy with a name of its own, and the path's vector then covers both.
3. Removals keep a record; an edit wins over a removal that did not know it, and the user is told.
4. Siblings are not merged line by line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from wavetank.protocols.filesync.device import CLOUD, Part, checked_size
from wavetank.protocols.filesync.items import GONE, MESSAGES, FileCloud, FileDevice, Record, Upload
from wavetank.protocols.interfaces import Message, Node, Snapshot
from wavetank.settings import setting

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

    def __init__(self) -> None:
        super().__init__()

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
                self.tell(record.item, f"kept, although device {record.origin} removed an earlier version")
            taken = self.take(_with(current, both), self.bodies[record.item])
            return record.version == current.version, taken
        if current.version == GONE:
            self.tell(record.item, f"kept, although device {current.origin} removed an earlier version")
            return True, self.take(_with(record, both), upload.bodies)
        self.keep_copy(record, upload.bodies)
        return False, self.take(_with(current, both), self.bodies[record.item])


def _with(record: Record, vector: Vector) -> Record:
    return msgspec.structs.replace(record, vector=vector, origin=CLOUD)


class VectorDevice(FileDevice):
    """A device of :class:`VersionVectorSync`."""

    def __init__(self, engine: VersionVectorSync) -> None:
        super().__init__(
            engine.scan_rounds, engine.settle_rounds, engine.poll_rounds, engine.retry_rounds, engine.batch
        )
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
class VersionVectorSync:
    """Single files, each with a version vector; siblings are kept.

    Parameters
    ----------
    scan_rounds, settle_rounds, poll_rounds, retry_rounds : float
    batch : int
    """

    messages: ClassVar[tuple[type[Message], ...]] = (*MESSAGES, Part)
    # How a node tells whether a link works; the study holds the two ways against a flapping link.
    believes_by: ClassVar[str] = "timeout"

    scan_rounds: float = setting(1.0, unit="rounds", low=0.01, says="between two looks at the tree")
    settle_rounds: float = setting(2.0, unit="rounds", low=0, says="a change is finished after that long")
    poll_rounds: float = setting(10.0, unit="rounds", low=0.1, says="between two polls of the cloud")
    retry_rounds: float = setting(8.0, unit="rounds", low=0.1, says="an answer is late after that long")
    batch: int = setting(8, low=1, high=1000, says="items under way at a time, in each direction")

    def node(self, index: int, size: int) -> Node:
        """Return the cloud (0) or a device."""
        checked_size(size)
        return VectorCloud() if index == CLOUD else VectorDevice(self)

    def bears(self, size: int) -> int:
        """Return 0: a participant that lies is not foreseen."""
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return "": what it promises is judged by the oracles."""
        return ""
