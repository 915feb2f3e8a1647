"""The folder of a run: whose it is, and that it is one run's at a time."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from small_protocols import Flood
from socket_protocols import DurableCounter, PingPong

from wavetank.errors import BadFileError, BadValueError
from wavetank.live import folder as folder_module
from wavetank.live.folder import LOCK, MANIFEST, RunFolder, Scratch, manifest_of, sweep


def wanted(algorithm: object = None, *, nodes: int = 3, processes: int = 3) -> object:
    return manifest_of(algorithm or PingPong(), "0123456789abcdef", nodes, processes)


def test_a_folder_is_claimed_once_and_resumed_by_the_same_nodes_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.claim(wanted(), resume=False).runs == 1
    with pytest.raises(BadValueError, match="earlier run saved"):
        folder.claim(wanted(), resume=False)
    later = manifest_of(PingPong(), "f" * 16, 3, 3)
    # A launch that failed before its nodes listened was no run.
    assert folder.claim(later, resume=True).runs == 1
    folder.begun(folder.claim(later, resume=True))
    assert folder.claim(later, resume=True).runs == 2
    found = folder.claim(later, resume=True)
    # Joined hosts keep what nodes save under the name of the first run.
    assert (found.runs, found.run) == (2, "0123456789abcdef")
    for other, what in (
        (wanted(Flood()), "protocol"),
        (wanted(PingPong(balls=2)), "parameters"),
        (wanted(nodes=4), "nodes"),
        (wanted(processes=1), "processes"),
    ):
        with pytest.raises(BadValueError, match=f"other {what}"):
            folder.claim(other, resume=True)
    folder.close()


def test_a_run_whose_nodes_were_on_hosts_goes_on_with_these_hosts_alone(tmp_path: Path) -> None:
    """Children beside the launcher, or hosts in another order, would begin without what their nodes promised."""
    folder = RunFolder(tmp_path)
    first = manifest_of(PingPong(), "0" * 16, 2, 2, ("alpha", "beta"))
    folder.begun(folder.claim(first, resume=False))
    assert folder.claim(first, resume=True).runs == 2
    for hosts in ((), ("beta", "alpha"), ("alpha", "gamma")):
        with pytest.raises(BadValueError, match="other hosts") as caught:
            folder.claim(manifest_of(PingPong(), "0" * 16, 2, 2, hosts), resume=True)
        assert caught.value.allowed == "alpha, beta"
        assert caught.value.given == (", ".join(hosts) or "(none)")
    folder.close()


def test_a_manifest_without_hosts_is_that_of_a_run_on_this_machine(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begun(folder.claim(wanted(), resume=False))
    path = tmp_path / MANIFEST
    fields = json.loads(path.read_text())
    del fields["hosts"]
    path.write_text(json.dumps(fields))
    assert folder.claim(wanted(), resume=True).runs == 2
    folder.close()


@pytest.mark.parametrize("name", ["node-1.state", "node-1.key", "requests.jsonl"])
def test_a_resumed_run_needs_every_file_of_the_earlier_one(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path)
    manifest = folder.claim(wanted(), resume=False)
    for each in ("node-0.state", "node-1.state", "node-1.key", "requests.jsonl"):
        (tmp_path / each).touch()
    folder.begun(manifest)
    (tmp_path / name).unlink()
    with pytest.raises(BadFileError, match="lacks files") as caught:
        folder.claim(wanted(), resume=True)
    assert caught.value.given == name
    (tmp_path / name).touch()
    assert folder.claim(wanted(), resume=True).runs == 2
    folder.close()


def test_other_parameters_are_named_without_those_that_are_equal(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim(wanted(), resume=False)
    with pytest.raises(BadValueError, match="other parameters") as caught:
        folder.claim(wanted(PingPong(balls=2)), resume=True)
    assert (caught.value.given, caught.value.allowed) == ("balls=2", "balls=1")
    folder.close()


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(BadFileError, match=f"in use by (pid {os.getpid()}|another process)"):
        RunFolder(tmp_path)
    folder.close()
    folder.close()
    RunFolder(tmp_path).close()


@pytest.mark.parametrize("name", ["node-0.state", "node-12.key", "requests.jsonl"])
def test_a_folder_with_files_of_nodes_is_used_even_without_a_manifest(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    folder = RunFolder(tmp_path)
    with pytest.raises(BadValueError, match="earlier run saved"):
        folder.claim(wanted(), resume=False)
    with pytest.raises(BadFileError, match="does not say which run"):
        folder.claim(wanted(), resume=True)
    folder.close()


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(BadValueError, match="nothing to resume"):
        folder.claim(wanted(), resume=True)
    folder.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 3}', "\xff", "[" * 100_000])
def test_a_damaged_manifest_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    folder = RunFolder(tmp_path)
    for resume in (False, True):
        with pytest.raises(BadFileError, match="damaged"):
            folder.claim(wanted(), resume=resume)
    folder.close()


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim(wanted(), resume=False)
    found = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**found, "version": 99}))
    with pytest.raises(BadFileError, match="version that this Wavetank does not read") as caught:
        folder.claim(wanted(), resume=True)
    assert caught.value.given == "wavetank-cluster 99"
    folder.close()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadFileError, match="cannot be used") as caught:
        RunFolder(tmp_path / "file" / "run")
    assert caught.value.given == str(tmp_path / "file" / "run")


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadFileError):
        RunFolder(tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()


def test_scratch_folders_are_their_owners_alone_and_the_abandoned_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / "wavetank-x-abandoned"
    RunFolder(abandoned).close()
    (abandoned / "node-0.key").write_bytes(b"k" * 32)
    (tmp_path / "wavetank-x-no-lock").mkdir()
    (tmp_path / "wavetank-y-other").mkdir()
    (tmp_path / "wavetank-x-link").symlink_to(tmp_path / "wavetank-y-other")
    with Scratch("wavetank-x-") as one:
        assert stat.S_IMODE(one.stat().st_mode) == 0o700
        assert not abandoned.exists()
        with Scratch("wavetank-x-") as two:
            assert one.exists()
            assert sweep("wavetank-x-") == []
        assert not two.exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "wavetank-x-link", "wavetank-x-no-lock", "wavetank-y-other",
    ]  # fmt: skip


def test_a_scratch_folder_is_not_swept_before_its_owner_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two launchers that start at once: one looks for abandoned folders while the other is making its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    holding = folder_module.lock
    swept: list[Path] = []

    def slow(*given: Any) -> None:
        monkeypatch.setattr(folder_module, "lock", holding)
        swept.extend(sweep("mine-"))
        holding(*given)

    monkeypatch.setattr(folder_module, "lock", slow)
    with Scratch("mine-") as path:
        assert swept == []
        assert (path / LOCK).is_file()
        assert sweep("mine-") == []
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_names_class_and_parameters() -> None:
    found = manifest_of(DurableCounter(), "a" * 16, 2, 1)
    assert found.protocol == "socket_protocols:DurableCounter"
    assert manifest_of(PingPong(hops=3), "a" * 16, 2, 1).parameters == {"balls": "1", "hops": "3"}
