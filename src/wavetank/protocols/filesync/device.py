"""What all engines share on a device: its programs, its scan, its wire, and its notices to the user.

Programs change files step by step while the engine looks on: it lists the tree now and then, and takes a change for
finished when nothing followed it for a while.  One account of bytes and messages serves all engines.

Source: A. Tridgell, P. Mackerras, "The rsync algorithm", 1996, for the habit of trusting size and time stamps between
two looks at a file; programs and their steps are this package's own.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, ClassVar, NamedTuple

import msgspec

from wavetank.errors import BadValueError
from wavetank.protocols.filesync.applications import ApplicationError, Backup, Look, Seen, Step, steps_of
from wavetank.protocols.filesync.tree import Entry, MemoryTree, Tree, TreeError
from wavetank.settings import setting
from wavetank.sim.node import Message, Node, Snapshot

CLOUD = 0

# A message longer than this travels in parts.
PART_BYTES = 48 * 1024
LARGEST_MESSAGE_BYTES = 256 * 2**20
_STREAMS = 8

# Files a backup copies in one step, and how often a program waits for a content that is in the cloud.
_COPIED_AT_ONCE = 16
_PATIENCE = 40


class Part(Message, frozen=True):
    """A piece of a long message."""

    stream: int
    index: int
    count: int
    data: bytes


class FileOperation(NamedTuple):
    """Something a program did, and what it saw before: the truth that losses are counted against.

    Parameters
    ----------
    at : float
        True time in rounds.
    device : int
    path : str
    version : bytes
        Digest of the content; b"" for a removal.
    saw : tuple of (str, bytes)
        The versions this one replaces or comes from.
    since : tuple of float
        When each of them came to be on this device; () where that was not noted.
    """

    at: float
    device: int
    path: str
    version: bytes
    saw: tuple[tuple[str, bytes], ...] = ()
    since: tuple[float, ...] = ()


class Notice(NamedTuple):
    """A notice from the engine to its user."""

    at: float
    path: str
    says: str


def digest_of(content: bytes) -> bytes:
    """Return the 16 bytes by which a content is known."""
    return hashlib.blake2b(content, digest_size=16).digest()


class Wire(Node, ABC):
    """A node that sends long messages in parts and counts what it sends.

    Attributes
    ----------
    notices : list of Notice
        All notices to the user.
    """

    def __init__(self, engine: FileSyncSettings) -> None:
        self.engine = engine
        self.kinds = tuple(kind for kind in engine.messages if kind is not Part)
        self.streams = 0
        self.arriving: dict[tuple[int, int], dict[int, bytes]] = {}
        self.notices: list[Notice] = []

    def notify(self, path: str, says: str) -> None:
        """Give the user a notice, once."""
        if not any(notice.path == path and notice.says == says for notice in self.notices):
            self.notices.append(Notice(self.context.now, path, says))
            self.context.record("notices")

    def transmit(self, to: int, message: Message) -> None:
        """Send a message; its bytes are counted as they would be on the wire."""
        data = msgspec.msgpack.encode(message)
        self.context.record("sent_bytes", len(data))
        if len(data) <= PART_BYTES:
            self.context.send(to, message)
            return
        if len(data) > LARGEST_MESSAGE_BYTES:
            raise TreeError("This is too much for one message.", given=f"{len(data)} bytes")
        self.streams += 1
        count = -(-len(data) // PART_BYTES)
        for index in range(count):
            piece = data[index * PART_BYTES : (index + 1) * PART_BYTES]
            self.context.send(to, Part(self.streams, index, count, piece))

    def receive(self, sender: int, message: Any) -> None:
        """Put parts together, and hand on whole messages; a message of another kind is ignored."""
        if isinstance(message, Part):
            message = self._put_together(sender, message)
        if isinstance(message, self.kinds):
            self.arrived(sender, message)

    @abstractmethod
    def arrived(self, sender: int, message: Any) -> None:
        """Take a whole message."""

    def _put_together(self, sender: int, part: Part) -> Message | None:
        if not 0 <= part.index < part.count <= LARGEST_MESSAGE_BYTES // PART_BYTES or len(part.data) > PART_BYTES:
            return None
        pieces = self.arriving.setdefault((sender, part.stream), {})
        pieces[part.index] = part.data
        # A message that lost a part is never whole: its sender sends it again, as a new stream.
        while len(self.arriving) > _STREAMS:
            del self.arriving[next(iter(self.arriving))]
        if len(pieces) < part.count:
            return None
        self.arriving.pop((sender, part.stream), None)
        data = b"".join(pieces[index] for index in sorted(pieces))
        try:
            decoded: Message = msgspec.msgpack.decode(data, type=reduce(or_, self.kinds))
        except msgspec.DecodeError:
            return None
        return decoded


class Device(Wire, ABC):
    """A device: programs that change its files, and an engine that notices.

    Attributes
    ----------
    tree : Tree
        In memory unless it was given another before the start.
    step_rounds : float
        Time a program takes for one step.
    operations : list of FileOperation
    """

    def __init__(self, engine: FileSyncSettings) -> None:
        super().__init__(engine)
        self.tree: Tree = MemoryTree()
        self.step_rounds = 0.2
        self.operations: list[FileOperation] = []
        self.waiting: list[tuple[int, Message]] = []
        self.steps: list[Step] = []
        self.at_work = -1
        self.copied: dict[str, Seen] = {}
        self.coordinated: set[str] = set()
        self.postponed = 0
        # Path to the entry as last looked at, and when that was first seen.
        self.looked: dict[str, tuple[Entry, float]] = {}
        # Path to when its content came to be here, written here or brought in.
        self.came_at: dict[str, float] = {}
        # Path to when it was seen to be gone.
        self.gone: dict[str, float] = {}
        # What changed since the engine last took notice.
        self.touched: set[str] = set()
        # Folders of which the last look found out nothing.
        self.unknown: tuple[str, ...] = ()
        self.revision = -1
        self.reachable = True

    def start(self) -> None:
        """Begin to look at the tree; the first look waits for a random part of the interval."""
        self.context.set_timer("scan", self.engine.scan_rounds * (0.05 + 0.9 * self.context.rng.random()))

    def timer(self, name: str) -> None:
        """Look at the tree, or let a program do its next step."""
        if name == "scan":
            self.context.set_timer("scan", self.engine.scan_rounds)
            if self.look():
                self.scanned()
        elif name == "step":
            self._next_step()

    def look(self) -> bool:
        """List the tree and note what changed when; returns False when it cannot be reached."""
        if 0 <= self.tree.revision == self.revision:
            return True
        try:
            listing = self.tree.listing()
        except TreeError as error:
            # An unmounted folder is no folder that was emptied.
            if self.reachable:
                self.notify("", f"{error.problem} ({error.given})" if error.given else error.problem)
            self.reachable = False
            return False
        self.reachable = True
        self.revision = self.tree.revision
        now, looked = self.context.now, self.looked
        for path, entry in listing.items():
            known = looked.get(path)
            if known is None or known[0] != entry:
                looked[path] = (entry, now)
                self.touched.add(path)
        self.unknown = tuple(self.tree.unknown())
        if len(looked) != len(listing):
            # What lies in a folder that cannot be read now was not removed.
            for path in [path for path in looked if path not in listing and not self.is_unknown(path)]:
                del looked[path]
                self.touched.add(path)
                self.gone[path] = now
            # Only removals of a moment ago matter.
            self.gone = {path: at for path, at in self.gone.items() if now - at <= self.engine.settle_rounds}
        for path, why in self.tree.unsynced().items():
            self.notify(path, why)
        return True

    def notify(self, path: str, says: str) -> None:
        """Give the user a notice, also in the tree itself."""
        before = len(self.notices)
        super().notify(path, says)
        if len(self.notices) > before:
            self.tree.notify(path, says)

    def is_unknown(self, path: str) -> bool:
        """Return whether a path is, or lies in, a folder of which the last look found out nothing."""
        return any(path.startswith(folder) or folder.startswith(f"{path}/") for folder in self.unknown)

    def placed(self, path: str, entry: Entry | None) -> None:
        """Remember a change that the engine made itself, so that it is not taken for the user's."""
        self.touched.discard(path)
        if entry is None:
            self.looked.pop(path, None)
            self.came_at.pop(path, None)
        else:
            self.looked[path] = (entry, float("-inf"))
            if not entry.dataless:
                self.came_at[path] = self.context.now

    def settled(self, path: str) -> bool:
        """Return whether a file of the last look has been left alone for long enough."""
        if self.is_unknown(path):
            return False
        if any(path == group or path.startswith(group + "/") for group in self.coordinated):
            return False
        since = self.looked[path][1] if path in self.looked else self.gone.get(path, float("-inf"))
        return self.context.now - since >= self.engine.settle_rounds

    @abstractmethod
    def scanned(self) -> None:
        """React to a look at the tree."""

    def wanted(self, path: str) -> None:
        """Fetch a content that a program asks for and that is in the cloud alone."""

    def backed_up(self) -> Mapping[str, Seen] | None:
        """Return a consistent copy of everything, None when the engine has no such thing."""
        return None

    def version_at(self, path: str) -> bytes:
        """Return the version of a file, also when its content is in the cloud alone; b"" for none."""
        try:
            return digest_of(self.tree.read(path))
        except TreeError:
            return b""

    # Programs.

    def request(self, number: int, command: Any) -> None:
        """Have a program do something; one after the other, each when the one before has ended."""
        self.waiting.append((number, command))
        if self.at_work < 0:
            self._next_program()

    def _next_program(self) -> None:
        while self.waiting:
            number, command = self.waiting.pop(0)
            if isinstance(command, Look):
                self.context.reply(number, self.files())
                continue
            copy = self.backed_up() if isinstance(command, Backup) else None
            if copy is not None:
                self.context.reply(number, copy)
                continue
            try:
                if isinstance(command, Backup):
                    self.copied = {}
                    self.steps = [Step("copy", path) for path in sorted(self.tree.listing())]
                else:
                    times = {path: entry.mtime for path, entry in self.tree.listing().items()}
                    self.steps = steps_of(command, times, self._read)
            except (ApplicationError, TreeError) as error:
                if isinstance(error, TreeError) and self.postponed < _PATIENCE:
                    self._postpone(number, command)
                    return
                self._fail(number, error.problem)
                continue
            self.at_work = number
            self.postponed = 0
            # What was planned is begun at once: from then on the engine sees that these files are in use.
            self._next_step()
            return

    def _postpone(self, number: int, command: Message) -> None:
        self.postponed += 1
        self.waiting.insert(0, (number, command))
        self.at_work = number
        self.steps = []
        self.context.set_timer("step", max(self.step_rounds, 1.0))

    def _fail(self, number: int, why: str) -> None:
        self.postponed = 0
        self.context.record("refused")
        self.context.reply(number, why)

    def _next_step(self) -> None:
        if self.waiting and self.waiting[0][0] == self.at_work:
            self.at_work = -1
            self._next_program()
            return
        try:
            for _ in range(_COPIED_AT_ONCE if self.steps and self.steps[0].action == "copy" else 1):
                if self.steps:
                    self._do(self.steps.pop(0))
        except TreeError as error:
            self._end(error.problem)
            return
        if self.steps:
            self.context.set_timer("step", self.step_rounds)
        else:
            self._end(self.copied if self.copied else "done")

    def _end(self, result: Any) -> None:
        number, self.at_work = self.at_work, -1
        if isinstance(result, str) and result != "done":
            self.context.record("refused")
        self.context.reply(number, result)
        self.steps, self.copied = [], {}
        self.coordinated.clear()
        self._next_program()

    def _do(self, step: Step) -> None:
        tree, now = self.tree, self.context.now
        if step.action == "begin":
            self.coordinated.add(step.path)
        elif step.action == "end":
            self.coordinated.discard(step.path)
        elif step.action == "copy":
            self._copy(step.path)
        else:
            entry = tree.entry(step.path)
            before = ((step.path, self.version_at(step.path)),) if entry else ()
            mtime = tree.time(now)
            if step.action == "write":
                if tree.write(step.path, step.content, mtime=mtime, access=False, expected=entry) is not None:
                    self._did(step.path, digest_of(step.content), before)
            elif entry is not None and step.action == "remove":
                tree.remove(step.path, entry)
                self._did(step.path, b"", before)
            elif entry is not None:
                content = self._read(step.path)
                there = tree.entry(step.to)
                over = ((step.to, self.version_at(step.to)),) if there else ()
                tree.remove(step.path, entry)
                tree.write(step.to, content, mtime=entry.mtime, access=entry.access, expected=there)
                self._did(step.to, digest_of(content), (*before, *over))
                self._did(step.path, b"", before)

    def _did(self, path: str, version: bytes, saw: tuple[tuple[str, bytes], ...]) -> None:
        now = self.context.now
        since = tuple(self.came_at.get(each, now) for each, _ in saw)
        self.operations.append(FileOperation(now, self.context.id, path, version, saw, since))
        if version:
            self.came_at[path] = now
        else:
            self.came_at.pop(path, None)

    def _copy(self, path: str) -> None:
        entry = self.tree.entry(path)
        if entry is not None:
            self.copied[path] = Seen(None if entry.dataless else self.tree.read(path), entry.mtime)

    def _read(self, path: str) -> bytes:
        entry = self.tree.entry(path)
        if entry is not None and entry.dataless:
            self.wanted(path)
        return self.tree.read(path)

    def files(self) -> dict[str, Seen]:
        """Return all files as a reader finds them now."""
        return {
            path: Seen(None if entry.dataless else self.tree.read(path), entry.mtime)
            for path, entry in self.tree.listing().items()
        }


@dataclass(frozen=True, kw_only=True)
class FileSyncSettings:
    """What all ways to keep files the same have: three times, a cloud and devices, and nobody who lies.

    Attributes
    ----------
    messages : tuple of types
        All messages of the engine, :class:`Part` included.
    cloud, device : type
        The classes of its nodes.
    believes_by : str
        How a node judges whether a link works; the study compares the two ways on a flapping link.
    """

    messages: ClassVar[tuple[type[Message], ...]]
    cloud: ClassVar[type[Wire]]
    device: ClassVar[type[Device]]
    believes_by: ClassVar[str] = "timeout"

    scan_rounds: float = setting(1.0, unit="rounds", low=0.01, says="Time between two scans of the tree")
    settle_rounds: float = setting(
        2.0, unit="rounds", low=0, says="Time without a further change after which a change is complete"
    )
    retry_rounds: float = setting(8.0, unit="rounds", low=0.1, says="Time after which an answer is late")

    def node(self, index: int, size: int) -> Node:
        """Return the cloud (0) or a device; raises BadValueError unless there are a cloud and a device."""
        if size < 2:
            raise BadValueError(
                "There is nothing to synchronise with.", given=size, allowed="a cloud and a device or more"
            )
        return (self.cloud if index == CLOUD else self.device)(self)

    def max_faults(self, size: int) -> int:
        """Return 0: a participant that lies is not foreseen."""
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return "": what it promises is judged by the oracles."""
        return ""
