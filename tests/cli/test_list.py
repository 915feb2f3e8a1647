from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from wavetank import catalog
from wavetank.cli.list import AREAS


def test_systems_come_one_line_each_below_their_area(command: Callable[..., Any]) -> None:
    done = command("list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(names) == sorted(entry.name for entry in catalog.everything())
    toys = lines[lines.index("toys") :]
    assert toys[1].split(maxsplit=1) == [
        "toy-plain",
        "Leaves every draw as it is, which is what the other toys are measured against.",
    ]


def test_an_area_lists_its_own(call: Callable[..., Any]) -> None:
    told = call("list", "toys")
    names = [line.split()[0] for line in told.out.splitlines() if line.startswith("  ")]
    assert names == ["toy-plain", "toy-shifted", "toy-fragile", "toy-slow"]


def test_filters_narrow_the_list(call: Callable[..., Any]) -> None:
    def names(*arguments: str) -> list[str]:
        return [row["name"] for row in json.loads(call("list", "toys", "--json", *arguments).out)]

    assert names("--shape", "simulator") == ["toy-slow"]
    assert names("--role", "baseline") == ["toy-plain"]
    assert names("--find", "SHARE off") == ["toy-shifted"]
    assert names("--find", "shifted") == ["toy-shifted"]
    assert names("--find", "toys for tests", "--role", "rival") == ["toy-fragile"]
    assert names("--find", "nothing like it") == []


def test_nothing_that_matches_is_told(call: Callable[..., Any]) -> None:
    assert call("list", "--find", "nothing like it") == (0, "", "No system matches.\n")
    assert call("list", "--studies", "--find", "nothing like it") == (0, "", "No study matches.\n")


def test_studies_come_with_their_question(call: Callable[..., Any]) -> None:
    assert call("list", "toys", "--studies").out == (
        "toys\n  toy-noise   Which toy gives the smallest value?\n  toy-timing  Which toy adds numbers fastest?\n"
    )


def test_json_has_the_documented_keys(call: Callable[..., Any]) -> None:
    rows = json.loads(call("list", "toys", "--json").out)
    assert {tuple(row) for row in rows} == {("name", "area", "shape", "role", "does", "runs", "studies", "source")}
    rows = json.loads(call("list", "toys", "--studies", "--json").out)
    assert [tuple(row) for row in rows] == [("name", "area", "asks", "systems")] * 2
    assert rows[1]["systems"] == ["toy-plain", "toy-shifted"]


def test_an_area_that_is_to_come_says_so_and_points_on(call: Callable[..., Any]) -> None:
    filled = {entry.area for entry in catalog.everything()}
    for area in sorted(set(AREAS) - filled):
        told = call("list", area)
        assert told.code == 3
        assert told.err.startswith(f"The area {area!r} ({AREAS[area]})")
        assert f"  next: wavetank list {min(filled)}\n" in told.err


def test_a_wrong_area_comes_with_the_nearest(call: Callable[..., Any]) -> None:
    told = call("list", "serv")
    assert told.code == 3
    assert told.err.startswith("There is no area named 'serv'.\n  allowed: ")
    assert told.err.endswith("  nearest: serving\n  next: wavetank list\n")


def test_a_terminal_of_80_columns_is_enough(terminal: Callable[..., Any]) -> None:
    shown = terminal("list")
    assert shown.code == 0
    assert max(map(len, shown.text.splitlines())) <= 80
    assert "wavetank show NAME" in shown.text
