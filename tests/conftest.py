"""What all tests share: a third-party package of toys, and the command line in a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = Path(__file__).parent / "plugin"

# In this process for tests that call, in the environment for processes that tests start.
sys.path.insert(0, str(PLUGIN))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH", ""))))
for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
    os.environ.pop(name, None)

# New examples in every run, those of the pipeline too; a failure prints the line that repeats it.
hypothesis.settings.register_profile("wavetank", deadline=None, derandomize=False, print_blob=True)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("wavetank"), max_examples=40)

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples of a property that names no number, unless the long tests run, too."""
    hypothesis.settings.load_profile("quick" if config.option.markexpr == "not slow" else "wavetank")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Leave the million objects of the collection out of every later search for garbage, which takes a second else."""
    gc.disable()
    compile_a_share(session.config)
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def compile_a_share(config: pytest.Config) -> None:
    """Import, as one of several test processes, its share of the modules that compile functions when imported.

    All processes collect the same files in the same order: without this, one would compile while the others wait.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    source = ROOT / "src"
    modules = [path for path in sorted(source.rglob("*.py")) if b"@compiled(" in path.read_bytes()]
    for path in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # What cannot be imported is reported by the tests that need it.
        with contextlib.suppress(Exception):
            importlib.import_module(".".join(path.relative_to(source).with_suffix("").parts))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the skipped tests lack, and how many lack it; keep how long each test took, for ``make budgets``."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.write_sep("=", f"skipped: {reasons.total()}")
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
            terminalreporter.write_line(f"{count:4}  {reason.removeprefix('Skipped: ')}")
    took_s: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took_s[report.nodeid] += report.duration
    cache = getattr(config, "cache", None)
    if cache is not None and len(took_s) > 1000:
        cache.set("wavetank/durations", {test: round(took, 3) for test, took in took_s.most_common(300)})


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the tally as the last line: some libraries write what they leaked when the interpreter ends."""
    gc.unfreeze()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    os.close(silent)


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


_DEADLINE_S = 60.0


class Told(NamedTuple):
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


Call = Callable[..., Told]


@pytest.fixture
def call(here: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command line in this process, in an empty folder, off a terminal."""

    from wavetank.cli import run

    def invoke(*arguments: str) -> Told:
        code = run(arguments)
        captured = capsys.readouterr()
        return Told(code, captured.out, captured.err)

    return invoke


class Screen(NamedTuple):
    """What a terminal received, and how the command ended."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """The raw text without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw).replace("\r", "")


@pytest.fixture
def terminal(tmp_path: Path, executable: str) -> Callable[..., Screen]:
    """Run ``wavetank`` on a terminal of 80 columns; press Ctrl-C when ``until`` has been seen ``times`` times."""

    def show(*arguments: str, until: str = "", times: int = 1, **more: str) -> Screen:
        pid, screen = pty.fork()
        if pid == 0:
            os.chdir(tmp_path)
            os.environ.update({"TERM": "xterm", **more})
            os.execv(executable, [executable, *arguments])
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        received, pressed, deadline = b"", False, time.monotonic() + _DEADLINE_S
        while True:
            ready, _, _ = select.select([screen], [], [], 0.05)
            if ready:
                try:
                    piece = os.read(screen, 65536)
                except OSError:
                    break
                if not piece:
                    break
                received += piece
            if until and not pressed and received.count(until.encode()) >= times:
                os.write(screen, b"\x03")
                pressed = True
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(screen)
        return Screen(os.waitstatus_to_exitcode(status), received.decode())

    return show
