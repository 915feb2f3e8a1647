from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.workloads import datasets

Call = Callable[..., Any]
NAMES = [entry.name for entry in datasets.entries()]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the data folder and the cache be empty."""
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "data"


def test_the_list_tells_what_each_set_is_and_whether_it_is_here(command: Call, elsewhere: Path) -> None:
    (elsewhere / NAMES[0]).mkdir(parents=True)
    done = command("data", "list", WAVETANK_DATA=str(elsewhere))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == NAMES
    assert f", in {elsewhere / NAMES[0]}, " in done.stdout
    assert done.stdout.count(", not on this machine\n") == len(NAMES) - 1
    assert max(len(line) for line in lines if "/" not in line) <= 80


def test_json_has_the_documented_keys(call: Call) -> None:
    rows = json.loads(call("data", "list", "--json").out)
    assert [row["name"] for row in rows] == NAMES
    assert {tuple(row) for row in rows} == {
        ("name", "about", "size_bytes", "files", "licence", "citation", "home", "place", "path", "missing")
    }
    assert {row["place"] for row in rows} == {"absent"}


def test_the_path_of_a_set_is_one_line(call: Call, elsewhere: Path) -> None:
    (elsewhere / NAMES[0]).mkdir(parents=True)
    assert call("data", "path", NAMES[0]) == (0, f"{elsewhere / NAMES[0]}\n", "")


@pytest.mark.parametrize("verb", ["path", "verify"])
def test_a_set_that_is_not_here_says_how_to_get_it(call: Call, verb: str) -> None:
    told = call("data", verb, NAMES[0])
    assert (told.code, told.out) == (3, "")
    assert told.err.startswith(f"The data set {NAMES[0]!r} is not on this machine.\n")
    assert f"\n  next: wavetank data fetch {NAMES[0]}" in told.err


@pytest.mark.parametrize("verb", ["path", "verify", "fetch"])
def test_a_wrong_set_comes_with_the_nearest(call: Call, verb: str) -> None:
    told = call("data", verb, NAMES[0][:-1])
    assert told.code == 3
    assert f"\n  nearest: {NAMES[0]}\n" in told.err


def test_fetching_tells_every_file_and_prints_the_folder(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, *, progress: datasets.Progress) -> Path:
        progress("a.csv", 1, 2)
        progress("b.csv", 2, 2)
        return Path("cache", name)

    monkeypatch.setattr(datasets, "fetch", fetch)
    assert call("data", "fetch", "x") == (0, "cache/x\n", "x: 1 of 2 files, a.csv\nx: 2 of 2 files, b.csv\n")


def test_a_sound_set_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "verify", lambda name: Path("data", name))
    told = call("data", "verify", NAMES[0])
    files = len(datasets.entry(NAMES[0]).files)
    many = "1 file is" if files == 1 else f"all {files} files are"
    assert told == (0, f"{NAMES[0]}: {many} as published, in data/{NAMES[0]}\n", "")
