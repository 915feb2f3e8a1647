"""The account of damage, on cases small enough to count by hand; and histories for the consistency checker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from wavetank.check.consistency import engine as consistency
from wavetank.protocols.filesync.applications import Files, Look, Move, Put, Seen
from wavetank.protocols.filesync.device import FileOperation, Notice, digest_of
from wavetank.protocols.filesync.oracles import (
    divergence_bytes,
    judge,
    lost_versions,
    restores,
    resurrected_paths,
)
from wavetank.protocols.filesync.simulated import run_simulated
from wavetank.protocols.filesync.workloads import Scenario
from wavetank.sim.history import History, Operation


def register_history(
    operations: Sequence[FileOperation], reads: Iterable[tuple[float, int, Files]], paths: Iterable[str]
) -> History:
    """Return what happened to some files as a history of registers, for a consistency checker.

    Parameters
    ----------
    operations : sequence of FileOperation
    reads : iterable of (float, int, mapping)
        Time, device and what a reader saw.
    paths : iterable of str
        Which files; each is a register whose values are the digests of its contents.
    """
    wanted = set(paths)
    rows = [
        (each.at, each.device, "write", each.path, each.version.hex())
        for each in operations
        if each.path in wanted and each.version
    ]
    for at, device, files in reads:
        for path in sorted(wanted & files.keys()):
            content = files[path].content
            if content is not None:
                rows.append((at, device, "read", path, digest_of(content).hex()))
    last: dict[int, float] = {}
    recorded: list[Operation] = []
    for when, device, action, path, value in sorted(rows, key=lambda row: row[0]):
        # A device does one thing at a time: what falls on one instant is put one after the other.
        at = max(when, last.get(device, 0.0))
        last[device] = at + 2e-6
        written = {"value": value} if action == "write" else {"result": value}
        recorded.append(
            Operation(process=f"device {device}", action=action, key=path, invoked=at, returned=at + 1e-6, **written)
        )
    return History(operations=tuple(sorted(recorded, key=lambda row: row.invoked)))


def version(text: str) -> bytes:
    return digest_of(text.encode())


def write(at: float, device: int, path: str, text: str, *saw: str) -> FileOperation:
    return FileOperation(at, device, path, version(text), tuple((path, version(each)) for each in saw))


def remove(at: float, device: int, path: str, saw: str) -> FileOperation:
    return FileOperation(at, device, path, b"", ((path, version(saw)),))


def files(**contents: str | None) -> dict[str, Seen]:
    return {path: Seen(None if text is None else text.encode(), 0.0) for path, text in contents.items()}


FORK = [write(1, 1, "a", "1"), write(2, 1, "a", "2", "1"), write(3, 2, "a", "3", "1")]


def test_what_something_visible_descends_from_is_not_lost() -> None:
    assert lost_versions(FORK[:2], {1: files(a="2")}) == frozenset()
    assert lost_versions(FORK, {1: files(a="3")}) == {("a", version("2"))}
    assert lost_versions(FORK, {1: files(a="3", **{"a (conflict of 1, 00000000)": "2"})}) == frozenset()
    assert lost_versions(FORK, {1: files(a="3"), 2: files(a="2")}) == frozenset()


def test_what_somebody_who_saw_it_removed_is_not_lost() -> None:
    assert lost_versions([*FORK[:2], remove(4, 2, "a", "2")], {1: {}}) == frozenset()
    assert lost_versions([*FORK, remove(4, 2, "a", "3")], {1: {}}) == {("a", version("2"))}


def test_what_is_in_the_cloud_alone_is_not_lost() -> None:
    assert lost_versions(FORK[:2], {1: files(a=None)}) == frozenset()


def test_a_loss_is_silent_unless_its_path_or_group_was_named() -> None:
    at_end = {1: files(a="3")}
    assert len(judge(FORK, [], at_end).silent) == 1
    told = judge(FORK, [Notice(1.0, "a", "something")], at_end)
    assert (len(told.lost), len(told.silent)) == (1, 0)
    inside = [FileOperation(1, 1, "r/.git/x", version("1")), FileOperation(2, 2, "r/.git/x", version("2"))]
    assert len(judge(inside, [Notice(1.0, "r", "something")], {1: files(**{"r/.git/x": "2"})}).silent) == 0


def test_a_removed_version_that_is_there_again_is_resurrected() -> None:
    operations = [*FORK[:2], remove(5, 2, "a", "2")]
    assert resurrected_paths(operations, {1: files(a="2")}) == {"a"}
    assert resurrected_paths(operations, {1: files(a="1")}) == {"a"}
    assert resurrected_paths(operations, {1: {}}) == frozenset()
    # Somebody wrote it again, or never knew of it.
    assert resurrected_paths([*operations, write(6, 1, "a", "2")], {1: files(a="2")}) == frozenset()
    assert resurrected_paths([*FORK, remove(5, 1, "a", "2")], {1: files(a="3")}) == frozenset()


def came(operation: FileOperation, *since: float) -> FileOperation:
    return operation._replace(since=since)


def test_who_removes_what_it_wrote_has_not_removed_what_another_device_wrote_alike() -> None:
    # Both devices put the same content under the same name, as when both move a file; one takes its own away again.
    one, other = write(1, 1, "a", "x"), write(2, 2, "a", "x")
    gone = remove(3, 2, "a", "x")
    assert resurrected_paths([one, other, came(gone, 2)], {1: files(a="x")}) == frozenset()
    # What came to the remover after both were written may be either of them: it is not called brought back.
    third = gone._replace(device=3)
    assert resurrected_paths([one, other, came(third, 2.5)], {1: files(a="x")}) == frozenset()
    # What came before the second was written is the first.
    assert resurrected_paths([one, other, came(third, 1.5)], {1: files(a="x")}) == frozenset()
    assert resurrected_paths([one, came(third, 1.5)], {1: files(a="x")}) == {"a"}
    # A second writing that knew of the first takes its place.
    after = [one, came(remove(1.2, 2, "a", "x"), 1.1), came(write(2, 2, "a", "x"), 2)]
    assert resurrected_paths([*after, came(third, 2.5)], {1: files(a="x")}) == {"a"}
    # What all that may have been seen descends from was seen for sure.
    start = write(0.5, 1, "a", "0")
    both = [start, came(write(1, 1, "a", "x", "0"), 0.5), came(write(2, 2, "a", "x", "0"), 0.7)]
    assert resurrected_paths([*both, came(third, 2.5)], {1: files(a="0")}) == {"a"}


def test_a_file_moved_away_and_back_and_removed_is_gone_for_good() -> None:
    def moved(at: float, path: str, to: str, since: float) -> list[FileOperation]:
        saw = ((path, version("x")),)
        return [FileOperation(at, 1, to, version("x"), saw, (since,)), FileOperation(at, 1, path, b"", saw, (since,))]

    there_and_back = [write(1, 1, "a", "x"), *moved(2, "a", "b", 1), *moved(3, "b", "a", 2)]
    late, early = came(remove(5, 2, "a", "x"), 4), came(remove(5, 2, "a", "x"), 1.5)
    assert resurrected_paths([*there_and_back, late], {1: files(a="x")}) == {"a"}
    # Who had only the first of the two did not know that it came back.
    assert resurrected_paths([*there_and_back, early], {1: files(a="x")}) == frozenset()
    # Operations of one instant count in the order in which they were done.
    at_once = [write(1, 1, "b", "x"), *moved(1, "b", "a", 1), *moved(1, "a", "b", 1), came(remove(2, 1, "b", "x"), 1)]
    assert resurrected_paths(at_once, {1: files(b="x")}) == {"b"}


def test_a_device_that_moves_a_file_and_takes_that_back_undoes_nobody_elses_move(engines: Any, play: Any) -> None:
    commands = [
        (1, 1, Put("in", b"x")),
        (30, 1, Move("in", "out")),
        (35, 2, Move("in", "out")),
        (80, 2, Move("out", "in")),
    ]
    found = play(engines["causal"], commands, cuts=[(20.0, 100.0, 2)])
    # Device 2 brings nothing new from its cut: what stands is the move of device 1.
    assert [list(seen) for seen in found.at_end.values()] == [["out"], ["out"]]
    assert found.damage.resurrected == frozenset()


@pytest.mark.parametrize("seed", [300, 1037])
def test_moves_of_one_file_on_several_devices_are_no_resurrection(engines: Any, seed: int) -> None:
    found = run_simulated(engines["bilateral"], Scenario(work="moves"), seed, drop=0.01)
    assert (found.damage.resurrected, found.damage.lost) == (frozenset(), frozenset())


def test_a_content_that_is_in_the_cloud_alone_is_not_called_brought_back() -> None:
    operations = [FileOperation(1, 1, "a", digest_of(b"")), FileOperation(2, 1, "a", b"", (("a", digest_of(b"")),))]
    assert resurrected_paths(operations, {1: files(a="")}) == {"a"}
    assert resurrected_paths(operations, {1: files(a=None)}) == frozenset()


def test_a_removal_that_is_shown_in_the_groups_copy_is_not_undone() -> None:
    operations = [write(1, 1, "r/.git/x", "1"), remove(2, 2, "r/.git/x", "1")]
    end = files(**{"r/.git/x": "1", "r/.git/y": "1"})
    assert resurrected_paths(operations, {1: end}) == {"r/.git/x"}
    end |= files(**{"r (conflict of 2, 00000000)/.git/y": "1"})
    assert resurrected_paths(operations, {1: end}) == frozenset()


def test_divergence_counts_the_largest_version_of_each_file_that_differs() -> None:
    at_end = {1: files(a="same", b="longer", c="gone"), 2: files(a="same", b="short")}
    assert divergence_bytes(at_end) == 6 + 4
    assert divergence_bytes({1: files(a=None), 2: files(a="same")}) == 0


def test_a_backup_restores_when_nothing_is_missing_or_torn() -> None:
    assert restores(files(a="1"))
    assert not restores(files(a=None))
    assert not restores(files(**{"l.bundle/p": "1"}))


def test_conflict_copies_are_counted_once_each() -> None:
    copy = {
        "r (conflict of 2, 00000000)/x": "1",
        "r (conflict of 2, 00000000)/y": "2",
        "a (conflict of 1, 00000000).t": "1",
    }
    assert judge([], [], {1: files(**copy), 2: files(**copy)}).conflict_copies == 2


def test_a_history_has_each_devices_operations_one_after_the_other() -> None:
    reads = [(2.0, 2, files(a="1", b="9")), (2.0, 2, files(a="1"))]
    history = register_history([*FORK, remove(4, 1, "a", "2")], reads, ["a"])
    assert [(each.process, each.action) for each in history.operations] == [
        ("device 1", "write"), ("device 1", "write"), ("device 2", "read"), ("device 2", "read"), ("device 2", "write"),
    ]  # fmt: skip
    assert history.operations[2].result == version("1").hex()
    ends = [each.returned for each in history.operations if each.process == "device 2"]
    assert ends == sorted(ends)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("name", "outcome"), [("timeline", "violated"), ("vectors", "holds"), ("causal", "holds"), ("bilateral", "holds")]
)
def test_with_skew_a_timeline_is_not_causal_and_snapshots_are(engines: Any, play: Any, name: str, outcome: str) -> None:
    # Device 2, whose clock is behind, sees what device 1 wrote and writes the next version.
    commands = [(10, 1, Put("a", b"first")), (28, 2, Look()), (30, 2, Put("a", b"second"))]
    commands += [(at, device, Look()) for at in (60, 90) for device in (1, 2)]
    found = play(engines[name], commands, offsets=(0.0, -300.0))
    history = register_history(found.operations, found.looks, ["a"])
    assert len(history.operations) == 7
    assert consistency.judge(history, "causal").outcome == outcome


@pytest.mark.parametrize("name", ["causal", "bilateral"])
def test_registers_of_a_whole_run_are_causal(engines: Any, name: str) -> None:
    scenario = Scenario(work="bundles", rounds=150, cuts=2, skew_rounds=20, look_rounds=30)
    found = run_simulated(engines[name], scenario, 2)
    for path in ("letter0.bundle/part0", "letter1.bundle/part0"):
        history = register_history(found.operations, found.looks, [path])
        assert len(history.operations) > 15
        assert consistency.judge(history, "causal").outcome == "holds"
