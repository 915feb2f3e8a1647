"""Completion as shells ask for it: by environment variables, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from wavetank import exits
from wavetank.cli.completion import SHELLS, settings_named
from wavetank.ledger import catalog
from wavetank.ledger.catalog import StudyEntry


@pytest.fixture
def completed(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Return what bash would offer for the last word of a line."""

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("_WAVETANK_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        found = call()
        assert (found.code, found.err) == (0, "")
        return [item.partition(",")[2] for item in found.out.splitlines() if item]

    return ask


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_every_shell_is_printed(call, monkeypatch, shell):
    monkeypatch.setenv("_WAVETANK_COMPLETE", f"{shell}_source")
    found = call()
    assert (found.code, found.err) == (0, "")
    assert f"_WAVETANK_COMPLETE={shell}_complete" in found.out
    assert "Usage:" not in found.out


def test_the_script_is_one_that_bash_can_read(command):
    script = command(_WAVETANK_COMPLETE="bash_source").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False, capture_output=True).returncode == 0


def test_another_instruction_is_refused_with_the_known_ones(call, monkeypatch):
    monkeypatch.setenv("_WAVETANK_COMPLETE", "bash_sauce")
    found = call()
    assert (found.code, found.out) == (exits.USAGE, "")
    assert "nearest: bash_source" in found.err


def test_an_empty_variable_changes_nothing(call, monkeypatch):
    monkeypatch.setenv("_WAVETANK_COMPLETE", "")
    assert call("--version").out.startswith("wavetank ")


def test_verbs_studies_systems_papers_and_settings_are_completed(completed):
    assert {"advise", "list", "compare", "generate"} <= set(completed("wavetank "))
    assert completed("wavetank comp") == ["compare"]
    assert completed("wavetank compare llm") == ["llm-routing"]
    assert completed("wavetank compare llm-routing --set wor") == ["workers="]
    assert "trace=" in completed("wavetank compare llm-routing --set ")
    assert completed("wavetank compare toy-noise --set off") == ["offset_s="]
    assert completed("wavetank compare --set wor") == []
    assert completed("wavetank advise --set layo") == ["layout="]
    assert {"balance-route", "byzantine-digraphs"} <= set(completed("wavetank show b"))
    assert completed("wavetank claims icl") == ["icloud"]
    assert completed("wavetank list serving/ro") == ["serving/routing"]
    assert completed("wavetank compare llm-routing --systems round-robin,pow") == ["round-robin,power-of-two"]
    assert completed("wavetank compare llm-routing --systems round-robin,round") == []
    assert "--budget" in completed("wavetank advise --b")
    assert completed("wavetank nosuchverb x") == []


def test_a_word_that_is_no_study_may_be_a_file(call, monkeypatch):
    monkeypatch.setenv("_WAVETANK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "wavetank advise mine.c")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert call().out == "file,mine.c\n"
    monkeypatch.setenv("COMP_WORDS", "wavetank compare toy-noise --policy mine.p")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert call().out == "file,mine.p\n"


@pytest.mark.parametrize("name", catalog.built_in().studies)
def test_the_settings_read_from_the_source_are_those_of_the_class(name):
    import dataclasses

    entry = catalog.study(name)
    assert set(settings_named(entry)) >= {item.name for item in dataclasses.fields(entry.load())}


@pytest.mark.parametrize("place", ["nowhere.at.all:Study", "wavetank.units:Nothing", "sys:Study", "wavetank:"])
def test_a_study_whose_source_cannot_be_read_has_no_completions(place):
    assert settings_named(StudyEntry(name="x", area="a", problem="", object=place, asks="?")) == []


def test_completing_imports_no_area_and_no_array_library(tmp_path):
    code = (
        "import os; os.environ.update(_WAVETANK_COMPLETE='bash_complete', COMP_CWORD='4', "
        "COMP_WORDS='wavetank compare llm-routing --set '); from wavetank.cli import run; run([]); import sys; "
        "print([m for m in sys.modules if m.startswith(('wavetank.serving.routing.', 'numba', 'scipy'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "plain,workers=" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
