"""Real runs: engines on real directories with real git, over real sockets."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.protocols.filesync.applications import GitCommit, Look, Remove, Save
from wavetank.protocols.filesync.bilateral import BilateralSync
from wavetank.protocols.filesync.causal import CausalSnapshotSync
from wavetank.protocols.filesync.live import real
from wavetank.protocols.filesync.live.directory import NOTICES, DirectoryTree
from wavetank.protocols.filesync.live.peers import Unison
from wavetank.protocols.filesync.live.real import OnDirectories, People, real_outcome, run_beside, run_real
from wavetank.protocols.filesync.simulated import network_of
from wavetank.protocols.filesync.timeline import TimelineSync
from wavetank.protocols.filesync.tree import PRIVATE
from wavetank.protocols.filesync.vectors import VersionVectorSync
from wavetank.protocols.filesync.workloads import Action, Scenario

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

WORK = Scenario(work="git", devices=2, rounds=160, pause_rounds=5, cuts=2, cut_rounds=30, look_rounds=10, skew_rounds=3)


@needs_git
@pytest.mark.parametrize("engine", [BilateralSync(), CausalSnapshotSync()], ids=["bilateral", "causal"])
def test_git_finds_nothing_missing_under_snapshots(engine: real.Engine) -> None:
    short = Scenario(work="git", devices=2, rounds=60, pause_rounds=6, cuts=1, cut_rounds=15, look_rounds=10)
    found = run_real(engine, short, 1, network_of(short, 1, delay_rounds=0.2), round_s=0.04, processes=1)
    assert found.commits > 3
    assert found.fsck_runs > 3
    assert (found.fsck_failures, found.unsound_at_end, found.lost_commits) == (0, 0, 0)
    assert found.messages


@needs_git
@pytest.mark.slow
@pytest.mark.parametrize("engine", [BilateralSync(), CausalSnapshotSync()], ids=["bilateral", "causal"])
def test_git_finds_nothing_missing_under_snapshots_in_processes_of_their_own(engine: real.Engine) -> None:
    found = run_real(engine, WORK, 2, network_of(WORK, 2, delay_rounds=0.2))
    assert (found.fsck_failures, found.unsound_at_end, found.lost_commits) == (0, 0, 0)


@needs_git
@pytest.mark.slow
@pytest.mark.parametrize("engine", [TimelineSync(), VersionVectorSync()], ids=["timeline", "vectors"])
def test_git_finds_objects_missing_when_files_travel_one_by_one(engine: real.Engine) -> None:
    found = run_real(engine, WORK, 1, network_of(WORK, 1, delay_rounds=0.2), processes=1)
    assert found.fsck_runs > 5
    assert found.fsck_failures > 0


@needs_git
def test_people_keep_account_of_what_they_did(tmp_path: Path) -> None:
    people = People(tmp_path)
    people.folder(1).mkdir()
    for command in (
        Save("notes/a", b"1"), Save("notes/a", b"2"), Remove("notes/a"), Remove("notes/none"),
        GitCommit("repo", "x.c", b"1"), GitCommit("repo", "x.c", b"2"), Look(),
    ):  # fmt: skip
        people.do(Action(0.0, 1, command))
    assert [bool(operation.version) for operation in people.operations] == [True, True, False]
    assert people.operations[1].saw == (("notes/a", people.operations[0].version),)
    assert people.looks == [True]
    assert len(people.commits) == 2
    outcome = real_outcome(people, 1, bytes_sent=0, messages=0, rest_s=0.0)
    assert (outcome.commits, outcome.lost_commits, outcome.unsound_at_end) == (2, 0, 0)
    repository = people.folder(1) / "repo"
    tip = real.git(repository, "rev-parse", "HEAD").stdout.decode().strip()
    (repository / ".git" / "objects" / tip[:2] / tip[2:]).unlink()
    people.do(Action(0.0, 1, Look()))
    assert people.looks == [True, False]
    damaged = real_outcome(people, 1, bytes_sent=0, messages=0, rest_s=0.0)
    assert (damaged.lost_commits, damaged.unsound_at_end) == (2, 1)
    people.do(Action(0.0, 1, GitCommit("repo", "x.c", b"3")))
    assert people.refused == 1


@pytest.mark.parametrize(
    ("sound_at", "moves", "sound", "count"), [(3, 9, True, 3), (3, 2, False, 2), (0, 99, False, 5)]
)
def test_a_repository_that_changed_under_git_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_at: int, moves: int, sound: bool, count: int
) -> None:
    # Git finds everything at its look number ``sound_at``; the repository changes during all looks before ``moves``.
    (tmp_path / ".git").mkdir()
    looks: list[bool] = []

    def looks_and_changes(repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
        looks.append(True)
        if len(looks) < moves:
            (repository / ".git" / f"new {len(looks)}").touch()
        return subprocess.CompletedProcess(words, 0 if len(looks) == sound_at else 2, b"", b"")

    monkeypatch.setattr(real, "git", looks_and_changes)
    assert (real.repository_is_sound(tmp_path), len(looks)) == (sound, count)


@needs_git
@pytest.mark.parametrize(
    "told_by", ["nobody", "notice", "copy of the branch", "copy of its log", "copy of the repository"]
)
def test_a_commit_is_lost_silently_unless_its_branch_was_named(tmp_path: Path, told_by: str) -> None:
    people = People(tmp_path)
    people.folder(1).mkdir()
    for content in (b"1", b"2"):
        people.do(Action(0.0, 1, GitCommit("repo", "x.c", content)))
    repository = people.folder(1) / "repo"
    # The other device's branch came over this one.
    real.git(repository, "reset", "--hard", "HEAD~1")
    private = people.folder(1) / PRIVATE
    private.mkdir()
    (private / NOTICES).write_text('{"path": "repo/.git/index", "says": "not about a branch"}\n')
    if told_by == "notice":
        (private / NOTICES).write_text('{"path": "repo/.git/refs/heads/main", "says": "left alone"}\n')
    elif told_by == "copy of the branch":
        (repository / ".git" / "packed-refs.sync-conflict-20260101-000000-ABCDEFG").touch()
    elif told_by == "copy of its log":
        (repository / ".git" / "logs" / "refs" / "heads" / "main.sync-conflict-20260101-000000-ABCDEFG").touch()
    elif told_by == "copy of the repository":
        shutil.copytree(repository, people.folder(1) / "repo (conflict of 2, 00000000)")
    found = real_outcome(people, 1, bytes_sent=0, messages=0, rest_s=0.0)
    assert (found.lost_commits, found.silent_commits) == (1, 1 if told_by == "nobody" else 0)


@needs_git
def test_what_differs_in_repositories_counts_as_difference(tmp_path: Path) -> None:
    people = People(tmp_path)
    people.folder(1).mkdir()
    people.do(Action(0.0, 1, GitCommit("repo", "x.c", b"1")))
    shutil.copytree(people.folder(1), people.folder(2))
    alike = real_outcome(people, 2, bytes_sent=0, messages=0, rest_s=0.0).damage
    assert (alike.divergence_bytes, alike.conflict_copies) == (0, 0)
    (people.folder(2) / "repo" / "x (conflict of 2, 00000000).c").write_bytes(b"four")
    (people.folder(2) / PRIVATE).mkdir()
    (people.folder(2) / PRIVATE / "engine's own").write_bytes(b"long and of no concern")
    apart = real_outcome(people, 2, bytes_sent=0, messages=0, rest_s=0.0).damage
    assert (apart.divergence_bytes, apart.conflict_copies) == (4, 1)


def test_a_peer_is_called_before_every_action_unless_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(work="documents", devices=2, rounds=60, cuts=1, cut_rounds=30, look_rounds=10)
    calls: list[str] = []

    class Peer:
        @contextlib.contextmanager
        def between(self, one: Path, other: Path) -> Iterator[Callable[[], None]]:
            yield lambda: calls.append("call")

    monkeypatch.setattr(People, "do", lambda self, action: calls.append("action"))
    run_beside(Peer(), scenario, 1)  # type: ignore[arg-type]
    (cut,) = scenario.partitions(1)
    expected: list[str] = []
    for action in real.real_actions(scenario, 1):
        expected += ["action"] if cut.start <= action.at < cut.stop else ["call", "action"]
    assert calls == [*expected, "call", "call"]
    assert 0 < expected.count("call") < expected.count("action")


def test_devices_get_their_directories_and_the_cloud_none(tmp_path: Path) -> None:
    (tmp_path / "device-1").mkdir()
    algorithm = OnDirectories(engine=BilateralSync(), root=str(tmp_path), offsets=(7.0,))
    device = algorithm.node(1, 2)
    assert isinstance(device.tree, DirectoryTree)  # type: ignore[attr-defined]
    assert device.tree.clock.offset == 7.0  # type: ignore[attr-defined]
    assert not hasattr(algorithm.node(0, 2), "tree")
    assert algorithm.max_faults(2) == 0
    names = [kind.__name__ for kind in algorithm.messages]
    assert len(set(names)) == len(names)


def test_peers_are_driven_on_two_directories() -> None:
    with pytest.raises(BadValueError, match="two directories"):
        run_beside(Unison(), Scenario(devices=3), 1)


def test_a_missing_git_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match="need git"):
        real.git(tmp_path, "status")
