"""What is written for readers: parameters of functions that others call, and the words of the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "wavetank"
READ = [path for folder in ("src", "docs", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]

# Verbs and pronouns of spoken English; each has a plain written word: say, name, report; whoever -> who or the user.
SPOKEN = re.compile(r"\b(bears?|tells?|told|whoever|so many)\b", re.IGNORECASE)
TEXTS = {".py", ".toml", ".md", ".jinja", ".js", ".css", ".lark"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_functions_used_outside_their_folder_document_their_parameters() -> None:
    trees = {path: ast.parse(path.read_text()) for path in READ}
    users: dict[tuple[str, str], set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        imported = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("wavetank"):
                for each in node.names:
                    users[node.module, each.name].add(path)
                    imported[each.asname or each.name] = f"{node.module}.{each.name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
                users[imported[node.value.id], node.attr].add(path)
    called, silent = 0, []
    for path, tree in trees.items():
        if not path.is_relative_to(SOURCE):
            continue
        for function in tree.body:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name.startswith("_"):
                continue
            given = function.args
            if len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) < 2:
                continue
            if all(user.is_relative_to(path.parent) for user in users[module_of(path), function.name]):
                continue
            called += 1
            if "Parameters\n----------\n" not in (ast.get_docstring(function) or ""):
                silent.append(f"{module_of(path)}.{function.name}")
    assert silent == []
    assert called > 50, "the search itself no longer finds what is called from elsewhere"


@pytest.mark.parametrize("place", ["src", "docs", "README.md", "CONTRIBUTING.md"])
def test_written_words_are_used(place: str) -> None:
    top = ROOT / place
    found = []
    for path in [top] if top.is_file() else sorted(top.rglob("*")):
        if path.suffix not in TEXTS or "_build" in path.parts or "generated" in path.parts:
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if SPOKEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []
