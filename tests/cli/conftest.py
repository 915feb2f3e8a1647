"""The command line in this process (fast), and on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from wavetank.cli import run

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
