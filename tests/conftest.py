"""What all tests share: a third-party package of toys, and the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

PLUGIN = Path(__file__).parent / "plugin"

# In this process for tests that call, in the environment for processes that tests start.
sys.path.insert(0, str(PLUGIN))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH", ""))))
for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
    os.environ.pop(name, None)

# New examples in every run, those of the pipeline too; a failure prints the line that repeats it.
hypothesis.settings.register_profile("wavetank", deadline=None, derandomize=False, print_blob=True)
hypothesis.settings.load_profile("wavetank")

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the skipped tests lack, and how many lack it."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.write_sep("=", f"skipped: {reasons.total()}")
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
            terminalreporter.write_line(f"{count:4}  {reason.removeprefix('Skipped: ')}")


@pytest.fixture
def executable() -> str:
    """Path of the installed ``wavetank`` command."""
    return str(Path(sys.executable).with_name("wavetank"))


@pytest.fixture
def command(tmp_path: Path, executable: str) -> Command:
    """Run ``wavetank`` with arguments in an empty folder, in a process of its own."""

    def run(*arguments: str, cwd: Path = tmp_path, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [executable, *arguments],
            cwd=cwd,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
