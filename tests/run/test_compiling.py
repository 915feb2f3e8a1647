"""What is being compiled is shown while a study runs, from whichever process compiles it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wavetank.cache_folder import COMPILING_FILE
from wavetank.run import compiling
from wavetank.run.compiling import CompileWatch, saying_once


def write(text: str) -> None:
    with Path(os.environ[COMPILING_FILE]).open("a") as out:
        out.write(text)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Calls of the watch under test, which only looks when a test makes it look."""
    monkeypatch.setattr(compiling, "_POLL_S", 1e6)
    return []


def test_a_function_is_shown_once_it_has_compiled_for_some_time_and_no_longer_after_its_end(seen) -> None:
    with CompileWatch(seen.append) as watch:
        write("begin a.slow\nbegin a.quick\n")
        watch.look(0.0)
        write("end a.quick 0.10\n")
        watch.look(1.0)
        assert seen == []
        watch.look(2.5)
        assert seen == [["a.slow"]]
        watch.look(3.0)
        write("end a.slow 3.0\n")
        watch.look(3.5)
    assert seen == [["a.slow"], []]


def test_a_line_that_is_half_written_is_read_when_it_is_whole(seen) -> None:
    with CompileWatch(seen.append) as watch:
        write("begin a.sl")
        watch.look(0.0)
        write("ow\n")
        watch.look(1.0)
        watch.look(4.0)
    assert seen == [["a.slow"]]


def test_the_file_and_the_variable_are_gone_afterwards(seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPILING_FILE, "/outer")
    with CompileWatch(seen.append):
        file = Path(os.environ[COMPILING_FILE])
        assert file.exists() and str(file) != "/outer"
    assert not file.exists()
    assert os.environ[COMPILING_FILE] == "/outer"


def test_without_a_folder_for_temporary_files_a_run_goes_on(seen, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> tuple[int, str]:
        raise OSError("read-only")

    monkeypatch.setattr(compiling.tempfile, "mkstemp", fail)
    monkeypatch.delenv(COMPILING_FILE, raising=False)
    with CompileWatch(seen.append) as watch:
        watch.look(1.0)
        assert COMPILING_FILE not in os.environ


def test_each_function_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = saying_once()
    shown(["a.one"])
    shown(["a.one", "a.two"])
    assert capsys.readouterr().err == "  compiling a.one, once\n  compiling a.two, once\n"
