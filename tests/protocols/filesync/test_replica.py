"""Devices with snapshots: closed ones out, whole ones in, nobody's work in between touched."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.protocols.filesync.applications import Backup, Build, GitCommit, Put, Remove, SaveBundle
from wavetank.protocols.filesync.causal import CausalSnapshotSync
from wavetank.protocols.filesync.simulated import run_simulated
from wavetank.protocols.filesync.workloads import Scenario

SNAPSHOTS = ["causal", "bilateral"]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_group_in_use_is_neither_taken_nor_touched(engines: Any, play: Any, name: str) -> None:
    # Device 1 commits every round for long; whatever others see is sound all the same.
    commands = [(float(at), 1, GitCommit("repo", f"{at}.c", b"%d" % at)) for at in range(1, 90)]
    commands += [(95.0, 2, Put("elsewhere", b"1"))]
    found = play(engines[name], commands)
    assert found.damage.torn_at_end == ()
    assert found.at_end[2].keys() == found.at_end[1].keys()
    assert any("in use all the time" in notice.says for notice in found.notices)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_groups_keep_the_order_of_their_times_whatever_the_clocks(engines: Any, play: Any, name: str) -> None:
    commands = [(5, 1, Build("app", (("a.c", b"1"),))), (60, 2, Build("app", (("a.c", b"2"),)))]
    found = play(engines[name], commands, offsets=(0.0, -500.0))
    assert found.damage.torn_at_end == ()
    assert found.damage.conflict_copies == 0


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_full_device_says_so_keeps_its_own_and_stays_whole(engines: Any, play: Any, name: str) -> None:
    commands = [(1, 1, SaveBundle("l.bundle", (("p", bytes(3000)), ("q", bytes(3000)))))]
    found = play(engines[name], [(1, 2, Put("mine", bytes(500))), *commands], disk_bytes=6500)
    assert found.at_end[2].keys() == {"mine"}
    assert any("full" in notice.says for notice in found.notices)
    assert found.damage.lost == frozenset()


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_backups_of_snapshots_restore(engines: Any, name: str) -> None:
    found = run_simulated(engines[name], Scenario(work="backup", rounds=300, cuts=3), 5, drop=0.05)
    assert found.damage.failed_restores == 0
    assert found.damage.backups > 0


def test_a_file_always_in_use_is_taken_after_the_patience(play: Any) -> None:
    commands = [(0.5 * number, 1, Put("log", b"%d" % number)) for number in range(1, 150)]
    found = play(CausalSnapshotSync(patience_rounds=10), [*commands, (74, 2, Backup())])
    assert found.looks == ()
    assert found.at_end[2]["log"].content == b"149"
    impatient = play(CausalSnapshotSync(patience_rounds=10), commands, until=60)
    assert "log" in impatient.at_end[2]
    patient = play(CausalSnapshotSync(patience_rounds=1000), commands, until=60)
    assert "log" not in patient.at_end[2]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_repository_in_which_git_is_at_work_is_left_alone(engines: Any, play: Any, name: str) -> None:
    commands = [
        (1, 1, GitCommit("repo", "a.c", b"1")), (40, 2, Put("repo/.git/gc.pid", b"")),
        (41, 1, GitCommit("repo", "a.c", b"2")),
    ]  # fmt: skip
    locked = play(engines[name], commands, until=90)
    assert locked.at_end[2]["repo/a.c"].content == b"1"
    assert "repo/.git/gc.pid" not in locked.at_end[1]
    free = play(engines[name], [*commands, (90, 2, Remove("repo/.git/gc.pid"))], until=200)
    assert free.at_end[2]["repo/a.c"].content == b"2"
