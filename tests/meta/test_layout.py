"""Rules that the whole checkout keeps: mirrored tests, docstrings, what no file may hold."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from wavetank.ledger import catalog

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "wavetank"
MODULES = sorted(SOURCE.rglob("*.py"))
PROBLEMS = sorted(path.parent for path in SOURCE.glob("*/*/catalog.toml"))

# Modules without a mirrored test file, and why.
NOT_MIRRORED = {
    "serving/simulator/tables.py": "a part of the simulator; serving/simulator/test_core.py",
    "serving/simulator/adapter_slots.py": "a part of the simulator; serving/simulator/test_adapters.py",
    "sim/simulation.py": "what rounds and events share; sim/test_events.py",
    "sim/rounds.py": "one of two ways to run; sim/test_events.py and protocols/quantas/test_rounds.py",
    "exits.py": "constants; held against their documentation in cli/test_entry.py",
    "kernels/solvers/cpu_device.py": "a part of the devices; kernels/solvers/test_devices.py and test_concurrency.py",
    "kernels/solvers/worker_thread.py": "a part of the devices; kernels/solvers/test_devices.py",
    "kernels/solvers/link.py": "a part of the devices; kernels/solvers/test_devices.py",
    "kernels/solvers/pair.py": "a part of the devices; kernels/solvers/test_devices.py and test_concurrency.py",
    "kernels/solvers/torch_device.py": "a part of the devices; kernels/solvers/test_devices.py",
    "kernels/sparse/mkl.py": "an engine of plans; kernels/sparse/test_engines.py",
    "check/consistency/rules.py": "the workloads' rules; check/consistency/test_formats.py",
    "cli/site.py": "the pages that are served; cli/test_serve.py",
    "training/failures/torchft_process.py": "processes of a study; training/failures/test_study_recovery.py",
    "training/rollouts/core.py": "a part of the simulator; training/rollouts/test_simulate.py",
}

# Written in pieces, so that this file does not hold them itself.
FORBIDDEN = [
    re.compile(pattern)
    for pattern in (
        "pypi" + r"\.org",
        "python" + r"hosted\.org",
        "proxy\\.golang" + r"\.org",
        "npm" + r"js\.(org|com)",
        "crates" + r"\.io",
        "conda\\." + "anaconda",
        r"(?<![\w./])/" + "work/",
    )
]


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the parsed module; every test below asks for every module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def files() -> list[Path]:
    """Return every file that is, or would be, under version control."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no git checkout")
    return [path for path in (ROOT / line for line in done.stdout.split("\0") if line) if path.is_file()]


def test_every_module_has_a_mirrored_test_file() -> None:
    wrong = []
    for path in MODULES:
        mirrored = ROOT / "tests" / path.relative_to(SOURCE).with_name(f"test_{path.name}")
        if path.name != "__init__.py" and mirrored.exists() == (name(path) in NOT_MIRRORED):
            wrong.append(name(path))
    assert wrong == []


def test_every_exemption_is_for_a_module_that_exists() -> None:
    assert [each for each in NOT_MIRRORED if not (SOURCE / each).exists()] == []


def test_what_is_public_has_a_docstring() -> None:
    missing = []
    for path in MODULES:
        tree = tree_of(path)
        missing += [] if ast.get_docstring(tree) else [name(path)]
        missing += [f"{name(path)}:{node.lineno}" for node in _public(tree) if not ast.get_docstring(node)]
    assert missing == []


def _public(tree: ast.Module | ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    found: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if not _is_documented_elsewhere(node, tree):
                found.append(node)
            if isinstance(node, ast.ClassDef):
                found += _public(node)
    return found


def _is_documented_elsewhere(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, home: ast.Module | ast.ClassDef
) -> bool:
    """Return whether a name without a body of its own is explained by what it belongs to."""
    if any("overload" in ast.dump(decorator) for decorator in node.decorator_list):
        return True
    empty = (
        len(node.body) == 1
        and isinstance(node.body[0], ast.Expr)
        and ast.dump(node.body[0]) == "Expr(value=Constant(value=Ellipsis))"
    )
    return empty and re.search(rf"^\s*{node.name}\b", ast.get_docstring(home) or "", re.MULTILINE) is not None


def test_no_bare_assert_guards_the_library() -> None:
    found = [(path, node) for path in MODULES for node in ast.walk(tree_of(path)) if isinstance(node, ast.Assert)]
    assert [f"{name(path)}:{node.lineno}" for path, node in found] == []


def test_nothing_is_left_to_do_in_comments() -> None:
    words = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")))
    lines = [(path, n, line) for path in MODULES for n, line in enumerate(path.read_text().splitlines(), 1)]
    assert [f"{name(path)}:{n}" for path, n, line in lines if words.search(line)] == []


def test_no_file_names_a_package_registry_or_the_place_it_was_written_in() -> None:
    found = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {each.pattern}" for each in FORBIDDEN if each.search(text)]
    assert found == []


@pytest.mark.parametrize("problem", PROBLEMS, ids=name)
def test_a_problem_explains_itself(problem: Path) -> None:
    for folder in (problem, problem.parent):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert len(text.splitlines()) >= 3


@pytest.mark.parametrize("problem", PROBLEMS, ids=name)
def test_a_problem_registers_only_its_own(problem: Path) -> None:
    tables = tomllib.loads((problem / "catalog.toml").read_text())
    studies = tables.pop("studies", {})
    tables.pop("papers", None)
    commands = [entry for table in catalog.COMMANDS for entry in tables.pop(table, {}).values()]
    room = f"wavetank.{problem.parent.name}.{problem.name}."
    for entry in (*tables.values(), *commands):
        # A checker is mechanism below the areas; the problem that it decides is where it is registered.
        assert entry["object"].startswith((room, "wavetank.check."))
    for entry in studies.values():
        assert entry["object"].startswith(f"{room}study")


LONGEST_FILE = 900
LONGEST_FUNCTION = 100
LONGEST_SYSTEM = 800


def test_no_file_and_no_function_is_too_long_to_be_read_at_once() -> None:
    found = [name(path) for path in MODULES if len(path.read_text().splitlines()) > LONGEST_FILE]
    for path in MODULES:
        found += [
            f"{name(path)}:{node.lineno}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and _lines(node) > LONGEST_FUNCTION
            # What is compiled pays for each call that is not inlined.
            and not any(re.search(r"compiled|njit|jit|_function", ast.unparse(each)) for each in node.decorator_list)
        ]
    assert found == []


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    first = node.body[0]
    told = (first.end_lineno or first.lineno) - first.lineno + 1 if ast.get_docstring(node) is not None else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - told


def test_a_system_of_more_than_800_lines_says_why() -> None:
    silent = []
    for entry in catalog.built_in():
        module = SOURCE.joinpath(*entry.object.partition(":")[0].split(".")[1:]).with_suffix(".py")
        if len(module.read_text().splitlines()) > LONGEST_SYSTEM and not entry.size:
            silent.append(entry.name)
    assert silent == []


def test_names_are_lower_case_words_with_hyphens() -> None:
    found = catalog.built_in()
    wrong = [each for each in (*found.systems, *found.studies) if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each)]
    assert wrong == []


def test_no_name_is_both_a_system_and_a_study() -> None:
    found = catalog.built_in()
    assert set(found.systems) & set(found.studies) == set()


def test_every_skip_names_what_is_missing() -> None:
    """A skip without a reason, or with one that names nothing, hides what this machine did not try."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name in ("pytest.skip", "pytest.mark.skipif", "pytest.mark.skip", "pytest.importorskip"):
                given = [*node.args[1 if name == "pytest.mark.skipif" else 0 :]]
                given += [each.value for each in node.keywords if each.arg == "reason"]
                if not given or all(isinstance(each, ast.Constant) and len(str(each.value)) < 3 for each in given):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
