"""The mechanism of engines that carry single files: a cloud with a table, devices that upload, poll and fetch.

What travels is an item: a file, or a document package as one.  A device sends what differs from the last version it
agreed on with the cloud and leaves every clash to the cloud, so each engine states its rule once.

Source: M. Satyanarayanan and others, "Coda: A Highly Available File System for a Distributed Workstation Environment",
IEEE TC 39(4), 1990, for disconnected operation and reintegration; the rules are the engines' own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from wavetank.errors import BadValueError
from wavetank.protocols.filesync.device import CLOUD, Device, FileSyncSettings, Part, Wire, digest_of
from wavetank.protocols.filesync.tree import Access, Entry, TreeError, checked_path, conflict_name, package_of
from wavetank.settings import setting
from wavetank.sim.node import Message

GONE = b""

_FEED = 128


class Body(Message, frozen=True):
    """One file of an item; ``path`` is empty for an item that is a file."""

    path: str
    access: Access
    mtime: float
    data: bytes


class Record(Message, frozen=True):
    """A version of an item.

    Parameters
    ----------
    item : str
    version : bytes
        Digest of its files; :data:`GONE` when it was removed.
    mtime : float
        Latest modification time among its files, or of the removal, by the clock of the device it comes from.
    origin : int
        That device.
    serial : int
        The cloud's count of changes when it took this version; 0 before it did.
    vector : tuple of (int, int)
        Device to its count, for engines that keep version vectors.
    """

    item: str
    version: bytes
    mtime: float
    origin: int
    serial: int = 0
    vector: tuple[tuple[int, int], ...] = ()


class Upload(Message, frozen=True):
    """A device's new version; ``base`` is the serial of the version it was made from."""

    number: int
    record: Record
    base: int
    bodies: tuple[Body, ...]


class Uploaded(Message, frozen=True):
    """What became of an upload, and what the cloud now holds."""

    number: int
    taken: bool
    record: Record


class Poll(Message, frozen=True):
    """Ask for changes after a serial."""

    after: int


class Feed(Message, frozen=True):
    """Changes in the order of their serials; ``last`` when there are no more."""

    after: int
    records: tuple[Record, ...]
    last: bool


class Fetch(Message, frozen=True):
    """Ask for an item's files."""

    item: str


class Contents(Message, frozen=True):
    """An item's files."""

    record: Record
    bodies: tuple[Body, ...]


class Nudge(Message, frozen=True):
    """Something changed: it is worth polling."""


MESSAGES = (Upload, Uploaded, Poll, Feed, Fetch, Contents, Nudge)


def item_of(path: str) -> str:
    """Return what is sent as one: the file, or the document package that it belongs to."""
    return package_of(path) or path


def version_of(bodies: Sequence[Body]) -> bytes:
    """Return the version of an item with these files; times of modification are no part of it."""
    if not bodies:
        return GONE
    parts = sorted((body.path, body.access, digest_of(body.data)) for body in bodies)
    return digest_of(msgspec.msgpack.encode(parts))


class FileCloud(Wire, ABC):
    """The cloud's table of items; an engine adds its rule for clashes."""

    def __init__(self, engine: FileSyncSettings) -> None:
        super().__init__(engine)
        # In the order of their serials.
        self.records: dict[str, Record] = {}
        self.bodies: dict[str, tuple[Body, ...]] = {}
        self.serial = 0

    def start(self) -> None:
        """Take up what was saved."""
        for item in self.context.load("items", ()):
            record, bodies = msgspec.msgpack.decode(
                self.context.load(f"item {item}"), type=tuple[Record, tuple[Body, ...]]
            )
            self.records[item], self.bodies[item] = record, bodies
            self.serial = max(self.serial, record.serial)
        self.records = dict(sorted(self.records.items(), key=lambda pair: pair[1].serial))

    def arrived(self, sender: int, message: Any) -> None:
        """Answer a device."""
        if isinstance(message, Upload):
            if _is_sound(message.record, message.bodies):
                taken, record = self.judge(message)
                self.transmit(sender, Uploaded(message.number, taken, record))
        elif isinstance(message, Poll):
            self.transmit(sender, self._feed(message.after))
        elif isinstance(message, Fetch) and message.item in self.records:
            self.transmit(sender, Contents(self.records[message.item], self.bodies[message.item]))

    @abstractmethod
    def judge(self, upload: Upload) -> tuple[bool, Record]:
        """Take a version or not; return that, and the record the cloud then holds for the item."""

    def take(self, record: Record, bodies: tuple[Body, ...]) -> Record:
        """Make this the current version of its item; return it with its serial."""
        self.serial += 1
        record = msgspec.structs.replace(record, serial=self.serial)
        new = record.item not in self.records
        self.records.pop(record.item, None)
        self.records[record.item], self.bodies[record.item] = record, bodies
        self.context.save(f"item {record.item}", msgspec.msgpack.encode((record, bodies)))
        if new:
            self.context.save("items", tuple(self.records))
        for peer in self.context.peers:
            if peer != record.origin:
                self.transmit(peer, Nudge())
        return record

    def keep_copy(self, record: Record, bodies: tuple[Body, ...]) -> None:
        """Keep a version that lost as a conflict copy beside the one that won."""
        name = conflict_name(record.item, record.origin, record.version)
        if name not in self.records:
            # The copy comes from the cloud: the device that wrote it must hear of it as well.
            self.take(msgspec.structs.replace(record, item=name, origin=CLOUD), bodies)
            self.notify(record.item, f"kept the version of device {record.origin} as {name}")
            self.context.record("conflict_copies")

    def _feed(self, after: int) -> Feed:
        found: list[Record] = []
        for record in reversed(self.records.values()):
            if record.serial <= after:
                break
            found.append(record)
        found.reverse()
        return Feed(after, tuple(found[:_FEED]), len(found) <= _FEED)


def _is_sound(record: Record, bodies: Sequence[Body]) -> bool:
    """Return whether an upload holds what it says and stays inside the tree."""
    try:
        checked_path(record.item)
        for body in bodies:
            if body.path:
                checked_path(body.path)
    except BadValueError:
        return False
    return version_of(bodies) == record.version and math.isfinite(record.mtime)


@dataclass(frozen=True, kw_only=True)
class ItemSync(FileSyncSettings):
    """What the engines that carry single files have in common."""

    messages: ClassVar[tuple[type[Message], ...]] = (*MESSAGES, Part)

    poll_rounds: float = setting(10.0, unit="rounds", low=0.1, says="Time between two polls of the cloud")
    batch: int = setting(8, low=1, high=1000, says="Most items in flight in each direction")


class FileDevice(Device):
    """A device that sends single items."""

    engine: ItemSync

    def __init__(self, engine: ItemSync) -> None:
        super().__init__(engine)
        self.known: dict[str, Record] = {}
        self.local: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.unsettled: set[str] = set()
        self.dirty: set[str] = set()
        self.uploading: dict[str, tuple[Upload, float]] = {}
        # Items of which the cloud may have a version from here that it did not answer for.
        self.unsure: set[str] = set()
        self.to_fetch: dict[str, Record] = {}
        self.fetching: dict[str, float] = {}
        self.cursor = 0
        self.numbers = 0
        self.heard_at = 0.0
        # A file of an item whose paths are not the item's own name.
        self.inside: dict[str, set[str]] = {}

    def start(self) -> None:
        """Take up what was saved, then look and poll."""
        self.cursor = self.context.load("cursor", 0)
        for item in self.context.load("items", ()):
            self.known[item] = msgspec.msgpack.decode(self.context.load(f"item {item}"), type=Record)
        super().start()
        # Removals that happened while the engine was down are found by looking for what was known.
        self.unsettled.update(self.known)
        self.context.set_timer("poll", self.engine.poll_rounds * (0.05 + 0.9 * self.context.rng.random()))

    def timer(self, name: str) -> None:
        """Poll now and then; the rest is the device's."""
        if name == "poll":
            self.context.set_timer("poll", self.engine.poll_rounds)
            self.transmit(CLOUD, Poll(self.cursor))
        else:
            super().timer(name)

    def scanned(self) -> None:
        """Find out which items differ from what the cloud has, and send and fetch some."""
        for path in self.touched:
            item = item_of(path)
            if item != path:
                files = self.inside.setdefault(item, set())
                (files.add if path in self.looked else files.discard)(path)
            self.unsettled.add(item)
        self.touched.clear()
        for item in sorted(self.unsettled):
            if all(self.settled(path) for path in self._paths(item)) and not self.is_unknown(item):
                self.unsettled.discard(item)
                self._refresh(item)
        self.exchange()

    def _paths(self, item: str) -> list[str]:
        inside = self.inside.get(item)
        if inside:
            return sorted(inside)
        return [item] if item in self.looked else []

    def _refresh(self, item: str) -> tuple[Body, ...]:
        """Read an item and note its version; returns its files."""
        bodies: list[Body] = []
        known = self.known.get(item)
        for path in self._paths(item):
            entry = self.looked[path][0]
            if entry.dataless:
                self._note(item, known.version if known else GONE, entry.mtime)
                return ()
            try:
                data = self.tree.read(path)
            except TreeError as error:
                self.notify(path, error.problem)
                self.unsettled.add(item)
                return ()
            bodies.append(Body(path[len(item) + 1 :], entry.access, entry.mtime, data))
        mtime = max((body.mtime for body in bodies), default=self.tree.time(self.context.now))
        version = version_of(bodies)
        if version != GONE or self.local.get(item, GONE) != GONE or item not in self.times:
            self._note(item, version, mtime)
        return tuple(bodies)

    def _note(self, item: str, version: bytes, mtime: float) -> None:
        self.local[item], self.times[item] = version, mtime
        known = self.known.get(item)
        if version == (known.version if known else GONE) and item not in self.unsure:
            self.dirty.discard(item)
        else:
            self.dirty.add(item)

    def exchange(self) -> None:
        """Send and fetch some items, in no particular order, and ask again for what was not answered."""
        now = self.context.now
        for item, (_, sent_at) in list(self.uploading.items()):
            if now - sent_at > self.engine.retry_rounds:
                # Whether the first try arrived is unknown: what is here now is sent, even if it is what was known.
                del self.uploading[item]
                self.unsure.add(item)
                self.dirty.add(item)
                self.context.record("retries")
        room = self.engine.batch - len(self.uploading)
        ready = sorted(self.dirty - self.uploading.keys() - self.unsettled) if room > 0 else []
        for item in self.context.rng.sample(ready, min(room, len(ready))):
            self._upload(item)
        for item, asked_at in list(self.fetching.items()):
            if now - asked_at > self.engine.retry_rounds:
                del self.fetching[item]
        room = self.engine.batch - len(self.fetching)
        ready = sorted(self.to_fetch.keys() - self.fetching.keys() - self.dirty) if room > 0 else []
        for item in self.context.rng.sample(ready, min(room, len(ready))):
            self.fetching[item] = now
            self.transmit(CLOUD, Fetch(item))

    def _upload(self, item: str) -> None:
        bodies = self._refresh(item)
        if item not in self.dirty or item in self.unsettled:
            return
        known = self.known.get(item)
        self.numbers += 1
        record = Record(item, self.local[item], self.times[item], self.context.id, 0, self.vector_for(item))
        upload = Upload(self.numbers, record, known.serial if known else 0, bodies)
        try:
            self.transmit(CLOUD, upload)
        except TreeError as error:
            self.notify(item, error.problem)
            return
        self.uploading[item] = (upload, self.context.now)

    def vector_for(self, item: str) -> tuple[tuple[int, int], ...]:
        """Return the vector of the version about to be sent."""
        return ()

    def arrived(self, sender: int, message: Any) -> None:
        """Take what the cloud says."""
        if isinstance(message, Nudge):
            self.transmit(CLOUD, Poll(self.cursor))
        elif isinstance(message, Uploaded):
            self._uploaded(message)
        elif isinstance(message, Feed):
            self.fed(message)
        elif isinstance(message, Contents):
            self._contents(message)
        self.heard_at = self.context.now

    def _uploaded(self, message: Uploaded) -> None:
        record = message.record
        upload, _ = self.uploading.get(record.item, (None, 0.0))
        if upload is None or upload.number != message.number:
            return
        del self.uploading[record.item]
        if message.taken:
            self.agree(record)
            return
        # What was sent lost.  It counts as known, so that the winner replaces it, unless the user goes on writing.
        self.agree(
            msgspec.structs.replace(record, version=upload.record.version, serial=0, vector=upload.record.vector)
        )
        self.to_fetch[record.item] = record

    def agree(self, record: Record) -> None:
        """Note the version that this device's own is compared with from now on."""
        new = record.item not in self.known
        self.known[record.item] = record
        self.unsure.discard(record.item)
        self.context.save(f"item {record.item}", msgspec.msgpack.encode(record))
        if new:
            self.context.save("items", tuple(self.known))
        self._note(record.item, self.local.get(record.item, GONE), self.times.get(record.item, 0.0))
        waiting = self.to_fetch.get(record.item)
        if waiting is not None and waiting.serial <= record.serial:
            del self.to_fetch[record.item]

    def fed(self, feed: Feed) -> None:
        """Take a page of the cloud's changes."""
        if feed.after != self.cursor:
            return
        for record in feed.records:
            known = self.known.get(record.item)
            if known is None or record.serial > known.serial:
                self.heard(record)
            self.cursor = record.serial
        self.context.save("cursor", self.cursor)
        if not feed.last:
            self.transmit(CLOUD, Poll(self.cursor))

    def heard(self, record: Record) -> None:
        """Note a version that this device does not have."""
        if self.local.get(record.item, GONE) == record.version and record.item not in self.uploading:
            self.agree(record)
        else:
            self.to_fetch[record.item] = record

    def _contents(self, message: Contents) -> None:
        record, bodies = message.record, message.bodies
        item = record.item
        self.fetching.pop(item, None)
        if item not in self.to_fetch or not _is_sound(record, bodies):
            return
        # What was written here in the meantime goes up first, and the cloud judges.
        if not self.look() or any(item_of(path) == item for path in self.touched) or item in self.unsettled:
            return
        if item in self.dirty or item in self.uploading:
            return
        if self._place(item, bodies):
            self.to_fetch.pop(item, None)
            self.local[item], self.times[item] = record.version, record.mtime
            self.agree(record)

    def _place(self, item: str, bodies: Iterable[Body]) -> bool:
        """Make the item's files these; returns False when the user was faster or there is no room."""
        wanted = {f"{item}/{body.path}" if body.path else item: body for body in bodies}
        inside = self.inside.get(item, set())
        try:
            for path, body in wanted.items():
                there = self._entry(path)
                placed = self.tree.write(path, body.data, mtime=body.mtime, access=body.access, expected=there)
                if placed is None:
                    return False
                self.placed(path, placed)
                if body.path:
                    inside.add(path)
            for path in set(self._paths(item)) - wanted.keys():
                there = self._entry(path)
                if there is not None and not self.tree.remove(path, there):
                    return False
                self.placed(path, None)
                inside.discard(path)
        except TreeError as error:
            self.notify(item, error.problem)
            return False
        if inside:
            self.inside[item] = inside
        else:
            self.inside.pop(item, None)
        return True

    def _entry(self, path: str) -> Entry | None:
        looked = self.looked.get(path)
        return looked[0] if looked else None

    def wanted(self, path: str) -> None:
        """Fetch the content of a file that is in the cloud alone."""
        item = item_of(path)
        if item in self.known:
            self.to_fetch[item] = self.known[item]

    def version_at(self, path: str) -> bytes:
        """See Device."""
        return super().version_at(path) or self.evicted_version(path)

    def evicted_version(self, path: str) -> bytes:
        """Return the content digest of a file whose content was evicted; b"" when it was not."""
        return b""
