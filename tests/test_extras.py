"""Optional libraries: every hint is a command that works where it is read, and asks no index for this package."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from wavetank import extras
from wavetank.errors import MissingExtraError, missing_extra
from wavetank.extras import checkout, install_command, pip_command
from wavetank.ledger import catalog

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wavetank"
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# For those who change Wavetank, and programs that are compared with, some of which contradict constraints.txt.
NOT_FOR_USERS = {"test", "docs", "mutants", "kernel-peers", "protocol-peers", "insight-peers"}
# Libraries that are imported under another name than they are installed under.
INSTALLED_AS = {"cv2": "opencv-python-headless", "prometheus_client": "prometheus-client", "dns": "dnspython",
                "opentelemetry": "opentelemetry-sdk"}  # fmt: skip


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that an installed wheel runs, with extras of its own."""
    monkeypatch.setattr(extras, "checkout", lambda: None)
    lines = [
        "numpy>=2.2",
        "tiny>=1.5; extra == 'small'",
        "large<3,>=2; (python_version >= '3') and extra == 'small'",
        "elsewhere; sys_platform == 'none' and extra == 'small'",
        "tiny>=1.5; extra == 'other'",
        "nowhere; sys_platform == 'none' and extra == 'foreign'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines if name == "wavetank" else None)


def test_a_checkout_is_installed_again_with_the_extra_and_its_constraints() -> None:
    assert checkout() == ROOT
    assert shlex.split(install_command("ray"))[-4:] == ["-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[ray]"]
    assert install_command("torch", "mkl").endswith(shlex.join(["-e", f"{ROOT}[torch,mkl]"]))


def test_peers_that_contradict_the_constraints_are_installed_without_them() -> None:
    assert "constraints.txt" not in install_command("kernel-peers")
    assert "constraints.txt" not in install_command("torch", "kernel-peers")


@pytest.mark.usefixtures("wheel")
def test_beside_a_wheel_the_libraries_themselves_are_installed() -> None:
    assert shlex.split(install_command("small"))[-2:] == ["tiny>=1.5", "large<3,>=2"]
    assert install_command("small").endswith("'tiny>=1.5' 'large<3,>=2'")
    assert install_command("small", "other") == install_command("small")


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("extra", ["foreign", "unknown"])
def test_an_extra_without_a_library_for_this_system_gives_no_command(extra: str) -> None:
    assert install_command(extra) == f"nothing to install is known for '{extra}' on this system"


def test_a_package_that_is_in_no_checkout_reads_the_metadata_it_was_installed_with(tmp_path: Path) -> None:
    package, about = tmp_path / "wavetank", tmp_path / "wavetank-9.dist-info"
    for folder in (package, about):
        folder.mkdir()
    for name in ("__init__.py", "lazy_names.py", "errors.py", "extras.py"):
        shutil.copy(SOURCE / name, package)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: wavetank\nVersion: 9\nProvides-Extra: toys\n"
        "Requires-Dist: toy-library>=1; extra == 'toys'\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from wavetank.errors import missing_extra\n"
        "print(missing_extra('toy', 'toys', needed_for='A toy').hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shlex.split(done.stdout)[-2:] == ["install", "toy-library>=1"]


def test_without_metadata_there_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "checkout", lambda: None)
    monkeypatch.setattr("importlib.metadata.requires", fail)
    assert install_command("torch").startswith("nothing to install is known")


@pytest.mark.parametrize(
    ("pip_on_path", "has_pip", "uv_on_path", "command"),
    [
        ("/env/bin/pip", True, None, "pip install x"),
        ("/usr/bin/pip", True, None, "/env/bin/python -m pip install x"),
        (None, True, "/usr/bin/uv", "/env/bin/python -m pip install x"),
        ("/usr/bin/pip", False, "/usr/bin/uv", "uv pip install --python /env/bin/python x"),
        (None, False, None, "/env/bin/python -m pip install x"),
    ],
)
def test_pip_is_the_one_of_this_environment(
    monkeypatch: pytest.MonkeyPatch, pip_on_path: str | None, has_pip: bool, uv_on_path: str | None, command: str
) -> None:
    monkeypatch.setattr(sys, "executable", "/env/bin/python")
    monkeypatch.setattr(shutil, "which", {"pip": pip_on_path, "uv": uv_on_path}.get)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if has_pip else None)
    assert pip_command("x") == command


def test_a_place_with_spaces_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "checkout", lambda: Path("/my tank"))
    assert shlex.split(install_command("ray"))[-1] == "/my tank[ray]"


def test_the_hint_of_an_error_is_the_command() -> None:
    error = missing_extra("ray", "ray", needed_for="--on ray://", where="--on")
    assert isinstance(error, MissingExtraError)
    assert (error.hint, error.where) == (install_command("ray"), "--on")


def test_all_holds_every_extra_that_is_meant_for_users() -> None:
    (line,) = OPTIONAL["all"]
    named = re.fullmatch(r"wavetank\[(.*)\]", line)
    assert named
    assert set(named[1].split(",")) == OPTIONAL.keys() - NOT_FOR_USERS - {"all"}


def calls() -> list[tuple[str, ast.expr, ast.expr]]:
    """Return where an optional library is missed: the place, the library and the extra."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        # Every test process calls this: few files are worth parsing.
        for node in ast.walk(ast.parse(text)) if "missing_extra(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "missing_extra":
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", *node.args[:2]))
    return found


@pytest.mark.parametrize(("place", "library", "extra"), [pytest.param(*each, id=each[0]) for each in calls()])
def test_an_extra_that_is_named_installs_the_library_that_is_missed(place: str, library: Any, extra: Any) -> None:
    if not isinstance(extra, ast.Constant):
        # By one name of both, or of a cluster: what they can be is in the tests of these modules.
        assert place.startswith(("kernels/products/libraries.py", "run/execute.py"))
        return
    assert extra.value in OPTIONAL
    if isinstance(library, ast.Constant):
        name = INSTALLED_AS.get(library.value, library.value)
        lines = [*OPTIONAL[extra.value]]
        assert any(re.match(rf"{re.escape(name)}(?![\w-])", line) for line in lines)


def test_every_extra_of_the_catalog_exists() -> None:
    named = {entry.extra for entry in catalog.built_in() if entry.extra}
    assert named
    assert named <= OPTIONAL.keys()


def test_make_compare_ends_with_how_to_call_the_command() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    words = ["make", "--dry-run", "--no-print-directory", "-C", str(ROOT), "compare", "VENV=/some/env"]
    *_, ran, last = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert ran == "/some/env/bin/wavetank compare llm-routing"
    said = subprocess.run(["sh", "-c", last], capture_output=True, text=True, check=True).stdout
    assert said.strip() == (
        'To go on: /some/env/bin/wavetank list; after ". /some/env/bin/activate" it is plain wavetank.'
    )


def test_nothing_that_is_shown_asks_an_index_for_this_package() -> None:
    asking = re.compile(r"pip install[^\n`]*?[\s'\"]wavetank\b")
    shown = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for folder in (SOURCE, ROOT / "docs", ROOT / "examples"):
        shown += [path for path in folder.rglob("*") if path.is_file() and "_build" not in path.parts]
    found = []
    for path in shown:
        if path.suffix in (".pyc", ".png", ".gz", ".parquet"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {line[0]}" for line in asking.finditer(text)]
    assert found == []
