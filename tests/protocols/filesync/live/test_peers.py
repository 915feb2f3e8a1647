"""Synchronisers of others, where they are installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from wavetank.errors import MissingExtraError, WavetankError
from wavetank.protocols.filesync.live import peers
from wavetank.protocols.filesync.live.directory import NOTICES
from wavetank.protocols.filesync.live.peers import Syncthing, Unison
from wavetank.protocols.filesync.tree import PRIVATE, is_conflict


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    return one, other


@pytest.mark.skipif(shutil.which("unison") is None, reason="unison is not installed")
def test_unison_brings_changes_over_and_leaves_conflicts_alone(folders: tuple[Path, Path]) -> None:
    one, other = folders
    with Unison().between(one, other) as synchronise:
        (one / "a").write_bytes(b"1")
        synchronise()
        assert (other / "a").read_bytes() == b"1"
        (one / "a").write_bytes(b"by one")
        (other / "a").write_bytes(b"by other")
        synchronise()
        assert (one / "a").read_bytes() == b"by one"
        assert (other / "a").read_bytes() == b"by other"
    told = [json.loads(line) for line in (one / PRIVATE / NOTICES).read_text().splitlines()]
    assert told == [{"path": "a", "says": "contents changed on both sides"}]
    assert not (other / PRIVATE).exists()


def test_a_unison_that_fails_or_takes_too_long_is_an_error(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "stand-in"
    monkeypatch.setattr(peers, "program", lambda name: str(stand_in))
    for script, says in (("echo no archive >&2; exit 3", "Unison failed"), ("exec sleep 5", "did not finish in time")):
        stand_in.write_text(f"#!/bin/sh\n{script}\n")
        stand_in.chmod(0o755)
        with Unison(timeout_s=1.0).between(*folders) as synchronise, pytest.raises(WavetankError, match=says):
            synchronise()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("syncthing") is None, reason="syncthing is not installed")
def test_syncthing_brings_changes_over_and_renames_the_loser(folders: tuple[Path, Path]) -> None:
    one, other = folders
    with Syncthing().between(one, other) as synchronise:
        (one / "a").write_bytes(b"1")
        synchronise()
        assert (other / "a").read_bytes() == b"1"
        (one / "a").write_bytes(b"by one")
        (other / "a").write_bytes(b"by other")
        synchronise()
        synchronise()
        files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
        assert {path.read_bytes() for path in files} == {b"by one", b"by other"}
        assert any(is_conflict(path.name) for path in files)


@pytest.mark.parametrize("peer", [Unison(), Syncthing()])
def test_a_program_that_is_not_installed_is_named(
    peer: Unison | Syncthing, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match="is not installed") as caught, peer.between(*folders):
        pass
    assert str(caught.value.hint).startswith("apt-get install ")
