"""Child processes run what is installed, not what lies in the current directory."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from wavetank.processes import python_code, python_module

SOURCE = Path(__file__).parents[1] / "src" / "wavetank"
HOSTILE = ("queue", "types", "asyncio", "socket", "msgspec", "numpy", "wavetank")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder whose modules say so when somebody imports them."""
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(
            f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).open('a').write({name!r})\n"
        )
    return tmp_path


def test_children_import_nothing_from_the_current_directory(hostile: Path) -> None:
    for words in (python_module("wavetank", "--version"), python_code("import queue, types, asyncio, wavetank")):
        done = subprocess.run(words, cwd=hostile, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert not (hostile / "executed").exists()


def test_a_launched_cluster_imports_nothing_from_the_current_directory(hostile: Path, executable: str) -> None:
    words = [executable, "launch", "cluster", "--protocol", "raft", "--nodes", "2", "--duration", "0.2"]
    done = subprocess.run(words, cwd=hostile, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert not (hostile / "executed").exists()


def test_no_other_place_starts_python() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "processes.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    ]
    assert found == []
