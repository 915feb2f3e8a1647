"""What ``wavetank new`` writes passes the tests of the checkout as it is, and what it refuses leaves no file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.cli import new
from wavetank.extras import pip_command
from wavetank.ledger import catalog

ROOT = Path(__file__).parents[2]
ROUTER = ("new", "system", "two-queues", "--problem", "serving/routing")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def runner(home: Path, *path: Path) -> Run:
    """Return what runs a module of Python in a folder, with other folders to import from first."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([*map(str, path), os.environ["PYTHONPATH"]])
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=home, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip

    return run


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, Run]:
    """Make a copy of the checkout, and what runs Python on it."""
    home = tmp_path / "checkout"
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / part, home / part)
    return home, runner(home, home / "src")


def files(home: Path) -> dict[str, str]:
    """Return every file below a folder but what Python compiled, with its text."""
    found = [path for path in home.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc")]
    return {path.relative_to(home).as_posix(): path.read_text(errors="replace") for path in found}


def test_what_is_written_runs_and_conforms_as_it_is(checkout: tuple[Path, Run]) -> None:
    home, run = checkout
    before = files(home)
    for words in (
        ROUTER,
        ("new", "study", "add-numbers", "--problem", "kernels/adding", "--timing", "--asks", "What adds fastest?"),
        ("new", "system", "pairwise-sum", "--problem", "kernels/adding", "--source", "Sums"),
        ("new", "study", "find-centre", "--problem", "serving/guessing"),
        ("new", "system", "quick-broadcast", "--problem", "protocols/broadcast", "--role", "rival"),
    ):
        done = run("wavetank", *words)
        assert (done.returncode, done.stderr) == (0, "")
    after = files(home)
    changed = {name for name, text in before.items() if after[name] != text}
    assert changed == {
        "CHANGELOG.md",
        "src/wavetank/serving/routing/catalog.toml",
        "src/wavetank/protocols/broadcast/catalog.toml",
    }
    for name in changed - {"CHANGELOG.md"}:
        assert after[name].startswith(before[name].rstrip())
    assert after["CHANGELOG.md"].count("- `kernels/adding`: ") == 2
    tables = tomllib.loads(after["src/wavetank/serving/routing/catalog.toml"])
    assert (
        tables["two-queues"]["launch"] == "wavetank launch router --policy two-queues --backend http://127.0.0.1:8001"
    )
    assert tables["two-queues"]["interface"] == "router"
    tables = tomllib.loads(after["src/wavetank/protocols/broadcast/catalog.toml"])
    assert tables["quick-broadcast"]["launch"] == "wavetank launch cluster --protocol quick-broadcast --nodes 5"

    written = sorted(set(after) - set(before))
    checked = run("ruff", "check", *(name for name in written if name.endswith(".py")))
    assert checked.returncode == 0, checked.stdout
    rooms = ("serving/routing", "kernels/adding", "serving/guessing", "protocols/broadcast")
    chosen = " or ".join(f"[{each}]" for each in (*rooms, "two-queues"))
    told = run("pytest", "-p", "no:cacheprovider", "tests/conformance", "-k", chosen, "-rN", "-vv")
    assert told.returncode == 0, told.stdout[-4000:]
    assert all(f"test_the_constructor_only_stores[{room}] PASSED" in told.stdout for room in rooms)
    assert "test_a_live_router_picks_what_it_picks_when_called_directly[two-queues] PASSED" in told.stdout
    mirrored = [name for name in written if name.startswith("tests/")]
    assert len(mirrored) == 5
    told = run("pytest", "-p", "no:cacheprovider", "tests/meta", *mirrored)
    assert told.returncode == 0, told.stdout[-4000:]

    small = ("--seeds", "1", "--set", "requests=200", "--set", "workers=2", "--set", "loads=", "--set", "refreshes_s=")
    done = run("wavetank", "compare", "llm-routing", "--systems", "two-queues,vllm-default", *small)
    assert done.returncode == 0, done.stderr
    assert "two-queues" in done.stdout
    done = run(
        "wavetank", "compare", "add-numbers", "--systems", "add-numbers-baseline,pairwise-sum", "--set", "sizes=9"
    )
    assert done.returncode == 0, done.stderr
    assert "pairwise-sum" in done.stdout


def test_elsewhere_a_plugin_is_written_that_can_be_installed(tmp_path: Path) -> None:
    home = tmp_path / "mine"
    home.mkdir()
    run = runner(home, home)
    done = run("wavetank", *ROUTER)
    assert done.returncode == 0
    assert f"\n{pip_command('-e', '.')}\n" in done.stdout
    project = (home / "pyproject.toml").read_text()
    assert tomllib.loads(project)["project"]["name"] == "wavetank-routing"
    assert run("wavetank", "new", "study", "find-centre", "--problem", "serving/guessing").returncode == 0
    assert (home / "pyproject.toml").read_text() == project
    assert sorted(files(home)) == [
        "pyproject.toml",
        "tests/test_study_find_centre.py",
        "tests/test_two_queues.py",
        "wavetank_routing/__init__.py",
        "wavetank_routing/catalog.toml",
        "wavetank_routing/study_find_centre.py",
        "wavetank_routing/two_queues.py",
    ]
    # What pip makes of the project, as far as entry points go.
    about = home / "wavetank_routing-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wavetank-routing\nVersion: 0.1\n")
    points = tomllib.loads(project)["project"]["entry-points"]["wavetank.systems"]
    lines = [f"{name} = {package}" for name, package in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[wavetank.systems]", *lines]))
    done = run("wavetank", "compare", "find-centre", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    assert "find-centre-baseline" in done.stdout
    told = run("pytest", "-p", "no:cacheprovider", "tests")
    assert told.returncode == 0, told.stdout[-4000:]


@pytest.mark.parametrize(
    ("words", "problem", "line"),
    [
        (["system", "Two_Queues"], "serving/routing", "  nearest: two-queues\n"),
        (["system", "2-queues"], "serving/routing", "This is no name of a system.\n"),
        (["system", "class"], "serving/routing", "This is no name of a system.\n"),
        (["system", "a" * 33], "serving/routing", f"  nearest: {'a' * 32}\n"),
        (["system", "round-robin"], "serving/routing", "  next: wavetank show round-robin\n"),
        (["system", "llm-routing"], "serving/routing", "The name is taken.\n"),
        (["study", "round-robin"], "serving/routing", "The name is taken.\n"),
        (["study", "toy-timing"], "serving/routing", "The name is taken.\n"),
        (["system", "studies"], "serving/routing", "The name is that of a table of catalogs.\n"),
        (["system", "launch"], "serving/routing", "The name is that of a table of catalogs.\n"),
        (["system", "two-queues"], "servin/routing", "  nearest: serving\n"),
        (["study", "two-queues"], "elsewhere/routing", "There is no area named 'elsewhere'.\n"),
        (["system", "two-queues"], "serving/rooting", "  nearest: serving/routing\n"),
        (["system", "two-queues"], "serving", "This is no problem of an area.\n"),
        (["study", "two-queues"], "serving/Two Words", "This is no problem of an area.\n"),
        (["study", "two-queues"], "serving/import", "This is no problem of an area.\n"),
        (["system", "two-queues", "--shape", "polcy"], "serving/routing", "  nearest: policy\n"),
        (["system", "two-queues", "--role", "rivall"], "serving/routing", "  nearest: rival\n"),
        (["system", "two-queues", "--study", "llm-rooting"], "serving/routing", "  nearest: llm-routing\n"),
        (
            ["system", "two-queues", "--study", "llm-routing", "--study", "no-such"],
            "serving/routing",
            "There is no study named 'no-such'.\n",
        ),
        (["system", "two-queues", "--does", "No full stop"], "serving/routing", "  where: --does\n"),
        (["system", "two-queues", "--source", 'A "title"'], "serving/routing", "  where: --source\n"),
        (["system", "two-queues", "--does", f"{'x' * 101}."], "serving/routing", "  where: --does\n"),
        (["study", "two-queues", "--asks", "No question."], "serving/routing", "  where: --asks\n"),
    ],
)
def test_what_is_refused_comes_with_what_is_allowed_and_leaves_no_file(
    call: Callable[..., Any], here: Path, words: list[str], problem: str, line: str
) -> None:
    told = call("new", *words, "--problem", problem)
    assert (told.code, told.out) in ((3, ""), (2, ""))
    assert line in told.err
    assert files(here) == {}


def test_no_file_is_overwritten(call: Callable[..., Any], here: Path) -> None:
    (here / "tests").mkdir()
    (here / "tests" / "test_two_queues.py").write_text("mine")
    told = call(*ROUTER)
    assert told.code == 3
    assert told.err.startswith("There is a file of that name, which stays as it is.\n")
    assert files(here) == {"tests/test_two_queues.py": "mine"}


def test_a_failure_while_writing_leaves_nothing_that_is_registered(
    call: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = new.write_atomic

    def full(path: Path, text: str) -> None:
        if path.name == "catalog.toml":
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(new, "write_atomic", full)
    told = call(*ROUTER)
    assert told.code == 3
    assert told.err.startswith("The files cannot be written: No space left on device.\n")
    assert files(here) == {}


@pytest.mark.parametrize("last", range(5))
def test_ctrl_c_while_writing_leaves_all_as_it_was(
    call: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    write, count = new.write_atomic, 0

    def stopped(path: Path, text: str) -> None:
        nonlocal count
        write(path, text)
        count += 1
        if count > last:
            raise KeyboardInterrupt

    monkeypatch.setattr(new, "write_atomic", stopped)
    assert call(*ROUTER).code == 130
    assert files(here) == {}


def test_a_link_that_leads_nowhere_stays(call: Callable[..., Any], here: Path) -> None:
    (here / "tests").mkdir()
    (here / "tests" / "test_two_queues.py").symlink_to(here / "gone.py")
    assert call(*ROUTER).err.startswith("There is a file of that name, which stays as it is.\n")
    assert (here / "tests" / "test_two_queues.py").is_symlink()


@pytest.mark.parametrize(
    ("project", "message"),
    [
        ("project = 5", "The project of this folder registers no package of systems."),
        ("[project]\nentry-points = 5", "The project of this folder registers no package of systems."),
        ("[project.entry-points.'wavetank.systems']\nx = 5", "The entry point names no package."),
        ("[project.entry-points.'wavetank.systems']\nx = '../../elsewhere'", "The entry point names no package."),
        ("[project.entry-points.'wavetank.systems']\nx = 'a:b c'", "The entry point names no package."),
        ("x = " + "[" * 5000, "The file is not valid TOML."),
        ("x = " + "9" * 5000, "The file is not valid TOML."),
    ],
)
def test_a_project_that_names_no_package_is_refused(
    call: Callable[..., Any], here: Path, project: str, message: str
) -> None:
    (here / "pyproject.toml").write_text(project)
    told = call(*ROUTER)
    assert told.code == 3
    assert told.err.startswith(message)
    assert files(here) == {"pyproject.toml": project}


def test_a_catalog_that_cannot_be_read_is_not_added_to(call: Callable[..., Any], here: Path) -> None:
    assert call(*ROUTER).code == 0
    place = here / "wavetank_routing" / "catalog.toml"
    place.write_text("[two-queues")
    told = call("new", "system", "three-queues", "--problem", "serving/routing")
    assert told.code == 3
    assert told.err.startswith("Nothing can be added to this catalog.\n")
    assert place.read_text() == "[two-queues"
    assert not (here / "wavetank_routing" / "three_queues.py").exists()


def test_the_package_that_a_project_registers_is_used(call: Callable[..., Any], here: Path) -> None:
    project = here / "pyproject.toml"
    project.write_text("[project]\nname = 'mine'\n")
    told = call(*ROUTER)
    assert told.code == 3
    assert 'add [project.entry-points."wavetank.systems"] with routing = "wavetank_routing"' in told.err
    project.write_text("[project.entry-points.'wavetank.systems']\nmine = 'mine.ideas'\n")
    (here / "src" / "mine" / "ideas").mkdir(parents=True)
    assert call(*ROUTER).code == 0
    assert (here / "src" / "mine" / "ideas" / "two_queues.py").exists()
    project.write_text("[project")
    assert call(*ROUTER).err.startswith("The file is not valid TOML.\n")


def test_another_checkout_than_the_one_that_runs_is_not_written_to(call: Callable[..., Any], here: Path) -> None:
    ledger = here / "src" / "wavetank" / "ledger"
    ledger.mkdir(parents=True)
    (ledger / "catalog.py").touch()
    told = call(*ROUTER)
    assert told.code == 3
    assert told.err.startswith("The wavetank that runs is not the one of this checkout.\n")
    assert told.err.endswith(f"  next: {pip_command('-c', str(here / 'constraints.txt'), '-e', str(here))}\n")
    assert list(files(here)) == ["src/wavetank/ledger/catalog.py"]


def test_a_class_hides_no_name_that_its_module_imports(call: Callable[..., Any], here: Path) -> None:
    assert call("new", "system", "hetero-solver", "--problem", "kernels/solvers").code == 0
    assert call("new", "system", "arrival", "--problem", "serving/routing").code == 0
    assert call("new", "study", "none", "--problem", "serving/routing").code == 0
    package = here / "wavetank_solvers"
    assert "class HeteroSolverSystem(HeteroSolver):" in (package / "hetero_solver.py").read_text()
    assert "class ArrivalSystem:" in (package / "arrival.py").read_text()
    assert "class NoneStudy(Study):" in (package / "study_none.py").read_text()


def test_what_a_baseline_needs_its_successor_needs(call: Callable[..., Any], here: Path) -> None:
    baseline = catalog.system("cusparse-coo")
    assert call("new", "system", "bit-fields", "--problem", "kernels/sparse", "--study", "spmv-gpu").code == 0
    entry = tomllib.loads((here / "wavetank_sparse" / "catalog.toml").read_text())["bit-fields"]
    assert entry["parameters"] == baseline.parameters
    assert tuple(entry["needs"]) == baseline.needs
    assert entry["extra"] == baseline.extra
