from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from wavetank.cli.list import AREAS
from wavetank.ledger import catalog


def test_the_papers_systems_come_one_line_each_below_their_problem(command: Callable[..., Any]) -> None:
    done = command("list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(names) == sorted(entry.name for entry in catalog.everything() if entry.role == "system")
    toys = lines[lines.index("toys") :]
    assert toys[1].split(maxsplit=1)[0] == "toy-shifted"
    assert lines.index(" routing") < [line.split()[0] for line in lines if line.strip()].index("balance-route") + 9
    others = len(catalog.everything().systems) - len(names)
    assert lines[-1] == f"wavetank show NAME  ({others} rivals, baselines and others with -v)"


def test_everything_is_listed_on_request(call: Callable[..., Any]) -> None:
    lines = call("list", "-v").out.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(names) == sorted(entry.name for entry in catalog.everything())


def test_an_area_or_a_problem_lists_its_own(call: Callable[..., Any]) -> None:
    def names(*arguments: str) -> list[str]:
        return [line.split()[0] for line in call("list", *arguments).out.splitlines() if line.startswith("  ")]

    assert names("toys") == ["toy-shifted"]
    assert names("toys", "--verbose") == ["toy-plain", "toy-shifted", "toy-fragile", "toy-slow"]
    assert names("serving/routing") == ["balance-route-0", "balance-route", "balance-route-logistic"]
    # Where no paper's system is, the others are shown at once.
    assert "raft" in names("protocols/consensus")


def test_words_search_studies_systems_and_papers(call: Callable[..., Any]) -> None:
    found = call("list", "tail latency")
    assert (found.code, found.err) == (0, "")
    assert re.match(r"Studies\n  llm-routing +Which router wastes", found.out)
    systems = found.out.partition("\n\nSystems\n")[2]
    assert re.search(r"^  balance-route +Places", systems, re.MULTILINE)
    assert len(systems.splitlines()) < 10
    assert call("list", "tail", "latency").out == found.out
    assert "raft" in call("list", "protocols", "raft").out
    assert "raft" not in call("list", "serving", "raft").out


@pytest.mark.parametrize("words", ["imbalance", "load balancer", "gateway", "MoE", "retry", "GPU idle", "wrong pod"])
def test_a_users_words_find_systems(call: Callable[..., Any], words: str) -> None:
    assert "Systems\n" in call("list", words).out


def test_words_that_find_nothing_come_with_the_nearest_problem(call: Callable[..., Any]) -> None:
    for asked in ("xyzzy", "?!", "the"):
        found = call("list", asked)
        assert (found.code, found.out) == (3, "")
        assert found.err.startswith(f"Nothing in the catalog matches these words.\n  given: {asked}\n  ")
        assert "nearest" not in found.err
        assert "next: wavetank list" in found.err
    assert call("list", "").err.startswith("Nothing was asked for.\n")
    assert call("list", "  ").code == 3


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
    assert {tuple(row) for row in rows} == {
        ("name", "area", "shape", "role", "problem", "paper", "does", "runs", "studies", "source")
    }
    rows = json.loads(call("list", "toys", "--studies", "--json").out)
    assert [tuple(row) for row in rows] == [("name", "area", "asks", "systems")] * 2
    assert rows[1]["systems"] == ["toy-plain", "toy-shifted", "toy-fragile", "toy-slow"]


def test_an_area_that_is_to_come_says_so_and_points_on(call: Callable[..., Any]) -> None:
    filled = {entry.area for entry in catalog.everything()}
    for area in sorted(set(AREAS) - filled):
        told = call("list", area)
        assert told.code == 3
        assert told.err.startswith(f"The area {area!r} ({AREAS[area]})")
        assert f"  next: wavetank list {min(filled)}\n" in told.err


def test_a_wrong_area_is_searched_for(call: Callable[..., Any]) -> None:
    assert "serving-fidelity" in call("list", "serv").out
    found = call("list", "kernelz")
    assert "kernels" in found.err or found.out


def test_a_terminal_of_80_columns_is_enough(terminal: Callable[..., Any]) -> None:
    for arguments in (["list"], ["list", "-v"], ["list", "load balancer"], ["list", "--studies"]):
        shown = terminal(*arguments)
        assert shown.code == 0
        assert max(map(len, shown.text.splitlines())) <= 80
        assert "wavetank " in shown.text.splitlines()[-1]
    # One line each: what does not fit is cut.
    assert "…" in terminal("list").text
