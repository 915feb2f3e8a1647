"""Real runs: engines on real directories with real git, over real sockets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.protocols.filesync.applications import GitCommit, Look, Remove, Save
from wavetank.protocols.filesync.bilateral import BilateralSync
from wavetank.protocols.filesync.causal import CausalSnapshotSync
from wavetank.protocols.filesync.live import real
from wavetank.protocols.filesync.live.directory import DirectoryTree
from wavetank.protocols.filesync.live.peers import Unison
from wavetank.protocols.filesync.live.real import OnDirectories, People, Scenario, real_outcome, run_beside, run_real
from wavetank.protocols.filesync.simulated import network_of
from wavetank.protocols.filesync.timeline import TimelineSync
from wavetank.protocols.filesync.vectors import VersionVectorSync
from wavetank.protocols.filesync.workloads import Action

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
    assert [bool(deed.version) for deed in people.deeds] == [True, True, False]
    assert people.deeds[1].saw == (("notes/a", people.deeds[0].version),)
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


def test_devices_get_their_directories_and_the_cloud_none(tmp_path: Path) -> None:
    (tmp_path / "device-1").mkdir()
    algorithm = OnDirectories(engine=BilateralSync(), root=str(tmp_path), offsets=(7.0,))
    device = algorithm.node(1, 2)
    assert isinstance(device.tree, DirectoryTree)  # type: ignore[attr-defined]
    assert device.tree.clock.offset == 7.0  # type: ignore[attr-defined]
    assert not hasattr(algorithm.node(0, 2), "tree")
    assert algorithm.bears(2) == 0
    names = [kind.__name__ for kind in algorithm.messages]
    assert len(set(names)) == len(names)


def test_peers_are_driven_on_two_directories() -> None:
    with pytest.raises(BadValueError, match="two directories"):
        run_beside(Unison(), Scenario(devices=3), 1)


def test_a_missing_git_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match="need git"):
        real.git(tmp_path, "status")
