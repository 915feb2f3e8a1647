"""The manual, the README and the examples do what they say."""

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
PAGES = [*GUIDE, ROOT / "README.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), space)


COMMANDS = [
    (page.stem, line)
    for page in PAGES
    for block in blocks(page, "console")
    for line in block.splitlines()
    if line.startswith("wavetank ")
]


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}-{line[:40]}" for page, line in COMMANDS])
def test_the_commands_of_a_page_run(page, line, tmp_path):
    words = [sys.executable, "-m", "wavetank", *shlex.split(line)[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "gguf")),
    reason="the story is told with llama.cpp's server (the extra engines)",
)
def test_the_shell_story_of_a_page_runs_from_the_first_line_to_the_last(tmp_path):
    page = ROOT / "docs" / "guide" / "from-trace-to-production.md"
    script = "set -euo pipefail\n" + "".join(blocks(page, "sh"))
    for port in ("8080", "8101", "8102"):
        script = script.replace(port, str(free_port()))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # A file, not a pipe: what still runs in the background after a failure would keep a pipe open.
    told = tmp_path / "told.txt"
    with told.open("w") as file, subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, start_new_session=True,
        stdout=file, stderr=subprocess.STDOUT,
    ) as shell:  # fmt: skip
        try:
            shell.wait(timeout=600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    out = told.read_text()
    assert shell.returncode == 0, out[-4000:]
    assert out.count("80 of 80 requests got a whole answer") == 1
    assert out.count("81 of 81 requests got a whole answer") == 1
    # Once before the engines that recorded, once before those of the winner.
    assert out.count("% of the prompt tokens came from prefix caches") == 2
    assert "real-engines: 3 systems, 1 seed" in out
    assert "wavetank_router_view_kv_tokens" in out


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("compare_from_python.py", "tokens of imbalance"),
        ("identify_a_system.py", "cholesky: 16 steps"),
        ("own_policy.py", "least-work-2"),
        ("own_router.py", "same decisions: True"),
        ("replay_a_csv.py", "FewestKVTokens: TTFT p99"),
    ],
)
def test_an_example_runs_and_says_something(script, says, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_tested():
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert scripts == {
        "compare_from_python.py", "identify_a_system.py", "own_policy.py", "own_router.py", "replay_a_csv.py",
    }  # fmt: skip


def test_what_is_written_about_a_system_is_about_one_that_exists():
    from wavetank.ledger import catalog

    assert {path.stem for path in (ROOT / "docs" / "why").glob("*.md")} <= set(catalog.built_in().systems)


def test_contributing_says_of_every_key_of_a_catalog_what_the_code_says():
    place = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(place)
    place.loader.exec_module(generate)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    written = re.search(r"<!-- keys of a catalog[^>]*-->\n\n(.*?)\n\n<!-- end of the keys -->", text, re.DOTALL)[1]
    assert written == generate.catalog_keys()


def test_contributing_shows_the_house_as_it_is():
    """Every package and every problem is in the tree, and nothing else is; the layers are those of import-linter."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree, layers = re.findall(r"```text\n(.*?)```", text[text.index("## The house") :], re.DOTALL)[:2]
    source = ROOT / "src" / "wavetank"
    there = {path.parent.relative_to(source).parts for path in source.glob("*/**/__init__.py")}
    areas = {path.parts[-3] for path in source.glob("*/*/catalog.toml")}
    wanted = {parts[0] for parts in there}
    wanted |= {parts[1] for parts in there if parts[0] in areas and len(parts) == 2}
    assert set(re.findall(r"^ +(\w+)/ ", tree, re.MULTILINE)) == wanted
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    assert layers.splitlines() == [layer.replace("wavetank.", "") for layer in contract["layers"]]


def test_the_manual_builds_without_a_warning_and_has_a_page_for_every_entry(tmp_path):
    from wavetank.ledger import catalog

    # Of the theme of `make docs`, the list of all pages on every page takes half of the time and finds no fault.
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-t", "without_charts", "-D", "html_theme=basic",
         "-d", str(tmp_path / "trees"), str(ROOT / "docs"),
         str(tmp_path / "html")],
        capture_output=True, text=True, timeout=600, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    generated = tmp_path / "html" / "generated"
    pages = {path.relative_to(generated).as_posix() for path in generated.rglob("*.html")}
    wanted = {f"systems/{name}.html" for name in catalog.built_in().systems}
    wanted |= {f"studies/{name}.html" for name in catalog.built_in().studies}
    assert wanted | {"ledger.html"} < pages
    page = (generated / "systems" / "balance-route.html").read_text()
    assert "arxiv.org/abs/2605.06113" in page
    assert "horizon_steps" in page


def test_the_page_of_questions_is_made_from_the_catalog(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from generate import questions

    assert questions() == (ROOT / "docs" / "questions.md").read_text()


def test_the_readmes_answers_are_those_of_the_kept_records():
    """Every quoted answer stands word for word in what the records give today."""
    from wavetank.ledger import claims
    from wavetank.run import comparison

    readme = " ".join((ROOT / "README.md").read_text().split())
    for folder in ("llm-routing/azure-conv-2023-group", "llm-routing/azure-conv-2023-replicas", "file-sync/simulated-2",
                   "agent-discovery/stationary-4096"):  # fmt: skip
        answer = comparison.load(claims.evidence_folder() / folder).answer
        assert answer is not None
        assert answer.sentence in readme, answer.sentence
