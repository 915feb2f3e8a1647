"""Engines of single files: tables, feeds, uploads that must be what they say."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.protocols.filesync.applications import Put, Remove, SaveBundle
from wavetank.protocols.filesync.items import GONE, Body, Poll, Record, Upload, version_of
from wavetank.protocols.filesync.simulated import run_simulated
from wavetank.protocols.filesync.vectors import VectorCloud, VersionVectorSync
from wavetank.protocols.filesync.workloads import Scenario

BODY = (Body("", False, 1.0, b"1"),)


class Context:
    id = 0
    peers = (1, 2)
    now = 0.0

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.kept: dict[str, Any] = {}

    def send(self, to: int, message: Any) -> None:
        self.sent.append((to, message))

    def save(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def load(self, key: str, default: Any = None) -> Any:
        return self.kept.get(key, default)

    def record(self, metric: str, value: float = 1.0) -> None:
        pass


def cloud(context: Context | None = None) -> tuple[VectorCloud, Context]:
    made, context = VectorCloud(VersionVectorSync()), context or Context()
    made.context = context  # type: ignore[assignment]
    made.start()
    return made, context


def upload(
    item: str = "a", bodies: tuple[Body, ...] = BODY, version: bytes | None = None, mtime: float = 1.0
) -> Upload:
    version = version_of(bodies) if version is None else version
    return Upload(1, Record(item, version, mtime, 1, 0, ((1, 1),)), 0, bodies)


@pytest.mark.parametrize(
    "message",
    [
        upload("../a"), upload("/a"), upload(version=b"other"), upload(mtime=float("nan")),
        upload("a", (Body("../../b", False, 1.0, b""),)), Upload(1, Record("a", b"x", 1.0, 1), 0, ()),
    ],
)  # fmt: skip
def test_an_upload_that_is_not_what_it_says_or_leaves_the_tree_is_ignored(message: Upload) -> None:
    made, context = cloud()
    made.arrived(1, message)
    assert made.records == {}
    assert context.sent == []


def test_the_cloud_comes_back_with_what_it_took() -> None:
    made, context = cloud()
    made.arrived(1, upload())
    again, _ = cloud(context)
    assert again.records == made.records
    assert again.bodies == made.bodies
    assert again.serial == 1


def test_a_feed_comes_in_pages_in_the_order_of_changes() -> None:
    made, context = cloud()
    for number in range(200):
        made.arrived(1, upload(f"f{number}"))
    context.sent.clear()
    made.arrived(2, Poll(0))
    (_, first) = context.sent[-1]
    made.arrived(2, Poll(first.records[-1].serial))
    (_, second) = context.sent[-1]
    assert [len(first.records), len(second.records), first.last, second.last] == [128, 72, False, True]
    assert [record.serial for record in (*first.records, *second.records)] == list(range(1, 201))


def test_a_version_is_of_contents_and_not_of_times() -> None:
    assert version_of(()) == GONE
    assert version_of(BODY) == version_of((Body("", False, 9.0, b"1"),))
    assert version_of(BODY) != version_of((Body("", True, 1.0, b"1"),))


@pytest.mark.parametrize("name", ["timeline", "careful", "vectors"])
def test_files_packages_and_removals_reach_the_other_device_in_spite_of_loss(
    engines: Any, play: Any, name: str
) -> None:
    commands = [
        (1, 1, Put("a", b"1")), (1, 1, Put("b", b"2")), (2, 2, Put("c", b"3")),
        (3, 1, SaveBundle("l.bundle", (("p", b"1"), ("q", b"2")))),
        (60, 2, SaveBundle("l.bundle", (("p", b"9"), ("q", b"8")))), (60, 2, Remove("a")),
    ]  # fmt: skip
    found = play(engines[name], commands, drop=0.2, duplicate=0.1)
    contents = [{path: seen.content for path, seen in files.items()} for files in found.at_end.values()]
    assert contents[0] == contents[1]
    assert contents[0].keys() == {"b", "c", "l.bundle/p", "l.bundle/q", "l.bundle/manifest"}
    assert contents[0]["l.bundle/p"] == b"9"


def test_what_is_removed_while_its_upload_waits_for_an_answer_does_not_come_back(engines: Any, play: Any) -> None:
    # The answer to an upload is lost and the file goes again: the cloud must hear that, although nothing seems changed.
    for seed in range(12):
        commands = [(10, 1, Put("a", b"1")), (14, 1, Remove("a"))]
        found = play(engines["vectors"], commands, drop=0.4, seed=seed, until=200)
        assert found.at_end == {1: {}, 2: {}}
    moves = run_simulated(engines["vectors"], Scenario(work="moves"), 30, drop=0.01)
    assert moves.damage.resurrected == frozenset()
