"""The command line as a whole: help, mistakes, defects, exit codes, what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wavetank
from wavetank import cli, exits
from wavetank.cli.entry import VERBS
from wavetank.ledger import catalog

HEAVY = {"numpy", "scipy", "numba", "matplotlib", "duckdb", "rich", "joblib", "pandas", "msgspec", "jinja2"}


def imported_by(code: str) -> set[str]:
    """Return the modules a fresh interpreter has after running ``code``, beyond those it starts with."""
    report = "; import sys; print('\\n' + ' '.join(sys.modules))"
    found = [
        set(
            subprocess.run(
                [sys.executable, "-c", each + report], capture_output=True, text=True, timeout=60, check=True
            )
            .stdout.splitlines()[-1]
            .split()
        )
        for each in ("pass", code)
    ]
    return found[1] - found[0]


def test_importing_the_package_costs_next_to_nothing() -> None:
    modules = imported_by("import wavetank")
    assert not {module.partition(".")[0] for module in modules} & {*HEAVY, "click"}
    assert len(modules) < 40


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["list", "--studies"], ["list", "--json"], ["compare", "--help"], ["launch"]]
)
def test_help_and_lists_import_nothing_heavy(arguments: list[str]) -> None:
    modules = imported_by(f"from wavetank.cli import run; run({arguments})")
    limit = {"numpy", "scipy", "numba", "matplotlib", "duckdb", "rich", "pandas"}
    if arguments[0] != "compare":
        limit = {*HEAVY, "asyncio", "multiprocessing"}
    assert not {module.partition(".")[0] for module in modules} & limit


def test_help_imports_no_verb() -> None:
    modules = imported_by("from wavetank.cli import run; run(['--help'])")
    assert {module for module in modules if module.startswith("wavetank.")} == {
        "wavetank.cli",
        "wavetank.cli.entry",
        "wavetank.exits",
        "wavetank.terminal",
        "wavetank.errors",
        "wavetank.lazy_names",
        "wavetank.ledger",
        "wavetank.ledger.catalog",
    }


def test_help_names_every_verb_and_fits_80_columns(command: Callable[..., Any]) -> None:
    done = command("--help")
    assert done.returncode == 0
    assert all(f"\n  {verb} " in done.stdout for verb in VERBS)
    assert "Examples:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert command().stdout == done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_that_fits_80_columns(call: Callable[..., Any], verb: str) -> None:
    told = call(verb, "--help")
    assert told.code == 0
    assert told.out.startswith(f"Usage: wavetank {verb}")
    assert max(map(len, told.out.splitlines())) <= 80
    assert "--trace" not in told.out


def test_the_version_is_the_packages(command: Callable[..., Any]) -> None:
    assert command("--version").stdout == f"wavetank {wavetank.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["lits"],
            "There is no command named 'lits'.\n"
            "  allowed: advise, list, show, compare, claims, report, diff, serve, profile,\n"
            "    data, launch, check, diagnose, generate, new\n"
            "  nearest: list\n  next: wavetank --help\n",
        ),
        (
            ["list", "--shap", "x"],
            "There is no option named '--shap'.\n"
            "  allowed: --studies, --papers, --verbose, --shape, --role, --find, --json,\n    --help\n"
            "  nearest: --shape\n  where: wavetank list\n  next: wavetank list --help\n",
        ),
        (
            ["list", "--shape", "polcy"],
            "The value is not one of the allowed words.\n  given: polcy\n"
            "  allowed: policy, node, kernel, store, analyser, simulator\n  nearest: policy\n"
            "  where: wavetank list --shape\n  next: wavetank list --help\n",
        ),
        (["show"], "Missing argument 'NAME'.\n  where: wavetank show\n  next: wavetank show --help\n"),
        (
            ["--verson"],
            "There is no option named '--verson'.\n  allowed: --version, --trace, --help\n  nearest: --version\n"
            "  where: wavetank\n  next: wavetank --help\n",
        ),
        (
            ["data", "fech"],
            "There is no command named 'fech'.\n  allowed: fetch, list, path, verify\n  nearest: fetch\n"
            "  next: wavetank data --help\n",
        ),
        (["compare", "toy-noise", "--seeds"], "Option '--seeds' requires an argument.\n"),
    ],
)
def test_mistakes_come_with_the_nearest_match(call: Callable[..., Any], arguments: list[str], message: str) -> None:
    told = call(*arguments)
    assert (told.code, told.out) == (exits.USAGE, "")
    assert told.err.startswith(message)


def test_messages_fit_80_columns(call: Callable[..., Any]) -> None:
    told = call("compare", "toy-noise", "--on", "nowhere")
    assert max(map(len, told.err.splitlines())) <= 80


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(catalog, "everything", fail)


def test_a_defect_is_told_in_a_line_with_the_trace_in_a_file(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broken(monkeypatch, ZeroDivisionError("a defect\nof two lines"))
    told = call("list")
    first, where, then = told.err.splitlines()
    assert told.code == exits.DEFECT
    assert first == "This is a defect of Wavetank: ZeroDivisionError: a defect"
    log = Path(where.removeprefix("  where: "))
    assert log.parent == tmp_path
    assert "in fail" in log.read_text()
    assert then == "  next: report it with that file; --trace prints it"


@pytest.mark.parametrize("arguments", [["--trace", "list"], ["list", "--trace"]])
def test_a_trace_is_printed_when_asked_for(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    broken(monkeypatch, ZeroDivisionError("a defect"))
    told = call(*arguments)
    assert told.code == exits.DEFECT
    assert "Traceback (most recent call last):" in told.err
    assert told.err.rstrip().endswith("ZeroDivisionError: a defect")


def test_ctrl_c_in_a_verb_that_keeps_nothing(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, KeyboardInterrupt())  # type: ignore[arg-type]
    assert call("list") == (exits.INTERRUPTED, "", "Interrupted.\n")


def test_a_reader_that_goes_away_is_no_error(executable: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["list"], ["--help"], ["show", "toy-noise"]):
        process = subprocess.run([executable, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60)
        assert process.stderr == b""
        assert process.returncode == exits.NO_READER
    os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_that_does_not_fit_is_told(executable: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = subprocess.run([executable, "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert process.returncode == exits.USAGE
    assert process.stderr == "The data cannot be written: the disk is full.\n  next: make room\n"


def test_an_encoding_that_lacks_a_letter_does_not_end_a_command(command: Callable[..., Any]) -> None:
    done = command("list", "--find", "é", PYTHONIOENCODING="ascii")
    assert done.returncode == 0


def test_a_warning_is_a_note_without_the_place_in_the_code_where_it_arose() -> None:
    code = (
        "import sys, warnings\nfrom wavetank.cli import entry\n"
        "def run(arguments):\n    warnings.warn('The machine was busy ' + 'and busier ' * 9, RuntimeWarning)\n"
        "entry.run = run\nentry.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.startswith("note: The machine was busy and busier")
    assert "RuntimeWarning" not in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80


def test_colour_is_for_terminals_that_want_it(terminal: Callable[..., Any], command: Callable[..., Any]) -> None:
    assert "\x1b[" in terminal("list").raw
    assert "\x1b[" not in terminal("list", NO_COLOR="1").raw
    assert "\x1b[" not in terminal("list", TERM="dumb").raw
    assert "\x1b[" not in command("list").stdout


def test_the_exit_codes_are_the_documented_ones() -> None:
    documented = {line.split()[0] for line in (cli.__doc__ or "").splitlines() if line[:1].isdigit()}
    values = {value for name, value in vars(exits).items() if name.isupper()}
    assert documented == {"0", *map(str, values)}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [["nope"], ["check", "absent.edn"], ["list", "--find", "raft"]])
def test_an_exit_code_survives_standard_error_that_cannot_be_written(arguments):
    command = [sys.executable, "-m", "wavetank", *arguments]
    wanted = subprocess.run(command, capture_output=True, check=False, timeout=60)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False, timeout=60)
    assert found.returncode == wanted.returncode != 1
    assert found.stdout == wanted.stdout


def test_a_name_that_no_file_can_have_is_no_defect(call: Callable[..., Any]) -> None:
    told = call("compare", "llm-routing", "--set", f"trace={'a' * 5000}")
    assert told.code == 3
    assert "The name of a file is too long.\n  given: aaa" in told.err
