"""What all devices share: parts of messages, settling, programs one after the other, what the user is told."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.filesync.applications import Backup, GitCommit, Look, Put, Remove, Save
from wavetank.protocols.filesync.causal import CausalSnapshotSync, Propose
from wavetank.protocols.filesync.device import PART_BYTES, Device, Part, Wire, digest_of
from wavetank.protocols.filesync.items import item_of
from wavetank.protocols.filesync.tree import Entry, MemoryTree, TreeError
from wavetank.protocols.filesync.vectors import VersionVectorSync
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request


class Ears(Wire):
    def __init__(self) -> None:
        super().__init__(CausalSnapshotSync())
        self.heard: list[Any] = []

    def arrived(self, sender: int, message: Any) -> None:
        self.heard.append((sender, message))


class Mouth:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.recorded: list[float] = []
        self.now = 0.0

    def send(self, to: int, message: Any) -> None:
        self.sent.append(message)

    def record(self, metric: str, value: float = 1.0) -> None:
        self.recorded.append(value)


def test_a_long_message_travels_in_parts_and_arrives_whole() -> None:
    ears, mouth = Ears(), Mouth()
    ears.context = mouth  # type: ignore[assignment]
    message = Propose(b"", b"x", (bytes(3 * PART_BYTES),))
    ears.transmit(1, message)
    assert len(mouth.sent) == 4
    assert all(len(part.data) <= PART_BYTES for part in mouth.sent)
    for part in reversed(mouth.sent):
        ears.receive(1, part)
    assert ears.heard == [(1, message)]
    assert mouth.recorded[0] > 3 * PART_BYTES


@pytest.mark.parametrize(
    "part", [Part(1, 5, 2, b""), Part(1, -1, 2, b""), Part(1, 0, 10**9, b""), Part(1, 0, 1, b"garbage")]
)
def test_parts_that_make_no_message_are_ignored(part: Part) -> None:
    ears = Ears()
    ears.receive(1, part)
    ears.receive(1, "no message at all")
    assert ears.heard == []


def test_parts_that_never_become_whole_are_forgotten() -> None:
    ears = Ears()
    for stream in range(100):
        ears.receive(1, Part(stream, 0, 2, b"x"))
    assert len(ears.arriving) <= 8


def run(requests: list[Request], tree: MemoryTree | None = None) -> Any:
    def equip(nodes: Any) -> None:
        if tree is not None:
            nodes[1].tree = tree

    return simulate(
        VersionVectorSync(), size=2, until=60, life="events", requests=requests, setup=equip,
    )  # fmt: skip


def test_programs_run_one_after_the_other_and_answer() -> None:
    requests = [
        Request(at=1.0, node=1, command=Save("a", b"1")),
        Request(at=1.0, node=1, command=Remove("a")),
        Request(at=1.0, node=1, command=Put("b", b"2")),
        Request(at=1.1, node=1, command=Look()),
        Request(at=1.1, node=1, command=Backup()),
    ]
    found = run(requests)
    assert found.replies[0].result == found.replies[1].result == found.replies[2].result == "done"
    assert {path: seen.content for path, seen in found.replies[3].result.items()} == {"b": b"2"}
    assert found.replies[4].result == found.replies[3].result
    operations = found.nodes[1].operations
    assert [(operation.path, bool(operation.version)) for operation in operations][-1] == ("b", True)
    assert operations[2].saw == (("a~".replace("a~", operations[0].path), digest_of(b"1")),)


def test_a_program_that_stops_says_why_and_the_next_one_runs() -> None:
    tree = MemoryTree(capacity_bytes=4)
    found = run([
        Request(at=1.0, node=1, command=Put("a", b"too much")),
        Request(at=1.0, node=1, command=Put("b", b"fits")),
        Request(at=2.0, node=1, command=GitCommit("r", "x", b"never fits")),
    ], tree)  # fmt: skip
    assert found.replies[0].result == "The device is full."
    assert found.replies[1].result == "done"
    assert found.total("refused") == 2
    assert tree.read("b") == b"fits"


class Unplugged(MemoryTree):
    """A tree that goes away."""

    gone = False

    def listing(self) -> dict[str, Entry]:
        if self.gone:
            raise TreeError("The directory is gone, or another one is in its place.")
        return super().listing()


@pytest.mark.parametrize("engine", [VersionVectorSync(), CausalSnapshotSync()])
def test_a_directory_that_is_gone_is_not_one_that_was_emptied(engine: Any) -> None:
    tree = Unplugged()

    def equip(nodes: Any) -> None:
        nodes[1].tree = tree

    def unplug(run: Any) -> bool:
        if not tree.gone and "a" in run.nodes[2].tree.listing():
            tree.gone = True
            tree.revision += 1
        return False

    found = simulate(
        engine, size=3, until=80, life="events", setup=equip, stop=unplug,
        requests=[Request(at=1.0, node=1, command=Put("a", b"1"))],
    )  # fmt: skip
    assert tree.gone
    assert found.nodes[2].tree.listing().keys() == {"a"}
    assert [notice.says for notice in found.nodes[1].notices] == [
        "The directory is gone, or another one is in its place."
    ]


def test_a_cloud_alone_is_refused_and_packages_are_items() -> None:
    with pytest.raises(BadValueError, match="nothing to synchronise with"):
        VersionVectorSync().node(0, 1)
    assert item_of("a/l.bundle/p") == "a/l.bundle"
    assert item_of("a/p") == "a/p"
    assert issubclass(type(VersionVectorSync().node(1, 2)), Device)
