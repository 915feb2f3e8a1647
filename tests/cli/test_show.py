from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from wavetank.ledger import catalog


def test_a_system_is_told_whole(command: Callable[..., Any]) -> None:
    done = command("show", "toy-shifted", "--full")
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "toy-shifted: a system of the area toys (policy)\n",
        "\nIdea\n  Four ways to change a random draw, none of them clever.\n",
        "\nSource\n  Toys for tests, 2026, arXiv 0000.00000\n  https://arxiv.org/abs/0000.00000\n",
        "\nHow it runs here\n  simulated: the system's own code decides, while time passes in an event\n"
        "    simulator\n",
        "\nParameters\n  share = 0.5 [0 to 1]\n      the share that is taken off\n  label = toy\n"
        "      A word without a meaning, told over two lines.\n  pause_s = none [0 to 60 s]\n",
        "\n  change one with --set toy-shifted.share=VALUE\n",
        "\nDiffers from the source\n  1. The share is a parameter; the source fixes it at one half.\n",
        "\nClaims\n  not run           halves the value\n",
        "\nStudies\n  toy-noise: Which toy gives the smallest value?\n",
        "systems.py\n  wavetank_toys.systems.Shifted\n",
        "\nLaunch\n  Not in this version",
        "\nwavetank compare toy-noise\n",
    ):
        assert part in done.stdout


def test_a_study_is_told_whole(command: Callable[..., Any]) -> None:
    done = command("show", "toy-noise", "--full")
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "toy-noise: a study of the area toys\nWhich toy gives the smallest value?\n"
        "\nEvery seed draws once; all toys change the same draw.\n",
        "\nSettings\n  offset_s = 0.1 s [0 to 10 s]\n      added to every draw\n",
        "  cap = auto [auto or 0 to 100 s]\n",
        '  remark = ""\n',
        "\nSystems\n  toy-plain (baseline), toy-shifted\n  also, with --systems: toy-fragile, toy-slow\n",
        "\nMetrics\n  value_s (s, lower is better, simulated)\n      the draw after the toy changed it\n",
        "\nCharts in the report\n  The value of every toy: shifted is half of plain\n",
        "\nwavetank compare toy-noise\n",
    ):
        assert part in done.stdout


def test_the_catalogs_own_parameters_are_the_defaults(call: Callable[..., Any]) -> None:
    assert "  every = 3 [1 to 100]\n" in call("show", "toy-fragile", "--full").out


def test_a_system_without_parameters_says_so(call: Callable[..., Any]) -> None:
    assert "\nParameters\n  none\n" in call("show", "toy-plain", "--full").out


def test_json_of_a_system_has_the_documented_keys(call: Callable[..., Any]) -> None:
    facts = json.loads(call("show", "toy-shifted", "--json").out)
    assert list(facts) == [
        "name",
        "area",
        "object",
        "shape",
        "role",
        "does",
        "source",
        "runs",
        "studies",
        "differs",
        "launch",
        "idea",
        "parameters",
        "claims",
        "file",
    ]
    assert facts["parameters"][2] == {
        "name": "pause_s",
        "kind": "float | None",
        "default": None,
        "required": False,
        "unit": "s",
        "says": "a pause nobody takes",
        "choices": [],
        "low": 0,
        "high": 60,
    }
    assert [claim["verdict"] for claim in facts["claims"]] == ["not run"] * 3


def test_json_of_a_study_has_the_documented_keys(call: Callable[..., Any]) -> None:
    facts = json.loads(call("show", "toy-noise", "--json").out)
    assert list(facts) == [
        "name",
        "area",
        "object",
        "asks",
        "setup",
        "plain_run",
        "systems",
        "baseline",
        "seeds",
        "settings",
        "metrics",
        "charts",
        "file",
    ]
    assert facts["systems"] == ["toy-plain", "toy-shifted", "toy-fragile", "toy-slow"]
    assert facts["metrics"][0] == {
        "name": "value_s",
        "unit": "s",
        "better": "lower",
        "kind": "simulated",
        "of": "the draw after the toy changed it",
    }


def test_a_wrong_name_comes_with_the_nearest(call: Callable[..., Any]) -> None:
    told = call("show", "toy-shift")
    assert (told.code, told.out) == (3, "")
    assert told.err.startswith("There is no system, study or paper named 'toy-shift'.\n")
    assert told.err.endswith("  nearest: toy-shifted\n  next: wavetank list\n")


@pytest.mark.parametrize("name", [*catalog.everything().systems, *catalog.everything().studies])
def test_everything_can_be_shown_within_80_columns(call: Callable[..., Any], name: str) -> None:
    told = call("show", name, "--full")
    assert (told.code, told.err) == (0, "")
    # Addresses, paths and dotted names stay whole.
    assert [line for line in told.out.splitlines() if len(line) > 80 and " " in line.strip()] == []
    json.loads(call("show", name, "--json").out)


@pytest.mark.parametrize(
    "name", [*catalog.everything().systems, *catalog.everything().studies, *catalog.everything().papers]
)
def test_what_one_decides_by_fits_a_screen(call: Callable[..., Any], name: str) -> None:
    shown = call("show", name)
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert len(lines) <= 45
    # Commands are for copying: never broken.
    assert [line for line in lines if len(line) > 80 and " wavetank " not in line and "http" not in line] == []
    assert lines[-1].endswith(f"wavetank show {name} --full")


def test_the_short_page_of_a_system_says_what_to_do_next(call: Callable[..., Any]) -> None:
    shown = call("show", "balance-route").out
    for part in (
        "balance-route: a system of serving/routing (policy)\n",
        "\nsource       Bu, Lyu",
        "\nruns         executed, simulated, live\n",
        "\nnext         wavetank compare llm-routing --systems balance-route,vllm-default\n",
        "wavetank launch router --policy balance-route ",
    ):
        assert part in shown
    assert "Another mechanism than the paper's" not in shown


def test_the_short_page_of_a_study_says_what_its_kept_run_says(call: Callable[..., Any]) -> None:
    shown = call("show", "toy-noise").out
    assert "\nso far       no kept run\n" in shown
    assert "\nsettings     offset_s=0.1, " in shown
    shown = call("show", "session-race").out
    assert "\nso far       mixed-choice has " in shown
    assert "Kept run: " in shown
