from __future__ import annotations

import io
import json

import pytest

from wavetank import terminal
from wavetank.errors import BadValueError
from wavetank.terminal import is_terminal, say_defect, say_error, say_json, style, width, wrapped


def test_the_width_is_the_terminals_up_to_what_reads_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, expected in (("60", 60), ("300", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        assert width() == expected
    monkeypatch.delenv("COLUMNS")
    assert width() == 80


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_dumb_terminal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(Screen())
    assert not is_terminal(io.StringIO())
    assert not is_terminal(None)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Screen())


def test_style_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert style("x", bold=True) == "x"
    monkeypatch.setattr(terminal.sys, "stdout", Screen())
    assert style("x", bold=True) == "\x1b[1mx\x1b[0m"
    assert style("x", err=True, bold=True) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert style("x", bold=True) == "x"


def test_wrapping_keeps_commands_and_paths_whole() -> None:
    path = "/a-b/" + "c" * 90
    assert wrapped(f"one two {path} three", first="  ") == f"  one two\n  {path}\n  three"
    assert wrapped("a\n b", first="- ", rest="  ") == "- a b"


def test_an_errors_lists_are_wrapped_and_its_commands_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    command = "wavetank compare x --set " + "y" * 80
    say_error(BadValueError("It is wrong.", allowed=[f"name-{number:03}" for number in range(12)], hint=command))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "It is wrong."
    assert lines[1].startswith("  allowed: name-000, ")
    assert lines[2].startswith("    name-")
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1] == f"  next: {command}"


def test_json_keeps_letters_and_has_no_number_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"é": 1})
    out = capsys.readouterr().out
    assert "é" in out
    assert json.loads(out) == {"é": 1}
    with pytest.raises(ValueError, match="JSON"):
        say_json(float("inf"))


def test_a_defect_without_a_place_for_its_trace_asks_for_the_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at/all")
    say_defect(ValueError(), trace=False)
    assert capsys.readouterr().err == (
        "This is a defect of Wavetank: ValueError: no message\n"
        "  next: repeat the command with --trace to see where it happened\n"
    )
