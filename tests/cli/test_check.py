from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wavetank.check import report as checking
from wavetank.check.report import Budget, CheckReport, Verdict
from wavetank.cli import check
from wavetank.errors import BadFileError
from wavetank.ledger.catalog import CommandEntry
from wavetank.settings import setting

Call = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Words:
    """Checks that a file holds only allowed words."""

    allowed: tuple[str, ...] = setting(("yes",), says="words that may occur")
    depth: int = setting(3, unit="steps", says="how far to look", low=1)
    style: str = setting("short", says="what to print", choices=("short", "long"))

    def check(self, path: Path, budget: Budget) -> CheckReport:
        """Look at every word."""
        words = path.read_text().split()
        if not words:
            raise BadFileError("The file is empty.", where=str(path))
        verdicts = [
            Verdict(
                name=word,
                outcome="holds" if word in self.allowed else "undecided" if word == "maybe" else "violated",
                says="" if word in self.allowed else "looked at the word",
                by="reading",
                seconds=0.25,
                evidence="" if word in self.allowed else "step 1: p0 -> p1\nstep 2: p1 -> p0   (too late)",
            )
            for word in words
        ]
        facts = [("words", str(len(words))), ("budget", f"{budget.seconds:g} s, {budget.memory_bytes} bytes")]
        page = "<!doctype html><title>words</title>" if "no" in words else ""
        return CheckReport(subject=path.stem, kind="words", facts=facts, verdicts=verdicts, page=page)


@pytest.fixture(autouse=True)
def only_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = CommandEntry(
        name="words", says="a list of words", endings=(".words",), object="wavetank.check.report:Words"
    )
    monkeypatch.setattr(checking, "Words", Words, raising=False)
    monkeypatch.setattr("wavetank.cli.check._kinds", lambda: {"words": words})


def put(here: Path, name: str, text: str) -> str:
    (here / name).write_text(text)
    return name


def test_what_holds_is_said_with_exit_code_0(call: Call, here: Path) -> None:
    told = call("check", put(here, "a.words", "yes yes"))
    assert told.code == 0
    assert told.out.splitlines() == [
        "a",
        "  words: 2",
        "  budget: 60 s, 2147483648 bytes",
        "  holds      yes (reading in 250 ms)",
        "  holds      yes (reading in 250 ms)",
    ]


def test_a_violation_shows_its_evidence_as_it_was_drawn(call: Call, here: Path) -> None:
    told = call("check", put(here, "a.words", "no"))
    assert told.code == 1
    assert "  violated   no: looked at the word (reading in 250 ms)" in told.out.splitlines()
    assert "             step 2: p1 -> p0   (too late)" in told.out.splitlines()


def test_undecided_has_a_code_of_its_own_and_a_violation_comes_first(call: Call, here: Path) -> None:
    assert call("check", put(here, "a.words", "maybe yes")).code == 2
    assert call("check", put(here, "b.words", "maybe no")).code == 1


def test_settings_and_budgets_reach_the_checker(call: Call, here: Path) -> None:
    name = put(here, "a.words", "no")
    told = call("check", name, "--set", "allowed=yes,no", "--seconds", "2min", "--memory", "1GiB")
    assert told.code == 0
    assert "budget: 120 s, 1073741824 bytes" in told.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "alowed=no"], ["There is no setting named 'alowed'", "nearest: allowed"]),
        (["--set", "allowed"], ["KEY=VALUE"]),
        (["--set", "depth=0"], ["depth"]),
        (["--seconds", "-1"], ["--seconds"]),
        (["--seconds", "soon"], ["not a number", "--seconds"]),
        (["--kind", "word"], ["There is no kind of file named 'word'", "nearest: words"]),
    ],
)
def test_what_is_wrong_on_the_command_line_is_named(
    call: Call, here: Path, arguments: list[str], words: list[str]
) -> None:
    told = call("check", put(here, "a.words", "yes"), *arguments)
    assert told.code == 3
    assert told.out == ""
    for word in words:
        assert word in told.err


def test_a_file_whose_name_tells_nothing_needs_its_kind(call: Call, here: Path) -> None:
    name = put(here, "a.dat", "yes")
    told = call("check", name)
    assert told.code == 3
    assert ".words" in told.err
    assert call("check", "--kind", "words", name).code == 0


def test_files_that_are_not_there_or_not_to_be_read_are_named(call: Call, here: Path) -> None:
    assert "There is no such file." in call("check", "none.words").err
    (here / "folder.words").mkdir()
    assert "This is no file." in call("check", "folder.words").err
    assert "The file is empty." in call("check", put(here, "a.words", "")).err


def test_one_bad_file_does_not_keep_the_others_from_being_checked(call: Call, here: Path) -> None:
    good, bad, other = put(here, "a.words", "yes"), put(here, "b.words", ""), put(here, "c.words", "no maybe")
    told = call("check", good, bad, other)
    assert told.code == 3
    assert "The file is empty." in told.err
    assert "3 files: 1 holds, 1 violated, 1 undecided; 1 could not be checked" in told.out
    assert call("check", good, other).code == 1


def test_without_a_file_it_says_what_there_is(call: Call) -> None:
    told = call("check")
    assert told.code == 3
    assert "words: a list of words (.words)" in told.err


def test_json_has_every_verdict(call: Call, here: Path) -> None:
    told = call("check", "--json", put(here, "a.words", "yes no"))
    assert told.code == 1
    (report,) = json.loads(told.out)
    assert report["subject"] == "a"
    assert [verdict["outcome"] for verdict in report["verdicts"]] == ["holds", "violated"]
    assert report["verdicts"][1]["evidence"].startswith("step 1")


def test_a_page_is_written_where_there_is_something_to_draw(call: Call, here: Path) -> None:
    told = call("check", put(here, "a.words", "no"), "--page", "a.html")
    assert (here / "a.html").read_text().startswith("<!doctype html>")
    assert "page: a.html" in told.err
    assert "nothing to draw" in call("check", put(here, "b.words", "yes"), "--page", "b.html").err
    assert not (here / "b.html").exists()
    told = call("check", "a.words", "--page", "none/a.html")
    assert told.code == 3
    assert "The page cannot be written." in told.err
    assert call("check", "a.words", "b.words", "--page", "c.html").code == 3


def test_the_settings_of_a_checker_are_told(call: Call) -> None:
    for arguments in (["--settings"], ["--settings", "--kind", "words"]):
        told = call("check", *arguments)
        assert told.code == 0
        assert "depth (steps, by default 3): how far to look" in told.out
        assert "one of short, long" in told.out
    assert call("check", "--settings", "--kind", "none").code == 3


@pytest.mark.parametrize("object_", ["no_such_module:Kind", "json:dumps", "wavetank.errors:WavetankError"])
def test_an_entry_that_names_no_checker_is_named_and_the_others_are_shown(
    call: Call, monkeypatch: pytest.MonkeyPatch, here: Path, object_: str
) -> None:
    entries = check._kinds()
    wrong = CommandEntry(name="wrong", object=object_, says="none", endings=(".zzz",), where="x.toml, line 3, wrong")
    monkeypatch.setattr(check, "_kinds", lambda: {"wrong": wrong, **entries})
    told = call("check", "--settings")
    assert told.code == 0
    assert "x.toml, line 3, wrong" in told.err
    assert all(f"{name}: " in told.out for name in entries)
    (here / "a.zzz").write_text("")
    told = call("check", "a.zzz")
    assert told.code == 3
    assert "x.toml, line 3, wrong" in told.err
